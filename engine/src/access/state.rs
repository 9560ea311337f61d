//! Vector, mask and x87 registers in an XSAVE image (standard format).
//! Layout: Intel SDM vol. 1, 13.4; the offsets of the extended parts come from CPUID leaf 0xD,
//! because Intel and AMD put the AVX-512 parts at different places.
#![allow(unsafe_code)]

use crate::cpu::Cpu;
use core::arch::x86_64::{__cpuid_count, CpuidResult};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Component of XCR0: x87.
pub const X87: u64 = 1;
/// Component of XCR0: XMM registers and MXCSR.
pub const SSE: u64 = 1 << 1;
/// Component of XCR0: upper halves of the YMM registers.
pub const AVX: u64 = 1 << 2;
/// Component of XCR0: mask registers k0 to k7.
pub const OPMASK: u64 = 1 << 5;
/// Component of XCR0: upper halves of ZMM0 to ZMM15.
pub const ZMM_HI256: u64 = 1 << 6;
/// Component of XCR0: ZMM16 to ZMM31.
pub const HI16_ZMM: u64 = 1 << 7;

/// Offset, size and flags (bit 0: 64-byte aligned in the compacted form) of components 2 to 31.
/// Constant after [`init`].
static OFFSET: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];
static SIZE: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];
static ALIGNED: AtomicU32 = AtomicU32::new(0);
static XCR0: AtomicU64 = AtomicU64::new(0);
static AMD: AtomicBool = AtomicBool::new(false);

/// CPUID, of this leaf and subleaf (0 where the leaf has none; Intel SDM vol. 2A, CPUID).
#[allow(
    unused_unsafe,
    reason = "safe since Rust 1.94, later than rust-version"
)]
pub fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    // SAFETY: every x86-64 processor has CPUID, and it changes nothing but the four registers.
    unsafe { __cpuid_count(leaf, subleaf) }
}

/// Reads CPUID and XCR0; called by `Decoder::new`, idempotent.
pub fn init() {
    // "AuthenticAMD", "HygonGenuine"
    AMD.store(
        matches!(cpuid(0, 0).ecx, 0x444d_4163 | 0x656e_6975),
        Relaxed,
    );
    // OSXSAVE says that the kernel has enabled xgetbv.
    let osxsave = cpuid(1, 0).ecx & 1 << 27 != 0;
    if !osxsave {
        XCR0.store(X87 | SSE, Relaxed);
        return;
    }
    let (lo, hi): (u32, u32);
    // SAFETY: OSXSAVE was checked; xgetbv changes only eax and edx.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") lo, out("edx") hi,
                         options(nomem, nostack))
    };
    let xcr0 = u64::from(hi) << 32 | u64::from(lo);
    let mut aligned = 0;
    for i in 2..32u32 {
        if xcr0 & 1 << i == 0 {
            continue;
        }
        let leaf = cpuid(0xd, i);
        if let (Some(o), Some(s)) = (OFFSET.get(i as usize), SIZE.get(i as usize)) {
            o.store(leaf.ebx, Relaxed);
            s.store(leaf.eax, Relaxed);
        }
        aligned |= (leaf.ecx >> 1 & 1) << i;
    }
    ALIGNED.store(aligned, Relaxed);
    XCR0.store(xcr0, Relaxed);
}

/// The few instructions that AMD and Intel define differently follow AMD.
pub fn is_amd() -> bool {
    AMD.load(Relaxed)
}

/// The state components that the kernel has enabled.
pub fn xcr0() -> u64 {
    XCR0.load(Relaxed)
}

/// Offset and size of an extended component (2 and above) in the standard format.
pub fn component(i: u32) -> Option<(u64, u64)> {
    let o = OFFSET.get(i as usize)?.load(Relaxed);
    let s = SIZE.get(i as usize)?.load(Relaxed);
    (s != 0).then_some((o.into(), s.into()))
}

/// Whether component `i` begins at a multiple of 64 bytes in the compacted format (`xsavec`).
pub fn aligned_when_compacted(i: u32) -> bool {
    ALIGNED.load(Relaxed) & 1u32.checked_shl(i).unwrap_or(0) != 0
}

