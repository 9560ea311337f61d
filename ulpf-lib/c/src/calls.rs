//! System calls on guarded memory: interposed functions of the C library that read and write.
//!
//! The kernel cannot touch guarded memory at its own address. An alias cannot be lent to a call that may block, because a
//! change of the watches may remove it. So such a call gets a buffer of ours, and the bytes are copied while nothing
//! changes:
//!
//! ```text
//! read(fd, guarded, n) ─▶ read(fd, buffer, n) ─▶ enter ─▶ old values ─▶ copy to the alias ─▶ hits ─▶ leave
//! ```
//! All other calls are made unchanged. Each is a cancellation point, as in POSIX.

use core::ffi::c_int;

use linux_raw_sys::general as k;
use ulpf_engine::access::AccessList;
use ulpf_lib::library_abi::AccessRecord;
use ulpf_lib::place;
use ulpf_lib::sys::{self, Errno, syscall6};
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr};

use crate::callbacks::after_access;
use crate::change;
use crate::exception_stacks::OwnBlock;
use crate::hits::Pending;
use crate::mask;
use crate::memory::{self, copy_by_kernel};
use crate::shared::{S, Unchanging};
use crate::signals;
use crate::stub_link;
use crate::stub_report;
use crate::thread;

/// Maximum bytes that the kernel moves in one call.
const MOST: u64 = 0x7fff_f000;

/// A call, and the C library's function that makes it.
#[derive(Clone, Copy)]
pub struct Caller {
    pub nr: u32,
    pub pc: u64,
    pub args: [u64; 6],
}

/// One buffer of the program.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Piece {
    pub addr: u64,
    pub len: u64,
}

/// The pages of a piece, each as (address, length) of what lies in it.
fn by_page(piece: Piece, limit: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = piece.addr.saturating_add(piece.len.min(limit));
    let mut at = piece.addr;
    core::iter::from_fn(move || {
        let n = (PAGE_SIZE - at % PAGE_SIZE).min(end.checked_sub(at)?);
        let here = at;
        at += n;
        (n > 0).then_some((here, n))
    })
}

/// The first address at which the kernel would get EFAULT because of a guard.
pub fn first_guarded(piece: Piece, kind: AccessKind) -> Option<u64> {
    by_page(piece, MOST)
        .find(|(at, _)| S.table.pages.entry(TargetAddr(*at)).guards(kind))
        .map(|(at, _)| at)
}

/// Copies between the program's memory and ours, with the program's rights; returns the number of bytes.
fn carry(_: &Unchanging, pieces: &[Piece], ours: u64, total: u64, kind: AccessKind) -> u64 {
    let mut done = 0;
    for piece in pieces {
        for (at, n) in by_page(*piece, total - done) {
            let entry = S.table.pages.entry(TargetAddr(at));
            if entry.moved() && !entry.permits(kind) {
                return done;
            }
            let theirs = entry.alias(TargetAddr(at)).map_or(at, |a| a.0);
            let (to, from) = if kind.writes() {
                (theirs, ours + done)
            } else {
                (ours + done, theirs)
            };
            let copied = match entry.moved() {
                true => {
                    // SAFETY: the alias of a page that the program may access so; nothing changes.
                    unsafe {
                        core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, n as usize)
                    };
                    n
                }
                // SAFETY: the kernel checks the program's side; the other one is a buffer of `total` bytes.
                false => unsafe { copy_by_kernel(to, from, n) },
            };
            done += copied;
            if copied < n {
                return done;
            }
        }
    }
    done
}

/// Saves the first `total` bytes of these pieces.
fn keep(still: &Unchanging, pieces: &[Piece], to: u64, total: u64) -> bool {
    let mut done = 0;
    pieces.iter().all(|piece| {
        let len = piece.len.min(total - done);
        // SAFETY: behind the buffer there is room for the same number.
        let kept = unsafe { memory::save(still, to + done, piece.addr, len) };
        done += len;
        kept
    })
}

/// Reports the pieces to a stub, a few at a time.
fn report_to_stub(
    own: OwnBlock,
    who: Caller,
    pieces: &[Piece],
    kind: AccessKind,
    old: u64,
    total: i64,
) {
    let mut done = 0;
    for group in pieces.chunks(32) {
        let mut made = [AccessRecord::default(); 32];
        let before = done;
        for (to, piece) in made.iter_mut().zip(group) {
            let len = piece.len.min(total as u64 - done);
            *to = AccessRecord {
                addr: piece.addr,
                len,
                kind: kind as u64,
            };
            done += len;
        }
        if done > before {
            let old = if old == 0 { 0 } else { old + before };
            let made = made.get(..group.len()).unwrap_or(&[]);
            stub_report::system_call(own, (who.nr, who.pc, who.args), made, old, total);
        }
    }
}

