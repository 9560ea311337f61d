//! Entry into the handler: from the stack that the kernel has chosen onto the thread's exception stack.

use core::arch::global_asm;

use ulpf_engine::frame::{SigInfo, UContext};
use ulpf_lib::library_abi;

use crate::error::Failure;
use crate::exception_stacks::{OwnBlock, STACK};
use crate::handler;
use crate::shared::{Changer, S};
use crate::signals;

unsafe extern "C" {
    fn ulpf_signal_entry();
}

// Before it lies a `AbiHeader`, for a stub in the same process.
// rdi, rsi, rdx: signal, siginfo, ucontext. On entry rsp is 8 below a multiple of 16.
global_asm!(
    r#"
    .pushsection .text.libulpf,"ax",@progbits
    .p2align 5
    .quad 0
    .quad {magic}
    .quad {version}
    .quad {shared} + {table} - .
    .hidden ulpf_signal_entry
    .globl ulpf_signal_entry
ulpf_signal_entry:
    mov rax, rsp
    sub rax, [rip + {shared} + {stacks}]
    cmp rax, [rip + {shared} + {stacks_len}]
    jb 1f
    push rbp
    mov rbp, rsp
    push rdi
    push rsi
    push rdx
    sub rsp, 8
    and rsp, -16
    call {claim}
    mov rdx, [rbp - 24]
    mov rsi, [rbp - 16]
    mov rdi, [rbp - 8]
    test rax, rax
    jz 2f
    mov rsp, rax
2:
    call {handle}
    mov rsp, rbp
    pop rbp
    ret
1:
    sub rsp, 8
    call {handle}
    add rsp, 8
    ret
    .popsection
"#,
    magic = const library_abi::MAGIC,
    version = const library_abi::VERSION,
    table = const core::mem::offset_of!(crate::shared::Shared, table),
    shared = sym S,
    stacks = const core::mem::offset_of!(crate::shared::Shared, stacks),
    stacks_len = const core::mem::offset_of!(crate::shared::Shared, stacks_len),
    claim = sym claim,
    handle = sym handle,
);

/// The stack pointer to continue with, or 0 without a stack.
extern "C" fn claim() -> u64 {
    OwnBlock::claim().map_or(0, |own| {
        // A handler of the program may be under way there that has switched to a stack of its own.
        if own.depth.get() > 0 {
            own.top() - STACK / 2
        } else {
            own.top()
        }
    })
}

extern "C" fn handle(signo: i32, info: &mut SigInfo, uc: &mut UContext) {
    handler::handle(signo, info, uc);
}

/// Takes the five signals.
pub fn install(_: &mut Changer) -> Result<(), Failure> {
    signals::install(ulpf_signal_entry as *const () as u64)
}
