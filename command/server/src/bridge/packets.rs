//! Encoding of the bridge's messages in the remote protocol: numbers, registers, stop replies. No I/O.
#![forbid(unsafe_code)]

use std::fmt::Write;
use ulpf_bridge::{Kind, Reason, Stop, WatchSpec};
use ulpf_host::signals;

/// Size in bytes of the `g` packet for [`description`].
pub const REGISTERS: usize = 560;

/// First number, count, and bytes of each register, as in the target description.
const NUMBERS: [(usize, usize, usize); 9] = [
    (0, 17, 8),
    (17, 7, 4),
    (24, 8, 10),
    (32, 8, 4),
    (40, 16, 16),
    (56, 1, 4),
    (57, 1, 8),
    (58, 1, 8),
    (59, 1, 8),
];

/// The bytes of a register in the `g` packet.
pub fn register(number: usize) -> Option<std::ops::Range<usize>> {
    let mut at = 0;
    for (first, count, size) in NUMBERS {
        if (first..first + count).contains(&number) {
            let from = at + (number - first) * size;
            return Some(from..from + size);
        }
        at += count * size;
    }
    None
}

/// The target description for gdb and lldb. It does not depend on the back end; missing registers are unavailable.
pub fn description() -> String {
    let mut x = String::from(
        "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target version=\"1.0\">\
         <architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>\
         <feature name=\"org.gnu.gdb.i386.core\">\
         <flags id=\"i386_eflags\" size=\"4\">",
    );
    for (name, bit) in ulpf_lib::eflags::NAMES {
        let _ = write!(x, "<field name=\"{name}\" start=\"{bit}\" end=\"{bit}\"/>");
    }
    x += "</flags>";
    let mut reg = |name: &str, bits: u32, kind: &str| {
        let _ = write!(
            x,
            "<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\"/>"
        );
    };
    for name in ["rax", "rbx", "rcx", "rdx", "rsi", "rdi"] {
        reg(name, 64, "int64");
    }
    reg("rbp", 64, "data_ptr");
    reg("rsp", 64, "data_ptr");
    for n in 8..16 {
        reg(&format!("r{n}"), 64, "int64");
    }
    reg("rip", 64, "code_ptr");
    reg("eflags", 32, "i386_eflags");
    for name in ["cs", "ss", "ds", "es", "fs", "gs"] {
        reg(name, 32, "int32");
    }
    for n in 0..8 {
        reg(&format!("st{n}"), 80, "i387_ext");
    }
    for name in [
        "fctrl", "fstat", "ftag", "fiseg", "fioff", "foseg", "fooff", "fop",
    ] {
        reg(name, 32, "int");
    }
    x += "</feature><feature name=\"org.gnu.gdb.i386.sse\">\
          <vector id=\"v4f\" type=\"ieee_single\" count=\"4\"/><vector id=\"v2d\" type=\"ieee_double\" count=\"2\"/>\
          <vector id=\"v16i8\" type=\"int8\" count=\"16\"/><vector id=\"v8i16\" type=\"int16\" count=\"8\"/>\
          <vector id=\"v4i32\" type=\"int32\" count=\"4\"/><vector id=\"v2i64\" type=\"int64\" count=\"2\"/>\
          <union id=\"vec128\"><field name=\"v4_float\" type=\"v4f\"/><field name=\"v2_double\" type=\"v2d\"/>\
          <field name=\"v16_int8\" type=\"v16i8\"/><field name=\"v8_int16\" type=\"v8i16\"/>\
          <field name=\"v4_int32\" type=\"v4i32\"/><field name=\"v2_int64\" type=\"v2i64\"/>\
          <field name=\"uint128\" type=\"uint128\"/></union>";
    for n in 0..16 {
        let _ = write!(x, "<reg name=\"xmm{n}\" bitsize=\"128\" type=\"vec128\"/>");
    }
    x += "<reg name=\"mxcsr\" bitsize=\"32\" type=\"int\" group=\"vector\"/></feature>\
          <feature name=\"org.gnu.gdb.i386.linux\"><reg name=\"orig_rax\" bitsize=\"64\" type=\"int\"/></feature>\
          <feature name=\"org.gnu.gdb.i386.segments\"><reg name=\"fs_base\" bitsize=\"64\" type=\"int\"/>\
          <reg name=\"gs_base\" bitsize=\"64\" type=\"int\"/></feature></target>";
    x
}

