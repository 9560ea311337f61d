//! Patching accesses, on the stub's task with the world stopped (see `patches.rs`).
//!
//! `classes.rs` has the tables about pages that trampolines use, `code_caves.rs` the places of trampolines, `edits.rs`
//! the other kinds of edits.

mod entered;
mod hot;
mod prediction;
mod tactics;
mod window;

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::mem;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use ulpf_engine::access::Class;
use ulpf_engine::patch::{Group, JUMP, Pun, Refusal, Target, Trampoline, flags, skipped};
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::command::reply::{PatchCounts, PatchSite, Patching};
use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::guard::{PROT_EXEC, PROT_READ};
use ulpf_lib::ring::{IDLE_COUNTS, Unpatched};

use super::classes::Classes;
use super::code_caves::{self, Wanted};
use super::generated::{self, Generated, May};
use super::gs;
use super::text;
use hot::Hot;
use ulpf_stub_handlers::check::{self, entries, judge, out_of_block};
use ulpf_stub_handlers::global::{g, machine, tables};
use ulpf_stub_handlers::hot_sites;
use ulpf_stub_handlers::last_writer;
use ulpf_stub_handlers::patches::{self, AFTER, ENABLED};
use ulpf_stub_handlers::runtime::areas::{GS_TAKEN, SOME};
use ulpf_stub_handlers::runtime::mapped::CHANGES;
use ulpf_stub_handlers::sequences;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_handlers::unwind;
use ulpf_stub_tables::back_off::{BackOff, By};
use ulpf_stub_tables::edit::Edit;
use ulpf_stub_tables::patches::{ASKS, KNOWN, Known, PLACED, Patch, REMOVED};
use window::Window;

/// Largest distance, in bytes, from the access to patches that its patch replaces.
const FURTHEST: u64 = 24;
/// Number of bytes before an instruction that may be prefixes of it, which other code jumps past.
const PREFIX: u64 = 3;

pub struct Patches {
    generated: Generated,
    pub classes: Classes,
    /// Number of trampolines made so far.
    made: usize,
    pub refused: u64,
    failed: bool,
    searched: gs::Searched,
    /// The mappings, and the number of changes after which they were read.
    maps: Option<(u64, Arc<Snapshot>)>,
    /// Accesses followed by a hot access that is a jump target: their jumps must not reach it.
    jumped_over: BTreeSet<u64>,
    /// Accesses that the patch being divided has checked.
    recalled: Vec<u64>,
    /// Accesses that will probably be met soon, ascending: a patch of the code before them checks them, too.
    predicted: Vec<u64>,
    /// Start of a patch, and start of a patch whose trampoline leads into that one's (`entered.rs`).
    linked: BTreeSet<(u64, u64)>,
    /// The code around the present patch.
    window: Window,
    hot: Hot,
}

impl Patches {
    pub fn new() -> Patches {
        Patches {
            generated: Generated::default(),
            classes: Classes::default(),
            made: 0,
            refused: 0,
            failed: false,
            searched: gs::Searched::default(),
            maps: None,
            jumped_over: BTreeSet::new(),
            recalled: Vec::new(),
            predicted: Vec::new(),
            linked: BTreeSet::new(),
            window: Window::default(),
            hot: Hot::default(),
        }
    }

    /// The program's mappings. Reading them takes longer than the rest of making a patch. (The kernel finally decides
    /// where a cave may be.)
    fn maps(&mut self) -> Result<Arc<Snapshot>, Unpatched> {
        let changes = CHANGES.load(SeqCst);
        if let Some((_, maps)) = self.maps.as_ref().filter(|m| m.0 == changes) {
            return Ok(maps.clone());
        }
        let maps = Arc::new(Snapshot::read().map_err(|_| Unpatched::Code)?);
        self.maps = Some((changes, maps.clone()));
        Ok(maps)
    }

