//! `monitor …`: what the remote protocol has no packet for. Answers to `ulpf …` commands are JSON
//! lines, for our own tools; the rest is text for people.

use alloc::sync::Arc;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

use super::Control;
use super::filters::{self, Words};
use super::watches::refusal;
use super::words::number;
use crate::attributes::{Attributes, Wish};
use crate::g;
use crate::inferior::Refusal;
use crate::patches;

const HELP: &str = "\
ulpf watch ADDR LEN r|w|rw [stop] [log] [bt N] [auto|guard|debug-register] [FILTER]
                            watch a range without a GDB watchpoint
ulpf watches r|w|rw [stop] [log] [bt N] [auto|guard|debug-register] at PLACE...
                            many of them; PLACE: ADDR:LEN, or ADDR:LEN*COUNT+STRIDE
ulpf watch heap r|w|rw [stop] [log] [bt N] [FILTER]
                            watch all that the program allocates
ulpf filter ID [FILTER]     change which hits of a watch matter (nothing said: all)
ulpf filter at ADDR LEN [FILTER]
                            the same for GDB's own watches on exactly these bytes, now and later
ulpf filter VARIABLE [FILTER]
                            the same, with names: total if $new > limit from add skip 3 (as `ulpf run -w` takes it)
ulpf unwatch ID             take it away
ulpf off ID, ulpf on ID     switch one of these off and on; it keeps its number, counters and filter
ulpf placement [auto|guard|debug-register]
                            where watches set from now on live; debug registers in use
ulpf backend                what guards are made of: signals or the kernel module, and why, as JSON
ulpf stats                  counters, as JSON
ulpf patch-syscalls on|off [after N]
                            save busy system calls their signal (on)
ulpf patch on|off [after N] [patience N]
                            save hot instructions their faults; on its own: what is patched, as JSON
ulpf patch sites [N]        the N (20) instructions with the most faults, and why they are not patched
ulpf last ADDR [LEN] [N]    who has written these bytes (one) last, and before: N (1) times, as JSON
ulpf log [N]                the last N (100) hits of all watches that log or stop, as JSON lines
ulpf stop                   which watch made the last stop, and the access, as JSON
ulpf about                  the process, and where stops of these watches are told, as JSON
ulpf sites                  system-call instructions met so far, and how they are patched
ulpf why                    why the last watch was refused; which system call made the last hit
";

/// Watches in `ulpf stats`.
const MOST_LISTED: usize = 1_000_000;

pub fn run(c: &mut Control, command: &str, out: &mut dyn Write) -> bool {
    let mut known = true;
    for line in command.split([';', '\n']) {
        let words = line.trim();
        if words.is_empty() {
            continue;
        }
        let mut w = words.split_ascii_whitespace();
        let first = w.next().unwrap_or("");
        if first == "help" {
            help(out);
            continue;
        }
        if first != "ulpf" {
            known = false;
            continue;
        }
        match w.next().unwrap_or("") {
            "watch" => watch(c, &mut w, out),
            "watches" => watches(c, &mut w, out),
            "unwatch" => unwatch(c, &mut w, out),
            "off" => switch(c, &mut w, false, out),
            "on" => switch(c, &mut w, true, out),
            "filter" => filter(c, &mut w, out),
            "placement" => placement(c, &mut w, out),
            "stats" => stats(c, out),
            "sites" => c.sites.list(out),
            "patch-syscalls" => patch_syscalls(c, &mut w, out),
            "patch" => patch(c, &mut w, out),
            "why" => why(c, out),
            "last" => last(&mut w, out),
            "stop" => c.bulk.answer(out),
            "log" => super::last::log(number(w.next()).unwrap_or(100), out),
            "about" => about(out),
            "backend" => super::backend::tell(c.world.rest(), out),
            "help" | "" => help(out),
            other => {
                let _ = writeln!(
                    out,
                    "unknown command: ulpf {other}; `monitor ulpf help` lists them"
                );
            }
        }
    }
    known
}

