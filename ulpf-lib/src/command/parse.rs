//! Parses commands. A refusal names the command, the mistake and the right form.

use super::*;
use crate::number::number;

type Parsed = Result<Command, Mistake>;

/// The parts of a command's refusals that are always the same.
struct Of {
    what: &'static str,
    say: &'static str,
}

impl Of {
    fn no<T>(&self, why: impl Into<String>) -> Result<T, Mistake> {
        Err(Mistake::Refused(Refusal::new(self.what, why, self.say)))
    }
}

const WATCH: Of = Of {
    what: "ulpf watch",
    say: "say: ulpf watch ADDR LEN r|w|rw [stop] [log] [bt N] [FILTER], for example ulpf watch 0x4040 8 w log, or ulpf watch 0x4040>16 8 w log for what a pointer points to",
};
const WATCHES: Of = Of {
    what: "ulpf watches",
    say: "say: ulpf watches r|w|rw [stop] [log] [bt N] [auto|guard|debug-register] at ADDR:LEN..., for example ulpf watches w log at 0x4040:8 0x8000:4*100+64",
};
const CHECK: Of = Of {
    what: "ulpf check",
    say: "say: ulpf check ADDR LEN r|w|rw, for example ulpf check 0x4040 8 w",
};
const FILTER: Of = Of {
    what: "ulpf filter",
    say: "say: ulpf filter ID [FILTER] or ulpf filter at ADDR LEN [FILTER], for example ulpf filter 0 changed skip 10; `monitor ulpf help` lists all",
};
const CONDITION: Of = Of {
    what: "ulpf condition",
    say: "say: ulpf condition ADDR LEN r|w|rw [FILTER], for example ulpf condition 0x4040 4 w skip 10; without FILTER there is none any more",
};
const PATCH: Of = Of {
    what: "ulpf patch",
    say: "say: ulpf patch, ulpf patch off, ulpf patch on after 16 patience 4096, or ulpf patch sites 20",
};
const PATCH_SYSCALLS: Of = Of {
    what: "ulpf patch-syscalls",
    say: "say: ulpf patch-syscalls on|off [after N]",
};
const LAST: Of = Of {
    what: "ulpf last",
    say: "say: ulpf last ADDR [LEN] [N], for example ulpf last 0x4040 8 5",
};

const HEAP_CHECK: Of = Of {
    what: "ulpf heap-check",
    say: "say: ulpf heap-check [frames N] [quarantine BYTES] [redzone BYTES] [redzone-most BYTES] [leaks] [stop] [base], before the program has run, or [running]",
};

const HEAP_ASK: Of = Of {
    what: "ulpf heap-block, ulpf heap-pointers",
    say: "say: ulpf heap-block ADDR or ulpf heap-pointers ADDR, for example ulpf heap-block 0x7ff7c0010018",
};

const HEAP_FUNCTIONS: Of = Of {
    what: "ulpf heap-functions",
    say: "say: ulpf heap-functions FUNCTION ADDR LEN..., for example ulpf heap-functions malloc 0x401000 64",
};

const NO_SUCH_WATCH: &str = "there is no watch with that number";
const BAD_PATCH: &str = "it takes on or off, after how many faults a site is patched, and the patience (64 to 65536 accesses to pages without a guard) after which a patch goes; or sites and how many of them";