    /// The site at `pc` is hot, and has met `page`.
    pub fn serve(&mut self, stopped: &mut Stopped, pc: u64, page: u64) {
        if !ENABLED.load(SeqCst) || self.failed {
            return;
        }
        if !self.classes.prepare(stopped) {
            self.failed = true;
            return;
        }
        self.search();
        if GS_TAKEN.load(SeqCst) {
            self.disable(stopped);
            return;
        }
        self.look_for_runtimes(stopped);
        // (Else the code is known, and only the page is new.)
        if !patches::is_patched(pc) {
            self.serve_hinted(stopped, pc, page);
        }
        self.serve_one(stopped, pc, page);
        if patches::is_entered_behind(pc) {
            self.split(stopped, pc);
        }
        // The world is stopped already.
        for half in hot_sites::take() {
            let hot_sites::Half { site, page, .. } = half;
            if !self.is_same(&half) {
                continue;
            }
            self.serve_one(stopped, site.insn.pc, page);
            if !patches::is_patched(site.insn.pc) {
                site.heat.store(-hot_sites::after(site.insn.pc), Relaxed);
            }
        }
    }

    /// Returns whether the code that faulted a while ago is still there.
    fn is_same(&mut self, half: &hot_sites::Half) -> bool {
        let maps = self.maps();
        let vma = maps.as_ref().ok().and_then(|m| m.at(half.site.insn.pc));
        vma.is_none_or(|v| !generated::is_generated(v) || self.generated.is_same(v, half))
    }

    fn serve_one(&mut self, stopped: &mut Stopped, pc: u64, page: u64) {
        self.classes.classify_around(stopped, page);
        if patches::is_patched(pc) {
            return;
        }
        let known = self.maps.is_some();
        self.window.open(pc);
        self.predict(pc, page);
        let mut done = self.make(stopped, pc);
        if known && matches!(done, Err(Unpatched::Code | Unpatched::Room)) {
            self.maps = None;
            self.window.open(pc);
            done = self.make(stopped, pc);
        }
        self.patch_predicted(stopped, done.is_ok());
        self.window.close();
        let refused = &mut stopped.tables_mut().patches.refused;
        match done {
            // A loop still begins behind it.
            Ok(()) if refused.get(&pc) == Some(&Unpatched::JumpedInto) => {}
            Ok(()) => {
                refused.remove(&pc);
            }
            Err(why) => {
                self.refused += 1;
                refused.insert(pc, why);
            }
        }
    }

    /// Makes the patch that checks the access of the instruction at `pc`.
    fn make(&mut self, stopped: &mut Stopped, pc: u64) -> Result<(), Unpatched> {
        use Unpatched::{JumpedInto, Taken};
        let (table, list) = (patches::table(), patches::list());
        match (list.covering(pc), list.checking(pc)) {
            // It is a jump target, and hot itself: its unchanged bytes do not help.
            (Some(p), _) if p.group.pun().is_some() && pc < p.start() + JUMP as u64 => {
                let start = p.start();
                self.jumped_over.insert(start);
                self.remove(stopped, start);
                self.try_each(stopped, pc, &tactics::DISPLACING)
            }
            // One more of its instructions is hot.
            (Some(p), _) if p.group.parts.iter().any(|x| x.at == pc) => {
                let (start, pun, maps) = (p.start(), p.group.pun(), self.maps()?);
                self.place(stopped, pc, start, pun, &maps)
            }
            (Some(_), _) => Err(Taken),
            (_, Some(p)) => self.put_back(p),
            _ if table.refused.get(&pc) == Some(&JumpedInto) => {
                self.try_each(stopped, pc, &tactics::AFTER_JUMPS_INTO_IT)
            }
            _ => self.try_each(stopped, pc, &tactics::AT_FIRST),
        }
    }

    // ---- code ------------------------------------------------------------------------------------

