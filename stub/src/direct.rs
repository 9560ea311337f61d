//! A hit inside a patch's body, accounted for without a signal.
//!
//! ```text
//! body:  old value → area, the instruction on the alias ─▶ ulpf_direct: registers → frame on the block
//!                                                             ulpf_direct_hit: count, log, filter
//!        back to the program  ◀──────────────────────────── ulpf_direct_tail: registers
//!        int3: a stop is wanted, or a signal has struck ◀─┘
//! ```
//! The thread's block is free while the program runs, so its stack serves here too. From the first
//! instruction of `ulpf_direct` on a signal finds the thread in our own image, and is put off as
//! anywhere in it ([`signals`]); what it has left to do, and stops, need the program's whole state in a
//! signal frame, and an `int3` makes one. The tail only reads its frame: interrupted, it begins anew.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering::*;

use ulpf_engine::cpu::Gprs;
use ulpf_engine::patch::{Part, What};
use ulpf_lib::ring::Area;
use ulpf_lib::{AccessKind, TargetAddr};

use crate::fault;
use crate::hits::{self, Cause};
use crate::patches::{self, Calm};
use crate::runtime::asm::{gprs_asm, load_gprs};
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::signals;
use crate::runtime::thread::{BLOCK, Events, Request, Thread};

/// What is known of a patched instruction beforehand; [`Area::hit`] points to one.
#[repr(C)]
pub struct Known {
    pub pc: u64,
    /// Where the program goes on, and the body.
    pub after: u64,
    pub back: u64,
    pub size: u64,
    pub kind: AccessKind,
    /// Not of a hit: no guard has been met for a while (`Target::leaving`), and nothing executed.
    pub leaving: bool,
}

/// For each part of a patch: of a hit, of leaving when the patch stays, and when it has gone.
pub const KNOWN: usize = 3;

impl Known {
    pub fn of(part: &Part) -> [Known; KNOWN] {
        let (size, kind) = match &part.what {
            What::Checked(insn) => (insn.mem.size.into(), insn.mem.kind),
            _ => (0, AccessKind::Read),
        };
        let known = |after, leaving| Known {
            pc: part.at,
            after,
            back: after,
            size,
            kind,
            leaving,
        };
        [
            known(part.at + u64::from(part.len), false),
            known(part.at, true),
            known(part.at, true),
        ]
    }
}

/// The program's registers, at the foot of the stack.
#[repr(C, align(16))]
struct Frame {
    gprs: Gprs,
    vectors: [u128; 16],
}

const FRAME: usize = size_of::<Frame>();

/// Where a thread's frame is.
pub fn frame(t: &Thread) -> u64 {
    t.stack_top() - FRAME as u64
}

const AC: u64 = 1 << 18;
const DF: u64 = 1 << 10;

