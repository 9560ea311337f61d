use super::*;
#[cfg(feature = "serde")]
use crate::{
    AccessKind,
    ring::{Hit, MAX_VALUE, hit_flags},
};
use alloc::string::ToString;

/// Printing gives the canonical form, and parsing accepts what users type.
#[test]
fn printed_and_read_again() {
    for (typed, printed) in [
        ("ulpf", "ulpf help"),
        ("help", "ulpf help"),
        ("ulpf  watch 0x4040 8 w", "ulpf watch 0x4040 8 w"),
        (
            "ulpf watch 64>0x10>-8 4 w log",
            "ulpf watch 0x40>16>-8 4 w log",
        ),
        (
            "ulpf watch 64 0x8 rw log stop guard changed",
            "ulpf watch 0x40 8 rw stop log guard changed",
        ),
        (
            "ulpf watch heap r bt 4 debug-register skip 3",
            "ulpf watch heap r bt 4 debug-register skip 3",
        ),
        (
            "ulpf watch 16 4 w bt 0 auto from none",
            "ulpf watch 0x10 4 w auto from none",
        ),
        (
            "ulpf watches w log at 0x40:8 64:4*3+64 64:4*1+8 x",
            "ulpf watches w log at 0x40:8 0x40:4*3+64 0x40:4*1+8 x",
        ),
        (
            "ulpf watch 0x40 8 w freeze log",
            "ulpf watch 0x40 8 w log freeze",
        ),
        ("ulpf unwatch 7", "ulpf unwatch 7"),
        (
            "ulpf heap-check leaks base running frames 3 stop",
            "ulpf heap-check frames 3 quarantine 67108864 redzone 16 leaks stop running base",
        ),
        (
            "ulpf heap-check redzone 32 redzone-most 256",
            "ulpf heap-check frames 8 quarantine 67108864 redzone 32 redzone-most 256",
        ),
        ("ulpf heap-error", "ulpf heap-error"),
        ("ulpf heap-leaks", "ulpf heap-leaks"),
        ("ulpf heap-block 64", "ulpf heap-block 0x40"),
        ("ulpf heap-pointers 0x40", "ulpf heap-pointers 0x40"),
        ("ulpf on 0x7", "ulpf on 7"),
        ("ulpf off 7", "ulpf off 7"),
        ("ulpf frame 7 begins 64", "ulpf frame 7 begins 0x40"),
        ("ulpf frame 7 ends 0x40", "ulpf frame 7 ends 0x40"),
        (
            "ulpf watch 0x1149@frames,-20 4 w log",
            "ulpf watch 0x1149@frames,-20 4 w log",
        ),
        (
            "ulpf filter 3 changed keep thread main",
            "ulpf filter 3 keep changed thread main",
        ),
        (
            "ulpf filter at 16 4 if x 22011327",
            "ulpf filter at 0x10 4 if x 22011327",
        ),
        ("ulpf filter 0", "ulpf filter 0"),
        ("ulpf placement", "ulpf placement"),
        (
            "ulpf placement debug-register",
            "ulpf placement debug-register",
        ),
        ("ulpf backend", "ulpf backend"),
        ("ulpf stats json", "ulpf stats"),
        ("ulpf about", "ulpf about"),
        ("ulpf why", "ulpf why"),
        ("ulpf sites", "ulpf sites"),
        ("ulpf stop", "ulpf stop"),
        ("ulpf stop rest", "ulpf stop rest"),
        (
            "ulpf condition 64 4 w if x 22011327 skip 3",
            "ulpf condition 0x40 4 w skip 3 if x 22011327",
        ),
        ("ulpf condition 64 4 rw", "ulpf condition 0x40 4 rw"),
        ("ulpf locals 16", "ulpf locals 0x10"),
        ("ulpf settle", "ulpf settle"),
        (
            "ulpf patch-syscalls on after 0",
            "ulpf patch-syscalls on after 1",
        ),
        ("ulpf patch-syscalls off", "ulpf patch-syscalls off"),
        ("ulpf patch", "ulpf patch"),
        (
            "ulpf patch on patience 64 after 3",
            "ulpf patch on after 3 patience 64",
        ),
        ("ulpf patch sites", "ulpf patch sites 20"),
        (
            "ulpf heap-functions malloc 64 0x10 delete[] 0x80 9",
            "ulpf heap-functions malloc 0x40 16 delete[] 0x80 9",
        ),
        ("ulpf last 64", "ulpf last 0x40 1 1"),
        ("ulpf last 0x40 8 5", "ulpf last 0x40 8 5"),
        ("ulpf log", "ulpf log 100"),
        ("ulpf log 3", "ulpf log 3"),
    ] {
        let command = Command::parse(typed).unwrap_or_else(|m| panic!("{typed}: {m:?}"));
        assert_eq!(command.to_string(), printed, "{typed}");
        assert_eq!(Command::parse(printed), Ok(command), "{printed}");
    }
}

