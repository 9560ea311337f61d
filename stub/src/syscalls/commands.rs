//! Which memory a system call touches: its row says so, or one of its arguments, a command (ioctl, fcntl,
//! prctl and the like).

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::{self, Buf, Dir, Dir::*, Len, Len::*};

use super::Args;

/// What is known of a call's memory.
#[derive(Clone, Copy)]
pub enum Memory {
    /// These buffers and nothing else.
    Buffers(&'static [Buf]),
    One(Buf),
    /// Its arguments are addresses as such: they must reach the kernel unchanged.
    Addresses,
    /// Pointers to pointers, sizes that only the kernel knows, or a call without a row. Such calls do not
    /// block: they are made with all guards lifted and everybody else at rest.
    Open,
}

const fn b(arg: u8, dir: Dir, len: Len) -> Buf {
    Buf { arg, dir, len }
}

pub fn memory(nr: u64, a: &Args) -> Memory {
    let Some(row) = syscalls::row(nr) else {
        return Memory::Open;
    };
    match row.memory {
        row::Memory::Buffers => Memory::Buffers(row.buffers),
        row::Memory::Addresses => Memory::Addresses,
        row::Memory::ByCommand => by_command(nr, a),
        row::Memory::Open => Memory::Open,
    }
}

#[rustfmt::skip]
fn by_command(nr: u64, a: &Args) -> Memory {
    match nr as u32 {
        k::__NR_ioctl => ioctl(a[1] as u32),
        k::__NR_fcntl => match a[1] as u32 {
            5 | 36 => Memory::One(b(2, InOut, Fixed(32))),                 // F_GETLK, F_OFD_GETLK
            6 | 7 | 37 | 38 => Memory::One(b(2, In, Fixed(32))),           // F_SETLK(W), F_OFD_SETLK(W)
            15 | 1036 | 1038 => Memory::One(b(2, In, Fixed(8))),           // F_SETOWN_EX, F_SET_(FILE_)RW_HINT
            16 | 17 | 1035 | 1037 => Memory::One(b(2, Out, Fixed(8))),     // F_GETOWN_EX, F_GETOWNER_UIDS, F_GET_…
            _ => Memory::Buffers(&[]),
        },
        k::__NR_prctl => match a[0] as u32 {
            2 | 5 | 9 | 11 | 19 | 25 | 37 => Memory::One(b(1, Out, Fixed(4))), // PR_GET_PDEATHSIG, …, PR_GET_CHILD_SUBREAPER
            15 => Memory::One(b(1, In, Str)),                                  // PR_SET_NAME
            16 => Memory::One(b(1, Out, Fixed(16))),                           // PR_GET_NAME
            40 => Memory::One(b(1, Out, Fixed(8))),                            // PR_GET_TID_ADDRESS
            62 => Memory::One(b(4, Out, Fixed(8))),                            // PR_SCHED_CORE
            0x5356_4d41 => Memory::One(b(4, In, Str)),                         // PR_SET_VMA
            0x4155_5856 => Memory::One(b(1, Out, Arg(2))),                     // PR_GET_AUXV
            22 | 35 => Memory::Open,                                           // PR_SET_SECCOMP, PR_SET_MM
            _ => Memory::Addresses,
        },
        k::__NR_arch_prctl => match a[0] {
            0x1003 | 0x1004 | 0x1021 | 0x1022 | 0x1024 => Memory::One(b(1, Out, Fixed(8))), // ARCH_GET_FS, ARCH_GET_GS, …
            _ => Memory::Addresses,
        },
        k::__NR_shmctl => match a[1] as u32 & !0x100 {
            1 => Memory::One(b(2, In, Fixed(112))),
            2 | 3 | 13..=15 => Memory::One(b(2, Out, Fixed(112))),
            _ => Memory::Buffers(&[]),
        },
        k::__NR_modify_ldt => match a[0] {
            0 | 2 => Memory::One(b(1, OutRet, Arg(2))),
            _ => Memory::One(b(1, In, Arg(2))),
        },
        // A filter is a structure with a pointer to the program.
        k::__NR_setsockopt => match (a[1] as u32, a[2] as u32) {
            (1, 26 | 51) => Memory::Open,
            _ => Memory::One(b(3, In, Arg(4))),
        },
        // Into a pipe, or out of it.
        k::__NR_vmsplice => {
            const ACCESS: u64 = 3; // O_ACCMODE
            // SAFETY: asks how the descriptor was opened.
            let mode = unsafe { sys!(k::__NR_fcntl, a[0], k::F_GETFL, 0) };
            let out = mode.is_ok_and(|m| m & ACCESS == u64::from(k::O_RDONLY));
            Memory::One(b(1, if out { IovOut } else { IovIn }, Arg(2)))
        }
        _ => Memory::Open,
    }
}

/// By _IOC_DIR and _IOC_SIZE where the number has them, else by name.
fn ioctl(request: u32) -> Memory {
    let (dir, size) = (request >> 30, (request >> 16 & 0x3fff) as u16);
    let one = |dir, n| Memory::One(b(2, dir, Fixed(n)));
    match request {
        0x5401 => one(Out, 36),                  // TCGETS
        0x5402..=0x5404 => one(In, 36),          // TCSETS…
        0x5405 => one(Out, 18),                  // TCGETA
        0x5406..=0x5408 => one(In, 18),          // TCSETA…
        0x5409..=0x540e => Memory::Buffers(&[]), // TCSBRK … TIOCSCTTY
        0x540f | 0x5411 | 0x5415 | 0x5419 | 0x541b | 0x5424 | 0x5429 => one(Out, 4), // TIOCGPGRP … FIONREAD … TIOCGSID
        0x5410 | 0x5416..=0x5418 | 0x541a | 0x5420 | 0x5421 | 0x5423 | 0x5452 => one(In, 4), // TIOCSPGRP … FIONBIO … FIOASYNC
        0x5412 => one(In, 1),                    // TIOCSTI
        0x5413 => one(Out, 8),                   // TIOCGWINSZ
        0x5414 => one(In, 8),                    // TIOCSWINSZ
        0x5450 | 0x5451 => Memory::Buffers(&[]), // FIONCLEX, FIOCLEX
        0x5460 => one(Out, 8),                   // FIOQSIZE
        0x8901 | 0x8902 => one(In, 4),           // FIOSETOWN, SIOCSPGRP
        0x8903..=0x8905 => one(Out, 4),          // FIOGETOWN, SIOCGPGRP, SIOCATMARK
        0x8906 | 0x8907 => one(Out, 16),         // SIOCGSTAMP(NS)
        0x8912 | 0x8946 => Memory::Open,         // SIOCGIFCONF, SIOCETHTOOL
        0x8910..=0x8945 => one(InOut, 40),       // struct ifreq
        // A number of the new sort; its direction is not always true. What it points to may hold pointers:
        // EFAULT opens the pages.
        _ if size > 0 && dir != 0 => one(InOut, size),
        _ => Memory::Open,
    }
}
