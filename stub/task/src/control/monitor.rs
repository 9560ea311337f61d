//! `monitor …`: commands that the remote protocol has no packet for; `ulpf_lib::command` has their syntax. Answers to
//! `ulpf …` commands are JSON lines, for our own tools; the rest is text for people.

use alloc::sync::Arc;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use ulpf_lib::command::reply::{Counted, CountedBytes, Statistics, Totals, WatchState};
use ulpf_lib::command::{self, Arm, Command, FilterOf, How, Mistake, Reply, What};
use ulpf_lib::filter::Filter;
use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

use super::Control;
use super::filters;
use super::replies::{refused, tell};
use super::text;
use super::watches::IfUnmapped;
use crate::inferior::{Refusal, no_range};
use ulpf_lib::command::Placement;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::patches;
use ulpf_stub_tables::attributes::Attributes;
use ulpf_stub_tables::back_off::MISSES;

const HELP: &str = "\
ulpf watch ADDR LEN r|w|rw [stop] [log] [freeze] [bt N] [auto|guard|debug-register] [FILTER]
                            watch a range without a GDB watchpoint
ulpf watches r|w|rw [stop] [log] [bt N] [auto|guard|debug-register] at PLACE...
                            many of them; PLACE: ADDR:LEN, or ADDR:LEN*COUNT+STRIDE
ulpf watch PATH LEN r|w|rw [stop] [log] [bt N] [FILTER]
                            watch what pointers lead to, and follow them; PATH: ADDR>OFFSET..., 0x4040>8>-4: 4 bytes
                            before what is pointed to 8 bytes behind what is pointed to at 0x4040; 0x4040@list,8,4: 4
                            bytes behind the beginning of each node, whose links are at 8
ulpf watch heap r|w|rw [stop] [log] [bt N] [FILTER]
                            watch all that the program allocates
ulpf watch ADDR@frames,OFFSET LEN ..., ulpf frame ID begins|ends ADDR
                            watch a local of the function at ADDR in the frames that begin and end so
ulpf watch 0@threads,OFFSET LEN ...
                            watch what is OFFSET bytes from the fs base of each thread, also of those to come
ulpf filter ID [FILTER]     change which hits of a watch matter (nothing said: all)
ulpf filter at ADDR LEN [FILTER]
                            the same for GDB's own watches on exactly these bytes, now and later
ulpf filter VARIABLE [FILTER]
                            the same, with names: total if $new > limit from add skip 3 (as `ulpf run -w` takes it)
ulpf filter ID of VARIABLE [FILTER]
                            change which hits of a watch on that variable matter, with names
ulpf condition ADDR LEN r|w|rw [FILTER]
                            for the plugin: what decides about GDB's own watches on these bytes, beside GDB
ulpf locals ADDR            for the plugin: the stack pointer of the innermost function whose locals GDB watches
ulpf settle                 for the plugin: what GDB has not heard of since, as JSON
ulpf unwatch ID             take it away
ulpf check ADDR LEN r|w|rw  could GDB's own watch be armed there, and if not, why
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
ulpf last-writers           from now on, each byte of heap and data has its last writer, for `ulpf last`
ulpf log [N]                the last N (100) hits of all watches that log or stop, as JSON lines
ulpf stop                   which watch made the last stop, and the access, as JSON
ulpf stop rest              the other watches that the same instruction has hit; no stop tells of them any more
ulpf about                  the process, and where stops of these watches are told, as JSON
ulpf heap-check [frames N] [quarantine BYTES] [redzone BYTES] [redzone-most BYTES] [leaks] [stop] [running] [base]
                            serve the program's malloc and free, and note every access beside its blocks (ulpf check);
                            stop: the program stops at each that is new
ulpf heap-error             the error of a checked heap that the program has stopped for last, as JSON
ulpf heap-block ADDR        the block that has this byte, or is nearest: who has allocated and freed it
ulpf heap-leaks             blocks of a checked heap that nothing leads to any more
ulpf heap-pointers ADDR     who points into the block that has this byte
ulpf heap-functions FUNCTION ADDR LEN...
                            the same for functions without dynamic symbols; what reads strings is known, too
