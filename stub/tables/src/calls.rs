//! Patched system calls: the `syscall` instructions whose code leads to a slot in the stub's image
//! (`syscalls/sites.rs` of the handlers).

use crate::edit::Edit;

/// Bytes of a slot, and their number.
pub const SLOT: usize = 512;
pub const SLOTS: usize = 256;
/// Limit of [`Mark`]s in a slot.
pub const MAX_MARKS: usize = 56;
/// Bytes of a trampoline, a jump to the slot. Where the `syscall` itself is displaced, as many bytes follow that make
/// the call outside the image, so that it is dispatched ([`Call::slow`]).
pub const TRAMPOLINE: u64 = 14;
/// Bytes of an instruction `syscall`.
pub const SYSCALL: u64 = 2;

pub const XOR_EAX: [u8; 2] = [0x31, 0xc0];

/// Registers by their number in an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reg {
    Rdx = 2,
    Rsi = 6,
    Rdi = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
}

/// The state of the original code that corresponds to an instruction of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Nothing has happened: at the first patched byte.
    Mov,
    /// At the `syscall` instruction.
    Before,
    /// The same; the register has a time in its upper half. (rax is not always the number: the kernel may have prepared
    /// restart_syscall(2), which a handler makes impossible.)
    Call { nr: u16, stamped: Option<Reg> },
    /// The same, with rax lost and rdx in r11.
    Lost { nr: u16 },
    /// The same; the upper half of rsi has the class of the page of the word, whose alias rdi may already have.
    Word { alias: bool },
    /// Behind such a call.
    AfterWord { nr: u16, alias: bool },
    /// Behind the `syscall` instruction; `just`: no further instruction has been executed.
    After {
        nr: u16,
        stamped: Option<Reg>,
        just: bool,
    },
}

/// Instructions that begin before `end`, and after the previous mark, are in `phase`.
#[derive(Clone, Copy)]
pub struct Mark {
    pub end: u16,
    pub phase: Phase,
}

impl Mark {
    pub const NONE: Mark = Mark {
        end: u16::MAX,
        phase: Phase::Mov,
    };
}

/// A patched call.
#[derive(Clone)]
pub struct Call {
    /// Number of its slot.
    pub slot: usize,
    /// Address, length and original contents of the changed bytes.
    pub start: u64,
    pub len: u8,
    pub original: [u8; 8],
    pub patched: [u8; 8],
    /// End of the bytes that must not change while the patch is there (those that complete a punned jump).
    pub end: u64,
    /// The `syscall` instruction.
    pub insn: u64,
    pub trampoline: u64,
    /// The number that the instruction before it loads, which is part of the patch.
    pub mov: Option<u32>,
    /// Another instruction before it is part of the patch.
    pub first: bool,
    pub marks: [Mark; MAX_MARKS],
}

impl Call {
    /// The instruction before `syscall` is `xor eax, eax`.
    pub fn xor(&self) -> bool {
        self.mov.is_some() && self.original.starts_with(&XOR_EAX)
    }
    pub fn next(&self) -> u64 {
        self.insn + SYSCALL
    }
    /// The instruction before `syscall` with which the slot begins.
    pub fn first(&self) -> &[u8] {
        if self.first { self.original() } else { &[] }
    }
    /// True if the `syscall` is still there.
    pub fn keeps_syscall(&self) -> bool {
        self.mov.is_some() || self.first
    }
    /// A `syscall` instruction that is dispatched: the program's, or the one behind the trampoline.
    pub fn slow(&self) -> u64 {
        match self.keeps_syscall() {
            true => self.insn,
            false => self.trampoline + TRAMPOLINE,
        }
    }
    /// Length of the code at `trampoline`.
    pub fn trampoline_len(&self) -> u64 {
        match self.keeps_syscall() {
            true => TRAMPOLINE,
            false => 2 * TRAMPOLINE,
        }
    }
}

impl Edit for Call {
    fn start(&self) -> u64 {
        self.start
    }
    fn end(&self) -> u64 {
        self.end
    }
    fn original(&self) -> &[u8] {
        self.original.get(..self.len as usize).unwrap_or(&[])
    }
    fn ours(&self) -> &[u8] {
        self.patched.get(..self.len as usize).unwrap_or(&[])
    }
}
