//! Buffers of system calls that lie in guarded memory: redirected to the alias before the call, and
//! looked at for hits after it (the kernel's own accesses raise no fault once they go through the
//! alias, so the call's table entry tells what was touched).

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::{AccessKind, TargetAddr};

use super::Args;
use super::table::{self, Dir, Len};
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::{Call, SCRATCH, Thread};
use crate::{fault, g};

const PATH_MAX: usize = 4096;
const IOV_MAX: u64 = 1024;
/// Old values of watched output buffers, kept in the thread's scratch area.
const OLD_ROOM: usize = 8 << 10;

#[repr(C)]
#[derive(Clone, Copy)]
struct IoVec {
    base: u64,
    len: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MsgHdr {
    name: u64,
    namelen: u64,
    iov: u64,
    iovlen: u64,
    control: u64,
    controllen: u64,
    flags: u64,
}

/// Room for redirected vectors and old values; lives for one call.
pub struct Scratch {
    iov: *mut IoVec,
    msg: MsgHdr,
    old: *mut u8,
    old_used: usize,
    /// Output buffers that overlap a watch: address, length, offset of the old bytes in `old`
    /// (`usize::MAX`: no room).
    watched: [(u64, u64, usize); 8],
    watched_len: usize,
    /// Buffers that the kernel gets a copy of: address, copy, length.
    bounced: [(u64, u64, u64); 8],
    bounced_len: usize,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (_, copy, len) in self.bounced.iter().take(self.bounced_len) {
            // SAFETY: our own mapping.
            let _ = unsafe { sys!(k::__NR_munmap, *copy, *len) };
        }
    }
}

impl Scratch {
    /// A copy of a buffer that is not in one piece; `None` when it is not readable (then the kernel
    /// gets the original and says so) or too many are needed.
    fn bounce(&mut self, addr: u64, len: u64) -> Option<u64> {
        let slot = self.bounced.get_mut(self.bounced_len)?;
        let copy = crate::arena::map_anonymous(len as usize);
        if copy.is_null() {
            return None;
        }
        // SAFETY: `len` bytes just mapped.
        let bytes = unsafe { core::slice::from_raw_parts_mut(copy, len as usize) };
        *slot = (addr, copy as u64, len);
        self.bounced_len += 1;
        (memory::read(addr, bytes) == bytes.len()).then_some(copy as u64)
    }

    /// The kernel has written `[addr, addr + len)`: what went into a copy goes where it belongs.
    fn written(&self, addr: u64, len: u64) {
        for (from, copy, size) in self.bounced.iter().take(self.bounced_len) {
            if addr >= *from && addr + len <= from + size {
                // SAFETY: within the copy.
                let bytes = unsafe {
                    core::slice::from_raw_parts((copy + (addr - from)) as *const u8, len as usize)
                };
                memory::write(addr, bytes);
            }
        }
    }

    pub fn new(t: &Thread) -> Scratch {
        let base = t.scratch();
        Scratch {
            iov: base as *mut IoVec,
            msg: MsgHdr {
                name: 0,
                namelen: 0,
                iov: 0,
                iovlen: 0,
                control: 0,
                controllen: 0,
                flags: 0,
            },
            old: base.wrapping_add(SCRATCH - OLD_ROOM),
            old_used: 0,
            watched: [(0, 0, 0); 8],
            watched_len: 0,
            bounced: [(0, 0, 0); 8],
            bounced_len: 0,
        }
    }
    /// How many vectors fit before the old values.
    const VECTORS: u64 = ((SCRATCH - OLD_ROOM) / size_of::<IoVec>()) as u64;
}

fn length(a: &Args, len: Len) -> Option<u64> {
    let arg = |n: u8| a.get(n as usize).copied().unwrap_or(0);
    Some(match len {
        Len::Fixed(n) => n as u64,
        Len::Arg(n) => arg(n),
        Len::ArgTimes(n, size) => arg(n).checked_mul(size as u64)?,
        Len::FdSet(n) => (arg(n) as u32 as u64).div_ceil(64) * 8,
        Len::Deref(n) => memory::get::<u32>(arg(n)).unwrap_or(0) as u64,
        Len::Str => return None,
    })
}

/// The alias of the whole buffer, if all of it has moved. The program's own protection still counts:
/// what it may not touch the kernel gets by its primary address, and refuses.
fn contiguous(addr: u64, len: u64) -> Option<ulpf_lib::AliasAddr> {
    let map = &g().page_map;
    map.open(TargetAddr(addr), len, true)
        .or_else(|| map.open(TargetAddr(addr), len, false))
}