impl Command {
    /// One line (see [`lines`]).
    ///
    /// # Errors
    /// The mistake in it.
    pub fn parse(line: &str) -> Parsed {
        let mut w = line.split_ascii_whitespace();
        match w.next() {
            Some("help") => return Ok(Command::Help),
            Some("ulpf") => {}
            _ => return Err(Mistake::Foreign),
        }
        let w = &mut w;
        match w.next().unwrap_or("") {
            "help" | "" => Ok(Command::Help),
            "watch" => watch(w),
            "watches" => watches(w),
            "unwatch" => match id(w.next()) {
                Some(id) => Ok(Command::Unwatch(id)),
                None => WATCH.no(NO_SUCH_WATCH),
            },
            "check" => {
                match (
                    number(w.next()),
                    number(w.next()),
                    w.next().and_then(WatchKind::parse),
                ) {
                    (Some(addr), Some(len), Some(kind)) => Ok(Command::Check { addr, len, kind }),
                    _ => CHECK.no("it takes an address, a length and a kind"),
                }
            }
            word @ ("on" | "off") => match id(w.next()) {
                Some(id) => Ok(Command::Switch {
                    id,
                    on: word == "on",
                }),
                None => WATCH.no("on and off take the number of a watch"),
            },
            "frame" => match (id(w.next()), w.next(), number(w.next())) {
                (Some(id), Some(word @ ("begins" | "ends")), Some(at)) => Ok(Command::Frame {
                    id,
                    at,
                    begins: word == "begins",
                }),
                _ => WATCH.no("frame takes the number of a watch, begins or ends, and an address"),
            },
            "filter" => filter(w),
            "placement" => placement(w.next()),
            "backend" => Ok(Command::Backend),
            "stats" => Ok(Command::Stats),
            "about" => Ok(Command::About),
            "why" => Ok(Command::Why),
            "sites" => Ok(Command::Sites),
            "stop" => Ok(match w.next() {
                Some("rest") => Command::StopRest,
                _ => Command::Stop,
            }),
            "condition" => condition(w),
            "locals" => match number(w.next()) {
                Some(at) => Ok(Command::Locals(at)),
                None => CONDITION.no("locals takes an address"),
            },
            "settle" => Ok(Command::Settle),
            "patch-syscalls" => patch_syscalls(w),
            "patch" => patch(w),
            "last" => last(w),
            "last-writers" => Ok(Command::LastWriters),
            "log" => Ok(Command::Log(number(w.next()).unwrap_or(100))),
            "heap-check" => heap_check(w),
            "heap-error" => Ok(Command::HeapAsk(HeapAsk::Error)),
            "heap-leaks" => Ok(Command::HeapAsk(HeapAsk::Leaks)),
            word @ ("heap-block" | "heap-pointers") => match (word, number(w.next())) {
                ("heap-block", Some(at)) => Ok(Command::HeapAsk(HeapAsk::Block(at))),
                (_, Some(at)) => Ok(Command::HeapAsk(HeapAsk::Pointers(at))),
                (_, None) => HEAP_ASK.no("it takes an address"),
            },
            "heap-functions" => heap_functions(w),
            other => Err(Mistake::Unknown(other.into())),
        }
    }
}

fn is_redzone(n: u64) -> bool {
    Redzone::BYTES.contains(&n) && n.is_multiple_of(16)
}

fn heap_check<'a>(w: &mut impl Iterator<Item = &'a str>) -> Parsed {
    let mut how = HeapCheck {
        leaks: false,
        ..HeapCheck::default()
    };
    while let Some(word) = w.next() {
        match word {
            "leaks" => how.leaks = true,
            "stop" => how.stop = true,
            "running" => how.running = true,
            "base" => how.base = true,
            _ => {}
        }
        if matches!(word, "leaks" | "stop" | "running" | "base") {
            continue;
        }
        match (word, number(w.next())) {
            ("frames", Some(n)) if n <= MAX_FRAMES as u64 => how.frames = n as u8,
            ("quarantine", Some(n)) => how.quarantine = n,
            ("of", Some(at)) => how.of = Some(at),
            ("redzone", Some(n)) if is_redzone(n) => {
                how.redzone = Redzone {
                    least: n,
                    most: n.max(how.redzone.most),
                }
            }
            ("redzone-most", Some(n)) if is_redzone(n) && n >= how.redzone.least => {
                how.redzone.most = n
            }
            _ => {
                return HEAP_CHECK.no(
                    "it takes up to 16 frames, the quarantine in bytes, and redzones of 16 to 4096 bytes, multiples of 16, of which the most is not less",
                );
            }
        }
    }
    Ok(Command::HeapCheck(how))
}

fn heap_functions<'a>(w: &mut impl Iterator<Item = &'a str>) -> Parsed {
    let mut all = Vec::new();
    while let Some(word) = w.next() {
        match HeapFunction::take(word, w) {
            Some(function) => all.push(function),
            None => {
                return HEAP_FUNCTIONS
                    .no("it takes what a function does, its address and its bytes");
            }
        }
    }
    Ok(Command::HeapFunctions(all))
}

fn id(word: Option<&str>) -> Option<u32> {
    u32::try_from(number(word)?).ok()
}

