//! The watched memory: the thesis's ranges and Sentry's watchpoints, and the guards that follow from both.
//!
//! ```text
//!  set_permissions ─▶ ranges ─────────┐
//!  insert          ─▶ slots ──────────┴▶ Watchlist (bytes, for handlers) ─▶ PLI (pages) ─▶ Guards
//! ```
//! Everything here is the changer's (`change.rs`), as [`MODEL`]'s type says.

use core::sync::atomic::Ordering::*;
use std::collections::{BTreeMap, VecDeque};

use ulpf_lib::addr::USER_END;
use ulpf_lib::device::HANDLER_SIGSTACK;
use ulpf_lib::guard::{DeviceUse, Guards, Machine, OuterGuards, maps};
use ulpf_lib::{PAGE_SIZE, TargetAddr, WatchId, WatchKind, WatchRange};

use crate::backend::{self, Backend};
use crate::error::Failure;
use crate::hits::{ONE_SHOT, RANGE};
use crate::keys;
use crate::pli::{Permission, Plis, modify_pli};
use crate::registers::{self, Events};
use crate::shared::{Changed, FREE, LIVE, ListRight, S, SLOTS};
use crate::stub_link;
use crate::thread;

pub struct Model {
    watched: ListRight,
    events: Events,
    guards: Option<Guards>,
    plis: Plis,
    /// Disjoint ranges of `set_permissions`, by their starts: end, permission, watch.
    ranges: BTreeMap<u64, (u64, Permission, u32)>,
    /// Numbers to be reused, the one unused longest first.
    spare: VecDeque<u32>,
    next: u32,
    /// The program's mappings have been read in this change.
    looked: bool,
}

pub static MODEL: Changed<Model> = Changed::new(Model {
    // SAFETY: the only one.
    watched: unsafe { ListRight::new() },
    events: Events::none(),
    guards: None,
    plis: Plis::new(),
    ranges: BTreeMap::new(),
    spare: VecDeque::new(),
    next: 1,
    looked: false,
});

/// A watch to be set.
#[derive(Clone, Copy)]
pub struct Request {
    pub start: u64,
    pub len: u64,
    pub kind: WatchKind,
    pub flags: u32,
    pub thread: i32,
    pub handler: usize,
    pub data: usize,
}

/// The errno for a refusal.
fn errno_of(start: u64, len: u64) -> i32 {
    if start.checked_add(len).is_some_and(|end| end <= USER_END) && is_mapped(start, len) {
        libc::EOPNOTSUPP
    } else {
        libc::EFAULT
    }
}

fn is_mapped(start: u64, len: u64) -> bool {
    let Ok(snapshot) = maps::Snapshot::read() else {
        return false;
    };
    let mut at = start;
    while let Some(vma) = snapshot.at(at).filter(|_| at < start + len) {
        at = vma.end;
    }
    at >= start + len
}

impl Model {
    /// Begins a change: the known mappings may be outdated.
    pub fn begin(&mut self) {
        self.looked = false;
    }

    /// Opens the pages of a range for one step, or guards them again.
    pub fn open(&self, addr: u64, len: u64, open: bool) {
        if let Some(guards) = &self.guards {
            guards.open(TargetAddr(addr), len, open);
        }
    }

