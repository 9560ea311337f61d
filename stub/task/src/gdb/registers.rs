//! Reading and writing one register of a stopped thread, by [`Place`].

use crate::inferior::{Inferior, Tid};
use ulpf_engine::access::state::cpuid;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::eflags;
use ulpf_rsp::registers::{Layout, Place, component};
use ulpf_rsp::stub::RegisterBytes;

/// Widest register, in bytes.
pub const WIDEST: usize = 32;

/// Offset of XSTATE_BV in the XSAVE image (Intel SDM, vol. 1, 13.4.2).
const XSTATE_BV: usize = 512;

fn gpr(g: &mut Gprs, index: usize) -> Option<&mut u64> {
    Some(match index {
        0 => &mut g.rax,
        1 => &mut g.rbx,
        2 => &mut g.rcx,
        3 => &mut g.rdx,
        4 => &mut g.rsi,
        5 => &mut g.rdi,
        6 => &mut g.rbp,
        7 => &mut g.rsp,
        8 => &mut g.r8,
        9 => &mut g.r9,
        10 => &mut g.r10,
        11 => &mut g.r11,
        12 => &mut g.r12,
        13 => &mut g.r13,
        14 => &mut g.r14,
        15 => &mut g.r15,
        16 => &mut g.rip,
        _ => return None,
    })
}

/// Copies the register to `out` (its size is `out.len()`); `None` when the thread does not have it.
pub fn read(inf: &mut dyn Inferior, tid: Tid, place: Place, out: &mut [u8]) -> Option<()> {
    let value: u64 = match place {
        Place::Gpr(i) => *gpr(inf.gprs(tid)?, i)?,
        Place::Eflags => inf.gprs(tid)?.rflags,
        Place::Selector(value) => u64::from(value),
        Place::OrigRax => inf.orig_rax(tid) as u64,
        Place::FsBase => inf.fs_gs_base(tid)?.0,
        Place::GsBase => inf.fs_gs_base(tid)?.1,
        Place::FTag => u64::from(full_tag_word(inf.xsave(tid)?)?),
        Place::Image { at, width, bit } => return read_image(inf.xsave(tid)?, at, width, bit, out),
    };
    let n = out.len();
    out.copy_from_slice(value.to_le_bytes().get(..n)?);
    Some(())
}

pub fn write(inf: &mut dyn Inferior, tid: Tid, place: Place, bytes: &[u8]) -> Option<()> {
    let mut wide = [0; 8];
    let n = bytes.len().min(8);
    wide[..n].copy_from_slice(&bytes[..n]);
    let value = u64::from_le_bytes(wide);
    match place {
        Place::Gpr(i) => *gpr(inf.gprs(tid)?, i)? = value,
        Place::Eflags => {
            // TF is ours.
            const USER: u64 = eflags::USER & !eflags::TF;
            let flags = &mut inf.gprs(tid)?.rflags;
            *flags = *flags & !USER | value & USER;
        }
        // Writing the value that is already there (GDB writes whole register sets) is no error;
        // orig_rax only matters to a tracer that restarts system calls, which the stub does itself.
        Place::Selector(_) | Place::OrigRax => {}
        Place::FsBase => {
            let (_, gs) = inf.fs_gs_base(tid)?;
            inf.set_fs_gs_base(tid, value, gs).ok()?;
        }
        Place::GsBase => {
            let (fs, _) = inf.fs_gs_base(tid)?;
            inf.set_fs_gs_base(tid, fs, value).ok()?;
        }
        Place::FTag => {
            let area = inf.xsave(tid)?;
            enter(area, component::X87)?;
            let abridged = (0..8)
                .filter(|i| value >> (2 * i) & 3 != 3)
                .fold(0u8, |a, i| a | 1 << i);
            *area.get_mut(4)? = abridged;
        }
        Place::Image { at, width, bit } => {
            let area = inf.xsave(tid)?;
            area.get(at..at + width)?;
            enter(area, bit)?;
            area.get_mut(at..at + width)?
                .copy_from_slice(bytes.get(..width)?);
        }
    }
    Some(())
}

