//! One decoded instruction, and what it touches for given registers.

use super::class::Class;
use super::layout::{Layout, Wrap};
use super::list::AccessList;
use super::{element, state};
use crate::cpu::{Cpu, Gprs};
use ulpf_lib::AccessKind::{self, Read, ReadWrite, Write};

/// No register.
pub const NO_REG: u8 = 0xff;

/// The address part of a memory operand. RIP-relative operands are resolved when decoded: they
/// have neither base nor index and `disp` is the absolute address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemOp {
    /// General register 0 (rax) to 15 in encoding order, or [`NO_REG`].
    pub base: u8,
    /// General register, or for gathers and scatters a vector register, or [`NO_REG`].
    pub index: u8,
    /// 1, 2, 4 or 8.
    pub scale: u8,
    /// 0x64 (fs), 0x65 (gs) or 0.
    pub segment: u8,
    /// Displacement, sign-extended.
    pub disp: i64,
    /// Bytes touched when every element is enabled.
    pub size: u16,
    /// Whether the instruction reads or writes the operand.
    pub kind: AccessKind,
}

/// A decoded instruction: fixed size, no pointers, valid for one address.
#[derive(Clone, Copy, Debug)]
pub struct Insn {
    /// Its address.
    pub pc: u64,
    /// Its bytes, followed by zeros.
    pub bytes: [u8; 15],
    /// Length in bytes, 1 to 15.
    pub len: u8,
    /// Kind of accesses beside the ModRM operand.
    pub class: Class,
    /// How it is encoded.
    pub layout: Layout,
    /// Meaningful when `layout.has_mem()` or `moffs`.
    pub mem: MemOp,
    /// Explicit register operand is the stack pointer (and not AH), which a thunk must rename.
    pub reg_is_rsp: bool,
    /// The same of the register that `vvvv` names.
    pub vvvv_is_rsp: bool,
}

impl Gprs {
    /// General register in encoding order: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 … r15.
    pub fn get(&self, reg: u8) -> u64 {
        match reg {
            0 => self.rax,
            1 => self.rcx,
            2 => self.rdx,
            3 => self.rbx,
            4 => self.rsp,
            5 => self.rbp,
            6 => self.rsi,
            7 => self.rdi,
            8 => self.r8,
            9 => self.r9,
            10 => self.r10,
            11 => self.r11,
            12 => self.r12,
            13 => self.r13,
            14 => self.r14,
            15 => self.r15,
            _ => 0,
        }
    }

    /// The register `reg`, or `None` beyond 15.
    pub fn get_mut(&mut self, reg: u8) -> Option<&mut u64> {
        Some(match reg {
            0 => &mut self.rax,
            1 => &mut self.rcx,
            2 => &mut self.rdx,
            3 => &mut self.rbx,
            4 => &mut self.rsp,
            5 => &mut self.rbp,
            6 => &mut self.rsi,
            7 => &mut self.rdi,
            8 => &mut self.r8,
            9 => &mut self.r9,
            10 => &mut self.r10,
            11 => &mut self.r11,
            12 => &mut self.r12,
            13 => &mut self.r13,
            14 => &mut self.r14,
            15 => &mut self.r15,
            _ => return None,
        })
    }
}

