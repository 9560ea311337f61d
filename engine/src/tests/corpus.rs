//! Test instructions: every opcode that iced-x86 can encode in 64-bit mode, with random operands.

use iced_x86::{Code, Encoder, Instruction, OpCodeOperandKind as K, OpKind, Register};

/// xorshift64*: small, seeded, good enough to pick operands.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }
    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

/// All codes that 64-bit mode has.
pub fn codes() -> impl Iterator<Item = Code> {
    Code::values().filter(|c| {
        let op = c.op_code();
        op.is_instruction() && op.mode64()
    })
}

fn nth(first: Register, n: u64) -> Register {
    first + n as u32
}

/// How the memory operand is addressed.
#[derive(Clone, Copy)]
pub struct Shape {
    /// RIP-relative and absolute operands are made to point near this address.
    pub target: u64,
    pub pc: u64,
}

/// One random instance of `code`, or `None` when it has no memory operand form or the operands
/// picked cannot be encoded together.
pub fn make(code: Code, rng: &mut Rng, shape: Shape) -> Option<Vec<u8>> {
    let op = code.op_code();
    let mut i = Instruction::new();
    i.set_code(code);
    let high_regs = op.encoding() == iced_x86::EncodingKind::EVEX;
    let vectors = if high_regs { 32 } else { 16 };
    let legacy = op.encoding() == iced_x86::EncodingKind::Legacy;
    let mut memory = false;
    for (n, kind) in op.op_kinds().iter().enumerate() {
        let n = n as u32;
        let mut reg = None;
        let imm = |i: &mut Instruction, kind: OpKind, value: u64| {
            i.set_op_kind(n, kind);
            match kind {
                OpKind::Immediate8 => i.set_immediate8(value as u8),
                OpKind::Immediate8_2nd => i.set_immediate8_2nd(value as u8),
                OpKind::Immediate8to16 => i.set_immediate8to16(value as i8 as i16),
                OpKind::Immediate8to32 => i.set_immediate8to32(value as i8 as i32),
                OpKind::Immediate8to64 => i.set_immediate8to64(value as i8 as i64),
                OpKind::Immediate16 => i.set_immediate16(value as u16),
                OpKind::Immediate32 => i.set_immediate32(value as u32),
                OpKind::Immediate32to64 => i.set_immediate32to64(value as i32 as i64),
                _ => i.set_immediate64(value),
            }
        };
        match kind {
            K::mem
            | K::mem_mpx
            | K::mem_mib
            | K::sibmem
            | K::r8_or_mem
            | K::r16_or_mem
            | K::r32_or_mem
            | K::r32_or_mem_mpx
            | K::r64_or_mem
            | K::r64_or_mem_mpx
            | K::mm_or_mem
            | K::xmm_or_mem
            | K::ymm_or_mem
            | K::zmm_or_mem
            | K::bnd_or_mem_mpx
            | K::k_or_mem => {
                memory = true;
                i.set_op_kind(n, OpKind::Memory);
                address(&mut i, rng, shape, matches!(kind, K::mem_mib | K::sibmem));
            }
            K::mem_vsib32x
            | K::mem_vsib64x
            | K::mem_vsib32y
            | K::mem_vsib64y
            | K::mem_vsib32z
            | K::mem_vsib64z => {
                memory = true;
                i.set_op_kind(n, OpKind::Memory);
                let first = match kind {
                    K::mem_vsib32x | K::mem_vsib64x => Register::XMM0,
                    K::mem_vsib32y | K::mem_vsib64y => Register::YMM0,
                    _ => Register::ZMM0,
                };
                i.set_memory_base(nth(Register::RAX, rng.below(16)));
                i.set_memory_index(nth(first, rng.below(vectors)));
                i.set_memory_index_scale(1 << rng.below(4));
                i.set_memory_displ_size(8);
                i.set_memory_displacement64(rng.below(64).wrapping_sub(32));
            }
            K::mem_offs => {
                memory = true;
                i.set_op_kind(n, OpKind::Memory);
                i.set_memory_displ_size(8);
                i.set_memory_displacement64(shape.target);
            }
            K::seg_rSI => {
                memory = true;
                i.set_op_kind(n, OpKind::MemorySegRSI);
            }
            K::es_rDI => {
                memory = true;
                i.set_op_kind(n, OpKind::MemoryESRDI);
            }
            K::seg_rDI => {
                memory = true;
                i.set_op_kind(n, OpKind::MemorySegRDI);
            }
            K::seg_rBX_al => {
                memory = true;
                i.set_op_kind(n, OpKind::Memory);
                i.set_memory_base(Register::RBX);
                i.set_memory_index(Register::AL);
                i.set_memory_index_scale(1);
            }
            K::r8_reg | K::r8_opcode => reg = Some(nth(Register::AL, rng.below(20))),
            K::r16_reg | K::r16_reg_mem | K::r16_rm | K::r16_opcode => {
                reg = Some(nth(Register::AX, rng.below(16)))
            }
            K::r32_reg | K::r32_reg_mem | K::r32_rm | K::r32_opcode | K::r32_vvvv => {
                reg = Some(nth(Register::EAX, rng.below(16)))
            }
            K::r64_reg | K::r64_reg_mem | K::r64_rm | K::r64_opcode | K::r64_vvvv => {
                reg = Some(nth(Register::RAX, rng.below(16)))
            }
            K::seg_reg => reg = Some(nth(Register::ES, rng.below(6))),
            K::k_reg | K::k_rm | K::k_vvvv => reg = Some(nth(Register::K0, rng.below(8))),
            K::kp1_reg => reg = Some(nth(Register::K0, rng.below(8))),
            K::mm_reg | K::mm_rm => reg = Some(nth(Register::MM0, rng.below(8))),
            K::xmm_reg | K::xmm_rm | K::xmm_vvvv | K::xmm_is4 | K::xmm_is5 => {
                reg = Some(nth(
                    Register::XMM0,
                    rng.below(if legacy { 16 } else { vectors }),
                ))
            }
            K::xmmp3_vvvv => reg = Some(nth(Register::XMM0, rng.below(8) * 4)),
            K::ymm_reg | K::ymm_rm | K::ymm_vvvv | K::ymm_is4 | K::ymm_is5 => {
                reg = Some(nth(Register::YMM0, rng.below(vectors)))
            }
            K::zmm_reg | K::zmm_rm | K::zmm_vvvv => {
                reg = Some(nth(Register::ZMM0, rng.below(vectors)))
            }
            K::zmmp3_vvvv => reg = Some(nth(Register::ZMM0, rng.below(8) * 4)),
            K::bnd_reg => reg = Some(nth(Register::BND0, rng.below(4))),
            K::es => reg = Some(Register::ES),
            K::cs => reg = Some(Register::CS),
            K::ss => reg = Some(Register::SS),
            K::ds => reg = Some(Register::DS),
            K::fs => reg = Some(Register::FS),
            K::gs => reg = Some(Register::GS),
            K::al => reg = Some(Register::AL),
            K::cl => reg = Some(Register::CL),
            K::ax => reg = Some(Register::AX),
            K::dx => reg = Some(Register::DX),
            K::eax => reg = Some(Register::EAX),
            K::rax => reg = Some(Register::RAX),
            K::st0 => reg = Some(Register::ST0),
            K::sti_opcode => reg = Some(nth(Register::ST0, rng.below(8))),
            K::imm4_m2z => imm(&mut i, OpKind::Immediate8, rng.below(4)),
            K::imm8 => {
                let second = op
                    .op_kinds()
                    .iter()
                    .take(n as usize)
                    .any(|k| matches!(k, K::imm8 | K::imm16));
                imm(
                    &mut i,
                    if second {
                        OpKind::Immediate8_2nd
                    } else {
                        OpKind::Immediate8
                    },
                    rng.next() & 0xff,
                )
            }
            K::imm8_const_1 => imm(&mut i, OpKind::Immediate8, 1),
            K::imm8sex16 => imm(&mut i, OpKind::Immediate8to16, rng.next()),
            K::imm8sex32 => imm(&mut i, OpKind::Immediate8to32, rng.next()),
            K::imm8sex64 => imm(&mut i, OpKind::Immediate8to64, rng.next()),
            K::imm16 => imm(&mut i, OpKind::Immediate16, rng.next()),
            K::imm32 => imm(&mut i, OpKind::Immediate32, rng.next()),
            K::imm32sex64 => imm(&mut i, OpKind::Immediate32to64, rng.next()),
            K::imm64 => imm(&mut i, OpKind::Immediate64, rng.next()),
            K::br64_1 | K::br64_4 => {
                i.set_op_kind(n, OpKind::NearBranch64);
                i.set_near_branch64(shape.pc + 0x40);
            }
            K::tmm_reg | K::tmm_rm | K::tmm_vvvv => reg = Some(nth(Register::TMM0, rng.below(8))),
            _ => return None,
        }
        if let Some(r) = reg {
            i.set_op_kind(n, OpKind::Register);
            i.set_op_register(n, r);
        }
    }
    if !memory && !op.is_stack_instruction() && !implicit(code) {
        return None;
    }
    if op.require_op_mask_register() || op.can_use_op_mask_register() && !rng.chance(3) {
        i.set_op_mask(nth(Register::K1, rng.below(7)));
        if op.can_use_zeroing_masking() && rng.chance(2) && i.op0_kind() == OpKind::Register {
            i.set_zeroing_masking(true);
        }
    }
    if op.can_broadcast() && rng.chance(2) {
        i.set_is_broadcast(true);
    }
    if op.can_use_lock_prefix() && i.op0_kind() == OpKind::Memory && rng.chance(2) {
        i.set_has_lock_prefix(true);
    }
    if op.can_use_rep_prefix() && rng.chance(2) {
        i.set_has_rep_prefix(true);
    } else if op.can_use_repne_prefix() && rng.chance(2) {
        i.set_has_repne_prefix(true);
    }
    let mut encoder = Encoder::new(64);
    encoder.encode(&i, shape.pc).ok()?;
    Some(encoder.take_buffer())
}

