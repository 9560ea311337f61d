// SPDX-License-Identifier: GPL-2.0-or-later
//! /dev/ulpf: kernel/include/uapi/ulpf.h on the machine. Calls and mappings are here, changes in
//! `ops.rs`, events in `ring.rs`, what the kernel touches and guard ranges in `access.rs`.
//!
//! A process may have several spaces. They share the user's tables, since permissions belong to addresses;
//! of CR18 the machine has one for each, as if its kernel had a dispatcher there.
//! It does not claim ULPF_FEATURE_EXE and ULPF_FEATURE_PLI_TIGHTEN.

mod access;
mod ops;
pub mod ring;

pub use ops::bind;
pub use ring::{polled, read};

use crate::machine::{State, Uc};
use crate::memory::{Backing, PAGE, USER_END};
use crate::os::{
    EACCES, EBUSY, EFAULT, EINVAL, ENOENT, ENOMEM, ENOTTY, EPERM, File, host, read_bytes,
    write_bytes,
};
use crate::tables::Leaf;
use ring::Ring;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const QUERY: u64 = 0xc020_de20;
const HANDLER: u64 = 0x4018_de21;
const APPLY: u64 = 0x4020_de23;
const STACK: u64 = 0x4018_de22;
const BATCH: u64 = 0xc020_de24;
const RING: u64 = 0x4018_de25;
const LOOKUP: u64 = 0xc020_de26;
const COUNTS: u64 = 0xc048_de27;
const POLICY: u64 = 0x4008_de28;
const STORE_FILE: u64 = 0xde29;

const VERSION: u32 = 1;
const UNICORN: u32 = 2;
/// READ, PLI_LOOSEN, ONCE, STACK, KERNEL, GUARD, STORE, SIGSTACK, EFAULT.
const FEATURES: u64 = 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10;
const BATCH_MAX: u32 = 65536;
pub const STACK_MIN: u64 = 1024;
const REPLACE: u32 = 1;
const HANDLER_ONCE: u32 = 2;
const HANDLER_SIGSTACK: u32 = 4;
const POLICY_EFAULT: u32 = 1;

const STORE: u64 = 0x8000_0000_0000;
const ALIAS: u64 = 1 << 60;
const PLI: u64 = 2 << 60;
const PLI_PAGES: u64 = 65536;
const PREFIX: u64 = 1 << 21;

const EOPNOTSUPP: i64 = -95;
const EPROTONOSUPPORT: i64 = -93;
const E2BIG: i64 = -7;
const ENXIO: i64 = -6;

#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub upcalls: u64,
    pub kernel_reads: u64,
    pub kernel_writes: u64,
    pub guards: u64,
    pub unhandled: u64,
    pub undelivered: u64,
    pub changes: u64,
    pub flushes: u64,
}

/// One space: what one open() has made.
#[derive(Default)]
pub struct Device {
    /// This process has opened it; a forked child has not.
    stranger: bool,
    pub nonblocking: bool,
    /// Stores and PLI pages: sparse files of this process, mapped as often as the program likes.
    store: Option<OwnedFd>,
    pli: Option<OwnedFd>,
    /// PLI mappings: start and end.
    pli_maps: Vec<(u64, u64)>,
    pub handler: Option<Handler>,
    /// ULPF_POLICY_EFAULT.
    refuses: bool,
    pub counts: Counts,
    ring: Option<Ring>,
}

#[derive(Clone, Copy)]
pub struct Handler {
    pub entry: u64,
    pub cookie: u64,
    /// ULPF_HANDLER_ONCE, ULPF_HANDLER_SIGSTACK.
    once: bool,
    pub on_signal_stack: bool,
}

/// The process's spaces.
#[derive(Default)]
pub struct Devices {
    all: BTreeMap<u32, Device>,
    last: u32,
    /// Marks of ULPF_OP_GUARD, by page number: 1 log, 2 stop.
    guards: HashMap<u64, u8>,
    /// Pages that the system call at work has told of.
    told: Vec<u64>,
}

impl Devices {
    pub fn open(&mut self) -> u32 {
        self.last += 1;
        self.all.insert(self.last, Device::default());
        self.last
    }

    /// The space of a descriptor or a mapping, which keep it.
    pub fn of(&mut self, id: u32) -> &mut Device {
        self.all.entry(id).or_default()
    }

    /// Is anything guarded here?
    pub fn is_ours(&self) -> bool {
        self.all.values().any(|d| !d.stranger)
    }

    pub fn is_open(&self) -> bool {
        !self.all.is_empty()
    }

