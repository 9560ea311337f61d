//! Bytes to [`Insn`]: capstone first, iced-x86 for what capstone 5 does not know.
//!
//! No allocation after [`Decoder::new`]: `cs_disasm_iter` writes into an instruction that was
//! allocated up front, and iced decodes by value. A capstone handle is not safe to share (the x86
//! printer, which also fills the operands, keeps `doing_mem` in it), so there are several and a
//! decoding thread claims one. Only handler code claims, with all signals blocked and never while
//! parked, so a claim lasts microseconds and a spinning thread always gets on.
#![allow(unsafe_code)]

use super::class::{self, Class};
use super::insn::{Insn, MemOp, NO_REG};
use super::layout::{Layout, Wrap};
use super::{element, state};
use capstone_sys as cs;
use core::sync::atomic::{AtomicBool, Ordering};
use ulpf_lib::AccessKind::Read;

/// Why bytes have no decoded instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// Not an instruction, or more bytes are needed than were given.
    Invalid,
}

const HANDLES: usize = 4;

struct Handle {
    busy: AtomicBool,
    csh: cs::csh,
    insn: *mut cs::cs_insn,
}

/// Shared by all threads of a process; created once, before the first fault.
pub struct Decoder {
    handles: [Handle; HANDLES],
}

// SAFETY: a handle is used by the thread that holds its `busy` flag only.
unsafe impl Send for Decoder {}
// SAFETY: as above.
unsafe impl Sync for Decoder {}

impl Decoder {
    /// Allocates everything that decoding needs. `None` when capstone cannot allocate.
    pub fn new() -> Option<Decoder> {
        state::init();
        // Fills iced's tables, which it builds on first use.
        let _ = iced_x86::Decoder::new(64, &[0x90], 0).decode();
        let mut handles = [const {
            Handle {
                busy: AtomicBool::new(false),
                csh: 0,
                insn: core::ptr::null_mut(),
            }
        }; HANDLES];
        for h in &mut handles {
            let mut csh = 0;
            // SAFETY: plain C calls; `csh` outlives them.
            unsafe {
                if cs::cs_open(cs::cs_arch::CS_ARCH_X86, cs::cs_mode::CS_MODE_64, &mut csh)
                    != cs::cs_err::CS_ERR_OK
                {
                    return None;
                }
                if cs::cs_option(
                    csh,
                    cs::cs_opt_type::CS_OPT_DETAIL,
                    cs::cs_opt_value::CS_OPT_ON as usize,
                ) != cs::cs_err::CS_ERR_OK
                {
                    return None;
                }
                h.csh = csh;
                h.insn = cs::cs_malloc(csh);
            }
            if h.insn.is_null() {
                return None;
            }
        }
        Some(Decoder { handles })
    }

    /// In the child of a fork: claims of threads that do not exist here are void.
    pub fn after_fork(&self) {
        for h in &self.handles {
            h.busy.store(false, Ordering::Release);
        }
    }

    /// Decodes one instruction at `pc`. Give 15 bytes when so many are readable.
    pub fn decode(&self, pc: u64, bytes: &[u8]) -> Result<Insn, DecodeError> {
        let layout = Layout::parse(bytes).ok_or(DecodeError::Invalid)?;
        let decoded = match self.capstone(pc, bytes) {
            Some(d) if d.fits(&layout) => d,
            _ => iced(pc, bytes)
                .filter(|d| d.fits(&layout))
                .ok_or(DecodeError::Invalid)?,
        };
        let mut insn = Insn {
            pc,
            bytes: [0; 15],
            len: decoded.len,
            class: class::class(&layout),
            layout,
            mem: decoded.mem,
            reg_is_rsp: decoded.names_rsp && layout.reg == 4,
            vvvv_is_rsp: decoded.names_rsp && layout.wrap != Wrap::Legacy && layout.vvvv == 4,
        };
        let code = bytes
            .get(..decoded.len as usize)
            .ok_or(DecodeError::Invalid)?;
        insn.bytes
            .get_mut(..code.len())
            .ok_or(DecodeError::Invalid)?
            .copy_from_slice(code);
        insn.mem.segment = layout.segment;
        insn.mem.kind = class::operand_kind(&layout);
        if insn.mem.base == RIP {
            let next = pc
                .wrapping_add(insn.len.into())
                .wrapping_add(insn.mem.disp as u64);
            insn.mem.disp = if layout.addr32 {
                next & 0xffff_ffff
            } else {
                next
            } as i64;
            insn.mem.base = NO_REG;
        }
        if let Some(size) = element::operand_size(&layout) {
            insn.mem.size = size;
        }
        if insn.class == Class::Plain && layout.wrap == Wrap::Evex {
            insn.class = element::masked_class(&layout);
        }
        Ok(insn)
    }

    #[cfg(test)]
    pub fn claim_all(&self) {
        for h in &self.handles {
            h.busy.store(true, Ordering::Relaxed);
        }
    }

    /// A free handle. `None` after a while: in the child of a fork, handles that other threads
    /// held at that moment stay claimed, and iced has to do.
    fn claim(&self) -> Option<&Handle> {
        for _ in 0..10_000 {
            for h in &self.handles {
                if !h.busy.swap(true, Ordering::Acquire) {
                    return Some(h);
                }
            }
            core::hint::spin_loop();
        }
        None
    }

