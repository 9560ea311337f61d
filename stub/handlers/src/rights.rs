//! The credentials of the calling task, as the kernel reports them. The stub's task has credentials of its own. Each
//! thread publishes its credentials after each call that can change them, and the stub's task adopts them
//! (`control/confine.rs`) before the call returns.

use core::mem::transmute;
use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use linux_raw_sys::prctl::{
    PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, PR_CAPBSET_READ, PR_GET_SECUREBITS,
};
use ulpf_lib::hash::fnv1a;
use ulpf_lib::sys;

/// Real, effective, saved, and that of the file system (credentials(7)).
pub type Ids = [u32; 4];

/// Credentials of a task.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    pub users: Ids,
    pub groups: Ids,
    pub capabilities: Capabilities,
    pub securebits: u64,
    /// Number and digest of the supplementary groups.
    pub supplementary: [u64; 2],
}

/// Sets of capabilities (capabilities(7)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub bounding: u64,
    pub ambient: u64,
}

const WORDS: usize = size_of::<Rights>() / 8;
/// More capabilities than any kernel has.
const MOST_CAPABILITIES: u64 = 64;
pub const CAP_SETGID: u32 = 6;
pub const CAP_SETUID: u32 = 7;
pub const CAP_SYS_CHROOT: u32 = 18;
/// Limit of supplementary groups that are handed on. The stub's task gets no groups if a thread has more.
pub const MOST_GROUPS: usize = 1024;
/// `_LINUX_CAPABILITY_VERSION_3`
const VERSION: u32 = 0x2008_0522;

/// The header and the two halves of capget(2) and capset(2).
#[repr(C)]
pub struct CapBlock {
    version: u32,
    pid: i32,
    /// Effective, permitted, inheritable: the low halves, then the high ones.
    halves: [[u32; 3]; 2],
}

impl CapBlock {
    pub fn of(c: &Capabilities) -> CapBlock {
        let sets = [c.effective, c.permitted, c.inheritable];
        CapBlock {
            version: VERSION,
            pid: 0,
            halves: [sets.map(|s| s as u32), sets.map(|s| (s >> 32) as u32)],
        }
    }
    pub fn header(&mut self) -> *mut u32 {
        &raw mut self.version
    }
    pub fn data(&mut self) -> *mut [[u32; 3]; 2] {
        &raw mut self.halves
    }
}

/// Supplementary groups of the calling task; `None` if there are too many.
pub fn supplementary(room: &mut [u32; MOST_GROUPS]) -> Option<&[u32]> {
    // SAFETY: the kernel writes at most `MOST_GROUPS` numbers.
    let n = unsafe { sys!(k::__NR_getgroups, room.len(), room.as_mut_ptr()) }.ok()?;
    room.get(..n as usize)
}

impl Rights {
    /// Credentials of the calling task, which has these supplementary groups.
    pub fn of_caller(supplementary: Option<&[u32]>) -> Rights {
        let mut block = CapBlock::of(&Capabilities::none());
        let (mut users, mut groups) = ([0u32; 4], [0u32; 4]);
        // SAFETY: each call fills the words that it gets; the last two change nothing (-1 is no user and no group).
        unsafe {
            let [r, e, s, _] = users.each_mut().map(|id| &raw mut *id);
            let _ = sys!(k::__NR_getresuid, r, e, s);
            let [r, e, s, _] = groups.each_mut().map(|id| &raw mut *id);
            let _ = sys!(k::__NR_getresgid, r, e, s);
            let _ = sys!(k::__NR_capget, block.header(), block.data());
            users[3] = sys!(k::__NR_setfsuid, u32::MAX).unwrap_or(0) as u32;
            groups[3] = sys!(k::__NR_setfsgid, u32::MAX).unwrap_or(0) as u32;
        }
        let [low, high] = block.halves;
        let whole = |n: usize| u64::from(low[n]) | u64::from(high[n]) << 32;
        // A bit for each capability for which prctl(2) returns 1.
        let bits = |asked: &dyn Fn(u64) -> [u64; 3]| {
            (0..MOST_CAPABILITIES).fold(0, |all, n| {
                let [option, a, b] = asked(n);
                // SAFETY: a query.
                let answer = unsafe { sys!(k::__NR_prctl, option, a, b, 0, 0) };
                all | u64::from(answer == Ok(1)) << n
            })
        };
        Rights {
            users,
            groups,
            capabilities: Capabilities {
                effective: whole(0),
                permitted: whole(1),
                inheritable: whole(2),
                bounding: bits(&|n| [PR_CAPBSET_READ.into(), n, 0]),
                ambient: bits(&|n| [PR_CAP_AMBIENT.into(), PR_CAP_AMBIENT_IS_SET.into(), n]),
            },
            // SAFETY: a query.
            securebits: unsafe { sys!(k::__NR_prctl, PR_GET_SECUREBITS) }.unwrap_or(0),
            supplementary: match supplementary {
                Some(list) => [list.len() as u64, digest(list)],
                None => [u64::MAX, 0],
            },
        }
    }

