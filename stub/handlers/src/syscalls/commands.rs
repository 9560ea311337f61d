//! The memory that a system call touches, by its row or by an argument that is a command (ioctl, fcntl, prctl and the
//! like).

use linux_raw_sys::ioctl::*;
use linux_raw_sys::prctl::*;
use linux_raw_sys::ptrace::*;
use linux_raw_sys::{general as k, net};
use ulpf_lib::sys;
use ulpf_lib::sys::uapi::{LDT_READ, LDT_READ_DEFAULT, SIOCETHTOOL, SIOCGSTAMPNS};
use ulpf_lib::sys::uapi::{arch::*, ipc::*};
use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::{self, Buf, Dir, Dir::*, Len, Len::*};

use super::call::Args;

/// The memory of a call.
#[derive(Clone, Copy)]
pub enum Memory {
    /// These buffers and nothing else.
    Buffers(&'static [Buf]),
    One(Buf),
    /// Its arguments are plain addresses, which must reach the kernel unchanged.
    Addresses,
    /// Pointers to pointers, sizes that only the kernel knows, or a call without a row. Such calls do not block: they
    /// are made with all guards lifted and all other threads stopped.
    Open,
    /// The same, but the kernel does not report a failed write: guards are lifted whatever the arguments are.
    Everywhere,
}

/// `<linux/in.h>`, `<linux/in6.h>`
const SOL_IP: u32 = 0;
const SOL_IPV6: u32 = 41;
/// IPT_BASE_CTL and its counterparts for IPv6, ARP and bridges (`<linux/netfilter*/*_tables.h>`) are the first of many.
const NETFILTER: u32 = 64;

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
            k::F_GETLK | k::F_OFD_GETLK => Memory::One(b(2, InOut, Fixed(32))),
            k::F_SETLK | k::F_SETLKW | k::F_OFD_SETLK | k::F_OFD_SETLKW => Memory::One(b(2, In, Fixed(32))),
            k::F_SETOWN_EX | k::F_SET_RW_HINT | k::F_SET_FILE_RW_HINT => Memory::One(b(2, In, Fixed(8))),
            k::F_GETOWN_EX | k::F_GETOWNER_UIDS | k::F_GET_RW_HINT | k::F_GET_FILE_RW_HINT => {
                Memory::One(b(2, Out, Fixed(8)))
            }
            _ => Memory::Buffers(&[]),
        },
        k::__NR_prctl => match a[0] as u32 {
            PR_GET_PDEATHSIG | PR_GET_UNALIGN | PR_GET_FPEMU | PR_GET_FPEXC | PR_GET_ENDIAN | PR_GET_TSC
            | PR_GET_CHILD_SUBREAPER => Memory::One(b(1, Out, Fixed(4))),
            PR_SET_NAME => Memory::One(b(1, In, Str)),
            PR_GET_NAME => Memory::One(b(1, Out, Fixed(16))),
            PR_GET_TID_ADDRESS => Memory::One(b(1, Out, Fixed(8))),
            PR_SCHED_CORE => Memory::One(b(4, Out, Fixed(8))),
            PR_SET_VMA => Memory::One(b(4, In, Str)),
            PR_GET_AUXV => Memory::One(b(1, Out, Arg(2))),
            PR_SET_SECCOMP | PR_SET_MM => Memory::Open,
            _ => Memory::Addresses,
        },
        k::__NR_arch_prctl => match a[0] {
            ARCH_GET_FS | ARCH_GET_GS | ARCH_GET_XCOMP_SUPP | ARCH_GET_XCOMP_PERM | ARCH_GET_XCOMP_GUEST_PERM => {
                Memory::One(b(1, Out, Fixed(8)))
            }
            _ => Memory::Addresses,
        },
        k::__NR_ptrace => ptrace(a),
        k::__NR_shmctl => match a[1] as u32 & !IPC_64 {
            IPC_SET => Memory::One(b(2, In, Fixed(112))),
            IPC_STAT | IPC_INFO | SHM_STAT | SHM_INFO | SHM_STAT_ANY => Memory::One(b(2, Out, Fixed(112))),
            _ => Memory::Buffers(&[]),
        },
        k::__NR_modify_ldt => match a[0] {
            LDT_READ | LDT_READ_DEFAULT => Memory::One(b(1, OutRet, Arg(2))),
            _ => Memory::One(b(1, In, Arg(2))),
        },
        // A filter is a structure with a pointer to the program.
        k::__NR_setsockopt => match (a[1] as u32, a[2] as u32) {
            (net::SOL_SOCKET, net::SO_ATTACH_FILTER | net::SO_ATTACH_REUSEPORT_CBPF) => Memory::Open,
            // Tables of netfilter lead to counters, to which the kernel writes without reporting a failure.
            (SOL_IP | SOL_IPV6, NETFILTER..) => Memory::Everywhere,
            _ => Memory::One(b(3, In, Arg(4))),
        },
        // Into a pipe, or out of it.
        k::__NR_vmsplice => {
            // SAFETY: asks how the descriptor was opened.
            let mode = unsafe { sys!(k::__NR_fcntl, a[0], k::F_GETFL, 0) };
            let out = mode.is_ok_and(|m| m as u32 & k::O_ACCMODE == k::O_RDONLY);
            Memory::One(b(1, if out { IovOut } else { IovIn }, Arg(2)))
        }
        _ => Memory::Open,
    }
}