    /// Device and inode of a space's store.
    pub fn store_of(&self, id: u32) -> (u64, u64) {
        let store = self.all.get(&id).and_then(|d| d.store.as_ref());
        let Some(fd) = store.map(|f| f.as_raw_fd()) else {
            return (0, 0);
        };
        // SAFETY: a structure of ours.
        unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            match libc::fstat(fd, &raw mut status) {
                0 => (status.st_dev, status.st_ino),
                _ => (0, 0),
            }
        }
    }

    /// In a child: what is mapped is shared memory, nothing is guarded, and nothing can be changed.
    pub fn forked(&mut self) {
        for d in self.all.values_mut() {
            (d.stranger, d.handler) = (true, None);
        }
        self.guards.clear();
    }

    /// The program is about to have another one.
    pub fn close(&mut self) {
        for ring in self
            .all
            .values()
            .filter(|d| !d.stranger)
            .filter_map(|d| d.ring)
        {
            ring.close();
        }
    }
}

impl State {
    /// The last descriptor, or the last mapping, of a space may be gone: then the space is.
    pub fn release_device(&mut self) {
        let ids: Vec<u32> = self.device.all.keys().copied().collect();
        for id in ids {
            let held =
                self.os.files.values().any(|f| *f == File::Ulpf(id)) || self.space.is_used_by(id);
            if !held {
                self.device.all.remove(&id);
            }
        }
        if !self.device.is_ours() && self.mmu.cr18 == 0 {
            self.forget_user_tables();
        }
    }

    pub fn forget_user_tables(&mut self) {
        (self.mmu.cr16, self.mmu.cr18) = (0, 0);
        self.mmu.tables = crate::tables::Tables::default();
        self.mmu.tlb.flush();
    }
}

