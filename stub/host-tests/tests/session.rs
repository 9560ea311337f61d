//! Conversations with the protocol layer over a recording inferior.

use ulpf_lib::{TargetAddr, WatchKind};
use ulpf_rsp::Decoder;
use ulpf_stub_host_tests::fake::{PAGE, Recorder};
use ulpf_stub_host_tests::gdb::{Event, GdbSession};
use ulpf_stub_host_tests::inferior::{Stop, StopReason};

struct Talk {
    session: GdbSession,
    inf: Recorder,
    event: Event,
}

impl Talk {
    fn new() -> Talk {
        Talk {
            session: GdbSession::new(100),
            inf: Recorder::default(),
            event: Event::Stopped,
        }
    }
    fn gdb() -> Talk {
        let mut t = Talk::new();
        t.say("qSupported:multiprocess+;swbreak+;hwbreak+;xmlRegisters=i386");
        t
    }
    fn send(&mut self, payload: &[u8]) -> Vec<String> {
        let mut replies = Vec::new();
        let frame = ulpf_rsp::frame(payload);
        self.event = self
            .session
            .incoming(&mut self.inf, &frame, &mut |f| replies.push(text(f)));
        replies
    }
    #[track_caller]
    fn say(&mut self, payload: &str) -> String {
        let replies = self.send(payload.as_bytes());
        assert_eq!(replies.len(), 1, "{payload}: {replies:?}");
        replies.into_iter().next().unwrap()
    }
    fn stop(&mut self, tid: i32, reason: StopReason) -> String {
        let mut reply = String::new();
        self.event = self
            .session
            .stopped(&mut self.inf, Stop { tid, reason }, &mut |f| {
                reply = text(f)
            });
        reply
    }
    fn last(&self) -> &str {
        self.inf.log.last().map_or("", |s| s)
    }
}

/// Payload(s) of the frames in `f`, checksums verified.
fn text(f: &[u8]) -> String {
    let mut all = Vec::new();
    Decoder::default().feed(f, |event| match event {
        ulpf_rsp::Event::Packet(p) => all.push(String::from_utf8_lossy(&p).into_owned()),
        other => panic!("{other:?} from the stub"),
    });
    all.join(" ")
}

#[test]
fn feature_list() {
    let mut t = Talk::new();
    let reply = t.say("qSupported:multiprocess+;swbreak+");
    for feature in [
        "PacketSize=10000;",
        "multiprocess+",
        "swbreak+",
        "hwbreak+",
        "vContSupported+",
        "QStartNoAckMode+",
        "QPassSignals+",
        "ConditionalBreakpoints+",
        "qXfer:siginfo:write+",
        "augmented-libraries-svr4-read+",
    ] {
        assert!(reply.contains(feature), "{feature} in {reply}");
    }
    assert!(!reply.contains(',') && !reply.contains("fork"), "{reply}");
}

#[test]
fn threads_carry_process_ids_when_asked() {
    let mut t = Talk::gdb();
    assert_eq!(t.say("qfThreadInfo"), "mp64.64,p64.65");
    assert_eq!(t.say("qC"), "QCp64.64");
    assert_eq!(t.say("Tp64.65"), "OK");
    assert_eq!(t.say("Tp64.66"), "E01");
    assert_eq!(t.say("Tp63.65"), "E01");
    assert_eq!(t.say("qThreadExtraInfo,p64.65"), hex("<101>"));
    assert_eq!(t.say("qThreadExtraInfo,p64.66"), "E01");
    assert_eq!(t.say("qThreadExtraInfo,p63.65"), "E01");
    assert_eq!(t.say("Hgp0.0"), "OK");
    assert_eq!(t.say("Hgp64.99"), "E01");
    assert!(
        t.say("qXfer:threads:read::0,1000")
            .contains("id=\"p64.65\" name=\"&lt;101&gt;\"")
    );
    let mut t = Talk::new();
    t.say("qSupported:swbreak+");
    assert_eq!(t.say("qfThreadInfo"), "m64,65");
    assert_eq!(t.say("?"), "T05thread:64;");
}

#[test]
fn types_are_those_that_the_client_knows() {
    for (features, known) in [("", false), (";memory-tagging+", true)] {
        let mut t = Talk::new();
        t.say(&format!("qSupported:xmlRegisters=i386{features}"));
        let xml = t.say("qXfer:features:read:target.xml:0,8000");
        assert!(xml.contains("<vector id=\"v4f\""), "{xml}");
        assert_eq!(xml.matches("v8bf16").count() > 0, known, "{xml}");
        assert_eq!(xml.contains("bfloat16"), known, "{xml}");
        assert_eq!(xml.contains("half"), known, "{xml}");
    }
}

