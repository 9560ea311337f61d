//! Restartable sequences (rseq(2)): code that the kernel sends to an abort handler when the thread is preempted, migrated
//! or interrupted by a signal on its way, so that it is atomic for all threads of one processor.
//!
//! The kernel writes into the area that a thread has registered, and reads the sequence's description, whenever the
//! thread was preempted. So the area's page is moved when it is registered, and stays where it is then ([`stays`]): the
//! kernel knows the area by its alias, whatever guard stands before it. Where it cannot be moved, it has no guard, and
//! watches there live in debug registers.
//!
//! A fault in a sequence is a signal: when our handler runs, the kernel has sent the thread to the abort handler, and
//! nobody knows which instruction has faulted. Natively the sequence would be tried again, and fault again, for ever. So
//! the second attempt is made where nothing can come between:
//!
//! ```text
//! fault, ip at the abort handler
//!   ─▶ `SectionBegin`: the world rests, nobody else is on this or any processor
//!   ─▶ the kernel forgets the area, in which the numbers of processor and node stay
//!   ─▶ single steps, from the abort handler into the sequence; what faults is served as everywhere
//!   ─▶ the sequence has been left: registered again, the world goes on, stops are told of
//! ```
//! Whatever else than that happens on the way ends the attempt: the thread is then where the kernel would have sent it.

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
use crate::uring::held;

/// struct rseq: where the numbers of the processor are (`cpu_id_start`, `cpu_id`), the sequence that the thread is in
/// (`rseq_cs`), and the numbers that later kernels have added (`node_id`, `mm_cid`).
const PROCESSOR: u64 = 0;
const CURRENT: u64 = 8;
const LATER: u64 = 20;
/// So many instructions at most until a sequence is left, and until it is entered.
const MOST: u32 = 100_000;
const MOST_BEFORE: u32 = 4_000;

/// Code with sequences, which is not patched: what is displaced would not be restarted.
static CODE: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// There are sequences in `[start, end)`. `false`: there is no room to remember that. With the world at rest.
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

/// Are there any in `[start, end)`?
pub fn has_code(start: u64, end: u64) -> bool {
    let known = CODE.iter().take(KNOWN.load(SeqCst));
    known
        .map(|[from, to]| (from.load(Relaxed), to.load(Relaxed)))
        .any(|(from, to)| from < end && start < to)
}

/// Has any thread registered an area that meets `[start, end)`?
pub fn has_area(start: u64, end: u64) -> bool {
    g().threads.iter().any(|t| t.sequences.meets(start, end))
}

/// Memory that the kernel knows by its address, and that so is neither moved nor given back.
pub fn stays(start: u64, end: u64) -> bool {
    held::in_use(start, end) || has_area(start, end)
}

/// Has the kernel aborted a sequence for this signal? A signature stands before an abort handler.
pub fn was_aborted(t: Current, uc: &UContext) -> bool {
    !t.sequences.is_empty()
        && memory::get::<u32>(uc.gprs.rip.wrapping_sub(4)) == Some(t.sequences.signature())
}

/// The thread makes one alone.
pub fn active(t: Current) -> bool {
    t.own().section.get().is_some()
}

/// A sequence was aborted: the next attempt is made alone. `false`: not by a thread that is stepped, in which natively
/// every step aborts it, too.
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

/// Is an instruction about to write to an area where the thread says which sequence it enters? While our handler makes it,
/// the kernel finds the thread elsewhere, and would take that back; so what follows is made alone ([`enter`]).
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

/// The instruction and the sequence behind it are made alone.
pub fn enter(t: Current, uc: &mut UContext) {
    let section = Section {
        entered: true,
        ..Section::default()
    };
    if !go(t, uc, section) {
        // The kernel knows nothing of it.
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

/// The next instruction stands where it is to be stepped.
fn plain(t: Current, uc: &mut UContext) {
    let at = uc.gprs.rip;
    if patches::touches(at, at + 1) {
        request(t, uc, Request::Plain { at });
    }
}

/// The next instruction is one step. `mask`: the program's.
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

/// A step has been made, whose `OwnStep` is taken back; `slow`: with pages open.
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

/// An instruction has been made. What it has met is in `Own::pending`; `true`: the sequence is over, and that may be
/// reported.
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

/// The attempt ends here, and in the abort handler if the thread is in the sequence. `false`: there was none.
pub fn abandon(t: Current, uc: &mut UContext) -> bool {
    let abort = interrupt(t, uc);
    match abort {
        Some(Some(at)) => uc.gprs.rip = at,
        Some(None) => {}
        None => return false,
    }
    true
}

/// The attempt ends, and the thread is where it is. Where it has to go on, if in the sequence.
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

/// What has been met is to be told of before others change it again.
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

/// A system call on the way to the sequence may wait for others: the attempt goes on behind it.
pub fn pause(t: Current, uc: &mut UContext) -> Option<Section> {
    let section = t.own().section.get()?;
    let inside = interrupt(t, uc)?;
    (inside.is_none() && !section.entered).then_some(section)
}

/// It goes on, if the thread is where it went on from there.
pub fn go_on(t: Current, uc: &mut UContext, section: Section, at: u64) {
    let steps = t.stepping.load(Relaxed) || park::steps_itself(t, uc);
    let same = uc.gprs.rip == at && !steps && !t.leaving.load(Relaxed);
    if same && t.own().own_step.get().is_none() && !t.sequences.is_empty() {
        go(t, uc, section);
    }
}

/// The kernel forgets the area; what is written there stays.
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
        // Nobody can say what the number of the processor is from here on.
        Numbers::NONE.write(t);
        t.sequences.set(0, 0, 0);
    }
}

/// Before a fork: the kernel would write the child's numbers to memory that it still shares with its parent.
pub fn before_fork(t: Current) -> bool {
    let known = t.sequences.known();
    known != 0 && known != t.sequences.at() && withdraw(&t)
}

/// After it, in the parent, or in the child, whose memory is its own. `withdrawn`: what [`before_fork`] has said.
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

/// The one that the thread has said to be in.
fn sequence(t: &Thread) -> Option<Sequence> {
    let at = memory::get::<u64>(t.sequences.at() + CURRENT).filter(|at| *at != 0)?;
    let [_, start, len, abort] = memory::get::<[u64; 4]>(at)?;
    Some(Sequence { start, len, abort })
}

/// What the kernel keeps in an area. Unregistering takes it away.
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