    /// The code that a patch of the access at `pc` displaces, from `from` at least to `last`. The patch also checks the
    /// accesses that the patches it replaces have checked.
    fn group(
        &self,
        pc: u64,
        (from, last): (u64, u64),
        maps: &Snapshot,
    ) -> Result<Group, Unpatched> {
        use Unpatched::Code;
        let vma = maps.at(pc).ok_or(Code)?;
        let generated = generated::is_generated(vma);
        if generated {
            self.may_patch_generated(from, pc + 1)?;
        }
        if !(text::may_patch(vma) || text::is_vdso(vma) || generated)
            || sequences::has_code(vma.start, vma.end)
            || g().alias_of(pc).is_some()
        {
            return Err(Code);
        }
        // (One read includes a possible prefix, since each is a system call.)
        let lead = if from == pc && pc - PREFIX >= vma.start {
            PREFIX
        } else {
            0
        };
        let mut code = [0u8; 64 + PREFIX as usize];
        let room = (vma.end - from).min(64) + lead;
        let code = code.get_mut(..room as usize).ok_or(Code)?;
        if from < vma.start || self.window.read(from - lead, code) != code.len() {
            return Err(Code);
        }
        let (before, code) = code.split_at(lead as usize);
        let own = code.get((pc - from) as usize..).ok_or(Code)?;
        let own = own.get(..own.len().min(15)).ok_or(Code)?;
        let insn = ulpf_stub_handlers::engine::decode(pc, own).ok_or(Unpatched::Instruction)?;
        // Some branches lead to the prefix, others past it.
        if let (&[a, b, c], [d, ..]) = (before, own)
            && (skipped(&[a, b, c, *d]) || skipped(&[a, b, c]))
        {
            return Err(Unpatched::Successor);
        }
        let stacks = insn.is_stack() && !matches!(insn.class, Class::PushMem | Class::CallMem);
        let patched = |at: u64| patches::list().checking(at).is_some_and(Patch::is_in_place);
        let known =
            |at: &u64| self.recalled.contains(at) || self.predicted.binary_search(at).is_ok();
        let hot = |at: u64| patched(at) || known(&at);
        let mut also = |at: u64, stopped: &[u8]| {
            let hot = hot(at);
            if !hot && !stacks {
                return None; // to decode takes longer than all else here
            }
            let stopped = stopped.get(..stopped.len().min(15))?;
            // A function's saves and restores become hot together.
            let decoded = ulpf_stub_handlers::engine::decode(at, stopped)?;
            (hot || decoded.is_stack()).then_some(decoded)
        };
        let group = Group::from(from, last, &insn, code, &mut also).map_err(|why| match why {
            Refusal::Instruction => Unpatched::Instruction,
            Refusal::Successor => Unpatched::Successor,
        })?;
        if generated {
            self.may_patch_generated(from, group.end())?;
        }
        if group.needs_fs_base() && !machine().fsgsbase {
            return Err(Unpatched::Instruction);
        }
        Ok(group)
    }

    fn may_patch_generated(&self, start: u64, end: u64) -> Result<(), Unpatched> {
        match self.generated.may_patch(start, end) {
            May::Yes => Ok(()),
            May::Later => Err(Unpatched::Cold),
            May::No => Err(Unpatched::Code),
        }
    }

    /// The code that a patch of the access at `pc` displaces, with its jump at `from`. Includes the accesses that near
    /// patches would otherwise lose.
    fn with_neighbours(&self, pc: u64, from: u64, maps: &Snapshot) -> Result<Group, Unpatched> {
        let mut group = self.group(pc, (from, pc), maps)?;
        let mut stretch = (from, pc);
        for _ in 0..4 {
            let before = stretch;
            let near = (pc + 1).saturating_sub(FURTHEST)..pc + FURTHEST;
            for p in patches::list().within(near) {
                if p.is_in_place() && p.start() < group.displaced_end() && group.start() < p.end() {
                    let last = p.group.parts.iter().rfind(|x| p.group.checks(x.at));
                    stretch.0 = stretch.0.min(p.start());
                    stretch.1 = stretch.1.max(last.map_or(0, |x| x.at));
                }
            }
            if stretch == before {
                break;
            }
            let Ok(larger) = self.group(pc, stretch, maps) else {
                break;
            };
            group = larger;
        }
        Ok(group)
    }