    pub(super) fn capstone(&self, pc: u64, bytes: &[u8]) -> Option<Decoded> {
        let h = self.claim()?;
        let (mut code, mut left, mut at) = (bytes.as_ptr(), bytes.len(), pc);
        // SAFETY: the handle and its instruction are ours while `busy` is set; `code` and `left`
        // describe `bytes`.
        let decoded = unsafe {
            cs::cs_disasm_iter(h.csh, &mut code, &mut left, &mut at, h.insn)
                .then(|| read_capstone(&*h.insn))
        };
        h.busy.store(false, Ordering::Release);
        decoded.flatten()
    }
}

const RIP: u8 = 0xfe;

/// Result of either decoder.
pub(super) struct Decoded {
    len: u8,
    has_mem: bool,
    mem: MemOp,
    /// Some explicit register operand is rsp, esp, sp or spl.
    names_rsp: bool,
}

impl Decoded {
    /// The decoder and [`Layout`] agree on where the instruction's parts are.
    pub(super) fn fits(&self, l: &Layout) -> bool {
        self.len >= l.tail_at && self.len <= 15 && (!l.has_mem() || self.has_mem)
    }
}

const NO_MEM: MemOp = MemOp {
    base: NO_REG,
    index: NO_REG,
    scale: 1,
    segment: 0,
    disp: 0,
    size: 0,
    kind: Read,
};

/// # Safety
/// `insn` was filled by a successful `cs_disasm_iter` with details on.
unsafe fn read_capstone(insn: &cs::cs_insn) -> Option<Decoded> {
    // SAFETY: details are on, so `detail` points to an x86 detail.
    let x86 = unsafe { &insn.detail.as_ref()?.__bindgen_anon_1.x86 };
    let mut d = Decoded {
        len: insn.size as u8,
        has_mem: false,
        mem: NO_MEM,
        names_rsp: false,
    };
    for op in x86.operands.get(..x86.op_count as usize)? {
        match op.type_ {
            cs::x86_op_type::X86_OP_REG => {
                use cs::x86_reg::*;
                // SAFETY: the tag says register.
                let reg = unsafe { op.__bindgen_anon_1.reg };
                d.names_rsp |= matches!(reg, X86_REG_RSP | X86_REG_ESP | X86_REG_SP | X86_REG_SPL);
            }
            cs::x86_op_type::X86_OP_MEM => {
                // SAFETY: the tag says memory.
                let m = unsafe { op.__bindgen_anon_1.mem };
                d.has_mem = true;
                d.mem = MemOp {
                    base: register(m.base)?,
                    index: register(m.index)?,
                    scale: m.scale as u8,
                    segment: 0,
                    disp: m.disp,
                    size: op.size.into(),
                    kind: Read,
                };
            }
            _ => {}
        }
    }
    Some(d)
}

/// Number of an address register of capstone's in encoding order.
fn register(reg: cs::x86_reg::Type) -> Option<u8> {
    use cs::x86_reg::*;
    Some(match reg {
        X86_REG_INVALID | X86_REG_RIZ | X86_REG_EIZ => NO_REG,
        X86_REG_RIP | X86_REG_EIP => RIP,
        X86_REG_RAX | X86_REG_EAX => 0,
        X86_REG_RCX | X86_REG_ECX => 1,
        X86_REG_RDX | X86_REG_EDX => 2,
        X86_REG_RBX | X86_REG_EBX => 3,
        X86_REG_RSP | X86_REG_ESP => 4,
        X86_REG_RBP | X86_REG_EBP => 5,
        X86_REG_RSI | X86_REG_ESI => 6,
        X86_REG_RDI | X86_REG_EDI => 7,
        X86_REG_R8..=X86_REG_R15 => (reg - X86_REG_R8) as u8 + 8,
        X86_REG_R8D..=X86_REG_R15D => (reg - X86_REG_R8D) as u8 + 8,
        X86_REG_XMM0..=X86_REG_XMM31 => (reg - X86_REG_XMM0) as u8,
        X86_REG_YMM0..=X86_REG_YMM31 => (reg - X86_REG_YMM0) as u8,
        X86_REG_ZMM0..=X86_REG_ZMM31 => (reg - X86_REG_ZMM0) as u8,
        _ => return None,
    })
}

fn iced(pc: u64, bytes: &[u8]) -> Option<Decoded> {
    use iced_x86::{OpKind, Register};
    let options = iced_x86::DecoderOptions::NONE;
    let insn = iced_x86::Decoder::with_ip(64, bytes, pc, options).decode();
    if insn.is_invalid() {
        return None;
    }
    let number = |r: Register| match r {
        Register::None => NO_REG,
        Register::RIP | Register::EIP => RIP,
        r => r.number() as u8,
    };
    let mut d = Decoded {
        len: insn.len() as u8,
        has_mem: false,
        mem: NO_MEM,
        names_rsp: false,
    };
    for i in 0..insn.op_count() {
        match insn.op_kind(i) {
            OpKind::Register => {
                let r = insn.op_register(i);
                d.names_rsp |= matches!(
                    r,
                    Register::RSP | Register::ESP | Register::SP | Register::SPL
                );
            }
            OpKind::Memory => d.has_mem = true,
            _ => {}
        }
    }
    if d.has_mem {
        let mut disp = insn.memory_displacement64();
        let base = number(insn.memory_base());
        if base == RIP {
            // iced gives the target.
            disp = disp.wrapping_sub(pc.wrapping_add(insn.len() as u64));
        }
        d.mem = MemOp {
            base,
            index: number(insn.memory_index()),
            scale: insn.memory_index_scale() as u8,
            segment: 0,
            disp: disp as i64,
            size: insn.memory_size().size() as u16,
            kind: Read,
        };
    }
    Some(d)
}
