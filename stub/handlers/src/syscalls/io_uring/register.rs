//! io_uring_register(2): buffers get the addresses of the alias, structures with pointers a copy.

use linux_raw_sys::io_uring::{self as u, io_uring_register_op::*};
use ulpf_lib::AccessKind::{self, Read, Write};
use ulpf_lib::sys::failure::{EBADF, EINVAL, ENOMEM, EOPNOTSUPP};

use super::descriptors;
use super::enter;
use super::operands::{in_one_piece, is_served};
use super::polled;
use super::wait;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::{Call, Current};
use crate::syscalls::buffers;
use crate::syscalls::call::{Args, EFAULT};
use crate::syscalls::ordinary::call;
use crate::syscalls::scratch::Scratch;
use crate::syscalls::vectors::IoVec;
use crate::uring::identity;
use crate::uring::kept::watched;
use crate::uring::queries::{REFUSED, UNKNOWN};
use crate::uring::rings::{self, Fixed, with};

/// IORING_MAX_REG_BUFFERS
const MOST_BUFFERS: u64 = 1 << 14;
/// IORING_REGISTER_USE_REGISTERED_RING
const USE_REGISTERED: u32 = 1 << 31;
const MOST: u64 = 1 << 20;

pub fn register(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    let registered = a[1] as u32 & USE_REGISTERED != 0;
    let Some(ring) = enter::find(t, a[0], registered) else {
        let result = call(t, uc, nr, a, a, 0);
        if a[0] as i32 >= 0 && result != EBADF && result != EOPNOTSUPP {
            park::tell(t, uc, &UNKNOWN);
        }
        return result;
    };
    let code = a[1] as u32 & !USE_REGISTERED;
    let is = |op: u::io_uring_register_op| op as u32 == code;
    let count = a[3] as u32 as u64;
    let mut s = Scratch::new(t);
    if is(IORING_REGISTER_BUFFERS) {
        return register_buffers(t, uc, nr, a, ring, &mut s);
    }
    if is(IORING_REGISTER_PBUF_RING) {
        return descriptors::register(t, uc, nr, a, ring);
    }
    if is(IORING_UNREGISTER_PBUF_RING) {
        return descriptors::unregister(t, uc, nr, a, ring);
    }
    if is(IORING_UNREGISTER_BUFFERS) {
        let result = call(t, uc, nr, a, a, 0);
        if result >= 0 {
            with(|state| {
                if let Some(r) = state.rings.get_mut(ring) {
                    r.forget_fixed();
                }
            });
        }
        return result;
    }
    // The bytes that are read, and those of them that are written.
    let (len, written) = if is(IORING_REGISTER_FILES) {
        (count * 4, 0)
    } else if is(IORING_REGISTER_EVENTFD) || is(IORING_REGISTER_EVENTFD_ASYNC) {
        (4, 0)
    } else if is(IORING_REGISTER_FILES_UPDATE) || is(IORING_REGISTER_FILE_ALLOC_RANGE) {
        (16, 0)
    } else if is(IORING_REGISTER_FILES2) {
        (32, 0)
    } else if is(IORING_REGISTER_PROBE) {
        let len = 16 + count * 8;
        (len, len)
    } else if is(IORING_REGISTER_RING_FDS) || is(IORING_UNREGISTER_RING_FDS) {
        (count * 16, count * 16)
    } else if is(IORING_REGISTER_PBUF_STATUS) {
        (40, 40)
    } else if is(IORING_REGISTER_RESTRICTIONS) {
        (count * 16, 0)
    } else if is(IORING_REGISTER_IOWQ_AFF) {
        (count, 0)
    } else if is(IORING_REGISTER_IOWQ_MAX_WORKERS) {
        (8, 8)
    } else if is(IORING_REGISTER_SYNC_CANCEL) {
        (64, 0)
    } else if is(IORING_UNREGISTER_FILES)
        || is(IORING_UNREGISTER_EVENTFD)
        || is(IORING_REGISTER_PERSONALITY)
        || is(IORING_UNREGISTER_PERSONALITY)
        || is(IORING_REGISTER_ENABLE_RINGS)
        || is(IORING_UNREGISTER_IOWQ_AFF)
    {
        (0, 0)
    } else {
        park::tell(t, uc, &REFUSED);
        return EINVAL;
    };
    if a[2] == 0 || len == 0 || len > MOST {
        let result = call(t, uc, nr, a, a, 0);
        if result >= 0 && is(IORING_REGISTER_ENABLE_RINGS) && rings::polled(ring) {
            let how = if registered { wait::REGISTERED } else { 0 };
            polled::take(t, uc, a[0], how, ring);
        }
        return result;
    }
    let Some(copy) = s.copy(a[2], len) else {
        return EFAULT;
    };
    let mut input = |at: u64, len: u64| match at {
        0 => Some(0),
        at if len == 0 || len > MOST => Some(at),
        at => in_one_piece(at, len, Read).or_else(|| s.copy(at, len)),
    };
    // SAFETY: the copy has that many words.
    let words = unsafe { core::slice::from_raw_parts_mut(copy as *mut u64, (len / 8) as usize) };
    if is(IORING_REGISTER_FILES_UPDATE)
        && let [_, fds] = words
    {
        let Some(to) = input(*fds, count * 4) else {
            return EFAULT;
        };
        *fds = to;
    }
    if is(IORING_REGISTER_FILES2)
        && let [number, _, data, tags] = words
    {
        let n = *number as u32 as u64;
        let (Some(d), Some(tags_at)) = (input(*data, n * 4), input(*tags, n * 8)) else {
            return EFAULT;
        };
        (*data, *tags) = (d, tags_at);
    }
    if is(IORING_REGISTER_RING_FDS) && !with(|state| state.registered.has_room(count)) {
        return ENOMEM;
    }
    if written > 0 {
        s.keep(a[2], written);
    }
    let mut given = *a;
    given[2] = copy;
    let result = call(t, uc, nr, a, &given, 1 << 2);
    if result < 0 {
        return result;
    }
    // SAFETY: the copy.
    let bytes = unsafe { core::slice::from_raw_parts_mut(copy as *mut u8, len as usize) };
    if is(IORING_REGISTER_PROBE) {
        for op in bytes.chunks_exact_mut(8).skip(2) {
            if let [code, _, low, high, ..] = op
                && !is_served(*code)
            {
                (*low, *high) = (0, 0);
            }
        }
    }
    if is(IORING_REGISTER_RING_FDS) || is(IORING_UNREGISTER_RING_FDS) {
        // SAFETY: the kernel has processed that many of them.
        let rings =
            unsafe { core::slice::from_raw_parts(copy as *const [u64; 2], result as usize) };
        note(t, rings, is(IORING_REGISTER_RING_FDS));
    }
    let made = Call {
        nr,
        args: *a,
        result,
    };
    if written > 0 {
        memory::write(a[2], bytes);
    }
    let kind = if written > 0 {
        AccessKind::ReadWrite
    } else {
        Read
    };
    buffers::hit(t, uc, &made, a[2], len, kind, &s.kept);
    result
}

