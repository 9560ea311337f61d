//! The page map: what the fault handler must know of each page, readable at any instant.
//!
//! ```text
//! address   46            30 29            12 11         0
//!           |  root index   |  leaf index    |  offset   |
//!
//! root (1 MiB, 2^17 pointers) ─→ leaf (2 MiB, 2^18 entries), both mapped on demand by the kernel
//!
//! entry     63                              12 11 … 7 6      5 4 3 2     1     0
//!           | alias delta, a page multiple    |     |shared|x w r|all |write|moved|
//! ```
//!
//! `alias = address + delta` (wrapping). An entry of zero is a page that we have not moved.
//!
//! **Concurrency.** Any thread reads, without lock, allocation or panic. Only the owner of [`super::Guards`] writes,
//! while all program threads are parked.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use super::os;
use crate::addr::{AliasAddr, PAGE_SIZE, TargetAddr};
use crate::pages::Guard;
use crate::sys::Errno;
use crate::watch::AccessKind;
use linux_raw_sys::general as k;

const ROOT_BITS: u32 = 17;
const LEAF_BITS: u32 = 18;
const LEAF_SHIFT: u32 = 12 + LEAF_BITS;

/// Pages of user memory.
pub const PAGES: u64 = 1 << (ROOT_BITS + LEAF_BITS);

type Leaf = [AtomicU64; 1 << LEAF_BITS];
type Root = [AtomicPtr<Leaf>; 1 << ROOT_BITS];

/// Alias windows extend this far beyond their last page, so that an access across a window's end is contiguous too (the
/// widest: XSAVE with AMX state, 11 KiB).
pub(super) const WINDOW_OVERLAP: u64 = 4 * PAGE_SIZE;

/// Protection bits as in [`PageEntry`] (shifted by [`PROT_SHIFT`]) and as mmap(2) numbers them.
pub const PROT_READ: u8 = k::PROT_READ as u8;
/// PROT_WRITE of mmap(2).
pub const PROT_WRITE: u8 = k::PROT_WRITE as u8;
/// PROT_EXEC of mmap(2).
pub const PROT_EXEC: u8 = k::PROT_EXEC as u8;

const MOVED: u64 = 1;
const GUARD_WRITE: u64 = 2;
const GUARD_ALL: u64 = 4;
const PROT_SHIFT: u32 = 3;
const SHARED: u64 = 64;

/// One page, as the fault handler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(transparent)]
pub struct PageEntry(u64);

impl PageEntry {
    /// A page that we have not moved.
    pub const NONE: PageEntry = PageEntry(0);

    pub(super) fn new(delta: u64, guard: Option<Guard>, prot: u8, shared: bool) -> PageEntry {
        let guard = match guard {
            None => 0,
            Some(Guard::NoWrite) => GUARD_WRITE,
            Some(Guard::NoAccess) => GUARD_ALL,
        };
        let shared = if shared { SHARED } else { 0 };
        PageEntry(
            delta & !(PAGE_SIZE - 1) | MOVED | guard | ((prot & 7) as u64) << PROT_SHIFT | shared,
        )
    }
    /// The page has an alias.
    pub const fn moved(self) -> bool {
        self.0 & MOVED != 0
    }
    /// The accesses that the page's guard forbids, or `None` without a guard.
    pub const fn guard(self) -> Option<Guard> {
        if self.0 & GUARD_ALL != 0 {
            Some(Guard::NoAccess)
        } else if self.0 & GUARD_WRITE != 0 {
            Some(Guard::NoWrite)
        } else {
            None
        }
    }
    /// Whether our guard forbids this access. For the program's own protection see `permits`.
    pub const fn guards(self, access: AccessKind) -> bool {
        self.0 & GUARD_ALL != 0 || self.0 & GUARD_WRITE != 0 && access.writes()
    }
    /// Whether the access would succeed without us, by the protection that the program has given the page.
    pub const fn permits(self, access: AccessKind) -> bool {
        let prot = self.prot();
        // x86 has no write-only pages: PROT_WRITE makes a page readable (as does PROT_EXEC).
        (!access.writes() || prot & PROT_WRITE != 0) && prot != 0
    }
    /// `PROT_*` bits that the program believes the page to have.
    pub const fn prot(self) -> u8 {
        (self.0 >> PROT_SHIFT) as u8 & 7
    }
    /// A shared mapping of the program's own (as opposed to private memory that was moved).
    pub const fn shared(self) -> bool {
        self.0 & SHARED != 0
    }
    /// Where `addr`, an address of this page, lies in the alias.
    pub const fn alias(self, addr: TargetAddr) -> Option<AliasAddr> {
        if self.moved() {
            Some(AliasAddr(addr.0.wrapping_add(self.delta())))
        } else {
            None
        }
    }
    const fn delta(self) -> u64 {
        self.0 & !(PAGE_SIZE - 1)
    }
}

