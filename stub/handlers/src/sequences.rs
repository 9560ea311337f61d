//! Restartable sequences (rseq(2)). The kernel sends a thread in such code to an abort handler if it is preempted,
//! migrated or interrupted by a signal. So the code is atomic with regard to all threads of one processor.
//!
//! Whenever a thread was preempted, the kernel writes to the area that the thread has registered, and reads the
//! sequence's description. So the area's page is moved when it is registered, and then stays where it is ([`stays`]):
//! the kernel knows the area by its alias, whatever its guard. If the page cannot be moved, it has no guard, and
//! watches there live in debug registers.
//!
//! A fault in a sequence is a signal. When our handler runs, the kernel has sent the thread to the abort handler, and
//! the faulting instruction is not known. By itself the program would try the sequence again, and fault again, for
//! ever. So the second attempt is made with nothing in between:
//!
//! ```text
//!     fault, ip at the abort handler
//!       ─▶ `SectionBegin`: the world is stopped, no other thread runs
//!       ─▶ the kernel forgets the area, in which the numbers of processor and node stay
//!       ─▶ single steps, from the abort handler into the sequence; what faults is served as everywhere
//!       ─▶ the sequence has been left: registered again, the world continues, stops are reported
//! ```
//! Any other event ends the attempt: the thread is then where the kernel would have sent it.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

use ulpf_engine::access::AccessList;

use crate::global::g;
use crate::locks;
use crate::patches;
use crate::runtime::events::{Event, Events, Request};
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park::{self, request};
use crate::runtime::sequences::Section;
use crate::runtime::thread::{Current, OwnStep, OwnStepKind, Thread};
use crate::signals::{masks, numbers};
use crate::uring::queries;

/// Offsets in struct rseq: the numbers of the processor (`cpu_id_start`, `cpu_id`), the sequence that the thread is in
/// (`rseq_cs`), and the numbers of later kernels (`node_id`, `mm_cid`).
const PROCESSOR: u64 = 0;
const CURRENT: u64 = 8;
const LATER: u64 = 20;
/// Limits of instructions until a sequence is left, and until it is entered.
const MOST: u32 = 100_000;
const MOST_BEFORE: u32 = 4_000;

/// Code with sequences, which is not patched: the kernel would not restart displaced code.
static CODE: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// Remembers that there are sequences in `[start, end)`. Returns `false` if the list is full. Called with the world
/// stopped.
pub fn remember_code(start: u64, end: u64) -> bool {
    let n = KNOWN.load(SeqCst);
    let Some([from, to]) = CODE.get(n) else {
        return false;
    };
    from.store(start, SeqCst);
    to.store(end, SeqCst);
    KNOWN.store(n + 1, SeqCst);
    true
}

/// True if there are sequences in `[start, end)`.
pub fn has_code(start: u64, end: u64) -> bool {
    let known = CODE.iter().take(KNOWN.load(SeqCst));
    known
        .map(|[from, to]| (from.load(Relaxed), to.load(Relaxed)))
        .any(|(from, to)| from < end && start < to)
}

/// True if a thread has registered an area that meets `[start, end)`.
pub fn has_area(start: u64, end: u64) -> bool {
    g().threads.iter().any(|t| t.sequences.meets(start, end))
}

/// True for memory that the kernel knows by its address, so that it is neither moved nor given back.
pub fn stays(start: u64, end: u64) -> bool {
    queries::in_use(start, end) || has_area(start, end)
}

/// True if the kernel has aborted a sequence for this signal. The signature precedes each abort handler.
pub fn was_aborted(t: Current, uc: &UContext) -> bool {
    !t.sequences.is_empty()
        && memory::get::<u32>(uc.gprs.rip.wrapping_sub(4)) == Some(t.sequences.signature())
}

/// True if the thread executes a sequence alone.
pub fn active(t: Current) -> bool {
    t.own().section.get().is_some()
}

/// Starts the next attempt of an aborted sequence, alone. Returns `false` for a thread that is single-stepped: without
/// us, too, every step aborts its sequence.
pub fn begin(t: Current, uc: &mut UContext) -> bool {
    let steps = t.stepping.load(Relaxed) || park::steps_itself(t, uc);
    if steps || t.own().own_step.get().is_some() {
        return false;
    }
    let abort = uc.gprs.rip;
    go(
        t,
        uc,
        Section {
            abort,
            ..Section::default()
        },
    )
}