#[test]
fn registers_one_by_one_and_all() {
    let mut t = Talk::gdb();
    t.inf.gprs[1].rbx = 0x1122;
    t.say("Hgp64.65");
    assert_eq!(t.say("p1"), "2211000000000000");
    assert_eq!(t.say("P3=0000000000000080"), "OK");
    assert_eq!(t.inf.gprs[1].rdx, 1 << 63);
    assert_eq!(t.say("p12"), "33000000", "cs");
    assert_eq!(
        t.say("p20"),
        "7f030000",
        "fctrl of a component in its initial state"
    );
    assert_eq!(t.say("p22"), "ffff0000", "ftag likewise");
    assert_eq!(t.say("p3a"), "1111000000000000", "fs_base");
    assert_eq!(t.say("P28=000102030405060708090a0b0c0d0e0f"), "OK", "xmm0");
    assert_eq!(t.inf.xsave[512] & 2, 2, "writing enters the component");
    assert_eq!(t.say("p28"), "000102030405060708090a0b0c0d0e0f");
    let all = t.say("g");
    assert!(all.starts_with("00000000000000002211"));
    assert_eq!(
        t.say(&format!("G{}", all.replacen("2211", "3311", 1))),
        "OK"
    );
    assert_eq!(t.inf.gprs[1].rbx, 0x1133);
    assert_eq!(
        t.inf.xsave[512], 2,
        "what did not change stays in its initial state"
    );
    assert!(t.say("pffff").starts_with('E'));
    assert!(t.say("P1=zz").starts_with('E'));
    assert_eq!(t.say("p1"), "3311000000000000", "and the session survives");
}

#[test]
fn memory_in_pieces_and_at_the_edge() {
    let mut t = Talk::gdb();
    assert_eq!(t.say(&format!("m{PAGE:x},2")), "a5a5");
    assert_eq!(t.say(&format!("m{:x},10", PAGE + 4094)), "a5a5");
    assert_eq!(t.say("m0,10"), "E01");
    assert_eq!(t.say(&format!("m{PAGE:x},ffffffffffffffff")).len(), 8192);
    assert_eq!(t.say(&format!("M{PAGE:x},2:0102")), "OK");
    assert_eq!(
        t.send(format!("X{:x},2:}}\x03z", PAGE + 2).as_bytes()),
        ["OK"]
    );
    assert_eq!(t.inf.memory[..4], [1, 2, b'#', b'z']);
    assert_eq!(t.say("X0,0:"), "OK");
    assert_eq!(t.say("x0,0"), "OK");
    for bad in ["m", "m1", "m1,", "m,1", "mx,1", "M1,1", "M1,2:00", "X1,5:a"] {
        assert_eq!(t.say(bad), "E01", "{bad}");
    }
}

#[test]
fn watches_of_any_size_and_refusals() {
    let mut t = Talk::gdb();
    assert_eq!(t.say(&format!("Z2,{PAGE:x},100000")), "OK");
    assert_eq!(t.say(&format!("Z3,{PAGE:x},1")), "OK");
    assert_eq!(t.say(&format!("Z4,{PAGE:x},3")), "OK");
    assert_eq!(t.inf.watches.len(), 3);
    assert_eq!(t.say(&format!("z2,{PAGE:x},100000")), "OK");
    assert_eq!(
        t.say("Z2,10,4"),
        "E.cannot watch 0x10: nothing is mapped there; watch something else"
    );
    assert!(t.say("Z2,10,0").contains("the range is empty"));
    assert!(
        t.say("Z2,ffffffffffffffff,2")
            .contains("above the address space")
    );
    let why = t.say(&format!("qRcmd,{}", hex("ulpf why")));
    assert!(why.contains(&hex("above the address space")), "{why}");
    assert_eq!(t.say("Z5,1,1"), "");
}

#[test]
fn a_hit_that_gdb_cannot_look_at_is_explained_once() {
    let mut t = Talk::gdb();
    let hit = StopReason::Watch {
        kind: WatchKind::Write,
        addr: TargetAddr(PAGE + 8),
        start: TargetAddr(PAGE),
    };
    t.say(&format!("Z2,{PAGE:x},100000"));
    assert!(t.send(b"vCont;c").is_empty());
    t.stop(100, hit);
    t.say(&format!("m{PAGE:x},10"));
    assert!(t.send(b"vCont;c").is_empty(), "GDB has read the value");
    t.stop(100, hit);
    let said = t.send(b"vCont;c");
    assert!(
        said[0].starts_with('O') && said[0].contains(&hex("max-value-size")),
        "{said:?}"
    );
    t.stop(100, hit);
    assert!(t.send(b"vCont;c").is_empty(), "once is enough");
}

