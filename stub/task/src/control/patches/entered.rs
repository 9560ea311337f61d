//! Accesses that are checked by a patch whose jump is before them, and that the program also reaches by a branch. The
//! code behind the jump is still in place, and faults when it is reached by a branch.
//!
//! ```text
//!   je 1f ─▶ patched, too: its body has the branch ──┐
//!   …                                                │
//!   mov %si,(%rdi)  ─▶  e9 …  ─▶  body: mov %si,(%rdi)│
//! 1: mov %cl,(%rdi)                     mov %cl,(%rdi) ◀┘
//! ```
//! Where there is no room for a second jump, the branches to the access are searched in their function and patched. The
//! trampoline of such a branch leads to the copy in the other trampoline. So it is removed together with the other one.

use alloc::vec::Vec;

use ulpf_engine::patch::{Group, JUMP, What, leading_to, skipped};
use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::ring::Unpatched;

use super::tactics::{DISPLACING, PUNNING};
use super::{FURTHEST, Patches};
use crate::control::{functions, generated, text};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::patches;
use ulpf_stub_handlers::sequences;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::edit::Edit;
use ulpf_stub_tables::patches::Patch;

/// Longer functions are not searched for branches.
const LONGEST: u64 = 1 << 16;

impl Patches {
    /// The access at `pc` is checked by a patch whose jump is before it, and the program also reaches it by a branch.
    /// It gets a patch of its own, or the branches to it are patched.
    pub(super) fn split(&mut self, stopped: &mut Stopped, pc: u64) {
        let Some(p) = patches::list().covering(pc) else {
            return;
        };
        let (start, pun) = (p.start(), p.group.pun());
        let looked_at = p.group.parts.iter().filter(|x| x.is_looked_at());
        self.recalled = looked_at.map(|x| x.at).collect();
        self.remove(stopped, start);
        let own = match patches::table().refused.get(&pc) {
            Some(why @ Unpatched::JumpedInto) => Err(*why),
            _ => self.try_each(stopped, pc, &DISPLACING),
        };
        let own = own.or_else(|_| self.try_each(stopped, pc, &PUNNING));
        // Code before the access still reaches the trampoline. Without a patch of its own, the previous patch is
        // restored.
        let mut looked_at = self.recalled.iter().rev();
        let last = looked_at.find(|at| own.is_err() || **at < pc).copied();
        if let (Some(last), Ok(maps)) = (last, self.maps()) {
            let _ = self.place(stopped, last, start, pun, &maps);
        }
        self.recalled.clear();
        let refused = &mut stopped.tables_mut().patches.refused;
        if own.is_ok() {
            refused.remove(&pc);
        } else {
            refused.insert(pc, Unpatched::Entered);
            self.link(stopped, pc);
        }
    }

    /// Patches the branches to the access at `pc`, so that they lead to the trampoline that checks it.
    fn link(&mut self, stopped: &mut Stopped, pc: u64) {
        let whole = self.maps().ok().and_then(|m| functions::bounds(pc, &m));
        let Some((start, end)) = whole.filter(|w| w.1 - w.0 <= LONGEST) else {
            return;
        };
        let code = functions::block(start, (end - start) as usize);
        for branch in leading_to(pc, start, &code) {
            let Ok(maps) = self.maps() else { return };
            if let Some(p) = patches::list().covering(branch.at) {
                // A new trampoline of that patch leads there.
                let (start, pun) = (p.start(), p.group.pun());
                let last = p.group.parts.iter().rfind(|x| x.is_looked_at());
                if let Some(last) = last.map(|x| x.at).filter(|_| !p.group.checks(pc)) {
                    let _ = self.place(stopped, last, start, pun, &maps);
                }
                continue;
            }
            for from in branch.starts {
                if self.place_branch(stopped, from, branch.at, &maps).is_ok() {
                    break;
                }
            }
        }
    }