    fn guards(&mut self) -> Result<&mut Guards, Failure> {
        if self.guards.is_none() {
            let mut guards = Guards::lazy(&S.table.pages);
            match backend::chosen() {
                Some(Backend::Keys) => keys::numbers().map_or((), |k| guards.use_keys(k)),
                // SAFETY: the entry obeys the rules.
                Some(Backend::Device) => unsafe { guards.use_device(device_use()) },
                _ => {}
            }
            guards
                .begin()
                .map_err(|r| Failure::refused(libc::ENOMEM, &r))?;
            guards.live();
            guards.within(OuterGuards {
                present: stub_link::present,
                put_right: stub_link::put_right,
            });
            let shared = &raw const S as u64;
            guards.exclude(TargetAddr(shared), size_of_val(&S) as u64);
            exclude_ourselves(&mut guards);
            self.guards = Some(guards);
        }
        let guards = self
            .guards
            .as_mut()
            .ok_or_else(|| Failure::new(libc::ENOMEM, ""))?;
        if self.looked {
            return Ok(guards);
        }
        match guards.reconcile() {
            Ok(true) => {
                self.looked = true;
                Ok(guards)
            }
            Ok(false) => Err(Failure::new(
                libc::EBADF,
                "somebody has closed the library's memory file; leave descriptors alone that the program has not opened",
            )),
            Err(r) => Err(Failure::refused(libc::EIO, &r)),
        }
    }