#[test]
fn breakpoints_with_and_without_conditions() {
    let mut t = Talk::gdb();
    assert_eq!(t.say("Z0,401000,1"), "OK");
    assert_eq!(t.last(), "break 0x401000 []");
    assert_eq!(t.say("Z0,401000,1;X3,220127"), "OK");
    assert_eq!(t.last(), "break 0x401000 [[22, 01, 27]]");
    assert_eq!(t.say("Z1,402000,1"), "OK");
    assert_eq!(t.say("z1,402000,1"), "OK");
    assert_eq!(t.say("Z0,401000,1;Xzz"), "E01");
    assert_eq!(t.inf.breakpoints.len(), 1);
}

#[test]
fn resuming() {
    let mut t = Talk::gdb();
    assert_eq!(t.say("vCont?"), "vCont;c;C;s;S;t;r");
    assert!(t.send(b"vCont;s:p64.65;c:p64.-1").is_empty());
    assert_eq!(t.event, Event::Running);
    assert_eq!(
        t.last(),
        "resume 100: Continue { signal: None }, 101: Step { signal: None }"
    );
    let stop = t.stop(101, StopReason::Stepped);
    assert!(stop.starts_with("T05thread:p64.65;06:"), "{stop}");
    // scheduler locking, with a signal: GDB's 30 is SIGUSR1, 10 on Linux
    assert!(t.send(b"vCont;C1e:p64.64").is_empty());
    assert_eq!(
        t.last(),
        "resume 100: Continue { signal: Some(10) }, 101: Hold"
    );
    let stop = t.stop(100, StopReason::Signal(12));
    assert!(stop.starts_with("T1fthread:p64.64;"), "{stop}");
    assert!(t.send(b"vCont;r401000,401010:p64.64").is_empty());
    assert!(
        t.last()
            .contains("RangeStep { start: 0x401000, end: 0x401010 }")
    );
    assert!(t.stop(100, StopReason::Breakpoint).contains("swbreak:;"));
    assert!(t.send(b"vCont;c").is_empty());
    assert!(
        t.stop(
            101,
            StopReason::Watch {
                kind: WatchKind::Write,
                addr: TargetAddr(0x1234),
                start: TargetAddr(0x1230)
            }
        )
        .contains(";watch:1234;")
    );
    assert!(t.say("?").contains("watch:1234"));
    // A heap error has a signal that the program cannot get; passing it on delivers no signal.
    assert!(t.send(b"vCont;c").is_empty());
    let stop = t.stop(100, StopReason::HeapError { report: 31 });
    assert!(stop.starts_with("T91thread:p64.64;"), "{stop}");
    assert!(stop.ends_with(";ulpfheap:1f;"), "{stop}");
    assert!(t.send(b"vCont;C91:p64.64;c").is_empty());
    assert!(
        t.last()
            .starts_with("resume 100: Continue { signal: None }")
    );
    assert!(t.stop(100, StopReason::HeapEnd).ends_with(";ulpfheapend:;"));
    assert!(t.send(b"c").is_empty());
    assert_eq!(t.say("g"), "E.the program is running");
    assert_eq!(t.event, Event::Running);
    let mut none = Vec::new();
    t.session
        .incoming(&mut t.inf, b"\x03", &mut |f| none.push(f.to_vec()));
    assert_eq!(t.last(), "interrupt");
    assert!(t.stop(100, StopReason::Interrupted).starts_with("T02"));
    for bad in ["vCont;c:p64.66", "vCont;t", "vCont;x", "vCont;", "sx"] {
        assert_eq!(t.say(bad), "E01", "{bad}");
    }
    assert_eq!(t.say("QPassSignals:e;1e"), "OK");
    assert_eq!(t.last(), format!("pass {:#x}", 1 << 13 | 1 << 9));
}

#[test]
fn a_second_client_starts_afresh() {
    let mut t = Talk::gdb();
    assert!(t.send(b"vCont;c").is_empty());
    t.stop(101, StopReason::Signal(11));
    t.say("qSupported:swbreak+");
    assert_eq!(t.say("?"), "T0bthread:65;");
    t.say("qSupported:xmlRegisters=i386");
    t.say("QListThreadsInStopReply");
    assert!(t.send(b"vCont;C1e:64").is_empty());
    assert!(t.last().contains("signal: Some(10)"));
    let stop = t.stop(101, StopReason::Breakpoint);
    assert!(
        stop.starts_with("T05thread:65;") && stop.contains("reason:breakpoint;threads:64,65;"),
        "{stop}"
    );
}

