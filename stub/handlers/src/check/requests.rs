//! Client requests, by which a program describes its memory to a tool. Valgrind defined them: the same 19 bytes
//! everywhere, which have no effect when the program runs without the tool.
//!
//! ```text
//!     rol $3,%rdi; rol $13,%rdi; rol $61,%rdi; rol $51,%rdi; xchg %rbx,%rbx   rax: request and arguments; rdx: the result
//!     jmp *0(%rip); .quad thunk n; …      from now on
//!     thunk n: gs:[hit] = KNOWN[n]; jmp gs:[entry] ─▶ ulpf_direct ─▶ called() ─▶ client.rs
//! ```
//! A thunk changes flags and the stack below the red zone; a request preserves neither. A thread that is interrupted in
//! a thunk is put back to its request ([`leave`]). Thunks and their records are in memory of ours that does not grow:
//! it has room for [`MOST`].

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::AccessKind;
use ulpf_lib::ring::Area;
use ulpf_stub_tables::edit::Edit;
pub use ulpf_stub_tables::edit::REQUEST_JUMP as JUMP;
use ulpf_stub_tables::patches::Known;

use super::twin::Twin;
use crate::global::tables;
use crate::runtime::frame::UContext;

/// The instructions of a request.
pub const REQUEST: [u8; 19] = [
    0x48, 0xc1, 0xc7, 0x03, 0x48, 0xc1, 0xc7, 0x0d, 0x48, 0xc1, 0xc7, 0x3d, 0x48, 0xc1, 0xc7, 0x33,
    0x48, 0x87, 0xdb,
];
/// The beginning of the jump that the first bytes of a request become.
const JUMPS: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
/// Bits by which its instructions have rotated rdi, by where they end. A whole request rotates by 128.
const ROTATED: [(u64, u32); 4] = [(4, 3), (8, 16), (12, 77), (16, 128)];

/// Limit of requests in all files together.
pub const MOST: usize = 8192;
const THUNK: usize = 128;
/// Bytes of the thunks, and of their records.
pub const CODE: u64 = (MOST * THUNK) as u64;
pub const TABLE: u64 = 4096 + (MOST * size_of::<Known>()) as u64;

/// [`Known::call`] of a request.
const CALL: u8 = 255;

/// Address of the thunks, or 0 before [`begin`]. The page behind them has the flag that turns requests off.
static CODE_AT: AtomicU64 = AtomicU64::new(0);
static TABLE_AT: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Page with functions of ours that make requests for the program: see `control/annotations.rs` of the stub's task.
pub static FUNCTIONS: AtomicU64 = AtomicU64::new(0);

pub fn is_request(known: &Known) -> bool {
    known.call == CALL
}

/// True for a request, also if it has become our jump.
pub fn is_at(code: &[u8]) -> bool {
    code.get(JUMP..) == REQUEST.get(JUMP..)
        && (code.starts_with(&JUMPS) || code.get(..JUMP) == REQUEST.get(..JUMP))
}

// ---- by the stub's task, with the world stopped -------------------------------------------------

/// Sets the memory: `code` has [`CODE`] bytes, `table` has [`TABLE`] zeroed bytes.
pub fn begin(code: u64, table: u64) {
    TABLE_AT.store(table, Relaxed);
    CODE_AT.store(code, Relaxed);
}

pub fn has_begun() -> bool {
    CODE_AT.load(Relaxed) != 0
}

/// Takes over the parent's request functions in a forked child.
pub fn adopt(twin: Twin) {
    twin.take(&FUNCTIONS);
}