impl Insn {
    /// False when [`Insn::accesses`] cannot tell all of them (tiles, device portals, shadow
    /// stacks): find out by comparing memory.
    pub fn accesses_known(&self) -> bool {
        self.class != Class::Unsupported
    }
    /// Whether it is a string instruction, repeated or not.
    pub fn is_string(&self) -> bool {
        matches!(
            self.class,
            Class::Movs | Class::Stos | Class::Lods | Class::Scas | Class::Cmps
        )
    }
    /// String instruction with a repeat prefix; F2 repeats `movs`, `stos` and `lods` too.
    pub fn is_rep(&self) -> bool {
        self.is_string() && (self.layout.rep || self.layout.repne)
    }
    /// Goes through the stack pointer implicitly.
    pub fn is_stack(&self) -> bool {
        use Class::*;
        matches!(
            self.class,
            Push | PushMem
                | Pop
                | PopMem
                | Pushf
                | Popf
                | Call
                | CallMem
                | Ret
                | Enter
                | Leave
                | FarRet
                | Iret
                | FarCallMem
        )
    }
    /// The code bytes, `len` of them.
    pub fn code(&self) -> &[u8] {
        self.bytes.get(..self.len as usize).unwrap_or(&[])
    }
    /// `mov` between the accumulator and an absolute address, which has no ModRM byte.
    /// Offset of the displacement of a RIP-relative operand.
    pub fn rip_relative_at(&self) -> Option<u8> {
        let l = &self.layout;
        (l.modrm_at != 0 && l.modrm & 0xc7 == 5).then_some(l.modrm_at + 1)
    }
    /// Whether its operand is an absolute address (`mov` A0 to A3).
    pub fn is_moffs(&self) -> bool {
        self.layout.legacy() && self.layout.map == 0 && matches!(self.layout.opcode, 0xa0..=0xa3)
    }

    fn trunc(&self, offset: u64) -> u64 {
        if self.layout.addr32 {
            offset & 0xffff_ffff
        } else {
            offset
        }
    }

    /// Base of the segment that the prefix names (ds, es, ss and cs are flat in 64-bit mode).
    pub fn segment_base(&self, cpu: &Cpu) -> u64 {
        match self.mem.segment {
            0x64 => cpu.fs_base,
            0x65 => cpu.gs_base,
            _ => 0,
        }
    }

    /// Linear address of the ModRM operand; without the index for gathers and scatters.
    pub fn effective(&self, cpu: &Cpu) -> u64 {
        self.effective_with(cpu, cpu.gprs.rsp)
    }

    /// `pop (%rsp)` addresses with the stack pointer already moved.
    fn effective_with(&self, cpu: &Cpu, rsp: u64) -> u64 {
        let reg = |r| match r {
            NO_REG => 0,
            4 => rsp,
            _ => cpu.gprs.get(r),
        };
        let index = match self.class {
            Class::Gather | Class::Scatter => 0,
            _ => reg(self.mem.index).wrapping_mul(self.mem.scale.into()),
        };
        let offset = reg(self.mem.base)
            .wrapping_add(index)
            .wrapping_add(self.mem.disp as u64);
        self.segment_base(cpu).wrapping_add(self.trunc(offset))
    }

    /// Bytes pushed or popped at once.
    pub fn stack_size(&self) -> u64 {
        use Class::*;
        match self.class {
            Push | PushMem | Pop | PopMem | Pushf | Popf | Enter | Leave
                if self.layout.opsize16 && !self.layout.w =>
            {
                2
            }
            FarRet | Iret | FarCallMem | FarJmpMem => self.layout.opsize().into(),
            _ => 8,
        }
    }

    /// Element of a string instruction.
    pub fn string_size(&self) -> u64 {
        if self.layout.opcode & 1 == 0 {
            1
        } else {
            self.layout.opsize().into()
        }
    }

    /// Where a string instruction reads: `seg:[rsi]`.
    pub fn string_source(&self, cpu: &Cpu) -> u64 {
        self.segment_base(cpu)
            .wrapping_add(self.trunc(cpu.gprs.rsi))
    }

    /// Where a string instruction writes or compares: `es:[rdi]`.
    pub fn string_dest(&self, cpu: &Cpu) -> u64 {
        self.trunc(cpu.gprs.rdi)
    }

    /// Iterations left of a repeated string instruction.
    pub fn string_count(&self, cpu: &Cpu) -> u64 {
        self.trunc(cpu.gprs.rcx)
    }

    /// Bytes that `maskmovq` or `maskmovdqu` selects from.
    pub fn maskmov_len(&self) -> u64 {
        if self.layout.legacy() && !self.layout.opsize16 {
            8
        } else {
            16
        }
    }

    /// How far a bit-string instruction's word lies from the named one, in bytes.
    pub fn bit_offset(&self, cpu: &Cpu) -> i64 {
        let reg = cpu.gprs.get(self.layout.reg);
        match self.layout.opsize() {
            8 => (reg as i64 >> 6) * 8,
            4 => (i64::from(reg as i32) >> 5) * 4,
            _ => (i64::from(reg as i16) >> 4) * 2,
        }
    }

