//! The few instructions whose addresses matter: handlers compare an interrupted PC with them.

use core::arch::global_asm;
use core::mem::offset_of;

use ulpf_stub_tables::backtrace_cache::Word;
use ulpf_stub_tables::calls::{SLOT, SLOTS};

use super::frame::{SW_RESERVED, UContext};
use super::thread::{BLOCK, Thread};
use ulpf_engine::cpu::Gprs;

/// A bit of `UContext::link`: the handler ran under the program's own mask and left the frame such that
/// [`ulpf_restorer`] may return without the kernel.
pub const RETURN_HERE: u64 = 1;

/// `global_asm!` for code that loads or saves all registers: their offsets in a [`Gprs`] by their names.
macro_rules! gprs_asm {
    ($($code:tt)*) => {
        global_asm!(
            $($code)*
            r8 = const offset_of!(Gprs, r8),
            r9 = const offset_of!(Gprs, r9),
            r10 = const offset_of!(Gprs, r10),
            r11 = const offset_of!(Gprs, r11),
            r12 = const offset_of!(Gprs, r12),
            r13 = const offset_of!(Gprs, r13),
            r14 = const offset_of!(Gprs, r14),
            r15 = const offset_of!(Gprs, r15),
            rdi = const offset_of!(Gprs, rdi),
            rsi = const offset_of!(Gprs, rsi),
            rbp = const offset_of!(Gprs, rbp),
            rbx = const offset_of!(Gprs, rbx),
            rdx = const offset_of!(Gprs, rdx),
            rax = const offset_of!(Gprs, rax),
            rcx = const offset_of!(Gprs, rcx),
        );
    };
}

/// Loads the registers of the [`Gprs`] at rsp + `{gprs}`, except rsp, rax and rcx; the rest of the way out needs the
/// latter two.
macro_rules! load_gprs {
    () => {
        concat!(
            "mov r8, [rsp+{gprs}+{r8}]\n",
            "mov r9, [rsp+{gprs}+{r9}]\n",
            "mov r10, [rsp+{gprs}+{r10}]\n",
            "mov r11, [rsp+{gprs}+{r11}]\n",
            "mov r12, [rsp+{gprs}+{r12}]\n",
            "mov r13, [rsp+{gprs}+{r13}]\n",
            "mov r14, [rsp+{gprs}+{r14}]\n",
            "mov r15, [rsp+{gprs}+{r15}]\n",
            "mov rdi, [rsp+{gprs}+{rdi}]\n",
            "mov rsi, [rsp+{gprs}+{rsi}]\n",
            "mov rbp, [rsp+{gprs}+{rbp}]\n",
            "mov rbx, [rsp+{gprs}+{rbx}]\n",
            "mov rdx, [rsp+{gprs}+{rdx}]\n",
        )
    };
}

/// Stores all registers except rax, rcx, rdx and rsp to the `Gprs` at `gprs` of the stack.
macro_rules! store_gprs {
    () => {
        concat!(
            "mov [rsp+{gprs}+{r8}], r8\n",
            "mov [rsp+{gprs}+{r9}], r9\n",
            "mov [rsp+{gprs}+{r10}], r10\n",
            "mov [rsp+{gprs}+{r11}], r11\n",
            "mov [rsp+{gprs}+{r12}], r12\n",
            "mov [rsp+{gprs}+{r13}], r13\n",
            "mov [rsp+{gprs}+{r14}], r14\n",
            "mov [rsp+{gprs}+{r15}], r15\n",
            "mov [rsp+{gprs}+{rdi}], rdi\n",
            "mov [rsp+{gprs}+{rsi}], rsi\n",
            "mov [rsp+{gprs}+{rbp}], rbp\n",
            "mov [rsp+{gprs}+{rbx}], rbx\n",
        )
    };
}

/// Loads number and arguments of a system call from the seven words at rbx.
macro_rules! load_call {
    () => {
        concat!(
            "mov rax, [rbx]\n",
            "mov rdi, [rbx+8]\n",
            "mov rsi, [rbx+16]\n",
            "mov rdx, [rbx+24]\n",
            "mov r10, [rbx+32]\n",
            "mov r8, [rbx+40]\n",
            "mov r9, [rbx+48]\n",
        )
    };
}

