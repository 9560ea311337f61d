//! Return addresses for the log: by the unwind tables of the program's files, with framehop; in code without tables,
//! along the frame pointers.
//!
//! ```text
//!   stopped (control/unwind.rs)         in a handler
//!   .eh_frame of each file, copied ─▶ framehop ─▶ frames
//!   all executable mappings ────────▶ is this a return address at all?  ── no ──▶ the end of the backtrace
//!                       ▲                                                └▶ ask, once a page: mappings may be new
//!                       └─────────────────── Request::Unwind ◀──────────────┘
//! ```
//! Data that handlers read change only while all handlers are stopped. framehop allocates nothing while it unwinds. The
//! caches that it needs for that are made beforehand; a thread that finds no free one uses frame pointers.

use core::sync::atomic::{AtomicBool, Ordering::*};

use framehop::x86_64::UnwindRegsX86_64;
use framehop::{FrameAddress, Unwinder};
use linux_raw_sys::general as k;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::guard::{PROT_EXEC, PROT_READ};
use ulpf_lib::ring::MAX_FRAMES;
use ulpf_stub_tables::code::{Code, Memory, OverRead, TakenCache};
use ulpf_stub_tables::rows::{CfaRule, Place, Row};

use crate::cached_unwind::{self, Frame, Stack};
use crate::global::tables;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::walk::Walk;

pub fn code() -> Option<&'static Code> {
    tables().code.as_deref()
}

/// The cache with which this thread unwinds.
pub fn memory(t: Current) -> Option<TakenCache<'static>> {
    code()?.cache(t.index.load(Relaxed) as usize)
}

/// True if there are tables for code in `[start, end)`, which is about to change. (Other code, such as a JIT's, comes
/// and goes without us.)
pub fn touches(start: u64, end: u64) -> bool {
    code().is_some_and(|c| c.touches(start, end))
}

/// A file's code has been mapped, and its other mappings may follow.
static NEW_FILE: AtomicBool = AtomicBool::new(false);

/// Called after a call that changes mappings. Returns `true` if it is time to look for new files. As its last step,
/// before it runs any of the code, the dynamic loader makes its relocated data read-only.
pub fn is_loaded(nr: u64, args: &[u64; 6]) -> bool {
    const MAP_ANONYMOUS: u64 = 0x20;
    match nr as u32 {
        _ if code().is_none() => false,
        k::__NR_mmap => {
            if args[2] & u64::from(PROT_EXEC) != 0 && args[3] & MAP_ANONYMOUS == 0 {
                NEW_FILE.store(true, Relaxed);
            }
            false
        }
        k::__NR_mprotect => args[2] == u64::from(PROT_READ) && NEW_FILE.swap(false, Relaxed),
        _ => false,
    }
}

/// Finds the return addresses, innermost first, of the context that an access has left. Returns their number.
pub fn backtrace(t: Current, gprs: &Gprs, to: &mut [u64; MAX_FRAMES], want: usize) -> usize {
    let Some(code) = code() else { return 0 };
    match memory(t) {
        Some(mut memory) => walk(t, code, gprs, (to, want), &mut memory, None),
        None => {
            let mut found = Found::begin(t, code, to, want);
            by_frame_pointers(&mut found, gprs);
            found.n
        }
    }
}

/// The same by tables alone; `depends` records what the result depends on.
pub fn walk(
    t: Current,
    code: &Code,
    gprs: &Gprs,
    (to, want): (&mut [u64; MAX_FRAMES], usize),
    memory: &mut Memory,
    depends: Option<&mut Walk>,
) -> usize {
    let mut found = Found::begin(t, code, to, want);
    by_tables(&mut found, gprs, memory, depends);
    found.n
}

/// True if the instruction is in a library that every program has. `false` before tables have been read.
pub fn is_runtime(pc: u64) -> bool {
    code().is_some_and(|c| c.is_runtime(pc))
}

/// Whether the return address is on top of the stack at this instruction, if tables tell. Called by the stub's task.
pub fn is_return_address_on_top(pc: u64) -> bool {
    let Some(code) = code() else { return false };
    // (Any word that can be read serves as the stack.)
    let word = 0u64;
    let frame = Frame {
        ip: pc,
        sp: &raw const word as u64,
        bp: 0,
        first: true,
    };
    let memory = code.cache(0);
    memory.is_some_and(|mut memory| {
        let row = cached_unwind::learn(&code.tables, &mut memory.cache, frame, &mut Stack::begin());
        row.cfa == CfaRule::Rsp && row.end == 8
    })
}

/// Whether the instruction belongs to a function that over-reads strings.
pub fn over_read(pc: u64) -> OverRead {
    code().map_or(OverRead::None, |c| c.over_read(pc))
}

