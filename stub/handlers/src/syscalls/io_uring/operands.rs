//! Rewrites the addresses in requests of io_uring. Each address in guarded or moved memory becomes that of the alias,
//! in the request that the kernel gets, and every stretch of memory is noted.
//!
//! Memory that the kernel copies when it takes a request (paths, times, names of sockets, vectors:
//! IORING_FEAT_SUBMIT_STABLE) may be replaced by a copy of ours. Data, and memory written at the completion, may not.
//! If such memory is not in one piece, it becomes a vector, or the request fails as on a kernel that does not have it.

use linux_raw_sys::io_uring::io_uring_op::*;
use ulpf_lib::AccessKind::{self, Read, ReadWrite, Write};
use ulpf_lib::PAGE_SIZE;

use crate::runtime::memory;
use crate::syscalls::list::word;
use crate::syscalls::scratch::Scratch;
use crate::syscalls::vectors::{IOV_MAX, IoVec, MsgHdr, cut, waiters};
use crate::uring::flight::{Flight, Moves, Span};
use crate::uring::rings::Ring;

/// A request as the kernel reads it (struct io_uring_sqe).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Sqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: i32,
    pub off: u64,
    pub addr: u64,
    pub len: u32,
    pub how: u32,
    pub user_data: u64,
    pub buf: u16,
    personality: u16,
    pub last: u32,
    pub addr3: u64,
    pub pad: u64,
}

/// The program's msghdr, to which the kernel writes at the completion. Its pointers are changed in place, and restored
/// when the kernel has taken the request.
#[derive(Clone, Copy)]
pub struct Message {
    pub at: u64,
    pub was: MsgHdr,
}

/// This request is not served.
pub struct No;

pub struct Rewriter<'a> {
    pub flight: &'a mut Flight,
    pub ring: &'a Ring,
    pub number: u8,
    pub request: u32,
    pub first: bool,
    pub s: &'a mut Scratch,
    pub sqe: &'a mut Sqe,
    pub message: Option<Message>,
    /// It completes more than once.
    pub many: bool,
    /// There was no room for it, or for its spans.
    pub full: bool,
    /// The group of buffers that it takes from, or gives to.
    pub group: Option<u16>,
    /// The number of buffers that it gives.
    pub gives: u32,
    /// The ring to which it posts a completion, and the number there.
    pub posts: Option<(i32, u64)>,
}

const BUFFER_SELECT: u8 = 1 << 5;
pub const POLL_FIRST: u16 = 1;
/// The buffer of a send is a registered one.
pub const FIXED_BUF: u16 = 1 << 2;
const ZC_REPORTS: u16 = 1 << 3;
const MULTISHOT: u16 = 1;
const TIMEOUT_UPDATES: u32 = 1 << 1 | 1 << 4;
const TIMEOUT_FLAGS: u32 = (1 << 7) - 1;
const TIMEOUT_MULTISHOT: u32 = 1 << 6;
const POLL_MULTI: u32 = 1;
const MSG_NOSIGNAL: u32 = 0x4000;
const PATH_MAX: usize = 4096;
const SOCKADDR: u64 = 128;

/// The kernel's address of a stretch, if that is in one piece.
pub fn in_one_piece(at: u64, len: u64, kind: AccessKind) -> Option<u64> {
    let mut to = at;
    let n = cut(IoVec { base: at, len }, kind, &mut |part| to = part.base);
    (n == 1).then_some(to)
}

/// The number of vectors that replace this one for the kernel.
fn pieces(v: IoVec, kind: AccessKind) -> u64 {
    cut(v, kind, &mut |_| {})
}

/// Vectors for the kernel.
pub struct Vectors {
    to: *mut IoVec,
    n: u64,
}

impl Vectors {
    /// Adds a vector that is in one piece.
    pub fn push(&mut self, v: IoVec) {
        // SAFETY: there is room for all vectors.
        unsafe { self.to.add(self.n as usize).write(v) };
        self.n += 1;
    }

    fn add(&mut self, v: IoVec, kind: AccessKind) {
        cut(v, kind, &mut |part| self.push(part));
    }

    /// Address and number of the vectors.
    pub fn done(self) -> (u64, u64) {
        (self.to as u64, self.n)
    }
}

