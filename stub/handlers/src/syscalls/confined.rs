//! Calls that change the program's rights. They are made as usual; the stub's task adopts the change before they
//! return.

use linux_raw_sys::general as k;
use linux_raw_sys::prctl::{PR_CAP_AMBIENT, PR_CAPBSET_DROP, PR_SET_KEEPCAPS, PR_SET_SECUREBITS};
use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::Special;

use super::call::Args;
use super::ordinary::ordinary;
use crate::rights::{MOST_GROUPS, Rights, supplementary};
use crate::runtime::events::{Confined, Request};
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;

/// An option of prctl(2) that changes credentials.
pub fn by_prctl(option: u64) -> bool {
    const OPTIONS: [u32; 4] = [
        PR_CAPBSET_DROP,
        PR_SET_SECUREBITS,
        PR_SET_KEEPCAPS,
        PR_CAP_AMBIENT,
    ];
    OPTIONS.iter().any(|o| u64::from(*o) == option)
}

/// Makes such a call in the usual way, and lets the stub's task follow if necessary.
pub fn call(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    let result = ordinary(t, uc, nr, a);
    let special = syscalls::row(nr).and_then(|row| row.special);
    let asks =
        nr as u32 == k::__NR_prlimit64 && (a[2] == 0 || a[0] != 0 && a[0] != t.tgid() as u64);
    let changes = special == Some(Special::Rights) || nr as u32 == k::__NR_prctl && by_prctl(a[0]);
    if changes && !asks && result >= 0 {
        follow(t, uc, which(nr, a));
    }
    result
}

fn which(nr: u64, a: &Args) -> Confined {
    match nr as u32 {
        k::__NR_unshare if a[0] as u32 & k::CLONE_NEWUSER == 0 => Confined::Place,
        k::__NR_chroot => Confined::Place,
        k::__NR_unshare | k::__NR_setns => Confined::Users,
        k::__NR_landlock_restrict_self => Confined::Domain,
        k::__NR_setrlimit | k::__NR_prlimit64 => Confined::Limits,
        _ => Confined::Credentials,
    }
}

/// Called after a call in the 32-bit ABI, with its own number (`syscall_32.tbl`).
pub fn legacy(t: Current, uc: &mut UContext, nr: u32) {
    let which = match nr {
        310 | 346 => Confined::Users,
        446 => Confined::Domain,
        75 | 340 => Confined::Limits,
        _ => Confined::Credentials,
    };
    follow(t, uc, which);
}

fn follow(t: Current, uc: &mut UContext, which: Confined) {
    // A vfork child shares only memory, and its parent waits.
    if !t.is_programs() {
        return;
    }
    let mut room = [0; MOST_GROUPS];
    let groups = supplementary(&mut room);
    let now = Rights::of_caller(groups);
    if which == Confined::Credentials && now == t.rights.get() {
        return;
    }
    t.rights.put(&now);
    let groups = groups.unwrap_or(&[]);
    park::request(
        t,
        uc,
        Request::Confined {
            which,
            groups: groups.as_ptr() as u64,
            len: groups.len() as u32,
        },
    );
}