/// For an access in such a library: finds return addresses up to that of the program's own call. Returns their number.
/// It is 0 if tables do not lead there: these libraries do not keep frame pointers.
pub fn to_own_call(t: Current, gprs: &Gprs, to: &mut [u64; MAX_FRAMES]) -> usize {
    let Some(code) = code() else { return 0 };
    let mut found = Found {
        to_own: true,
        ..Found::begin(t, code, to, MAX_FRAMES)
    };
    if let Some(mut memory) = memory(t) {
        by_tables(&mut found, gprs, &mut memory, None);
    }
    let last = found.n.checked_sub(1).and_then(|n| found.to.get(n));
    match last {
        Some(at) if !code.is_runtime(at.wrapping_sub(1)) => found.n,
        _ => 0,
    }
}

/// Whether the instruction, or one of the calls that led there, is in a function of an allocator.
pub fn is_of_allocator(pc: u64, callers: &[u64]) -> bool {
    let Some(code) = code().filter(|code| code.is_near_allocator(pc)) else {
        return false;
    };
    let mut callers = callers.iter();
    code.is_allocator(pc) || callers.any(|at| code.is_allocator(at.wrapping_sub(1)))
}

/// True if the program's allocator makes this access: it keeps its books in memory that is not allocated.
pub fn is_allocators(t: Current, gprs: &Gprs, pc: u64) -> bool {
    /// Its functions call each other, and are called by one that has a name.
    const DEPTH: usize = 6;
    if code().is_none_or(|code| !code.is_near_allocator(pc)) {
        return false;
    }
    if is_of_allocator(pc, &[]) {
        return true;
    }
    let mut frames = [0; MAX_FRAMES];
    let n = backtrace(t, gprs, &mut frames, DEPTH);
    is_of_allocator(pc, frames.get(..n).unwrap_or(&[]))
}

/// True if this context, or one of its innermost callers, is where `is_there` says. A signal handler may have interrupted
/// them. Called by the stub's task with the world stopped. `word` reads the program's memory.
pub fn comes_from(
    gprs: &Gprs,
    word: impl Fn(u64) -> Option<u64>,
    is_there: impl Fn(u64) -> bool,
) -> bool {
    const DEPTH: usize = 64;
    let mut regs = UnwindRegsX86_64::new(gprs.rip, gprs.rsp, gprs.rbp);
    let mut frame = FrameAddress::InstructionPointer(gprs.rip);
    let Some(code) = code().filter(|_| !is_there(gprs.rip)) else {
        return true;
    };
    let Some(mut cache) = code.cache(0) else {
        return true;
    };
    let mut read = |at| word(at).ok_or(());
    for _ in 0..DEPTH {
        let next = code
            .tables
            .unwind_frame(frame, &mut regs, &mut cache.cache, &mut read);
        let Ok(Some(at)) = next else { return false };
        if let Some(context) = interrupted(at, regs.sp(), &word) {
            if is_there(context.ip) {
                return true;
            }
            regs = UnwindRegsX86_64::new(context.ip, context.sp, context.bp);
            frame = FrameAddress::InstructionPointer(context.ip);
            continue;
        }
        if is_there(at.wrapping_sub(1)) {
            return true;
        }
        match FrameAddress::from_return_address(at) {
            Some(next) => frame = next,
            None => return false,
        }
    }
    false
}

/// Finds the return addresses of a thread that dies. Returns their number. A PC outside of code is taken for the target
/// of a wrong call.
pub fn at_death(t: Current, gprs: &Gprs, to: &mut [u64; MAX_FRAMES]) -> usize {
    let Some(code) = code() else { return 0 };
    let back = memory::get::<u64>(gprs.rsp).filter(|at| code.is_code(*at));
    let Some(back) = back.filter(|_| !code.is_code(gprs.rip)) else {
        return backtrace(t, gprs, to, MAX_FRAMES);
    };
    let called = Gprs {
        rip: back,
        rsp: gprs.rsp.wrapping_add(8),
        ..*gprs
    };
    let mut rest = [0; MAX_FRAMES];
    let n = backtrace(t, &called, &mut rest, MAX_FRAMES - 1);
    let all = core::iter::once(&back).chain(rest.iter().take(n));
    to.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
    n + 1
}

/// The return address of the function that is executed, if tables tell.
pub fn caller(t: Current, gprs: &Gprs) -> Option<u64> {
    let code = code()?;
    if !code.touches(gprs.rip, gprs.rip + 1) {
        return None;
    }
    let mut to = [0; MAX_FRAMES];
    (backtrace(t, gprs, &mut to, 1) == 1).then_some(to[0])
}

struct Found<'a> {
    t: Current,
    code: &'a Code,
    to: &'a mut [u64; MAX_FRAMES],
    n: usize,
    want: usize,
    /// Stop at the program's own code.
    to_own: bool,
}