ulpf sites                  system-call instructions met so far, and how they are patched
ulpf why                    why the last watch was refused; which system call made the last hit
";

/// Watches in `ulpf stats`.
const MOST_LISTED: usize = 1_000_000;

pub fn run(c: &mut Control, text: &str, out: &mut dyn Write) -> bool {
    let mut known = true;
    for line in command::lines(text) {
        match Command::parse(line) {
            Ok(command) => execute(c, command, out),
            Err(Mistake::Refused(why)) => refused(out, &why),
            Err(Mistake::Unknown(word)) => {
                let _ = writeln!(
                    out,
                    "unknown command: ulpf {word}; `monitor ulpf help` lists them"
                );
            }
            Err(Mistake::Foreign) => known = false,
        }
    }
    known
}

fn execute(c: &mut Control, command: Command, out: &mut dyn Write) {
    match command {
        Command::Help => help(out),
        Command::Watch(arm) => tell(out, watch(c, arm)),
        Command::Watches { kind, how, places } => {
            let a = attributes(c, how);
            c.watch_places(kind, &a, &places, out);
        }
        Command::Unwatch(id) => tell(out, unwatch(c, WatchId(id))),
        Command::Check { addr, len, kind } => tell(out, check(c, addr, len, kind)),
        Command::Switch { id, on } => tell(out, switch(c, id, on)),
        Command::Frame { id, at, begins } => {
            let known = match c.frame_of_path(WatchId(id), at, begins) {
                true => Ok(Reply::Watch(id)),
                false => Err(no_watch(
                    "no watch with that number has such a frame of a function",
                )),
            };
            tell(out, known);
        }
        Command::Filter { of, filter, keep } => tell(out, set_filter(c, of, filter, keep)),
        Command::Placement(to) => {
            c.placement.wanted = to.unwrap_or(c.placement.wanted);
            let _ = writeln!(out, "{}", c.placement_state());
        }
        Command::Backend => super::backend::tell(c.world.stopped(), out),
        Command::Stats => stats(c, out),
        Command::About => about(out),
        Command::Why => why(c, out),
        Command::Sites => c.edits.calls.list(out),
        Command::Stop => c.out_of_band.answer(out),
        Command::StopRest => c.take_rest(out),
        Command::Condition {
            range,
            kind,
            filter,
        } => tell(out, condition(c, range, kind, filter)),
        Command::Locals(at) => {
            c.conditions.locals = at;
            tell(out, Ok(Reply::Filtered(alloc::vec![])));
        }
        Command::Settle => c.settle(out),
        Command::HeapCheck(how) => {
            let done = c.check_heap(&how);
            tell(out, done.map(|()| Reply::HeapChecked));
        }
        Command::HeapAsk(what) => tell(out, c.ask_heap(what)),
        Command::HeapFunctions(all) => {
            let done = c.serve_functions(&all);
            tell(out, done.map(|()| Reply::HeapChecked));
        }
        Command::PatchSyscalls { on, after } => {
            if let Some(n) = after {
                ulpf_stub_handlers::syscalls::sites::AFTER.store(n, SeqCst);
            }
            c.enable_sites(on);
            tell(out, Ok(Reply::PatchSyscalls(on)));
        }
        Command::Patch {
            on,
            after,
            patience,
        } => patch(c, on, after, patience, out),
        Command::PatchSites(most) => super::patches::sites(most as usize, out),
        Command::Last { addr, len, most } => {
            super::last::answer((addr, len, most), c.heap.records(addr), out);
        }
        Command::Log(most) => super::last::log(most, out),
        Command::LastWriters => {
            let done = c.record_writers();
            tell(out, done.map(|()| Reply::LastWriters));
        }
    }
}

fn about(out: &mut dyn Write) {
    let about = Reply::About {
        session: g().header().map_or(0, |h| h.base_tsc),
        pid: g().pid.load(Relaxed),
        stops_at: super::out_of_band::PLACE.0,
    };
    tell(out, Ok(about));
}

