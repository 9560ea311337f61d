//! One random instruction with a memory operand in an arena, with all it needs to get there.

use super::{Gen, all_codes};
use crate::asm::*;
use crate::corpus::{self, Shape};
use crate::program::*;
use iced_x86::*;
use std::sync::LazyLock;

/// The codes that a judge can follow.
pub struct Codes {
    unicorn: Vec<Code>,
    step: Vec<Code>,
    /// Gathers, scatters and moves with a mask, which are few of the latter.
    masked: Vec<Code>,
}

impl Codes {
    pub fn none() -> Codes {
        Codes {
            unicorn: vec![],
            step: vec![],
            masked: vec![],
        }
    }
}

pub fn codes() -> Codes {
    let kept = |ok: fn(Code) -> bool| all_codes().filter(|c| testable(*c) && ok(*c)).collect();
    Codes {
        unicorn: kept(unicorn_knows),
        step: kept(here),
        masked: kept(|c| here(c) && moves_masked(c)),
    }
}

/// Whether it can be put anywhere in a program, for either judge.
fn testable(code: Code) -> bool {
    use Mnemonic::*;
    let op = code.op_code();
    let name = format!("{code:?}");
    // Privileged or not in user mode; changes segments; ends up elsewhere (the stack generator has
    // the near transfers); waits or talks to the machine.
    let elsewhere = code.flow_control() != FlowControl::Next
        || op.is_privileged()
        || matches!(
            code.mnemonic(),
            Lds | Les
                | Lfs
                | Lgs
                | Lss
                | Sgdt
                | Sidt
                | Sldt
                | Smsw
                | Str
                | Lgdt
                | Lidt
                | Lldt
                | Ltr
                | Lmsw
                | Insb
                | Insw
                | Insd
                | Outsb
                | Outsw
                | Outsd
                | Xbegin
                | Monitor
                | Monitorx
                | Enqcmd
                | Enqcmds
                | Rstorssp
                | Clrssbsy
                | Wrssd
                | Wrssq
                | Wrussd
                | Wrussq
                | Invlpg
                | Vmread
                | Vmwrite
                | Invept
                | Invvpid
                | Invpcid
                | Ptwrite
                | Bound
        )
        || name.starts_with("Mov_Sreg")
        || [
            "Pop_FS", "Popw_FS", "Popq_FS", "Pop_GS", "Popw_GS", "Popq_GS",
        ]
        .iter()
        .any(|p| name.starts_with(p));
    // Have generators of their own.
    let own = op.is_string_like()
        || matches!(
            code.mnemonic(),
            Enter | Leave | Popf | Popfq | Pushf | Pushfq | Xlatb | Call | Ret | Jmp
        );
    // Not compared: see docs/guarantees/hits.md. Their output depends on the components used before.
    let state = matches!(
        code.mnemonic(),
        Xsave
            | Xsave64
            | Xsaveopt
            | Xsaveopt64
            | Xsavec
            | Xsavec64
            | Xsaves
            | Xsaves64
            | Xrstor
            | Xrstor64
            | Xrstors
            | Xrstors64
            | Fldenv
            | Frstor
            | Fxrstor
            | Fxrstor64
    );
    // Prefetches, hints and cache control touch nothing.
    !(elsewhere || own || state)
}

trait StringLike {
    fn is_string_like(&self) -> bool;
}
impl StringLike for OpCodeInfo {
    fn is_string_like(&self) -> bool {
        self.op_kinds()
            .iter()
            .any(|k| matches!(k, OpCodeOperandKind::es_rDI | OpCodeOperandKind::seg_rSI))
    }
}

