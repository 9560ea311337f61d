//! How watches are served: patches, debug registers, what guards are made of.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::json::{Bytes, Quoted, or_null};
use crate::command::placement::Placement;

/// What `ulpf patch` answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Patching {
    /// Our stub patches hot instructions.
    Counts(PatchCounts),
    /// Nobody changes the program's code, for this reason.
    Nowhere(String),
}

/// What has become of hot instructions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub struct PatchCounts {
    /// More are patched.
    pub enabled: bool,
    /// After so many false positives.
    pub after: u32,
    /// In place now.
    pub patches: u64,
    /// Of these: the access itself has moved.
    pub relocated: u64,
    /// Of these: what stands before the access has moved.
    pub preceded: u64,
    /// Ever placed.
    pub placed: u64,
    /// Ever removed.
    pub removed: u64,
    /// Instructions that cannot be patched.
    pub refused: u64,
    /// Traps of somebody who jumped into a patch's middle.
    pub landings: u64,
    /// Pages that have been classified.
    pub pages: u64,
    /// Code caves.
    pub rooms: u64,
}

/// One line of what `ulpf patch sites` answers: an instruction that touched guarded pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatchSite {
    /// Its address.
    pub pc: u64,
    /// How many it has had.
    pub faults: u64,
    /// Of these: beside every watch.
    pub beside: u64,
    /// Why it is not patched.
    pub why: Cow<'static, str>,
    /// Its code.
    pub bytes: Vec<u8>,
}

/// What `ulpf placement` answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacementState {
    /// Where watches set from now on live.
    pub placement: Placement,
    /// Debug registers that there are.
    pub registers: u64,
    /// Of these: those that have a watch.
    pub used: u64,
    /// Our stub's own; `None` over the bridge.
    pub counts: Option<RegisterCounts>,
    /// Why there are no debug registers.
    pub unavailable: Option<String>,
}

/// What the stub has done about debug registers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RegisterCounts {
    /// Threads that have them.
    pub threads: u64,
    /// Watches that have moved into one, or out of it.
    pub moves: u64,
    /// How often it was looked whether one should.
    pub looks: u64,
}

/// What `ulpf backend` answers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub struct Backend {
    /// `kernel`, `signal`, or the kind of a back end of the bridge.
    pub backend: Cow<'static, str>,
    /// What a back end of the bridge says of itself.
    pub name: Option<String>,
    /// Why this one.
    pub why: Cow<'static, str>,
    /// To have the other one.
    pub what_to_do: Option<Cow<'static, str>>,
    /// Accesses that came without a signal; `None` where there are none such.
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
            "{{\"enabled\":{},\"after\":{},\"patches\":{},\"relocated\":{},\"preceded\":{},\"placed\":{},\"removed\":{},\"refused\":{},\"landings\":{},\"pages\":{},\"rooms\":{}}}",
            c.enabled,
            c.after,
            c.patches,
            c.relocated,
            c.preceded,
            c.placed,
            c.removed,
            c.refused,
            c.landings,
            c.pages,
            c.rooms,
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