/// `session` differs when the stub does: another program, or the same after exec.
fn about(out: &mut dyn Write) {
    let session = g().header().map_or(0, |h| h.base_tsc);
    let pid = g().pid.load(Relaxed);
    let place = super::bulk::PLACE.0;
    let _ = writeln!(
        out,
        "{{\"session\":\"{session:#x}\",\"pid\":{pid},\"stops_at\":\"{place:#x}\"}}"
    );
}

fn help(out: &mut dyn Write) {
    let _ = out.write_str(HELP);
    let _ = out.write_str(filters::HELP);
}

pub fn quoted(out: &mut dyn Write, s: &str) {
    let _ = out.write_char('"');
    for ch in s.chars() {
        let _ = match ch {
            '"' => out.write_str("\\\""),
            '\\' => out.write_str("\\\\"),
            c if (c as u32) < 32 => write!(out, "\\u{:04x}", c as u32),
            c => out.write_char(c),
        };
    }
    let _ = out.write_char('"');
}

pub fn refused(out: &mut dyn Write, r: &Refusal) {
    let _ = out.write_str("{\"refused\":{\"what\":");
    quoted(out, &r.what);
    let _ = out.write_str(",\"why\":");
    quoted(out, &r.why);
    let _ = out.write_str(",\"what_to_do\":");
    quoted(out, &r.what_to_do);
    let _ = out.write_str("}}\n");
}

fn bad(out: &mut dyn Write, why: &str) {
    refused(
        out,
        &Refusal {
            what: "ulpf watch".into(),
            why: why.into(),
            what_to_do: "say: ulpf watch ADDR LEN r|w|rw [stop] [log] [bt N] [FILTER], for example ulpf watch 0x4040 8 w log".into(),
        },
    );
}

fn watch<'a>(c: &mut Control, w: &mut impl Iterator<Item = &'a str>, out: &mut dyn Write) {
    let first = w.next();
    let heap = first == Some("heap");
    let (addr, len) = match (heap, number(first)) {
        (true, _) => (0, 0),
        (false, Some(addr)) => match number(w.next()) {
            Some(len) => (addr, len),
            None => return bad(out, "the length has to be a number"),
        },
        _ => return bad(out, "the address has to be a number, or the word heap"),
    };
    let Some(kind) = kind(w.next()) else {
        return bad(out, "the kind has to be r, w or rw");
    };
    let mut a = bulk(c);
    let mut words = Words::default();
    while let Some(word) = w.next() {
        match how(&mut a, word, w) {
            Ok(true) => continue,
            Ok(false) => {}
            Err(why) => return bad(out, why),
        }
        match words.take(word, w) {
            Ok(true) => {}
            Ok(false) => {
                return bad(out, &alloc::format!("`{word}` says nothing about a watch"));
            }
            Err(why) => return bad(out, why),
        }
    }
    let range = WatchRange::new(TargetAddr(addr), len);
    match words.finish(range) {
        Ok(filter) => a.filter = filter.map(Arc::new),
        Err(why) => return bad(out, why),
    }
    if heap {
        a.wish = Wish::default();
        match c.watch_heap(kind, a) {
            Ok((id, bytes)) => {
                let _ = writeln!(out, "{{\"watch\":{},\"heap\":{bytes}}}", id.0);
            }
            Err(r) => refused(out, &r),
        }
        return;
    }
    let Some(range) = range else {
        return bad(
            out,
            "the length is zero or the range wraps around the end of the address space",
        );
    };
    match c.watch_bulk(range, kind, &a) {
        Ok(id) => {
            let _ = writeln!(out, "{{\"watch\":{}}}", id.0);
        }
        Err(r) => refused(out, &r),
    }
}

/// See `places`.
fn watches<'a>(c: &mut Control, w: &mut impl Iterator<Item = &'a str>, out: &mut dyn Write) {
    let bad = |out: &mut dyn Write, why: &str| {
        let what_to_do = "say: ulpf watches r|w|rw [stop] [log] [bt N] [auto|guard|debug-register] at ADDR:LEN..., for example ulpf watches w log at 0x4040:8 0x8000:4*100+64";
        refused(
            out,
            &refusal("ulpf watches".into(), why.into(), what_to_do.into()),
        );
    };
    let Some(kind) = kind(w.next()) else {
        return bad(out, "the kind has to be r, w or rw");
    };
    let mut a = bulk(c);
    loop {
        let Some(word) = w.next() else {
            return bad(out, "no place is named");
        };
        if word == "at" {
            break;
        }
        match how(&mut a, word, w) {
            Ok(true) => {}
            Ok(false) => {
                let why = alloc::format!("`{word}` says nothing that holds for many watches");
                return bad(out, &why);
            }
            Err(why) => return bad(out, why),
        }
    }
    c.watch_places(kind, &a, w, out);
}