/// The registers as a `g` packet; missing registers are unavailable.
pub fn all_registers(bytes: &[u8]) -> String {
    let mut text = ulpf_rsp::to_hex(&bytes[..bytes.len().min(REGISTERS)]);
    text.extend(std::iter::repeat_n('x', 2 * REGISTERS - text.len()));
    text
}

/// `2,ADDR,LEN`: the watch of a `Z` or `z` packet.
pub fn watch(key: &[u8]) -> Option<WatchSpec> {
    let mut fields = key.split(|&b| b == b',');
    let kind = match fields.next()? {
        b"2" => Kind::Write,
        b"3" => Kind::Read,
        b"4" => Kind::Access,
        _ => return None,
    };
    let addr = ulpf_rsp::hex_number(fields.next()?)?;
    let len = ulpf_rsp::hex_number(fields.next()?.split(|&b| b == b';').next()?)?;
    Some(WatchSpec::plain(addr, len, kind))
}

/// The action of `vCont`, `c`, `s`, `C` or `S`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Action {
    pub step: bool,
    /// The number in Linux's numbering.
    pub signal: u8,
    pub thread: Option<u64>,
    /// All other threads stay stopped meanwhile.
    pub alone: bool,
}

pub fn action(packet: &[u8]) -> Option<Action> {
    let one = |text: &[u8]| {
        let (what, thread) = match text.iter().position(|&b| b == b':') {
            Some(at) => (&text[..at], ulpf_rsp::hex_number(&text[at + 1..])),
            None => (text, None),
        };
        let (&letter, rest) = what.split_first()?;
        let step = matches!(letter, b's' | b'S');
        let gdb = match letter {
            b'c' | b's' => 0,
            b'C' | b'S' => u8::try_from(ulpf_rsp::hex_number(rest)?).ok()?,
            _ => return None,
        };
        let linux = (0..=64)
            .find(|&n| signals::to_gdb(n) == i32::from(gdb))
            .unwrap_or(0);
        let signal = if gdb == 0 { 0 } else { linux as u8 };
        Some(Action {
            step,
            signal,
            thread,
            alone: false,
        })
    };
    match packet.strip_prefix(b"vCont;") {
        // A step is for one thread; the action of the others is to continue.
        Some(actions) => {
            let all: Option<Vec<Action>> = actions.split(|&b| b == b';').map(one).collect();
            let all = all?;
            let first = all.iter().find(|a| a.step || a.signal != 0).or(all.first());
            let mut first = first.cloned()?;
            // An action without a thread, or for thread -1 (no number here), applies to all threads without an earlier
            // action.
            first.alone = all.iter().all(|a| a.thread.is_some());
            Some(first)
        }
        None => one(packet.split(|&b| b == b';').next()?),
    }
}

