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