fn kind(word: Option<&str>) -> Option<WatchKind> {
    match word? {
        "w" => Some(WatchKind::Write),
        "r" => Some(WatchKind::Read),
        "rw" => Some(WatchKind::Access),
        _ => None,
    }
}

/// A watch that the debugger's own table lacks, before anything is said of it.
fn bulk(c: &Control) -> Attributes {
    Attributes {
        bulk: true,
        wish: c.placement.wish,
        ..Attributes::default()
    }
}

/// What is to be done at a hit, and where the watch is to live. `Ok(false)`: the word says nothing of that.
fn how<'a>(
    a: &mut Attributes,
    word: &str,
    w: &mut impl Iterator<Item = &'a str>,
) -> Result<bool, &'static str> {
    match word {
        "log" => a.log = true,
        "stop" => a.stop = true,
        "bt" => match number(w.next()) {
            Some(n) if n <= ulpf_lib::ring::MAX_FRAMES as u64 => a.backtrace = n as u8,
            _ => return Err("bt takes a number from 0 to 16"),
        },
        _ => match wish(word) {
            Some(wish) => a.wish = wish,
            None => return Ok(false),
        },
    }
    Ok(true)
}

fn filter<'a>(c: &mut Control, w: &mut impl Iterator<Item = &'a str>, out: &mut dyn Write) {
    let bad = |out: &mut dyn Write, why: &str| {
        refused(
            out,
            &Refusal {
                what: "ulpf filter".into(),
                why: why.into(),
                what_to_do: "say: ulpf filter ID [FILTER] or ulpf filter at ADDR LEN [FILTER], for example ulpf filter 0 changed skip 10; `monitor ulpf help` lists all".into(),
            },
        );
    };
    let first = w.next();
    let range = match first {
        Some("at") => match (number(w.next()), number(w.next())) {
            (Some(addr), Some(len)) => match WatchRange::new(TargetAddr(addr), len) {
                Some(range) => Some(range),
                None => return bad(out, "no watch has such a range"),
            },
            _ => return bad(out, "address and length have to be numbers"),
        },
        _ => None,
    };
    let mut words = Words::default();
    while let Some(word) = w.next() {
        match words.take(word, w) {
            Ok(true) => {}
            Ok(false) => return bad(out, &alloc::format!("`{word}` says nothing about hits")),
            Err(why) => return bad(out, why),
        }
    }
    let done = match (range, number(first)) {
        (Some(range), _) => c.filter_range(range, words),
        (None, Some(n)) => {
            let id = WatchId(n as u32);
            match c.filter_watch(id, words) {
                Ok(true) => Ok(alloc::vec![id]),
                Ok(false) => Err("there is no watch with that number"),
                Err(why) => Err(why),
            }
        }
        _ => Err("the watch has to be a number, or at ADDR LEN"),
    };
    match done {
        Ok(ids) => {
            let _ = out.write_str("{\"filtered\":[");
            for (n, id) in ids.iter().enumerate() {
                let _ = write!(out, "{}{}", if n > 0 { "," } else { "" }, id.0);
            }
            let _ = out.write_str("]}\n");
        }
        Err(why) => bad(out, why),
    }
}

fn wish(word: &str) -> Option<Wish> {
    match word {
        "auto" => Some(Wish::Auto),
        "guard" => Some(Wish::Guard),
        "debug-register" => Some(Wish::Register),
        _ => None,
    }
}

