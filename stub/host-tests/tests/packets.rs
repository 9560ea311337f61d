//! The parsers alone.

use ulpf_stub_host_tests::gdb::packet::*;

#[test]
fn thread_ids() {
    let id = |s: &str| ThreadId::parse(s.as_bytes());
    assert_eq!(
        id("p1f.2a"),
        Some(ThreadId {
            pid: Some(Id::Is(0x1f)),
            tid: Id::Is(0x2a)
        })
    );
    assert_eq!(id("-1"), Some(ThreadId::ALL));
    assert_eq!(
        id("p5"),
        Some(ThreadId {
            pid: Some(Id::Is(5)),
            tid: Id::All
        })
    );
    assert_eq!(
        id("p-1.-1"),
        Some(ThreadId {
            pid: Some(Id::All),
            tid: Id::All
        })
    );
    assert_eq!(
        id("0"),
        Some(ThreadId {
            pid: None,
            tid: Id::Any
        })
    );
    for bad in ["", "p", "p.", "p1.", "x", "1.2", "-2", "11111111111111111"] {
        assert_eq!(id(bad), None, "{bad}");
    }
}

#[test]
fn resume_actions() {
    let all = |go| {
        Some(vec![Action {
            go,
            thread: ThreadId::ALL,
        }])
    };
    assert_eq!(vcont(b"vCont;c"), all(Go::Continue(None)));
    assert_eq!(vcont(b"vCont;C0b"), all(Go::Continue(Some(11))));
    assert_eq!(vcont(b"vCont;r1000,10ff"), all(Go::Range(0x1000, 0x10ff)));
    let two = vcont(b"vCont;s:p1.2;c:p1.-1").unwrap();
    assert_eq!(
        two[0],
        Action {
            go: Go::Step(None),
            thread: ThreadId {
                pid: Some(Id::Is(1)),
                tid: Id::Is(2)
            }
        }
    );
    assert_eq!(two[1].go, Go::Continue(None));
    for bad in [
        "vCont",
        "vCont;",
        "vCont;q",
        "vCont;C",
        "vCont;C100",
        "vCont;r1",
        "vCont;c:zz",
        "vCont;c;",
    ] {
        assert_eq!(vcont(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn conditions() {
    let p = breakpoint(b"401136,1;X3,22012 7").is_none();
    assert!(p, "hex with a space");
    let p = breakpoint(b"401136,1;X3,220127X2,2201").unwrap();
    assert_eq!(p.addr, 0x401136);
    assert_eq!(p.conditions, [vec![0x22, 1, 0x27], vec![0x22, 1]]);
    assert!(!p.commands);
    assert!(breakpoint(b"1,1;X1,27;cmds:0,X1,27").unwrap().commands);
    for bad in [
        "1",
        "1,1;X",
        "1,1;Xff,27",
        "1,1;Xffffffffffffffff,27",
        "1,1;X1,2",
        "1,1;;x",
    ] {
        assert_eq!(breakpoint(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn transfers() {
    let x = xfer(b"qXfer:auxv:read::0,1000").unwrap();
    assert_eq!(
        (x.object, x.annex, x.offset, x.body),
        (&b"auxv"[..], &b""[..], 0, XferBody::Read { len: 0x1000 })
    );
    let x = xfer(b"qXfer:siginfo:write::4:a:}\x03b").unwrap();
    assert_eq!(
        (x.offset, x.body),
        (
            4,
            XferBody::Write {
                data: b"a:#b".to_vec()
            }
        )
    );
    for bad in [
        "qXfer:",
        "qXfer:a:read",
        "qXfer:a:read::1",
        "qXfer:a:eat::1,2",
        "qXfer:a:write::1",
    ] {
        assert_eq!(xfer(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn numbers() {
    assert_eq!(hex_u64(b"00000000000000000001"), Some(1));
    assert_eq!(hex_u64(b"ffffffffffffffff"), Some(u64::MAX));
    assert_eq!(hex_u64(b"10000000000000000"), None);
    assert_eq!(hex_u64(b""), None);
    let mut out = Vec::new();
    for n in [0, 0xf, 0x10, u64::MAX] {
        push_num(&mut out, n);
        out.push(b' ');
    }
    assert_eq!(out, b"0 f 10 ffffffffffffffff ");
}

#[test]
fn escapes_round_trip_and_respect_the_room() {
    let data: Vec<u8> = (0..=255).collect();
    let mut out = Vec::new();
    assert_eq!(push_escaped(&mut out, &data, 1000), 256);
    assert!(!out.iter().any(|b| matches!(b, b'#' | b'$' | b'*')));
    assert_eq!(unescape(&out).unwrap(), data);
    let mut out = b"m".to_vec();
    assert_eq!(push_escaped(&mut out, b"ab#", 3), 2);
    assert_eq!(out, b"mab");
    assert_eq!(unescape(b"a}"), None);
}

#[test]
fn frames_survive_any_cut() {
    let mut r = FrameReader::default();
    let all: Vec<_> = b"+$g#67\x03$m0,1#fa-$#00"
        .iter()
        .filter_map(|b| r.push(*b))
        .collect();
    let packet = |s: &str| Incoming::Packet(s.into());
    assert_eq!(
        all,
        [packet("g"), Incoming::Interrupt, packet("m0,1"), packet("")]
    );
}
