//! Answers about a program that has ended: the counters and the log of its watches. Its shared area stays mapped until
//! another program begins. The server reads it to answer the commands that the stub would have answered.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use ulpf_area::shared::SharedArea;
use ulpf_lib::command::reply::{Counted, CountedBytes, Statistics, Totals, WatchState};
use ulpf_lib::command::{Command, looks};
use ulpf_lib::ring::listed;
use ulpf_lib::watch::WatchKind;

/// The answer to `monitor COMMANDS`, or `None` if one of them needs a running program.
pub fn answer(area: &SharedArea, commands: &str) -> Option<String> {
    let mut out = String::new();
    for line in commands.split([';', '\n']).filter(|l| !l.trim().is_empty()) {
        match Command::parse(line) {
            Ok(Command::Stats) => stats(area, &mut out),
            Ok(Command::Log(most)) => looks::log(area, area.clock(), most, &mut out),
            Ok(Command::Last { addr, len, most }) => {
                let (now, table) = (ulpf_host::sys::tsc(), area.watch_table().iter());
                looks::who_wrote(area, area.clock(), now, table, (addr, len, most), &mut out);
            }
            _ => return None,
        }
    }
    Some(out)
}

fn stats(area: &SharedArea, out: &mut String) {
    let header = area.header();
    let table = area.watch_table();
    let totals = Totals {
        faults: header.faults.load(Relaxed),
        false_positives: header.all_false_positives(area.areas()),
        slow: header.slow.load(Relaxed),
        syscalls: header.syscalls.load(Relaxed),
        next: table.len() as u32,
        ..Totals::default()
    };
    let mut heap = None;
    let mut watches = Vec::new();
    for (id, entry) in table.iter().enumerate() {
        let what = entry.what.load(Acquire);
        let kind = match what & listed::KIND {
            1 => WatchKind::Write,
            2 => WatchKind::Read,
            3 => WatchKind::Access,
            // (The program may have written any value there.)
            _ => continue,
        };
        let (start, len) = (entry.start.load(Relaxed), entry.len.load(Relaxed));
        let reported_as = entry.reported_as.load(Relaxed);
        if what & listed::ENDED != 0 || len == 0 {
            continue;
        }
        if reported_as != id as u32 {
            let (_, _, bytes) = heap.get_or_insert((reported_as, kind, 0u64));
            *bytes = bytes.saturating_add(len);
            continue;
        }
        let off = what & listed::OFF != 0;
        let of = match what & listed::FOLLOWS {
            0 => CountedBytes::Range { start, len },
            _ => CountedBytes::Along {
                start,
                len,
                moved: area.counters(reported_as).moved.load(Relaxed),
            },
        };
        watches.push(counted(area, reported_as, of, kind, off));
    }
    if let Some((id, kind, bytes)) = heap {
        watches.push(counted(area, id, CountedBytes::Heap(bytes), kind, false));
    }
    let _ = Statistics::write(out, &totals, watches);
    out.push('\n');
}

fn counted(area: &SharedArea, id: u32, of: CountedBytes, kind: WatchKind, off: bool) -> Counted {
    let n = area.counters(id);
    let (hits, silent) = area.hits(id);
    Counted {
        id,
        of,
        kind,
        hits,
        silent,
        filtered: n.filtered.load(Relaxed),
        false_positives: n.false_positives.load(Relaxed),
        stops: n.stops.load(Relaxed),
        register: n.placement.load(Relaxed) == 1,
        traps: n.traps.load(Relaxed),
        state: match n.gone.load(Relaxed) {
            _ if off => WatchState::Off,
            0 => WatchState::On,
            _ => WatchState::Gone,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_hits_are_reported() {
        let area = SharedArea::elsewhere(12, 0, "program").unwrap();
        let watch = |id: u32, what: u32| {
            let entry = area.list(id).unwrap();
            entry.start.store(0x4040, Relaxed);
            entry.len.store(8, Relaxed);
            entry.reported_as.store(id, Relaxed);
            entry.what.store(what, Relaxed);
        };
        watch(0, 1 | listed::LOGGED);
        watch(1, 1 | listed::ENDED);
        watch(2, 3 | listed::OFF);
        area.counters(0).hits.store(5, Relaxed);
        let said = answer(&area, "ulpf stats;ulpf log 3;ulpf last 0x4040 8 1").unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[0].contains(r#""next":3,"#), "{}", lines[0]);
        assert_eq!(lines[0].matches(r#""id":"#).count(), 2, "{}", lines[0]);
        assert!(
            lines[0].contains(r#""id":0,"start":16448,"len":8,"kind":"w","hits":5,"#),
            "{}",
            lines[0]
        );
        assert!(lines[1].starts_with(r#"{"reaches_back":"#), "{}", lines[1]);
        assert!(lines[2].contains(r#""last":[]"#), "{}", lines[2]);
        // Commands that need the program.
        for command in [
            "ulpf about",
            "ulpf watch 0x4040 8 w",
            "ulpf stats;ulpf unwatch 0",
            "help",
        ] {
            assert!(answer(&area, command).is_none(), "{command}");
        }
    }
}