/// Where the kernel may touch `[addr, addr + len)` in the program's stead: there, in the alias, or, for
/// a buffer of which only a part has moved, in a copy.
fn place(addr: u64, len: u64, s: &mut Scratch) -> u64 {
    if addr == 0 || len == 0 {
        return addr;
    }
    let Some(end) = addr.checked_add(len) else {
        return addr;
    };
    if !g().touches(addr, end) {
        return addr;
    }
    if let Some(alias) = contiguous(addr, len) {
        return alias.0;
    }
    s.bounce(addr, len).unwrap_or(addr)
}

fn vectors(at: u64, count: u64, s: &mut Scratch) -> Option<u64> {
    if count == 0 || count > IOV_MAX.min(Scratch::VECTORS) {
        return None;
    }
    for n in 0..count {
        let mut v = memory::get::<IoVec>(at.wrapping_add(n * 16))?;
        v.base = place(v.base, v.len, s);
        // SAFETY: n < VECTORS.
        unsafe { s.iov.add(n as usize).write(v) };
    }
    Some(s.iov as u64)
}

/// Rewrites pointer arguments that lead to guarded memory.
pub fn redirect(nr: u64, a: &mut Args, ours: u32, s: &mut Scratch) {
    if table::addresses_only(nr) {
        return;
    }
    if nr == k::__NR_futex as u64 {
        // Waiters and wakers must agree: both words move as soon as their pages have moved.
        for n in [0usize, 4] {
            if n == 0 || matches!(a[1] & 127, 3..=5 | 11 | 12) {
                a[n] = place(a[n], 4, s);
            }
        }
        if a[3] > 4095 && matches!(a[1] & 127, 0 | 6 | 9 | 11 | 13) {
            a[3] = place(a[3], 16, s);
        }
        return;
    }
    let Some(bufs) = table::buffers(nr) else {
        // Not listed: any argument that points into moved memory goes through the alias. Pages
        // next to guarded ones are moved, too, so a structure of up to a page stays in one piece.
        for (n, v) in a.iter_mut().enumerate() {
            if ours & (1 << n) == 0
                && *v > 4095
                && let Some(alias) = g().alias_of(*v)
            {
                *v = alias.0;
            }
        }
        return;
    };
    let original = *a;
    for b in bufs {
        let n = b.arg as usize;
        let Some(&addr) = original.get(n) else {
            continue;
        };
        if addr == 0 || ours & (1 << n) != 0 {
            continue;
        }
        let to = match (b.dir, b.len) {
            (Dir::IovIn | Dir::IovOut, len) => {
                let count = length(&original, len).unwrap_or(0);
                vectors(addr, count, s).unwrap_or(addr)
            }
            (Dir::MsgIn | Dir::MsgOut, _) => message(addr, s).unwrap_or(addr),
            (_, Len::Str) => match memory::strlen(addr, PATH_MAX) {
                Some(len) => place(addr, len as u64 + 1, s),
                None => addr,
            },
            (_, len) => place(addr, length(&original, len).unwrap_or(0), s),
        };
        if let Some(v) = a.get_mut(n) {
            *v = to;
        }
    }
}

fn message(at: u64, s: &mut Scratch) -> Option<u64> {
    let mut m = memory::get::<MsgHdr>(at)?;
    if m.iovlen > 0 {
        m.iov = vectors(m.iov, m.iovlen, s)?;
    }
    m.name = place(m.name, m.namelen & 0xffff_ffff, s);
    m.control = place(m.control, m.controllen, s);
    s.msg = m;
    Some(&raw const s.msg as u64)
}

fn keep_old(s: &mut Scratch, addr: u64, len: u64) {
    if addr == 0 || len == 0 || !g().watchlist().any_overlap(TargetAddr(addr), len) {
        return;
    }
    let n = len as usize;
    let mut at = usize::MAX;
    if s.old_used + n <= OLD_ROOM {
        // SAFETY: checked against the room.
        let to = unsafe { core::slice::from_raw_parts_mut(s.old.add(s.old_used), n) };
        if memory::read(addr, to) == n {
            at = s.old_used;
            s.old_used += n;
        }
    }
    if let Some(slot) = s.watched.get_mut(s.watched_len) {
        *slot = (addr, len, at);
        s.watched_len += 1;
    }
}