/// Touch memory without naming it.
fn implicit(code: Code) -> bool {
    let m = format!("{code:?}");
    m.starts_with("Maskmov") || m.starts_with("VEX_Vmaskmov") || m.starts_with("Clzero")
}

fn address(i: &mut Instruction, rng: &mut Rng, shape: Shape, sib_only: bool) {
    i.set_memory_displ_size(8);
    let addr32 = rng.chance(8);
    let first = if addr32 { Register::EAX } else { Register::RAX };
    match rng.below(8) {
        0 if !sib_only => {
            i.set_memory_base(Register::RIP);
            i.set_memory_displacement64(shape.target);
        }
        1 if !sib_only => {
            i.set_memory_displ_size(4);
            i.set_memory_displacement64(shape.target);
        }
        k => {
            i.set_memory_base(nth(first, rng.below(16)));
            if k > 3 {
                let index = rng.below(16);
                if index != 4 {
                    i.set_memory_index(nth(first, index));
                    i.set_memory_index_scale(1 << rng.below(4));
                }
            }
            let disp = match rng.below(3) {
                0 => 0,
                1 => rng.below(256).wrapping_sub(128),
                _ => rng.below(1 << 20).wrapping_sub(1 << 19),
            };
            if disp == 0 {
                i.set_memory_displ_size(0);
            }
            i.set_memory_displacement64(if addr32 { disp & 0xffff_ffff } else { disp });
        }
    }
    match rng.below(10) {
        0 => i.set_segment_prefix(Register::GS),
        1 => i.set_segment_prefix(Register::DS),
        _ => {}
    }
}
