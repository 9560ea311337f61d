//! Signal frames as x86-64 Linux builds them (arch/x86/include/uapi/asm/{sigcontext,ucontext}.h).
//!
//! ```text
//! high  | fpstate (XSAVE image, 64-byte aligned, FP_XSTATE_MAGIC2 behind it) |
//!       | siginfo (128)                                                      |
//!       | ucontext (304)                                                     |
//! rsp → | return address = restorer                                          |
//! ```

use crate::cpu::Gprs;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SigStack {
    pub sp: u64,
    pub flags: i32,
    pub pad: i32,
    pub size: u64,
}

pub const SS_ONSTACK: i32 = 1;
pub const SS_DISABLE: i32 = 2;
pub const SS_AUTODISARM: i32 = i32::MIN;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UContext {
    pub flags: u64,
    pub link: u64,
    pub stack: SigStack,
    pub gprs: Gprs,
    pub cs: u16,
    pub gs: u16,
    pub fs: u16,
    pub ss: u16,
    pub err: u64,
    pub trapno: u64,
    pub oldmask: u64,
    pub cr2: u64,
    pub fpstate: *mut u8,
    pub reserved: [u64; 8],
    pub sigmask: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SigInfo {
    pub signo: i32,
    pub errno: i32,
    pub code: i32,
    pub pad: i32,
    /// si_addr, si_pid/si_uid, si_call_addr, …
    pub data: [u64; 14],
}

impl SigInfo {
    pub const fn zeroed() -> SigInfo {
        SigInfo {
            signo: 0,
            errno: 0,
            code: 0,
            pad: 0,
            data: [0; 14],
        }
    }
    /// si_addr of SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP.
    pub fn addr(&self) -> u64 {
        self.data[0]
    }
    /// si_pid of SI_USER, SI_TKILL.
    pub fn sender(&self) -> i32 {
        self.data[0] as i32
    }
    /// si_code above zero: raised by the kernel, not by kill(2) and the like.
    pub fn by_kernel(&self) -> bool {
        self.code > 0
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SigFrame {
    pub restorer: u64,
    pub uc: UContext,
    pub info: SigInfo,
}

pub const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const SW_RESERVED: usize = 464;
/// Size of an image without extended state (FXSAVE).
pub const FXSAVE_LEN: usize = 512;

/// Length in bytes of an fpstate with its trailing magic, and of the XSAVE image within.
///
/// # Safety
/// `fp` points to an fpstate that the kernel or the stub wrote.
pub unsafe fn fpstate_len(fp: *const u8) -> (usize, usize) {
    if fp.is_null() {
        return (0, 0);
    }
    // SAFETY: the software-reserved bytes lie inside the 512 bytes of the legacy area.
    unsafe {
        let word = |at: usize| (fp.add(SW_RESERVED + at) as *const u32).read_unaligned() as usize;
        if word(0) == FP_XSTATE_MAGIC1 as usize {
            (word(4), word(16))
        } else {
            (FXSAVE_LEN, FXSAVE_LEN)
        }
    }
}

const _: () = assert!(size_of::<UContext>() == 304);
const _: () = assert!(size_of::<SigInfo>() == 128);
const _: () = assert!(core::mem::offset_of!(UContext, gprs) == 40);
const _: () = assert!(core::mem::offset_of!(UContext, sigmask) == 296);