    fn number(&mut self) -> Result<u32, Failure> {
        // A number is not reused for a while, so that use of a stale one is detected.
        if self.spare.len() > 1024 || self.next as usize >= SLOTS {
            if let Some(id) = self.spare.pop_front() {
                return Ok(id);
            }
            return Err(Failure::new(
                libc::ENOSPC,
                "a million watches are all there can be; delete some",
            ));
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    fn check(&mut self, range: WatchRange, kind: WatchKind) -> Result<(), Failure> {
        let guards = self.guards()?;
        guards
            .check(range, kind)
            .map_err(|r| Failure::refused(errno_of(range.start.0, range.len), &r))
    }

    /// Adds a watch to the list (not yet to the pages).
    fn add(&mut self, w: &Request) -> Result<u32, Failure> {
        let id = self.number()?;
        let range = range_of(w.start, w.len)?;
        let list = self.watched.list_mut();
        let taken = list.insert(WatchId(id), range, w.kind);
        let (Some(slot), true) = (S.slot(id), taken) else {
            self.spare.push_back(id);
            return Err(Failure::new(
                libc::EFAULT,
                "the range is not in user memory",
            ));
        };
        slot.flags.store(w.flags, Relaxed);
        slot.thread.store(w.thread, Relaxed);
        slot.handler.store(w.handler, Relaxed);
        slot.data.store(w.data, Relaxed);
        for counter in [&slot.hits, &slot.silent, &slot.time] {
            counter.store(0, Relaxed);
        }
        slot.state.store(LIVE, Release);
        Ok(id)
    }

    fn drop_watch(&mut self, id: u32) -> Option<WatchRange> {
        let (range, _) = self.watched.list_mut().remove(WatchId(id))?;
        if let Some(slot) = S.slot(id) {
            slot.state.store(FREE, Release);
        }
        registers::disarm(&mut self.events, id);
        self.spare.push_back(id);
        Some(range)
    }

    /// Writes the permissions of the pages of a range into the PLIs, from the watches on them.
    fn repaginate(&mut self, start: u64, len: u64) -> Result<(), Failure> {
        let mut page = start & !(PAGE_SIZE - 1);
        while page < start + len {
            let mut permission = Permission::ReadWrite;
            self.watched
                .list()
                .for_each_overlap(TargetAddr(page), PAGE_SIZE, &mut |_, _, kind| {
                    permission = permission.and(match kind {
                        WatchKind::Write => Permission::ReadOnly,
                        WatchKind::Read => Permission::WriteOnly,
                        WatchKind::Access => Permission::Execute,
                    });
                });
            let region = match self.plis.check_virt_prefix(page) {
                None if permission == Permission::ReadWrite => {
                    page += PAGE_SIZE;
                    continue;
                }
                Some(region) => region,
                None => self.plis.region(page).ok_or_else(no_pli)?,
            };
            // SAFETY: a region of ours.
            unsafe { modify_pli(page, permission, region) };
            page += PAGE_SIZE;
        }
        Ok(())
    }

    /// As [`Model::repaginate`], each page once: many watches may lie on one.
    fn repaginate_all(&mut self, requests: &[Request]) -> Result<(), Failure> {
        let page = |at: u64| at & !(PAGE_SIZE - 1);
        let mut runs: Vec<(u64, u64)> = requests
            .iter()
            .map(|w| (page(w.start), page(w.start + w.len - 1) + PAGE_SIZE))
            .collect();
        runs.sort_unstable();
        let mut done = 0;
        for (start, end) in runs {
            let start = start.max(done);
            if start < end {
                self.repaginate(start, end - start)?;
                done = end;
            }
        }
        Ok(())
    }

    /// Makes the guards those of the PLIs.
    fn apply(&mut self, start: u64, len: u64) -> Result<(), Failure> {
        let wanted = self.plis.wanted();
        let guards = self.guards()?;
        guards.resumed();
        thread::go_without_rseq(start, start + len);
        let unarmed = guards.apply(wanted);
        if let Some(first) = unarmed.first() {
            return Err(Failure::refused(libc::ENOMEM, &first.refusal));
        }
        if guards.wants(TargetAddr(start), len) {
            return Err(Failure::new(
                libc::EACCES,
                "the memory's own protection forbids the accesses to watch for; make it readable and writable first",
            ));
        }
        Ok(())
    }

    /// Adds watches, all or none.
    pub fn insert(&mut self, requests: &[Request]) -> Result<Vec<u32>, Failure> {
        let mut ids = Vec::new();
        if backend::is(Backend::Registers) {
            let result = self.insert_in_registers(requests, &mut ids);
            return match result {
                Ok(()) => Ok(ids),
                Err(failure) => {
                    for id in &ids {
                        self.drop_watch(*id);
                    }
                    Err(failure)
                }
            };
        }
        let result = self.try_insert(requests, &mut ids);
        if let Err(failure) = result {
            for id in &ids {
                self.drop_watch(*id);
            }
            let set = requests.get(..ids.len()).unwrap_or(&[]);
            let _ = self.repaginate_all(set);
            let _ = self.apply(0, 0);
            return Err(failure);
        }
        Ok(ids)
    }

    fn insert_in_registers(
        &mut self,
        requests: &[Request],
        ids: &mut Vec<u32>,
    ) -> Result<(), Failure> {
        for w in requests {
            let range = range_of(w.start, w.len)?;
            if !is_mapped(w.start, w.len) {
                return Err(Failure::new(libc::EFAULT, "the range is not mapped"));
            }
            let id = self.add(w)?;
            ids.push(id);
            registers::arm(&mut self.events, id, range, w.kind)?;
        }
        Ok(())
    }

    fn try_insert(&mut self, requests: &[Request], ids: &mut Vec<u32>) -> Result<(), Failure> {
        for w in requests {
            self.check(range_of(w.start, w.len)?, w.kind)?;
            ids.push(self.add(w)?);
        }
        self.repaginate_all(requests)?;
        let start = requests.iter().map(|w| w.start).min().unwrap_or(0);
        let end = requests.iter().map(|w| w.start + w.len).max().unwrap_or(0);
        self.apply(start, end - start)
    }

    pub fn delete(&mut self, id: u32) -> Result<(), Failure> {
        let range = S
            .slot(id)
            .filter(|s| s.state.load(Relaxed) != FREE && s.flags.load(Relaxed) & RANGE == 0)
            .and_then(|_| self.drop_watch(id))
            .ok_or_else(|| Failure::new(libc::ENOENT, "there is no watchpoint of this number"))?;
        if backend::is(Backend::Registers) {
            return Ok(());
        }
        self.repaginate(range.start.0, range.len)?;
        self.apply(0, 0)
    }

    /// `set_permissions`: replaces earlier permissions of these bytes; neighbours of the same permission become one
    /// range.
    pub fn set_permissions(
        &mut self,
        start: u64,
        len: u64,
        permission: Permission,
    ) -> Result<(), Failure> {
        let range = range_of(start, len)?;
        let end = range.end().0;
        if let Some(kind) = kind_of(permission) {
            self.check(range, kind)?;
        }
        let before = self.take_touching(start, end);
        let (mut from, mut to) = (start, end);
        let mut keep: Vec<(u64, u64, Permission)> = Vec::new();
        for &(s, (e, p, id)) in &before {
            self.drop_watch(id);
            if p == permission {
                (from, to) = (from.min(s), to.max(e));
                continue;
            }
            if s < start {
                keep.push((s, e.min(start), p));
            }
            if e > end {
                keep.push((s.max(end), e, p));
            }
        }
        if permission != Permission::ReadWrite {
            keep.push((from, to, permission));
        }
        let result = self
            .put(&keep)
            .and_then(|()| self.settle(&before, start, len));
        if result.is_err() {
            // As it was.
            for (s, ..) in keep {
                if let Some((.., id)) = self.ranges.remove(&s) {
                    self.drop_watch(id);
                }
            }
            let old: Vec<_> = before.iter().map(|&(s, (e, p, _))| (s, e, p)).collect();
            let _ = self.put(&old);
            let _ = self.settle(&before, start, len);
        }
        result
    }

    /// Takes out every range that touches `[start, end]`, also one that ends or begins there.
    fn take_touching(&mut self, start: u64, end: u64) -> Vec<(u64, (u64, Permission, u32))> {
        let before = self.ranges.range(..start).next_back();
        let first = match before {
            Some((&s, &(e, ..))) if e >= start => s,
            _ => start,
        };
        let within = self.ranges.range(first..=end).map(|(&s, _)| s);
        let within: Vec<u64> = within.collect();
        let taken = within.iter().filter_map(|s| self.ranges.remove_entry(s));
        taken.collect()
    }

    fn settle(
        &mut self,
        before: &[(u64, (u64, Permission, u32))],
        start: u64,
        len: u64,
    ) -> Result<(), Failure> {
        for &(s, (e, ..)) in before {
            self.repaginate(s, e - s)?;
        }
        self.repaginate(start, len)?;
        self.apply(start, len)
    }

    fn put(&mut self, ranges: &[(u64, u64, Permission)]) -> Result<(), Failure> {
        for &(s, e, p) in ranges {
            let Some(kind) = kind_of(p) else { continue };
            let request = Request {
                start: s,
                len: e - s,
                kind,
                flags: RANGE,
                thread: 0,
                handler: 0,
                data: 0,
            };
            let id = self.add(&request)?;
            self.ranges.insert(s, (e, p, id));
        }
        Ok(())
    }

    pub fn check_virt_prefix(&self, addr: u64) -> u64 {
        self.plis.check_virt_prefix(addr).map_or(0, |r| r as u64)
    }

    /// `modify_pli`, with the guard that follows from it.
    pub fn modify_pli(
        &mut self,
        addr: u64,
        permission: Permission,
        region: u64,
    ) -> Result<(), Failure> {
        if self.plis.knows(region) != Some(addr >> 21) {
            return Err(Failure::new(
                libc::EINVAL,
                "this is not the PLI region of the address; take it from check_virt_prefix",
            ));
        }
        let before = self.plis.get(addr);
        // SAFETY: a region, as just found.
        unsafe { modify_pli(addr, permission, region as *mut _) };
        let page = addr & !(PAGE_SIZE - 1);
        let result = self.apply(page, PAGE_SIZE);
        if result.is_err() {
            // SAFETY: as above.
            unsafe { modify_pli(addr, before, region as *mut _) };
            let _ = self.apply(0, 0);
        }
        result
    }

    /// Number of the kernel's accesses that the device has seen.
    pub fn kernel_accesses(&self) -> u64 {
        match self.guards.as_ref().map(Guards::machine) {
            Some(Machine::Device(device)) => device
                .counts()
                .map_or(0, |c| c.kernel_reads + c.kernel_writes),
            _ => 0,
        }
    }

    /// Ends all watches and gives all memory back.
    pub fn clear(&mut self) -> Result<(), Failure> {
        let ids: Vec<u32> = self.watched.list().iter().map(|(id, ..)| id.0).collect();
        for id in ids {
            self.drop_watch(id);
        }
        self.ranges.clear();
        self.plis.clear();
        if self.guards.is_some() {
            self.guards()?
                .release_all()
                .map_err(|r| Failure::refused(libc::ENOMEM, &r))?;
        }
        Ok(())
    }

    // ---- fork ----------------------------------------------------------------------------------

    pub fn before_fork(&mut self) {
        if let Some(guards) = &mut self.guards {
            let _ = guards.reconcile();
            guards.freeze(true);
            guards.prepare_fork();
        }
    }
    pub fn after_fork(&mut self) {
        if let Some(guards) = &self.guards {
            guards.freeze(false);
        }
    }
    /// The child has no watches; watches that it sets need guards of its own.
    pub fn in_child(&mut self) -> bool {
        let mut guards = self.guards.take();
        let done = guards
            .as_mut()
            .is_none_or(|g| g.privatize_in_child().is_ok());
        let ids: Vec<u32> = self.watched.list().iter().map(|(id, ..)| id.0).collect();
        for id in ids {
            self.drop_watch(id);
        }
        self.ranges.clear();
        self.plis.clear();
        done // the parent's file goes with `guards`
    }
}

fn device_use() -> DeviceUse {
    let entry = S.upcall.load(Acquire);
    DeviceUse {
        required: true,
        features: backend::FEATURES,
        entry,
        handler_flags: if entry == 0 { 0 } else { HANDLER_SIGSTACK },
        policy: 0,
    }
}

fn no_pli() -> Failure {
    Failure::new(libc::ENOMEM, "no memory for page level indicators")
}

pub fn range_of(start: u64, len: u64) -> Result<WatchRange, Failure> {
    if len == 0 {
        return Err(Failure::new(
            libc::EINVAL,
            "a range of no bytes cannot be watched",
        ));
    }
    WatchRange::new(TargetAddr(start), len)
        .filter(|r| r.end().0 <= USER_END)
        .ok_or_else(|| Failure::new(libc::EFAULT, "the range is not in user memory"))
}

fn kind_of(permission: Permission) -> Option<WatchKind> {
    match permission {
        Permission::ReadWrite => None,
        Permission::ReadOnly => Some(WatchKind::Write),
        Permission::Execute => Some(WatchKind::Access),
        Permission::WriteOnly => Some(WatchKind::Read),
    }
}

/// In a shared library: excludes all data of ours. (In a static program it lies among the program's.)
fn exclude_ourselves(guards: &mut Guards) {
    struct Search<'a> {
        guards: &'a mut Guards,
        number: u32,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut core::ffi::c_void,
    ) -> i32 {
        // SAFETY: both pointers are valid arguments of a `dl_iterate_phdr` callback.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        // SAFETY: the loader's own table.
        let headers =
            unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        let loads = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let here = exclude_ourselves as *const () as u64;
        let start = |h: &libc::Elf64_Phdr| info.dlpi_addr + h.p_vaddr;
        let ours = loads().any(|h| (start(h)..start(h) + h.p_memsz).contains(&here));
        // The first object is the program.
        if ours && search.number > 0 {
            loads().for_each(|h| search.guards.exclude(TargetAddr(start(h)), h.p_memsz));
        }
        search.number += 1;
        ours as i32
    }
    let mut search = Search { guards, number: 0 };
    // SAFETY: the callback gets what it expects, while `search` lives.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
}

/// Flags that a caller may give.
pub const FLAGS: u32 = 31;
const _: () = assert!(FLAGS & ONE_SHOT != 0 && FLAGS & RANGE == 0);