    /// The same with a jump that leaves the code behind it unchanged. It must not remove other patches.
    fn alone(&self, pc: u64, from: u64, pun: Pun, maps: &Snapshot) -> Result<Group, Unpatched> {
        let last = pc.max(from + pun.jump_len() as u64 - 1);
        let group = self.group(pc, (from, last), maps)?.punned(pun);
        let group = group.ok_or(Unpatched::Room)?;
        let start = from.saturating_sub(FURTHEST);
        let meets = |p: &Patch| p.is_in_place() && p.start() != from && from < p.end();
        let lost = patches::list().within(start..group.end()).any(meets);
        (!lost).then_some(group).ok_or(Unpatched::Taken)
    }

    /// A patch of the access at `pc`, its jump at `from`.
    fn place(
        &mut self,
        stopped: &mut Stopped,
        pc: u64,
        from: u64,
        pun: Option<Pun>,
        maps: &Snapshot,
    ) -> Result<(), Unpatched> {
        let group = match pun {
            None => self.with_neighbours(pc, from, maps)?,
            Some(pun) => self.alone(pc, from, pun, maps)?,
        };
        self.put(stopped, group, maps)
    }

    /// Puts a patch that displaces this code.
    fn put(
        &mut self,
        stopped: &mut Stopped,
        mut group: Group,
        maps: &Snapshot,
    ) -> Result<(), Unpatched> {
        use Unpatched::{Code, Room, Successor, Taken};
        let rest_of_loop = group.displaced_end()..group.end();
        let others = || {
            let mut others = patches::list().within(rest_of_loop.clone());
            others.any(Patch::is_in_place)
        };
        if group.loops() && (patches::taken(group.start(), group.end()) || others()) {
            group = group.displaced();
        }
        let (start, end) = (group.start(), group.end());
        if patches::taken(start, end) {
            return Err(Taken);
        }
        let vma = maps.at(start).ok_or(Code)?;
        let generated = generated::is_generated(vma);
        if generated && !group.spares_operands() {
            return Err(Successor);
        }
        // Generated code that can be written to will be closed.
        let plain_code = vma.prot == PROT_READ | PROT_EXEC || generated;
        let mut known: Box<[Known]> = group.parts.iter().flat_map(Known::of).collect();
        let hit = known.as_ptr() as u64;
        let idle_count = self.made % IDLE_COUNTS;
        for known in &mut known {
            known.idle_count = idle_count as u32;
        }
        let heap = self.classes.heap();
        let whole = heap.is_none() && self.classes.are_mostly_whole();
        if (heap.is_some() || whole && last_writer::tables().is_some()) && !generated {
            group.find_free_flags(|at| flags::are_free(at, |at| self.window.from(at)));
        }
        let writers = last_writer::writers();
        if writers.is_some() {
            for part in group.parts.iter_mut().filter(|part| part.is_looked_at()) {
                part.site = last_writer::site(last_writer::instruction(part.at));
                part.by_caller =
                    unwind::is_runtime(part.at) && unwind::is_return_address_on_top(part.at);
            }
        }
        let over_read = check::has_no_debugger() && judge::takes_over_read(start, end);
        let target = |at| Target {
            at,
            idle_count: patches::idle_count_at(idle_count),
            hit,
            leaving: hit + size_of::<Known>() as u64,
            asks: hit + (ASKS * size_of::<Known>()) as u64,
            step: KNOWN as u64 * size_of::<Known>() as u64,
            before_access: check::STOPS.load(Relaxed),
            over_read,
            heap,
            asking: out_of_block::tables(),
            whole,
            writers,
            // (Where only a heap is checked, false positives are not counted.)
            counts: !check::has_no_debugger(),
            tables: patches::table().tables,
        };
        let made = self.trampoline(stopped, &mut group, maps, target);
        if generated && generated::in_use(stopped, start, end) {
            return Err(Unpatched::Cold);
        }
        if generated && !self.generated.close(stopped, (start, end), vma.prot) {
            return Err(Code);
        }
        let (at, mut trampoline) = made.ok_or(Room)?;
        let jump = group.jump(at).ok_or(Room)?;
        let size = takes(&trampoline);
        // The patches that it replaces, and with them the accesses that they check.
        while let Some(p) = patches::list().meeting(start, end).next() {
            self.remove(stopped, p.start());
        }
        if !generated && let Some((linked, to)) = entered::linked(&group, maps) {
            let linked = Trampoline::new(&linked, target(at));
            // (It may be out of reach.)
            if let Some(linked) = linked.filter(|l| l.code.len() == trampoline.code.len()) {
                trampoline = linked;
                self.linked.extend(to.into_iter().map(|to| (to, start)));
            }
        }
        self.made += 1;
        let len = trampoline.code.len() as u64;
        let caves = &mut stopped.tables_mut().caves;
        caves.take(at, (len, size), start, false);
        for (n, known) in known.chunks_exact_mut(KNOWN).enumerate() {
            let offset = |of: &[u16]| at + u64::from(of.get(n).copied().unwrap_or(0));
            if let [hit, stays, _, native, asks] = known {
                (hit.back, stays.back) = (offset(&trampoline.after), offset(&trampoline.parts));
                native.back = offset(&trampoline.native);
                asks.back = offset(&trampoline.asked);
            }
        }
        SOME.store(true, SeqCst);
        let written =
            text::write_raw(at, &trampoline.code).and_then(|()| text::write_raw(start, &jump));
        if written.is_err() {
            stopped.tables_mut().caves.free(at, size);
            return Err(Code);
        }
        // Large programs have tens of thousands of patches: each keeps only what it needs.
        drop(mem::take(&mut trampoline.code));
        trampoline.shrink();
        group.shrink();
        stopped.tables_mut().edits.accesses.insert(Patch {
            in_place: AtomicBool::new(true),
            group,
            jump,
            plain_code,
            at,
            trampoline,
            len,
            known,
            idle_count,
            back_off: BackOff::default(),
            gone_at: AtomicU64::new(0),
            displaced_entries: AtomicU32::new(0),
            entered: AtomicU32::new(0),
            entries: AtomicU32::new(0),
            returns: AtomicU32::new(0),
        });
        PLACED.fetch_add(1, Relaxed);
        Ok(())
    }

