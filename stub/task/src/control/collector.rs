//! Collectors that move generated code: V8's copies it, and would copy our jumps. We set a breakpoint at the
//! collector's first instruction. When it is hit, all patches of generated code are removed, and none are placed until
//! the collector has ended.
//!
//! The function is found by its name in the dynamic symbols of the file (node has it, for add-ons). Code of a V8 that
//! does not name it is not patched.

use alloc::vec::Vec;

use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::guard::maps::Snapshot;

use super::allocator::Tables;
use super::functions::Object;
use super::{breakpoints, parked, text};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::breakpoints::Collector as Phase;

/// v8::internal::MarkCompactCollector::CollectGarbage(): code is moved only there.
const NAME: &[u8] = b"_ZN2v88internal20MarkCompactCollector14CollectGarbageEv";
/// Most bytes of a thread's stack between that function and the thread's present frame.
const DEEP: usize = 256 << 10;

#[derive(Default)]
pub struct Collector {
    begins: Vec<u64>,
    /// Return addresses of the collections in progress.
    back: Vec<u64>,
    /// One collection was not seen to its end, or not from its beginning.
    lost: bool,
}

impl Collector {
    /// Returns whether there is a collector whose work can be noticed.
    pub fn is_known(&self) -> bool {
        !self.begins.is_empty() && !self.lost
    }

    pub fn is_at_work(&self) -> bool {
        !self.back.is_empty()
    }

    /// Addresses of collectors that are not known yet, and that are at work in no thread.
    pub fn find(&self, stopped: &mut Stopped) -> Vec<u64> {
        let Ok(maps) = Snapshot::read() else {
            return Vec::new();
        };
        let mut files = Vec::new();
        let mut found = Vec::new();
        for (n, vma) in maps.vmas.iter().enumerate() {
            let file = (vma.dev, vma.inode);
            let code = vma.prot & PROT_EXEC != 0 && vma.inode != 0;
            if !code || files.contains(&file) || vma.is_ours() {
                continue;
            }
            let tables = Object::at(n, &maps).and_then(|object| Tables::of(&object));
            let Some(tables) = tables else { continue };
            files.push(file);
            if let Some(function) = tables.find(NAME)
                && !self.begins.contains(&function.0)
                && !is_inside(function, stopped)
            {
                found.push(function.0);
            }
        }
        found
    }

    pub fn plant(&mut self, stopped: &mut Stopped, at: u64) {
        if breakpoints::insert_ours(stopped, at, Phase::Begins) {
            self.begins.push(at);
        }
    }

    /// A collection begins that will return to `back`.
    pub fn begins(&mut self, stopped: &mut Stopped, back: u64) {
        self.lost |= !breakpoints::insert_ours(stopped, back, Phase::Ends);
        self.back.push(back);
    }

    /// A collection has returned to `at`.
    pub fn ends(&mut self, stopped: &mut Stopped, at: u64) {
        if let Some(n) = self.back.iter().position(|back| *back == at) {
            self.back.swap_remove(n);
        }
        if self.back.contains(&at) {
            return;
        }
        breakpoints::remove_ours(stopped, at);
    }
}

/// Returns whether a thread may be in this function, or in a function that it has called.
fn is_inside((start, end): (u64, u64), stopped: &mut Stopped) -> bool {
    // (Where it ends another one begins, whose address may be anywhere.)
    let within = |at: u64| start < at && at < end;
    let mut stack = alloc::vec![0; DEEP];
    g().threads.iter().any(|t| {
        let Some(context) = parked::frame(t, stopped) else {
            return false; // it is gone, or has not begun
        };
        let (pc, sp) = (context.gprs.rip, context.gprs.rsp & !7);
        let read = text::read(sp, &mut stack);
        let (words, _) = stack.get(..read).unwrap_or_default().as_chunks();
        pc == start || within(pc) || words.iter().any(|word| within(u64::from_le_bytes(*word)))
    })
}
