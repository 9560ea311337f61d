// SPDX-License-Identifier: GPL-2.0-or-later
//! Changes: ULPF_APPLY, ULPF_BATCH, and the thesis's `sys_set_ro`.

use super::{BATCH_MAX, PREFIX};
use crate::errno::{E2BIG, EBUSY, EFAULT, EINVAL, ENOENT, ENOMEM, EOPNOTSUPP};
use crate::memory::{Backing, PAGE, USER_END};
use crate::state::{State, Uc};
use crate::tables::Leaf;
use crate::user_memory::{read_bytes, read_structure, write_bytes};
use std::mem::offset_of;
use ulpf_lib::device::abi::{self, Structure};

const OP: u64 = size_of::<abi::Op>() as u64;

fn op_at(uc: &Uc, s: &mut State, at: u64) -> Result<abi::Op, i64> {
    abi::Op::from_bytes(&read_bytes(uc, s, at, OP)?).ok_or(EFAULT)
}

pub fn batch(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let batch: abi::Batch = read_structure(uc, s, at)?;
    if batch.flags != 0 || batch.reserved != 0 || u64::from(batch.op_size) != OP {
        return Err(EINVAL);
    }
    if batch.count > BATCH_MAX {
        return Err(E2BIG);
    }
    let mut done = 0u32;
    let result = (0..u64::from(batch.count)).try_for_each(|n| {
        let op = op_at(uc, s, batch.ops.wrapping_add(n * OP))?;
        change(uc, s, id, op).map(|()| done += 1)
    });
    let counts = &mut s.device.of(id).counts;
    counts.changes += u64::from(done);
    // The hardware changes page by page. This counts the flushes that the kernel needed.
    counts.flushes += u64::from(done > 0);
    let at = at + offset_of!(abi::Batch, done) as u64;
    write_bytes(uc, s, at, &done.to_le_bytes())?;
    result
}

pub fn apply(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let op = op_at(uc, s, at)?;
    change(uc, s, id, op)?;
    let counts = &mut s.device.of(id).counts;
    counts.changes += 1;
    counts.flushes += 1;
    Ok(())
}

fn change(uc: &mut Uc, s: &mut State, id: u32, op: abi::Op) -> Result<(), i64> {
    let abi::Op {
        op: number,
        flags,
        addr,
        length: len,
        arg,
    } = op;
    if flags != 0 {
        return Err(EINVAL);
    }
    let whole = addr % PAGE == 0 && len % PAGE == 0 && len > 0 && addr.checked_add(len).is_some();
    if s.mmu.cr16 == 0 {
        s.mmu.cr16 = s.mmu.tables.frame();
    }
    match number {
        abi::OP_SET if !whole || arg > abi::NONE => Err(EINVAL),
        abi::OP_SYNC if !whole || arg != 0 => Err(EINVAL),
        abi::OP_SET if arg == abi::EXE => Err(EOPNOTSUPP),
        abi::OP_SET | abi::OP_SYNC if !s.space.is_guarded_by(id, addr, len) => Err(ENOMEM),
        abi::OP_SET | abi::OP_SYNC => {
            for page in (addr..addr + len).step_by(PAGE as usize) {
                match number {
                    abi::OP_SET => s.set_permission(uc, page, arg as u8),
                    _ => s.mmu.tlb.forget(page >> 12),
                }
            }
            Ok(())
        }
        abi::OP_GUARD if !whole || arg > abi::GUARD_STOP.into() => Err(EINVAL),
        abi::OP_GUARD if !s.space.is_guarded_by(id, addr, len) => Err(ENOMEM),
        abi::OP_GUARD => {
            for page in addr / PAGE..(addr + len) / PAGE {
                match arg as u32 {
                    abi::GUARD_OFF => s.device.guards.remove(&page),
                    mark => s.device.guards.insert(page, mark),
                };
            }
            Ok(())
        }
        abi::OP_BIND if len != PREFIX || addr % PREFIX != 0 => Err(EINVAL),
        abi::OP_BIND => {
            let inside = |m: &(u64, u64)| arg >= m.0 && arg < m.1;
            let others = s.space.parts(addr, len).into_iter();
            let shared = others
                .map(|p| p.2)
                .any(|b| matches!(b, Backing::Guarded(by, _) if by != id));
            match s.device.of(id).pli_maps.iter().any(inside) {
                false => Err(EFAULT),
                // The other space would lose the prefix's permissions.
                true if shared => Err(EBUSY),
                true => match bind(s, addr, arg) {
                    0 => Ok(()),
                    error => Err(error),
                },
            }
        }
        abi::OP_UNBIND if len != PREFIX || addr % PREFIX != 0 || arg != 0 => Err(EINVAL),
        abi::OP_UNBIND => match s.mmu.tables.leaf(s.mmu.cr16, addr) {
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

/// The thesis's `sys_set_ro`, and ULPF_OP_BIND: a region governs a prefix. The TLB is not updated;
/// the device's callers bind before they set.
pub fn bind(s: &mut State, addr: u64, region: u64) -> i64 {
    if !region.is_multiple_of(abi::REGION_SIZE) || region.is_multiple_of(PAGE) {
        return EINVAL;
    }
    if addr >= USER_END || !s.space.is_mapped(region, abi::REGION_SIZE) {
        return EFAULT;
    }
    let taken = s
        .mmu
        .tables
        .governed(region)
        .is_some_and(|prefix| prefix != addr >> abi::REGION_SHIFT);
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
