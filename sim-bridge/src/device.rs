// SPDX-License-Identifier: GPL-2.0-or-later
//! /dev/ulpf: the machine's part of kernel/include/uapi/ulpf.h. It has ULPF_QUERY, ULPF_HANDLER,
//! ULPF_APPLY and ULPF_BATCH with all operations but ULPF_OP_GUARD, and mappings: guarded, alias, PLI.
//! It has no exception stacks, events, guard ranges, or events for the kernel's own accesses, and its
//! feature bits claim none; these calls are ENOTTY, these operations EOPNOTSUPP.

use crate::machine::{State, Uc};
use crate::memory::{PAGE, Shared, USER_END};
use crate::os::{EBUSY, EFAULT, EINVAL, ENOENT, ENOMEM, ENOTTY, read_bytes, write_bytes};
use crate::tables::Leaf;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const QUERY: u64 = 0xc020_de20;
const HANDLER: u64 = 0x4018_de21;
const APPLY: u64 = 0x4020_de23;
const BATCH: u64 = 0xc020_de24;

const VERSION: u32 = 1;
const UNICORN: u32 = 2;
const READ: u64 = 1;
const ONCE: u64 = 1 << 4;
const BATCH_MAX: u32 = 65536;
const REPLACE: u32 = 1;
const HANDLER_ONCE: u32 = 2;

const STORE: u64 = 0x8000_0000_0000;
const ALIAS: u64 = 1 << 60;
const PLI: u64 = 2 << 60;
const PLI_PAGES: u64 = 65536;
const PREFIX: u64 = 1 << 21;

const EOPNOTSUPP: i64 = -95;
const EPROTONOSUPPORT: i64 = -93;
const E2BIG: i64 = -7;
const ENXIO: i64 = -6;

#[derive(Default)]
pub struct Device {
    pub opened: bool,
    /// Stores and PLI pages: sparse files of this process, mapped as often as the program likes.
    store: Option<OwnedFd>,
    pli: Option<OwnedFd>,
    /// PLI mappings: start and end.
    pli_maps: Vec<(u64, u64)>,
    handler: bool,
}

fn sparse(slot: &mut Option<OwnedFd>, size: u64) -> Result<i32, i64> {
    if slot.is_none() {
        // SAFETY: a new descriptor, that nobody else knows.
        let file = unsafe {
            let fd = libc::memfd_create(c"ulpf-sim".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 || libc::ftruncate(fd, size as i64) != 0 {
                return Err(ENOMEM);
            }
            OwnedFd::from_raw_fd(fd)
        };
        *slot = Some(file);
    }
    slot.as_ref().map(|f| f.as_raw_fd()).ok_or(ENOMEM)
}

pub fn mmap(
    uc: &mut Uc,
    s: &mut State,
    at: u64,
    len: u64,
    protection: u64,
    flags: i32,
    offset: u64,
) -> Result<i64, i64> {
    let (kind, x) = (offset >> 60, offset & (ALIAS - 1));
    if flags & libc::MAP_SHARED == 0 || kind > 3 {
        return Err(EINVAL);
    }
    if kind == 3 {
        return Err(ENXIO);
    }
    let pli = kind == PLI >> 60;
    let size = if pli { PLI_PAGES * PAGE } else { STORE };
    if x.checked_add(len).is_none_or(|end| end > size) {
        return Err(EINVAL);
    }
    let fd = sparse(
        if pli {
            &mut s.device.pli
        } else {
            &mut s.device.store
        },
        size,
    )?;
    // SAFETY: a new mapping of a file of ours; it stays until this process ends.
    let host = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            3,
            libc::MAP_SHARED,
            fd,
            x as i64,
        )
    };
    if host == libc::MAP_FAILED {
        return Err(ENOMEM);
    }
    let shared = Shared {
        guarded: offset < ALIAS,
    };
    // SAFETY: it is never unmapped here, so it outlives the machine.
    unsafe {
        s.space
            .map_host(uc, at, len, protection, host.cast(), shared)
    }
    .map_err(|_| ENOMEM)?;
    if pli {
        s.device.pli_maps.push((at, at + len));
    }
    Ok(at as i64)
}