#[test]
fn mistakes_say_what_is_wrong() {
    for (typed, why) in [
        ("ulpf watch", "the address"),
        ("ulpf watch x 4 w", "or the word heap"),
        ("ulpf watch 64>8 0 w", "not zero"),
        (
            "ulpf watch 64>0>0>0>0>0>0>0>0>0>0>0>0>0>0>0>0>0 8 w",
            "17 pointers are on the way",
        ),
        ("ulpf watch 16 w", "the length"),
        ("ulpf watch 16 4", "the kind"),
        ("ulpf watch 16 0 w", "the length is zero"),
        ("ulpf watch 18446744073709551615 9 w", "wraps around"),
        ("ulpf watch 16 4 w bt 17", "from 0 to 16"),
        ("ulpf watch 16 4 w unit 9", "from 0 to 8"),
        ("ulpf watch 16 4 w keep", "says nothing about a watch"),
        ("ulpf watches w log", "no place is named"),
        ("ulpf watches w changed at 1:2", "that holds for many"),
        ("ulpf watches x at 1:2", "the kind"),
        ("ulpf watches w freeze at 1:2", "for one watch"),
        ("ulpf unwatch x", "no watch with that number"),
        ("ulpf on", "take the number of a watch"),
        ("ulpf off 4294967296", "take the number of a watch"),
        ("ulpf frame 7 stays 64", "begins or ends"),
        ("ulpf filter total", "has to be a number"),
        ("ulpf filter 4294967296", "no watch with that number"),
        ("ulpf filter at 16 0", "no watch has such a range"),
        ("ulpf filter at 16", "have to be numbers"),
        ("ulpf filter 1 log", "says nothing about hits"),
        ("ulpf placement here", "lives on a guarded page"),
        ("ulpf patch-syscalls", "on or off"),
        ("ulpf patch perhaps", "on or off"),
        ("ulpf patch on patience 63", "64 to 65536"),
        ("ulpf patch sites x", "how many of them"),
        ("ulpf heap-functions malloc 64", "its address and its bytes"),
        ("ulpf last", "it takes an address"),
        ("ulpf last 1 0", "it takes an address"),
        ("ulpf last 1 1 1 1", "it takes an address"),
    ] {
        match Command::parse(typed) {
            Err(Mistake::Refused(r)) => assert!(r.why.contains(why), "{typed}: {r}"),
            other => panic!("{typed}: {other:?}"),
        }
    }
    assert_eq!(
        Command::parse("ulpf levitate 3"),
        Err(Mistake::Unknown("levitate".into()))
    );
    assert_eq!(Command::parse("reset"), Err(Mistake::Foreign));
}

#[test]
fn places_and_their_ranges() {
    for bad in ["", "x:8", "0x40", "0x40:8*", "0x40:8*3", "64:8*1048577+8"] {
        assert_eq!(Place::parse(bad), None, "{bad}");
    }
    let ranges = |place: &str| -> Vec<Option<(u64, u64)>> {
        let of = |r: WatchRange| (r.start.0, r.len);
        let place = Place::parse(place).unwrap();
        place.ranges().map(|r| r.map(of)).collect()
    };
    assert_eq!(ranges("16:4"), [Some((16, 4))]);
    assert_eq!(ranges("16:4*2+8"), [Some((16, 4)), Some((24, 4))]);
    assert_eq!(ranges("16:4*2+0xffffffffffffffff"), [Some((16, 4)), None]);
    assert_eq!(ranges("16:0"), [None]);
}

#[test]
fn lines_of_a_text() {
    let all: Vec<&str> = lines("ulpf stats;\n ; ulpf why").collect();
    assert_eq!(all, ["ulpf stats", "ulpf why"]);
}

