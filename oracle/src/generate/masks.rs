//! Masked moves, gathers, scatters, and whatever else takes a mask.

use super::Gen;
use crate::asm::*;
use iced_x86::*;

impl Gen<'_> {
    /// Gives mask, indices and address fitting values.
    pub fn prepare_masked(&mut self, i: &Instruction, shaped: u64, aligned: bool) -> bool {
        use Mnemonic::*;
        let (base, index) = (i.memory_base(), i.memory_index());
        let implicit = matches!(i.mnemonic(), Maskmovq | Maskmovdqu | Vmaskmovdqu);
        if i.memory_segment() == Register::FS
            || i.memory_segment() == Register::GS
            || base.size() == 4
            || index.size() == 4
        {
            return false;
        }
        let registers: Vec<_> = (0..i.op_count())
            .filter(|n| i.op_kind(*n) == OpKind::Register)
            .map(|n| i.op_register(n).full_register())
            .collect();
        if i.op_mask() != Register::None {
            let k = self.mask_bits();
            let at = self.asm.constant(&k.to_le_bytes());
            let code = if std::arch::is_x86_feature_detected!("avx512bw") {
                Code::VEX_Kmovq_kr_km64
            } else {
                Code::VEX_Kmovw_kr_km16
            };
            self.load_from(code, i.op_mask(), at);
        } else {
            // The top bit of each byte, so of each element.
            let mask = match i.mnemonic() {
                Maskmovq | Maskmovdqu | Vmaskmovdqu => i.op2_register(),
                _ if i.is_vsib() => i.op2_register(),
                _ => i.op1_register(),
            };
            let bits = self.mask_bits();
            let bytes: Vec<u8> = (0..64)
                .map(|n| self.rng.next() as u8 & 0x7f | ((bits >> (n / 4) & 1) as u8) << 7)
                .collect();
            let at = self.asm.constant(&bytes);
            if mask.is_mm() {
                self.load_from(Code::Movq_mm_mmm64, mask, at);
            } else {
                self.load_vector(mask, at);
            }
        }
        let mut size = 64;
        if i.is_vsib() {
            // Distinct registers, or it is undefined.
            let mut all = registers;
            all.push(index.full_register());
            let count = all.len();
            all.sort();
            all.dedup();
            if all.len() < count || base == Register::RIP || base == Register::None {
                return false;
            }
            let most = 3900 / i.memory_index_scale() as u64;
            let near = self.rng.chance(2);
            let mut bytes = vec![];
            while bytes.len() < 64 {
                let most = if near { 12 } else { most };
                let v = self.rng.below(2 * most).wrapping_sub(most);
                match i.is_vsib32() {
                    true => bytes.extend((v as u32).to_le_bytes()),
                    false => bytes.extend(v.to_le_bytes()),
                }
            }
            let at = self.asm.constant(&bytes);
            self.load_vector(index, at);
            let at = self.target(8, 1);
            let number = base.number() as u8;
            self.asm
                .mov(number, at.wrapping_sub(i.memory_displacement64()));
            return true;
        }
        if !format!("{:?}", i.mnemonic()).contains("compress") {
            size = (i.memory_size().size() as u64).max(1);
        }
        let align = if aligned { 64 } else { 1 };
        if implicit {
            let at = self.target(16, 1);
            self.asm.mov(RDI, at);
            return true;
        }
        let number = |r: Register| (r != Register::None).then(|| r.number() as u8);
        let base = number(base).filter(|_| base != Register::RIP);
        let mut at = shaped;
        if base.is_some() || index != Register::None {
            at = self.target(size, align);
        } else if aligned && shaped & 63 != 0 {
            return false;
        }
        self.aim(i, base, number(index), at, aligned)
    }

    /// None, all, one, or some.
    fn mask_bits(&mut self) -> u64 {
        match self.rng.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.rng.below(16),
            3 => !(1 << self.rng.below(16)),
            4 => 0xff << self.rng.below(16),
            _ => self.rng.next(),
        }
    }

    fn load_vector(&mut self, reg: Register, at: u64) {
        let n = reg.number() as u32;
        if std::arch::is_x86_feature_detected!("avx512f") {
            self.load_from(Code::EVEX_Vmovdqu64_zmm_k1z_zmmm512, Register::ZMM0 + n, at);
        } else if std::arch::is_x86_feature_detected!("avx") {
            self.load_from(Code::VEX_Vmovdqu_ymm_ymmm256, Register::YMM0 + n, at);
        } else {
            self.load_from(Code::Movdqu_xmm_xmmm128, Register::XMM0 + n, at);
        }
    }

    fn load_from(&mut self, code: Code, reg: Register, at: u64) {
        let place = MemoryOperand::with_displ(at, 4);
        if let Ok(i) = Instruction::with2(code, reg, place) {
            self.asm.instruction(&i);
        }
    }
}
