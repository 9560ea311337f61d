// SPDX-License-Identifier: GPL-2.0-or-later
//! The second model: Sentry's M-cache (Shriraman and Dwarkadas, ISCA 2010). Access control for each cache
//! line, checked on L1 misses only; the coherence states of the L1 say what its hits may do.
//!
//! ```text
//!   load, store ─▶ l1.rs: enough? ─ yes ─▶ done (unless the page is V and the line not yet C: a check)
//!                        └─ no ─▶ page F? ─▶ mcache.rs: entry of (page, %Thread_Domain)
//!                                               ├─ none ─▶ exception: the owner's handler fills it, or domain 1's
//!                                               ├─ forbids ─▶ exception
//!                                               └─ permits ─▶ the line, in a state that permits no more
//! ```
//! Section numbers in this folder are the paper's. It is a model of accesses, not of instructions: its callers
//! (`protection.rs`, tests) name processor, address and domain.

mod l1;
mod lines;
mod mcache;

use l1::{L1, State};
use mcache::{Entry, MCache};
use std::collections::{HashMap, HashSet};

pub use lines::{LINE, LINES, PAGE, Permission};

/// Domain 0 is the operating system's, domain 1 the process's supervisor (section 3.1).
pub const SUPERVISOR: u32 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Load,
    Store,
}

impl Permission {
    pub fn permits(self, kind: Kind) -> bool {
        match self {
            Permission::ReadWrite => true,
            Permission::ReadOnly => kind == Kind::Load,
            Permission::None | Permission::Execute => false,
        }
    }
}

/// Exceptions that trap into a user-level handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exception {
    /// No entry: the handler of the page's owner is to fill one, domain 1's for all others.
    Miss {
        handler: u32,
    },
    Forbidden(Permission),
    /// A jump into code of another domain (section 3.3): domain 1 decides.
    CrossDomain {
        owner: u32,
    },
}

/// A page's attributes in the page table, and so in the TLB.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// F: accesses to it are checked at all.
    pub fine: bool,
    /// V: threads differ in their rights, so the first hit of a context is checked, too.
    pub verify: bool,
    pub owner: u32,
}

impl Default for Page {
    fn default() -> Page {
        Page {
            fine: false,
            verify: false,
            owner: SUPERVISOR,
        }
    }
}

/// Section 4: 1 GHz, L1 32 KiB 4 ways 1 cycle, shared L2 30 cycles, memory 300; the rest as noted.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub l1: u64,
    pub l2: u64,
    pub memory: u64,
    /// Links of a third party: 3 cycles each, four of them on average in a 4×4 mesh, there and back.
    pub remote: u64,
    /// Into the handler and back: an unconditional jump, "tens of cycles" (section 3.2).
    pub exception: u64,
    /// Figure 3's seven steps, and `get_permissions`, which the application has: 20.
    pub fill: u64,
    /// A cross-domain call, "between 20 and 30 cycles" (section 4.2).
    pub call: u64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            l1: 1,
            l2: 30,
            memory: 300,
            remote: 24,
            exception: 20,
            fill: 27,
            call: 25,
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    pub accesses: u64,
    pub l1_misses: u64,
    pub checks: u64,
    pub fills: u64,
    pub forbidden: u64,
    pub invalidated_entries: u64,
    pub invalidated_lines: u64,
    pub calls: u64,
    pub cycles: u64,
}

struct Processor {
    l1: L1,
    mcache: MCache,
    domain: u32,
}

pub struct Sentry {
    processors: Vec<Processor>,
    pages: HashMap<u64, Page>,
    /// Lines that the L2 has seen.
    l2: HashSet<u64>,
    pub costs: Costs,
    pub counts: Counts,
}

/// Why a fill was refused (section 3.1): a domain cannot grant rights to itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotTheOwner;

impl Sentry {
    /// `entries` of each M-cache: 256 in the paper.
    pub fn new(processors: usize, entries: usize) -> Sentry {
        let processor = || Processor {
            l1: L1::new(32 << 10, 4),
            mcache: MCache::new(entries, 4),
            domain: SUPERVISOR,
        };
        Sentry {
            processors: (0..processors).map(|_| processor()).collect(),
            pages: HashMap::new(),
            l2: HashSet::new(),
            costs: Costs::default(),
            counts: Counts::default(),
        }
    }