/// Whether Unicorn's processor has the instruction, and executes it as the hardware does.
fn unicorn_knows(code: Code) -> bool {
    use CpuidFeature::*;
    use Mnemonic as M;
    let features = code.cpuid_features().iter().all(|f| {
        matches!(
            f,
            INTEL8086
                | INTEL8086_ONLY
                | INTEL186
                | INTEL286
                | INTEL386
                | INTEL486
                | X64
                | CMOV
                | CX8
                | CMPXCHG16B
                | FPU
                | FPU287
                | FPU387
                | MMX
                | SSE
                | SSE2
                | SSE3
                | SSSE3
                | SSE4_1
                | SSE4_2
                | MOVBE
                | POPCNT
                | AES
                | PCLMULQDQ
                | BMI1
                | BMI2
                | CLFSH
                | MULTIBYTENOP
        )
    });
    let legacy = code.encoding() == EncodingKind::Legacy;
    let general_vex = code
        .cpuid_features()
        .iter()
        .any(|f| matches!(f, BMI1 | BMI2));
    let differs = matches!(
        code.mnemonic(),
        // It leaves the reserved parts of these areas alone, or fills them with other values.
        M::Fxsave | M::Fxsave64 | M::Fnsave | M::Fsave | M::Fnstenv | M::Fstenv
        // Descriptor tables and selectors are the kernel's.
        | M::Lar | M::Lsl | M::Verr | M::Verw
        // It takes an index above 63 for 63.
        | M::Bzhi
        // It reads 16 bytes, or 8, where the processor reads 8, or 4.
        | M::Cvtps2pd | M::Cvtdq2pd | M::Cvtps2pi | M::Cvttps2pi | M::Roundss | M::Roundsd
    ) || matches!(
        code,
        Code::Punpcklbw_mm_mmm32 | Code::Punpcklwd_mm_mmm32 | Code::Punpckldq_mm_mmm32
        // It does not know the second encoding of test.
        | Code::Test_rm8_imm8_F6r1 | Code::Test_rm16_imm16_F7r1 | Code::Test_rm32_imm32_F7r1
        | Code::Test_rm64_imm32_F7r1
        // It cuts the lengths otherwise, which the mask in xmm0 shows.
        | Code::Pcmpestrm_xmm_xmmm128_imm8
        // It takes the lengths from the lower halves.
        | Code::Pcmpestrm64_xmm_xmmm128_imm8 | Code::Pcmpestri64_xmm_xmmm128_imm8
        // Counts above 16 are undefined.
        | Code::Shld_rm16_r16_imm8 | Code::Shld_rm16_r16_CL | Code::Shrd_rm16_r16_imm8
        | Code::Shrd_rm16_r16_CL
    ) || format!("{code:?}").contains("Sreg")
        || format!("{code:?}").starts_with("Push") && format!("{code:?}").ends_with("S");
    features && (legacy || general_vex) && !differs
}

fn moves_masked(code: Code) -> bool {
    let name = format!("{:?}", code.mnemonic());
    let moves = ["Vmov", "Vpmov"].iter().any(|n| name.starts_with(n));
    ["gather", "scatter", "compress", "expand", "mask"]
        .iter()
        .any(|n| name.to_lowercase().contains(n))
        || moves && code.op_code().can_use_op_mask_register()
}

/// Whether this machine's processor has the instruction.
fn here(code: Code) -> bool {
    use CpuidFeature::*;
    use std::arch::is_x86_feature_detected as has;
    code.cpuid_features().iter().all(|f| match f {
        INTEL8086 | INTEL8086_ONLY | INTEL186 | INTEL286 | INTEL386 | INTEL486 | X64 | CMOV
        | CX8 | CMPXCHG16B | FPU | FPU287 | FPU387 | MMX | SSE | SSE2 | CLFSH | MULTIBYTENOP => {
            true
        }
        SSE3 => has!("sse3"),
        SSSE3 => has!("ssse3"),
        SSE4_1 => has!("sse4.1"),
        SSE4_2 => has!("sse4.2"),
        SSE4A => has!("sse4a"),
        MOVBE => has!("movbe"),
        POPCNT => has!("popcnt"),
        LZCNT => has!("lzcnt"),
        AES => has!("aes"),
        PCLMULQDQ => has!("pclmulqdq"),
        ADX => has!("adx"),
        BMI1 => has!("bmi1"),
        BMI2 => has!("bmi2"),
        AVX => has!("avx"),
        AVX2 => has!("avx2"),
        FMA => has!("fma"),
        F16C => has!("f16c"),
        SHA => has!("sha"),
        GFNI => has!("gfni"),
        VAES => has!("vaes"),
        VPCLMULQDQ => has!("vpclmulqdq"),
        AVX512F => has!("avx512f"),
        AVX512VL => has!("avx512vl"),
        AVX512BW => has!("avx512bw"),
        AVX512DQ => has!("avx512dq"),
        AVX512CD => has!("avx512cd"),
        AVX512_IFMA => has!("avx512ifma"),
        AVX512_VBMI => has!("avx512vbmi"),
        AVX512_VBMI2 => has!("avx512vbmi2"),
        AVX512_VNNI => has!("avx512vnni"),
        AVX512_BITALG => has!("avx512bitalg"),
        AVX512_VPOPCNTDQ => has!("avx512vpopcntdq"),
        _ => false,
    })
}

