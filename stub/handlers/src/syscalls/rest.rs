//! What is left of a call that we have interrupted halfway: it goes on, as it would have without us.

use core::mem::MaybeUninit;

use linux_raw_sys::general as k;

use super::Args;
use super::vectors::{IOV_MAX, IoVec, MsgHdr};
use crate::runtime::memory;

/// Room for the structures that the rest is described with.
pub struct Room {
    vectors: [MaybeUninit<IoVec>; IOV_MAX as usize],
    message: MaybeUninit<MsgHdr>,
}

impl Room {
    pub fn new() -> Room {
        Room {
            vectors: [const { MaybeUninit::uninit() }; IOV_MAX as usize],
            message: MaybeUninit::uninit(),
        }
    }

    /// The vectors without their first `done` bytes: where they are, and how many.
    fn vectors(&mut self, at: u64, count: u64, done: u64) -> Option<(u64, u64)> {
        let (mut n, mut skip) = (0, done);
        for i in 0..count.min(IOV_MAX) {
            let mut v = memory::get::<IoVec>(at.wrapping_add(i * 16))?;
            let less = v.len.min(skip);
            skip -= less;
            v.base = v.base.wrapping_add(less);
            v.len -= less;
            if v.len > 0 {
                self.vectors.get_mut(n)?.write(v);
                n += 1;
            }
        }
        (n > 0).then_some((self.vectors.as_ptr() as u64, n as u64))
    }
}

/// The rest of a call that ends early only when something is wrong, or when it is interrupted, and whose
/// buffer is in one piece.
pub fn of_one_piece(nr: u64, a: &Args, done: i64) -> Option<Args> {
    const MSG_WAITALL: u64 = 0x100;
    let whole = match nr as u32 {
        k::__NR_write | k::__NR_pwrite64 | k::__NR_sendto => true,
        k::__NR_recvfrom => a[3] & MSG_WAITALL != 0,
        _ => false,
    };
    let n = u64::try_from(done).ok().filter(|n| *n > 0 && *n < a[2])?;
    let mut rest = *a;
    rest[1] += n;
    rest[2] -= n;
    if nr as u32 == k::__NR_pwrite64 {
        rest[3] += n;
    }
    whole.then_some(rest)
}

/// The same of all such calls. The answer may point into `room`.
pub fn of(nr: u64, a: &Args, done: i64, room: &mut Room) -> Option<Args> {
    let n = u64::try_from(done).ok().filter(|n| *n > 0)?;
    let mut rest = *a;
    match nr as u32 {
        k::__NR_writev | k::__NR_pwritev | k::__NR_pwritev2 => {
            (rest[1], rest[2]) = room.vectors(a[1], a[2], n)?;
            // -1: at the file's own position, which has moved.
            if nr as u32 != k::__NR_writev && a[3] as i64 != -1 {
                rest[3] += n;
            }
        }
        k::__NR_sendmsg => {
            let mut message = memory::get::<MsgHdr>(a[1])?;
            (message.iov, message.iovlen) = room.vectors(message.iov, message.iovlen, n)?;
            // What goes with the bytes (descriptors, …) has gone with the first.
            (message.control, message.controllen) = (0, 0);
            rest[1] = room.message.write(message) as *const MsgHdr as u64;
        }
        _ => return of_one_piece(nr, a, done),
    }
    Some(rest)
}