/// Cause of a page fault in the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A page that we have not moved: the program's own fault.
    Foreign,
    /// A moved page, but the program may not make this access: its own fault.
    Forbidden,
    /// Our guard: the access is to be made through the alias.
    Guarded,
    /// The guard was lifted between the fault and now: the instruction just runs again.
    Stale,
}

/// See the head of the module. Meant to be a `static`.
#[repr(C)]
pub struct PageMap {
    root: AtomicPtr<Root>,
    /// A byte for each page of user memory, for code that is too hot for the tree, or null. See
    /// [`PageMap::set_class`].
    classes: AtomicPtr<AtomicU8>,
    /// Two bytes for each page with a class, far apart. See [`PageMap::set_whole`].
    whole: AtomicPtr<AtomicU8>,
}

impl PageMap {
    /// A map without any page; takes no memory.
    pub const fn new() -> PageMap {
        PageMap {
            root: AtomicPtr::new(core::ptr::null_mut()),
            classes: AtomicPtr::new(core::ptr::null_mut()),
            whole: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The page that holds `addr`.
    #[inline]
    pub fn entry(&self, addr: TargetAddr) -> PageEntry {
        match self.slot(addr) {
            Some(slot) => PageEntry(slot.load(Ordering::Acquire)),
            None => PageEntry::NONE,
        }
    }

    /// Cause of a fault. (For an access that spans pages, pass the faulting address.)
    pub fn fault(&self, addr: TargetAddr, access: AccessKind) -> Fault {
        let entry = self.entry(addr);
        if !entry.moved() {
            Fault::Foreign
        } else if !entry.permits(access) {
            Fault::Forbidden
        } else if entry.guards(access) {
            Fault::Guarded
        } else {
            Fault::Stale
        }
    }

    /// The alias of `[addr, addr + len)`, contiguous, if every page of it has one and the program's
    /// own protection permits the access. `None` for an access that the program may not make, one
    /// that leaves our pages, and one whose pages lie apart in the alias: those take the slow path.
    #[inline]
    pub fn open(&self, addr: TargetAddr, len: u64, write: bool) -> Option<AliasAddr> {
        let access = if write {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        let last = addr.0.checked_add(len.checked_sub(1)?)?;
        let first = self.entry(addr);
        if !first.moved() || !first.permits(access) {
            return None;
        }
        let mut page = addr.page().0;
        let mut apart = None;
        while page != last & !(PAGE_SIZE - 1) {
            page = page.wrapping_add(PAGE_SIZE);
            let entry = self.entry(TargetAddr(page));
            if !entry.moved() || !entry.permits(access) || entry.shared() != first.shared() {
                return None;
            }
            if entry.delta() != first.delta() && apart.is_none() {
                // The next window begins here; the first one overlaps it a little.
                apart = Some(page);
            }
        }
        match apart {
            Some(_) if first.shared() => None,
            Some(page) if last.wrapping_sub(page) >= WINDOW_OVERLAP => None,
            _ => first.alias(addr),
        }
    }

    fn slot(&self, addr: TargetAddr) -> Option<&AtomicU64> {
        let root = self.root.load(Ordering::Acquire);
        if root.is_null() {
            return None;
        }
        // SAFETY: a non-null root points to a mapping of `Root`'s size that is never unmapped, and
        // zeroed memory is a valid `Root`.
        let root: &Root = unsafe { &*root };
        let leaf = root
            .get((addr.0 >> LEAF_SHIFT) as usize)?
            .load(Ordering::Acquire);
        if leaf.is_null() {
            return None;
        }
        // SAFETY: as above, for `Leaf`.
        let leaf: &Leaf = unsafe { &*leaf };
        leaf.get((addr.0 >> 12) as usize & ((1 << LEAF_BITS) - 1))
    }

    /// Makes the map empty without a look at its tables, which are about to be unmapped. No page may be moved.
    pub fn forget(&self) {
        self.root.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// Maps what is needed for entries of `[start, end)`. Returns the new tables' address and size.
    pub(super) fn prepare(
        &self,
        start: u64,
        end: u64,
        tables: &mut alloc::vec::Vec<(u64, u64)>,
    ) -> Result<(), Errno> {
        let mut root = self.root.load(Ordering::Acquire);
        if root.is_null() {
            let at = os::map_tables(size_of::<Root>() as u64)?;
            tables.push((at, size_of::<Root>() as u64));
            root = at as *mut Root;
            self.root.store(root, Ordering::Release);
        }
        // SAFETY: see `slot`.
        let root: &Root = unsafe { &*root };
        for slot in root
            .iter()
            .take((end.saturating_sub(1) >> LEAF_SHIFT) as usize + 1)
            .skip((start >> LEAF_SHIFT) as usize)
        {
            if slot.load(Ordering::Acquire).is_null() {
                let at = os::map_tables(size_of::<Leaf>() as u64)?;
                tables.push((at, size_of::<Leaf>() as u64));
                slot.store(at as *mut Leaf, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Installs a class table of [`PAGES`] zeroed bytes, and a table of twice that size; null removes them.
    ///
    /// # Safety
    /// They stay mapped until they are replaced by others or null.
    pub unsafe fn use_classes(&self, table: *mut u8, whole: *mut u8) {
        self.whole.store(whole.cast(), Ordering::Release);
        self.classes.store(table.cast(), Ordering::Release);
    }

    /// Gives the page that holds `addr` a class, whose meaning is the caller's. It falls back to 0
    /// with every change of the page, or of the one before it.
    pub fn set_class(&self, addr: TargetAddr, class: u8) {
        match self.class_of(addr.0 >> 12) {
            Some(_) if class == 0 => self.declassify_page(addr.0 >> 12),
            Some(c) => c.store(class, Ordering::Release),
            None => {}
        }
    }

    /// The class of a page as trampolines of patches read it (`engine/src/patch`). Accesses to a page of class 0
    /// (unknown) fault.
    pub fn class(&self, addr: TargetAddr) -> u8 {
        self.class_of(addr.0 >> 12)
            .map_or(0, |c| c.load(Ordering::Acquire))
    }

    /// Sets the classes of all loads and all stores that begin on the page that holds `addr`, if this page and the next
    /// one have a class. Both fall back to 0 when either page's class changes.
    pub fn set_whole(&self, addr: TargetAddr, loads: u8, stores: u8) {
        let page = addr.0 >> 12;
        for (at, value) in [(page, loads), (page + PAGES, stores)] {
            if let Some(slot) = self.whole_at(at) {
                slot.store(value, Ordering::Release);
            }
        }
    }

    fn class_of(&self, page: u64) -> Option<&AtomicU8> {
        let table = self.classes.load(Ordering::Acquire);
        // SAFETY: within the table, by the promise made to `use_classes`.
        (!table.is_null() && page < PAGES).then(|| unsafe { &*table.add(page as usize) })
    }

    fn whole_at(&self, at: u64) -> Option<&AtomicU8> {
        let table = self.whole.load(Ordering::Acquire);
        // SAFETY: as above.
        (!table.is_null() && at < 2 * PAGES).then(|| unsafe { &*table.add(at as usize) })
    }

    fn declassify_page(&self, page: u64) {
        let Some(class) = self.class_of(page) else {
            return;
        };
        if class.load(Ordering::Relaxed) == 0 {
            return;
        }
        for page in [page.wrapping_sub(1), page] {
            self.set_whole(TargetAddr(page << 12), 0, 0);
        }
        class.store(0, Ordering::Release);
    }

    fn declassify(&self, start: u64, end: u64) {
        if self.classes.load(Ordering::Relaxed).is_null() {
            return;
        }
        for page in start >> 12..=end >> 12 {
            self.declassify_page(page);
        }
    }

    /// Writes the entries of `[start, end)`, for which [`PageMap::prepare`] has been called.
    pub(super) fn set(&self, start: u64, end: u64, entry: PageEntry) {
        self.declassify(start, end);
        for page in (start..end).step_by(PAGE_SIZE as usize) {
            if let Some(slot) = self.slot(TargetAddr(page)) {
                slot.store(entry.0, Ordering::Release);
            }
        }
    }
}

/// The alias of `addr` in another process, whose [`PageMap`] is at `map`; `word` reads its memory. `None`: it has none, or
/// its memory cannot be read.
pub fn alias_in(map: u64, addr: u64, word: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let of = |table: u64, index: u64| match table {
        0 => None,
        _ => word(table.wrapping_add(index * 8)),
    };
    let root = word(map)?;
    let leaf = of(root, addr >> LEAF_SHIFT & ((1 << ROOT_BITS) - 1))?;
    let entry = of(leaf, addr >> 12 & ((1 << LEAF_BITS) - 1))?;
    PageEntry(entry)
        .alias(TargetAddr(addr))
        .map(|alias| alias.0)
}

impl Default for PageMap {
    fn default() -> PageMap {
        PageMap::new()
    }
}