    /// The trampoline of a patch that displaces this, and a place with room for it.
    fn trampoline(
        &mut self,
        stopped: &mut Stopped,
        group: &mut Group,
        maps: &Snapshot,
        target: impl Fn(u64) -> Target,
    ) -> Option<(u64, Trampoline)> {
        // Usually there is room for more than it takes, and it is made only once.
        let most = Trampoline::length(group) as u64 + 1;
        let caves = &mut stopped.tables_mut().caves;
        if let Some(at) = caves.find(group, most, false) {
            let trampoline = Trampoline::new(group, target(at))?;
            if takes(&trampoline) <= most {
                return Some((at, trampoline));
            }
        }
        // Its length does not depend on where it is.
        let size = takes(&Trampoline::new(group, target(group.start()))?);
        let caves = stopped.tables().caves.count();
        let mut find = |group: &Group| {
            let wanted = Wanted {
                from: group.start(),
                reach: group,
                size,
                cave: code_caves::LARGE,
                lasting: false,
            };
            code_caves::find(stopped, &wanted, maps)
        };
        let mut place = find(group);
        if place.is_none() {
            *group = group.clone().without_ret();
            place = find(group);
        }
        if stopped.tables().caves.count() != caves {
            self.maps = None;
        }
        let at = place?;
        Some((at, Trampoline::new(group, target(at))?))
    }

    // ---- the way back ----------------------------------------------------------------------------

    /// The patch that begins at `start`.
    fn remove(&mut self, stopped: &mut Stopped, start: u64) {
        let Some(p) = stopped.tables_mut().edits.accesses.remove(start) else {
            return;
        };
        if p.is_in_place() {
            let _ = text::write_raw(p.start(), p.original());
            REMOVED.fetch_add(1, Relaxed);
        }
        stopped.tables_mut().caves.free(p.at, p.len + 1);
        self.unlink(stopped, &p);
    }

