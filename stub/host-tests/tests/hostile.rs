//! Hostile bytes: no panic, bounded answers, and the session goes on. `PROPTEST_CASES=1000000` makes a long run of it.

use proptest::prelude::*;
use ulpf_stub_host_tests::fake::Recorder;
use ulpf_stub_host_tests::gdb::{Event, GdbSession, packet};

/// Starts of real packets, so that the parsers behind them are reached.
const STARTS: &[&str] = &[
    "",
    "?",
    "!",
    "g",
    "G",
    "p",
    "P",
    "m",
    "M",
    "X",
    "x",
    "Z0,",
    "Z0,1,1;X",
    "Z0,1,1;X1,",
    "Z2,",
    "z3,",
    "H",
    "Hg",
    "Hcp",
    "T",
    "c",
    "C",
    "s",
    "S",
    "vCont;",
    "vCont;c:",
    "vCont;C",
    "vCont;r",
    "vCont?",
    "vCtrlC",
    "vRun;",
    "vFile:",
    "qSupported",
    "qSupported:",
    "qXfer:",
    "qXfer:features:read:",
    "qXfer:features:read:target.xml:",
    "qXfer:siginfo:write::",
    "qXfer:siginfo:read::",
    "qXfer:threads:read::",
    "qXfer:auxv:read::",
    "qXfer:libraries-svr4:read:start=",
    "qRcmd,",
    "qC",
    "qAttached",
    "qThreadExtraInfo,",
    "QPassSignals:",
    "QNonStop:",
    "QStartNoAckMode",
    "R",
    "D",
    "k",
    "qfThreadInfo",
    "qsThreadInfo",
    "qRegisterInfo",
    "qMemoryRegionInfo:",
    "_M",
    "_m",
    "jThreadsInfo",
    "qHostInfo",
    "qProcessInfo",
    "QEnvironment",
    "QSetWorkingDir:",
    "qTStatus",
    "qWasm",
    "vMust",
];

fn payload() -> impl Strategy<Value = Vec<u8>> {
    let tail = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        "[0-9a-f,:;.=p+X#$}*-]{0,60}".prop_map(String::into_bytes),
    ];
    (proptest::sample::select(STARTS), tail).prop_map(|(start, tail)| {
        let mut p = start.as_bytes().to_vec();
        // The server passes on frames, so there is no bare '#'.
        p.extend(tail.into_iter().filter(|b| *b != b'#'));
        p
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn any_packets(packets in proptest::collection::vec(payload(), 1..12)) {
        let mut inf = Recorder::default();
        let mut session = GdbSession::new(100);
        let mut said = 0;
        for p in &packets {
            let event = session.incoming(&mut inf, &ulpf_rsp::frame(p), &mut |f| said += f.len());
            if event == Event::Running {
                let stop = ulpf_stub_host_tests::inferior::Stop {
                    tid: 100,
                    reason: ulpf_stub_host_tests::inferior::StopReason::Stepped,
                };
                session.stopped(&mut inf, stop, &mut |_| {});
            }
            if matches!(event, Event::Killed | Event::Detached) {
                return Ok(());
            }
        }
        prop_assert!(said < packets.len() * 5 * packet::PACKET_SIZE / 2);
        let mut alive = Vec::new();
        session.incoming(&mut inf, &ulpf_rsp::frame(b"p0"), &mut |f| alive.extend_from_slice(f));
        prop_assert_eq!(alive, ulpf_rsp::frame(b"0000000000000000"));
    }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut inf = Recorder::default();
        let mut session = GdbSession::new(100);
        session.incoming(&mut inf, &bytes, &mut |_| {});
    }
}