/// True if an instruction is about to write to the field in which the thread declares the sequence that it enters.
/// While our handler performs the write, the kernel finds the thread elsewhere, and would clear the field. So the
/// following code is executed alone ([`enter`]).
pub fn enters(t: Current, list: &AccessList) -> bool {
    let at = t.sequences.at();
    let current = at + CURRENT;
    at != 0
        && !active(t)
        && t.own().own_step.get().is_none()
        && list.iter().any(|a| {
            a.kind.writes() && a.addr.0 < current + 8 && current < a.addr.0.saturating_add(a.len)
        })
}

/// Executes the instruction and the sequence behind it alone.
pub fn enter(t: Current, uc: &mut UContext) {
    let section = Section {
        entered: true,
        ..Section::default()
    };
    if !go(t, uc, section) {
        // The kernel does not know the area.
        t.sequences.set(0, 0, 0);
    }
}

fn go(t: Current, uc: &mut UContext, section: Section) -> bool {
    request(t, uc, Request::SectionBegin);
    if !withdraw(&t) {
        request(t, uc, Request::End);
        return false;
    }
    t.own().section.set(Some(section));
    hold(t, uc, uc.sigmask);
    plain(t, uc);
    true
}

/// Removes a patch of the next instruction, so that it can be stepped in place.
fn plain(t: Current, uc: &mut UContext) {
    let at = uc.gprs.rip;
    if patches::list().touches(at, at + 1) {
        request(t, uc, Request::Plain { at });
    }
}

/// Prepares a single step of the next instruction. `mask` is the program's.
fn hold(t: Current, uc: &mut UContext, mask: u64) {
    t.own().own_step.set(Some(OwnStep {
        kind: OwnStepKind::Section,
        tf: false,
        mask,
        pc: uc.gprs.rip,
    }));
    uc.sigmask = mask | numbers::HANDLER_MASK;
    park::set_tf(uc, true);
}

/// A step has been made, and its `OwnStep` is taken; a `slow` one had its pages open.
pub fn made(t: Current, uc: &mut UContext, step: OwnStep, events: &Events) {
    events.iter().for_each(|e| t.own().report(e));
    if step.kind == OwnStepKind::Slow {
        request(t, uc, Request::OpenEnd);
    }
    hold(t, uc, step.mask);
}

/// An instruction has been performed that was to be stepped with pages open.
pub fn performed(t: Current, uc: &mut UContext) {
    if let Some(step) = t.own().own_step.get()
        && step.kind == OwnStepKind::Slow
    {
        request(t, uc, Request::OpenEnd);
        hold(t, uc, step.mask);
    }
}

/// An instruction has been executed; its events are in `Own::pending`. Returns `true` if the sequence is over, so that
/// they may be reported.
pub fn stepped(t: Current, uc: &mut UContext) -> bool {
    masks::close(t, uc);
    let (Some(mut section), Some(step)) = (t.own().section.get(), t.own().own_step.get()) else {
        return false;
    };
    section.steps += 1;
    let inside = sequence(&t).filter(|s| s.has(uc.gprs.rip));
    section.entered |= inside.as_ref().is_some_and(|s| s.abort == section.abort);
    let over = match inside {
        Some(_) => section.steps > MOST,
        None => section.entered || section.steps > MOST_BEFORE,
    };
    if over {
        return abandon(t, uc);
    }
    t.own().section.set(Some(section));
    hold(t, uc, step.mask);
    plain(t, uc);
    false
}

/// Ends the attempt; a thread in the sequence continues in the abort handler. Returns `false` if there was no attempt.
pub fn abandon(t: Current, uc: &mut UContext) -> bool {
    let abort = interrupt(t, uc);
    match abort {
        Some(Some(at)) => uc.gprs.rip = at,
        Some(None) => {}
        None => return false,
    }
    true
}

