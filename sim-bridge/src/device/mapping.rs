// SPDX-License-Identifier: GPL-2.0-or-later
//! Mappings of the device, and their end.

use super::events;
use crate::errno::{EINVAL, ENOMEM, EPERM};
use crate::host::memory_file;
use crate::memory::{Backing, PAGE};
use crate::os::File;
use crate::state::{State, Uc};
use crate::tables::Leaf;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use ulpf_lib::device::abi;

/// An offset is one of `abi::MAP_*`, from this bit on, and an offset into that.
const MAP_SHIFT: u32 = abi::MAP_ALIAS.trailing_zeros();

/// The file of a store, or of PLI pages: made when it is needed, with holes.
pub(super) fn sparse(slot: &mut Option<OwnedFd>, size: u64) -> Result<i32, i64> {
    if slot.is_none() {
        // SAFETY: a new descriptor without other users.
        let file = unsafe {
            let fd = memory_file(c"ulpf-sim", libc::MFD_CLOEXEC);
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
    let (kind, x) = (offset >> MAP_SHIFT, offset & (abi::MAP_ALIAS - 1));
    if flags & libc::MAP_SHARED == 0 || kind > abi::MAP_RING >> MAP_SHIFT {
        return Err(EINVAL);
    }
    if kind == abi::MAP_RING >> MAP_SHIFT {
        return events::mmap(uc, s, id, (at, len), protection, x);
    }
    if s.device.of(id).stranger {
        return Err(EPERM);
    }
    let pli = kind == abi::MAP_PLI >> MAP_SHIFT;
    let size = if pli {
        abi::PLI_PAGES * PAGE
    } else {
        abi::STORE_SIZE
    };
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
    let backing = match offset < abi::MAP_ALIAS {
        true => Backing::Guarded(id, x),
        false => Backing::Device(id),
    };
    // SAFETY: it is never unmapped here, so it outlives the machine.
    unsafe {
        s.space
            .map_host(uc, at, len, protection, host.cast(), backing)
    }
    .map_err(|_| ENOMEM)?;
    s.fetches |= protection & 4 != 0 && offset < abi::MAP_ALIAS;
    if pli {
        s.device.of(id).pli_maps.push((at, at + len));
    }
    Ok(at as i64)
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

    /// Memory is about to be unmapped. Permissions go with a guarded mapping, but not with a PLI region's;
    /// what the TLB knows goes with any.
    pub fn unmapping(&mut self, uc: &mut Uc, at: u64, len: u64) {
        for (region, prefix) in self.mmu.tables.regions_in(at, at + len) {
            let mut bytes = [0; abi::REGION_SIZE as usize];
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
