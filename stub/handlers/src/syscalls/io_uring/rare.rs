//! Rarer requests: zero-copy sends, messages to other rings, advice, extended attributes.

use linux_raw_sys::general as k;
use linux_raw_sys::io_uring::io_uring_op::*;
use ulpf_lib::AccessKind::{self, Read, Write};

use super::operands::{FIXED_BUF, No, Rewriter, in_one_piece};
use crate::global::g;
use crate::runtime::memory;
use crate::syscalls::vectors::{IOV_MAX, IoVec};
use crate::uring::flight::Moves;

const FIXED_FILE: u8 = 1;
/// No completion for the ring that gets the message (IORING_MSG_RING_CQE_SKIP).
const SILENT: u32 = 1;

impl Rewriter<'_> {
    pub fn rarely(&mut self) -> Result<(), No> {
        const SEND_ZC: u8 = IORING_OP_SEND_ZC as u8;
        const SENDMSG_ZC: u8 = IORING_OP_SENDMSG_ZC as u8;
        const MADVISE: u8 = IORING_OP_MADVISE as u8;
        const MSG_RING: u8 = IORING_OP_MSG_RING as u8;
        const SETXATTR: u8 = IORING_OP_SETXATTR as u8;
        const FSETXATTR: u8 = IORING_OP_FSETXATTR as u8;
        const GETXATTR: u8 = IORING_OP_GETXATTR as u8;
        const FGETXATTR: u8 = IORING_OP_FGETXATTR as u8;
        const READV_FIXED: u8 = IORING_OP_READV_FIXED as u8;
        const WRITEV_FIXED: u8 = IORING_OP_WRITEV_FIXED as u8;
        match self.sqe.opcode {
            SEND_ZC => self.send_zc(),
            SENDMSG_ZC => {
                self.many = true;
                self.sendmsg()
            }
            MADVISE => self.advice(),
            MSG_RING => {
                self.message_to_ring();
                Ok(())
            }
            READV_FIXED => self.vectored_fixed(Write),
            WRITEV_FIXED => self.vectored_fixed(Read),
            SETXATTR | FSETXATTR => self.attribute(false),
            GETXATTR | FGETXATTR => self.attribute(true),
            _ => Err(No),
        }
    }

    /// Its memory is held until a second completion.
    fn send_zc(&mut self) -> Result<(), No> {
        self.many = true;
        if self.sqe.ioprio & FIXED_BUF == 0 {
            return self.socket(Read, IORING_OP_SENDMSG_ZC as u8);
        }
        let name = (self.sqe.off, u64::from(self.sqe.last as u16));
        if name.0 != 0 {
            self.sqe.off = self.copied(name.0, name.1)?;
        }
        self.fixed(Read)
    }

    fn vectored_fixed(&mut self, kind: AccessKind) -> Result<(), No> {
        if self.sqe.pad != 0 {
            return Err(No);
        }
        let (at, n) = self.fixed_vectors(self.sqe.addr, u64::from(self.sqe.len), kind)?;
        (self.sqe.addr, self.sqe.len) = (at, n as u32);
        Ok(())
    }

    /// Vectors within a registered buffer.
    pub fn fixed_vectors(
        &mut self,
        at: u64,
        count: u64,
        kind: AccessKind,
    ) -> Result<(u64, u64), No> {
        let buffer = self.ring.fixed(u32::from(self.sqe.buf));
        let Some(b) = buffer.filter(|_| count > 0 && count <= IOV_MAX) else {
            return Ok((at, count)); // the kernel reports the error
        };
        self.add(at, count * 16, Read, Moves::Whole, true)?;
        let mut vectors = self.vectors_for(count)?;
        for i in 0..count {
            let Some(v) = memory::get::<IoVec>(at.wrapping_add(i * 16)) else {
                return Ok((at, count));
            };
            let end = v.base.checked_add(v.len);
            let inside = v.base >= b.at && end.is_some_and(|end| end <= b.at + b.len);
            if inside && v.len > 0 {
                self.note(v.base, v.len, kind, Moves::Result)?;
            }
            let base = match inside {
                true => b.given + (v.base - b.at),
                false if b.given != b.at => 0, // EFAULT, as without us
                false => v.base,
            };
            vectors.push(IoVec { base, len: v.len });
        }
        Ok(vectors.done())
    }

    /// Advice that does not affect guards.
    fn advice(&mut self) -> Result<(), No> {
        let (start, len) = (self.sqe.addr, u64::from(self.sqe.len));
        match self.sqe.how {
            k::MADV_NORMAL | k::MADV_RANDOM | k::MADV_SEQUENTIAL | k::MADV_WILLNEED => Ok(()),
            k::MADV_COLD | k::MADV_PAGEOUT => Ok(()),
            k::MADV_DONTNEED | k::MADV_FREE if !g().touches(start, start.saturating_add(len)) => {
                Ok(())
            }
            _ => Err(No),
        }
    }

    fn message_to_ring(&mut self) {
        let sqe = *self.sqe;
        if sqe.how & SILENT == 0 && sqe.flags & FIXED_FILE == 0 {
            self.posts = Some((sqe.fd, sqe.off));
        }
    }

    /// An extended attribute: name and value, of a descriptor or a path.
    fn attribute(&mut self, written: bool) -> Result<(), No> {
        let sqe = *self.sqe;
        let len = u64::from(sqe.len);
        self.sqe.addr = self.path(sqe.addr)?;
        self.sqe.off = match written {
            true if len == 0 => sqe.off,
            true => self.result_of(sqe.off, len)?,
            false => self.copied(sqe.off, len)?,
        };
        let with_path = [IORING_OP_SETXATTR as u8, IORING_OP_GETXATTR as u8];
        if with_path.contains(&sqe.opcode) {
            self.sqe.addr3 = self.path(sqe.addr3)?;
        }
        Ok(())
    }

    /// A buffer of which the kernel writes as many bytes as the result says.
    fn result_of(&mut self, at: u64, len: u64) -> Result<u64, No> {
        let to = in_one_piece(at, len, Write).ok_or(No)?;
        self.note(at, len, Write, Moves::Result)?;
        Ok(to)
    }
}