    /// Linear address of the word a bit-string instruction works on.
    pub fn bit_address(&self, cpu: &Cpu) -> u64 {
        let base = self.segment_base(cpu);
        let offset = self
            .effective(cpu)
            .wrapping_sub(base)
            .wrapping_add(self.bit_offset(cpu) as u64);
        base.wrapping_add(self.trunc(offset))
    }

    /// `enter`: bytes to reserve and nesting level.
    pub fn enter_operands(&self) -> (u16, u8) {
        let at = |i: u8| {
            self.bytes
                .get(self.layout.tail_at.wrapping_add(i) as usize)
                .copied()
                .unwrap_or(0)
        };
        (u16::from_le_bytes([at(0), at(1)]), at(2) & 31)
    }

    /// Address that the instruction probes for access rights without reading or writing data there: the new top of the
    /// stack of `enter`.
    pub fn probe(&self, cpu: &Cpu) -> Option<u64> {
        if self.class != Class::Enter {
            return None;
        }
        let (bytes, level) = self.enter_operands();
        let pushed = self.stack_size() * (u64::from(level) + 1);
        Some(cpu.gprs.rsp.wrapping_sub(pushed).wrapping_sub(bytes.into()))
    }

    /// The accesses with the present registers, in the order of the instruction's description.
    /// Of a repeated string instruction: those of one iteration.
    pub fn accesses(&self, cpu: &Cpu, out: &mut AccessList) {
        out.clear();
        let MemOp { size, kind, .. } = self.mem;
        let size = u64::from(size);
        let ea = self.effective(cpu);
        let rsp = cpu.gprs.rsp;
        let slot = self.stack_size();
        match self.class {
            Class::None | Class::Flush => {}
            // Not all are known, so none is reported.
            Class::Unsupported => {}
            Class::Plain => out.push(ea, size, kind),
            Class::BitString => out.push(self.bit_address(cpu), size, kind),
            Class::Movs | Class::Stos | Class::Lods | Class::Scas | Class::Cmps => {
                self.string_accesses(cpu, out)
            }
            Class::Push | Class::Pushf | Class::Call => {
                out.push(rsp.wrapping_sub(slot), slot, Write)
            }
            Class::PushMem | Class::CallMem => {
                out.push(ea, slot, Read);
                out.push(rsp.wrapping_sub(slot), slot, Write);
            }
            Class::Pop | Class::Popf | Class::Ret => out.push(rsp, slot, Read),
            Class::PopMem => {
                out.push(rsp, slot, Read);
                out.push(
                    self.effective_with(cpu, rsp.wrapping_add(slot)),
                    slot,
                    Write,
                );
            }
            Class::JmpMem => out.push(ea, 8, Read),
            Class::Leave => out.push(cpu.gprs.rbp, slot, Read),
            Class::Enter => {
                let level = u64::from(self.enter_operands().1);
                if level > 1 {
                    let copied = (level - 1) * slot;
                    out.push(cpu.gprs.rbp.wrapping_sub(copied), copied, Read);
                }
                let pushed = slot * if level == 0 { 1 } else { level + 1 };
                out.push(rsp.wrapping_sub(pushed), pushed, Write);
            }
            Class::Xlat => {
                let offset = cpu.gprs.rbx.wrapping_add(cpu.gprs.rax & 0xff);
                out.push(
                    self.segment_base(cpu).wrapping_add(self.trunc(offset)),
                    1,
                    Read,
                );
            }
            Class::MaskMov => {
                let at = self
                    .segment_base(cpu)
                    .wrapping_add(self.trunc(cpu.gprs.rdi));
                let mmx = self.maskmov_len() == 8;
                for i in 0..self.maskmov_len() {
                    let selected = if mmx {
                        cpu.mmx(self.layout.rm) >> (i * 8 + 7) & 1 != 0
                    } else {
                        cpu.vector(self.layout.rm, i, 1) & 0x80 != 0
                    };
                    if selected {
                        out.join(at.wrapping_add(i), 1, Write);
                    }
                }
            }
            Class::MaskedVex => {
                let elem = self.element();
                for i in 0..size / elem {
                    if cpu.vector(self.layout.vvvv & 15, i * elem + elem - 1, 1) & 0x80 != 0 {
                        out.join(ea.wrapping_add(i * elem), elem, kind);
                    }
                }
            }
            Class::MaskedEvex => {
                let (elem, mask) = (self.element(), cpu.opmask(self.layout.aaa));
                for i in 0..size / elem {
                    if mask >> (i & 63) & 1 != 0 {
                        out.join(ea.wrapping_add(i * elem), elem, kind);
                    }
                }
            }
            Class::BroadcastEvex => {
                let part = element::broadcast_part(&self.layout, size).max(1);
                let (lanes, mask) = (
                    element::lanes(&self.layout).min(64),
                    cpu.opmask(self.layout.aaa),
                );
                let parts = (size / part).max(1);
                for j in 0..parts {
                    if (0..lanes).any(|i| i % parts == j && mask >> i & 1 != 0) {
                        out.join(ea.wrapping_add(j * part), part, kind);
                    }
                }
            }
            Class::Packed => {
                let elem = self.element();
                let lanes = (size / elem).clamp(1, 64);
                let mask = cpu.opmask(self.layout.aaa) & (u64::MAX >> (64 - lanes));
                if mask != 0 {
                    out.push(ea, u64::from(mask.count_ones()) * elem, kind);
                }
            }
            Class::Gather | Class::Scatter => {
                for i in 0..self.vsib_count() {
                    if self.vsib_enabled(cpu, i) {
                        out.push(self.vsib_address(cpu, i), self.element(), kind);
                    }
                }
            }
            Class::Xsave | Class::Xsavec | Class::Xrstor => self.xsave_accesses(cpu, ea, None, out),
            Class::Movdir64b => {
                out.push(ea, 64, Read);
                out.push(self.trunc(cpu.gprs.get(self.layout.reg)), 64, Write);
            }
            Class::Clzero => {
                let line = self.trunc(cpu.gprs.rax) & !63;
                out.push(self.segment_base(cpu).wrapping_add(line), 64, Write);
            }
            Class::FarRet => out.push(rsp, slot * 2, Read),
            Class::Iret => out.push(rsp, slot * 5, Read),
            Class::FarCallMem => {
                out.push(ea, slot + 2, Read);
                out.push(rsp.wrapping_sub(slot * 2), slot * 2, Write);
            }
            Class::FarJmpMem => out.push(ea, slot + 2, Read),
        }
    }