fn help(out: &mut dyn Write) {
    let _ = out.write_str(HELP);
    let _ = out.write_str(filters::HELP);
}

/// Attributes of a watch that the debugger's own table lacks.
fn attributes(c: &Control, how: How) -> Attributes {
    Attributes {
        stop: how.stop,
        out_of_band: true,
        log: how.log,
        backtrace: how.backtrace,
        placement: how.placement.unwrap_or(c.placement.wanted),
        ..Attributes::default()
    }
}

fn no_watch(why: &str) -> Refusal {
    Refusal::new("ulpf watch", why, "`monitor ulpf stats` lists them")
}

fn watch(c: &mut Control, arm: Arm) -> Result<Reply, Refusal> {
    let mut a = attributes(c, arm.how);
    if arm.how.freeze {
        a.frozen = Some(frozen(&arm.what, arm.kind)?);
    }
    let filter = filters::counted(arm.filter, arm.what.bytes());
    a.filter = filter.map_err(|why| {
        Refusal::new("ulpf watch", why, "`monitor ulpf help` lists what there is")
    })?;
    let id = match arm.what {
        What::Range(range) => c.watch_out_of_band(range, arm.kind, &a)?,
        What::Along(path, len) => c.watch_path(path, len, arm.kind, a)?,
        What::Heap => {
            a.placement = Placement::default();
            let (id, bytes) = c.watch_heap(arm.kind, a)?;
            let watch = id.0;
            return Ok(Reply::Heap { watch, bytes });
        }
    };
    Ok(Reply::Watch(id.0))
}

/// The present bytes of a watch, which it then keeps.
fn frozen(what: &What, kind: WatchKind) -> Result<Arc<[u8]>, Refusal> {
    const MOST: u64 = 1 << 20;
    let no = |why: &str| Err(Refusal::new("ulpf watch", why, "leave `freeze` out"));
    let range = match what {
        What::Range(range) => range,
        What::Along(..) => return no("only what stays where it is can be frozen"),
        What::Heap => return no("the heap cannot be frozen"),
    };
    if kind == WatchKind::Read {
        return no("a watch that sees no stores cannot undo them");
    }
    if range.len > MOST {
        return no("up to a mebibyte can be frozen");
    }
    let mut bytes = alloc::vec![0; range.len as usize];
    match text::read(range.start.0, &mut bytes) == bytes.len() {
        true => Ok(bytes.into()),
        false => no("its memory cannot be read"),
    }
}

/// As `Z2`, `Z3` and `Z4` would be answered.
fn check(c: &mut Control, addr: u64, len: u64, kind: WatchKind) -> Result<Reply, Refusal> {
    let range = WatchRange::new(TargetAddr(addr), len).ok_or_else(|| no_range(addr, len))?;
    let wanted = (c.placement.wanted, true);
    let (_, waits) = c.possible(range, kind, wanted, IfUnmapped::Await)?;
    Ok(Reply::Watchable { mapped: !waits })
}

fn set_filter(c: &mut Control, of: FilterOf, filter: Filter, keep: bool) -> Result<Reply, Refusal> {
    let done = match of {
        FilterOf::Range(range) => c.filter_range(range, filter),
        FilterOf::Watch(id) => match c.filter_watch(WatchId(id), filter, keep) {
            Ok(true) => Ok(alloc::vec![WatchId(id)]),
            Ok(false) => Err("there is no watch with that number"),
            Err(why) => Err(why),
        },
    };
    let no = |why| Refusal::new("ulpf filter", why, "`monitor ulpf stats` lists the watches");
    let ids = done.map_err(no)?;
    Ok(Reply::Filtered(ids.iter().map(|id| id.0).collect()))
}

fn condition(
    c: &mut Control,
    range: WatchRange,
    kind: WatchKind,
    filter: Filter,
) -> Result<Reply, Refusal> {
    let what_to_do = "leave it to the debugger";
    let ids = c
        .set_condition(range, kind, filter)
        .map_err(|why| Refusal::new("ulpf condition", why, what_to_do))?;
    Ok(Reply::Filtered(ids.iter().map(|id| id.0).collect()))
}