fn placement<'a>(c: &mut Control, w: &mut impl Iterator<Item = &'a str>, out: &mut dyn Write) {
    if let Some(word) = w.next() {
        let Some(to) = wish(word) else {
            return refused(
                out,
                &Refusal {
                    what: alloc::format!("no placement {word}"),
                    why: "a watch lives on a guarded page or in a debug register".into(),
                    what_to_do: "say: ulpf placement auto, guard or debug-register".into(),
                },
            );
        };
        c.placement.wish = to;
    }
    let _ = out.write_str(&c.placement_text());
}

fn switch<'a>(
    c: &mut Control,
    w: &mut impl Iterator<Item = &'a str>,
    on: bool,
    out: &mut dyn Write,
) {
    let Some(id) = number(w.next()).map(|n| WatchId(n as u32)) else {
        return bad(out, "on and off take the number of a watch");
    };
    let done = match on {
        true => c.switch_on(id),
        false => c.switch_off(id),
    };
    match done {
        Ok(()) => {
            let _ = writeln!(out, "{{\"watch\":{},\"on\":{on}}}", id.0);
        }
        Err(r) => refused(out, &r),
    }
}

fn unwatch<'a>(c: &mut Control, w: &mut impl Iterator<Item = &'a str>, out: &mut dyn Write) {
    let id = number(w.next()).map(|n| WatchId(n as u32));
    if let Some(id) = id
        && c.unwatch_heap(id)
    {
        let _ = writeln!(out, "{{\"unwatched\":{{\"heap\":true}}}}");
        return;
    }
    let off = id.and_then(|id| c.off.forget(id));
    match off.or_else(|| id.and_then(|id| c.staged.remove_id(id))) {
        Some((range, _)) => {
            let _ = writeln!(
                out,
                "{{\"unwatched\":{{\"start\":{},\"len\":{}}}}}",
                range.start.0, range.len
            );
        }
        None => bad(out, "there is no watch with that number"),
    }
}

fn patch_syscalls<'a>(c: &mut Control, w: &mut impl Iterator<Item = &'a str>, out: &mut dyn Write) {
    let on = match w.next() {
        Some("on") => true,
        Some("off") => false,
        _ => {
            let _ = writeln!(out, "say: ulpf patch-syscalls on|off [after N]");
            return;
        }
    };
    if let (Some("after"), Some(n)) = (w.next(), number(w.next())) {
        crate::syscalls::sites::AFTER.store(n.clamp(1, 1 << 30) as u32, SeqCst);
    }
    c.enable_sites(on);
    let _ = writeln!(out, "{{\"patch_syscalls\":{on}}}");
}

fn stats(c: &mut Control, out: &mut dyn Write) {
    let Some(h) = g().header() else { return };
    let pages = g().guards().moved_pages();
    let _ = write!(
        out,
        "{{\"faults\":{},\"false_positives\":{},\"slow\":{},\"syscalls\":{},\"sites\":{},\"sites_refused\":{},\"moved_pages\":{},\"watch_bytes\":{},\"next\":{},\"watches\":[",
        h.faults.load(Relaxed),
        h.all_false_positives(g().areas()),
        h.slow.load(Relaxed),
        h.syscalls.load(Relaxed),
        c.sites.in_place(),
        c.sites.refused,
        pages,
        c.staged.list().memory(),
        c.staged.first_new(),
    );
    let first_new = c.staged.first_new();
    let listed = c.staged.coming().iter();
    let single = listed
        .filter(|(id, ..)| id.0 < first_new)
        .filter(|(id, ..)| g().attributes(*id).group.is_none() && !c.off.has(*id))
        .chain(c.off.list())
        .map(|(id, range, kind)| (id, Some(range), kind));
    let mut first = true;
    for (id, range, kind) in c
        .heap
        .list()
        .map(|(id, kind)| (id, None, kind))
        .chain(single)
        .take(MOST_LISTED)
    {
        let Some(n) = g().counters(id) else { continue };
        let tallied = g()
            .header()
            .map_or((0, 0), |h| h.tallied(g().areas(), id.0));
        let kind = match kind {
            WatchKind::Write => "w",
            WatchKind::Read => "r",
            WatchKind::Access => "rw",
        };
        let _ = write!(out, "{}{{\"id\":{},", if first { "" } else { "," }, id.0);
        let _ = match range {
            Some(r) => write!(out, "\"start\":{},\"len\":{}", r.start.0, r.len),
            None => write!(out, "\"heap\":{}", c.heap.bytes()),
        };
        let _ = write!(
            out,
            ",\"kind\":\"{kind}\",\"hits\":{},\"silent\":{},\"filtered\":{},\"false_positives\":{},\"stops\":{},\"placement\":\"{}\",\"traps\":{}{}}}",
            n.hits.load(Relaxed) + tallied.0,
            n.silent.load(Relaxed) + tallied.1,
            n.filtered.load(Relaxed),
            n.false_positives.load(Relaxed),
            n.stops.load(Relaxed),
            if c.placement.in_register(id) {
                "debug-register"
            } else {
                "guard"
            },
            n.traps.load(Relaxed),
            match n.gone.load(Relaxed) {
                _ if c.off.has(id) => ",\"off\":true",
                0 => "",
                _ => ",\"gone\":true",
            },
        );
        first = false;
    }
    let _ = out.write_str("]}\n");
}

