//! Robust futexes (set_robust_list(2)). At a thread's end the kernel marks each lock that it holds, so that the next
//! thread that takes it gets EOWNERDEAD. On a guarded page the kernel cannot: it gives up there silently. So we do its
//! work (exit_robust_list in kernel/futex/core.c). For a thread that exits, that happens on the thread itself. For a
//! process that ends or executes another program, in whatever way, the stub's task does it, which still has the memory.

use core::sync::atomic::{AtomicU32, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::{PAGE_SIZE, sys};

use super::memory;
use super::thread::Current;
use crate::global::g;
use crate::syscalls::scratch::writable;

/// struct robust_list_head: the first lock, the distance from there to its word, and the lock that is being taken.
type Head = [u64; 3];
/// Limit of locks, as in the kernel.
const LIMIT: u32 = 2048;
const WAITERS: u32 = 1 << 31;
const OWNER_DIED: u32 = 1 << 30;
const TID: u32 = OWNER_DIED - 1;

type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> usize;

fn word(read: Read, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read(at, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
}

/// Called when the thread is about to end.
pub fn exit(t: Current) {
    if t.robust.load(Relaxed) == 0 || !g().guarded() {
        return;
    }
    let list = t.robust.load(Relaxed);
    // SAFETY: the kernel need not walk the list again.
    let _ = unsafe { sys!(k::__NR_set_robust_list, 0, size_of::<Head>()) };
    walk(list, t.tid() as u32, &|at, to| memory::read(at, to));
}

/// Called when the program has ended; its memory is ours now. Only memory that it shares with other processes matters.
pub fn exit_all(read: Read) {
    if !g().guarded() {
        return;
    }
    for t in g().threads.every() {
        let list = t.robust.load(Relaxed);
        if list != 0 {
            walk(list, t.tid() as u32, read);
        }
    }
}

fn walk(list: u64, tid: u32, read: Read) {
    let head = (
        word(read, list),
        word(read, list + 8),
        word(read, list + 16),
    );
    let (Some(first), Some(offset), Some(pending)) = head else {
        return;
    };
    let mut entry = first;
    for _ in 0..LIMIT {
        let at = entry & !1;
        if at == list {
            break;
        }
        // Read before the lock is released: its next owner may free its memory.
        let next = word(read, at);
        if at != pending & !1 {
            died(at.wrapping_add(offset), tid, entry & 1 != 0, false, read);
        }
        let Some(next) = next else { break };
        entry = next;
    }
    if pending & !1 != 0 {
        died(
            (pending & !1).wrapping_add(offset),
            tid,
            pending & 1 != 0,
            true,
            read,
        );
    }
}

/// The owner of a lock has died (handle_futex_death).
fn died(at: u64, tid: u32, pi: bool, pending: bool, read: Read) {
    let mut bytes = [0; 4];
    if !at.is_multiple_of(4) || read(at, &mut bytes) != 4 {
        return;
    }
    let alias = g().alias_of(at);
    if alias.is_none() && !writable(at & !(PAGE_SIZE - 1)) {
        return;
    }
    let place = alias.map_or(at, |a| a.0);
    // SAFETY: mapped and writable, as was just checked.
    let word = unsafe { &*(place as *const AtomicU32) };
    let wake = || {
        // SAFETY: wakes one waiter for the word, in whatever process.
        let _ = unsafe { sys!(k::__NR_futex, place, k::FUTEX_WAKE, 1) };
    };
    let mut value = word.load(SeqCst);
    if pending && !pi && value == 0 {
        return wake();
    }
    while value & TID == tid {
        let marked = value & WAITERS | OWNER_DIED;
        match word.compare_exchange(value, marked, SeqCst, SeqCst) {
            Ok(_) => {
                if !pi && value & WAITERS != 0 {
                    wake();
                }
                return;
            }
            Err(now) => value = now,
        }
    }
}
