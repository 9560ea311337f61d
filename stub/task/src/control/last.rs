//! `monitor ulpf last ADDR [LEN] [N]`: the last writers of these bytes, from the threads' rings, as one JSON line for a
//! debugger's command. (`ulpf last` reads the rings itself.)

use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use ulpf_lib::command::looks;
use ulpf_lib::ring::{RingHead, Rings, SharedHeader, copy_slots, ring_place};

use ulpf_stub_handlers::global::g;
use ulpf_stub_tables::patches::tsc;

/// The program's own rings.
pub struct Ours(pub &'static SharedHeader);

impl Rings for Ours {
    fn rings(&self) -> usize {
        self.0.rings.load(Acquire) as usize
    }
    fn slots(&self, ring: usize) -> u64 {
        ring_place(ring as u64).1
    }
    fn head(&self, ring: usize) -> (u64, u64) {
        g().ring_heads()
            .get(ring)
            .map_or((0, 0), RingHead::progress)
    }
    fn copy(&self, ring: usize, slot: u64, to: &mut [u64]) -> bool {
        let base = self.0 as *const _ as u64;
        let words = ulpf_stub_handlers::global::ring_words(base, ring as u32);
        words.is_some_and(|words| copy_slots(words, slot, to))
    }
}

/// `most`: how many accesses, the youngest first. `recorded`: last writers are recorded there.
pub fn answer((addr, len, most): (u64, u64, u64), recorded: bool, out: &mut dyn Write) {
    let Some(h) = g().header() else { return };
    let now = tsc();
    let table = || (0..h.listed.load(Acquire)).filter_map(|n| g().listed(ulpf_lib::WatchId(n)));
    // A watch that logs knows more: values, and the writes before.
    if recorded && !looks::is_logged(table(), addr, len) {
        let _ = writeln!(out, "{}", super::last_writer::answer(h, addr, len));
        return;
    }
    looks::who_wrote(&Ours(h), &h.clock(), now, table(), (addr, len, most), out);
}

/// `monitor ulpf log [N]`: all threads' records, each on a line, the oldest first. `watch` is its number.
pub fn log(most: u64, out: &mut dyn Write) {
    if let Some(h) = g().header() {
        looks::log(&Ours(h), &h.clock(), most, out);
    }
}