/// All registers in `g` order.
pub fn read_all(inf: &mut dyn Inferior, tid: Tid, layout: &Layout) -> Option<RegisterBytes> {
    inf.gprs(tid)?;
    let mut all = alloc::vec::Vec::with_capacity(layout.size());
    for r in &layout.registers {
        let mut bytes = [0; WIDEST];
        let bytes = bytes.get_mut(..r.size)?;
        match read(inf, tid, r.place, bytes) {
            Some(()) => all.extend(bytes.iter().copied().map(Some)),
            None => all.extend(bytes.iter().map(|_| None)),
        }
    }
    Some(RegisterBytes(all))
}

/// Writes as many registers as the packet holds; the machine's own may be fewer than it could name.
pub fn write_all(
    inf: &mut dyn Inferior,
    tid: Tid,
    layout: &Layout,
    bytes: &RegisterBytes,
) -> Option<()> {
    inf.gprs(tid)?;
    for (r, at) in layout.registers.iter().zip(&layout.offsets) {
        let Some(field) = bytes.0.get(*at..*at + r.size) else {
            break;
        };
        let mut value = [0; WIDEST];
        for (to, from) in value.iter_mut().zip(field) {
            *to = (*from)?;
        }
        let mut now = [0; WIDEST];
        // Only what differs: an untouched component stays in its initial state.
        if read(inf, tid, r.place, now.get_mut(..r.size)?).is_some() && now != value {
            write(inf, tid, r.place, value.get(..r.size)?)?;
        }
    }
    Some(())
}

fn in_use(area: &[u8], bit: u8) -> bool {
    match area.get(XSTATE_BV..XSTATE_BV + 8) {
        Some(bv) => bv[usize::from(bit / 8)] >> (bit % 8) & 1 == 1,
        None => true, // an FXSAVE image: always in use
    }
}

/// XRSTOR loads MXCSR from the image whatever XSTATE_BV says.
fn is_mxcsr(at: usize) -> bool {
    at == 24
}

fn read_image(area: &[u8], at: usize, width: usize, bit: u8, out: &mut [u8]) -> Option<()> {
    let bytes = area.get(at..at + width)?;
    out.fill(0);
    if in_use(area, bit) || is_mxcsr(at) {
        out.get_mut(..width)?.copy_from_slice(bytes);
    } else if at == 0 {
        out.get_mut(..2)?.copy_from_slice(&INITIAL_FCW);
    }
    Some(())
}

const INITIAL_FCW: [u8; 2] = 0x37fu16.to_le_bytes();

/// Marks a component as in use; one that was in its initial state is filled with it first, since
/// the image may hold anything there.
fn enter(area: &mut [u8], bit: u8) -> Option<()> {
    if in_use(area, bit) {
        return Some(());
    }
    match bit {
        component::X87 => {
            area.get_mut(0..24)?.fill(0);
            area.get_mut(0..2)?.copy_from_slice(&INITIAL_FCW);
            for i in 0..8 {
                area.get_mut(32 + 16 * i..48 + 16 * i)?.fill(0);
            }
        }
        component::SSE => area.get_mut(160..416)?.fill(0),
        _ => {
            let leaf = cpuid(0xd, u32::from(bit));
            let (len, at) = (leaf.eax as usize, leaf.ebx as usize);
            area.get_mut(at..at + len)?.fill(0);
        }
    }
    *area.get_mut(XSTATE_BV + usize::from(bit / 8))? |= 1 << (bit % 8);
    Some(())
}

