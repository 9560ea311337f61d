//! Rings of buffers that requests take (IORING_REGISTER_PBUF_RING): the kernel gets one of ours (`uring::provided`).

use ulpf_lib::AccessKind::Read;
use ulpf_lib::sys::failure::{EINVAL, ENOMEM};

use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::{Call, Current};
use crate::syscalls::buffers;
use crate::syscalls::call::{Args, EFAULT, raw};
use crate::syscalls::scratch::Scratch;
use crate::uring::provided::Descriptors;
use crate::uring::queries::REFUSED;
use crate::uring::rings::with;

/// struct io_uring_buf_reg
#[derive(Clone, Copy)]
#[repr(C)]
struct Registration {
    addr: u64,
    entries: u32,
    group: u16,
    flags: u16,
    reserved: [u64; 3],
}

const SIZE: u64 = size_of::<Registration>() as u64;

pub fn register(t: Current, uc: &mut UContext, nr: u64, a: &Args, ring: usize) -> i64 {
    let Some(r) = memory::get::<Registration>(a[2]) else {
        return EFAULT;
    };
    if r.flags != 0 {
        // Memory of the kernel, or buffers that are taken piece by piece.
        park::tell(t, uc, &REFUSED);
        return EINVAL;
    }
    let fits = r.entries.is_power_of_two() && r.entries < 1 << 16 && a[3] as u32 == 1;
    if !fits || r.addr == 0 || r.addr % 4096 != 0 {
        return made(t, uc, nr, a, &r); // the kernel reports the error
    }
    let end = r.addr.saturating_add(u64::from(r.entries) * 16);
    let there = |at: u64| memory::get::<u64>(at).is_some();
    if !(r.addr..end).step_by(4096).all(there) {
        return EFAULT;
    }
    let Some(d) = Descriptors::new(ring as u8, r.group, r.entries, r.addr) else {
        return ENOMEM;
    };
    let given = Registration {
        addr: d.ours(),
        ..r
    };
    let result = made(t, uc, nr, a, &given);
    if result < 0 {
        d.give_up();
        return result;
    }
    if !with(|state| state.given.add(d)) {
        // IORING_UNREGISTER_PBUF_RING is the next number.
        raw(nr, &[a[0], a[1] + 1, &raw const given as u64, 1, 0, 0]);
        d.give_up();
        return ENOMEM;
    }
    result
}

pub fn unregister(t: Current, uc: &mut UContext, nr: u64, a: &Args, ring: usize) -> i64 {
    let Some(r) = memory::get::<Registration>(a[2]) else {
        return EFAULT;
    };
    let result = made(t, uc, nr, a, &r);
    if result >= 0 {
        with(|state| {
            state.mark();
            state.given.remove(ring as u8, Some(r.group));
            state.flight.forget_group(ring as u8, r.group);
        });
    }
    result
}

fn made(t: Current, uc: &mut UContext, nr: u64, a: &Args, given: &Registration) -> i64 {
    let mut args = *a;
    args[2] = given as *const Registration as u64;
    let result = raw(nr, &args);
    let call = Call {
        nr,
        args: *a,
        result,
    };
    let s = Scratch::new(t);
    buffers::hit(t, uc, &call, a[2], SIZE, Read, &s.kept);
    result
}
