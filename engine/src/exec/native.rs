//! The assembly between Rust and thunks, and the accessors that may fault.
#![allow(unsafe_code)]

use crate::cpu::Gprs;
use crate::frame::{SigInfo, UContext};
use core::arch::global_asm;
use ulpf_lib::eflags;

/// A fault in a thunk or accessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct FaultInfo {
    /// SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGTRAP.
    pub signo: i32,
    /// `si_code`.
    pub code: i32,
    /// `si_addr`, translated back from the alias. For SIGFPE and SIGILL, whose `si_addr` is the
    /// instruction: the program's pc.
    pub addr: u64,
    /// Page-fault error code of the signal frame (bit 1: write).
    pub error: u64,
    /// `si_addr_lsb` and `si_pkey` of `siginfo_t`, in this order.
    pub more: [u64; 2],
}

impl FaultInfo {
    /// Reads the fault from a signal frame.
    pub fn of(info: &SigInfo, uc: &UContext) -> FaultInfo {
        FaultInfo {
            signo: info.signo,
            code: info.code,
            addr: info.addr(),
            error: uc.err,
            more: [info.data[1], info.data[2]],
        }
    }

    /// The `siginfo_t` that the program gets.
    pub fn siginfo(&self) -> SigInfo {
        let mut info = SigInfo {
            signo: self.signo,
            code: self.code,
            ..SigInfo::zeroed()
        };
        info.data[0] = self.addr;
        [info.data[1], info.data[2]] = self.more;
        info
    }
}

/// Everything that one execution needs, on the stack of the thread that executes. The nested
/// handler finds it through the thunk's stack pointer (thunks) or rdi (accessors):
///
/// ```text
///   rsp → return address into ulpf_engine_call
///         &ExecFrame
///         callee-saved registers of the Rust caller
/// ```
#[repr(C)]
pub(super) struct ExecFrame {
    pub gprs: *mut Gprs,
    /// Goes to the address register of the thunk.
    pub addr: u64,
    /// Second address (destination of movdir64b).
    pub addr2: u64,
    pub flags: u64,
    pub thunk: u64,
    pub xsave: *mut u8,
    /// State components to load before and to save after; zero when the instruction uses none.
    pub load: u64,
    pub save: u64,
    pub fault: FaultInfo,
}

impl ExecFrame {
    pub fn new() -> ExecFrame {
        ExecFrame {
            gprs: core::ptr::null_mut(),
            addr: 0,
            addr2: 0,
            flags: 0,
            thunk: 0,
            xsave: core::ptr::null_mut(),
            load: 0,
            save: 0,
            fault: FaultInfo::default(),
        }
    }
}

// The legacy area's MXCSR and x87 control word are loaded from the program's image. So both are
// restored to the values that Rust code expects. vzeroupper avoids the cost of mixing SSE with
// dirty uppers.
global_asm!(
    r#"
    .pushsection .text.ulpf_engine,"ax",@progbits
    .p2align 4
    .hidden ulpf_engine_call
    .globl ulpf_engine_call
ulpf_engine_call:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push rdi
    mov rax, [rdi + {load}]
    test rax, rax
    jz 2f
    xor edx, edx
    mov r8, [rdi + {xsave}]
    .hidden ulpf_engine_xrstor
    .globl ulpf_engine_xrstor
ulpf_engine_xrstor:
    xrstor64 [r8]
2:
    mov rsi, [rdi + {addr}]
    mov rcx, [rdi + {addr2}]
    mov rdx, [rdi + {flags}]
    mov rax, [rdi + {thunk}]
    mov rdi, [rdi + {gprs}]
    call rax
    mov r9, rdi
    mov rdi, [rsp]
    test r9, r9
    jnz 3f
    mov [rdi + {flags}], rax
    mov rax, [rdi + {save}]
    test rax, rax
    jz 3f
    xor edx, edx
    mov r8, [rdi + {xsave}]
    xsave64 [r8]
    .hidden ulpf_engine_bail
    .globl ulpf_engine_bail
ulpf_engine_bail:
3:
    mov rax, [rdi + {load}]
    test rax, rax
    jz 4f
    test al, 1
    jz 5f
    fninit
5:
    test al, 4
    jz 6f
    vzeroupper
6:
    push 0x1f80
    ldmxcsr [rsp]
    pop rcx
4:
    mov rax, r9
    pop rdi
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret

    .hidden ulpf_engine_acc
    .globl ulpf_engine_acc
ulpf_engine_acc:
    .hidden ulpf_engine_load1
    .globl ulpf_engine_load1
ulpf_engine_load1:
    movzx eax, byte ptr [rsi]
    xor edx, edx
    ret
    .hidden ulpf_engine_load2
    .globl ulpf_engine_load2
ulpf_engine_load2:
    movzx eax, word ptr [rsi]
    xor edx, edx
    ret
    .hidden ulpf_engine_load4
    .globl ulpf_engine_load4
ulpf_engine_load4:
    mov eax, dword ptr [rsi]
    xor edx, edx
    ret
    .hidden ulpf_engine_load8
    .globl ulpf_engine_load8
ulpf_engine_load8:
    mov rax, qword ptr [rsi]
    xor edx, edx
    ret
    .hidden ulpf_engine_store1
    .globl ulpf_engine_store1
ulpf_engine_store1:
    mov byte ptr [rsi], cl
    xor edx, edx
    ret
    .hidden ulpf_engine_store2
    .globl ulpf_engine_store2
ulpf_engine_store2:
    mov word ptr [rsi], cx
    xor edx, edx
    ret
    .hidden ulpf_engine_store4
    .globl ulpf_engine_store4
ulpf_engine_store4:
    mov dword ptr [rsi], ecx
    xor edx, edx
    ret
    .hidden ulpf_engine_store8
    .globl ulpf_engine_store8
ulpf_engine_store8:
    mov qword ptr [rsi], rcx
    xor edx, edx
    ret
    .hidden ulpf_engine_acc_end
    .globl ulpf_engine_acc_end
ulpf_engine_acc_end:
    .popsection
"#,
    gprs = const core::mem::offset_of!(ExecFrame, gprs),
    addr = const core::mem::offset_of!(ExecFrame, addr),
    addr2 = const core::mem::offset_of!(ExecFrame, addr2),
    flags = const core::mem::offset_of!(ExecFrame, flags),
    thunk = const core::mem::offset_of!(ExecFrame, thunk),
    xsave = const core::mem::offset_of!(ExecFrame, xsave),
    load = const core::mem::offset_of!(ExecFrame, load),
    save = const core::mem::offset_of!(ExecFrame, save),
);