gprs_asm!(
    ".text",
    ".globl ulpf_direct",
    "ulpf_direct:",
    "mov byte ptr gs:[{direct}], 1",
    "mov gs:[{area_rsp}], rsp",
    "mov rsp, gs:[{stack}]",
    "mov [rsp+{gprs}+{r8}], r8",
    "mov [rsp+{gprs}+{r9}], r9",
    "mov [rsp+{gprs}+{r10}], r10",
    "mov [rsp+{gprs}+{r11}], r11",
    "mov [rsp+{gprs}+{r12}], r12",
    "mov [rsp+{gprs}+{r13}], r13",
    "mov [rsp+{gprs}+{r14}], r14",
    "mov [rsp+{gprs}+{r15}], r15",
    "mov [rsp+{gprs}+{rdi}], rdi",
    "mov [rsp+{gprs}+{rsi}], rsi",
    "mov [rsp+{gprs}+{rbp}], rbp",
    "mov [rsp+{gprs}+{rbx}], rbx",
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
    // Compiled code expects neither alignment checks nor a direction.
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
    // Flags: POPF costs as much as all the rest, and is needed only for the odd ones.
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
    // The trap is known by the address behind it, where nothing else may begin: threads are
    // interrupted at `ulpf_restorer`, too.
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

/// For [`Area::entry`].
pub fn entry() -> u64 {
    ulpf_direct as *const () as u64
}

/// Counts, logs and filters; what cannot be done here makes the tail raise its `int3`.
#[unsafe(no_mangle)]
extern "C" fn ulpf_direct_hit(frame: &mut Frame) {
    let t = Thread::current();
    let Some(area) = patches::area(t) else { return };
    // SAFETY: a patch is not taken away while a thread is on its way through it.
    let known = unsafe { &*(area.hit.load(Relaxed) as *const Known) };
    if known.leaving {
        match patches::calm(t, area, known.pc) {
            Calm::Stays => {}
            Calm::Gone => area.hit.store(
                &raw const *known as u64 + size_of::<Known>() as u64,
                Relaxed,
            ),
            Calm::ToGo => {
                t.inner().cool = known.pc;
                t.attention.store(1, SeqCst);
            }
        }
        return;
    }
    let gprs = &mut frame.gprs;
    gprs.rip = known.after;
    let alias = area.alias.load(Relaxed);
    let size = (known.size as usize).min(size_of_val(&area.old));
    let Some(addr) = patches::behind_alias(alias) else {
        return;
    };
    // SAFETY: the body has put that many bytes there.
    let old = unsafe { core::slice::from_raw_parts((&raw const area.old).cast::<u8>(), size) };
    // SAFETY: the access itself has been made there. (Another thread may write there meanwhile, as
    // anywhere in the program.)
    let new = unsafe { core::slice::from_raw_parts(alias as *const u8, size) };
    let cause = Cause {
        pc: known.pc,
        addr: TargetAddr(addr),
        len: known.size,
        kind: known.kind,
        old: Some(old),
        new: Some(new),
        kept: None,
        syscall: None,
    };
    let mut events = Events::none();
    if !hits::hits(t, gprs, &cause, &mut events) {
        hits::count_false_positive(t, TargetAddr(addr));
    }
    let i = t.inner();
    if !events.is_empty() || i.reconsider != 0 || i.new_code != 0 {
        i.pending = events;
        t.attention.store(1, SeqCst);
    }
}

/// A thread whose context is at the end of our way is in the program again.
pub fn leave(area: &Area, uc: &mut UContext) {
    let attention = ulpf_direct_attention as *const () as u64;
    if uc.gprs.rip == ulpf_direct_jump as *const () as u64 && area.back.load(Relaxed) != attention {
        uc.gprs.rip = area.back.load(Relaxed);
    }
}

/// A signal has struck on our way, and is put off. `true`: it has.
pub fn interrupted(t: &Thread, uc: &mut UContext) -> bool {
    let Some(area) = patches::area(t) else {
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

/// Is this `int3` the tail's? Then what had to wait is done.
pub fn finish(t: &'static Thread, uc: &mut UContext) -> bool {
    if !is_trap(uc.gprs.rip.wrapping_sub(1)) {
        return false;
    }
    let Some(area) = patches::area(t) else {
        return false;
    };
    // SAFETY: see `ulpf_direct_hit`.
    uc.gprs.rip = unsafe { &*(area.hit.load(Relaxed) as *const Known) }.after;
    let i = t.inner();
    if let Some(mask) = i.direct_mask.take() {
        uc.sigmask = mask;
    }
    let cool = core::mem::take(&mut i.cool);
    if cool != 0 && i.own_step.is_none() && !i.stepping {
        park::request(t, uc, Request::Cool { start: cool });
    }
    let events = core::mem::replace(&mut i.pending, Events::none());
    if events.is_empty() {
        fault::look_again(t, uc);
    } else {
        fault::stop_for(t, uc, &events);
    }
    signals::late(t, uc);
    patches::skip(t, uc);
    true
}