/// A structure of the caller's that begins with its size, as `ours` bytes.
fn structure(uc: &Uc, s: &State, at: u64, ours: usize) -> Result<Vec<u8>, i64> {
    let size = word(&read_bytes(uc, s, at, 4)?, 0) as usize;
    if size < ours || size > PAGE as usize {
        return Err(if size < ours { EINVAL } else { E2BIG });
    }
    let mut bytes = read_bytes(uc, s, at, size as u64)?;
    if bytes[ours..].iter().any(|&b| b != 0) {
        return Err(E2BIG);
    }
    bytes.truncate(ours);
    Ok(bytes)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

pub fn ioctl(uc: &mut Uc, s: &mut State, request: u64, at: u64) -> i64 {
    match request {
        QUERY => query(uc, s, at),
        HANDLER => handler(uc, s, at),
        APPLY => read_bytes(uc, s, at, 32).and_then(|op| apply(uc, s, &op)),
        BATCH => batch(uc, s, at),
        _ => Err(ENOTTY),
    }
    .map_or_else(|e| e, |()| 0)
}

fn query(uc: &mut Uc, s: &mut State, at: u64) -> Result<(), i64> {
    let mut q = structure(uc, s, at, 32)?;
    if word(&q, 4) != 0 {
        return Err(EINVAL);
    }
    let asked = word(&q, 8);
    q[8..12].copy_from_slice(&VERSION.to_le_bytes());
    q[12..16].copy_from_slice(&UNICORN.to_le_bytes());
    q[16..24].copy_from_slice(&(READ | ONCE).to_le_bytes());
    q[24..28].copy_from_slice(&BATCH_MAX.to_le_bytes());
    q[28..32].fill(0);
    write_bytes(uc, s, at, &q)?;
    match asked {
        VERSION => Ok(()),
        _ => Err(EPROTONOSUPPORT),
    }
}

fn handler(uc: &mut Uc, s: &mut State, at: u64) -> Result<(), i64> {
    let h = structure(uc, s, at, 24)?;
    let (flags, entry, cookie) = (word(&h, 4), long(&h, 8), long(&h, 16));
    if flags & !(REPLACE | HANDLER_ONCE) != 0 {
        return Err(EINVAL);
    }
    match (entry, s.device.handler) {
        (0, false) => return Err(ENOENT),
        (0, true) => {}
        (_, true) if flags & REPLACE == 0 => return Err(EBUSY),
        _ if !s.space.is_mapped(entry, 1) => return Err(EFAULT),
        _ => {}
    }
    s.device.handler = entry != 0;
    s.mmu.cr18 = entry;
    s.cookie = cookie;
    s.mmu.write_once = flags & HANDLER_ONCE != 0;
    if s.mmu.cr16 == 0 {
        s.mmu.cr16 = s.mmu.tables.frame();
    }
    Ok(())
}

fn batch(uc: &mut Uc, s: &mut State, at: u64) -> Result<(), i64> {
    let b = structure(uc, s, at, 32)?;
    let (ops, count, size) = (long(&b, 8), word(&b, 16), word(&b, 20));
    if word(&b, 4) != 0 || word(&b, 28) != 0 || size != 32 {
        return Err(EINVAL);
    }
    if count > BATCH_MAX {
        return Err(E2BIG);
    }
    let mut done = 0u32;
    let result = (0..u64::from(count)).try_for_each(|n| {
        let op = read_bytes(uc, s, ops.wrapping_add(n * 32), 32)?;
        apply(uc, s, &op).map(|()| done += 1)
    });
    write_bytes(uc, s, at + 24, &done.to_le_bytes())?;
    result
}

fn apply(uc: &mut Uc, s: &mut State, op: &[u8]) -> Result<(), i64> {
    let (number, flags, addr, len, arg) = (
        word(op, 0),
        word(op, 4),
        long(op, 8),
        long(op, 16),
        long(op, 24),
    );
    if flags != 0 {
        return Err(EINVAL);
    }
    let whole = addr % PAGE == 0 && len % PAGE == 0 && len > 0 && addr.checked_add(len).is_some();
    match number {
        1 | 2 if !whole || (number == 1 && arg > 3) => Err(EINVAL),
        1 if arg == 2 => Err(EOPNOTSUPP),
        1 | 2 if !s.space.is_guarded(addr, len) => Err(ENOMEM),
        1 | 2 => {
            for page in (addr..addr + len).step_by(PAGE as usize) {
                match number {
                    1 => s.set_permission(uc, page, arg as u8),
                    _ => s.mmu.tlb.forget(page >> 12),
                }
            }
            Ok(())
        }
        3 => Err(EOPNOTSUPP),
        4 if len != PREFIX || addr % PREFIX != 0 => Err(EINVAL),
        4 => {
            let inside = |m: &(u64, u64)| arg >= m.0 && arg < m.1;
            match s.device.pli_maps.iter().any(inside) {
                false => Err(EFAULT),
                true => match bind(s, addr, arg) {
                    0 => Ok(()),
                    error => Err(error),
                },
            }
        }
        5 if len != PREFIX || addr % PREFIX != 0 || arg != 0 => Err(EINVAL),
        5 => match s.mmu.tables.leaf(s.mmu.cr16, addr) {
            Some(Leaf::User(_)) => {
                s.mmu.tables.unbind(s.mmu.cr16, addr);
                s.mmu.tlb.flush();
                Ok(())
            }
            _ => Err(ENOENT),
        },
        _ => Err(EINVAL),
    }
}

/// The thesis's `sys_set_ro`, and ULPF_OP_BIND: a region governs a prefix. The TLB is not told; the
/// device's callers bind before they set.
pub fn bind(s: &mut State, addr: u64, region: u64) -> i64 {
    if region % 128 != 0 || region % PAGE == 0 {
        return EINVAL;
    }
    if addr >= USER_END || !s.space.is_mapped(region, 128) {
        return EFAULT;
    }
    let taken = s
        .mmu
        .tables
        .governed(region)
        .is_some_and(|prefix| prefix != addr >> 21);
    let other = match s.mmu.tables.leaf(s.mmu.cr16, addr) {
        Some(Leaf::User(r)) => r != region,
        _ => false,
    };
    if taken || other {
        return EBUSY;
    }
    if s.mmu.cr16 == 0 {
        s.mmu.cr16 = s.mmu.tables.frame();
    }
    match s.mmu.tables.bind(s.mmu.cr16, addr, region) {
        true => 0,
        false => EINVAL,
    }
}

impl State {
    /// Permissions go with a guarded mapping; what the TLB knows goes with any.
    pub fn unmapped(&mut self, uc: &mut Uc, at: u64, len: u64) {
        self.device.pli_maps.retain(|m| m.0 < at || m.1 > at + len);
        if !self.mmu.in_use() {
            return;
        }
        for page in (at..at + len).step_by(PAGE as usize) {
            match self.mmu.tables.leaf(self.mmu.cr16, page) {
                Some(Leaf::Own(_)) => self.set_permission(uc, page, 0),
                _ => self.mmu.tlb.forget(page >> 12),
            }
        }
    }
}
