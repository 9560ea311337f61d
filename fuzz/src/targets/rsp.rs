//! The framing of the remote protocol on the command's side, and what stop replies and answers of a stub
//! (which is the target's to forge) say.

use ulpf_rsp::{Decoder, Event};
use ulpf_session::armed::outcomes;

pub const INPUTS: u64 = 33_000;

fn events(pieces: &[&[u8]]) -> Vec<Event> {
    let mut decoder = Decoder::new(1 << 12);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(piece, |event| events.push(event));
    }
    events
}

pub fn run(data: &[u8]) {
    let found = events(&[data]);
    let middle = data.len() / 2;
    assert_eq!(found, events(&[&data[..middle], &data[middle..]]));
    for event in found {
        let (Event::Packet(packet) | Event::Notification(packet)) = event else {
            continue;
        };
        payload(&packet);
    }
    // Without a frame, too: checksums are rarely guessed.
    payload(data);
}

fn payload(packet: &[u8]) {
    let plain = ulpf_rsp::expand_runs(packet).unwrap_or_else(|| packet.to_vec());
    assert!(plain.len() <= 126 * packet.len().max(1));
    assert_eq!(
        ulpf_rsp::unescape(&ulpf_rsp::escape(&plain)).as_ref(),
        Some(&plain)
    );
    let _ = ulpf_rsp::from_hex(&plain);
    let _ = ulpf_rsp::hex_number(&plain);
    let mut armed = Vec::new();
    for line in ulpf_run::fuzzing::packet(&plain)
        .unwrap_or_default()
        .lines()
    {
        let _ = outcomes(line, 1000, &mut armed);
    }
    let _ = outcomes(&String::from_utf8_lossy(&plain), 1000, &mut armed);
    for parent in [1, 0x20] {
        ulpf_server::fuzzing::vfork_names(&plain, parent);
    }
}
