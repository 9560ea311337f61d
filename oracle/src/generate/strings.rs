//! String instructions: every kind, prefix, direction and count, overlapping or not, across page edges.

use super::Gen;
use crate::asm::*;

impl Gen<'_> {
    pub fn string(&mut self) {
        let size = 1u64 << self.rng.below(4);
        let count = match self.rng.below(6) {
            0 => self.rng.below(3),
            1..=3 => self.rng.below(12),
            4 => self.rng.below(64),
            _ => self.rng.below(2048 / size),
        };
        let span = (count * size).max(8);
        let down = self.rng.chance(2);
        let wide = self.windows.is_some();
        let room = if wide { span } else { size };
        let mut dest = self.target(room, 1);
        let mut source = match self.rng.below(4) {
            // Overlapping.
            0 if !wide => dest
                .wrapping_add(self.rng.below(2 * span))
                .wrapping_sub(span),
            _ => self.target(room, 1),
        };
        if down && wide {
            dest += span - size;
            source += span - size;
        } else if down {
            // Runs towards lower addresses: start where there is room below.
            dest = self.shift_into_arena(dest, span);
            source = self.shift_into_arena(source, span);
        }
        let kind = self.rng.below(5);
        let prefix = self.rng.below(4);
        let addr32 = self.rng.chance(8);
        let high = if addr32 { self.rng.next() << 32 } else { 0 };
        // In the guarded memory of the comparisons are equal runs now and then.
        if kind > 2 && self.rng.chance(2) {
            let word = self.rng.below(2) as i32 - 1;
            for n in 0..3 {
                for at in [source, dest] {
                    let at = if down {
                        at.wrapping_sub(8 * n)
                    } else {
                        at + 8 * n
                    };
                    self.asm.store_word(at, word);
                }
            }
            self.asm.mov(RAX, word as u64);
        } else {
            let v = self.rng.next();
            self.asm.mov(RAX, v);
        }
        self.asm.mov(RSI, source | high);
        self.asm.mov(RDI, dest | high);
        let count = if self.rng.chance(30) { 0 } else { count };
        self.asm.mov(RCX, count | high);
        let al = self.rng.next() as u8;
        self.asm.define_flags(al);
        self.asm.put(&[if down { 0xfd } else { 0xfc }]);
        if addr32 {
            self.asm.put(&[0x67]);
        }
        match prefix {
            0 => {}
            1 => self.asm.put(&[0xf2]),
            _ => self.asm.put(&[0xf3]),
        }
        match size {
            2 => self.asm.put(&[0x66]),
            8 => self.asm.put(&[0x48]),
            _ => {}
        }
        let base = [0xa4, 0xaa, 0xac, 0xae, 0xa6][kind as usize];
        self.asm.put(&[base | u8::from(size > 1)]);
        self.asm.put(&[0xfc]);
    }

    /// Moves a start upwards until `span` bytes below it are in the arena.
    fn shift_into_arena(&mut self, at: u64, span: u64) -> u64 {
        match crate::program::arena_of(at) {
            Some((_, offset)) if (offset as u64) < span + 16 => at + span + 16,
            _ => at,
        }
    }
}