    /// True if a task with `all` could acquire these credentials by itself, without executing a program. (So the
    /// bounding set, which differs in each user namespace, does not matter.)
    pub fn within(&self, all: &Rights) -> bool {
        let (own, theirs) = (&self.capabilities, &all.capabilities);
        let can = |capability: u32| theirs.permitted >> capability & 1 != 0;
        let no_other = |own: &Ids, theirs: &Ids| own.iter().all(|id| theirs.contains(id));
        let subset = |own: u64, theirs: u64| own & !theirs == 0;
        let same_groups = self.supplementary == all.supplementary || self.supplementary[0] == 0;
        (can(CAP_SETUID) || no_other(&self.users, &all.users))
            && (can(CAP_SETGID) || no_other(&self.groups, &all.groups) && same_groups)
            && subset(own.effective, theirs.permitted)
            && subset(own.permitted, theirs.permitted)
            && subset(own.inheritable, theirs.inheritable)
            && subset(own.ambient, theirs.ambient)
    }
}

impl Capabilities {
    pub const fn none() -> Capabilities {
        Capabilities {
            effective: 0,
            permitted: 0,
            inheritable: 0,
            bounding: 0,
            ambient: 0,
        }
    }
}

fn digest(list: &[u32]) -> u64 {
    fnv1a(list.iter().flat_map(|id| id.to_le_bytes()))
}

/// The credentials that a thread has published.
#[derive(Default)]
pub struct Published([AtomicU64; WORDS]);

impl Published {
    pub fn get(&self) -> Rights {
        let words: [u64; WORDS] = core::array::from_fn(|n| self.0[n].load(SeqCst));
        // SAFETY: plain numbers, and as many bytes.
        unsafe { transmute(words) }
    }

    pub fn put(&self, rights: &Rights) {
        // SAFETY: as above; there is no padding.
        let words: [u64; WORDS] = unsafe { transmute(*rights) };
        for (word, value) in self.0.iter().zip(words) {
            word.store(value, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: u32) -> Rights {
        Rights {
            users: [id; 4],
            groups: [id; 4],
            capabilities: Capabilities {
                bounding: 0xff,
                ..Capabilities::none()
            },
            securebits: 0,
            supplementary: [1, 7],
        }
    }

    fn root() -> Rights {
        let mut root = user(0);
        root.capabilities.permitted = 0xff;
        root.capabilities.effective = 0xff;
        root
    }

    #[test]
    fn who_may_no_more() {
        assert!(root().within(&root()) && user(5).within(&root()));
        assert!(!root().within(&user(5)) && !user(5).within(&user(6)));
        // A saved user ID counts.
        let mut saved = user(5);
        saved.users[2] = 0;
        assert!(!saved.within(&user(5)) && user(5).within(&saved));
        // No group is a subset of any groups; other groups are different.
        let mut other = user(5);
        other.supplementary = [1, 8];
        assert!(!other.within(&user(5)));
        other.supplementary = [0, 0];
        assert!(other.within(&user(5)));
        let mut capable = user(5);
        capable.capabilities.permitted = 1;
        assert!(user(5).within(&capable) && !capable.within(&user(5)));
    }

    #[test]
    fn what_is_written_down_is_read() {
        let mut room = [0; MOST_GROUPS];
        let mine = Rights::of_caller(supplementary(&mut room));
        let published = Published::default();
        published.put(&mine);
        assert_eq!(published.get(), mine);
        assert!(mine.within(&mine));
    }
}