impl Cpu<'_> {
    /// XSTATE_BV of the image: components whose bit is clear hold their initial value, whatever
    /// the bytes say.
    pub fn xstate_bv(&self) -> u64 {
        self.image(512).unwrap_or(0)
    }

    fn image(&self, at: u64) -> Option<u64> {
        let p = self.image_ptr(at, 8)?;
        // SAFETY: inside the image, which the owner of the `Cpu` keeps readable.
        Some(unsafe { p.cast::<u64>().read_unaligned() })
    }

    fn image_ptr(&self, at: u64, len: u64) -> Option<*mut u8> {
        if self.xsave.is_null() || at.checked_add(len)? > self.xsave_len as u64 {
            return None;
        }
        // SAFETY: the bound was checked.
        Some(unsafe { self.xsave.add(at as usize) })
    }

    /// Where byte `at` of vector register `reg` (0 to 31, as a zmm) lies, with the component
    /// that holds it.
    fn vector_at(reg: u8, at: u64) -> Option<(u64, u64)> {
        let reg = u64::from(reg);
        if reg >= 16 {
            return Some((component(7)?.0 + (reg - 16) * 64 + at, HI16_ZMM));
        }
        Some(match at {
            0..16 => (160 + reg * 16 + at, SSE),
            16..32 => (component(2)?.0 + reg * 16 + at - 16, AVX),
            _ => (component(6)?.0 + reg * 32 + at - 32, ZMM_HI256),
        })
    }

    /// Element of `size` 1, 2, 4 or 8 bytes at byte `at` of a vector register, zero-extended.
    pub fn vector(&self, reg: u8, at: u64, size: u64) -> u64 {
        let Some((offset, part)) = Self::vector_at(reg, at) else {
            return 0;
        };
        if self.xstate_bv() & part == 0 {
            return 0;
        }
        self.image_sized(offset, size)
    }

    fn image_sized(&self, offset: u64, size: u64) -> u64 {
        let Some(p) = self.image_ptr(offset, size) else {
            return 0;
        };
        // SAFETY: `size` bytes inside the image.
        unsafe {
            match size {
                1 => u64::from(*p),
                2 => u64::from(p.cast::<u16>().read_unaligned()),
                4 => u64::from(p.cast::<u32>().read_unaligned()),
                _ => p.cast::<u64>().read_unaligned(),
            }
        }
    }

    /// Writes an element of a vector register whose component is already in use.
    pub fn set_vector(&mut self, reg: u8, at: u64, size: u64, value: u64) {
        let Some((offset, _)) = Self::vector_at(reg, at) else {
            return;
        };
        let Some(p) = self.image_ptr(offset, size) else {
            return;
        };
        let bytes = value.to_le_bytes();
        // SAFETY: `size` is at most 8 and inside the image.
        unsafe { p.copy_from_nonoverlapping(bytes.as_ptr(), size.min(8) as usize) };
    }

    /// Mask register k0 to k7.
    pub fn opmask(&self, reg: u8) -> u64 {
        if self.xstate_bv() & OPMASK == 0 {
            return 0;
        }
        match component(5) {
            Some((o, _)) => self.image(o + u64::from(reg & 7) * 8).unwrap_or(0),
            None => 0,
        }
    }

    /// Writes a mask register when the component is in use (a clear component stays all zero).
    pub fn set_opmask(&mut self, reg: u8, value: u64) {
        let Some((o, _)) = component(5) else { return };
        if let Some(p) = self.image_ptr(o + u64::from(reg & 7) * 8, 8) {
            // SAFETY: inside the image.
            unsafe { p.cast::<u64>().write_unaligned(value) };
        }
    }

    /// MMX register: the image holds the x87 stack, whose slot 0 is physical register TOP.
    pub fn mmx(&self, reg: u8) -> u64 {
        if self.xstate_bv() & X87 == 0 {
            return 0;
        }
        let top = self.image_sized(2, 2) >> 11 & 7;
        self.image(32 + ((u64::from(reg & 7).wrapping_sub(top)) & 7) * 16)
            .unwrap_or(0)
    }
}