/// The stop reply. It includes `pc`, `sp` and `bp`, so that the debugger need not ask for them.
pub fn stop_reply(stop: &Stop, registers: Option<&[u8]>, soft: bool) -> String {
    let signal = match &stop.reason {
        Reason::Exited { status } => return format!("W{:02x}", status & 0xff),
        Reason::Killed { number, .. } => {
            return format!("X{:02x}", signals::to_gdb(i32::from(*number)));
        }
        Reason::Failed { .. } => return format!("X{:02x}", signals::to_gdb(9)),
        Reason::Interrupted => signals::to_gdb(2),
        Reason::Signal { number, .. } => signals::to_gdb(i32::from(*number)),
        _ => signals::to_gdb(5),
    };
    let mut text = format!("T{signal:02x}thread:{:x};", stop.thread);
    for number in [6, 7, 16] {
        if let Some(value) = registers.and_then(|r| r.get(register(number)?)) {
            let _ = write!(text, "{number:02x}:{};", ulpf_rsp::to_hex(value));
        }
    }
    match &stop.reason {
        Reason::Watch { kind, hit } => {
            let name = match kind {
                Kind::Write => "watch",
                Kind::Read => "rwatch",
                Kind::Access => "awatch",
            };
            let _ = write!(text, "{name}:{:x};", hit.addr);
        }
        Reason::Breakpoint if soft => text += "swbreak:;",
        Reason::Breakpoint => text += "hwbreak:;",
        _ => {}
    }
    text
}

/// A part of a longer text for `qXfer`: `OFFSET,LENGTH` in hex.
pub fn part(of: &[u8], range: &[u8]) -> Vec<u8> {
    let mut numbers = range.split(|&b| b == b',').map(ulpf_rsp::hex_number);
    let (Some(Some(from)), Some(Some(len))) = (numbers.next(), numbers.next()) else {
        return b"E01".into();
    };
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(of.len());
    let to = from
        .saturating_add(usize::try_from(len).unwrap_or(usize::MAX))
        .min(of.len());
    let letter: &[u8] = if to < of.len() { b"m" } else { b"l" };
    [letter, &ulpf_rsp::escape(&of[from..to])].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_lie_one_behind_the_other() {
        assert_eq!(register(0), Some(0..8));
        assert_eq!(register(16), Some(128..136));
        assert_eq!(register(17), Some(136..140));
        assert_eq!(register(24), Some(164..174));
        assert_eq!(register(56), Some(532..536));
        assert_eq!(register(59), Some(552..560));
        assert_eq!(register(60), None);
        assert_eq!(description().matches("<reg ").count(), 60);
        let core = all_registers(&[1; 164]);
        assert_eq!((core.len(), &core[326..330]), (1120, "01xx"));
    }

    #[test]
    fn actions() {
        let of = |p: &str| action(p.as_bytes());
        let plain = |step| Action {
            step,
            signal: 0,
            thread: None,
            alone: false,
        };
        assert_eq!(of("vCont;c"), Some(plain(false)));
        assert_eq!(
            of("vCont;s:1;c:-1"),
            Some(Action {
                thread: Some(1),
                ..plain(true)
            })
        );
        assert_eq!(
            of("vCont;s:1"),
            Some(Action {
                thread: Some(1),
                alone: true,
                ..plain(true)
            })
        );
        assert_eq!(
            of("vCont;C0b:2;c"),
            Some(Action {
                signal: 11,
                thread: Some(2),
                ..plain(false)
            })
        );
        assert_eq!(
            of("S0a"),
            Some(Action {
                signal: 7,
                ..plain(true)
            })
        );
        assert_eq!(of("s"), Some(plain(true)));
        for bad in ["vCont;", "vCont;q", "C", "vCont;t:1", "Cxyz", "vCont;c;"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn watches() {
        let w = watch(b"3,7ffc,10").unwrap();
        assert_eq!((w.addr, w.len, w.kind), (0x7ffc, 16, Kind::Read));
        for bad in [&b"0,1,1"[..], b"2,1", b"2,,1", b"2,x,1", b"2"] {
            assert_eq!(watch(bad), None);
        }
    }

    #[test]
    fn parts() {
        assert_eq!(part(b"abcdef", b"0,3"), b"mabc");
        assert_eq!(part(b"abcdef", b"3,ffff"), b"ldef");
        assert_eq!(part(b"abcdef", b"ffffffffffffffff,1"), b"l");
        assert_eq!(part(b"abcdef", b"1"), b"E01");
    }
}
