//! The stub's packet layer: what gets past the server. A line is a packet.

use ulpf_stub_host_tests::fake::{Recorder, TIDS};
use ulpf_stub_host_tests::gdb::{Event, GdbSession, packet};
use ulpf_stub_host_tests::inferior::{Stop, StopReason};

pub const INPUTS: u64 = 2_600;

pub fn run(data: &[u8]) {
    let mut program = Recorder::default();
    let mut session = GdbSession::new(TIDS[0]);
    let packets = crate::lines(data);
    let mut said = 0;
    for (n, line) in packets.iter().enumerate() {
        let clean: Vec<u8> = line.iter().copied().filter(|b| *b != b'#').collect();
        let frame = ulpf_rsp::frame(&clean);
        let event = session.incoming(&mut program, &frame, &mut |text| said += text.len());
        match event {
            Event::Killed | Event::Detached => return,
            Event::Running => {
                let stop = Stop {
                    tid: TIDS[n % 2],
                    reason: StopReason::Stepped,
                };
                session.stopped(&mut program, stop, &mut |_| {});
            }
            _ => {}
        }
    }
    assert!(said <= packets.len() * 5 * packet::PACKET_SIZE / 2);
    // The server sends no bytes without frames, but they must do no harm.
    session.incoming(&mut program, data, &mut |_| {});
}
