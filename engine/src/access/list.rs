//! The accesses of one instruction: which bytes it reads and writes with the registers of the moment.

use ulpf_lib::{AccessKind, PAGE_SIZE, PageMap, TargetAddr, Watchlist};

/// One access: `len` bytes at `addr`, which may wrap neither in practice nor here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// First byte.
    pub addr: TargetAddr,
    /// In bytes.
    pub len: u64,
    /// Read, write, or both.
    pub kind: AccessKind,
}

/// Accesses in the order in which the instruction does them.
#[derive(Clone, Copy)]
pub struct AccessList {
    items: [Access; Self::CAPACITY],
    len: usize,
    overflow: bool,
}

impl AccessList {
    /// 64 byte lanes with every other one enabled make 32 runs, the most there is, beside 16
    /// gathered elements and the parts of an xsave area.
    pub const CAPACITY: usize = 64;

    /// An empty list.
    pub const fn new() -> AccessList {
        let none = Access {
            addr: TargetAddr(0),
            len: 0,
            kind: AccessKind::Read,
        };
        AccessList {
            items: [none; Self::CAPACITY],
            len: 0,
            overflow: false,
        }
    }
    /// Takes all out.
    pub fn clear(&mut self) {
        self.len = 0;
        self.overflow = false;
    }
    /// Puts one at the end; if there is no room, [`AccessList::overflowed`] says so.
    #[inline]
    pub fn push(&mut self, addr: u64, len: u64, kind: AccessKind) {
        match self.items.get_mut(self.len) {
            Some(slot) => {
                *slot = Access {
                    addr: TargetAddr(addr),
                    len,
                    kind,
                };
                self.len += 1;
            }
            None => self.overflow = true,
        }
    }
    /// Adds an element, growing the last access when it continues it.
    #[inline]
    pub(super) fn join(&mut self, addr: u64, len: u64, kind: AccessKind) {
        if let Some(last) = self.len.checked_sub(1).and_then(|i| self.items.get_mut(i))
            && last.kind == kind
            && last.addr.0.wrapping_add(last.len) == addr
        {
            last.len += len;
            return;
        }
        self.push(addr, len, kind);
    }
    /// The first byte, at the beginning or at the end of an access, that a guard forbids: nothing of what the
    /// instruction does has been made there. `None`: no guard is in its way.
    pub fn first_guarded(&self, pages: &PageMap) -> Option<TargetAddr> {
        let ends = self
            .iter()
            .flat_map(|a| [(a.addr.0, a.kind), (a.addr.0 + a.len - 1, a.kind)]);
        ends.map(|(at, kind)| (TargetAddr(at), kind))
            .find(|(at, kind)| pages.entry(*at).guards(*kind))
            .map(|(at, _)| at)
    }
    /// Accesses for an instruction whose accesses are unknown: the watched bytes of the page where it faulted, as if
    /// it wrote to them. Comparing old and new values then shows which it has changed.
    pub fn watched_on(page: TargetAddr, list: &Watchlist) -> AccessList {
        let page = page.page();
        let mut all = AccessList::new();
        list.for_each_overlap(page, PAGE_SIZE, &mut |_, range, _| {
            let from = range.start.0.max(page.0);
            let to = range.end().0.min(page.0 + PAGE_SIZE);
            all.push(from, to - from, AccessKind::Write);
        });
        all
    }
    /// More accesses than fit (cannot happen for instructions known today).
    #[inline]
    pub fn overflowed(&self) -> bool {
        self.overflow
    }
}

impl core::ops::Deref for AccessList {
    type Target = [Access];
    #[inline]
    fn deref(&self) -> &[Access] {
        self.items.get(..self.len).unwrap_or(&[])
    }
}

impl Default for AccessList {
    fn default() -> Self {
        Self::new()
    }
}