impl How {
    /// Parses a word and its arguments. `Ok(false)`: the word does not belong to these options.
    fn take<'a>(
        &mut self,
        word: &str,
        rest: &mut impl Iterator<Item = &'a str>,
    ) -> Result<bool, &'static str> {
        match word {
            "log" => self.log = true,
            "stop" => self.stop = true,
            "freeze" => self.freeze = true,
            "bt" => match number(rest.next()) {
                Some(n) if n <= MAX_FRAMES as u64 => self.backtrace = n as u8,
                _ => return Err("bt takes a number from 0 to 16"),
            },
            _ => match Placement::parse(word) {
                Some(placement) => self.placement = Some(placement),
                None => return Ok(false),
            },
        }
        Ok(true)
    }
}

fn watch<'a>(w: &mut impl Iterator<Item = &'a str>) -> Parsed {
    let word = w.next();
    let what = match word.and_then(Path::parse) {
        Some(Ok(path)) => match number(w.next()) {
            Some(len @ 1..) => What::Along(path, len),
            _ => return WATCH.no("the length has to be a number, and not zero"),
        },
        Some(Err(why)) => return WATCH.no(why),
        None if word == Some("heap") => What::Heap,
        None => match (number(word), number(w.next())) {
            (Some(addr), Some(len)) => match WatchRange::new(TargetAddr(addr), len) {
                Some(range) => What::Range(range),
                None => {
                    return WATCH.no(
                        "the length is zero or the range wraps around the end of the address space",
                    );
                }
            },
            (Some(_), None) => return WATCH.no("the length has to be a number"),
            (None, _) => {
                return WATCH.no("the address has to be a number, a path, or the word heap");
            }
        },
    };
    let Some(kind) = w.next().and_then(WatchKind::parse) else {
        return WATCH.no("the kind has to be r, w or rw");
    };
    let (mut how, mut filter) = (How::default(), Filter::default());
    while let Some(word) = w.next() {
        let known = match how.take(word, w) {
            Ok(false) => filter.take(word, w),
            known => known,
        };
        match known {
            Ok(true) => {}
            Ok(false) => return WATCH.no(format!("`{word}` says nothing about a watch")),
            Err(why) => return WATCH.no(why),
        }
    }
    Ok(Command::Watch(Arm {
        what,
        kind,
        how,
        filter,
    }))
}

fn watches<'a>(w: &mut impl Iterator<Item = &'a str>) -> Parsed {
    let Some(kind) = w.next().and_then(WatchKind::parse) else {
        return WATCHES.no("the kind has to be r, w or rw");
    };
    let mut how = How::default();
    loop {
        match w.next() {
            None => return WATCHES.no("no place is named"),
            Some("at") => break,
            Some(word) => match how.take(word, w) {
                Ok(true) => {}
                Ok(false) => {
                    let why = format!("`{word}` says nothing that holds for many watches");
                    return WATCHES.no(why);
                }
                Err(why) => return WATCHES.no(why),
            },
        }
    }
    if how.freeze {
        return WATCHES.no("freeze is for one watch: say ulpf watch ADDR LEN w freeze");
    }
    let places = w.map(|word| Place::parse(word).ok_or_else(|| word.into()));
    Ok(Command::Watches {
        kind,
        how,
        places: places.collect(),
    })
}

impl Place {
    /// `ADDR:LEN`, `ADDR:LEN*COUNT+STRIDE`.
    pub fn parse(word: &str) -> Option<Place> {
        let (start, rest) = word.split_once(':')?;
        let start = number(Some(start))?;
        let Some((len, rest)) = rest.split_once('*') else {
            return Some(Place {
                start,
                len: number(Some(rest))?,
                count: 1,
                stride: 0,
            });
        };
        let (count, stride) = rest.split_once('+')?;
        Some(Place {
            start,
            len: number(Some(len))?,
            count: number(Some(count)).filter(|n| *n <= MOST_IN_PLACE)?,
            stride: number(Some(stride))?,
        })
    }
}

