//! Where the program tells a tool of its memory: Valgrind's client requests, which are the same 19 bytes everywhere and do
//! nothing when nobody looks.
//!
//! ```text
//! rol $3,%rdi; rol $13,%rdi; rol $61,%rdi; rol $51,%rdi; xchg %rbx,%rbx      rax: request and arguments; rdx: the result
//! jmp *0(%rip); .quad thunk n; …      from now on
//! thunk n: gs:[hit] = KNOWN[n]; jmp gs:[entry] ─▶ ulpf_direct ─▶ called() ─▶ told.rs
//! ```
//! A thunk changes flags and what lies below the red zone; both belong to nobody at a request. Whoever is interrupted in one
//! is at its request again ([`leave`]). Thunks, and what is known of each, are in memory of ours that grows by nothing: there is
//! room for [`MOST`].

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::AccessKind;
use ulpf_lib::ring::Area;
use ulpf_stub_tables::patches::Known;

use super::twin::Twin;
use crate::runtime::frame::UContext;

/// What a request consists of.
pub const REQUEST: [u8; 19] = [
    0x48, 0xc1, 0xc7, 0x03, 0x48, 0xc1, 0xc7, 0x0d, 0x48, 0xc1, 0xc7, 0x3d, 0x48, 0xc1, 0xc7, 0x33,
    0x48, 0x87, 0xdb,
];
/// So much of it becomes a jump, which begins like this.
pub const JUMP: usize = 14;
const JUMPS: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
/// So far its instructions rotate rdi, 64 bits and 64 more in all: by where they end.
const ROTATED: [(u64, u32); 4] = [(4, 3), (8, 16), (12, 77), (16, 128)];

/// Requests of all files together.
pub const MOST: usize = 8192;
const THUNK: usize = 128;
/// Bytes of the thunks, and of what is known of requests.
pub const CODE: u64 = (MOST * THUNK) as u64;
pub const TABLE: u64 = 4096 + (MOST * size_of::<Known>()) as u64;

/// [`Known::call`] of a request.
const CALL: u8 = 255;

/// The thunks; 0: there are none. In the page behind them: nobody looks any more.
static CODE_AT: AtomicU64 = AtomicU64::new(0);
static TABLE_AT: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Where the requests are, from the first one to the end of the last one.
static SPAN: [AtomicU64; 2] = [AtomicU64::new(u64::MAX), AtomicU64::new(0)];
/// Functions of ours that make requests for the program: see `control/annotations.rs` of the stub's task.
pub static FUNCTIONS: AtomicU64 = AtomicU64::new(0);

pub fn is_request(known: &Known) -> bool {
    known.call == CALL
}

/// Is it a request, or what we have made of one?
pub fn is_at(code: &[u8]) -> bool {
    code.get(JUMP..) == REQUEST.get(JUMP..)
        && (code.starts_with(&JUMPS) || code.get(..JUMP) == REQUEST.get(..JUMP))
}

// ---- by the stub's task, at rest -------------------------------------------------------------------

/// `code`: of [`CODE`] bytes; `table`: zeroed, of [`TABLE`].
pub fn begin(code: u64, table: u64) {
    TABLE_AT.store(table, Relaxed);
    CODE_AT.store(code, Relaxed);
}

pub fn has_begun() -> bool {
    CODE_AT.load(Relaxed) != 0
}

/// A forked child makes the same requests.
pub fn adopt(twin: Twin) {
    twin.take(&FUNCTIONS);
}

/// One more request at `at`: where its thunk is to be, the thunk, and the jump. `None`: there are too many.
pub fn add(at: u64) -> Option<(u64, [u8; THUNK], [u8; JUMP])> {
    let n = (0..count()).find(|n| known(*n).is_some_and(|k| k.pc == at || k.pc == 0));
    let n = n.unwrap_or(count());
    if n >= MOST || !has_begun() {
        return None;
    }
    let (after, thunk) = (
        at + REQUEST.len() as u64,
        CODE_AT.load(Relaxed) + (n * THUNK) as u64,
    );
    // SAFETY: within the table; nobody uses the entry while the world rests.
    unsafe {
        record(n).write(Known {
            pc: at,
            after,
            back: after,
            size: 0,
            kind: AccessKind::Read,
            leaving: false,
            repeats: false,
            call: CALL,
            operand: None,
        });
    }
    COUNT.fetch_max(n as u64 + 1, Relaxed);
    let [first, last] = &SPAN;
    first.fetch_min(at, Relaxed);
    last.fetch_max(after, Relaxed);
    Some((thunk, code(thunk, after, record(n) as u64)?, jump(n)))
}

/// Requests in `[start, end)` are not there any more: those that are `gone`, by address and the jump that stood there. True:
/// there were some.
pub fn remove(start: u64, end: u64, gone: impl Fn(u64, &[u8]) -> bool) -> bool {
    let mut any = false;
    for n in 0..count() {
        let Some(at) = known(n)
            .map(|k| k.pc)
            .filter(|at| (start..end).contains(at))
        else {
            continue;
        };
        if gone(at, &jump(n)) {
            // SAFETY: as in `add`: a request that is nowhere.
            unsafe { (*record(n)).pc = 0 };
            any = true;
        }
    }
    any
}

/// Calls `f` with where each request is.
pub fn each(mut f: impl FnMut(u64)) {
    all().for_each(|known| f(known.pc));
}

/// To the thunk of this number.
fn jump(n: usize) -> [u8; JUMP] {
    let mut jump = [0; JUMP];
    let (head, to) = jump.split_at_mut(JUMPS.len());
    head.copy_from_slice(&JUMPS);
    let thunk = CODE_AT.load(Relaxed) + (n * THUNK) as u64;
    to.copy_from_slice(&thunk.to_le_bytes());
    jump
}

