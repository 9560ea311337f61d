//! The few instructions whose addresses matter: handlers compare an interrupted PC with them.

use core::arch::global_asm;

use crate::syscalls::sites_code::{SLOT, SLOTS};

global_asm!(
    ".text",
    // Return from a handler.
    ".globl ulpf_restorer",
    "ulpf_restorer:",
    "mov eax, 15",
    "syscall",
    "ud2",
    // rdi = &[nr, a1 … a6], rsi = signal mask during the call or null.
    // A handler that finds PC in [start, insn] answers by sending it to `abort`: the call has not
    // begun (or the kernel has rewound it), and must be made again after the signal.
    ".globl ulpf_blocking",
    "ulpf_blocking:",
    "push rbx",
    "push r12",
    "mov rbx, rdi",
    "test rsi, rsi",
    "jz 1f",
    ".globl ulpf_blocking_start",
    "ulpf_blocking_start:",
    "mov eax, 14",
    "mov edi, 2",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "1:",
    "mov rax, [rbx]",
    "mov rdi, [rbx+8]",
    "mov rsi, [rbx+16]",
    "mov rdx, [rbx+24]",
    "mov r10, [rbx+32]",
    "mov r8, [rbx+40]",
    "mov r9, [rbx+48]",
    ".globl ulpf_blocking_insn",
    "ulpf_blocking_insn:",
    "syscall",
    ".globl ulpf_blocking_end",
    "ulpf_blocking_end:",
    "pop r12",
    "pop rbx",
    "ret",
    ".globl ulpf_blocking_abort",
    "ulpf_blocking_abort:",
    "mov rax, -512",
    "jmp ulpf_blocking_end",
    // clone or clone3 whose child starts on its own block:
    // rdi = &[nr, a1 … a6], rsi = the child's Thread. The child's rsp is its copied ucontext.
    ".globl ulpf_clone",
    "ulpf_clone:",
    "push rbx",
    "push r12",
    "mov rbx, rdi",
    "mov r12, rsi",
    "mov rax, [rbx]",
    "mov rdi, [rbx+8]",
    "mov rsi, [rbx+16]",
    "mov rdx, [rbx+24]",
    "mov r10, [rbx+32]",
    "mov r8, [rbx+40]",
    "mov r9, [rbx+48]",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "pop r12",
    "pop rbx",
    "ret",
    "2:",
    "mov rbx, rsp",
    "and rsp, -16",
    "mov rdi, r12",
    "mov rsi, rbx",
    "call ulpf_child",
    "mov rsp, rbx",
    "mov eax, 15",
    "syscall",
    "ud2",
    // A task of our own: rdi = flags, rsi = stack top, rdx = entry. Does not return in the child.
    ".globl ulpf_spawn",
    "ulpf_spawn:",
    "mov r9, rdx",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jnz 3f",
    "xor ebp, ebp",
    "call r9",
    "ud2",
    "3:",
    "ret",
    // memcpy that gives up at a fault: rdi = to, rsi = from, rdx = length; rax = bytes not copied.
    ".globl ulpf_copy",
    "ulpf_copy:",
    "mov rcx, rdx",
    ".globl ulpf_copy_insn",
    "ulpf_copy_insn:",
    "rep movsb",
    ".globl ulpf_copy_fixup",
    "ulpf_copy_fixup:",
    "mov rax, rcx",
    "ret",
    // Code of patched system-call sites (syscalls/sites_code.rs), in the image so that its `syscall`
    // instructions are exempt from dispatch. Written by the stub's task.
    ".pushsection .text.ulpf_slots, \"ax\", @progbits",
    ".balign 4096",
    ".globl ulpf_slots",
    "ulpf_slots:",
    ".fill {slots}, 1, 0xcc",
    ".popsection",
    // Results of the boot entries go to the tracer.
    ".globl ulpf_report",
    "ulpf_report:",
    "mov rax, rdi",
    "int3",
    "ud2",
    slots = const SLOT * SLOTS,
);

#[allow(improper_ctypes)]
unsafe extern "C" {
    pub fn ulpf_restorer();
    pub fn ulpf_blocking(args: *const [u64; 7], mask: *const u64) -> i64;
    pub fn ulpf_blocking_start();
    pub fn ulpf_blocking_insn();
    pub fn ulpf_blocking_abort();
    pub fn ulpf_clone(args: *const [u64; 7], child: *const super::thread::Thread) -> i64;
    pub fn ulpf_spawn(flags: u64, stack_top: u64, entry: extern "C" fn() -> !) -> i64;
    pub fn ulpf_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    pub fn ulpf_copy_insn();
    pub fn ulpf_copy_fixup();
    pub fn ulpf_slots();
    pub fn ulpf_report(result: i64) -> !;
}