/// Legacy vector instructions that take unaligned operands; VEX and EVEX ones that do not.
fn wants_alignment(i: &Instruction) -> bool {
    use Mnemonic::*;
    let size = i.memory_size().size();
    if i.mnemonic() == Cmpxchg16b || matches!(i.mnemonic(), Fxsave | Fxsave64) {
        return true;
    }
    if size < 16 {
        return false;
    }
    match i.encoding() {
        EncodingKind::Legacy => !matches!(
            i.mnemonic(),
            Movups
                | Movupd
                | Movdqu
                | Lddqu
                | Pcmpestri
                | Pcmpestrm
                | Pcmpistri
                | Pcmpistrm
                | Fnsave
                | Fnstenv
        ),
        _ => {
            format!("{:?}", i.mnemonic()).starts_with("Vmova")
                || format!("{:?}", i.mnemonic()).starts_with("Vmovnt")
                || format!("{:?}", i.mnemonic()).starts_with("Vmovdqa")
        }
    }
}

/// Whether a locked access of `i` would stall: it may cross a cache line, and the processor traps such accesses. Then the
/// kernel delays them (10 ms each, split_lock_mitigate; Documentation/arch/x86/buslock.rst of Linux). Below a hypervisor
/// that does so, one has taken 12 s alone, and did not end within a minute beside eight busy processes.
fn stalls(i: &Instruction) -> bool {
    static TRAPS: LazyLock<bool> = LazyLock::new(|| {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mut flags = text.lines().filter(|line| line.starts_with("flags"));
        let traps = |flag| ["split_lock_detect", "bus_lock_detect"].contains(&flag);
        flags.any(|line| line.split_whitespace().any(traps))
    });
    *TRAPS && (i.has_lock_prefix() || i.mnemonic() == Mnemonic::Xchg)
}

fn number(r: Register) -> Option<u8> {
    (r != Register::None)
        .then(|| (r.full_register() as u32).wrapping_sub(Register::RAX as u32) as u8)
}