/// Saves the old contents of output buffers that overlap watches.
pub fn before(nr: u64, a: &Args, ours: u32, s: &mut Scratch) {
    for b in table::buffers(nr).unwrap_or(&[]) {
        let Some(&addr) = a.get(b.arg as usize) else {
            continue;
        };
        if ours & (1 << b.arg) != 0 {
            continue;
        }
        match b.dir {
            Dir::Out | Dir::OutRet | Dir::OutRetTimes(_) | Dir::InOut => {
                keep_old(s, addr, length(a, b.len).unwrap_or(0));
            }
            Dir::IovOut => {
                let count = length(a, b.len).unwrap_or(0).min(IOV_MAX);
                for n in 0..count {
                    if let Some(v) = memory::get::<IoVec>(addr.wrapping_add(n * 16)) {
                        keep_old(s, v.base, v.len);
                    }
                }
            }
            Dir::MsgOut => {
                if let Some(m) = memory::get::<MsgHdr>(addr) {
                    for n in 0..m.iovlen.min(IOV_MAX) {
                        if let Some(v) = memory::get::<IoVec>(m.iov.wrapping_add(n * 16)) {
                            keep_old(s, v.base, v.len);
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// Reports what the kernel wrote and read.
pub fn after(
    t: &'static Thread,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    result: i64,
    s: &mut Scratch,
) {
    if result < 0 {
        return;
    }
    let call = &Call {
        nr,
        args: *a,
        result,
    };
    let mut left = result as u64;
    for b in table::buffers(nr).unwrap_or(&[]) {
        let Some(&addr) = a.get(b.arg as usize) else {
            continue;
        };
        if addr == 0 {
            continue;
        }
        match b.dir {
            Dir::In => {
                let len = match b.len {
                    Len::Str => memory::strlen(addr, PATH_MAX).map_or(0, |n| n as u64 + 1),
                    l => length(a, l).unwrap_or(0),
                };
                hit(t, uc, call, addr, len, AccessKind::Read, s);
            }
            Dir::IovIn => {
                for n in 0..length(a, b.len).unwrap_or(0).min(IOV_MAX) {
                    if let Some(v) = memory::get::<IoVec>(addr.wrapping_add(n * 16)) {
                        hit(t, uc, call, v.base, v.len.min(left), AccessKind::Read, s);
                        left = left.saturating_sub(v.len);
                    }
                }
            }
            Dir::MsgIn => {
                if let Some(m) = memory::get::<MsgHdr>(addr) {
                    for n in 0..m.iovlen.min(IOV_MAX) {
                        if let Some(v) = memory::get::<IoVec>(m.iov.wrapping_add(n * 16)) {
                            hit(t, uc, call, v.base, v.len.min(left), AccessKind::Read, s);
                            left = left.saturating_sub(v.len);
                        }
                    }
                }
            }
            Dir::Out | Dir::InOut => {
                let kind = if b.dir == Dir::Out {
                    AccessKind::Write
                } else {
                    AccessKind::ReadWrite
                };
                hit(t, uc, call, addr, length(a, b.len).unwrap_or(0), kind, s);
            }
            Dir::OutRet => hit(t, uc, call, addr, result as u64, AccessKind::Write, s),
            Dir::OutRetTimes(n) => hit(
                t,
                uc,
                call,
                addr,
                result as u64 * n as u64,
                AccessKind::Write,
                s,
            ),
            Dir::IovOut | Dir::MsgOut => {
                let (iov, count) = if b.dir == Dir::IovOut {
                    (addr, length(a, b.len).unwrap_or(0))
                } else {
                    memory::get::<MsgHdr>(addr).map_or((0, 0), |m| (m.iov, m.iovlen))
                };
                for n in 0..count.min(IOV_MAX) {
                    if let Some(v) = memory::get::<IoVec>(iov.wrapping_add(n * 16)) {
                        hit(t, uc, call, v.base, v.len.min(left), AccessKind::Write, s);
                        left = left.saturating_sub(v.len);
                    }
                }
            }
        }
    }
}

fn hit(
    t: &'static Thread,
    uc: &mut UContext,
    call: &Call,
    addr: u64,
    len: u64,
    kind: AccessKind,
    s: &Scratch,
) {
    if kind.writes() {
        s.written(addr, len);
    }
    if len == 0 || !g().watchlist().any_overlap(TargetAddr(addr), len) {
        return;
    }
    let old = s
        .watched
        .iter()
        .take(s.watched_len)
        .find(|w| addr >= w.0 && addr + len <= w.0 + w.1 && w.2 != usize::MAX);
    // SAFETY: recorded by `keep_old`, within the scratch area.
    let old = old.map(|w| unsafe {
        core::slice::from_raw_parts(s.old.add(w.2 + (addr - w.0) as usize), len as usize)
    });
    fault::kernel_access(t, uc, call, TargetAddr(addr), len, kind, old);
}