/// Notes rings that the thread has registered, or has unregistered: number and descriptor of each.
fn note(t: Current, rings: &[[u64; 2]], registered: bool) {
    with(|state| {
        for &[number, fd] in rings {
            state.registered.remove(t.tid(), number as u32);
            if let Some(ring) = identity::of(fd as i32).filter(|_| registered) {
                state.registered.add(t.tid(), number as u32, ring);
            }
        }
        state.bury();
    });
}

fn register_buffers(
    t: Current,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    ring: usize,
    s: &mut Scratch,
) -> i64 {
    let count = a[3] as u32 as u64;
    if count == 0 || count > MOST_BUFFERS {
        return call(t, uc, nr, a, a, 0); // the kernel reports the error
    }
    let Some(copy) = s.copy(a[2], count * 16) else {
        return EFAULT;
    };
    let size = count as usize * size_of::<Fixed>();
    let table = ulpf_lib::arena::map_anonymous(size) as *mut Fixed;
    if table.is_null() {
        return ENOMEM;
    }
    for n in 0..count as usize {
        // SAFETY: within the copy, and within the table.
        unsafe {
            let v = &mut *(copy as *mut IoVec).add(n);
            let given = match v.base {
                0 => Some(0),
                at => in_one_piece(at, v.len, Write),
            };
            let Some(given) = given else {
                ulpf_lib::arena::unmap_anonymous(table.cast(), size);
                park::tell(t, uc, &REFUSED);
                return ENOMEM;
            };
            table.add(n).write(Fixed {
                at: v.base,
                len: v.len,
                given,
            });
            v.base = given;
        }
    }
    // The memory is held from here on: nothing moves before the kernel has it.
    let mut given = *a;
    given[2] = copy;
    let result = crate::syscalls::call::raw(nr, &given);
    if result < 0 {
        ulpf_lib::arena::unmap_anonymous(table.cast(), size);
        return result;
    }
    with(|state| {
        if let Some(r) = state.rings.get_mut(ring) {
            r.forget_fixed();
            (r.fixed, r.fixed_len) = (table, count as u32);
        }
    });
    let made = Call {
        nr,
        args: *a,
        result,
    };
    if watched(a[2], count * 16) {
        buffers::hit(t, uc, &made, a[2], count * 16, Read, &s.kept);
    }
    result
}