fn filter<'a>(w: &mut impl Iterator<Item = &'a str>) -> Parsed {
    let of = match w.next() {
        Some("at") => match (number(w.next()), number(w.next())) {
            (Some(addr), Some(len)) => match WatchRange::new(TargetAddr(addr), len) {
                Some(range) => FilterOf::Range(range),
                None => return FILTER.no("no watch has such a range"),
            },
            _ => return FILTER.no("address and length have to be numbers"),
        },
        word => match (id(word), number(word)) {
            (Some(id), _) => FilterOf::Watch(id),
            (None, Some(_)) => return FILTER.no(NO_SUCH_WATCH),
            (None, None) => {
                return FILTER.no("the watch has to be a number, or at ADDR LEN");
            }
        },
    };
    let (mut filter, mut keep) = (Filter::default(), false);
    while let Some(word) = w.next() {
        match filter.take(word, w) {
            Ok(true) => {}
            Ok(false) if word == "keep" => keep = true,
            Ok(false) => return FILTER.no(format!("`{word}` says nothing about hits")),
            Err(why) => return FILTER.no(why),
        }
    }
    Ok(Command::Filter { of, filter, keep })
}

fn condition<'a>(w: &mut impl Iterator<Item = &'a str>) -> Parsed {
    let (Some(addr), Some(len)) = (number(w.next()), number(w.next())) else {
        return CONDITION.no("address and length have to be numbers");
    };
    let Some(range) = WatchRange::new(TargetAddr(addr), len) else {
        return CONDITION.no("no watch has such a range");
    };
    let Some(kind) = w.next().and_then(WatchKind::parse) else {
        return CONDITION.no("the kind has to be r, w or rw");
    };
    let mut filter = Filter::default();
    while let Some(word) = w.next() {
        match filter.take(word, w) {
            Ok(true) => {}
            Ok(false) => return CONDITION.no(format!("`{word}` says nothing about hits")),
            Err(why) => return CONDITION.no(why),
        }
    }
    Ok(Command::Condition {
        range,
        kind,
        filter,
    })
}

fn placement(word: Option<&str>) -> Parsed {
    let Some(word) = word else {
        return Ok(Command::Placement(None));
    };
    match Placement::parse(word) {
        Some(placement) => Ok(Command::Placement(Some(placement))),
        None => Err(Mistake::Refused(Refusal::new(
            format!("no placement {word}"),
            "a watch lives on a guarded page or in a debug register",
            "say: ulpf placement auto, guard or debug-register",
        ))),
    }
}

fn patch_syscalls<'a>(w: &mut impl Iterator<Item = &'a str>) -> Parsed {
    let on = match w.next() {
        Some("on") => true,
        Some("off") => false,
        _ => return PATCH_SYSCALLS.no("it takes on or off"),
    };
    let after = match (w.next(), number(w.next())) {
        (Some("after"), Some(n)) => Some(n.clamp(1, 1 << 30) as u32),
        _ => None,
    };
    Ok(Command::PatchSyscalls { on, after })
}

fn patch<'a>(w: &mut impl Iterator<Item = &'a str>) -> Parsed {
    let on = match w.next() {
        Some("on") => Some(true),
        Some("off") => Some(false),
        Some("sites") => {
            let most = w.next();
            return match (number(most.or(Some("20"))), w.next()) {
                (Some(n), None) => Ok(Command::PatchSites(n)),
                _ => PATCH.no(BAD_PATCH),
            };
        }
        None => None,
        Some(_) => return PATCH.no(BAD_PATCH),
    };
    let (mut after, mut patience) = (None, None);
    while let Some(word) = w.next() {
        let n = number(w.next());
        match (word, n) {
            ("after", Some(n)) if n < 1 << 30 => after = Some(n as u32),
            ("patience", Some(n)) if (64..=1 << 16).contains(&n) => patience = Some(n as u32),
            _ => return PATCH.no(BAD_PATCH),
        }
    }
    Ok(Command::Patch {
        on,
        after,
        patience,
    })
}

fn last<'a>(w: &mut impl Iterator<Item = &'a str>) -> Parsed {
    let mut given = [number(w.next()), Some(1), Some(1)];
    for value in &mut given[1..] {
        if let Some(word) = w.next() {
            *value = number(Some(word)).filter(|n| *n > 0);
        }
    }
    match (given, w.next()) {
        ([Some(addr), Some(len), Some(most)], None) => Ok(Command::Last { addr, len, most }),
        _ => LAST.no("it takes an address, a number of bytes, and how many writes to tell"),
    }
}