    pub fn set_page(&mut self, addr: u64, page: Page) {
        self.pages.insert(addr / PAGE, page);
    }

    fn page(&self, addr: u64) -> Page {
        self.pages.get(&(addr / PAGE)).copied().unwrap_or_default()
    }

    pub fn domain(&self, p: usize) -> u32 {
        self.processors[p].domain
    }

    /// Another thread runs here: its domain, and no line has been verified for it.
    pub fn switch_thread(&mut self, p: usize, domain: u32) {
        self.processors[p].domain = domain;
        self.processors[p].l1.clear_checked();
    }

    fn spend(&mut self, cycles: u64) {
        self.counts.cycles += cycles;
    }

    /// One access within one line. An exception comes before the access.
    pub fn access(&mut self, p: usize, addr: u64, kind: Kind) -> Result<(), Exception> {
        self.counts.accesses += 1;
        self.spend(self.costs.l1);
        let (line, page) = (addr / LINE, self.page(addr));
        let (state, checked) = self.processors[p].l1.find(line);
        let enough = match kind {
            Kind::Load => state != State::Invalid,
            Kind::Store => matches!(state, State::Modified | State::Exclusive),
        };
        if enough && (!page.fine || !page.verify || checked) {
            if kind == Kind::Store {
                self.processors[p].l1.set(line, State::Modified, checked);
            }
            return Ok(());
        }
        let permission = match page.fine {
            true => self.check(p, addr, kind)?,
            false => Permission::ReadWrite,
        };
        if enough {
            let state = if kind == Kind::Store {
                State::Modified
            } else {
                state
            };
            self.processors[p].l1.set(line, state, true);
            return Ok(());
        }
        self.counts.l1_misses += 1;
        self.bring(p, line, kind, permission);
        Ok(())
    }

    /// The M-cache works beside the L2, so a check that succeeds costs nothing (section 4.1).
    fn check(&mut self, p: usize, addr: u64, kind: Kind) -> Result<Permission, Exception> {
        self.counts.checks += 1;
        let domain = self.processors[p].domain;
        let Some(entry) = self.processors[p].mcache.find(addr / PAGE, domain) else {
            self.spend(self.costs.exception);
            let owner = self.page(addr).owner;
            let handler = if owner == domain { owner } else { SUPERVISOR };
            return Err(Exception::Miss { handler });
        };
        let permission = entry.permissions[(addr / LINE) as usize % LINES];
        if permission.permits(kind) {
            return Ok(permission);
        }
        self.counts.forbidden += 1;
        self.spend(self.costs.exception);
        // "Read-only permissions means line is in S state, no permissions means it is not allocated."
        if permission == Permission::ReadOnly && kind == Kind::Store {
            self.bring(p, addr / LINE, Kind::Load, permission);
        }
        Err(Exception::Forbidden(permission))
    }

    /// Coherence: the line comes into this L1, in a state that permits what the check has permitted.
    fn bring(&mut self, p: usize, line: u64, kind: Kind, permission: Permission) {
        let mut others = false;
        for q in (0..self.processors.len()).filter(|&q| q != p) {
            let (state, checked) = self.processors[q].l1.find(line);
            if state == State::Invalid {
                continue;
            }
            others = true;
            match kind {
                Kind::Store => {
                    self.processors[q].l1.set(line, State::Invalid, false);
                    self.counts.invalidated_lines += 1;
                }
                Kind::Load => self.processors[q].l1.set(line, State::Shared, checked),
            }
        }
        let known = !self.l2.insert(line);
        self.spend(match (others, known) {
            (true, _) => self.costs.l2 + self.costs.remote,
            (false, true) => self.costs.l2,
            (false, false) => self.costs.memory,
        });
        let state = match kind {
            Kind::Store => State::Modified,
            Kind::Load if others || permission == Permission::ReadOnly => State::Shared,
            Kind::Load => State::Exclusive,
        };
        self.processors[p].l1.set(line, state, true);
    }