impl Rewriter<'_> {
    pub fn allocate(&mut self, len: u64) -> Result<u64, No> {
        let to = self.s.allocate(len);
        self.full |= to.is_none();
        to.ok_or(No)
    }

    pub fn vectors_for(&mut self, n: u64) -> Result<Vectors, No> {
        if n > IOV_MAX {
            return Err(No);
        }
        let to = self.allocate(n * size_of::<IoVec>() as u64)? as *mut IoVec;
        Ok(Vectors { to, n: 0 })
    }

    pub fn note(&mut self, at: u64, len: u64, kind: AccessKind, moves: Moves) -> Result<(), No> {
        self.add(at, len, kind, moves, false)
    }

    pub fn add(
        &mut self,
        at: u64,
        len: u64,
        kind: AccessKind,
        moves: Moves,
        copied: bool,
    ) -> Result<(), No> {
        let added = self.flight.add(Span {
            at,
            len,
            opcode: self.sqe.opcode,
            moves,
            copied,
            kind,
            first: core::mem::take(&mut self.first),
            ..Span::without_memory(self.number, self.request, self.sqe.user_data)
        });
        self.full |= !added;
        if added { Ok(()) } else { Err(No) }
    }

    /// Notes memory that the kernel holds until the completion.
    pub fn hold(&mut self, at: u64, len: u64, kind: AccessKind) -> Result<u64, No> {
        if at == 0 {
            return Ok(0);
        }
        let to = in_one_piece(at, len, kind).ok_or(No)?;
        self.note(at, len, kind, Moves::Whole)?;
        Ok(to)
    }

    /// Notes memory that the kernel copies when it takes the request.
    pub fn copied(&mut self, at: u64, len: u64) -> Result<u64, No> {
        if at == 0 || len == 0 {
            return Ok(at);
        }
        self.add(at, len, Read, Moves::Whole, true)?;
        if let Some(to) = in_one_piece(at, len, Read) {
            return Ok(to);
        }
        // Not readable: the kernel reports the error.
        Ok(self.s.copy(at, len).unwrap_or(at))
    }

    pub fn path(&mut self, at: u64) -> Result<u64, No> {
        match memory::strlen(at, PATH_MAX) {
            Some(n) => self.copied(at, n as u64 + 1),
            None => Ok(at),
        }
    }

    /// Makes vectors for the kernel.
    fn vectors(&mut self, at: u64, count: u64, kind: AccessKind) -> Result<(u64, u64), No> {
        if count == 0 || count > IOV_MAX {
            return Ok((at, count)); // the kernel reports the error
        }
        self.add(at, count * 16, Read, Moves::Whole, true)?;
        let vector = |i: u64| memory::get::<IoVec>(at.wrapping_add(i * 16));
        let mut n = 0;
        for i in 0..count {
            let Some(v) = vector(i) else {
                return Ok((at, count));
            };
            n += pieces(v, kind);
        }
        let mut vectors = self.vectors_for(n)?;
        // Another thread may be changing them: uses no more than there is room for.
        for v in (0..count).filter_map(vector) {
            if v.len > 0 {
                self.note(v.base, v.len, kind, Moves::Result)?;
            }
            if vectors.n + pieces(v, kind) > n {
                return Err(No);
            }
            vectors.add(v, kind);
        }
        Ok(vectors.done())
    }

    /// A buffer in one piece, or the vectors that replace it in another operation.
    fn data(&mut self, kind: AccessKind) -> Result<Option<(u64, u64)>, No> {
        let (at, len) = (self.sqe.addr, self.sqe.len as u64);
        if len == 0 {
            return Ok(None);
        }
        self.note(at, len, kind, Moves::Result)?;
        if let Some(to) = in_one_piece(at, len, kind) {
            self.sqe.addr = to;
            return Ok(None);
        }
        let whole = IoVec { base: at, len };
        let mut vectors = self.vectors_for(pieces(whole, kind))?;
        vectors.add(whole, kind);
        Ok(Some(vectors.done()))
    }

    fn read_or_write(&mut self, kind: AccessKind, vectored: u8) -> Result<(), No> {
        if self.sqe.pad != 0 {
            return Err(No); // attributes, which are pointers
        }
        if let Some((at, n)) = self.data(kind)? {
            (self.sqe.opcode, self.sqe.addr, self.sqe.len) = (vectored, at, n as u32);
        }
        Ok(())
    }

    fn vectored(&mut self, kind: AccessKind) -> Result<(), No> {
        if self.sqe.pad != 0 {
            return Err(No);
        }
        let (at, n) = self.vectors(self.sqe.addr, self.sqe.len as u64, kind)?;
        (self.sqe.addr, self.sqe.len) = (at, n as u32);
        Ok(())
    }

    pub fn fixed(&mut self, kind: AccessKind) -> Result<(), No> {
        if self.sqe.pad != 0 {
            return Err(No);
        }
        let Some(b) = self.ring.fixed(self.sqe.buf as u32) else {
            return Ok(());
        };
        let (at, len) = (self.sqe.addr, self.sqe.len as u64);
        if at >= b.at && at.checked_add(len).is_some_and(|end| end <= b.at + b.len) {
            self.note(at, len, kind, Moves::Result)?;
            self.sqe.addr = b.given + (at - b.at);
        } else if b.given != b.at {
            self.sqe.addr = 0; // outside of the buffer: EFAULT, as without us
        }
        Ok(())
    }

    /// send and recv become sendmsg and recvmsg if their buffer is not in one piece.
    pub fn socket(&mut self, kind: AccessKind, with_message: u8) -> Result<(), No> {
        if self.sqe.ioprio & !(POLL_FIRST | ZC_REPORTS) != 0 {
            return Err(No);
        }
        let name = (self.sqe.off, (self.sqe.last & 0xffff) as u64);
        let named = kind == Read && name.0 != 0;
        if named {
            self.sqe.off = self.copied(name.0, name.1)?;
        }
        if let Some((iov, n)) = self.data(kind)? {
            if kind == Write {
                // The kernel would write to our header at the completion of recvmsg.
                if self.sqe.how & !MSG_NOSIGNAL != 0 {
                    return Err(No);
                }
                (self.sqe.opcode, self.sqe.addr, self.sqe.len) =
                    (IORING_OP_READV as u8, iov, n as u32);
                (self.sqe.off, self.sqe.how, self.sqe.ioprio, self.sqe.buf) = (0, 0, 0, 0);
                return Ok(());
            }
            let m = MsgHdr::of_vectors(
                if named {
                    (self.sqe.off, name.1)
                } else {
                    (0, 0)
                },
                iov,
                n,
            );
            let to = self.allocate(size_of::<MsgHdr>() as u64)?;
            // SAFETY: room for it.
            unsafe { (to as *mut MsgHdr).write(m) };
            self.sqe.opcode = with_message;
            (self.sqe.addr, self.sqe.len, self.sqe.off, self.sqe.last) = (to, 1, 0, 0);
        }
        Ok(())
    }

    pub fn sendmsg(&mut self) -> Result<(), No> {
        if self.sqe.ioprio & !(POLL_FIRST | ZC_REPORTS | FIXED_BUF) != 0 {
            return Err(No);
        }
        let Some(mut m) = memory::get::<MsgHdr>(self.sqe.addr) else {
            return Ok(());
        };
        self.add(
            self.sqe.addr,
            size_of::<MsgHdr>() as u64,
            Read,
            Moves::Whole,
            true,
        )?;
        (m.iov, m.iovlen) = match self.sqe.ioprio & FIXED_BUF {
            0 => self.vectors(m.iov, m.iovlen, Read)?,
            _ => self.fixed_vectors(m.iov, m.iovlen, Read)?,
        };
        m.name = self.copied(m.name, (m.namelen as u64).min(SOCKADDR))?;
        m.control = self.hold(m.control, m.controllen, Read)?;
        let to = self.allocate(size_of::<MsgHdr>() as u64)?;
        // SAFETY: room for it.
        unsafe { (to as *mut MsgHdr).write(m) };
        self.sqe.addr = to;
        Ok(())
    }

    fn recvmsg(&mut self) -> Result<(), No> {
        if self.sqe.ioprio & !POLL_FIRST != 0 {
            return Err(No);
        }
        self.receive(|this, m| {
            (m.iov, m.iovlen) = this.vectors(m.iov, m.iovlen, Write)?;
            Ok(())
        })
    }

    /// The header of a receive, to which the kernel writes, too; `vector` rewrites the vector.
    pub fn receive(
        &mut self,
        vector: impl FnOnce(&mut Self, &mut MsgHdr) -> Result<(), No>,
    ) -> Result<(), No> {
        let at = self.sqe.addr;
        let Some(was) = memory::get::<MsgHdr>(at) else {
            return Ok(());
        };
        let mut m = was;
        let header = self.hold(at, size_of::<MsgHdr>() as u64, ReadWrite)?;
        vector(self, &mut m)?;
        m.name = self.hold(m.name, (m.namelen as u64).min(SOCKADDR), Write)?;
        m.control = self.hold(m.control, m.controllen, Write)?;
        self.sqe.addr = header;
        self.message = Some(Message { at, was });
        m.put_pointers(at);
        Ok(())
    }

    /// Rewrites the request.
    pub fn rewrite(&mut self) -> Result<(), No> {
        if self.sqe.flags & BUFFER_SELECT != 0 {
            self.takes_buffer()?;
            return self.noted();
        }
        let code = self.sqe.opcode as u32;
        let is = |op: linux_raw_sys::io_uring::io_uring_op| op as u32 == code;
        let sqe = *self.sqe;
        const READV: u8 = IORING_OP_READV as u8;
        const WRITEV: u8 = IORING_OP_WRITEV as u8;
        const SENDMSG: u8 = IORING_OP_SENDMSG as u8;
        const RECVMSG: u8 = IORING_OP_RECVMSG as u8;
        if is(IORING_OP_READ) {
            self.read_or_write(Write, READV)?;
        } else if is(IORING_OP_WRITE) {
            self.read_or_write(Read, WRITEV)?;
        } else if is(IORING_OP_READV) {
            self.vectored(Write)?;
        } else if is(IORING_OP_WRITEV) {
            self.vectored(Read)?;
        } else if is(IORING_OP_READ_FIXED) {
            self.fixed(Write)?;
        } else if is(IORING_OP_WRITE_FIXED) {
            self.fixed(Read)?;
        } else if is(IORING_OP_SEND) {
            self.socket(Read, SENDMSG)?;
        } else if is(IORING_OP_RECV) {
            self.socket(Write, RECVMSG)?;
        } else if is(IORING_OP_SENDMSG) {
            self.sendmsg()?;
        } else if is(IORING_OP_RECVMSG) {
            self.recvmsg()?;
        } else if is(IORING_OP_TIMEOUT) || is(IORING_OP_LINK_TIMEOUT) {
            if sqe.how & !TIMEOUT_FLAGS != 0 {
                return Err(No);
            }
            self.many = sqe.how & TIMEOUT_MULTISHOT != 0;
            self.sqe.addr = self.copied(sqe.addr, 16)?;
        } else if is(IORING_OP_TIMEOUT_REMOVE) {
            if sqe.how & !TIMEOUT_FLAGS != 0 {
                return Err(No);
            }
            if sqe.how & TIMEOUT_UPDATES != 0 {
                self.sqe.off = self.copied(sqe.off, 16)?;
            }
        } else if is(IORING_OP_ACCEPT) {
            self.many = sqe.ioprio & MULTISHOT != 0;
            if sqe.addr != 0 {
                let room = memory::get::<u32>(sqe.off).unwrap_or(0) as u64;
                self.sqe.addr = self.hold(sqe.addr, room.min(SOCKADDR), Write)?;
                self.sqe.off = self.hold(sqe.off, 4, ReadWrite)?;
            }
        } else if is(IORING_OP_CONNECT) || is(IORING_OP_BIND) {
            self.sqe.addr = self.copied(sqe.addr, sqe.off.min(SOCKADDR))?;
        } else if is(IORING_OP_OPENAT) || is(IORING_OP_UNLINKAT) || is(IORING_OP_MKDIRAT) {
            self.sqe.addr = self.path(sqe.addr)?;
        } else if is(IORING_OP_RENAMEAT) || is(IORING_OP_SYMLINKAT) || is(IORING_OP_LINKAT) {
            self.sqe.addr = self.path(sqe.addr)?;
            self.sqe.off = self.path(sqe.off)?;
        } else if is(IORING_OP_OPENAT2) {
            self.sqe.addr = self.path(sqe.addr)?;
            self.sqe.off = self.copied(sqe.off, (sqe.len as u64).min(PAGE_SIZE))?;
        } else if is(IORING_OP_STATX) {
            self.sqe.addr = self.path(sqe.addr)?;
            self.sqe.off = self.hold(sqe.off, 256, Write)?;
        } else if is(IORING_OP_EPOLL_CTL) {
            self.sqe.addr = self.copied(sqe.addr, 12)?;
        } else if is(IORING_OP_FILES_UPDATE) {
            self.sqe.addr = self.hold(sqe.addr, sqe.len as u64 * 4, ReadWrite)?;
        } else if is(IORING_OP_EPOLL_WAIT) {
            let len = sqe.len as u64 * 12;
            self.sqe.addr = in_one_piece(sqe.addr, len, Write).ok_or(No)?;
            self.note(sqe.addr, len, Write, Moves::Times(12))?;
        } else if is(IORING_OP_WAITID) {
            self.sqe.off = self.hold(sqe.off, 128, Write)?;
        } else if is(IORING_OP_PIPE) {
            self.sqe.addr = self.hold(sqe.addr, 8, Write)?;
        } else if is(IORING_OP_FUTEX_WAIT) || is(IORING_OP_FUTEX_WAKE) {
            self.note(sqe.addr, 4, Read, Moves::Whole)?;
            self.sqe.addr = word(sqe.addr);
        } else if is(IORING_OP_FUTEX_WAITV) {
            for i in 0..(sqe.len as u64).min(128) {
                let at = memory::get::<u64>(sqe.addr + i * 24 + 8).ok_or(No)?;
                self.note(at, 4, Read, Moves::Whole)?;
            }
            self.sqe.addr = waiters(sqe.addr, sqe.len as u64 * 24, self.s).ok_or(No)?;
        } else if is(IORING_OP_PROVIDE_BUFFERS) {
            self.gives_buffers()?;
        } else if is(IORING_OP_REMOVE_BUFFERS) {
            self.group = Some(sqe.buf);
        } else if is(IORING_OP_POLL_ADD) {
            self.many = sqe.len & POLL_MULTI != 0;
        } else if !without_memory(code) {
            self.rarely()?;
        }
        self.noted()
    }

    /// A request without memory is noted, too, since others may have the same number.
    fn noted(&mut self) -> Result<(), No> {
        match self.first {
            true => self.add(0, 0, Read, Moves::Whole, true),
            false => Ok(()),
        }
    }
}

