//! Changes of the program's mappings by a system call, as far as they concern the heap (`control/heap.rs` of the stub's
//! task follows them).

use core::sync::atomic::AtomicU64;

use linux_raw_sys::general as k;
use ulpf_lib::guard::LARGEST_HEAP;

/// Counts system calls of the program that have changed its mappings, or may have.
pub static CHANGES: AtomicU64 = AtomicU64::new(0);

/// A change of the program's mappings by a system call. Unused ranges are empty.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Not heap any more.
    pub gone: (u64, u64),
    pub come: (u64, u64),
    /// `come` is heap only if `only_if` was.
    pub only_if: (u64, u64),
    /// If `come` is plain memory where none was before: [`CHANGES`] after the call, else 0.
    pub fresh: u64,
}

/// Whether a call with these arguments makes private anonymous memory that may be read and written, where none was before:
/// mmap(2) in a place of the kernel's choice, or brk(2).
pub fn is_fresh(nr: u64, a: &[u64; 6]) -> bool {
    const PROT: u64 = (k::PROT_READ | k::PROT_WRITE) as u64;
    const FLAGS: u64 = (k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE) as u64;
    match nr as u32 {
        k::__NR_mmap => a[2] == PROT && a[3] & !FLAGS == 0,
        k::__NR_brk => true,
        _ => false,
    }
}

impl Mapped {
    /// The change by a call that has succeeded; `brk` is the program break before it.
    pub fn by(nr: u64, a: &[u64; 6], result: u64, brk: u64) -> Mapped {
        const STACK: u64 = k::MAP_STACK as u64 | k::MAP_GROWSDOWN as u64;
        const EXEC: u64 = k::PROT_EXEC as u64;
        let page = |at: u64| at.saturating_add(4095) & !4095;
        let span = |at: u64, len: u64| (at, page(at.saturating_add(len)));
        let none = Mapped::default();
        match nr as u32 {
            k::__NR_mmap => {
                let new = span(result, a[1]);
                const SHARING: u64 = k::MAP_SHARED as u64 | k::MAP_PRIVATE as u64;
                let kind = k::MAP_PRIVATE as u64 | k::MAP_ANONYMOUS as u64;
                let heap = a[3] & (SHARING | k::MAP_ANONYMOUS as u64) == kind
                    && a[3] & (STACK | k::MAP_HUGETLB as u64) == 0
                    && a[2] & EXEC == 0
                    && new.1 - new.0 < LARGEST_HEAP;
                // Mapped over other memory: a loader's .bss, or a collector that uses its reserved space.
                let fixed = a[3] & k::MAP_FIXED as u64 != 0;
                Mapped {
                    gone: new,
                    come: if heap { new } else { (0, 0) },
                    only_if: if fixed { new } else { (0, 0) },
                    ..none
                }
            }
            k::__NR_munmap => Mapped {
                gone: span(a[0], a[1]),
                ..none
            },
            k::__NR_mremap => {
                let old = span(a[0], a[1]);
                Mapped {
                    gone: old,
                    come: span(result, a[2]),
                    only_if: old,
                    ..none
                }
            }
            k::__NR_mprotect | k::__NR_pkey_mprotect if a[2] & EXEC != 0 => Mapped {
                gone: span(a[0], a[1]),
                ..none
            },
            k::__NR_brk => {
                let (before, now) = (page(brk), page(result));
                Mapped {
                    gone: (now, before.max(now)),
                    come: (before, now.max(before)),
                    ..none
                }
            }
            _ => none,
        }
    }
}

/// The effect of a call of the mlock(2) family on its memory.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Locks {
    #[default]
    Same,
    Locked,
    Unlocked,
    /// All memory is locked, including ours. The call has not filled pages; `fill` says whether the program wants that.
    Whole {
        fill: bool,
    },
    /// The call has failed, maybe halfway.
    Unknown,
}

impl Locks {
    pub fn by(nr: u64, a: &[u64; 6], result: i64) -> Locks {
        match nr as u32 {
            _ if result < 0 => Locks::Unknown,
            k::__NR_munlock | k::__NR_munlockall => Locks::Unlocked,
            k::__NR_mlockall if a[0] & u64::from(k::MCL_CURRENT) == 0 => Locks::Same,
            k::__NR_mlockall => Locks::Whole {
                fill: a[0] & u64::from(k::MCL_ONFAULT) == 0,
            },
            _ => Locks::Locked,
        }
    }
}