/// Adds a request at `at`. Returns its number, the address of its thunk, and the thunk; `None` if there are too many.
pub fn add(at: u64) -> Option<(usize, u64, [u8; THUNK])> {
    let n = (0..count()).find(|n| known(*n).is_some_and(|k| k.pc == at || k.pc == 0));
    let n = n.unwrap_or(count());
    if n >= MOST || !has_begun() {
        return None;
    }
    let (after, thunk) = (
        at + REQUEST.len() as u64,
        CODE_AT.load(Relaxed) + (n * THUNK) as u64,
    );
    // SAFETY: within the table; the entry is unused while the world is stopped.
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
            insn: None,
            idle_count: 0,
            operand: None,
        });
    }
    COUNT.fetch_max(n as u64 + 1, Relaxed);
    Some((n, thunk, code(thunk, after, record(n) as u64)?))
}

/// Removes request `n`, which is nowhere any more.
pub fn remove(n: usize) {
    if known(n).is_some() {
        // SAFETY: as in `add`.
        unsafe { (*record(n)).pc = 0 };
    }
}

/// The jump to thunk `n`.
pub fn jump(n: usize) -> [u8; JUMP] {
    let mut jump = [0; JUMP];
    let (head, to) = jump.split_at_mut(JUMPS.len());
    head.copy_from_slice(&JUMPS);
    let thunk = CODE_AT.load(Relaxed) + (n * THUNK) as u64;
    to.copy_from_slice(&thunk.to_le_bytes());
    jump
}

/// A thread is inside a request that becomes a jump: it continues at the beginning. Returns the bits by which rdi is
/// rotated there.
pub fn begun(inside: u64) -> Option<u32> {
    let turned = ROTATED.iter().find(|(end, _)| *end == inside)?;
    Some(turned.1 % 64)
}

/// Offsets in a thunk.
const ASLEEP: usize = 44;
const KNOWN_AT: usize = 112;
const AFTER_AT: usize = 120;
/// Offsets in a thunk where the stack pointer is lower, and by how much.
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

/// Turns requests off, in a forked child or after a detach.
pub fn fall_asleep() {
    let code = CODE_AT.load(Relaxed);
    if code != 0 {
        // SAFETY: the page behind the thunks.
        unsafe { ((code + CODE) as *mut u8).write_volatile(1) };
    }
}

// ---- queries of handlers -------------------------------------------------------------------------

fn count() -> usize {
    COUNT.load(Relaxed) as usize
}

fn record(n: usize) -> *mut Known {
    (TABLE_AT.load(Relaxed) + (n * size_of::<Known>()) as u64) as *mut Known
}

pub fn known(n: usize) -> Option<&'static Known> {
    // SAFETY: within the table, written with the world stopped.
    (n < count()).then(|| unsafe { &*record(n) })
}

/// The request at `at`.
pub fn at(at: u64) -> Option<&'static Known> {
    tables().edits.requests.at(at).and_then(|r| known(r.number))
}

/// The request whose jump contains `addr` behind its first byte.
pub fn around(addr: u64) -> Option<&'static Known> {
    let request = tables().edits.requests.before(addr)?;
    (addr < request.end()).then(|| known(request.number))?
}

/// The request of the thunk that contains `rip`, and the offset in the thunk.
fn thunk(rip: u64) -> Option<(&'static Known, u64)> {
    let code = CODE_AT.load(Relaxed);
    let inside = rip.wrapping_sub(code);
    if code == 0 || inside >= CODE {
        return None;
    }
    let known = known(inside as usize / THUNK).filter(|k| k.pc != 0)?;
    Some((known, inside % THUNK as u64))
}

/// The request whose jump a thread has just executed in a step.
pub fn stepped(rip: u64) -> Option<&'static Known> {
    thunk(rip).filter(|(_, byte)| *byte == 0).map(|(k, _)| k)
}

/// Puts a thread that is interrupted in a thunk back to its request.
pub fn leave(uc: &mut UContext) -> bool {
    let Some((known, byte)) = thunk(uc.gprs.rip) else {
        return false;
    };
    let lower = LOWER.iter().find(|(at, _)| *at == byte).map_or(0, |l| l.1);
    uc.gprs.rsp += lower;
    uc.gprs.rip = known.pc;
    true
}