impl<'a> Found<'a> {
    fn begin(t: Current, code: &'a Code, to: &'a mut [u64; MAX_FRAMES], want: usize) -> Found<'a> {
        Found {
            t,
            code,
            to,
            n: 0,
            want: want.min(MAX_FRAMES),
            to_own: false,
        }
    }

    /// True if this is code. If it may be code that is not known yet, the thread asks later.
    fn knows(&self, at: u64) -> bool {
        let known = self.code.is_code(at);
        if !known && self.code.may_be_new(at) {
            self.t.own().new_code.set(at);
        }
        known
    }

    /// Adds an address. Returns `false` if it is not code, or if there are enough.
    fn add(&mut self, at: u64) -> bool {
        self.knows(at) && self.put(at)
    }

    /// As [`Found::add`], for an address that is code.
    #[inline]
    fn put(&mut self, at: u64) -> bool {
        if let Some(slot) = self.to.get_mut(self.n) {
            *slot = at;
            self.n += 1;
        }
        let within = !self.to_own || self.code.is_runtime(at.wrapping_sub(1));
        within && self.n < self.want
    }
}

fn by_tables(found: &mut Found, gprs: &Gprs, memory: &mut Memory, mut depends: Option<&mut Walk>) {
    let code = found.code;
    let mut stack = Stack::begin();
    let mut frame = Frame {
        ip: gprs.rip,
        sp: gprs.rsp,
        bp: gprs.rbp,
        first: true,
    };
    let place = |f: &Frame| match f.first {
        true => Place::here(f.ip),
        false => Place::caller(f.ip),
    };
    let mut known = memory.rows.find(place(&frame));
    if known.is_none() && found.knows(frame.ip) {
        known = Some(remember(code, memory, frame, &mut stack));
    }
    loop {
        let row = known.unwrap_or(Row::TABLES);
        let next = match cached_unwind::by_row(row, frame, &mut stack) {
            None if row.cfa == CfaRule::End => None,
            None => {
                spoil(&mut depends);
                cached_unwind::by_tables(&code.tables, &mut memory.cache, frame, &mut stack)
            }
            Some(caller) => {
                if let Some(walk) = &mut depends {
                    walk.step(row, frame, caller);
                }
                Some(caller)
            }
        };
        let Some(caller) = next else { return };
        frame = caller;
        known = memory.rows.find(place(&frame));
        if known.is_some() {
            // Code, and not the return from a signal.
            if !found.put(frame.ip) {
                return;
            }
            continue;
        }
        if !found.knows(frame.ip) {
            return spoil(&mut depends);
        }
        let more = found.put(frame.ip);
        if let Some(context) = interrupted(frame.ip, frame.sp, memory::get::<u64>) {
            spoil(&mut depends);
            if !more || !found.add(context.ip) {
                return;
            }
            frame = context;
            continue;
        }
        known = Some(remember(code, memory, frame, &mut stack));
        if !more {
            return;
        }
    }
}

/// The result depends on more than the remembered rows.
fn spoil(walk: &mut Option<&mut Walk>) {
    if let Some(walk) = walk {
        walk.is_whole = false;
    }
}

/// Learns the row of the frame's place, and remembers it if the place is in a file. (Other code comes and goes.)
fn remember(code: &Code, memory: &mut Memory, frame: Frame, stack: &mut Stack) -> Row {
    let (place, at) = match frame.first {
        true => (Place::here(frame.ip), frame.ip),
        false => (Place::caller(frame.ip), frame.ip.wrapping_sub(1)),
    };
    if !code.touches(at, at.wrapping_add(1)) {
        return Row::TABLES;
    }
    let row = cached_unwind::learn(&code.tables, &mut memory.cache, frame, stack);
    memory.rows.put(place, row);
    row
}

/// The context that a signal has interrupted, if `at` is the return address of its handler, with the stack pointer
/// `sp`. `word` reads the program's memory.
fn interrupted(at: u64, sp: u64, word: impl Fn(u64) -> Option<u64>) -> Option<Frame> {
    // mov $15,%rax; syscall
    const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    // ucontext_t: rbp, rsp, rip.
    const PLACES: [u64; 3] = [120, 160, 168];
    let (first, second) = SIGRETURN.split_first_chunk()?;
    let first = u64::from_le_bytes(*first);
    if word(at)? != first || !word(at.wrapping_add(8))?.to_le_bytes().starts_with(second) {
        return None;
    }
    let mut values = PLACES.map(|n| word(sp.wrapping_add(n)));
    let mut take = |n: usize| values.get_mut(n).and_then(Option::take);
    let (bp, sp, ip) = (take(0)?, take(1)?, take(2)?);
    Some(Frame {
        ip,
        sp,
        bp,
        first: true,
    })
}

fn by_frame_pointers(found: &mut Found, gprs: &Gprs) {
    let (mut fp, mut low) = (gprs.rbp, gprs.rsp);
    while fp >= low && fp & 7 == 0 {
        let Some([next, ret]) = memory::get::<[u64; 2]>(fp) else {
            return;
        };
        if !found.add(ret) {
            return;
        }
        low = fp + 16;
        fp = next;
    }
}