fn why(c: &mut Control, out: &mut dyn Write) {
    if let Some(text) = &c.notices.last_call {
        let _ = out.write_str(text);
    }
    match &c.last_refusal {
        Some(r) => {
            let _ = writeln!(out, "{}: {}; {}", r.what, r.why, r.what_to_do);
        }
        None if c.notices.last_call.is_none() => {
            let _ = out.write_str("no watch has been refused\n");
        }
        None => {}
    }
}

fn patch<'a>(c: &mut Control, w: &mut impl Iterator<Item = &'a str>, out: &mut dyn Write) {
    let on = match w.next() {
        Some("on") => Some(true),
        Some("off") => Some(false),
        Some("sites") => {
            let most = w.next();
            return match (number(most.or(Some("20"))), w.next()) {
                (Some(n), None) => super::patches::sites(n as usize, out),
                _ => bad_patch(out),
            };
        }
        None => None,
        Some(_) => return bad_patch(out),
    };
    let (mut after, mut patience) = (None, None);
    while let Some(word) = w.next() {
        let n = number(w.next());
        match (word, n) {
            ("after", Some(n)) if n < 1 << 30 => after = Some(n as u32),
            ("patience", Some(n)) if patches::is_patience(n) => patience = Some(n as u32),
            _ => return bad_patch(out),
        }
    }
    if let Some(n) = after {
        patches::AFTER.store(n, SeqCst);
    }
    if let Some(n) = patience {
        patches::PATIENCE.store(n, SeqCst);
    }
    match on {
        Some(true) => patches::ENABLED.store(true, SeqCst),
        Some(false) => c.patches.disable(c.world.rest()),
        None => {}
    }
    c.patches.state(out);
}

fn last<'a>(w: &mut impl Iterator<Item = &'a str>, out: &mut dyn Write) {
    let addr = number(w.next());
    let (mut given, mut wrong) = ([1, 1], addr.is_none());
    for value in &mut given {
        if let Some(word) = w.next() {
            let n = number(Some(word)).filter(|n| *n > 0);
            wrong |= n.is_none();
            *value = n.unwrap_or(1);
        }
    }
    let [len, most] = given;
    match addr {
        Some(addr) if !wrong && w.next().is_none() => super::last::answer(addr, len, most, out),
        _ => refused(
            out,
            &Refusal {
                what: "ulpf last".into(),
                why: "it takes an address, a number of bytes, and how many writes to tell".into(),
                what_to_do: "say: ulpf last ADDR [LEN] [N], for example ulpf last 0x4040 8 5"
                    .into(),
            },
        ),
    }
}

fn bad_patch(out: &mut dyn Write) {
    refused(
        out,
        &Refusal {
            what: "ulpf patch".into(),
            why: "it takes on or off, after how many faults a site is patched, and the patience (64 to 65536 \
                  accesses to pages without a guard) after which a patch goes; or sites and how many of them"
                .into(),
            what_to_do: "say: ulpf patch, ulpf patch off, ulpf patch on after 16 patience 4096, or ulpf patch sites 20"
                .into(),
        },
    );
}