pub(crate) use {gprs_asm, load_gprs, store_gprs};

// Return from a handler; rsp points to its ucontext. rt_sigreturn(2) costs a quarter of a whole fault, and only to set
// the mask does it need the kernel. So a handler that left the mask alone returns by XRSTOR and IRET. A signal on this
// way is noted in `Thread::attention`. From `ulpf_return` on, its handler sends the thread back to there (everything
// since is repeated), and then the note is seen.
//
// The frame of the IRET is below the ucontext, within the red zone that signals leave alone.
gprs_asm!(
    ".text",
    ".globl ulpf_restorer",
    "ulpf_restorer:",
    "test qword ptr [rsp+{link}], {return_here}",
    "jz 4f",
    ".globl ulpf_return",
    "ulpf_return:",
    "mov rax, rsp",
    "and rax, -{block}",
    "cmp dword ptr [rax+{attention}], 0",
    "jne 5f",
    // With a shadow stack (CET), only the kernel can take back the token that it has pushed.
    "xor eax, eax",
    "rdsspq rax",
    "test rax, rax",
    "jne 4f",
    "mov rax, [rsp+{rip}]",
    "mov [rsp-40], rax",
    "movzx eax, word ptr [rsp+{cs}]",
    "mov [rsp-32], rax",
    "mov rax, [rsp+{rflags}]",
    "mov [rsp-24], rax",
    "mov rax, [rsp+{rsp}]",
    "mov [rsp-16], rax",
    "movzx eax, word ptr [rsp+{ss}]",
    "mov [rsp-8], rax",
    // Only the components that the kernel has saved (`_fpx_sw_bytes.xfeatures`). XRSTOR touches the last byte of all
    // requested components, and a frame has no room for AMX tiles that the program has never asked for.
    "mov rcx, [rsp+{fpstate}]",
    "mov eax, [rcx+{xfeatures}]",
    "mov edx, [rcx+{xfeatures}+4]",
    "xrstor64 [rcx]",
    load_gprs!(),
    "mov rax, [rsp+{gprs}+{rax}]",
    "mov rcx, [rsp+{gprs}+{rcx}]",
    "lea rsp, [rsp-40]",
    ".globl ulpf_return_iret",
    "ulpf_return_iret:",
    "iretq",
    // A signal has arrived meanwhile.
    "5:",
    "mov rbx, rsp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call ulpf_late",
    "mov rsp, rbx",
    "4:",
    "mov rax, rsp",
    "and rax, -{block}",
    "cmp byte ptr [rax+{gives_stack_back}], 0",
    "jne 6f",
    "mov eax, 15",
    "syscall",
    "ud2",
    // Restores the program's alternate stack. The kernel changes nothing while a thread is on the present one. From
    // Linux 6.12 on it regards rt_sigreturn(2) as made on the handler's stack. So the frame is copied aside.
    "6:",
    "mov rdi, rsp",
    "and rsp, -16",
    "call ulpf_aside",
    "mov rsp, rax",
    "lea rdi, [rsp+{stack_of}]",
    "xor esi, esi",
    "mov eax, 131",
    "syscall",
    "mov eax, 15",
    "syscall",
    "ud2",
    link = const offset_of!(UContext, link),
    return_here = const RETURN_HERE,
    block = const BLOCK,
    attention = const offset_of!(Thread, attention),
    gives_stack_back = const offset_of!(Thread, gives_stack_back),
    stack_of = const offset_of!(UContext, stack),
    cs = const offset_of!(UContext, cs),
    ss = const offset_of!(UContext, ss),
    fpstate = const offset_of!(UContext, fpstate),
    xfeatures = const SW_RESERVED + 8,
    rip = const offset_of!(UContext, gprs) + offset_of!(Gprs, rip),
    rsp = const offset_of!(UContext, gprs) + offset_of!(Gprs, rsp),
    rflags = const offset_of!(UContext, gprs) + offset_of!(Gprs, rflags),
    gprs = const offset_of!(UContext, gprs),
);