/// Where a thread goes on that stands in the middle of a request about to become a jump: at its beginning, and how far rdi is
/// turned there.
pub fn begun(inside: u64) -> Option<u32> {
    let turned = ROTATED.iter().find(|(end, _)| *end == inside)?;
    Some(turned.1 % 64)
}

/// Where in a thunk what belongs there lies.
const ASLEEP: usize = 44;
const KNOWN_AT: usize = 112;
const AFTER_AT: usize = 120;
/// Behind which of its instructions the stack pointer is how much lower.
const LOWER: [(u64, u64); 3] = [(14, 128), (20, 136), (28, 128)];

/// ```text
///  0 cmpb $0, asleep(%rip); jne 44
///  9 lea -128(%rsp), %rsp
/// 14 push known(%rip)
/// 20 pop %gs:hit
/// 28 lea 128(%rsp), %rsp
/// 36 jmp *%gs:entry
/// 44 jmp *after(%rip)
/// ```
fn code(at: u64, after: u64, known: u64) -> Option<[u8; THUNK]> {
    let asleep = CODE_AT.load(Relaxed) + CODE;
    let mut code = [0xcc; THUNK];
    let mut n = 0;
    let mut put = |bytes: &[u8]| {
        if let Some(to) = code.get_mut(n..n + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        n += bytes.len();
    };
    let far = |to: u64, behind: usize| (to.wrapping_sub(at + behind as u64) as u32).to_le_bytes();
    let field = |offset: usize| (offset as u32).to_le_bytes();
    put(&[0x80, 0x3d]);
    put(&far(asleep, 7));
    put(&[0, 0x75, (ASLEEP - 9) as u8]);
    put(&[0x48, 0x8d, 0x64, 0x24, 0x80]);
    put(&[0xff, 0x35]);
    put(&far(at + KNOWN_AT as u64, 20));
    put(&[0x65, 0x8f, 0x04, 0x25]);
    put(&field(offset_of!(Area, hit)));
    put(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]);
    put(&[0x65, 0xff, 0x24, 0x25]);
    put(&field(offset_of!(Area, entry)));
    put(&[0xff, 0x25]);
    put(&far(at + AFTER_AT as u64, ASLEEP + 6));
    code.get_mut(KNOWN_AT..AFTER_AT)?
        .copy_from_slice(&known.to_le_bytes());
    code.get_mut(AFTER_AT..)?
        .copy_from_slice(&after.to_le_bytes());
    Some(code)
}

/// A forked child, or a program that we leave: requests do nothing.
pub fn fall_asleep() {
    let code = CODE_AT.load(Relaxed);
    if code != 0 {
        // SAFETY: the page behind the thunks.
        unsafe { ((code + CODE) as *mut u8).write_volatile(1) };
    }
}

// ---- what handlers ask ---------------------------------------------------------------------------

fn count() -> usize {
    COUNT.load(Relaxed) as usize
}

fn record(n: usize) -> *mut Known {
    (TABLE_AT.load(Relaxed) + (n * size_of::<Known>()) as u64) as *mut Known
}

pub fn known(n: usize) -> Option<&'static Known> {
    // SAFETY: within the table, written at rest.
    (n < count()).then(|| unsafe { &*record(n) })
}

fn all() -> impl Iterator<Item = &'static Known> {
    (0..count()).filter_map(known).filter(|k| k.pc != 0)
}

/// Requests of which some byte is in `[start, end)`.
fn within(start: u64, end: u64) -> impl Iterator<Item = &'static Known> {
    let [first, last] = &SPAN;
    let some = start < last.load(Relaxed) && first.load(Relaxed) < end;
    let all = some.then(all).into_iter().flatten();
    all.filter(move |k| k.pc < end && start < k.after)
}

pub fn touches(start: u64, end: u64) -> bool {
    within(start, end).next().is_some()
}

/// The request at `at`.
pub fn at(at: u64) -> Option<&'static Known> {
    within(at, at + 1).find(|k| k.pc == at)
}

/// The request in the middle of whose jump `addr` is.
pub fn around(addr: u64) -> Option<&'static Known> {
    within(addr, addr + 1).find(|k| k.pc < addr && addr < k.pc + JUMP as u64)
}

/// Which thunk, and which byte of it.
fn thunk(rip: u64) -> Option<(&'static Known, u64)> {
    let code = CODE_AT.load(Relaxed);
    let inside = rip.wrapping_sub(code);
    if code == 0 || inside >= CODE {
        return None;
    }
    let known = known(inside as usize / THUNK).filter(|k| k.pc != 0)?;
    Some((known, inside % THUNK as u64))
}

/// The request that a thread has made in a step, and nothing more.
pub fn stepped(rip: u64) -> Option<&'static Known> {
    thunk(rip).filter(|(_, byte)| *byte == 0).map(|(k, _)| k)
}

/// A thread that is interrupted on its way here is at its request.
pub fn leave(uc: &mut UContext) -> bool {
    let Some((known, byte)) = thunk(uc.gprs.rip) else {
        return false;
    };
    let lower = LOWER.iter().find(|(at, _)| *at == byte).map_or(0, |l| l.1);
    uc.gprs.rsp += lower;
    uc.gprs.rip = known.pc;
    true
}

/// Puts requests where our jumps are, in bytes of the program that somebody wants to see.
pub fn hide(addr: u64, bytes: &mut [u8]) {
    let end = addr.saturating_add(bytes.len() as u64);
    for known in within(addr, end) {
        for (at, byte) in (known.pc..).zip(REQUEST) {
            let place = at.checked_sub(addr).and_then(|n| bytes.get_mut(n as usize));
            if let Some(place) = place {
                *place = byte;
            }
        }
    }
}
