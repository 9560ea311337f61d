//! The C library's functions that pass buffers to the kernel (`calls.rs` has the reason and the method).
//!
//! These are functions that move any number of bytes to a place that the program chooses. Structures that a call fills
//! (fstat, getsockopt, …) and the C library's internal buffers (stdio) are not among them.

use core::ffi::{c_int, c_void};

use linux_raw_sys::general as k;
use ulpf_lib::AccessKind::{self, Read, Write};
use ulpf_lib::sys::Errno;

use crate::calls::{Caller, Piece, cancellable, through};

type Vectors = *const Piece;
const MOST_VECTORS: usize = 1024;

fn answer(result: Result<u64, Errno>) -> isize {
    match result {
        Ok(n) => n as isize,
        Err(Errno(e)) => {
            // SAFETY: the calling thread's errno.
            unsafe { *libc::__errno_location() = e };
            -1
        }
    }
}

/// A call with one buffer as its second and third argument.
///
/// # Safety
/// The arguments are those of the call.
unsafe fn plain(who: Caller, kind: AccessKind) -> isize {
    let [fd, addr, len, d, e, f] = who.args;
    let piece = Piece { addr, len };
    answer(through(who, &[piece], kind, |buffer| {
        let Piece { addr, len } = buffer.unwrap_or(piece);
        // SAFETY: the caller's promise, or a buffer of the same length.
        unsafe { cancellable(who.nr, [fd, addr, len, d, e, f]) }
    }))
}

/// readv, writev, preadv, pwritev.
///
/// # Safety
/// As `plain`.
unsafe fn vectored(who: Caller, kind: AccessKind) -> isize {
    let [fd, vectors, count, d, e, f] = who.args;
    // SAFETY: the caller's promise; the kernel reports errors in it.
    let pieces = unsafe { pieces(vectors as Vectors, count as usize) };
    answer(through(who, pieces, kind, |buffer| {
        let one = buffer.unwrap_or(Piece { addr: 0, len: 0 });
        let (vectors, count) = match buffer {
            Some(_) => (&raw const one as u64, 1),
            None => (vectors, count),
        };
        // SAFETY: the caller's promise, or a buffer as long as all of its.
        unsafe { cancellable(who.nr, [fd, vectors, count, d, e, f]) }
    }))
}

/// # Safety
/// `vectors` points to `count` of them, if there are that many.
unsafe fn pieces<'a>(vectors: Vectors, count: usize) -> &'a [Piece] {
    if vectors.is_null() || count > MOST_VECTORS {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(vectors, count) }
}

/// recvmsg, sendmsg.
///
/// # Safety
/// As `plain`.
unsafe fn message(
    who: Caller,
    kind: AccessKind,
    fd: c_int,
    message: *mut libc::msghdr,
    flags: c_int,
) -> isize {
    let call = |m: *mut libc::msghdr| {
        // SAFETY: the caller's promise.
        unsafe { cancellable(who.nr, [fd as u64, m as u64, flags as u64, 0, 0, 0]) }
    };
    // SAFETY: the caller's promise.
    let Some(theirs) = (unsafe { message.as_ref() }) else {
        return answer(call(message));
    };
    // SAFETY: as above.
    let pieces = unsafe { pieces(theirs.msg_iov.cast(), theirs.msg_iovlen) };
    answer(through(who, pieces, kind, |buffer| {
        let Some(mut one) = buffer else {
            return call(message);
        };
        let mut ours = *theirs;
        ours.msg_iov = (&raw mut one).cast();
        ours.msg_iovlen = 1;
        let result = call(&mut ours);
        if kind == Write {
            // SAFETY: the caller's structure, which recvmsg(2) writes to.
            unsafe {
                (*message).msg_namelen = ours.msg_namelen;
                (*message).msg_controllen = ours.msg_controllen;
                (*message).msg_flags = ours.msg_flags;
            }
        }
        result
    }))
}

