//! Questions that are answered at a stop in advance.

use ulpf_lib::{TargetAddr, WatchKind};
use ulpf_stub_host_tests::fake::{PAGE, Recorder, TIDS};
use ulpf_stub_host_tests::gdb::GdbSession;
use ulpf_stub_host_tests::inferior::{Stop, StopReason};

struct Talk {
    session: GdbSession,
    inf: Recorder,
}

impl Talk {
    /// The program is about to run, and the stub knows the questions.
    fn with_questions(questions: &str) -> Talk {
        let mut t = Talk {
            session: GdbSession::new(TIDS[0]),
            inf: Recorder::default(),
        };
        t.send("qSupported:multiprocess+;swbreak+");
        let silent = t.send(&format!("vUlpfAhead;{questions}"));
        assert!(silent.is_empty(), "nobody waits for an answer");
        t.send("vCont;c");
        t
    }
    fn send(&mut self, payload: &str) -> Vec<u8> {
        let mut all = Vec::new();
        let frame = ulpf_rsp::frame(payload.as_bytes());
        let out = &mut |f: &[u8]| all.extend_from_slice(f);
        self.session.incoming(&mut self.inf, &frame, out);
        all
    }
    /// The output of a stop, one string for each write.
    fn stop(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        let reason = StopReason::Watch {
            kind: WatchKind::Write,
            addr: TargetAddr(PAGE),
            start: TargetAddr(PAGE),
        };
        let stop = Stop {
            tid: TIDS[0],
            reason,
        };
        let out = &mut |f: &[u8]| all.push(String::from_utf8_lossy(f).into_owned());
        self.session.stopped(&mut self.inf, stop, out);
        all
    }
}

#[test]
fn answers_come_with_the_stop() {
    let mut t = Talk::with_questions(&format!("m{PAGE:x},2;qXfer:threads:read::0,20;m1,2"));
    t.inf.memory[..2].copy_from_slice(&[0x2a, 0]);
    let said = t.stop();
    assert_eq!(said.len(), 1, "one write: {said:?}");
    let (stop, rest) = said[0].split_once('%').unwrap();
    assert!(stop.starts_with("$T05"), "{stop}");
    assert!(
        rest.starts_with("UlpfAhead:0;4:2a0021:m<threads>"),
        "{rest}"
    );
    assert!(
        rest.contains("0:#"),
        "what cannot be read is not answered: {rest}"
    );
    // The list is valid until another one is set.
    t.send("vCont;c");
    assert!(t.stop()[0].contains("%UlpfAhead:0;4:2a00"));
    t.send("vUlpfAhead;");
    t.send("vCont;c");
    assert!(!t.stop()[0].contains('%'));
}

#[test]
fn many_answers_do_not_hold_up_the_stop() {
    let questions: Vec<String> = (0..1000).map(|n| format!("m{:x},1", PAGE + n)).collect();
    let mut t = Talk::with_questions(&questions.join(";"));
    let said = t.stop();
    assert!(said[0].starts_with("$T05"));
    assert!(said[0].contains("%UlpfAhead:0;2:a52:a5"));
    let numbers: Vec<&str> = said[1..]
        .iter()
        .map(|s| s.split(';').next().unwrap())
        .collect();
    assert_eq!(numbers, ["%UlpfAhead:8", "%UlpfAhead:208"]);
    let answers: usize = said.iter().map(|s| s.matches("2:a5").count()).sum();
    assert_eq!(answers, 1000);
}

#[test]
fn what_others_may_change_is_not_answered() {
    let list = format!("m{PAGE:x},2;qXfer:threads:read::0,20");
    let mut t = Talk::with_questions(&list);
    t.inf.steady = false;
    assert!(!t.stop()[0].contains('%'), "a thread is in a system call");
    t.inf.steady = true;
    t.inf.private = false;
    t.send("vCont;c");
    let said = t.stop();
    assert!(said[0].contains("%UlpfAhead:0;0:21:m<"), "{said:?}");
}

#[test]
fn only_questions_are_answered() {
    let list = format!(
        "M{PAGE:x},1:00;vCont;c;D;k;m;mffffffffffffffff,ff;qXfer:auxv:read::0,20;qXfer:threads:read"
    );
    let mut t = Talk::with_questions(&list);
    let before = t.inf.log.clone();
    let said = t.stop();
    assert!(
        said[0].contains("%UlpfAhead:0;0:0:0:0:0:0:0:0:"),
        "{said:?}"
    );
    assert_eq!(t.inf.log, before);
    assert_eq!(t.inf.memory[0], 0xa5);
}

/// The stop reply of a watch that GDB cannot hold depends on whether GDB reads the watch, so GDB has to ask.
#[test]
fn a_hit_of_a_large_watch_is_not_answered() {
    let mut t = Talk::with_questions(&format!("m{PAGE:x},2"));
    t.stop();
    t.send(&format!("Z2,{PAGE:x},20000"));
    t.send("vCont;c");
    assert!(!t.stop()[0].contains('%'));
}