unsafe extern "C" {
    fn ulpf_engine_call(frame: *mut ExecFrame) -> u64;
    fn ulpf_engine_xrstor();
    fn ulpf_engine_bail();
    fn ulpf_engine_acc();
    fn ulpf_engine_acc_end();
    fn ulpf_engine_load1();
    fn ulpf_engine_load2();
    fn ulpf_engine_load4();
    fn ulpf_engine_load8();
    fn ulpf_engine_store1();
    fn ulpf_engine_store2();
    fn ulpf_engine_store4();
    fn ulpf_engine_store8();
}

/// Runs the thunk named in the frame. True when it completed.
///
/// # Safety
/// The frame's pointers are valid, and `thunk` was made by `emit` for these components.
pub(super) unsafe fn call(frame: &mut ExecFrame) -> bool {
    // SAFETY: the caller's promise. The C ABI already clobbers every vector register; MXCSR and
    // the x87 state are put back.
    unsafe { ulpf_engine_call(frame) == 0 }
}

/// Calls an accessor: (value, faulted).
///
/// # Safety
/// `f` is one of the accessors.
unsafe fn access(
    f: unsafe extern "C" fn(),
    frame: &mut ExecFrame,
    addr: u64,
    value: u64,
) -> (u64, u64) {
    let (out, fault): (u64, u64);
    // SAFETY: accessors touch rax, rdx and the given memory only; a fault in them is recovered
    // by the nested handler, which reaches the frame through rdi.
    unsafe {
        core::arch::asm!("call {f}", f = in(reg) f, in("rdi") frame, in("rsi") addr, in("rcx") value,
                         out("rax") out, out("rdx") fault);
    }
    (out, fault)
}

/// Reads 1, 2, 4 or 8 bytes of the program. `None`: it faulted, see `frame.fault`.
pub(super) fn load(frame: &mut ExecFrame, addr: u64, size: u64) -> Option<u64> {
    let f = match size {
        1 => ulpf_engine_load1,
        2 => ulpf_engine_load2,
        4 => ulpf_engine_load4,
        _ => ulpf_engine_load8,
    };
    // SAFETY: an accessor.
    let (value, fault) = unsafe { access(f, frame, addr, 0) };
    (fault == 0).then_some(value)
}

/// Writes 1, 2, 4 or 8 bytes of the program.
pub(super) fn store(frame: &mut ExecFrame, addr: u64, size: u64, value: u64) -> Option<()> {
    let f = match size {
        1 => ulpf_engine_store1,
        2 => ulpf_engine_store2,
        4 => ulpf_engine_store4,
        _ => ulpf_engine_store8,
    };
    // SAFETY: an accessor.
    let (_, fault) = unsafe { access(f, frame, addr, value) };
    (fault == 0).then_some(())
}

/// Turns a nested fault into a failed access; false when it is not one of ours.
pub(super) fn recover(nested: &mut Gprs, thunks: core::ops::Range<u64>, info: FaultInfo) -> bool {
    let accessors = ulpf_engine_acc as *const () as u64..ulpf_engine_acc_end as *const () as u64;
    let frame = if thunks.contains(&nested.rip) {
        let frame = nested.rsp.wrapping_add(8) as *const *mut ExecFrame;
        nested.rdi = 1;
        // SAFETY: inside a thunk the stack is as drawn at `ExecFrame`.
        unsafe { frame.read() }
    } else if accessors.contains(&nested.rip) {
        nested.rdx = 1;
        nested.rdi as *mut ExecFrame
    } else if nested.rip == ulpf_engine_xrstor as *const () as u64 {
        // The image is malformed (another thread wrote reserved bits of MXCSR into it).
        let frame = nested.rdi as *mut ExecFrame;
        // SAFETY: rdi is still the frame there.
        unsafe { (*frame).fault = info };
        nested.r9 = 1;
        nested.rip = ulpf_engine_bail as *const () as u64;
        nested.rflags &= !(eflags::DF | eflags::TF);
        return true;
    } else {
        return false;
    };
    // SAFETY: both ways `frame` is the live frame of this thread, and rsp points at the return
    // address of the call that faulted.
    unsafe {
        (*frame).fault = info;
        nested.rip = (nested.rsp as *const u64).read();
    }
    nested.rsp = nested.rsp.wrapping_add(8);
    // Status flags only; in particular no direction flag and no trap flag into Rust code.
    nested.rflags &= !(eflags::DF | eflags::TF);
    true
}
