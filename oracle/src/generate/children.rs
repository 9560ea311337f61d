//! Children: forked, with memory of their own but for the shared arena, or by vfork, in their parent's memory. A
//! child makes some of what its parent could make, and exits or executes something; the parent has waited before it goes
//! on.

use super::Gen;
use crate::asm::*;
use crate::program::{ARENA_LEN, ARENAS, CONTROL, Judge};

/// In the control area: a status; how many children there were, and their numbers.
const STATUS: u64 = CONTROL + 0xc00;
const COUNT: u64 = CONTROL + 0xc08;
pub const CHILDREN: u64 = CONTROL + 0xc10;
/// There is no room for the numbers of more.
pub const MOST: u64 = 48;

const SIGCHLD: u64 = libc::SIGCHLD as u64;
/// Waits for children whatever signal they send.
const ALL: u64 = libc::__WALL as u64;

impl Gen<'_> {
    pub fn fork(&mut self) {
        if self.forks == MOST {
            return;
        }
        self.forks += 1;
        self.once(Gen::child_and_parent);
    }

    fn child_and_parent(&mut self) {
        let status = self.status();
        self.asm.store_word(status & !7, -1);
        self.make_child();
        // test eax, eax ; jnz parent
        self.asm.put(&[0x85, 0xc0]);
        let parent = self.asm.jump_over(&[0x0f, 0x85]);
        self.child();
        self.asm.lands(parent);
        // inc qword [COUNT] ; mov rbx, [COUNT] ; mov [CHILDREN + 8 * rbx], rax
        self.asm.put(&[0x48, 0xff, 0x04, 0x25]);
        self.asm.put(&(COUNT as u32).to_le_bytes());
        self.asm.load(RBX, COUNT);
        self.asm.put(&[0x48, 0x89, 0x04, 0xdd]);
        self.asm.put(&(CHILDREN as u32).to_le_bytes());
        // mov r10, 0: no rusage
        self.asm
            .syscall(libc::SYS_wait4, &[u64::MAX, status, ALL, 0]);
        // cmp dword [status], 0 ; je over ; ud2
        self.asm.put(&[0x83, 0x3c, 0x25]);
        self.asm.put(&(status as u32).to_le_bytes());
        self.asm.put(&[0, 0x74, 2, 0x0f, 0x0b]);
        self.asm.mov(RAX, 0);
    }

    /// Where wait4 stores the child's status: often in watched memory, but not in the shared arena, which a child in
    /// single steps changes meanwhile.
    fn status(&mut self) -> u64 {
        let at = self.target(8, 8);
        match (ARENAS[0]..ARENAS[2]).contains(&at) {
            true if self.rng.chance(2) => at,
            _ => STATUS,
        }
    }

    fn make_child(&mut self) {
        let vm = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
        // Only Unicorn can say what a vfork child does.
        let kinds = match self.judge {
            Judge::Unicorn => 6,
            Judge::Step => 3,
        };
        match self.rng.below(kinds) {
            0 => self.asm.syscall(libc::SYS_fork, &[]),
            1 => self.asm.syscall(libc::SYS_clone, &[SIGCHLD, 0, 0, 0, 0]),
            2 => self.asm.syscall(libc::SYS_clone, &[0, 0, 0, 0, 0]),
            3 => self.asm.syscall(libc::SYS_vfork, &[]),
            4 => self
                .asm
                .syscall(libc::SYS_clone, &[vm | SIGCHLD, 0, 0, 0, 0]),
            _ => {
                // On a stack of its own.
                let stack = ARENAS[self.rng.below(3) as usize] + ARENA_LEN as u64 / 2;
                self.asm
                    .syscall(libc::SYS_clone, &[vm | SIGCHLD, stack, 0, 0, 0]);
            }
        }
    }

    fn child(&mut self) {
        for _ in 0..self.rng.below(12) {
            match self.judge {
                // In single steps a child's writes into the file are unknown.
                Judge::Step => self.random_instruction(),
                _ if self.more.seccomp && self.rng.chance(8) => self.filter(),
                _ => self.plain_item(),
            }
        }
        // A filter may forbid what that needs.
        if !self.more.seccomp && self.rng.chance(3) {
            self.execute("/bin/true");
        }
        let exit = [libc::SYS_exit, libc::SYS_exit_group];
        let exit = exit[self.rng.below(2) as usize];
        self.asm.syscall(exit, &[0]);
    }
}
