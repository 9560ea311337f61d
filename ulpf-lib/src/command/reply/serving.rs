//! How watches are served: patches, debug registers, the mechanism of the guards.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::json::{Bytes, Quoted, or_null};
use crate::command::placement::Placement;

/// The answer to `ulpf patch`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Patching {
    /// Our stub patches hot instructions.
    Counts(PatchCounts),
    /// The program's code is never patched, for this reason.
    Nowhere(String),
}

/// Counters of hot instructions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub struct PatchCounts {
    /// Further ones are patched.
    pub enabled: bool,
    /// Number of false positives after which a site is patched.
    pub after: u32,
    /// In place now.
    pub patches: u64,
    /// Of these: the access itself has moved.
    pub relocated: u64,
    /// Of these: the instructions before the access have moved.
    pub preceded: u64,
    /// Ever placed.
    pub placed: u64,
    /// Ever removed.
    pub removed: u64,
    /// Instructions that cannot be patched.
    pub refused: u64,
    /// Traps of threads that have jumped into a patch's middle.
    pub displaced_entries: u64,
    /// Pages that have been classified.
    pub pages: u64,
    /// Code caves.
    pub caves: u64,
}

/// One line of the answer to `ulpf patch sites`: an instruction that touched guarded pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatchSite {
    /// Its address.
    pub pc: u64,
    /// Number of its faults.
    pub faults: u64,
    /// Of these: accesses that overlap no watch.
    pub beside: u64,
    /// Why it is not patched.
    pub why: Cow<'static, str>,
    /// Its code.
    pub bytes: Vec<u8>,
}

/// The answer to `ulpf placement`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacementState {
    /// Placement of watches that are set from now on.
    pub placement: Placement,
    /// Number of debug registers.
    pub registers: u64,
    /// Number of debug registers that hold a watch.
    pub used: u64,
    /// Our stub's own; `None` over the bridge.
    pub counts: Option<RegisterCounts>,
    /// Why there are no debug registers.
    pub unavailable: Option<String>,
}

/// Counters of the stub's debug registers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RegisterCounts {
    /// Threads that have them.
    pub threads: u64,
    /// Watches that have moved into one, or out of it.
    pub moves: u64,
    /// Number of times that the stub has considered moving one.
    pub looks: u64,
}

/// The answer to `ulpf backend`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub struct Backend {
    /// `kernel`, `signal`, or the kind of a back end of the bridge.
    pub backend: Cow<'static, str>,
    /// The name that a back end of the bridge reports.
    pub name: Option<String>,
    /// Reason for this back end.
    pub why: Cow<'static, str>,
    /// How to get the other one.
    pub what_to_do: Option<Cow<'static, str>>,
    /// Accesses that came without a signal, or `None` if the back end has no upcalls.
    pub upcalls: Option<u64>,
}

impl fmt::Display for Patching {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let c = match self {
            Patching::Counts(counts) => counts,
            Patching::Nowhere(why) => {
                let why = Quoted(why);
                return write!(f, "{{\"enabled\":false,\"patches\":0,\"why\":{why}}}");
            }
        };
        write!(
            f,
            "{{\"enabled\":{},\"after\":{},\"patches\":{},\"relocated\":{},\"preceded\":{},\"placed\":{},\"removed\":{},\"refused\":{},\"displaced_entries\":{},\"pages\":{},\"caves\":{}}}",
            c.enabled,
            c.after,
            c.patches,
            c.relocated,
            c.preceded,
            c.placed,
            c.removed,
            c.refused,
            c.displaced_entries,
            c.pages,
            c.caves,
        )
    }
}

impl fmt::Display for PatchSite {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{{\"pc\":\"{:#x}\",\"faults\":{},\"beside\":{},\"why\":{},\"bytes\":{}}}",
            self.pc,
            self.faults,
            self.beside,
            Quoted(&self.why),
            Bytes(&self.bytes),
        )
    }
}

impl fmt::Display for PlacementState {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{{\"placement\":\"{}\",\"registers\":{},\"used\":{}",
            self.placement, self.registers, self.used
        )?;
        if let Some(c) = self.counts {
            let RegisterCounts {
                threads,
                moves,
                looks,
            } = c;
            write!(
                f,
                ",\"threads\":{threads},\"moves\":{moves},\"looks\":{looks}"
            )?;
        }
        f.write_str(",\"unavailable\":")?;
        or_null(self.unavailable.as_deref().map(Quoted), f)?;
        f.write_str("}")
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{{\"backend\":{}", Quoted(&self.backend))?;
        if let Some(name) = &self.name {
            write!(f, ",\"name\":{}", Quoted(name))?;
        }
        write!(f, ",\"why\":{}", Quoted(&self.why))?;
        if let Some(what_to_do) = &self.what_to_do {
            write!(f, ",\"what_to_do\":{}", Quoted(what_to_do))?;
        }
        if let Some(upcalls) = self.upcalls {
            write!(f, ",\"upcalls\":{upcalls}")?;
        }
        f.write_str("}")
    }
}
