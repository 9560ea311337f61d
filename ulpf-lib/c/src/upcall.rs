//! Entry into the handler without a signal, from the kernel module after a forbidden access.
//!
//! The entry finds all registers unchanged and a frame on the thread's exception stack, which is its alternate signal
//! stack (`ULPF_HANDLER_SIGSTACK`). From these and the processor's extended state it builds the kernel's signal frame, so
//! that `handler.rs` sees no difference. It returns the cheap way (kernel/README.md). It returns as from a signal where
//! that matters: into a single step, or with a signal pending for the program. A thread without such a stack gets a
//! signal, and with it the stack.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::access::state;
use ulpf_engine::cpu::Gprs;
use ulpf_engine::frame::{FP_XSTATE_MAGIC1, SigInfo, SigStack, UContext};
use ulpf_lib::device::{Frame, INFO_FETCH, INFO_WRITE};
use ulpf_lib::eflags::TF;

use crate::exception_stacks::OwnBlock;
use crate::handler;
use crate::mask::{self, SIGSEGV, SYNCHRONOUS};
use crate::shared::S;

unsafe extern "C" {
    fn ulpf_upcall_entry();
}

/// Length of the processor's state as xsave writes it, or 0 if it cannot.
static XSAVE_LEN: AtomicU64 = AtomicU64::new(0);

/// Registers the handler, if this processor can save the required state.
pub fn prepare() {
    if state::xcr0() & !(state::X87 | state::SSE) == 0 {
        return;
    }
    XSAVE_LEN.store(state::cpuid(0xd, 0).ebx.into(), Release);
    let entry = ulpf_upcall_entry as *const () as u64;
    S.upcall.store(entry, Release);
}

// Below the frame: the registers in the order of `Gprs`, then the state.
global_asm!(
    r#"
    .pushsection .text.libulpf,"ax",@progbits
    .p2align 4
    .hidden ulpf_upcall_entry
    .globl ulpf_upcall_entry
ulpf_upcall_entry:
    push rcx
    push rax
    push rdx
    push rbx
    push rbp
    push rsi
    push rdi
    push r15
    push r14
    push r13
    push r12
    push r11
    push r10
    push r9
    push r8
    mov rbp, rsp
    sub rsp, [rip + {len}]
    sub rsp, 64
    and rsp, -64
    xor eax, eax
    mov rcx, 64
    lea rdi, [rsp + 512]
    rep stosb
    mov eax, -1
    mov edx, eax
    xsave64 [rsp]
    mov rdi, rbp
    mov rsi, rsp
    call {handle}
    mov eax, -1
    mov edx, eax
    xrstor64 [rsp]
    mov rsp, rbp
    mov rax, [rsp + 15*8 + 48]
    lea rax, [rax - 136]
    mov rcx, [rsp + 15*8 + 24]
    mov [rax], rcx
    mov [rsp + 15*8 + 48], rax
    pop r8
    pop r9
    pop r10
    pop r11
    pop r12
    pop r13
    pop r14
    pop r15
    pop rdi
    pop rsi
    pop rbp
    pop rbx
    pop rdx
    pop rax
    pop rcx
    lea rsp, [rsp + 40]
    popfq
    pop rsp
    ret 128
    .popsection
"#,
    len = sym XSAVE_LEN,
    handle = sym handle,
);

/// Registers that the entry has pushed, and the frame behind them.
#[repr(C)]
struct Pushed {
    /// r8 to rcx, as `Gprs` begins.
    registers: [u64; 15],
    frame: Frame,
}

/// Bits of the page-fault error code.
const USER_PROTECTION: u64 = 1 | 4;
const WRITE: u64 = 2;
const FETCH: u64 = 16;
const PAGE_FAULT: u64 = 14;
/// `si_code` of a fault that a protection has caused.
const SEGV_ACCERR: i32 = k::SEGV_ACCERR as i32;
/// Offset of the software-defined bytes of the legacy area: the kernel stores the image's length there.
const SOFTWARE: usize = 464;

/// `uc_flags` as the kernel sets them: extended state, ss is valid.
const UC_FLAGS: u64 = 7;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
const RT_SIGRETURN: u64 = 15;

/// # Safety
/// `uc` has its state at `image`, of `len` bytes and four more, and the caller's stack is done with.
unsafe fn return_as_from_signal(uc: &UContext, image: *mut u8, len: u32) -> ! {
    // SAFETY: the caller's promise; the kernel takes everything from there.
    unsafe {
        image
            .add(len as usize)
            .cast::<u32>()
            .write_unaligned(FP_XSTATE_MAGIC2);
        asm!("mov rsp, {}", "syscall", in(reg) uc, in("rax") RT_SIGRETURN, options(noreturn))
    }
}

extern "C" fn handle(pushed: &mut Pushed, image: *mut u8) {
    let Some(own) = OwnBlock::here() else {
        return; // the frame lies on a stack of ours, or there would have been a signal
    };
    // Asynchronous signals must not find the state half built.
    let mask = mask::block_asynchronous();
    let len = XSAVE_LEN.load(Relaxed) as u32;
    // SAFETY: within the image, bytes that xsave leaves alone.
    unsafe {
        let word = |at: usize| image.add(SOFTWARE + at).cast::<u32>();
        word(0).write(FP_XSTATE_MAGIC1);
        word(4).write(len + 4);
        word(16).write(len);
    }
    let frame = &pushed.frame;
    let flag = |bit: u64, value: u64| if frame.info & bit != 0 { value } else { 0 };
    let (sp, size) = own.signal_stack();
    let mut gprs = Gprs::default();
    // SAFETY: `Gprs` begins with these fifteen.
    unsafe { (&raw mut gprs).cast::<[u64; 15]>().write(pushed.registers) };
    (gprs.rsp, gprs.rip, gprs.rflags) = (frame.sp, frame.ip, frame.flags);
    let mut uc = UContext {
        flags: UC_FLAGS,
        link: 0,
        stack: SigStack {
            sp,
            flags: 0,
            pad: 0,
            size,
        },
        gprs,
        cs: frame.cs as u16,
        gs: 0,
        fs: 0,
        ss: frame.ss as u16,
        err: USER_PROTECTION | flag(INFO_WRITE, WRITE) | flag(INFO_FETCH, FETCH),
        trapno: PAGE_FAULT,
        oldmask: 0,
        cr2: frame.addr,
        fpstate: image,
        reserved: [0; 8],
        sigmask: mask,
    };
    let mut info = SigInfo::zeroed();
    (info.signo, info.code, info.data[0]) = (SIGSEGV, SEGV_ACCERR, frame.addr);
    handler::handle(SIGSEGV, &mut info, &mut uc);
    if own.stopping.replace(false) || uc.gprs.rflags & TF != 0 {
        // SAFETY: a whole frame; this stack is no longer needed.
        unsafe { return_as_from_signal(&uc, image, len) }
    }
    // SAFETY: as above.
    pushed.registers = unsafe { (&raw const uc.gprs).cast::<[u64; 15]>().read() };
    (pushed.frame.sp, pushed.frame.ip) = (uc.gprs.rsp, uc.gprs.rip);
    pushed.frame.flags = uc.gprs.rflags;
    mask::set(uc.sigmask & !SYNCHRONOUS);
}
