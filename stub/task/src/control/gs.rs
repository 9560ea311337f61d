//! Programs that set the base of gs by an instruction. Trampolines keep their data there, and would write to the
//! program's memory. (arch_prctl(2) is seen.)

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::guard::maps::{Snapshot, Vma, VmaKind};
use ulpf_lib::place;
use ulpf_stub_handlers::runtime::areas::GS_TAKEN;

use super::text;

/// Larger mappings of code are not searched: browsers, which have none.
const LONGEST: u64 = 64 << 20;

/// The code that has been searched for WRGSBASE.
#[derive(Default)]
pub struct Searched {
    spans: Vec<(u64, u64)>,
    begun: bool,
    found: bool,
}

impl Searched {
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// Returns whether this code was not searched yet. The caller then searches it and reports the result
    /// ([`Searched::note`]).
    pub fn is_new(&mut self, vma: &Vma) -> bool {
        let span = (vma.start, vma.end);
        let new = !self.spans.contains(&span);
        if new {
            self.spans.push(span);
        }
        new
    }

    pub fn note(&mut self, found: bool) {
        self.found |= found;
    }

    /// Searches code that was mapped since the last call. A program that contains such an instruction uses gs itself
    /// ([`GS_TAKEN`]).
    pub fn look(&mut self) {
        self.begun = true;
        let Ok(maps) = Snapshot::read() else { return };
        let code = |v: &&Vma| {
            let file = matches!(v.kind, VmaKind::File | VmaKind::OddFile);
            file && v.prot & PROT_EXEC != 0 && !place::has(v.start)
        };
        for vma in maps.vmas.iter().filter(code) {
            if self.is_new(vma) && vma.end - vma.start <= LONGEST {
                let found = text::any(vma, WRGSBASE, has_wrgsbase);
                self.note(found);
            }
        }
        if self.found {
            GS_TAKEN.store(true, SeqCst);
        }
    }
}

/// Bytes of `wrgsbase` with a 64-bit register: F3 REX.W 0F AE /3.
pub const WRGSBASE: usize = 5;

pub fn has_wrgsbase(code: &[u8]) -> bool {
    const CHUNK: usize = 32;
    let is = |b: &[u8]| {
        b[0] == 0xf3 && b[1] & 0xfe == 0x48 && b[2..4] == [0x0f, 0xae] && b[4] & 0xf8 == 0xd8
    };
    // One byte of it is looked for in a way that compilers make vectors of.
    code.chunks(CHUNK).enumerate().any(|(n, chunk)| {
        let may = chunk.iter().fold(false, |found, &b| found | (b == 0xae));
        let from = (n * CHUNK).saturating_sub(WRGSBASE - 1);
        let to = (n * CHUNK + CHUNK + WRGSBASE - 1).min(code.len());
        may && code[from..to].windows(WRGSBASE).any(is)
    })
}