/// Runs `f` on the thread's exception stack, while nothing changes; then reports the hits.
fn apart(own: OwnBlock, who: Caller, mut f: impl FnMut(&Unchanging, &mut Pending)) {
    let mask = mask::block_asynchronous();
    if !own.contains(thread::stack()) {
        own.install();
        own.outermost();
    }
    change::aside(own, || {
        let mut pending = Pending::new(who.pc);
        pending.syscall = who.nr as i32;
        let still = change::enter(own);
        f(&still, &mut pending);
        change::leave(own, still);
        after_access(own, mask, core::ptr::null(), &pending);
    });
    mask::set(mask);
}

/// The hits of `done` bytes that the kernel has moved between these and somewhere else.
fn collect(
    still: &Unchanging,
    pending: &mut Pending,
    pieces: &[Piece],
    done: u64,
    kind: AccessKind,
) {
    let mut left = done;
    for piece in pieces {
        let len = piece.len.min(left);
        if len == 0 {
            break;
        }
        let mut list = AccessList::new();
        list.push(piece.addr, len, kind);
        pending.collect(still, &list);
        left -= len;
    }
}

/// Makes a call that moves bytes into (`Write`) or out of (`Read`) the program's buffers. `call` gets the buffer to use,
/// or `None` for the program's own.
pub fn through(
    who: Caller,
    pieces: &[Piece],
    kind: AccessKind,
    mut call: impl FnMut(Option<Piece>) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    let concerned = signals::installed()
        && pieces.iter().any(|p| first_guarded(*p, kind).is_some())
        && !S.is_changer();
    if !concerned {
        return call(None);
    }
    let Some(own) = OwnBlock::claim() else {
        return call(None);
    };
    let total = pieces
        .iter()
        .fold(0u64, |n, p| n.saturating_add(p.len))
        .min(MOST);
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE;
    // Behind it there is room for the bytes that the call overwrites.
    let room = 2 * total;
    // SAFETY: a fresh mapping.
    let buffer = unsafe {
        ulpf_lib::sys!(
            k::__NR_mmap,
            place::hint(room),
            room,
            k::PROT_READ | k::PROT_WRITE,
            flags,
            -1i64,
            0
        )
    }?;
    let mut ready = total;
    if !kind.writes() {
        apart(own, who, |still, _| {
            ready = carry(still, pieces, buffer, total, kind)
        });
    }
    let result = match ready {
        0 => Err(Errno(libc::EFAULT)),
        _ => call(Some(Piece {
            addr: buffer,
            len: ready,
        })),
    };
    let mut result = result;
    if let (Ok(n @ 1..), Some(own)) = (result, OwnBlock::claim()) {
        let n = n.min(ready);
        apart(own, who, |still, pending| {
            collect(still, pending, pieces, n, kind);
            let mut done = n;
            let kept =
                stub_link::present() && kind.writes() && keep(still, pieces, buffer + total, n);
            if kind.writes() {
                done = carry(still, pieces, buffer, n, kind);
                if done == 0 {
                    result = Err(Errno(libc::EFAULT));
                }
            }
            pending.made(still);
            if stub_link::present() {
                let old = if kept { buffer + total } else { 0 };
                let done = done.min(n) as i64;
                report_to_stub(own, who, pieces, kind, old, done);
            }
        });
    }
    // SAFETY: made above.
    let _ = unsafe { ulpf_lib::sys!(k::__NR_munmap, buffer, room) };
    result
}

/// A system call as a cancellation point.
///
/// # Safety
/// The arguments are those of the call.
pub unsafe fn cancellable(nr: u32, args: [u64; 6]) -> Result<u64, Errno> {
    unsafe extern "C-unwind" {
        fn pthread_setcanceltype(new: c_int, old: *mut c_int) -> c_int;
    }
    const ASYNCHRONOUS: c_int = 1;
    let mut before: c_int = 0;
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's promise; the type is as before when we return.
    unsafe {
        pthread_setcanceltype(ASYNCHRONOUS, &mut before);
        let result = sys::check(syscall6(nr as u64, a, b, c, d, e, f));
        pthread_setcanceltype(before, core::ptr::null_mut());
        result
    }
}
