//! Finds out-of-block accesses: the pointer leads to one block, and the access goes over the redzone into another one.
//! Both blocks are addressable, so the bits do not tell. The register that holds the pointer does. (RedFat, Duck, Yap,
//! Roychoudhury, EuroSys 2022, also identifies blocks by the pointer. There the address itself says how large its block
//! is; here the heap's books do.)
//!
//! ```text
//!   mov %ecx,(%rax,%rdx,4)      | block A   | gap | block B |          error: the pointer is one to A
//!              │     └────────────│── × 4 ──────────▶│
//!              └─────────────────▶│
//! ```
//! Compilers also put values into registers that never were pointers: the distance between two arrays, or an array's
//! beginning less some index ([`computed::is_difference`] finds that in the code before). By default an access is
//! reported only if it can hardly be one of those: the pointer leads to the very beginning of its block, and the index is
//! multiplied. That costs nothing: it is checked when an instruction faults, so for its first accesses, until it is
//! patched. With [`GUESSES`] any pointer into a block counts, and trampolines check, too
//! (`engine/src/patch/out_of_block.rs`).

use core::sync::atomic::{AtomicBool, Ordering::*};

use ulpf_engine::access::{AccessList, Class, MemOp, NO_REG};
use ulpf_engine::cpu::Gprs;
use ulpf_engine::exec::Site;
use ulpf_engine::patch::Blocks;
use ulpf_lib::{AccessKind, TargetAddr};
use ulpf_stub_tables::code::OverRead;
use ulpf_stub_tables::patches::Known;

use super::blocks::Block;
use super::{arena, block_map, computed, entries, jumps, lookup, report, shadow};
use crate::cause::Cause;
use crate::runtime::events::Event;
use crate::runtime::thread::Current;
use crate::unwind;

/// Also reports accesses by pointers that may be a misreading.
pub static GUESSES: AtomicBool = AtomicBool::new(false);

/// The tables for the check in trampolines, if that check is on.
pub fn tables() -> Option<Blocks> {
    (entries::ON.load(Relaxed) && GUESSES.load(Relaxed)).then(|| Blocks {
        heap: arena::arena(),
        owners: block_map::OWNERS_AT.load(Relaxed),
        lines: block_map::LINES_AT.load(Relaxed),
    })
}

/// Bytes of the smallest redzone.
const LEAST_REDZONE: u64 = 16;

/// With [`GUESSES`]: extra faults before an instruction is patched whose operand holds only the sum of pointer and
/// index.
const LATER: i32 = 2048;

/// An access at `addr` by a pointer to another block.
struct OutOfBlock {
    addr: u64,
    block: Block,
    other: Block,
}

/// Checks the accesses that the instruction at PC is about to make. Returns whether one is such an error, and the event
/// to stop for.
pub fn access(t: Current, gprs: &Gprs, site: &Site, list: &AccessList) -> (bool, Option<Event>) {
    let insn = &site.insn;
    if !entries::ON.load(Relaxed)
        || !insn.layout.has_mem()
        || insn.mem.base == NO_REG
        || matches!(insn.class, Class::Gather | Class::Scatter)
    {
        return (false, None);
    }
    let addr = address(gprs, &insn.mem);
    let Some(a) = list.iter().find(|a| a.addr.0 == addr) else {
        return (false, None);
    };
    let indexed = out_of_block(gprs, &insn.mem).filter(|_| !computed::is_difference(insn));
    let found = indexed.or_else(|| {
        let no_index = insn.mem.index == NO_REG;
        let pointers = no_index.then(|| computed::pointers(insn, gprs))?;
        wait(site, pointers.all.iter().any(Option::is_some));
        let found = pointers
            .all
            .into_iter()
            .flatten()
            .find_map(|p| between(p, addr, true));
        found.filter(|_| !jumps::come_between(pointers.sum, insn.pc))
    });
    match found {
        Some(found) => tell(t, gprs, &found, (insn.pc, a.len, a.kind)),
        None => (false, None),
    }
}

/// Checks an access for a trampoline that is about to make it. The registers are the program's.
pub fn ask(t: Current, gprs: &Gprs, patched: &Known) {
    if let Some(mem) = &patched.operand
        && let Some(found) = out_of_block(gprs, mem)
    {
        tell(t, gprs, &found, (patched.pc, patched.size, patched.kind));
    }
}

/// Delays the patch of an instruction whose pointer had its index added before: trampolines do not check these.
fn wait(site: &Site, computed: bool) {
    let first = site.faults.load(Relaxed) <= 1 && site.heat.load(Relaxed) == 0;
    if computed && first && GUESSES.load(Relaxed) {
        site.heat.store(-LATER, Relaxed);
    }
}

fn tell(
    t: Current,
    gprs: &Gprs,
    found: &OutOfBlock,
    (pc, len, kind): (u64, u64, AccessKind),
) -> (bool, Option<Event>) {
    // Register values in C libraries come from hand-written code, not from a compiler.
    if unwind::over_read(pc) != OverRead::None || shadow::first_poisoned(found.addr, len).is_some()
    {
        return (false, None);
    }
    let cause = Cause::before_access(pc, TargetAddr(found.addr), len, kind);
    (true, report::far(t, gprs, &cause, found.block, found.other))
}

fn index(gprs: &Gprs, mem: &MemOp) -> u64 {
    match mem.index {
        NO_REG => 0,
        index => gprs.get(index),
    }
}

fn address(gprs: &Gprs, mem: &MemOp) -> u64 {
    gprs.get(mem.base)
        .wrapping_add(index(gprs, mem).wrapping_mul(mem.scale.into()))
        .wrapping_add(mem.disp as u64)
}

fn out_of_block(gprs: &Gprs, mem: &MemOp) -> Option<OutOfBlock> {
    if mem.segment != 0 || mem.base == NO_REG {
        return None;
    }
    let (base, addr) = (gprs.get(mem.base), address(gprs, mem));
    let scaled = mem.index != NO_REG && mem.scale > 1;
    let guesses = GUESSES.load(Relaxed);
    if !scaled && !guesses {
        return None;
    }
    // (The registers may be swapped: an index that is not multiplied may be encoded as the base.)
    let swapped = mem.index != NO_REG && !scaled && !arena::has(base);
    let pointer = match swapped {
        true => index(gprs, mem),
        false => base,
    };
    let found = between(pointer, addr, !guesses)?;
    // Two arrays at the same place of their blocks: most likely the other register holds the distance between them.
    let aside = pointer.wrapping_sub(found.block.start) == addr.wrapping_sub(found.other.start);
    (scaled || !aside).then_some(found)
}

/// The two blocks, if `pointer` leads into one and `addr` into another. With `start`, only a pointer to the very
/// beginning counts.
fn between(pointer: u64, addr: u64, start: bool) -> Option<OutOfBlock> {
    let near = addr.wrapping_sub(pointer).wrapping_add(LEAST_REDZONE) < 2 * LEAST_REDZONE;
    if near || !arena::has(addr) || !arena::has(pointer) {
        return None;
    }
    let block = lookup::near(pointer).filter(|b| !b.freed)?;
    let inside = pointer.wrapping_sub(block.start);
    if start && inside != 0 || inside >= block.size {
        return None;
    }
    let other = lookup::near(addr).filter(|b| !b.freed && b.has(addr))?;
    (other.start != block.start).then_some(OutOfBlock { addr, block, other })
}