    /// Figure 3: the handler fills an entry. `metadata` is the address at which software keeps these
    /// permissions; a store there takes the entry away.
    pub fn fill(
        &mut self,
        p: usize,
        addr: u64,
        domain: u32,
        permissions: [Permission; LINES],
        metadata: u64,
    ) -> Result<(), NotTheOwner> {
        let own = self.processors[p].domain;
        if own != SUPERVISOR && (own != self.page(addr).owner || own != domain) {
            return Err(NotTheOwner);
        }
        self.counts.fills += 1;
        self.spend(self.costs.fill);
        self.processors[p].mcache.put(Entry {
            page: addr / PAGE,
            domain,
            permissions,
            metadata: metadata / LINE,
        });
        Ok(())
    }

    /// Section 2.4: new permissions for lines of a page. The store to the metadata invalidates the entries of all
    /// M-caches, by coherence. Then the lines leave all L1s: they are fetched exclusively and evicted. Returns the
    /// cost in cycles.
    pub fn change(&mut self, p: usize, metadata: u64, lines: &[u64], parallel: bool) -> u64 {
        let before = self.counts.cycles;
        self.bring(p, metadata / LINE, Kind::Store, Permission::ReadWrite);
        for q in &mut self.processors {
            self.counts.invalidated_entries += q.mcache.invalidate(metadata / LINE);
        }
        let mut longest = 0;
        let all = self.counts.cycles;
        for &addr in lines {
            let start = self.counts.cycles;
            self.bring(p, addr / LINE, Kind::Store, Permission::ReadWrite);
            self.processors[p]
                .l1
                .set(addr / LINE, State::Invalid, false);
            self.spend(self.costs.l1);
            longest = longest.max(self.counts.cycles - start);
        }
        if parallel {
            // Misses overlap: one is issued each cycle, and the longest is waited for.
            self.counts.cycles = all + longest + lines.len() as u64;
        }
        self.counts.cycles - before
    }