#[test]
fn an_interrupt_that_crosses_a_stop_shows_at_the_next_resume() {
    let mut t = Talk::gdb();
    t.session
        .incoming(&mut t.inf, b"\x03", &mut |_| panic!("no answer is due"));
    assert!(t.inf.log.is_empty());
    t.say("Hgp64.64");
    assert!(t.send(b"vCont;c").is_empty());
    assert_eq!(t.last(), "interrupt");
    t.stop(100, StopReason::Interrupted);
    assert!(t.send(b"vCont;c").is_empty());
    assert!(t.last().starts_with("resume"), "once");
    // LLDB takes the stop that crossed its request for the answer.
    t.stop(100, StopReason::Breakpoint);
    t.say("qSupported:xmlRegisters=i386");
    t.say("QListThreadsInStopReply");
    t.session
        .incoming(&mut t.inf, b"\x03", &mut |_| panic!("no answer is due"));
    assert!(t.send(b"vCont;c").is_empty());
    assert!(t.last().starts_with("resume"));
}

#[test]
fn leaving() {
    let mut t = Talk::gdb();
    assert_eq!(t.say("D;64"), "OK");
    assert_eq!((t.event, t.last()), (Event::Detached, "detach"));
    let mut t = Talk::gdb();
    assert!(t.send(b"k").is_empty());
    assert_eq!((t.event, t.last()), (Event::Killed, "kill"));
    let mut t = Talk::gdb();
    assert_eq!(t.say("vKill;64"), "OK");
}

#[test]
fn monitor_commands() {
    let mut t = Talk::gdb();
    let mut said = t.send(format!("qRcmd,{}", hex("help")).as_bytes());
    assert_eq!(said.pop().unwrap(), format!("O{} OK", hex("helpful\n")));
    let said = t.say(&format!("qRcmd,{}", hex("nonsense")));
    assert!(said.contains(&hex("monitor help")), "{said}");
    assert!(t.say("qRcmd,zz").starts_with('E'));
}

#[test]
fn signal_information_is_writable() {
    let mut t = Talk::gdb();
    assert_eq!(t.say("qXfer:siginfo:write::4:ab"), "2");
    assert_eq!(&t.inf.siginfo[4..6], b"ab");
    assert_eq!(t.say("qXfer:siginfo:write::7f:ab"), "E01");
    assert_eq!(t.say("qXfer:siginfo:read::80,10"), "l");
    assert_eq!(t.say("qXfer:nothing:read::0,10"), "");
}

#[test]
fn the_description_comes_in_pieces() {
    let mut t = Talk::gdb();
    let mut xml = String::new();
    loop {
        let piece = t.say(&format!(
            "qXfer:features:read:target.xml:{:x},7ff",
            xml.len()
        ));
        xml.push_str(&piece[1..]);
        if piece.starts_with('l') {
            break;
        }
    }
    assert!(xml.starts_with("<?xml") && xml.ends_with("</target>\n"));
    assert_eq!(t.say("qXfer:features:read:other.xml:0,10"), "E01");
}

/// gdbserver's way; gdbstub's own says the end in one more packet.
#[test]
fn an_object_ends_with_its_last_piece() {
    let mut t = Talk::gdb();
    let whole = t.say("qXfer:features:read:target.xml:0,ffff");
    assert!(whole.starts_with('l') && whole.ends_with("</target>\n"));
    // A list that goes on from a known entry. (gdbstub takes no annex.)
    let rest = t.say("qXfer:libraries-svr4:read:start=1;prev=2:0,1000");
    assert!(rest.starts_with("l<library-list-svr4"), "{rest}");
}

/// A frame that is too long, or damaged, has an answer.
#[test]
fn broken_frames() {
    let mut t = Talk::gdb();
    let long = ulpf_rsp::frame(&vec![b'a'; 0x10001]);
    for broken in [&long[..], b"$g#00"] {
        let mut said = Vec::new();
        let out = &mut |f: &[u8]| said.push(text(f));
        t.session.incoming(&mut t.inf, broken, out);
        assert_eq!(said, ["E01"]);
    }
    assert_eq!(t.say("p0"), "0000000000000000");
}

#[test]
fn caught_system_calls() {
    let mut t = Talk::gdb();
    assert_eq!(t.say("QCatchSyscalls:1"), "OK");
    assert_eq!(t.last(), "catch true []");
    assert_eq!(t.say("QCatchSyscalls:1;1;3b;"), "OK");
    assert_eq!(t.last(), "catch true [1, 59]");
    assert_eq!(t.say("QCatchSyscalls:0"), "OK");
    assert_eq!(t.last(), "catch false []");
    for bad in [
        "QCatchSyscalls",
        "QCatchSyscalls:2",
        "QCatchSyscalls:1;g",
        "QCatchSyscalls:1;",
    ] {
        assert!(t.say(bad).starts_with('E'), "{bad}");
    }
    assert_eq!(t.say("qAttached"), "1");
}

fn hex(s: &str) -> String {
    s.bytes().map(|b| format!("{b:02x}")).collect()
}
