//! Structures with pointers: iovec, msghdr, mmsghdr, futex_waitv. The kernel gets a copy whose pointers lead around the
//! guards.

use linux_raw_sys::general as k;
use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::Dir;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr};

use super::call::Args;
use super::list::{List, word};
use super::scratch::Scratch;
use crate::global::g;
use crate::runtime::memory;
use crate::runtime::thread::Call;

pub const IOV_MAX: u64 = 1024;
const MESSAGES: u64 = 1024;
/// Buffers up to this size are copied when they are not in one piece; larger ones become vectors.
const SPLIT: u64 = 64 << 10;
const MSG: u64 = size_of::<MsgHdr>() as u64;
const MMSG: u64 = 64;
const WAITER: u64 = 24;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IoVec {
    pub base: u64,
    pub len: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MsgHdr {
    pub name: u64,
    pub namelen: u32,
    pad: u32,
    pub iov: u64,
    pub iovlen: u64,
    pub control: u64,
    pub controllen: u64,
    flags: u64,
}

impl MsgHdr {
    /// A header that sends vectors to an address.
    pub const fn of_vectors(name: (u64, u64), iov: u64, iovlen: u64) -> MsgHdr {
        MsgHdr {
            name: name.0,
            namelen: name.1 as u32,
            pad: 0,
            iov,
            iovlen,
            control: 0,
            controllen: 0,
            flags: 0,
        }
    }

    /// Writes its pointers, and the number of vectors, to a header of the program.
    pub fn put_pointers(&self, to: u64) {
        memory::put(to, &self.name);
        memory::put(to + 16, &self.iov);
        memory::put(to + 24, &self.iovlen);
        memory::put(to + 32, &self.control);
    }
}

fn access(dir: Dir) -> AccessKind {
    match dir {
        Dir::IovIn | Dir::MsgIn | Dir::MMsgIn => AccessKind::Read,
        _ => AccessKind::Write,
    }
}

/// An array of `count` vectors whose parts in moved memory are replaced by the alias, cut at the borders of that
/// memory; and the new number of vectors.
fn redirected(at: u64, count: u64, kind: AccessKind, s: &mut Scratch) -> Option<(u64, u64)> {
    if count == 0 || count > IOV_MAX {
        return None; // nothing, or an error that the kernel reports
    }
    let get = |i: u64| memory::get::<IoVec>(at.wrapping_add(i * 16));
    let mut total = 0;
    for i in 0..count {
        total += pieces(get(i)?, kind, None);
    }
    let to = s.allocate(total.min(IOV_MAX) * 16)? as *mut IoVec;
    let mut n = 0;
    for i in 0..count {
        let v = get(i)?;
        let spare = IOV_MAX - n - (count - i - 1);
        let mut add = |v: IoVec| {
            // SAFETY: n < IOV_MAX, see `spare`.
            unsafe { to.add(n as usize).write(v) };
            n += 1;
        };
        if pieces(v, kind, None) <= spare {
            pieces(v, kind, Some(&mut add));
        } else {
            let base = s.place(v.base, v.len, kind, false);
            add(IoVec { base, len: v.len });
        }
    }
    Some((to as u64, n))
}

/// As [`cut`] if a guard is in the way; otherwise the vector is unchanged.
fn pieces(v: IoVec, kind: AccessKind, mut f: Option<&mut dyn FnMut(IoVec)>) -> u64 {
    let mut one = |v: IoVec| {
        if let Some(f) = &mut f {
            f(v)
        }
    };
    let end = v.base.saturating_add(v.len);
    if g().touches(v.base, end) && !g().guards().in_the_way(TargetAddr(v.base), end, kind) {
        one(v);
        return 1;
    }
    cut(v, kind, &mut one)
}

/// Cuts a buffer at the borders of moved memory, which is accessed by the alias even if it has no guard now. Returns
/// the number of parts.
pub fn cut(v: IoVec, kind: AccessKind, f: &mut dyn FnMut(IoVec)) -> u64 {
    let whole = v.base.checked_add(v.len);
    let Some(end) = whole.filter(|&end| v.len != 0 && g().touches(v.base, end)) else {
        f(v);
        return 1;
    };
    let map = &g().page_map;
    let place = |at: u64| {
        let entry = map.entry(TargetAddr(at));
        // Memory that the program may not access keeps its own address, and the kernel refuses it.
        match entry.alias(TargetAddr(at)).filter(|_| entry.permits(kind)) {
            Some(alias) => alias.0,
            None => at,
        }
    };
    let (mut n, mut start, mut at) = (0, v.base, v.base);
    let mut begin = place(start);
    while at < end {
        at = if map.entry(TargetAddr(at)).moved() {
            (at + 1).next_multiple_of(PAGE_SIZE).min(end)
        } else {
            g().guards().next_moved(at, end)
        };
        if at == end || place(at) != begin + (at - start) {
            let len = at - start;
            f(IoVec { base: begin, len });
            n += 1;
            start = at;
            begin = place(at);
        }
    }
    n
}

/// Redirects the second and third argument of readv and the like. The count changes with the array.
pub fn redirect(at: u64, count: u64, dir: Dir, s: &mut Scratch) -> Option<u64> {
    let (to, n) = redirected(at, count, access(dir), s)?;
    s.vector_count = Some(n);
    Some(to)
}

/// process_vm_readv and process_vm_writev on the program itself: the other side is guarded, too.
pub fn remote(nr: u64, a: &Args, to: &mut Args, s: &mut Scratch) {
    let kind = match nr as u32 {
        k::__NR_process_vm_readv => AccessKind::Read,
        k::__NR_process_vm_writev => AccessKind::Write,
        _ => return,
    };
    if a[0] == g().pid.load(core::sync::atomic::Ordering::Relaxed) as u64
        && let Some((vectors, n)) = redirected(a[3], a[4], kind, s)
    {
        (to[3], to[4]) = (vectors, n);
    }
}

/// Reads or writes a large buffer of which only a part has moved as a vector instead.
pub fn split_large(nr: u64, a: &Args, to: &mut Args, s: &mut Scratch) -> bool {
    let Some((row, vector)) = syscalls::row(nr).and_then(|row| Some((row, row.vectored?))) else {
        return false;
    };
    let kind = match row.buffers {
        [data] if data.dir == Dir::InRet => AccessKind::Read,
        _ => AccessKind::Write,
    };
    let v = IoVec {
        base: a[1],
        len: a[2],
    };
    if v.len <= SPLIT || !(2..=IOV_MAX).contains(&pieces(v, kind, None)) {
        return false;
    }
    let Some(room) = s.allocate(IOV_MAX * 16) else {
        return false;
    };
    let mut n = 0;
    pieces(
        v,
        kind,
        Some(&mut |part| {
            // SAFETY: at most IOV_MAX parts, counted above.
            unsafe { (room as *mut IoVec).add(n as usize).write(part) };
            n += 1;
        }),
    );
    s.instead = Some(vector as u64);
    (to[1], to[2]) = (room, n);
    to[4] = 0; // the upper half of the position, which has no bits here
    true
}

fn each(at: u64, len: u64, dir: Dir) -> impl Iterator<Item = u64> {
    let (size, count) = match dir {
        Dir::MMsgIn | Dir::MMsgOut => (MMSG, (len / MMSG).min(MESSAGES)),
        _ => (MSG, 1),
    };
    (0..count).map(move |i| at.wrapping_add(i * size))
}

/// Copies one msghdr, or an array of mmsghdr.
pub fn messages(at: u64, len: u64, dir: Dir, s: &mut Scratch) -> Option<u64> {
    let count = each(at, len, dir).count() as u64;
    let size = if count == 1 && matches!(dir, Dir::MsgIn | Dir::MsgOut) {
        MSG
    } else {
        MMSG
    };
    let to = s.copy(at, count * size)?;
    for copy in each(to, len, dir) {
        // SAFETY: within the copy just made.
        let m = unsafe { &mut *(copy as *mut MsgHdr) };
        let kind = access(dir);
        if let Some((iov, n)) = redirected(m.iov, m.iovlen, kind, s) {
            (m.iov, m.iovlen) = (iov, n);
        }
        let all = kind.writes();
        m.name = s.place(m.name, m.namelen as u64, kind, all);
        m.control = s.place(m.control, m.controllen, kind, all);
    }
    s.messages = (at, to);
    Some(to)
}

/// Copies the kernel's results from our copies of messages to the program's.
pub fn give_back(list: &List, call: &Call, s: &Scratch) {
    let (at, copy) = s.messages;
    if at == 0 || call.result < 0 {
        return;
    }
    for b in list.iter() {
        let done = match b.dir {
            Dir::MMsgIn | Dir::MMsgOut => call.result as u64 * MMSG,
            Dir::MsgOut => MSG,
            _ => continue,
        };
        for (to, from) in each(at, done, b.dir).zip(each(copy, done, b.dir)) {
            // SAFETY: our copy.
            let m = unsafe { &*(from as *const MsgHdr) };
            if b.dir != Dir::MMsgIn {
                memory::put(to + 8, &m.namelen);
                memory::put(to + 40, &m.controllen);
                memory::put(to + 48, &(m.flags as u32));
            }
            if b.dir != Dir::MsgOut {
                // SAFETY: msg_len behind the header.
                memory::put(to + MSG, unsafe { &*((from + MSG) as *const u32) });
            }
        }
    }
}

/// The buffers behind an array of vectors; `done` is the number of bytes transferred.
pub fn spans(
    at: u64,
    count: u64,
    done: Option<u64>,
    kind: AccessKind,
    f: &mut dyn FnMut(u64, u64, AccessKind),
) {
    let mut left = done.unwrap_or(u64::MAX);
    let count = count.min(IOV_MAX);
    f(at, count * 16, AccessKind::Read);
    for i in 0..count {
        let Some(v) = memory::get::<IoVec>(at.wrapping_add(i * 16)) else {
            return;
        };
        let n = v.len.min(left);
        if n > 0 {
            f(v.base, n, kind);
        }
        left -= n;
    }
}

pub fn message_spans(
    at: u64,
    len: u64,
    dir: Dir,
    done: Option<u64>,
    f: &mut dyn FnMut(u64, u64, AccessKind),
) {
    let kind = access(dir);
    let many = matches!(dir, Dir::MMsgIn | Dir::MMsgOut);
    let count = if many { done.unwrap_or(u64::MAX) } else { 1 };
    for h in each(at, len, dir).take(count as usize) {
        let Some(m) = memory::get::<MsgHdr>(h) else {
            return;
        };
        let moved = match (many, done) {
            (true, Some(_)) => memory::get::<u32>(h + MSG).map(u64::from),
            (_, done) => done,
        };
        if kind.writes() {
            f(h + 8, 4, AccessKind::ReadWrite);
            f(h + 40, 12, AccessKind::ReadWrite);
        } else {
            f(h, MSG, AccessKind::Read);
        }
        if many {
            f(h + MSG, 4, AccessKind::Write);
        }
        if m.name != 0 {
            f(m.name, (m.namelen as u64).min(128), kind);
        }
        if m.control != 0 {
            f(m.control, m.controllen, kind);
        }
        spans(m.iov, m.iovlen, moved, kind, f);
    }
}

/// futex_waitv: value, address, flags. Words are redirected as by `word`.
pub fn waiters(at: u64, len: u64, s: &mut Scratch) -> Option<u64> {
    let count = (len / WAITER).min(128);
    let to = s.copy(at, count * WAITER)?;
    for i in 0..count {
        // SAFETY: within the copy.
        let at = unsafe { &mut *((to + i * WAITER + 8) as *mut u64) };
        *at = word(*at);
    }
    Some(to)
}

pub fn waiter_spans(at: u64, len: u64, f: &mut dyn FnMut(u64, u64, AccessKind)) {
    f(at, len.min(128 * WAITER), AccessKind::Read);
    for i in 0..(len / WAITER).min(128) {
        if let Some(word) = memory::get::<u64>(at + i * WAITER + 8) {
            f(word, 4, AccessKind::Read);
        }
    }
}