global_asm!(
    ".text",
    // rdi = &[nr, a1 … a6], rsi = signal mask during the call or null, rdx = 1 if the program's seccomp filters in the
    // kernel decide about the call (`syscalls/seccomp.rs`), else 0.
    // A handler that finds PC in [start, insn] sends it to `abort`. The call has not begun then (or the kernel has
    // rewound it), and must be made again after the signal.
    ".globl ulpf_blocking",
    "ulpf_blocking:",
    "push rbx",
    "push r12",
    "mov rbx, rdi",
    "mov r12, rdx",
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
    load_call!(),
    "test r12, r12",
    "jnz ulpf_judged",
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
    ".globl ulpf_judged",
    "ulpf_judged:",
    "syscall",
    "jmp ulpf_blocking_end",
    // clone or clone3 whose child starts on its own block: rdi = &[nr, a1 … a6], rsi = the child's Thread. The child's
    // rsp is its copied ucontext.
    ".globl ulpf_clone",
    "ulpf_clone:",
    "push rbx",
    "push r12",
    "mov rbx, rdi",
    "mov r12, rsi",
    load_call!(),
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
    // Last code of ours in a forked child: rdi = ucontext to return to, rsi = top of the stack below it.
    ".globl ulpf_leave",
    "ulpf_leave:",
    "mov rbx, rdi",
    "mov rsp, rsi",
    "call ulpf_unmap_ours",
    "mov rsp, rbx",
    "mov eax, 15",
    "syscall",
    "ud2",
    // memcpy that ends at a fault: rdi = to, rsi = from, rdx = length; rax = bytes not copied.
    ".globl ulpf_copy",
    "ulpf_copy:",
    "mov rcx, rdx",
    "cmp rdx, 8",
    "je 5f",
    "cmp rdx, 4",
    "je 6f",
    "rep movsb",
    "jmp ulpf_copy_fixup",
    "5:",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret",
    "6:",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "xor eax, eax",
    "ret",
    // Compares words of the stack with expected values. rdi = rsp, rsi = an array of pairs (offset from rsp, value),
    // rdx = number of pairs. Result: rax = number of pairs from the first one on that differs or cannot be read.
    ".globl ulpf_same",
    "ulpf_same:",
    "mov rcx, rdx",
    "jrcxz ulpf_copy_fixup",
    "7:",
    "mov rax, [rsi]",
    "mov rax, [rdi+rax]",
    "cmp rax, [rsi+8]",
    "jne ulpf_copy_fixup",
    "add rsi, 16",
    "dec rcx",
    "jnz 7b",
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
    // Results of the boot entries go to the tracer. If it was killed, our handler of the trap takes the thread back
    // (`signals/home.rs`).
    ".globl ulpf_report",
    "ulpf_report:",
    "mov rax, rdi",
    "int3",
    ".globl ulpf_reported",
    "ulpf_reported:",
    "ud2",
    slots = const SLOT * SLOTS,
);

#[allow(improper_ctypes)]
unsafe extern "C" {
    pub fn ulpf_restorer();
    pub fn ulpf_return();
    pub fn ulpf_return_iret();
    pub fn ulpf_blocking(args: *const [u64; 7], mask: *const u64, judged: u64) -> i64;
    pub fn ulpf_judged();
    pub fn ulpf_blocking_start();
    pub fn ulpf_blocking_insn();
    pub fn ulpf_blocking_abort();
    pub fn ulpf_clone(args: *const [u64; 7], child: *const super::thread::Thread) -> i64;
    pub fn ulpf_spawn(flags: u64, stack_top: u64, entry: extern "C" fn() -> !) -> i64;
    pub fn ulpf_leave(uc: *mut UContext, stack_top: u64) -> !;
    pub fn ulpf_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    pub fn ulpf_same(from: u64, words: *const Word, count: usize) -> usize;
    pub fn ulpf_copy_fixup();
    pub fn ulpf_slots();
    pub fn ulpf_report(result: i64) -> !;
    pub fn ulpf_reported();
    // Handlers: `signals/entry.rs`.
    pub fn ulpf_on_signal();
    pub fn ulpf_on_park();
    pub fn ulpf_on_fault();
    pub fn ulpf_on_trap();
    pub fn ulpf_on_sys();
}