    /// The patch of the instruction at `pc` has not paid off: restores the original code, for now or for good.
    pub fn cool(&mut self, stopped: &mut Stopped, pc: u64) {
        // Its jump may be before the access.
        let list = patches::list();
        let found = list.at(pc).or_else(|| list.checking(pc));
        let Some(p) = found.filter(|p| p.is_in_place()) else {
            return;
        };
        if p.hopeless() {
            let start = p.start();
            let refused = &mut stopped.tables_mut().patches.refused;
            refused.insert(start, Unpatched::JumpedInto);
            return self.remove(stopped, start);
        }
        let _ = text::write_raw(p.start(), p.original());
        p.has_gone();
    }

    fn put_back(&mut self, p: &Patch) -> Result<(), Unpatched> {
        if patches::taken(p.start(), p.end()) {
            return Err(Unpatched::Taken);
        }
        text::write_raw(p.start(), &p.jump).map_err(|_| Unpatched::Code)?;
        p.is_back(g().header(), By::Task);
        Ok(())
    }

    /// The code in `[start, end)` is about to be changed, or something planted there: restores the original code.
    pub fn restore(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        self.remove_meeting(stopped, start, end);
        let inside = stopped.tables().caves.edits_in(start, end);
        self.remove_each(stopped, inside);
    }

    fn remove_where(&mut self, stopped: &mut Stopped, goes: impl Fn(&Patch) -> bool) {
        let all = patches::list().iter().filter(|p| goes(p));
        let all = all.map(Patch::start).collect();
        self.remove_each(stopped, all);
    }

    fn remove_meeting(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        let all = patches::list().meeting(start, end).map(Patch::start);
        self.remove_each(stopped, all.collect());
    }

    fn remove_each(&mut self, stopped: &mut Stopped, starts: Vec<u64>) {
        for start in starts {
            self.remove(stopped, start);
        }
    }

    /// The mappings of `[start, end)` are about to change.
    pub fn forget(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        self.maps = None;
        self.hot.forget(start, end);
        self.clear_code(stopped, start, end);
        self.generated.forget(stopped, start, end);
        self.restore(stopped, start, end);
    }

    /// Generated code is about to be written.
    pub fn code_written(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        self.open_code(stopped, (start, end), Generated::written);
    }

    /// In generated code that a collector moves, patches are placed only where collections can be noticed.
    fn look_for_runtimes(&mut self, stopped: &mut Stopped) {
        for at in self.generated.look(stopped) {
            self.restore(stopped, at, at + 1);
            self.generated.collector.plant(stopped, at);
        }
    }

    /// A collector is about to read generated code, and to move it.
    pub fn collector_begins(&mut self, stopped: &mut Stopped, back: u64) {
        self.restore(stopped, back, back + 1);
        self.generated.collector.begins(stopped, back);
        self.open_code(stopped, (0, u64::MAX), Generated::read);
        let maps = self.maps();
        let generated = |at| match &maps {
            Ok(maps) => maps.at(at).is_none_or(generated::is_generated),
            Err(_) => true,
        };
        self.remove_where(stopped, |p| generated(p.start()));
    }

    pub fn collector_ends(&mut self, stopped: &mut Stopped, at: u64) {
        self.generated.collector.ends(stopped, at);
    }

    /// Watches are wanted among generated code.
    pub fn give_up_code(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        self.open_code(stopped, (start, end), Generated::give_up);
    }

    fn open_code(
        &mut self,
        stopped: &mut Stopped,
        (start, end): (u64, u64),
        opened: fn(&mut Generated, &mut Stopped, u64, u64),
    ) {
        let pages: Vec<_> = patches::table().closed(start, end).collect();
        for (page, _) in pages {
            let next = page + PAGE_SIZE;
            self.clear_code(stopped, page, next);
            opened(&mut self.generated, stopped, page, next);
        }
    }