/// Two bits per register from FXSAVE's one (Intel SDM, vol. 1, 8.1.7 and 10.5.1.1): 0 valid, 1 zero,
/// 2 special, 3 empty.
fn full_tag_word(area: &[u8]) -> Option<u16> {
    if !in_use(area, component::X87) {
        return Some(0xffff);
    }
    let top = area.get(3)? >> 3 & 7;
    let abridged = *area.get(4)?;
    let mut word = 0;
    for physical in 0..8u8 {
        let tag = if abridged >> physical & 1 == 0 {
            3
        } else {
            let st = usize::from(physical.wrapping_sub(top) & 7);
            let value = area.get(32 + 16 * st..42 + 16 * st)?;
            let exponent = u16::from_le_bytes([value[8], value[9]]) & 0x7fff;
            let integer_bit = value[7] & 0x80 != 0;
            match exponent {
                0x7fff => 2,
                0 if value[..8].iter().all(|b| *b == 0) => 1,
                0 => 2,
                _ if integer_bit => 0,
                _ => 2,
            }
        };
        word |= tag << (2 * physical);
    }
    Some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header of an XSAVE image with these components in use; all other bytes are uninitialized.
    fn image(in_use: u8) -> Vec<u8> {
        let mut area = vec![0xaau8; 2048];
        area[XSTATE_BV..XSTATE_BV + 8].fill(0);
        area[XSTATE_BV] = in_use;
        area
    }

    #[test]
    fn a_component_that_is_not_in_use_is_as_at_the_beginning() {
        let read = |area: &[u8], at, width, bit| {
            let mut out = [1u8; 16];
            read_image(area, at, width, bit, &mut out).map(|()| out)
        };
        let area = image(0);
        assert_eq!(read(&area, 160, 16, component::SSE), Some([0; 16]));
        assert_eq!(read(&area, 0, 2, component::X87).unwrap()[..2], INITIAL_FCW);
        let mxcsr = read(&area, 24, 4, component::SSE).unwrap();
        assert_eq!((&mxcsr[..4], &mxcsr[4..]), (&[0xaa; 4][..], &[0; 12][..]));
        let area = image(1 << component::SSE);
        assert_eq!(read(&area, 160, 16, component::SSE), Some([0xaa; 16]));
        assert_eq!(read(&area, 2047, 2, component::SSE), None);
        // FXSAVE has no header.
        assert_eq!(
            read(&area[..512], 160, 16, component::SSE),
            Some([0xaa; 16])
        );
    }

    #[test]
    fn a_component_that_is_entered_is_empty_first() {
        let mut area = image(1 << component::SSE);
        enter(&mut area, component::SSE).unwrap();
        assert_eq!(area, image(1 << component::SSE), "it was in use");
        enter(&mut area, component::X87).unwrap();
        assert_eq!(area[XSTATE_BV], 1 << component::SSE | 1 << component::X87);
        assert_eq!(area[..2], INITIAL_FCW);
        assert!(area[2..24].iter().all(|b| *b == 0));
        assert!(
            area[24..32].iter().all(|b| *b == 0xaa),
            "MXCSR is not its own"
        );
        assert!(area[32..160].iter().all(|b| *b == 0));
        assert!(area[160..416].iter().all(|b| *b == 0xaa));
        let mut area = image(0);
        enter(&mut area, component::SSE).unwrap();
        assert!(area[160..416].iter().all(|b| *b == 0) && area[32..160].iter().all(|b| *b == 0xaa));
    }

    #[test]
    fn tags_say_what_each_register_holds() {
        let mut area = image(1 << component::X87);
        let mut put = |st: usize, mantissa: u64, exponent: u16| {
            let at = 32 + 16 * st;
            area[at..at + 8].copy_from_slice(&mantissa.to_le_bytes());
            area[at + 8..at + 10].copy_from_slice(&exponent.to_le_bytes());
        };
        put(0, 1 << 63, 0x3fff); // 1.0
        put(1, 0, 0x8000); // -0.0
        put(2, 1 << 63, 0x7fff); // an infinity
        put(3, 1, 0); // a denormal
        put(4, 1, 0x3fff); // an unnormal
        // ST0 is the physical register 6; R0 to R3 are in use beside R6 and R7.
        area[2..4].copy_from_slice(&(6u16 << 11).to_le_bytes());
        area[4] = 0b1100_0111;
        let tags = full_tag_word(&area).unwrap();
        let tag = |physical: u16| tags >> (2 * physical) & 3;
        assert_eq!([tag(6), tag(7), tag(0), tag(1), tag(2)], [0, 1, 2, 2, 2]);
        assert_eq!([tag(3), tag(4), tag(5)], [3, 3, 3]);
        assert_eq!(full_tag_word(&image(0)), Some(0xffff));
    }
}
