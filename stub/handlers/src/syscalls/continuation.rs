//! Computes the rest of a call that we have interrupted halfway: it continues, as it would have without us.

use core::mem::MaybeUninit;

use linux_raw_sys::net::MSG_WAITALL;
use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::{Dir, FullTransfer, Len, Row};

use super::call::Args;
use super::vectors::{IOV_MAX, IoVec, MsgHdr};
use crate::runtime::memory;

/// Buffers for the structures that describe the rest.
pub struct Buffers {
    vectors: [MaybeUninit<IoVec>; IOV_MAX as usize],
    message: MaybeUninit<MsgHdr>,
}

impl Buffers {
    pub fn new() -> Buffers {
        Buffers {
            vectors: [const { MaybeUninit::uninit() }; IOV_MAX as usize],
            message: MaybeUninit::uninit(),
        }
    }

    /// Copies the vectors without their first `done` bytes. Returns their address and number.
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

/// Moves the file position of a call behind the part that has been transferred. -1 is the file's own position, which
/// has moved already.
fn advance(row: &Row, args: &mut Args, done: u64) {
    if let Some(position) = row.position.and_then(|n| args.get_mut(n as usize))
        && *position as i64 != -1
    {
        *position += done;
    }
}

/// The rest of a call whose buffer is in one piece. For calls that end early only after an error or an interruption.
pub fn of_one_piece(nr: u64, a: &Args, done: i64) -> Option<Args> {
    let row = syscalls::row(nr)?;
    if let FullTransfer::IfWaitAll(flags) = row.full?
        && a.get(flags as usize)? & u64::from(MSG_WAITALL) == 0
    {
        return None;
    }
    let data = row.buffers.first()?;
    let (Dir::InRet | Dir::OutRet, Len::Arg(len)) = (data.dir, data.len) else {
        return None;
    };
    let (addr, len) = (data.arg as usize, len as usize);
    let n = u64::try_from(done).ok()?;
    let n = Some(n).filter(|n| *n > 0 && a.get(len).is_some_and(|all| n < all))?;
    let mut rest = *a;
    *rest.get_mut(addr)? += n;
    *rest.get_mut(len)? -= n;
    advance(row, &mut rest, n);
    Some(rest)
}

/// As [`of_one_piece`], for all such calls. The answer may point into `buffers`.
pub fn of(nr: u64, a: &Args, done: i64, buffers: &mut Buffers) -> Option<Args> {
    let row = syscalls::row(nr)?;
    row.full?;
    let n = u64::try_from(done).ok().filter(|n| *n > 0)?;
    let mut rest = *a;
    match row.buffers.first()?.dir {
        Dir::IovIn => {
            (rest[1], rest[2]) = buffers.vectors(a[1], a[2], n)?;
            advance(row, &mut rest, n);
        }
        Dir::MsgIn => {
            let mut message = memory::get::<MsgHdr>(a[1])?;
            (message.iov, message.iovlen) = buffers.vectors(message.iov, message.iovlen, n)?;
            // Control data (descriptors, …) were transferred with the first byte.
            (message.control, message.controllen) = (0, 0);
            rest[1] = buffers.message.write(message) as *const MsgHdr as u64;
        }
        _ => return of_one_piece(nr, a, done),
    }
    Some(rest)
}