    /// A patch of the branch at `at`, its jump at `from`.
    fn place_branch(
        &mut self,
        stopped: &mut Stopped,
        from: u64,
        at: u64,
        maps: &Snapshot,
    ) -> Result<(), Unpatched> {
        use Unpatched::{Code, JumpedInto, Successor, Taken};
        let mut code = [0; 64];
        let vma = maps.at(from).ok_or(Code)?;
        let code = code.get_mut(..(vma.end - from).min(64) as usize);
        let code = code.ok_or(Code)?;
        let may = text::may_patch(vma) && !sequences::has_code(vma.start, vma.end);
        if !may || g().alias_of(at).is_some() || text::read(from, code) != code.len() {
            return Err(Code);
        }
        // The branch skips a `lock` prefix.
        let branch = code.get((at - from) as usize..).unwrap_or(&[]);
        if branch.get(..3).is_none_or(skipped) {
            return Err(Successor);
        }
        if patches::table().refused.get(&from) == Some(&JumpedInto) {
            return Err(JumpedInto);
        }
        let group = Group::of_branch(from, at, code).map_err(|_| Successor)?;
        let near = from.saturating_sub(FURTHEST)..group.end();
        let met = |p: &&Patch| p.is_in_place() && from < p.end();
        let list = patches::list();
        let mut there = list.within(near).filter(met);
        let group = match (there.next(), there.next()) {
            (None, _) => group,
            // Then it goes as far as the branch.
            (Some(p), None) if p.start() < at && p.group.pun().is_none() => {
                let mut parts = p.group.parts.iter();
                let last = parts.rfind(|x| x.is_looked_at()).ok_or(Taken)?;
                let group = self.group(last.at, (p.start(), at), maps)?;
                // It must not remove others.
                let mut more = list.within(p.start() + 1..group.end());
                if more.any(Patch::is_in_place) {
                    return Err(Taken);
                }
                group
            }
            _ => return Err(Taken),
        };
        self.put(stopped, group, maps)
    }

    /// After the removal of `gone`: removes the patches whose trampolines lead into its trampoline.
    pub(super) fn unlink(&mut self, stopped: &mut Stopped, gone: &Patch) {
        let pairs = self
            .linked
            .range((gone.start(), 0)..=(gone.start(), u64::MAX));
        let pairs: Vec<(u64, u64)> = pairs.copied().collect();
        for pair in &pairs {
            self.linked.remove(pair);
            self.remove(stopped, pair.1);
        }
        if !pairs.is_empty() {
            // Once the patch is back, its branches are to be patched again, too.
            let refused = &mut stopped.tables_mut().patches.refused;
            for part in &gone.group.parts {
                if refused.get(&part.at) == Some(&Unpatched::Entered) {
                    refused.remove(&part.at);
                }
            }
        }
    }
}

/// The same group, with its branches redirected to the trampolines of other patches in place that check or have
/// displaced their targets. Also returns the starts of those patches. `None`: there are no such branches.
pub(super) fn linked(group: &Group, maps: &Snapshot) -> Option<(Group, Vec<u64>)> {
    let mut linked = None;
    let mut others = Vec::new();
    for (at, part) in group.parts.iter().enumerate() {
        let (What::If(_, to) | What::Jump(to)) = part.what else {
            continue;
        };
        let p = patches::list().covering(to);
        let p = p.filter(|p| p.start() != to && group.part(to).is_none());
        let p = p.filter(|p| !maps.at(p.start()).is_none_or(generated::is_generated));
        let n = p.and_then(|p| p.group.part(to));
        let Some((p, n)) = p.zip(n) else {
            continue;
        };
        let is_needed = to < p.start() + JUMP as u64 || p.group.checks(to);
        if let Some(offset) = p.trampoline.parts.get(n).filter(|_| is_needed) {
            let linked: &mut Group = linked.get_or_insert_with(|| group.clone());
            let part = linked.parts.get_mut(at).map(|part| &mut part.what);
            if let Some(What::If(_, to) | What::Jump(to)) = part {
                *to = p.at + u64::from(*offset);
            }
            others.push(p.start());
        }
    }
    linked.map(|linked| (linked, others))
}