fn switch(c: &mut Control, watch: u32, on: bool) -> Result<Reply, Refusal> {
    match on {
        true => c.switch_on(WatchId(watch))?,
        false => c.switch_off(WatchId(watch))?,
    }
    Ok(Reply::Switched { watch, on })
}

fn unwatch(c: &mut Control, id: WatchId) -> Result<Reply, Refusal> {
    if c.unwatch_heap(id) {
        return Ok(Reply::Unwatched(None));
    }
    if let Some(was) = c.unwatch_path(id) {
        return Ok(Reply::Unwatched(Some(was)));
    }
    match c.disabled.forget(id).or_else(|| c.staged.remove_id(id)) {
        Some((range, _)) => Ok(Reply::Unwatched(Some((range.start.0, range.len)))),
        None => Err(no_watch("there is no watch with that number")),
    }
}

fn stats(c: &mut Control, out: &mut dyn Write) {
    let Some(h) = g().header() else { return };
    let first_new = c.staged.first_new();
    let totals = Totals {
        faults: h.faults.load(Relaxed),
        false_positives: h.all_false_positives(g().areas()),
        slow: h.slow.load(Relaxed),
        syscalls: h.syscalls.load(Relaxed),
        sites: c.edits.calls.in_place() as u64,
        sites_refused: c.edits.calls.refused,
        moved_pages: g().guards().moved_pages(),
        watch_bytes: c.staged.list().memory() as u64,
        next: first_new,
        lost: None,
    };
    let listed = c.staged.coming().iter();
    let single = listed
        .filter(|(id, ..)| id.0 < first_new)
        .filter(|(id, ..)| g().attributes(*id).group.is_none() && !c.disabled.has(*id))
        .chain(c.disabled.list())
        .map(|(id, r, kind)| (id, bytes_of(r), kind));
    let heap = CountedBytes::Heap(c.heap.bytes());
    let heap = c.heap.list().map(|(id, kind)| (id, heap, kind));
    let paths = c.paths.list();
    let all = heap.chain(paths).chain(single).take(MOST_LISTED);
    let watches = all.filter_map(|(id, of, kind)| {
        let register = c.placement.in_register(id);
        let off = c.disabled.has(id) || c.paths.is_off(id);
        counted(id, of, kind, register, off)
    });
    let _ = Statistics::write(out, &totals, watches);
    let _ = out.write_str("\n");
}

fn bytes_of(range: WatchRange) -> CountedBytes {
    CountedBytes::Range {
        start: range.start.0,
        len: range.len,
    }
}

fn counted(
    id: WatchId,
    of: CountedBytes,
    kind: WatchKind,
    register: bool,
    off: bool,
) -> Option<Counted> {
    let n = g().counters(id)?;
    let tallied = g()
        .header()
        .map_or((0, 0), |h| h.tallied(g().areas(), id.0));
    Some(Counted {
        id: id.0,
        of,
        kind,
        hits: n.hits.load(Relaxed) + tallied.0,
        silent: n.silent.load(Relaxed) + tallied.1,
        filtered: n.filtered.load(Relaxed),
        false_positives: n.false_positives.load(Relaxed),
        stops: n.stops.load(Relaxed),
        register,
        traps: n.traps.load(Relaxed),
        state: match n.gone.load(Relaxed) {
            _ if off => WatchState::Off,
            0 => WatchState::On,
            _ => WatchState::Gone,
        },
    })
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

fn patch(
    c: &mut Control,
    on: Option<bool>,
    after: Option<u32>,
    patience: Option<u32>,
    out: &mut dyn Write,
) {
    if let Some(n) = after {
        patches::AFTER.store(n, SeqCst);
    }
    if let Some(n) = patience {
        MISSES.store(n, SeqCst);
    }
    match on {
        Some(true) => patches::ENABLED.store(true, SeqCst),
        Some(false) => c.edits.accesses.disable(c.world.stopped()),
        None => {}
    }
    c.edits.accesses.state(out);
}