    /// A jump to `target`: within the own domain, or by way of domain 1 (Figure 4), which permits what
    /// `entries` has registered. `switch_call` changes the domain.
    pub fn call(&mut self, p: usize, target: u64, entries: &[u64]) -> Result<(), Exception> {
        let (own, owner) = (self.processors[p].domain, self.page(target).owner);
        if own == owner {
            self.spend(5);
            return Ok(());
        }
        self.counts.calls += 1;
        self.spend(self.costs.call);
        if own != SUPERVISOR && !entries.contains(&target) {
            return Err(Exception::CrossDomain { owner });
        }
        self.processors[p].domain = owner;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Permission::{None as No, ReadOnly, ReadWrite};

    const DATA: u64 = 0x10000;
    const META: u64 = 0x90000;

    fn guarded(processors: usize) -> Sentry {
        let mut s = Sentry::new(processors, 256);
        s.set_page(
            DATA,
            Page {
                fine: true,
                ..Page::default()
            },
        );
        s
    }

    fn with(line: usize, permission: Permission) -> [Permission; LINES] {
        let mut all = [ReadWrite; LINES];
        all[line] = permission;
        all
    }

    fn miss() -> Result<(), Exception> {
        Err(Exception::Miss {
            handler: SUPERVISOR,
        })
    }

    /// Section 2.2: pages without F are not checked; with F the first miss asks for an entry.
    #[test]
    fn only_misses_are_checked() {
        let mut s = guarded(1);
        assert_eq!(s.access(0, 0x5000, Kind::Store), Ok(()));
        assert_eq!(s.counts.checks, 0);
        assert_eq!(s.access(0, DATA, Kind::Load), miss());
        s.fill(0, DATA, 1, with(3, No), META).unwrap();
        for _ in 0..5 {
            assert_eq!(s.access(0, DATA + 8, Kind::Store), Ok(()));
        }
        assert_eq!((s.counts.checks, s.counts.fills), (2, 1));
        assert_eq!(
            s.access(0, DATA + 3 * LINE, Kind::Load),
            Err(Exception::Forbidden(No))
        );
    }

    /// A line that may be read lies in S, so that a store misses, and is checked.
    #[test]
    fn states_carry_the_permissions() {
        let mut s = guarded(1);
        s.fill(0, DATA, 1, with(0, ReadOnly), META).unwrap();
        assert_eq!(s.access(0, DATA, Kind::Load), Ok(()));
        assert_eq!(
            s.access(0, DATA, Kind::Store),
            Err(Exception::Forbidden(ReadOnly))
        );
        let checks = s.counts.checks;
        assert_eq!(s.access(0, DATA, Kind::Load), Ok(()), "it is still there");
        assert_eq!(s.counts.checks, checks);
    }

    /// Section 2.4, both halves: entries of other processors go, and so do their lines.
    #[test]
    fn a_change_reaches_everybody() {
        let mut s = guarded(2);
        for p in 0..2 {
            s.fill(p, DATA, 1, [ReadWrite; LINES], META).unwrap();
            assert_eq!(s.access(p, DATA, Kind::Store), Ok(()));
        }
        s.change(0, META, &[DATA], false);
        assert_eq!(s.counts.invalidated_entries, 2);
        for p in 0..2 {
            assert_eq!(s.access(p, DATA, Kind::Load), miss(), "processor {p}");
        }
    }

    #[test]
    fn without_the_second_half_hits_go_on() {
        let mut s = guarded(1);
        s.fill(0, DATA, 1, [ReadWrite; LINES], META).unwrap();
        assert_eq!(s.access(0, DATA, Kind::Store), Ok(()));
        s.change(0, META, &[], false);
        assert_eq!(s.access(0, DATA, Kind::Store), Ok(()));
    }

    /// V and C: what another thread has brought is verified once for this one.
    #[test]
    fn threads_that_differ() {
        let mut s = guarded(1);
        s.set_page(
            DATA,
            Page {
                fine: true,
                verify: true,
                owner: SUPERVISOR,
            },
        );
        s.fill(0, DATA, 1, [ReadWrite; LINES], META).unwrap();
        s.fill(0, DATA, 2, with(0, ReadOnly), META + LINE).unwrap();
        assert_eq!(s.access(0, DATA, Kind::Store), Ok(()));
        s.switch_thread(0, 2);
        assert_eq!(
            s.access(0, DATA, Kind::Store),
            Err(Exception::Forbidden(ReadOnly))
        );
        assert_eq!(s.access(0, DATA, Kind::Load), Ok(()));
    }

    /// Section 3.1: only the owner and domain 1 fill; others go by way of domain 1.
    #[test]
    fn owners_fill() {
        let mut s = guarded(1);
        s.set_page(
            DATA,
            Page {
                fine: true,
                verify: false,
                owner: 3,
            },
        );
        s.switch_thread(0, 2);
        assert_eq!(s.access(0, DATA, Kind::Load), miss());
        assert_eq!(
            s.fill(0, DATA, 2, [ReadWrite; LINES], META),
            Err(NotTheOwner)
        );
        s.switch_thread(0, 3);
        assert_eq!(
            s.access(0, DATA, Kind::Load),
            Err(Exception::Miss { handler: 3 })
        );
        assert_eq!(s.fill(0, DATA, 3, [ReadWrite; LINES], META), Ok(()));
        assert_eq!(s.access(0, DATA, Kind::Load), Ok(()));
    }

    /// Figure 4: out and back, only to what is registered.
    #[test]
    fn calls_across_domains() {
        let (mut s, code, home) = (Sentry::new(1, 256), 0x40_0000, 0x50_0000);
        for (addr, owner) in [(code, 2), (home, 3)] {
            s.set_page(
                addr,
                Page {
                    owner,
                    ..Page::default()
                },
            );
        }
        s.switch_thread(0, 3);
        let entries = [code, home + 4];
        assert_eq!(
            s.call(0, code + 8, &entries),
            Err(Exception::CrossDomain { owner: 2 })
        );
        assert_eq!((s.call(0, code, &entries), s.domain(0)), (Ok(()), 2));
        assert_eq!((s.call(0, home + 4, &entries), s.domain(0)), (Ok(()), 3));
        assert_eq!(s.counts.calls, 3);
        let before = s.counts.cycles;
        s.call(0, home, &entries).unwrap();
        assert_eq!(s.counts.cycles - before, 5, "within a domain: a call");
    }

    #[test]
    fn entries_are_replaced() {
        let mut s = Sentry::new(1, 4);
        let page = Page {
            fine: true,
            ..Page::default()
        };
        for n in 0..5 {
            s.set_page(DATA + n * PAGE, page);
            s.fill(0, DATA + n * PAGE, 1, [ReadWrite; LINES], META + n * LINE)
                .unwrap();
        }
        assert_eq!(s.access(0, DATA, Kind::Load), miss(), "the oldest");
        assert_eq!(s.access(0, DATA + PAGE, Kind::Load), Ok(()));
    }
}
