//! Whole conversations without a program, over a pipe in memory; random bytes in place of conversations.
#![forbid(unsafe_code)]

use super::client::Client;
use super::options::Options;
use super::packets::{PACKET_LIMIT, PACKET_SIZE};
use super::{Bound, Terminal};
use proptest::prelude::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use ulpf_host::listen::Connection;
use ulpf_rsp::{Decoder, Event};

/// Sends the bytes, closes, and collects the replies until the server has noticed.
fn converse(bytes: &[u8]) -> Vec<Event> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let options = Options {
            comm: "-".into(),
            multi: true,
            ..Options::default()
        };
        let mut bound = Bound::new(options, Terminal::Shared).await.unwrap();
        let (ours, theirs) = tokio::io::duplex(1 << 22);
        let (reader, writer) = tokio::io::split(theirs);
        let mut client = Client::new(
            Connection {
                reader: Box::new(reader),
                writer: Box::new(writer),
                from: String::new(),
            },
            false,
        );
        let (mut from, mut to) = tokio::io::split(ours);
        to.write_all(bytes).await.unwrap();
        to.shutdown().await.unwrap();
        let served = tokio::time::timeout(
            Duration::from_secs(20),
            bound.server.connection(&mut client),
        )
        .await;
        assert!(served.is_ok(), "the server hangs");
        drop(client);
        let mut back = Vec::new();
        from.read_to_end(&mut back).await.unwrap();
        let mut events = Vec::new();
        Decoder::default().feed(&back, |e| events.push(e));
        events
    })
}

/// The replies to packets that are sent one after the other.
fn replies(packets: &[&str]) -> Vec<String> {
    let bytes: Vec<u8> = packets
        .iter()
        .flat_map(|p| ulpf_rsp::frame(p.as_bytes()))
        .collect();
    let packets = converse(&bytes).into_iter().filter_map(|e| match e {
        Event::Packet(p) => Some(String::from_utf8_lossy(&p).into_owned()),
        _ => None,
    });
    packets.collect()
}

#[test]
fn without_a_program_it_answers_as_gdbserver_does() {
    let asked = [
        "?",
        "qC",
        "qfThreadInfo",
        "Hg0",
        "m0,4",
        "g",
        "vMustReplyEmpty",
        "!",
        "qAttached",
        "D;1",
        "vCont;c",
        "vKill;1",
    ];
    let answers = [
        "W00", "E01", "E01", "E01", "E01", "E01", "", "OK", "E01", "E01", "E01", "E01",
    ];
    assert_eq!(replies(&asked), answers);
}

#[test]
fn settings_are_taken_or_refused() {
    let asked = [
        "QDisableRandomization:0",
        "QDisableRandomization:2",
        "QStartupWithShell:1",
        "QEnvironmentHexEncoded:413d62",
        "QEnvironmentHexEncoded:3d62",
        "QEnvironmentHexEncoded:4",
        "QEnvironmentUnset:41",
        "QEnvironmentReset",
        "QSetWorkingDir:2f",
        "QSetWorkingDir:zz",
        "QPassSignals:e;10",
    ];
    let answers = [
        "OK", "E01", "OK", "OK", "E01", "E01", "OK", "OK", "OK", "E01", "OK",
    ];
    assert_eq!(replies(&asked), answers);
}

#[test]
fn features_are_the_servers_and_the_stubs() {
    let answer = replies(&["qSupported:multiprocess+"]).remove(0);
    for feature in [
        "PacketSize=10000",
        "QStartNoAckMode+",
        "multiprocess+",
        "swbreak+",
        "qXfer:features:read+",
    ] {
        assert_eq!(
            answer.split(';').filter(|f| *f == feature).count(),
            1,
            "{feature} in {answer}"
        );
    }
}

#[test]
fn monitor_commands() {
    let hex = |text: &str| format!("qRcmd,{}", ulpf_rsp::to_hex(text.as_bytes()));
    let answers = replies(&[&hex("help"), &hex("nonsense"), &hex("exit"), "?"]);
    assert_eq!(answers[1], "OK");
    assert!(answers[2].starts_with('O'));
    // No answers follow `exit`.
    assert_eq!(answers[3..], ["E01", "OK"]);
}

#[test]
fn oversized_packets_are_refused_and_forgotten() {
    let long = "m".repeat(PACKET_SIZE + 1);
    let longer = "m".repeat(PACKET_LIMIT + 1);
    let answers = replies(&[&long, &longer, "?"]);
    assert!(answers[0].starts_with("E.") && answers[1].starts_with("E."));
    assert_eq!(answers[2], "W00");
}

/// Packets that affect nothing outside the server, whatever their arguments are.
fn harmless() -> impl Strategy<Value = Vec<u8>> {
    let head = prop::sample::select(vec![
        "",
        "!",
        "?",
        "qSupported",
        "qSupported:",
        "vCont",
        "vCont;",
        "vFile:",
        "vFile:setfs:",
        "vFile:pread:",
        "vFile:fstat:",
        "vFile:close:",
        "vFile:readlink:",
        "vFile:stat:",
        "qAttached",
        "qAttached:",
        "QDisableRandomization:",
        "QStartupWithShell:",
        "QEnvironmentHexEncoded:",
        "QEnvironmentUnset:",
        "QEnvironmentReset",
        "QSetWorkingDir:",
        "qRcmd,",
        "vKill;",
        "k",
        "R",
        "D",
        "D;",
        "H",
        "m",
        "M",
        "X",
        "Z2,",
        "z2,",
        "g",
        "G",
        "P",
        "p",
        "c",
        "s",
        "C",
        "S",
        "T",
        "qXfer:",
        "QStartNoAckMode",
        "QPassSignals:",
        "QNonStop:",
    ]);
    let tail = prop_oneof!["[0-9a-f,;:]{0,40}", "[ -~]{0,40}", Just(String::new())];
    (head, tail, prop::collection::vec(any::<u8>(), 0..4)).prop_map(|(head, tail, odd)| {
        [head.as_bytes(), tail.as_bytes(), &ulpf_rsp::escape(&odd)].concat()
    })
}

proptest! {
    /// Fuzzes the packet path: `PROPTEST_CASES=1000000 cargo test no_conversation_breaks_it`.
    ///
    /// Any sequence of packets, mangled or not, truncated anywhere: the server answers or ignores each, and reaches the
    /// end.
    #[test]
    fn no_conversation_breaks_it(
        packets in prop::collection::vec((harmless(), any::<u8>()), 0..24),
        cut in 0usize..2000,
    ) {
        let mut bytes = Vec::new();
        for (packet, how) in packets {
            let mut frame = ulpf_rsp::frame(&packet);
            match how {
                0..=9 => { let last = frame.len() - 1; frame[last] ^= 1; }
                10..=14 => frame.truncate(frame.len() / 2),
                15..=19 => frame.push(ulpf_rsp::INTERRUPT),
                20..=24 => frame.extend(b"-+"),
                _ => {}
            }
            bytes.extend(frame);
        }
        bytes.truncate(bytes.len().saturating_sub(cut % 50));
        converse(&bytes);
    }
}