impl Gen<'_> {
    pub fn random_instruction(&mut self) {
        let codes = self.codes;
        self.one_of(match self.judge {
            Judge::Unicorn => &codes.unicorn,
            Judge::Step => &codes.step,
        });
    }

    pub fn random_masked(&mut self) {
        let codes = self.codes;
        self.one_of(&codes.masked);
    }

    fn one_of(&mut self, list: &[Code]) {
        for _ in 0..200 {
            if list.is_empty() || self.attempt(list) {
                return;
            }
        }
    }

    fn attempt(&mut self, list: &[Code]) -> bool {
        let code = list[self.rng.below(list.len() as u64) as usize];
        let align = if self.rng.chance(3) { 1 } else { 64 };
        let target = self.target(16, align);
        let shape = Shape { target, pc: CODE };
        let Some(bytes) = corpus::make(code, &mut self.rng, shape) else {
            return false;
        };
        let mut i = Decoder::with_ip(64, &bytes, CODE, DecoderOptions::NONE).decode();
        if i.is_invalid() || i.code() != code {
            return false;
        }
        if i.segment_prefix() == Register::GS && !(self.uses_gs && self.rng.chance(2)) {
            i.set_segment_prefix(Register::FS);
        }
        let start = (self.asm.code.len(), self.asm.constants.len());
        if self.prepare(&i, target) && self.asm.instruction(&i) {
            self.tidy(&i);
            return true;
        }
        self.asm.code.truncate(start.0);
        self.asm.constants.truncate(start.1);
        false
    }

    /// Gives the registers and memory that the instruction depends on fitting values.
    fn prepare(&mut self, i: &Instruction, shaped: u64) -> bool {
        use Mnemonic::*;
        let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
        let size = (i.memory_size().size() as u64).max(1);
        let whole = memory && stalls(i);
        let align = match (wants_alignment(i), whole) {
            (true, _) => 64,
            (false, true) => size.next_power_of_two(),
            (false, false) => 1,
        };
        let aligned = align > 1;
        if self.registers && crate::registers::reads_half(i) {
            return false;
        }
        let segment = match i.memory_segment() {
            Register::FS => self.fs,
            Register::GS => self.gs,
            _ => 0,
        };
        if crate::masks::masked(i) {
            if self.judge == Judge::Unicorn {
                return false;
            }
            return self.prepare_masked(i, shaped, aligned);
        }
        if self.judge == Judge::Unicorn {
            // It knows the comparisons of SSE only, and forgets the immediate of these in RIP-relative
            // operands.
            if matches!(i.mnemonic(), Cmpps | Cmppd | Cmpss | Cmpsd) && i.immediate8() > 7
                || matches!(i.mnemonic(), Shld | Shrd | Rorx) && i.is_ip_rel_memory_operand()
            {
                return false;
            }
        }
        let x87 = i.code().op_code().instruction_string().starts_with('F')
            || format!("{:?}", i.mnemonic()).starts_with('F');
        if x87 {
            // A known stack: fninit ; fld1 ; fldpi. AMD's processors keep the address of the last instruction
            // over a task switch only while an exception is pending, so the state has no last instruction.
            self.asm.put(&[0xdb, 0xe3]);
            if !matches!(
                i.mnemonic(),
                Fxsave | Fxsave64 | Fnsave | Fsave | Fnstenv | Fstenv
            ) {
                self.asm.put(&[0xd9, 0xe8, 0xd9, 0xeb]);
            }
            if matches!(i.mnemonic(), Fld | Fbld) && size == 10 {
                return false;
            }
        }
        if self.judge == Judge::Unicorn && matches!(i.mnemonic(), Stmxcsr | Vstmxcsr) {
            let at = self.asm.constant(&0x1f80u32.to_le_bytes());
            self.asm.put(&[0x0f, 0xae, 0x14, 0x25]);
            self.asm.put(&(at as u32).to_le_bytes());
        }
        let base = number(i.memory_base())
            .filter(|_| i.memory_base() != Register::RIP && i.memory_base() != Register::EIP);
        let index = number(i.memory_index());
        let narrow = i.memory_base().size() == 4 || i.memory_index().size() == 4;
        if segment != 0 && memory && (base.is_none() || narrow) {
            return false;
        }
        let mut at = shaped;
        if memory && (base.is_some() || index.is_some()) {
            at = self.target(size, align);
        } else if memory && shaped & (align - 1) != 0 {
            return false;
        }
        let preset = |g: &mut Self, low: i32| g.asm.store_word(at, low);
        match i.mnemonic() {
            Div | Idiv => {
                preset(self, 0x0101_7f7f);
                self.asm.mov(RDX, 0);
                let v = self.rng.next() & 0x3fff;
                self.asm.mov(RAX, v);
            }
            Ldmxcsr | Vldmxcsr => preset(self, 0x1f80),
            Fldcw => preset(self, 0x037f),
            Cmpxchg8b | Cmpxchg16b if self.rng.chance(2) => {
                self.asm.load(RAX, at);
                self.asm.load(RDX, at + size / 2);
            }
            Cmpxchg if self.rng.chance(2) => self.asm.load(RAX, at),
            Clzero => return false,
            Bt | Bts | Btr | Btc => {
                // The bit lies up to 256 bytes away.
                if let Some(reg) = (i.op1_kind() == OpKind::Register)
                    .then(|| number(i.op1_register()))
                    .flatten()
                {
                    if Some(reg) == base || Some(reg) == index || reg == RSP {
                        return false;
                    }
                    let bit = self.rng.below(4096).wrapping_sub(2048);
                    self.asm.mov(reg, bit);
                }
            }
            _ => {}
        }
        let stack = i.is_stack_instruction();
        if stack && segment != 0 && base == Some(RSP) {
            return false;
        }
        if stack && base != Some(RSP) {
            let align = if self.rng.chance(4) { 1 } else { 8 };
            let top = self.target(8, align);
            self.asm.mov(RSP, top);
        }
        if !memory {
            return stack;
        }
        self.aim(i, base, index, at.wrapping_sub(segment), aligned)
    }

    /// Sets base and index so that the operand is at `at`.
    pub fn aim(
        &mut self,
        i: &Instruction,
        base: Option<u8>,
        index: Option<u8>,
        at: u64,
        aligned: bool,
    ) -> bool {
        let scale = i.memory_index_scale() as u64;
        let disp = i.memory_displacement64();
        let narrow = matches!(i.memory_base(), Register::None) && i.memory_index().size() == 4
            || i.memory_base().size() == 4;
        let disp = if narrow {
            disp as i32 as i64 as u64
        } else {
            disp
        };
        if base == Some(RSP) && i.is_stack_instruction() && (disp as i64).unsigned_abs() > 64 {
            return false;
        }
        let dress = |g: &mut Self, v: u64| {
            if narrow {
                v & 0xffff_ffff | g.rng.next() << 32
            } else {
                v
            }
        };
        // Their operand in memory has been prepared.
        let special = matches!(
            i.mnemonic(),
            Mnemonic::Div
                | Mnemonic::Idiv
                | Mnemonic::Ldmxcsr
                | Mnemonic::Vldmxcsr
                | Mnemonic::Fldcw
        );
        let exact = aligned || special;
        match (base, index) {
            (None, None) => true,
            (Some(b), Some(x)) if b == x => {
                let v = at.wrapping_sub(disp);
                if (v as i64) < 0 || exact && v % (1 + scale) != 0 {
                    return false;
                }
                let v = dress(self, v / (1 + scale));
                self.asm.mov(b, v);
                true
            }
            (None, Some(x)) => {
                let v = at.wrapping_sub(disp);
                if (v as i64) < 0 || exact && v % scale != 0 {
                    return false;
                }
                let v = dress(self, v / scale);
                self.asm.mov(x, v);
                true
            }
            (Some(b), index) => {
                let mut part = 0;
                if let Some(x) = index {
                    let v = match self.rng.below(3) {
                        0 => self.rng.below(64),
                        1 => self.rng.next() as i8 as i64 as u64,
                        _ => self.rng.next(),
                    };
                    self.asm.mov(x, v);
                    part = v.wrapping_mul(scale);
                }
                let minus = disp.wrapping_add(part);
                let flat = !matches!(i.memory_segment(), Register::FS | Register::GS);
                let wanders = flat
                    && !narrow
                    && i32::try_from(minus as i64).is_ok_and(|m| m.unsigned_abs() < 1 << 24);
                if wanders && !special && b != RSP && self.rng.chance(3) {
                    let align = if aligned { 64 } else { 1 << self.rng.below(4) };
                    self.wandering(b, align, minus);
                } else {
                    let v = dress(self, at.wrapping_sub(minus));
                    self.asm.mov(b, v);
                }
                true
            }
        }
    }

    /// Puts an end to what the architecture leaves undefined, or Unicorn does another way.
    fn tidy(&mut self, i: &Instruction) {
        if self.judge == Judge::Step {
            return;
        }
        use Mnemonic::*;
        // Unicorn takes the flags of a locked neg from the value before, and not all of a locked cmpxchg16b's.
        let locked = i.has_lock_prefix() && matches!(i.mnemonic(), Neg | Cmpxchg16b);
        if i.rflags_undefined() != 0
            || locked
            || matches!(
                i.mnemonic(),
                Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd
            )
        {
            let v = self.rng.next() as u8;
            self.asm.define_flags(v);
        }
        if matches!(i.mnemonic(), Bsf | Bsr) && i.op0_register().size() == 4 {
            // With a zero source the result is undefined: make its upper half known.
            let r = i.op0_register().number() as u8;
            self.asm.put(&[
                0x40 | (r >> 3) << 2 | r >> 3,
                0x89,
                0xc0 | (r & 7) << 3 | r & 7,
            ]);
        }
        if matches!(i.mnemonic(), Pcmpestri | Pcmpestrm) {
            // Lengths are cut otherwise: neither flags nor the index are to be trusted.
            self.asm.mov(RCX, 7);
            self.asm.define_flags(7);
        }
        if i.mnemonic() == Cmpxchg && i.op1_register().size() == 4 {
            // When the values are equal, Unicorn writes the upper half of rax, too.
            self.asm.put(&[0x89, 0xc0]);
        }
        let name = format!("{:?}", i.mnemonic());
        if name.starts_with('F') || (0..i.op_count()).any(|n| i.op_register(n).is_mm()) {
            self.asm.put(&[0xdb, 0xe3]);
        }
        // Not-a-numbers come out otherwise: results of arithmetic are dropped.
        if i.op_count() > 0
            && i.op0_register().is_xmm()
            && !name.starts_with("Mov")
            && name != "Lddqu"
        {
            let r = i.op0_register().number() as u8;
            self.asm.put(&[
                0x66,
                0x40 | (r >> 3) << 2 | r >> 3,
                0x0f,
                0xef,
                0xc0 | (r & 7) << 3 | r & 7,
            ]);
        }
    }
}
