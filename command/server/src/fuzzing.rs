//! Entry points of the server for the fuzz targets in fuzz/. Nothing else calls them.
#![forbid(unsafe_code)]

use super::bridge;
use super::client::Client;
use super::options::Options;
use super::{Bound, Terminal, vfork};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use ulpf_host::listen::Connection;

pub use bridge::fuzzing::debugger_and_back_end;

/// Packets that affect the fuzzing machine: they start and end programs, and change files.
const LEFT_OUT: [&str; 7] = [
    "vRun",
    "vAttach",
    "vKill",
    "vFile:open",
    "vFile:unlink",
    "vFile:pwrite",
    "R",
];

/// A debugger's packets in correct framing (framing has a fuzz target of its own).
pub fn framed<'a>(packets: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let harmless = |p: &&[u8]| !LEFT_OUT.iter().any(|start| p.starts_with(start.as_bytes()));
    let clean = |p: &[u8]| -> Vec<u8> {
        let framing = |b: &u8| !matches!(b, b'$' | b'#');
        p.iter().copied().filter(framing).collect()
    };
    packets
        .map(clean)
        .filter(|p| harmless(&&p[..]))
        .flat_map(|p| ulpf_rsp::frame(&p))
        .collect()
}

/// A conversation with a server that has no program. It must end when the debugger disconnects.
pub fn debugger(packets: &[&[u8]]) {
    let bytes = framed(packets.iter().copied());
    talk(&bytes, async |mut client| {
        let options = Options {
            comm: "-".into(),
            multi: true,
            ..Options::default()
        };
        let bound = Bound::new(options, Terminal::Shared).await;
        let mut bound = bound.expect("standard input is always there");
        bound.server.connection(&mut client).await;
    });
}

/// Serves a peer that sends these bytes and disconnects.
pub(super) fn talk(bytes: &[u8], serve: impl AsyncFnOnce(Client)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (mut ours, theirs): (DuplexStream, _) = tokio::io::duplex(1 << 22);
        let (reader, writer) = tokio::io::split(theirs);
        let connection = Connection {
            reader: Box::new(reader),
            writer: Box::new(writer),
            from: String::new(),
        };
        let client = Client::new(connection, false);
        let _ = ours.write_all(bytes).await;
        let _ = ours.shutdown().await;
        let mut heard = Vec::new();
        let both = async { tokio::join!(serve(client), ours.read_to_end(&mut heard)) };
        // The paused clock advances only when all tasks are idle, so a timeout means a deadlock.
        let ended = tokio::time::timeout(Duration::from_secs(3600), both).await;
        assert!(ended.is_ok(), "the conversation hangs");
    });
}

/// Packets and replies that name vfork children.
pub fn vfork_names(packet: &[u8], parent: i32) {
    for non_stop in [false, true] {
        let _ = vfork::actions(packet, parent, &[], non_stop);
    }
    let _ = vfork::to_stub(packet, parent, &[]);
    let _ = vfork::to_debugger(packet.to_vec(), parent, &[]);
}
