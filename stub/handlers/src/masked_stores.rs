//! Stores with an opmask, which a trampoline leaves to `direct.rs`: `vmovdqu8 %zmm16,(%rdi){%k1}`, with which C
//! libraries end fills and copies. A store that meets at most one watch, which only counts, is performed here. All
//! other stores go the usual way (`fault::perform`).

use ulpf_engine::access::Insn;
use ulpf_engine::access::layout::Pp;
use ulpf_engine::cpu::{Cpu, Gprs};
use ulpf_lib::ring::Area;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr};

use core::sync::atomic::Ordering::Relaxed;

use crate::global::g;
use crate::hits::{self, count_false_positives};
use crate::locks::{self, Held};
use crate::runs::alone;
use crate::runtime::memory;
use crate::runtime::thread::Current;

/// The outcome of such a store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// It has been performed.
    Yes,
    /// It must be executed natively: there is no guard.
    Native,
    /// It must be performed by the fault handler.
    No,
}

/// Performs the store with the values that the trampoline has left in `area`.
pub fn store(t: Current, cpu: &Cpu, insn: &Insn, area: &Area) -> Made {
    let (size, element) = (u64::from(insn.mem.size), insn.element());
    let at = insn.effective(cpu);
    let l = &insn.layout;
    let aligned = l.opcode == 0x29 || l.opcode == 0x7f && l.pp == Pp::P66;
    if aligned && !at.is_multiple_of(size) {
        return Made::Native; // it will fault
    }
    let lanes = (size / element).clamp(1, 64);
    let mask = area.value.load(Relaxed) & (u64::MAX >> (64 - lanes));
    if mask == 0 {
        return Made::Native;
    }
    let (first, count) = (mask.trailing_zeros(), u64::from(mask.count_ones()));
    let (from, len) = (u64::from(first) * element, count * element);
    let dest = at.wrapping_add(from);
    let page = g().page_map.entry(TargetAddr(dest));
    let guarded = page.guards(AccessKind::Write);
    let end = at.wrapping_add(u64::from(64 - mask.leading_zeros()) * element);
    let other = g().page_map.entry(TargetAddr(end.wrapping_sub(1)));
    if !guarded && !other.guards(AccessKind::Write) {
        return Made::Native;
    }
    let whole = dest.wrapping_add(len) == end && dest % PAGE_SIZE + len <= PAGE_SIZE;
    let busy = t.stepping.load(Relaxed) || t.own().own_step.get().is_some();
    if !whole || !page.permits(AccessKind::Write) || busy {
        return Made::No;
    }
    match make(
        t,
        (cpu.gprs, insn.pc),
        dest,
        (from as usize, len as usize),
        area,
    ) {
        Some(()) => Made::Yes,
        None => Made::No,
    }
}

/// Copies `len` bytes of `area` from offset `from` on to `dest`; all of it is on one guarded page.
fn make(
    t: Current,
    by: (&Gprs, u64),
    dest: u64,
    (from, len): (usize, usize),
    area: &Area,
) -> Option<()> {
    let mut whole = 1;
    let watch = alone(dest, &mut whole, len as u64, AccessKind::Write)?;
    if whole != 1 {
        return None; // a watch begins or ends within
    }
    let mut value = [0u8; 64];
    for (to, word) in value.chunks_exact_mut(8).zip(&area.old) {
        to.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    let new = value.get(from..from + len)?;
    let mut old = [0u8; 64];
    let old = old.get_mut(..len)?;
    let lock = match watch {
        Some(_) => locks::take_page(dest)?,
        None => Held::NONE,
    };
    let made = memory::read(dest, old) == len && memory::write(dest, new) == len;
    lock.give_back();
    if !made {
        return None;
    }
    match watch {
        Some(id) => {
            let silent = u64::from(old == new);
            hits::counted(t, by, id, (dest, len as u64), (1, silent));
        }
        None => count_false_positives(t, TargetAddr(dest), 1),
    }
    Some(())
}
