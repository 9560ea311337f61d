//! The registers of a stopped thread, in the layout of the kernel's signal frame.

/// General registers as `struct sigcontext_64` lays them out at the start of `uc_mcontext`
/// (linux/arch/x86/include/uapi/asm/sigcontext.h), so that a signal frame can be used in place. The
/// fields have the processor's names.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Gprs {
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rsp: u64,
    pub rip: u64,
    pub rflags: u64,
}

/// One thread's registers while it is stopped: in a signal frame, or in a buffer of a test.
pub struct Cpu<'a> {
    /// The program's general registers.
    pub gprs: &'a mut Gprs,
    /// Base of the segment fs.
    pub fs_base: u64,
    /// Base of the segment gs.
    pub gs_base: u64,
    /// XSAVE image in standard (non-compacted) format as the kernel puts it into signal frames:
    /// legacy area, header at 512 (XSTATE_BV first), components at the offsets CPUID 0xD reports.
    /// Null when the machine has no such state saved.
    pub xsave: *mut u8,
    /// Bytes at `xsave`.
    pub xsave_len: usize,
}
