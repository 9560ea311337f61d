//! Requests that give buffers to a ring, and those that take one (`uring::provided`).

use linux_raw_sys::io_uring::io_uring_op::*;
use ulpf_lib::AccessKind::{Read, Write};

use super::operands::{No, POLL_FIRST, Rewriter, Sqe, in_one_piece};
use crate::runtime::memory;
use crate::syscalls::vectors::MsgHdr;
use crate::uring::flight::Moves;
use crate::uring::span::key;

const RECV_MULTISHOT: u16 = 2;

impl Sqe {
    /// The `n`th buffer of IORING_OP_PROVIDE_BUFFERS: key, address, length.
    pub fn given(&self, n: u32) -> (u64, u64, u64) {
        let number = (self.off as u16).wrapping_add(n as u16);
        let at = self.addr + u64::from(n) * u64::from(self.len);
        (key(self.buf, number), at, u64::from(self.len))
    }
}

impl Rewriter<'_> {
    /// Notes the buffers that later requests may take.
    pub fn gives_buffers(&mut self) -> Result<(), No> {
        let (many, len) = (self.sqe.fd as u32, u64::from(self.sqe.len));
        let total = u64::from(many) * len;
        let wrong = many == 0 || many > 1 << 16 || self.sqe.off > u16::MAX.into();
        if wrong || len == 0 || self.sqe.addr.checked_add(total).is_none() {
            return Ok(()); // the kernel reports the error
        }
        if !self.flight.has_room(u64::from(many) + 1) {
            self.full = true;
            return Err(No);
        }
        self.sqe.addr = in_one_piece(self.sqe.addr, total, Write).ok_or(No)?;
        (self.group, self.gives) = (Some(self.sqe.buf), many);
        Ok(())
    }

    /// The kernel writes to a buffer that it has been given.
    pub fn takes_buffer(&mut self) -> Result<(), No> {
        const READ: u8 = IORING_OP_READ as u8;
        const READV: u8 = IORING_OP_READV as u8;
        const READ_MULTISHOT: u8 = IORING_OP_READ_MULTISHOT as u8;
        const RECV: u8 = IORING_OP_RECV as u8;
        const RECVMSG: u8 = IORING_OP_RECVMSG as u8;
        let sqe = *self.sqe;
        self.group = Some(sqe.buf);
        match sqe.opcode {
            READ if sqe.pad == 0 => {}
            READ_MULTISHOT => self.many = true,
            READV if sqe.pad == 0 => self.sqe.addr = self.copied(sqe.addr, 16)?,
            RECV | RECVMSG => {
                if sqe.ioprio & !(POLL_FIRST | RECV_MULTISHOT) != 0 {
                    return Err(No);
                }
                self.many = sqe.ioprio & RECV_MULTISHOT != 0;
                if sqe.opcode == RECVMSG {
                    self.recvmsg_into()?;
                }
            }
            _ => return Err(No),
        }
        Ok(())
    }

    /// The header of a receive into a provided buffer: with its vector, of which only the length counts.
    fn recvmsg_into(&mut self) -> Result<(), No> {
        if self.many {
            // The buffer also gets the name and control data; the header is read once.
            let Some(mut m) = memory::get::<MsgHdr>(self.sqe.addr) else {
                return Ok(());
            };
            let size = size_of::<MsgHdr>() as u64;
            self.add(self.sqe.addr, size, Read, Moves::Whole, true)?;
            m.iov = self.copied(m.iov, m.iovlen.min(1) * 16)?;
            let to = self.allocate(size)?;
            // SAFETY: room for it.
            unsafe { (to as *mut MsgHdr).write(m) };
            self.sqe.addr = to;
            return Ok(());
        }
        self.receive(|this, m| {
            m.iov = this.copied(m.iov, m.iovlen.min(1) * 16)?;
            Ok(())
        })
    }
}