    fn string_accesses(&self, cpu: &Cpu, out: &mut AccessList) {
        if self.is_rep() && self.string_count(cpu) == 0 {
            return;
        }
        let size = self.string_size();
        let (source, dest) = (self.string_source(cpu), self.string_dest(cpu));
        if matches!(self.class, Class::Movs | Class::Lods | Class::Cmps) {
            out.push(source, size, Read);
        }
        match self.class {
            Class::Movs | Class::Stos => out.push(dest, size, Write),
            Class::Scas | Class::Cmps => out.push(dest, size, Read),
            _ => {}
        }
    }

    /// Grain of masking, or the size of a gathered element.
    pub fn element(&self) -> u64 {
        match self.class {
            Class::Gather | Class::Scatter => {
                if self.layout.w {
                    8
                } else {
                    4
                }
            }
            Class::MaskedVex => match self.layout.opcode {
                0x2c | 0x2e => 4,
                0x2d | 0x2f => 8,
                _ if self.layout.w => 8,
                _ => 4,
            },
            _ => u64::from(element::grain(&self.layout))
                .min(self.mem.size.into())
                .max(1),
        }
    }

    fn vsib_index_size(&self) -> u64 {
        // 90, 92, A0, A2 take dword indices, 91, 93, A1, A3 qword indices.
        if self.layout.opcode & 1 == 0 { 4 } else { 8 }
    }

    /// Elements that a gather or scatter handles.
    pub fn vsib_count(&self) -> u64 {
        u64::from(self.layout.vl()) / self.vsib_index_size().max(self.element())
    }

