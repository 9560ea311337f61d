// SPDX-License-Identifier: GPL-2.0-or-later
//! ioctl(2) on the device.

use super::mapping::sparse;
use super::{BATCH_MAX, FEATURES, Handler, events, ops, ring};
use crate::errno::{
    EACCES, EBUSY, EFAULT, EINVAL, ENOENT, ENOTTY, EOPNOTSUPP, EPERM, EPROTONOSUPPORT,
};
use crate::host::host;
use crate::memory::{PAGE, USER_END};
use crate::os::File;
use crate::state::{State, Uc};
use crate::tables::Leaf;
use crate::user_memory::{read_structure, write_structure};
use ulpf_lib::device::abi;

pub fn ioctl(uc: &mut Uc, s: &mut State, id: u32, request: u64, at: u64) -> i64 {
    // Linux takes 32 bits of it.
    let request = request as u32;
    if s.device.of(id).stranger && !matches!(request, abi::QUERY | abi::COUNTS) {
        return EPERM;
    }
    match request {
        abi::QUERY => query(uc, s, at),
        abi::STACK => stack(uc, s, at),
        abi::RING => events::make(uc, s, id, at),
        abi::LOOKUP => lookup(uc, s, id, at),
        abi::COUNTS => counts(uc, s, id, at),
        abi::HANDLER => handler(uc, s, id, at),
        abi::APPLY => ops::apply(uc, s, id, at),
        abi::BATCH => ops::batch(uc, s, id, at),
        abi::POLICY => policy(uc, s, id, at),
        abi::STORE => return store_file(s, id).unwrap_or_else(|e| e),
        _ => Err(ENOTTY),
    }
    .map_or_else(|e| e, |()| 0)
}

fn query(uc: &mut Uc, s: &mut State, at: u64) -> Result<(), i64> {
    let asked: abi::Query = read_structure(uc, s, at)?;
    if asked.flags != 0 {
        return Err(EINVAL);
    }
    let answer = abi::Query {
        version: abi::VERSION,
        machine: abi::MACHINE_UNICORN,
        features: FEATURES,
        batch_max: BATCH_MAX,
        ring_max: ring::MOST,
        ..asked
    };
    write_structure(uc, s, at, &answer)?;
    match asked.version {
        abi::VERSION => Ok(()),
        _ => Err(EPROTONOSUPPORT),
    }
}

fn handler(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let abi::Handler {
        flags,
        entry,
        cookie,
        ..
    } = read_structure(uc, s, at)?;
    if flags & !(abi::HANDLER_REPLACE | abi::HANDLER_ONCE | abi::HANDLER_SIGSTACK) != 0 {
        return Err(EINVAL);
    }
    let once = flags & abi::HANDLER_ONCE != 0;
    let others = s.device.all.iter().filter(|d| *d.0 != id);
    // The processor has one rule for all of its pages.
    let differs = entry != 0 && others.filter_map(|d| d.1.handler).any(|h| h.once != once);
    match (entry, s.device.of(id).handler.is_some()) {
        (0, false) => return Err(ENOENT),
        (0, true) => {}
        _ if differs => return Err(EOPNOTSUPP),
        (_, true) if flags & abi::HANDLER_REPLACE == 0 => return Err(EBUSY),
        _ if !s.space.is_mapped(entry, 1) => return Err(EFAULT),
        _ if !s.space.permits(entry, 1, 4) => return Err(EACCES),
        _ => {}
    }
    s.device.of(id).handler = (entry != 0).then_some(Handler {
        entry,
        cookie,
        once,
        on_signal_stack: flags & abi::HANDLER_SIGSTACK != 0,
    });
    s.mmu.write_once = once;
    if s.mmu.cr16 == 0 {
        s.mmu.cr16 = s.mmu.tables.frame();
    }
    Ok(())
}

fn policy(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let policy: abi::Policy = read_structure(uc, s, at)?;
    if policy.flags & !abi::POLICY_EFAULT != 0 {
        return Err(EINVAL);
    }
    s.device.of(id).refuses = policy.flags != 0;
    Ok(())
}

fn store_file(s: &mut State, id: u32) -> Result<i64, i64> {
    let fd = sparse(&mut s.device.of(id).store, abi::STORE_SIZE)?;
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
    let abi::Stack {
        flags,
        base,
        length,
        ..
    } = read_structure(uc, s, at)?;
    if flags != 0 || base % 16 != 0 || length % 16 != 0 {
        return Err(EINVAL);
    }
    if length == 0 {
        return match std::mem::take(&mut s.thread().exceptions) {
            (_, 0) => Err(ENOENT),
            _ => Ok(()),
        };
    }
    if length < abi::STACK_MIN {
        return Err(EINVAL);
    }
    if base.checked_add(length).is_none_or(|end| end > USER_END) {
        return Err(EFAULT);
    }
    s.thread().exceptions = (base, length);
    Ok(())
}

fn lookup(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let asked: abi::Page = read_structure(uc, s, at)?;
    let addr = asked.addr;
    if asked.flags != 0 || asked.reserved != 0 {
        return Err(EINVAL);
    }
    if addr >= USER_END {
        return Err(EFAULT);
    }
    let is_bound = matches!(s.mmu.tables.leaf(s.mmu.cr16, addr), Some(Leaf::User(_)));
    let is_guarded = s.space.is_guarded_by(id, addr, 1);
    let permission = match s.walk(uc, addr) {
        // A permission that the machine does not support.
        crate::mmu::EXE => crate::mmu::NONE,
        known => known,
    };
    let mark = s.device.guards.get(&(addr / PAGE));
    let answer = abi::Page {
        permission: permission.into(),
        guard: mark.copied().unwrap_or(abi::GUARD_OFF),
        state: u32::from(is_guarded) * abi::PAGE_GUARDED + u32::from(is_bound) * abi::PAGE_BOUND,
        ..asked
    };
    write_structure(uc, s, at, &answer)
}

fn counts(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let asked: abi::Counts = read_structure(uc, s, at)?;
    if asked.flags != 0 {
        return Err(EINVAL);
    }
    let answer = abi::Counts {
        size: asked.size,
        ..s.device.of(id).counts
    };
    write_structure(uc, s, at, &answer)
}