fn sparse(slot: &mut Option<OwnedFd>, size: u64) -> Result<i32, i64> {
    if slot.is_none() {
        // SAFETY: a new descriptor, that nobody else knows.
        let file = unsafe {
            let fd = crate::os::memory_file(c"ulpf-sim", libc::MFD_CLOEXEC);
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
    id: u32,
    (at, len): (u64, u64),
    protection: u64,
    flags: i32,
    offset: u64,
) -> Result<i64, i64> {
    let (kind, x) = (offset >> 60, offset & (ALIAS - 1));
    if flags & libc::MAP_SHARED == 0 || kind > 3 {
        return Err(EINVAL);
    }
    if kind == 3 {
        return ring::mmap(uc, s, id, (at, len), protection, x);
    }
    if s.device.of(id).stranger {
        return Err(EPERM);
    }
    let pli = kind == PLI >> 60;
    let size = if pli { PLI_PAGES * PAGE } else { STORE };
    if x.checked_add(len).is_none_or(|end| end > size) {
        return Err(EINVAL);
    }
    let device = s.device.of(id);
    let fd = sparse(
        if pli {
            &mut device.pli
        } else {
            &mut device.store
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
    let backing = match offset < ALIAS {
        true => Backing::Guarded(id, x),
        false => Backing::Device(id),
    };
    // SAFETY: it is never unmapped here, so it outlives the machine.
    unsafe {
        s.space
            .map_host(uc, at, len, protection, host.cast(), backing)
    }
    .map_err(|_| ENOMEM)?;
    s.fetches |= protection & 4 != 0 && offset < ALIAS;
    if pli {
        s.device.of(id).pli_maps.push((at, at + len));
    }
    Ok(at as i64)
}

/// A structure of the caller's that begins with its size, as `ours` bytes.
fn structure(uc: &Uc, s: &mut State, at: u64, ours: usize) -> Result<Vec<u8>, i64> {
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

pub fn ioctl(uc: &mut Uc, s: &mut State, id: u32, request: u64, at: u64) -> i64 {
    if s.device.of(id).stranger && !matches!(request, QUERY | COUNTS) {
        return EPERM;
    }
    match request {
        QUERY => query(uc, s, at),
        STACK => stack(uc, s, at),
        RING => ring::make(uc, s, id, at),
        LOOKUP => lookup(uc, s, id, at),
        COUNTS => counts(uc, s, id, at),
        HANDLER => handler(uc, s, id, at),
        APPLY => read_bytes(uc, s, at, 32).and_then(|op| ops::apply(uc, s, id, &op)),
        BATCH => ops::batch(uc, s, id, at),
        POLICY => policy(uc, s, id, at),
        STORE_FILE => return store_file(s, id).unwrap_or_else(|e| e),
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
    q[16..24].copy_from_slice(&FEATURES.to_le_bytes());
    q[24..28].copy_from_slice(&BATCH_MAX.to_le_bytes());
    q[28..32].copy_from_slice(&ring::MOST.to_le_bytes());
    write_bytes(uc, s, at, &q)?;
    match asked {
        VERSION => Ok(()),
        _ => Err(EPROTONOSUPPORT),
    }
}

fn handler(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let h = structure(uc, s, at, 24)?;
    let (flags, entry, cookie) = (word(&h, 4), long(&h, 8), long(&h, 16));
    if flags & !(REPLACE | HANDLER_ONCE | HANDLER_SIGSTACK) != 0 {
        return Err(EINVAL);
    }
    let once = flags & HANDLER_ONCE != 0;
    let others = s.device.all.iter().filter(|d| *d.0 != id);
    // The processor has one rule for all of its pages.
    let differs = entry != 0 && others.filter_map(|d| d.1.handler).any(|h| h.once != once);
    match (entry, s.device.of(id).handler.is_some()) {
        (0, false) => return Err(ENOENT),
        (0, true) => {}
        _ if differs => return Err(EOPNOTSUPP),
        (_, true) if flags & REPLACE == 0 => return Err(EBUSY),
        _ if !s.space.is_mapped(entry, 1) => return Err(EFAULT),
        _ if !s.space.permits(entry, 1, 4) => return Err(EACCES),
        _ => {}
    }
    s.device.of(id).handler = (entry != 0).then_some(Handler {
        entry,
        cookie,
        once,
        on_signal_stack: flags & HANDLER_SIGSTACK != 0,
    });
    s.mmu.write_once = once;
    if s.mmu.cr16 == 0 {
        s.mmu.cr16 = s.mmu.tables.frame();
    }
    Ok(())
}

fn policy(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let p = structure(uc, s, at, 8)?;
    if word(&p, 4) & !POLICY_EFAULT != 0 {
        return Err(EINVAL);
    }
    s.device.of(id).refuses = word(&p, 4) != 0;
    Ok(())
}

fn store_file(s: &mut State, id: u32) -> Result<i64, i64> {
    let fd = sparse(&mut s.device.of(id).store, STORE)?;
    // SAFETY: no memory is involved.
    let copy = host(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) }.into());
    if copy < 0 {
        return Err(copy);
    }
    let n = s.os.add(File::Host(copy as i32));
    s.os.closing.insert(n);
    Ok(n as i64)
}

fn stack(uc: &mut Uc, s: &mut State, at: u64) -> Result<(), i64> {
    let t = structure(uc, s, at, 24)?;
    let (base, length) = (long(&t, 8), long(&t, 16));
    if word(&t, 4) != 0 || base % 16 != 0 || length % 16 != 0 {
        return Err(EINVAL);
    }
    if length == 0 {
        return match std::mem::take(&mut s.thread().exceptions) {
            (_, 0) => Err(ENOENT),
            _ => Ok(()),
        };
    }
    if length < STACK_MIN {
        return Err(EINVAL);
    }
    if base.checked_add(length).is_none_or(|end| end > USER_END) {
        return Err(EFAULT);
    }
    s.thread().exceptions = (base, length);
    Ok(())
}

fn lookup(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let mut p = structure(uc, s, at, 32)?;
    let addr = long(&p, 8);
    if word(&p, 4) != 0 || word(&p, 28) != 0 {
        return Err(EINVAL);
    }
    if addr >= USER_END {
        return Err(EFAULT);
    }
    let bound = matches!(s.mmu.tables.leaf(s.mmu.cr16, addr), Some(Leaf::User(_)));
    let state = u32::from(s.space.is_guarded_by(id, addr, 1)) | u32::from(bound) << 1;
    let guard = s.device.guards.get(&(addr / PAGE)).copied().unwrap_or(0);
    let permission = match s.walk(uc, addr) {
        // What the machine does not know.
        crate::mmu::EXE => crate::mmu::NONE,
        known => known,
    };
    p[16..20].copy_from_slice(&u32::from(permission).to_le_bytes());
    p[20..24].copy_from_slice(&u32::from(guard).to_le_bytes());
    p[24..28].copy_from_slice(&state.to_le_bytes());
    write_bytes(uc, s, at, &p)
}

fn counts(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let mut bytes = structure(uc, s, at, 72)?;
    if word(&bytes, 4) != 0 {
        return Err(EINVAL);
    }
    let c = s.device.of(id).counts;
    let all = [
        c.upcalls,
        c.kernel_reads,
        c.kernel_writes,
        c.guards,
        c.unhandled,
        c.undelivered,
        c.changes,
        c.flushes,
    ];
    for (n, value) in all.into_iter().enumerate() {
        bytes[8 + 8 * n..16 + 8 * n].copy_from_slice(&value.to_le_bytes());
    }
    write_bytes(uc, s, at, &bytes)
}

impl State {
    /// Memory is about to be unmapped. Permissions go with a guarded mapping, but not with a PLI region's;
    /// what the TLB knows goes with any.
    pub fn unmapping(&mut self, uc: &mut Uc, at: u64, len: u64) {
        for (region, prefix) in self.mmu.tables.regions_in(at, at + len) {
            let mut bytes = [0; 128];
            if uc.mem_read(region, &mut bytes).is_ok() {
                self.mmu.tables.keep(self.mmu.cr16, prefix, bytes);
            }
        }
        let pages = at / PAGE..(at + len) / PAGE;
        self.device.guards.retain(|page, _| !pages.contains(page));
        for d in self.device.all.values_mut() {
            d.pli_maps.retain(|m| m.0 < at || m.1 > at + len);
        }
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