    /// Whether the mask selects element `i` of a gather or scatter.
    pub fn vsib_enabled(&self, cpu: &Cpu, i: u64) -> bool {
        if self.layout.wrap == Wrap::Evex {
            cpu.opmask(self.layout.aaa) >> (i & 63) & 1 != 0
        } else {
            let elem = self.element();
            cpu.vector(self.layout.vvvv & 15, i * elem + elem - 1, 1) & 0x80 != 0
        }
    }

    /// Scaled index of element `i`.
    pub fn vsib_index(&self, cpu: &Cpu, i: u64) -> u64 {
        let size = self.vsib_index_size();
        let raw = cpu.vector(self.mem.index, i * size, size);
        let index = if size == 4 {
            i64::from(raw as u32 as i32) as u64
        } else {
            raw
        };
        index.wrapping_mul(self.mem.scale.into())
    }

    /// Address of element `i`.
    pub fn vsib_address(&self, cpu: &Cpu, i: u64) -> u64 {
        let base = self.segment_base(cpu);
        let offset = self
            .effective(cpu)
            .wrapping_sub(base)
            .wrapping_add(self.vsib_index(cpu, i));
        base.wrapping_add(self.trunc(offset))
    }

    /// Where an `xrstor` finds the header of its image; None for other instructions.
    pub fn xrstor_header(&self, cpu: &Cpu) -> Option<u64> {
        (self.class == Class::Xrstor).then(|| self.effective(cpu).wrapping_add(512))
    }

    /// Like [`Insn::accesses`], for an `xrstor` of an image with this header, XSTATE_BV and XCOMP_BV (Intel SDM vol.
    /// 1, 13.4.2). Components in their initial state are not read. In the compacted format components are adjacent.
    pub fn xrstor_accesses(&self, cpu: &Cpu, header: [u64; 2], out: &mut AccessList) {
        self.xsave_accesses(cpu, self.effective(cpu), Some(header), out);
    }

    /// Accesses to the parts of an xsave area. Components that `xsaveopt` and `xsavec` skip, because they are
    /// unchanged or initial, are reported all the same. Without its `header`, an image that `xrstor` reads is assumed
    /// to have the standard format, which covers the compacted one.
    fn xsave_accesses(&self, cpu: &Cpu, ea: u64, header: Option<[u64; 2]>, out: &mut AccessList) {
        let wanted = cpu.gprs.rdx << 32 | cpu.gprs.rax & 0xffff_ffff;
        let [present, layout] = header.unwrap_or([!0, 0]);
        let parts = wanted & state::xcr0() & present;
        let mxcsr = wanted & (state::SSE | state::AVX) != 0;
        let kind = if self.class == Class::Xrstor {
            Read
        } else {
            Write
        };
        // The components that have room in the compacted format.
        let room = match self.class {
            Class::Xsavec => Some(parts),
            _ => (layout >> 63 != 0).then_some(layout),
        };
        if parts & state::X87 != 0 {
            out.join(ea, 24, kind);
        }
        if mxcsr {
            out.join(ea.wrapping_add(24), 8, kind);
        }
        if parts & state::X87 != 0 {
            out.join(ea.wrapping_add(32), 128, kind);
        }
        if parts & state::SSE != 0 {
            out.join(ea.wrapping_add(160), 256, kind);
        }
        let (header, header_kind) = match self.class {
            Class::Xrstor => (64, Read),
            Class::Xsavec => (16, Write),
            _ => (8, ReadWrite),
        };
        out.join(ea.wrapping_add(512), header, header_kind);
        let mut at = 576;
        for i in 2..32 {
            let Some((offset, size)) = state::component(i) else {
                continue;
            };
            let mut place = offset;
            if let Some(room) = room {
                if room & 1 << i == 0 {
                    continue;
                }
                if state::aligned_when_compacted(i) {
                    at = (at + 63) & !63;
                }
                place = at;
                at += size;
            }
            if parts & 1 << i != 0 {
                out.join(ea.wrapping_add(place), size, kind);
            }
        }
    }
}
