//! Signal frames as x86-64 Linux builds them (arch/x86/include/uapi/asm/{sigcontext,ucontext}.h).
//!
//! ```text
//! high  | fpstate (XSAVE image, 64-byte aligned, FP_XSTATE_MAGIC2 behind it) |
//!       | siginfo (128)                                                      |
//!       | ucontext (304)                                                     |
//! rsp → | return address = restorer                                          |
//! ```

use ulpf_lib::AccessKind;

use crate::cpu::{Cpu, Gprs};

/// `stack_t` of sigaltstack(2).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SigStack {
    /// Lowest address.
    pub sp: u64,
    /// `SS_*` bits.
    pub flags: i32,
    /// Of no meaning.
    pub pad: i32,
    /// In bytes.
    pub size: u64,
}

/// The thread runs on its alternate stack.
pub const SS_ONSTACK: i32 = 1;
/// The thread has no alternate stack.
pub const SS_DISABLE: i32 = 2;
/// The alternate stack is taken away while a handler runs on it.
pub const SS_AUTODISARM: i32 = i32::MIN;

/// `struct ucontext` with the `struct sigcontext_64` in it, as the kernel lays them out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UContext {
    /// `UC_*` bits of the kernel.
    pub flags: u64,
    /// Of no meaning (null).
    pub link: u64,
    /// The alternate stack that holds again after the return.
    pub stack: SigStack,
    /// General registers.
    pub gprs: Gprs,
    /// Code segment.
    pub cs: u16,
    /// 0, as the kernel has it.
    pub gs: u16,
    /// 0, as the kernel has it.
    pub fs: u16,
    /// Stack segment.
    pub ss: u16,
    /// Error code of a page fault (1 present, 2 write, 4 user, 16 fetch).
    pub err: u64,
    /// Number of the exception.
    pub trapno: u64,
    /// Of no meaning.
    pub oldmask: u64,
    /// The address that has faulted.
    pub cr2: u64,
    /// Extended state, see [`fpstate_len`]; null: none.
    pub fpstate: *mut u8,
    /// Of no meaning.
    pub reserved: [u64; 8],
    /// The mask that holds again after the return.
    pub sigmask: u64,
}

/// Bits of [`UContext::err`] (Intel SDM vol. 3, 4.7).
const WRITE: u64 = 2;
const FETCH: u64 = 16;

impl UContext {
    /// For a page fault: whether the access was a write. (Or a read and a write; the processor does not distinguish.)
    pub fn access(&self) -> AccessKind {
        match self.err & WRITE {
            0 => AccessKind::Read,
            _ => AccessKind::Write,
        }
    }

    /// Whether the instruction itself could not be fetched.
    pub fn fetches(&self) -> bool {
        self.err & FETCH != 0
    }

    /// The processor as the frame has it, with these bases of fs and gs.
    ///
    /// # Safety
    /// `fpstate` is null, or points to an image that the kernel or the stub wrote and that is not used elsewhere
    /// meanwhile.
    pub unsafe fn cpu(&mut self, fs_base: u64, gs_base: u64) -> Cpu<'_> {
        // SAFETY: the caller's promise.
        let (_, xsave_len) = unsafe { fpstate_len(self.fpstate) };
        Cpu {
            gprs: &mut self.gprs,
            fs_base,
            gs_base,
            xsave: self.fpstate,
            xsave_len,
        }
    }
}

/// `siginfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SigInfo {
    /// Number of the signal.
    pub signo: i32,
    /// 0.
    pub errno: i32,
    /// `si_code`: above 0 if the kernel has raised it.
    pub code: i32,
    /// Of no meaning.
    pub pad: i32,
    /// si_addr, si_pid/si_uid, si_call_addr, …
    pub data: [u64; 14],
}

impl SigInfo {
    /// All fields 0.
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

/// Signal frame at a handler's stack pointer (`struct rt_sigframe` of x86-64).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SigFrame {
    /// Where the handler returns to.
    pub restorer: u64,
    /// The third argument of a handler.
    pub uc: UContext,
    /// The second argument of a handler.
    pub info: SigInfo,
}

/// `fpstate` is longer than the legacy 512 bytes and says by how much (`FP_XSTATE_MAGIC1` of the kernel).
pub const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
/// Offset in an fpstate of the kernel's `struct _fpx_sw_bytes`: magic, length (4 bytes each), components (8), length of
/// the XSAVE image (4).
pub const SW_RESERVED: usize = 464;
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

/// `UContext::flags`: its fpstate is an XSAVE image (`<asm/ucontext.h>`).
pub const UC_FP_XSTATE: u64 = 1;

/// Offset of XSTATE_BV: the components that an image holds. The others are in their initial state.
const XSTATE_BV: usize = 512;

/// Offset of PKRU in an XSAVE image: the access rights of memory protection keys. Each key has two bits, no access and
/// no store.
#[derive(Clone, Copy)]
pub struct Pkru(pub usize);

impl Pkru {
    const COMPONENT: u64 = 1 << 9;

    /// Its value in the image.
    ///
    /// # Safety
    /// `fp` is an XSAVE image of a machine with protection keys.
    pub unsafe fn read(self, fp: *const u8) -> u32 {
        // SAFETY: the header behind the legacy area, and the component's place.
        unsafe {
            match (fp.add(XSTATE_BV) as *const u64).read_unaligned() & Self::COMPONENT {
                0 => 0,
                _ => (fp.add(self.0) as *const u32).read_unaligned(),
            }
        }
    }

    /// # Safety
    /// As for `read`.
    pub unsafe fn write(self, fp: *mut u8, rights: u32) {
        // SAFETY: as for `read`.
        unsafe {
            let held = fp.add(XSTATE_BV) as *mut u64;
            held.write_unaligned(held.read_unaligned() | Self::COMPONENT);
            (fp.add(self.0) as *mut u32).write_unaligned(rights);
        }
    }
}

/// Makes the floating-point and vector state that a frame returns to that of a new program, as the kernel does before a
/// handler (`fpu__clear_user_states`). `xstate`: it is an XSAVE image. `keys`: PKRU, and its value then.
///
/// # Safety
/// `fp` is the frame's image.
pub unsafe fn clear_fpstate(fp: *mut u8, xstate: bool, keys: Option<(Pkru, u32)>) {
    const MXCSR: usize = 24;
    if fp.is_null() {
        return;
    }
    // SAFETY: within the legacy area and the header behind it.
    unsafe {
        (fp.add(MXCSR) as *mut u32).write_unaligned(0x1f80);
        if xstate {
            (fp.add(XSTATE_BV) as *mut u64).write_unaligned(0);
            if let Some((pkru, rights)) = keys {
                pkru.write(fp, rights);
            }
        } else {
            // FXRSTOR takes all of it as it is: the control word, an empty stack, zeros.
            core::ptr::write_bytes(fp, 0, MXCSR);
            (fp as *mut u16).write_unaligned(0x37f);
            core::ptr::write_bytes(fp.add(MXCSR + 8), 0, SW_RESERVED - MXCSR - 8);
        }
    }
}

const _: () = assert!(size_of::<UContext>() == 304);
const _: () = assert!(size_of::<SigInfo>() == 128);
const _: () = assert!(core::mem::offset_of!(UContext, gprs) == 40);
const _: () = assert!(core::mem::offset_of!(UContext, sigmask) == 296);