    /// Forgets results about `[start, end)`, which will contain other code.
    fn clear_code(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        let codes = start..end.max(start);
        let refused = &mut stopped.tables_mut().patches.refused;
        let gone: Vec<u64> = refused.range(codes.clone()).map(|(at, _)| *at).collect();
        for at in gone {
            refused.remove(&at);
        }
        let gone: Vec<u64> = self.jumped_over.range(codes).copied().collect();
        for at in gone {
            self.jumped_over.remove(&at);
        }
        self.remove_meeting(stopped, start, end);
    }

    pub fn remove_all(&mut self, stopped: &mut Stopped) {
        self.remove_where(stopped, |_| true);
        // Closed pages are opened now, which is not a change by the program.
        self.maps = None;
        self.generated.forget(stopped, 0, u64::MAX);
        self.classes.declassify();
        code_caves::give_back_empty(stopped);
    }

    pub fn searched_for_gs(&mut self) -> &mut gs::Searched {
        &mut self.searched
    }

    /// Searches for instructions of the program that set gs. (`gs.rs`)
    pub fn search(&mut self) {
        if !self.searched.begun() {
            self.searched.look();
        }
    }

    /// Code has come that may set gs itself.
    pub fn code_has_come(&mut self, stopped: &mut Stopped) {
        if self.searched.begun() && ENABLED.load(SeqCst) {
            self.searched.look();
            self.generated.code_has_come();
            if GS_TAKEN.load(SeqCst) {
                self.disable(stopped);
            }
        }
    }

    /// Switches patches off, for good or until they are switched on again.
    pub fn disable(&mut self, stopped: &mut Stopped) {
        ENABLED.store(false, SeqCst);
        self.remove_all(stopped);
        // The bits of a checked heap say what is addressable, to faults too.
        if !entries::ON.load(SeqCst) {
            self.drop_tables(stopped);
        }
    }

    /// The program is left alone.
    pub fn leave(&mut self, stopped: &mut Stopped) {
        ENABLED.store(false, SeqCst);
        self.remove_all(stopped);
        self.drop_tables(stopped);
    }

    fn drop_tables(&mut self, stopped: &mut Stopped) {
        self.classes.clear();
        stopped.tables_mut().patches.distances.clear();
        patches::drop_tables(stopped);
    }

    /// For `monitor ulpf patch`.
    pub fn state(&self, out: &mut dyn Write) {
        let there = || patches::list().iter().filter(|p| p.is_in_place());
        let short = there().filter(|p| p.group.is_relocated());
        // Patches that have displaced code before the access.
        let preceded = there().filter(|p| !p.group.checks(p.start()));
        let answer = Patching::Counts(PatchCounts {
            enabled: ENABLED.load(Relaxed),
            after: AFTER.load(Relaxed),
            patches: there().count() as u64,
            relocated: short.count() as u64,
            preceded: preceded.count() as u64,
            placed: PLACED.load(Relaxed),
            removed: REMOVED.load(Relaxed),
            refused: self.refused,
            displaced_entries: patches::DISPLACED_ENTRIES.load(Relaxed),
            pages: self.classes.pages() as u64,
            caves: tables().caves.count() as u64,
        });
        let _ = writeln!(out, "{answer}");
    }
}

/// Number of bytes of a cave that a trampoline takes.
fn takes(trampoline: &Trampoline) -> u64 {
    trampoline.code.len() as u64 + 1
}

/// For `monitor ulpf patch sites`: the instructions with the most faults, and the state of each.
pub fn sites(most: usize, out: &mut dyn Write) {
    let mut all: Vec<_> = ulpf_stub_handlers::engine::sites().collect();
    all.sort_by_key(|s| core::cmp::Reverse(s.faults.load(Relaxed)));
    for site in all.into_iter().take(most) {
        let site = PatchSite {
            pc: site.insn.pc,
            faults: site.faults.load(Relaxed).into(),
            beside: site.beside.load(Relaxed).into(),
            why: patches::why_not(site.insn.pc).why().into(),
            bytes: site.insn.code().into(),
        };
        let _ = writeln!(out, "{site}");
    }
}
