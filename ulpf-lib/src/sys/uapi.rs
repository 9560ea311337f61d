//! Numbers of the kernel's interface that `linux-raw-sys` has no names for, each with the header that has it.

/// arch_prctl(2): `asm/prctl.h`.
pub mod arch {
    #![allow(missing_docs)]
    pub const ARCH_SET_GS: u64 = 0x1001;
    pub const ARCH_SET_FS: u64 = 0x1002;
    pub const ARCH_GET_FS: u64 = 0x1003;
    pub const ARCH_GET_GS: u64 = 0x1004;
    pub const ARCH_GET_XCOMP_SUPP: u64 = 0x1021;
    pub const ARCH_GET_XCOMP_PERM: u64 = 0x1022;
    pub const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    pub const ARCH_GET_XCOMP_GUEST_PERM: u64 = 0x1024;
    pub const ARCH_SHSTK_ENABLE: u64 = 0x5001;
}

/// shmctl(2): `linux/ipc.h`, `linux/shm.h`.
pub mod ipc {
    #![allow(missing_docs)]
    pub const IPC_SET: u32 = 1;
    pub const IPC_STAT: u32 = 2;
    pub const IPC_INFO: u32 = 3;
    pub const SHM_STAT: u32 = 13;
    pub const SHM_INFO: u32 = 14;
    pub const SHM_STAT_ANY: u32 = 15;
    /// With any of them: the structures of today, which 64-bit programs have anyway.
    pub const IPC_64: u32 = 0x100;
}

/// Of sockets: `asm-generic/sockios.h`.
pub const SIOCGSTAMPNS: u32 = 0x8907;
/// Of network devices: `linux/sockios.h`.
pub const SIOCETHTOOL: u32 = 0x8946;
/// Of perf events: `linux/perf_event.h`.
pub const PERF_EVENT_IOC_SET_OUTPUT: u64 = 0x2405;

/// modify_ldt(2), which reads: `arch/x86/kernel/ldt.c`.
pub const LDT_READ: u64 = 0;
/// modify_ldt(2), which reads the default table: `arch/x86/kernel/ldt.c`.
pub const LDT_READ_DEFAULT: u64 = 2;

/// The default action of a signal: `asm-generic/signal-defs.h`.
pub const SIG_DFL: u64 = 0;
/// A signal that is ignored: `asm-generic/signal-defs.h`.
pub const SIG_IGN: u64 = 1;
