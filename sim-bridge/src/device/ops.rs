// SPDX-License-Identifier: GPL-2.0-or-later
//! Changes: ULPF_APPLY, ULPF_BATCH, and the thesis's `sys_set_ro`.

use super::{BATCH_MAX, E2BIG, EOPNOTSUPP, PREFIX, long, structure, word};
use crate::machine::{State, Uc};
use crate::memory::{Backing, PAGE, USER_END};
use crate::os::{EBUSY, EFAULT, EINVAL, ENOENT, ENOMEM, read_bytes, write_bytes};
use crate::tables::Leaf;

pub fn batch(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
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
        change(uc, s, id, &op).map(|()| done += 1)
    });
    let counts = &mut s.device.of(id).counts;
    counts.changes += u64::from(done);
    // The hardware is told of each page; what is counted is how often the kernel had to.
    counts.flushes += u64::from(done > 0);
    write_bytes(uc, s, at + 24, &done.to_le_bytes())?;
    result
}

pub fn apply(uc: &mut Uc, s: &mut State, id: u32, op: &[u8]) -> Result<(), i64> {
    change(uc, s, id, op)?;
    let counts = &mut s.device.of(id).counts;
    counts.changes += 1;
    counts.flushes += 1;
    Ok(())
}

fn change(uc: &mut Uc, s: &mut State, id: u32, op: &[u8]) -> Result<(), i64> {
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
    if s.mmu.cr16 == 0 {
        s.mmu.cr16 = s.mmu.tables.frame();
    }
    match number {
        1 | 2 if !whole || arg > 3 || (number == 2 && arg != 0) => Err(EINVAL),
        1 if arg == 2 => Err(EOPNOTSUPP),
        1 | 2 if !s.space.is_guarded_by(id, addr, len) => Err(ENOMEM),
        1 | 2 => {
            for page in (addr..addr + len).step_by(PAGE as usize) {
                match number {
                    1 => s.set_permission(uc, page, arg as u8),
                    _ => s.mmu.tlb.forget(page >> 12),
                }
            }
            Ok(())
        }
        3 if !whole || arg > 2 => Err(EINVAL),
        3 if !s.space.is_guarded_by(id, addr, len) => Err(ENOMEM),
        3 => {
            for page in addr / PAGE..(addr + len) / PAGE {
                match arg {
                    0 => s.device.guards.remove(&page),
                    mark => s.device.guards.insert(page, mark as u8),
                };
            }
            Ok(())
        }
        4 if len != PREFIX || addr % PREFIX != 0 => Err(EINVAL),
        4 => {
            let inside = |m: &(u64, u64)| arg >= m.0 && arg < m.1;
            let others = s.space.parts(addr, len).into_iter();
            let shared = others
                .map(|p| p.2)
                .any(|b| matches!(b, Backing::Guarded(by, _) if by != id));
            match s.device.of(id).pli_maps.iter().any(inside) {
                false => Err(EFAULT),
                // What another space has said about it would be forgotten.
                true if shared => Err(EBUSY),
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
    if !region.is_multiple_of(128) || region.is_multiple_of(PAGE) {
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