/// The sizes are those of user_regs_struct, user_fpregs_struct, siginfo, user_desc. PTRACE_GETREGSET and its counterpart
/// have a vector (`super::tracing`).
#[rustfmt::skip]
fn ptrace(a: &Args) -> Memory {
    let data = |dir, len| Memory::One(b(3, dir, len));
    match a[0] as u32 {
        PTRACE_PEEKTEXT | PTRACE_PEEKDATA | PTRACE_PEEKUSR | PTRACE_GETEVENTMSG => data(Out, Fixed(8)),
        PTRACE_GETREGS => data(Out, Fixed(216)),
        PTRACE_SETREGS => data(In, Fixed(216)),
        PTRACE_GETFPREGS => data(Out, Fixed(512)),
        PTRACE_SETFPREGS => data(In, Fixed(512)),
        PTRACE_GETSIGINFO => data(Out, Fixed(128)),
        PTRACE_SETSIGINFO => data(In, Fixed(128)),
        PTRACE_GET_THREAD_AREA => data(Out, Fixed(16)),
        PTRACE_SET_THREAD_AREA => data(In, Fixed(16)),
        PTRACE_GETSIGMASK | PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG => data(Out, Arg(2)),
        PTRACE_SETSIGMASK | PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG | PTRACE_SET_SYSCALL_INFO => data(In, Arg(2)),
        PTRACE_GET_SYSCALL_INFO | PTRACE_GET_RSEQ_CONFIGURATION => data(OutRet, Arg(2)),
        PTRACE_SECCOMP_GET_METADATA => data(InOut, Arg(2)),
        // Instructions, of which there are 4,096 at most.
        PTRACE_SECCOMP_GET_FILTER => data(OutRetTimes(8), Fixed(8 * 4096)),
        PTRACE_ARCH_PRCTL if matches!(a[3], ARCH_GET_FS | ARCH_GET_GS) => Memory::One(b(2, Out, Fixed(8))),
        // The number of entries is in a structure.
        PTRACE_PEEKSIGINFO => Memory::Open,
        _ => Memory::Addresses,
    }
}

/// By _IOC_DIR and _IOC_SIZE if the number has them, otherwise by name.
#[rustfmt::skip]
fn ioctl(request: u32) -> Memory {
    let dir = request >> k::_IOC_DIRSHIFT;
    let size = (request >> k::_IOC_SIZESHIFT & k::_IOC_SIZEMASK) as u16;
    let one = |dir, n| Memory::One(b(2, dir, Fixed(n)));
    match request {
        TCGETS => one(Out, 36),
        TCSETS | TCSETSW | TCSETSF => one(In, 36),
        TCGETA => one(Out, 18),
        TCSETA | TCSETAW | TCSETAF => one(In, 18),
        TCSBRK | TCXONC | TCFLSH | TIOCEXCL | TIOCNXCL | TIOCSCTTY => Memory::Buffers(&[]),
        TIOCGPGRP | TIOCOUTQ | TIOCMGET | TIOCGSOFTCAR | FIONREAD | TIOCGETD | TIOCGSID => one(Out, 4),
        TIOCSPGRP | TIOCMBIS | TIOCMBIC | TIOCMSET | TIOCSSOFTCAR | TIOCPKT | FIONBIO | TIOCSETD | FIOASYNC => one(In, 4),
        TIOCSTI => one(In, 1),
        TIOCGWINSZ => one(Out, 8),
        TIOCSWINSZ => one(In, 8),
        FIONCLEX | FIOCLEX => Memory::Buffers(&[]),
        FIOQSIZE => one(Out, 8),
        FIOSETOWN | SIOCSPGRP => one(In, 4),
        FIOGETOWN | SIOCGPGRP | SIOCATMARK => one(Out, 4),
        SIOCGSTAMP | SIOCGSTAMPNS => one(Out, 16),
        SIOCGIFCONF | SIOCETHTOOL => Memory::Open,
        // struct ifreq
        SIOCGIFNAME..SIOCETHTOOL => one(InOut, 40),
        // A number in the new format; its direction is not always true. The structure may hold pointers: then the call
        // fails with EFAULT, and the pages are opened.
        _ if size > 0 && dir != 0 => one(InOut, size),
        _ => Memory::Open,
    }
}