/// Operations without pointers.
fn without_memory(code: u32) -> bool {
    const ALL: &[linux_raw_sys::io_uring::io_uring_op] = &[
        IORING_OP_NOP,
        IORING_OP_FSYNC,
        IORING_OP_POLL_REMOVE,
        IORING_OP_SYNC_FILE_RANGE,
        IORING_OP_ASYNC_CANCEL,
        IORING_OP_FALLOCATE,
        IORING_OP_CLOSE,
        IORING_OP_FADVISE,
        IORING_OP_SPLICE,
        IORING_OP_TEE,
        IORING_OP_SHUTDOWN,
        IORING_OP_SOCKET,
        IORING_OP_FIXED_FD_INSTALL,
        IORING_OP_FTRUNCATE,
        IORING_OP_LISTEN,
    ];
    ALL.iter().any(|op| *op as u32 == code)
}

/// True if the operation is served.
pub fn is_served(code: u8) -> bool {
    use linux_raw_sys::io_uring::io_uring_op as op;
    const WITH: &[op] = &[
        IORING_OP_READ,
        IORING_OP_WRITE,
        IORING_OP_READV,
        IORING_OP_WRITEV,
        IORING_OP_READ_FIXED,
        IORING_OP_WRITE_FIXED,
        IORING_OP_SEND,
        IORING_OP_RECV,
        IORING_OP_SENDMSG,
        IORING_OP_RECVMSG,
        IORING_OP_TIMEOUT,
        IORING_OP_LINK_TIMEOUT,
        IORING_OP_TIMEOUT_REMOVE,
        IORING_OP_ACCEPT,
        IORING_OP_CONNECT,
        IORING_OP_BIND,
        IORING_OP_OPENAT,
        IORING_OP_UNLINKAT,
        IORING_OP_MKDIRAT,
        IORING_OP_RENAMEAT,
        IORING_OP_SYMLINKAT,
        IORING_OP_LINKAT,
        IORING_OP_OPENAT2,
        IORING_OP_STATX,
        IORING_OP_EPOLL_CTL,
        IORING_OP_FILES_UPDATE,
        IORING_OP_EPOLL_WAIT,
        IORING_OP_WAITID,
        IORING_OP_PIPE,
        IORING_OP_FUTEX_WAIT,
        IORING_OP_FUTEX_WAKE,
        IORING_OP_FUTEX_WAITV,
        IORING_OP_POLL_ADD,
        IORING_OP_PROVIDE_BUFFERS,
        IORING_OP_REMOVE_BUFFERS,
        IORING_OP_READ_MULTISHOT,
        IORING_OP_SEND_ZC,
        IORING_OP_SENDMSG_ZC,
        IORING_OP_MADVISE,
        IORING_OP_MSG_RING,
        IORING_OP_SETXATTR,
        IORING_OP_FSETXATTR,
        IORING_OP_GETXATTR,
        IORING_OP_FGETXATTR,
        IORING_OP_READV_FIXED,
        IORING_OP_WRITEV_FIXED,
    ];
    without_memory(code as u32) || WITH.iter().any(|op| *op as u32 == code as u32)
}
