//! The way from a trampoline to `direct.rs` and back: the frame of registers, and the meaning of an interrupted PC.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering::*;

use ulpf_engine::cpu::Gprs;
use ulpf_lib::eflags::{AC, DF};
use ulpf_lib::ring::Area;
use ulpf_stub_tables::patches::Known;

use crate::check::entries;
use crate::runtime::areas::area;
use crate::runtime::asm::{gprs_asm, load_gprs, store_gprs};
use crate::runtime::frame::UContext;
use crate::runtime::thread::{BLOCK, Current, Thread};

/// The program's registers, at the foot of the stack.
#[repr(C, align(16))]
pub struct Frame {
    pub gprs: Gprs,
    vectors: [u128; 16],
}

const FRAME: usize = size_of::<Frame>();

/// Address of the thread's frame.
pub fn frame(t: Current) -> u64 {
    t.stack_top() - FRAME as u64
}

gprs_asm!(
    ".text",
    ".globl ulpf_direct",
    "ulpf_direct:",
    "mov byte ptr gs:[{direct}], 1",
    "mov gs:[{area_rsp}], rsp",
    "mov rsp, gs:[{stack}]",
    store_gprs!(),
    "mov [rsp+{gprs}+{rdx}], rdx",
    "mov [rsp+{gprs}+{rax}], rax",
    "mov [rsp+{gprs}+{rcx}], rcx",
    "mov rax, gs:[{area_rsp}]",
    "mov [rsp+{rsp_}], rax",
    "pushfq",
    "pop rax",
    "mov [rsp+{rflags}], rax",
    "test eax, {odd}",
    "jz 2f",
    // Compiled code expects the alignment check and the direction flag to be off.
    "and rax, ~{odd}",
    "push rax",
    "popfq",
    "2:",
    "movaps [rsp+{vectors}], xmm0",
    "movaps [rsp+{vectors}+16], xmm1",
    "movaps [rsp+{vectors}+32], xmm2",
    "movaps [rsp+{vectors}+48], xmm3",
    "movaps [rsp+{vectors}+64], xmm4",
    "movaps [rsp+{vectors}+80], xmm5",
    "movaps [rsp+{vectors}+96], xmm6",
    "movaps [rsp+{vectors}+112], xmm7",
    "movaps [rsp+{vectors}+128], xmm8",
    "movaps [rsp+{vectors}+144], xmm9",
    "movaps [rsp+{vectors}+160], xmm10",
    "movaps [rsp+{vectors}+176], xmm11",
    "movaps [rsp+{vectors}+192], xmm12",
    "movaps [rsp+{vectors}+208], xmm13",
    "movaps [rsp+{vectors}+224], xmm14",
    "movaps [rsp+{vectors}+240], xmm15",
    "mov rdi, rsp",
    "call ulpf_direct_hit",
    ".globl ulpf_direct_tail",
    "ulpf_direct_tail:",
    "lea rcx, [rip+ulpf_direct_attention]",
    "mov rax, rsp",
    "and rax, -{block}",
    "cmp dword ptr [rax+{attention}], 0",
    "jne 3f",
    "mov rcx, gs:[{hit}]",
    "mov rcx, [rcx+{known_back}]",
    "3:",
    "mov gs:[{back}], rcx",
    "movaps xmm0, [rsp+{vectors}]",
    "movaps xmm1, [rsp+{vectors}+16]",
    "movaps xmm2, [rsp+{vectors}+32]",
    "movaps xmm3, [rsp+{vectors}+48]",
    "movaps xmm4, [rsp+{vectors}+64]",
    "movaps xmm5, [rsp+{vectors}+80]",
    "movaps xmm6, [rsp+{vectors}+96]",
    "movaps xmm7, [rsp+{vectors}+112]",
    "movaps xmm8, [rsp+{vectors}+128]",
    "movaps xmm9, [rsp+{vectors}+144]",
    "movaps xmm10, [rsp+{vectors}+160]",
    "movaps xmm11, [rsp+{vectors}+176]",
    "movaps xmm12, [rsp+{vectors}+192]",
    "movaps xmm13, [rsp+{vectors}+208]",
    "movaps xmm14, [rsp+{vectors}+224]",
    "movaps xmm15, [rsp+{vectors}+240]",
    load_gprs!(),
    // POPF costs as much as all the rest, and only the odd flags need it.
    "mov rax, [rsp+{rflags}]",
    "test eax, {odd}",
    "jnz 4f",
    "mov ecx, eax",
    "shr ecx, 11",
    "and ecx, 1",
    "mov ah, al",
    "add cl, 0x7f",
    "sahf",
    "jmp 5f",
    "4:",
    "push rax",
    "popfq",
    "5:",
    "mov rax, [rsp+{gprs}+{rax}]",
    "mov rcx, [rsp+{gprs}+{rcx}]",
    "mov byte ptr gs:[{direct}], 0",
    "mov rsp, [rsp+{rsp_}]",
    ".globl ulpf_direct_jump",
    "ulpf_direct_jump:",
    "jmp qword ptr gs:[{back}]",
    ".globl ulpf_direct_attention",
    "ulpf_direct_attention:",
    "int3",
    // The trap is recognised by the address behind it, where nothing else may begin: threads are interrupted at
    // `ulpf_restorer`, too.
    "ud2",
    direct = const offset_of!(Area, direct),
    area_rsp = const offset_of!(Area, rsp),
    stack = const offset_of!(Area, stack),
    hit = const offset_of!(Area, hit),
    back = const offset_of!(Area, back),
    known_back = const offset_of!(Known, back),
    block = const BLOCK,
    attention = const offset_of!(Thread, attention),
    odd = const AC | DF,
    vectors = const offset_of!(Frame, vectors),
    gprs = const offset_of!(Frame, gprs),
    rsp_ = const offset_of!(Frame, gprs) + offset_of!(Gprs, rsp),
    rflags = const offset_of!(Frame, gprs) + offset_of!(Gprs, rflags),
);

unsafe extern "C" {
    fn ulpf_direct();
    fn ulpf_direct_tail();
    fn ulpf_direct_jump();
    fn ulpf_direct_attention();
}

/// The value of [`Area::entry`].
pub fn entry() -> u64 {
    ulpf_direct as *const () as u64
}

/// Puts a thread whose context is at the end of our way back into the program.
pub fn leave(area: &Area, uc: &mut UContext) {
    let attention = ulpf_direct_attention as *const () as u64;
    if uc.gprs.rip == ulpf_direct_jump as *const () as u64 && area.back.load(Relaxed) != attention {
        uc.gprs.rip = area.back.load(Relaxed);
        entries::leave(uc);
    }
}

/// Notes that a signal has interrupted our way, and is put off. Returns `false` if it has not.
pub fn interrupted(t: Current, uc: &mut UContext) -> bool {
    let Some(area) = area(t) else {
        return false;
    };
    let rip = uc.gprs.rip;
    let within = |from: u64, to: u64| rip >= from && rip <= to;
    let tail = ulpf_direct_tail as *const () as u64;
    let jump = ulpf_direct_jump as *const () as u64;
    if within(tail, jump - 1) {
        uc.gprs.rip = tail;
        area.direct.store(1, Relaxed);
    }
    area.direct.load(Relaxed) != 0
        || rip == entry()
        || within(jump, ulpf_direct_attention as *const () as u64)
}

pub fn is_trap(at: u64) -> bool {
    at == ulpf_direct_attention as *const () as u64
}