/// The table of replies, tests/replies.json.
#[cfg(feature = "serde")]
mod replies {
    use super::*;
    use reply::*;

    /// Reads a line and writes it again.
    fn again(of: &str, line: &str) -> Result<String, serde_json::Error> {
        fn read<T: serde::de::DeserializeOwned + ToString>(
            line: &str,
        ) -> Result<String, serde_json::Error> {
            serde_json::from_str::<T>(line).map(|reply| reply.to_string())
        }
        match of {
            "change" => read::<Reply>(line),
            "stop" => read::<Stop>(line),
            "settle" => read::<Settle>(line),
            "last" => read::<Last>(line),
            "log head" => read::<LogHead>(line),
            "record" => read::<Record>(line),
            "statistics" => read::<Statistics>(line),
            "patching" => read::<Patching>(line),
            "patch site" => read::<PatchSite>(line),
            "placement" => read::<PlacementState>(line),
            "backend" => read::<Backend>(line),
            other => panic!("no reply is a {other}"),
        }
    }

    #[test]
    fn are_written_as_they_were_read() {
        let text = include_str!("../../../tests/replies.json");
        let table: serde_json::Value = serde_json::from_str(text).unwrap();
        for case in table["cases"].as_array().unwrap() {
            let (of, line) = (case["of"].as_str().unwrap(), case["line"].as_str().unwrap());
            assert_eq!(
                again(of, line).unwrap_or_else(|e| panic!("{line}: {e}")),
                line
            );
        }
        for (of, lines) in table["bad"].as_object().unwrap() {
            for line in lines.as_array().unwrap() {
                let line = line.as_str().unwrap();
                assert!(again(of, line).is_err(), "{of}: {line}");
            }
        }
    }

    #[test]
    fn changes_are_read_as_they_were_meant() {
        for reply in [
            Reply::Watch(7),
            Reply::Heap {
                watch: 3,
                bytes: 1 << 40,
            },
            Reply::Watches { first: 9, count: 2 },
            Reply::Switched {
                watch: 3,
                on: false,
            },
            Reply::Filtered(vec![]),
            Reply::Filtered(vec![1, 2]),
            Reply::Unwatched(Some((0x4040, 8))),
            Reply::Unwatched(None),
            Reply::Watchable { mapped: false },
            Reply::About {
                session: 0x51,
                pid: 42,
                stops_at: 0x756c_7066_0000_0000,
            },
            Reply::PatchSyscalls(true),
            Reply::HeapChecked,
            Reply::LastWriters,
            Reply::HeapAsked(3),
            Reply::Refused(Refusal::new("a \"b\"", "c\\\nd", "é")),
        ] {
            let text = reply.to_string();
            assert_eq!(serde_json::from_str::<Reply>(&text).unwrap(), reply);
        }
    }

    /// A ring's record in the stub's form.
    #[test]
    fn hits_are_read_as_they_were_meant() {
        let hit = Hit {
            tid: 7,
            addr: 0x4040,
            len: 2,
            kind: 3,
            flags: hit_flags::SILENT,
            old: [5; MAX_VALUE],
            new: [5; MAX_VALUE],
            pc: 0x1000,
            frames: vec![0x2000],
            ..Hit::default()
        };
        let time = Micros::of_nanos(1_000_001_999);
        let record = Record::of(Which::Logged { time, watch: 3 }, &hit);
        let access = record.access.clone().unwrap();
        assert_eq!(access.kind, AccessKind::ReadWrite);
        assert_eq!(access.values.unwrap().old, [5, 5]);
        let text = record.to_string();
        assert!(text.starts_with(r#"{"time":1.000001,"watch":3,"tid":7,"access":"update","addr":"0x4040","len":2,"old_bytes":"0505","#));
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        let unknown = Hit {
            flags: hit_flags::UNKNOWN,
            kind: 1,
            ..hit
        };
        let record = Record::of(Which::Ago(time), &unknown);
        assert_eq!(record.access.clone().unwrap().values, None);
        let (stop, last) = (Stop(None), record.to_string());
        assert_eq!(serde_json::from_str::<Record>(&last).unwrap(), record);
        assert_eq!(stop.to_string(), r#"{"stop":null}"#);
    }
}
