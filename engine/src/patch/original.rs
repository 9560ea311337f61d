//! Code that performs displaced instructions as they are: with the program's registers, and on its own addresses.

use core::mem::offset_of;

use ulpf_lib::ring::Area;

use super::asm::{Asm, relative};
use super::implicit::{Does, GoesOn, Implicit, read_into};
use super::plan::{Group, Part, What};
use super::types::Phase;
use super::writer::{Target, Writer, restore};

pub fn jump_to(asm: &mut Asm, target: Target, to: u64) -> Option<()> {
    asm.put(&[0xe9]);
    let after = target.at + asm.here() as u64 + 4;
    asm.put(&relative(after, to)?);
    Some(())
}

/// An instruction as it is.
pub fn plain(w: &mut Writer, group: &Group, part: &Part, target: Target) -> Option<()> {
    let from = (part.at - group.start()) as usize;
    let bytes = group.bytes.get(from..from + part.len as usize)?;
    match part.what {
        What::Copy => w.asm.put(bytes),
        What::Relative(at) => {
            let at = at as usize;
            let old: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            let operand =
                (part.at + part.len as u64).wrapping_add_signed(i32::from_le_bytes(old).into());
            let after = target.at + (w.asm.here() + bytes.len()) as u64;
            w.asm.put(bytes.get(..at)?);
            w.asm.put(&relative(after, operand)?);
            w.asm.put(bytes.get(at + 4..)?);
        }
        What::Jump(to) => jump_to(&mut w.asm, target, to)?,
        What::If(condition, to) => {
            w.asm.put(&[0x0f, 0x80 | condition]);
            let after = target.at + w.asm.here() as u64 + 4;
            w.asm.put(&relative(after, to)?);
        }
        What::Call(to) => {
            // The return address is the program's; what it pairs with is a jump.
            let back = (part.at + part.len as u64).to_le_bytes();
            w.asm.put(&[0x48, 0x8d, 0x64, 0x24, 0xf8]);
            w.mark(Phase::Before);
            w.asm.put(&[0xc7, 0x04, 0x24]);
            w.asm.put(back.get(..4)?);
            w.asm.put(&[0xc7, 0x44, 0x24, 0x04]);
            w.asm.put(back.get(4..)?);
            jump_to(&mut w.asm, target, to)?;
            w.mark(Phase::Pushed);
            return Some(());
        }
        What::Checked(_) | What::Implicit(_) | What::Repeated(_) => return None,
    }
    w.mark(Phase::Before);
    Some(())
}

/// `i`, which is `part`'s, with its registers in the area and the address in `a`, if its page has no guard. `true`:
/// the program goes on elsewhere.
pub fn implicit(
    w: &mut Writer,
    group: &Group,
    part: &Part,
    i: &Implicit,
    (a, b): (u8, u8),
    target: Target,
) -> Option<bool> {
    let copy = match i.does {
        Does::CallMem => {
            read_into(w, a, offset_of!(Area, target));
            None
        }
        Does::CallRegister(r) => Some(r),
        does => {
            restore(w, a, b);
            w.mark(Phase::Saved);
            let what = match (does, i.relative) {
                (Does::Call(to), _) => What::Call(to),
                (_, Some(at)) => What::Relative(at),
                _ => What::Copy,
            };
            plain(w, group, &Part { what, ..*part }, target)?;
            return Some(i.goes_on() != GoesOn::Behind);
        }
    };
    w.asm.save_constant(offset_of!(Area, value), part.end());
    restore(w, a, b);
    w.mark(Phase::Saved);
    w.asm.push(offset_of!(Area, value));
    w.mark(Phase::Before);
    match copy {
        Some(r) => {
            w.asm.jump_to(r);
            w.mark(Phase::Pushed);
        }
        None => {
            w.asm.jump_through(offset_of!(Area, target));
            w.mark(Phase::After);
        }
    }
    Some(true)
}

/// Writes the continuation after the access of `i`, once the program's registers are restored.
pub fn follow(w: &mut Writer, i: &Implicit, target: Target) -> Option<()> {
    match i.goes_on() {
        GoesOn::Behind => return Some(()),
        GoesOn::At(to) => jump_to(&mut w.asm, target, to)?,
        GoesOn::Target => w.asm.jump_through(offset_of!(Area, target)),
    }
    w.mark(Phase::After);
    Some(())
}