/// Ends the attempt, and leaves the thread where it is. Returns the abort handler if the thread is in the sequence.
pub fn interrupt(t: Current, uc: &mut UContext) -> Option<Option<u64>> {
    t.own().section.take()?;
    let inside = sequence(&t).filter(|s| s.has(uc.gprs.rip));
    if inside.is_some() {
        memory::put(t.sequences.at() + CURRENT, &0u64);
    }
    if let Some(step) = t.own().own_step.take() {
        uc.sigmask = step.mask;
    }
    park::set_tf(uc, t.stepping.load(Relaxed));
    tell(&t, memory::reachable(t.sequences.at()));
    keep_locks(t);
    request(t, uc, Request::End);
    Some(inside.map(|s| s.abort))
}

/// Keeps the locks for the events: they must be reported before other threads change the memory again.
fn keep_locks(t: Current) {
    let mut list = AccessList::new();
    for event in t.own().pending.get().iter() {
        if let Event::Watch { addr, access, .. } = event {
            list.push(addr.0, 1, access);
        }
    }
    if list.iter().next().is_some()
        && let Some(held) = locks::take(t, &list)
    {
        locks::keep(t, held);
    }
}

/// Ends the attempt for a system call on the way to the sequence, which may wait for other threads. The attempt
/// continues after the call.
pub fn pause(t: Current, uc: &mut UContext) -> Option<Section> {
    let section = t.own().section.get()?;
    let inside = interrupt(t, uc)?;
    (inside.is_none() && !section.entered).then_some(section)
}

/// Continues the attempt, if the thread is where the call returned to.
pub fn go_on(t: Current, uc: &mut UContext, section: Section, at: u64) {
    let steps = t.stepping.load(Relaxed) || park::steps_itself(t, uc);
    let same = uc.gprs.rip == at && !steps && !t.leaving.load(Relaxed);
    if same && t.own().own_step.get().is_none() && !t.sequences.is_empty() {
        go(t, uc, section);
    }
}

/// Unregisters the area with the kernel; the numbers in the area stay.
fn withdraw(t: &Thread) -> bool {
    let numbers = Numbers::read(t);
    let done = t.sequences.withdraw() == 0;
    if done {
        numbers.write(t);
    }
    done
}

fn tell(t: &Thread, to: u64) {
    if t.sequences.tell(to) != 0 {
        // From here on the number of the processor is not known.
        Numbers::NONE.write(t);
        t.sequences.set(0, 0, 0);
    }
}

/// Called before a fork: the kernel would write the child's numbers to memory that the child still shares with its
/// parent.
pub fn before_fork(t: Current) -> bool {
    let known = t.sequences.known();
    known != 0 && known != t.sequences.at() && withdraw(&t)
}

/// Called after a fork, in the parent, or in the child when its memory is its own. `withdrawn` is the result of
/// [`before_fork`].
pub fn after_fork(t: Current, withdrawn: bool) {
    if withdrawn {
        tell(&t, memory::reachable(t.sequences.at()));
    }
}

/// struct rseq_cs.
struct Sequence {
    start: u64,
    len: u64,
    abort: u64,
}

impl Sequence {
    fn has(&self, at: u64) -> bool {
        at.wrapping_sub(self.start) < self.len
    }
}

/// The sequence that the thread has declared.
fn sequence(t: &Thread) -> Option<Sequence> {
    let at = memory::get::<u64>(t.sequences.at() + CURRENT).filter(|at| *at != 0)?;
    let [_, start, len, abort] = memory::get::<[u64; 4]>(at)?;
    Some(Sequence { start, len, abort })
}

/// The numbers that the kernel keeps in an area. Unregistering clears them.
struct Numbers {
    processor: [u32; 2],
    current: u64,
    later: [u32; 2],
}

impl Numbers {
    const NONE: Numbers = Numbers {
        processor: [0, u32::MAX],
        current: 0,
        later: [0, 0],
    };

    fn read(t: &Thread) -> Numbers {
        let at = t.sequences.at();
        Numbers {
            processor: memory::get(at + PROCESSOR).unwrap_or(Numbers::NONE.processor),
            current: memory::get(at + CURRENT).unwrap_or(0),
            later: memory::get(at + LATER).unwrap_or([0, 0]),
        }
    }

    fn write(&self, t: &Thread) {
        let at = t.sequences.at();
        memory::put(at + PROCESSOR, &self.processor);
        memory::put(at + CURRENT, &self.current);
        memory::put(at + LATER, &self.later);
    }
}