/// Functions of the C library with one buffer, or with vectors, as second and third argument.
macro_rules! functions {
    ($($how:ident $name:ident = $nr:ident, $kind:ident, ($a:ident, $b:ident, $c:ident: $count:ty $(, $more:ident: $type:ty)*);)*) => {$(
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($a: c_int, $b: *const c_void, $c: $count $(, $more: $type)*) -> isize {
            let mut args = [$a as u64, $b as u64, $c as u64, 0, 0, 0];
            let more: &[u64] = &[$($more as u64),*];
            args[3..3 + more.len()].copy_from_slice(more);
            let who = Caller { nr: k::$nr, pc: $name as *const () as u64, args };
            // SAFETY: the caller's promise.
            unsafe { $how(who, $kind) }
        }
    )*};
}

functions! {
    plain read = __NR_read, Write, (fd, buffer, len: usize);
    plain write = __NR_write, Read, (fd, buffer, len: usize);
    plain pread = __NR_pread64, Write, (fd, buffer, len: usize, offset: i64);
    plain pread64 = __NR_pread64, Write, (fd, buffer, len: usize, offset: i64);
    plain pwrite = __NR_pwrite64, Read, (fd, buffer, len: usize, offset: i64);
    plain pwrite64 = __NR_pwrite64, Read, (fd, buffer, len: usize, offset: i64);
    plain recvfrom = __NR_recvfrom, Write, (fd, buffer, len: usize, flags: c_int, from: *mut c_void, from_len: *mut u32);
    plain sendto = __NR_sendto, Read, (fd, buffer, len: usize, flags: c_int, to: *const c_void, to_len: u32);
    plain recv = __NR_recvfrom, Write, (fd, buffer, len: usize, flags: c_int);
    plain send = __NR_sendto, Read, (fd, buffer, len: usize, flags: c_int);
    vectored readv = __NR_readv, Write, (fd, vectors, count: c_int);
    vectored writev = __NR_writev, Read, (fd, vectors, count: c_int);
}

/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    let who = Caller {
        nr: k::__NR_recvmsg,
        pc: recvmsg as *const () as u64,
        args: [fd as u64, msg as u64, flags as u64, 0, 0, 0],
    };
    // SAFETY: the caller's promise.
    unsafe { message(who, Write, fd, msg, flags) }
}

/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    msg: *const libc::msghdr,
    flags: c_int,
) -> isize {
    let who = Caller {
        nr: k::__NR_sendmsg,
        pc: sendmsg as *const () as u64,
        args: [fd as u64, msg as u64, flags as u64, 0, 0, 0],
    };
    // SAFETY: the caller's promise; sendmsg(2) writes nothing to it.
    unsafe { message(who, Read, fd, msg.cast_mut(), flags) }
}

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// Ends the process as the C library does (`_FORTIFY_SOURCE`), if the compiler knows that the buffer is too small.
fn fits(len: usize, room: usize) {
    if len > room {
        // SAFETY: does not return.
        unsafe { __chk_fail() }
    }
}

/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    to: *const c_void,
    n: usize,
    room: usize,
) -> isize {
    fits(n, room);
    // SAFETY: the caller's promise.
    unsafe { read(fd, to, n) }
}

/// # Safety
/// As pread(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __pread_chk(
    fd: c_int,
    to: *const c_void,
    n: usize,
    at: i64,
    room: usize,
) -> isize {
    fits(n, room);
    // SAFETY: the caller's promise.
    unsafe { pread(fd, to, n, at) }
}

/// # Safety
/// As pread(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __pread64_chk(
    fd: c_int,
    to: *const c_void,
    n: usize,
    at: i64,
    room: usize,
) -> isize {
    fits(n, room);
    // SAFETY: the caller's promise.
    unsafe { pread(fd, to, n, at) }
}

/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *const c_void,
    n: usize,
    room: usize,
    flags: c_int,
) -> isize {
    fits(n, room);
    // SAFETY: the caller's promise.
    unsafe { recv(fd, to, n, flags) }
}

/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *const c_void,
    n: usize,
    room: usize,
    flags: c_int,
    from: *mut c_void,
    from_len: *mut u32,
) -> isize {
    fits(n, room);
    // SAFETY: the caller's promise.
    unsafe { recvfrom(fd, to, n, flags, from, from_len) }
}
