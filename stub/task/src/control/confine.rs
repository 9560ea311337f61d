//! The stub's task may at no moment have more rights than any thread of the program. A thread may give up a right, or
//! get another root, other namespaces or a landlock domain. Then this task does the same before the thread's call
//! returns. Afterwards the task's rights are compared with each thread's; if it has more, the session ends.
//!
//! Rights that cannot be copied are given up completely. In a landlock domain of the program's, or where its root
//! cannot be reached, this task opens no more files. (The files that it reads about its own memory are open from
//! before: `ulpf_lib::kept`.) Limits are followed, except those of memory, files, tasks and processor time. These would
//! bound our own work (the reader is started again), not rights.

use core::mem::size_of_val;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};

use alloc::format;
use linux_raw_sys::general as k;
use linux_raw_sys::landlock::{LANDLOCK_CREATE_RULESET_VERSION, landlock_ruleset_attr as Ruleset};
use linux_raw_sys::prctl as p;
use ulpf_lib::seccomp::{self, First};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::rights::{
    CAP_SETGID, CAP_SETUID, CAP_SYS_CHROOT, CapBlock, Capabilities, MOST_GROUPS, Rights,
    supplementary,
};
use ulpf_stub_handlers::runtime::events::Confined;
use ulpf_stub_handlers::runtime::thread::Thread;

use super::{Control, reader};

/// The namespaces that a task is in: user namespaces first, for they give the right to enter the others.
const NAMESPACES: [(&str, u32); 6] = [
    ("user", k::CLONE_NEWUSER),
    ("mnt", k::CLONE_NEWNS),
    ("net", k::CLONE_NEWNET),
    ("ipc", k::CLONE_NEWIPC),
    ("uts", k::CLONE_NEWUTS),
    ("cgroup", k::CLONE_NEWCGROUP),
];

const LIMITS: [u32; 9] = [
    k::RLIMIT_STACK,
    k::RLIMIT_CORE,
    k::RLIMIT_RSS,
    k::RLIMIT_LOCKS,
    k::RLIMIT_SIGPENDING,
    k::RLIMIT_MSGQUEUE,
    k::RLIMIT_NICE,
    k::RLIMIT_RTPRIO,
    k::RLIMIT_RTTIME,
];

/// All system calls that this task makes.
const CALLS: [u32; 83] = [
    k::__NR_read,
    k::__NR_write,
    k::__NR_close,
    k::__NR_close_range,
    k::__NR_fstat,
    k::__NR_statx,
    k::__NR_poll,
    k::__NR_lseek,
    k::__NR_mmap,
    k::__NR_mprotect,
    k::__NR_pkey_mprotect,
    k::__NR_munmap,
    k::__NR_mremap,
    k::__NR_madvise,
    k::__NR_mincore,
    k::__NR_mlock,
    k::__NR_mlock2,
    k::__NR_munlock,
    k::__NR_mlockall,
    k::__NR_munlockall,
    k::__NR_brk,
    k::__NR_memfd_create,
    k::__NR_ftruncate,
    k::__NR_fallocate,
    k::__NR_fcntl,
    k::__NR_ioctl,
    k::__NR_pread64,
    k::__NR_pwrite64,
    k::__NR_readv,
    k::__NR_writev,
    k::__NR_preadv,
    k::__NR_pwritev,
    k::__NR_openat,
    k::__NR_readlinkat,
    k::__NR_unlinkat,
    k::__NR_renameat,
    k::__NR_sendto,
    k::__NR_recvfrom,
    k::__NR_eventfd2,
    k::__NR_pidfd_open,
    k::__NR_perf_event_open,
    k::__NR_futex,
    k::__NR_nanosleep,
    k::__NR_clock_nanosleep,
    k::__NR_clock_gettime,
    k::__NR_gettimeofday,
    k::__NR_sched_yield,
    k::__NR_restart_syscall,
    k::__NR_membarrier,
    k::__NR_rt_sigaction,
    k::__NR_rt_sigprocmask,
    k::__NR_rt_sigreturn,
    k::__NR_sigaltstack,
    k::__NR_tgkill,
    k::__NR_kill,
    k::__NR_rt_tgsigqueueinfo,
    k::__NR_waitid,
    k::__NR_wait4,
    k::__NR_exit,
    k::__NR_exit_group,
    k::__NR_arch_prctl,
    k::__NR_prctl,
    k::__NR_prlimit64,
    k::__NR_getpid,
    k::__NR_gettid,
    k::__NR_getuid,
    k::__NR_geteuid,
    k::__NR_getresuid,
    k::__NR_getresgid,
    k::__NR_getgroups,
    k::__NR_capget,
    k::__NR_capset,
    k::__NR_setresuid,
    k::__NR_setresgid,
    k::__NR_setfsuid,
    k::__NR_setfsgid,
    k::__NR_setgroups,
    k::__NR_setns,
    k::__NR_chroot,
    k::__NR_chdir,
    k::__NR_fchdir,
    k::__NR_landlock_create_ruleset,
    k::__NR_landlock_restrict_self,
];

/// Restricts this task at its start. Whatever its credentials, it executes no program, makes no process, socket or
/// mount, and accesses no other process's memory. An attack that ran code in it would gain no more.
pub fn begin() {
    keep_proc();
    let me = g().stub_tid.load(Relaxed) as u32;
    let first = [
        // A thread of its own.
        (k::__NR_clone, First::Has(k::CLONE_THREAD)),
        (k::__NR_process_vm_readv, First::Is(me)),
        (k::__NR_process_vm_writev, First::Is(me)),
    ];
    let filter = seccomp::only(&CALLS, &first);
    let program = [filter.len() as u64, filter.as_ptr() as u64];
    // SAFETY: settings of this task's; the kernel copies the filter.
    unsafe {
        let _ = sys!(k::__NR_prctl, p::PR_SET_NO_NEW_PRIVS, 1);
        // A kernel may have been built without it.
        let set = linux_raw_sys::ptrace::SECCOMP_SET_MODE_FILTER;
        let _ = sys!(k::__NR_seccomp, set, 0, program.as_ptr());
    }
}

impl Control {
    /// `t` has fewer or other rights now, and waits.
    pub(super) fn confine(&mut self, t: &Thread, which: Confined, groups: &[u32]) {
        // The reader has credentials of its own; a new one gets ours.
        reader::stop();
        let followed = match which {
            Confined::Credentials => Ok(()),
            Confined::Place => place(t).or_else(|_| shut()),
            Confined::Users => place(t).or_else(|_| {
                // Capabilities mean something else there.
                set(&Capabilities::none());
                shut()
            }),
            Confined::Domain => shut(),
            Confined::Limits => {
                limits();
                Ok(())
            }
        };
        adopt(&t.rights.get(), groups);
        let again = reader::again();
        let own = own();
        let_go_of_proc(&own);
        let threads = g().threads.iter();
        let more = threads
            .filter(|t| t.is_programs())
            .any(|t| !own.within(&t.rights.get()));
        if followed.is_err() || again.is_err() || more {
            self.keeps_rights = true;
        }
    }
}

fn own() -> Rights {
    let mut room = [0; MOST_GROUPS];
    Rights::of_caller(supplementary(&mut room))
}

/// Takes on these rights, step by step as long as each step is permitted; the caller detects steps that failed.
fn adopt(wanted: &Rights, groups: &[u32]) {
    let before = own();
    let (had, caps) = (&before.capabilities, &wanted.capabilities);
    let each = |set: u64| (0..64u64).filter(move |n| set >> n & 1 != 0);
    // SAFETY: settings of this task's alone; the kernel reads the lists while the call lasts.
    unsafe {
        for n in each(had.bounding & !caps.bounding) {
            let _ = sys!(k::__NR_prctl, p::PR_CAPBSET_DROP, n);
        }
        for n in each(had.ambient & !caps.ambient) {
            let lower = p::PR_CAP_AMBIENT_LOWER;
            let _ = sys!(k::__NR_prctl, p::PR_CAP_AMBIENT, lower, n, 0, 0);
        }
        let others = before.supplementary != wanted.supplementary;
        let anew = others || before.users != wanted.users || before.groups != wanted.groups;
        if anew {
            // This task still needs the rights that the thread has just given up.
            let _ = sys!(k::__NR_prctl, p::PR_SET_KEEPCAPS, 1);
            raise(had, CAP_SETGID);
            if others {
                let _ = sys!(k::__NR_setgroups, groups.len(), groups.as_ptr());
            }
            let [r, e, s, f] = wanted.groups;
            let _ = sys!(k::__NR_setresgid, r, e, s);
            let _ = sys!(k::__NR_setfsgid, f);
            raise(had, CAP_SETUID);
            let [r, e, s, f] = wanted.users;
            let _ = sys!(k::__NR_setresuid, r, e, s);
            let _ = sys!(k::__NR_setfsuid, f);
            let _ = sys!(k::__NR_prctl, p::PR_SET_KEEPCAPS, 0);
        }
        // (The last call has changed them, too.)
        if anew || before.securebits != wanted.securebits {
            let _ = sys!(k::__NR_prctl, p::PR_SET_SECUREBITS, wanted.securebits);
        }
        set(caps);
        for n in each(caps.ambient) {
            let raise = p::PR_CAP_AMBIENT_RAISE;
            let _ = sys!(k::__NR_prctl, p::PR_CAP_AMBIENT, raise, n, 0, 0);
        }
    }
}

fn set(caps: &Capabilities) {
    let mut block = CapBlock::of(caps);
    // SAFETY: this task's own, from a block on the stack.
    let _ = unsafe { sys!(k::__NR_capset, block.header(), block.data()) };
}

/// Makes a permitted capability effective.
fn raise(had: &Capabilities, capability: u32) {
    if had.permitted >> capability & 1 != 0 && had.effective >> capability & 1 == 0 {
        set(&Capabilities {
            effective: had.effective | 1 << capability,
            ..*had
        });
    }
}

/// A descriptor that is closed when it goes.
struct Fd(u64);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        let _ = unsafe { sys!(k::__NR_close, self.0) };
    }
}

fn open(folder: i32, path: &str, flags: u32) -> Result<Fd, Errno> {
    debug_assert!(path.ends_with('\0'));
    let flags = flags | k::O_CLOEXEC;
    // SAFETY: a NUL-terminated path; a descriptor of our own table.
    unsafe { sys!(k::__NR_openat, folder, path.as_ptr(), flags, 0) }.map(Fd)
}

/// Descriptor of /proc from this task's start: a root that the program has set since may have none. A task that may
/// change roots is not bound by one. A task that no longer may must not escape through this descriptor
/// ([`let_go_of_proc`]).
static PROC: AtomicI32 = AtomicI32::new(-1);

fn keep_proc() {
    if let Ok(fd) = open(k::AT_FDCWD, "/proc\0", k::O_PATH | k::O_DIRECTORY) {
        PROC.store(fd.0 as i32, Relaxed);
        core::mem::forget(fd);
    }
}

fn proc() -> Result<Fd, Errno> {
    match PROC.load(Relaxed) {
        -1 => open(k::AT_FDCWD, "/proc\0", k::O_PATH | k::O_DIRECTORY),
        // SAFETY: a descriptor of our own table.
        fd => unsafe { sys!(k::__NR_fcntl, fd, k::F_DUPFD_CLOEXEC, 0) }.map(Fd),
    }
}

fn let_go_of_proc(own: &Rights) {
    let kept = PROC.load(Relaxed);
    if kept < 0 || own.capabilities.permitted >> CAP_SYS_CHROOT & 1 != 0 {
        return;
    }
    let now = open(k::AT_FDCWD, "/proc\0", k::O_PATH | k::O_DIRECTORY);
    let before = proc();
    let same =
        matches!((&now, &before), (Ok(now), Ok(before)) if identity(now) == identity(before));
    if !same {
        PROC.store(-1, Relaxed);
        drop(Fd(kept as u64));
    }
}

/// Identity of the file, and of its mount.
fn identity(fd: &Fd) -> Result<[u64; 3], Errno> {
    const AT_EMPTY_PATH: u32 = 0x1000;
    const MNT_ID: u32 = 0x1000;
    // SAFETY: plain numbers, which the kernel fills in.
    unsafe {
        let mut status: k::statx = core::mem::zeroed();
        let what = k::STATX_INO | MNT_ID;
        sys!(
            k::__NR_statx,
            fd.0,
            c"".as_ptr(),
            AT_EMPTY_PATH,
            what,
            &raw mut status
        )?;
        let device = u64::from(status.stx_dev_major) << 32 | u64::from(status.stx_dev_minor);
        Ok([device, status.stx_ino, status.stx_mnt_id])
    }
}

/// Moves to the thread's root and namespaces.
fn place(t: &Thread) -> Result<(), Errno> {
    let proc = proc()?;
    let open = |path: &str, flags| open(proc.0 as i32, path, flags);
    let folder = format!("{}/task/{}", t.tgid(), t.tid());
    // Processes have the numbers there that we know them by.
    let us = format!("{}/ns/mnt\0", g().stub_tid.load(Relaxed));
    let us = identity(&open(&us, k::O_RDONLY)?)?;
    if us != identity(&open("self/ns/mnt\0", k::O_RDONLY)?)? {
        return Err(Errno(-1));
    }
    let root = open(&format!("{folder}/root\0"), k::O_PATH | k::O_DIRECTORY)?;
    let mut enter = [const { None }; NAMESPACES.len()];
    for (slot, (name, kind)) in enter.iter_mut().zip(NAMESPACES) {
        // A kernel may have been built without some.
        let (Ok(theirs), Ok(ours)) = (
            open(&format!("{folder}/ns/{name}\0"), k::O_RDONLY),
            open(&format!("self/ns/{name}\0"), k::O_RDONLY),
        ) else {
            continue;
        };
        if identity(&theirs)? != identity(&ours)? {
            *slot = Some((theirs, kind));
        }
    }
    for (fd, kind) in enter.iter().flatten() {
        // SAFETY: this task alone, and it is the only thread of its group.
        unsafe { sys!(k::__NR_setns, fd.0, *kind) }?;
    }
    if identity(&root)? != identity(&open("/\0", k::O_PATH | k::O_DIRECTORY)?)? {
        // SAFETY: root and folder of this task, which it shares with no other task.
        unsafe {
            sys!(k::__NR_fchdir, root.0)?;
            sys!(k::__NR_chroot, c".".as_ptr())?;
        }
    }
    // SAFETY: as above.
    unsafe { sys!(k::__NR_chdir, c"/".as_ptr()) }.map(drop)
}

/// From now on this task opens no file, makes no connection and traces no process.
fn shut() -> Result<(), Errno> {
    // (The kernel allows sixteen nested domains; the first one is enough.)
    static SHUT: AtomicBool = AtomicBool::new(false);
    if SHUT.load(Relaxed) {
        return Ok(());
    }
    // SAFETY: a rule set of our own, on the stack.
    unsafe {
        let version = LANDLOCK_CREATE_RULESET_VERSION;
        let abi = sys!(k::__NR_landlock_create_ruleset, 0, 0, version)?;
        let files = match abi {
            0 | 1 => 13,
            2 => 14,
            3 | 4 => 15,
            _ => 16,
        };
        let mut rules: Ruleset = core::mem::zeroed();
        rules.handled_access_fs = (1 << files) - 1;
        if abi >= 4 {
            rules.handled_access_net = 3;
        }
        let len = if abi >= 4 { 16 } else { 8 }.min(size_of_val(&rules));
        let made = sys!(k::__NR_landlock_create_ruleset, &raw const rules, len, 0)?;
        let made = Fd(made);
        sys!(k::__NR_landlock_restrict_self, made.0, 0)?;
    }
    SHUT.store(true, Relaxed);
    Ok(())
}

/// Takes over the program's limits, as far as they are followed.
fn limits() {
    let pid = g().pid.load(Relaxed);
    for which in LIMITS {
        let mut limit = [0u64; 2];
        // SAFETY: asks for two numbers, and sets this task's own.
        unsafe {
            if sys!(k::__NR_prlimit64, pid, which, 0, &raw mut limit).is_ok() {
                let _ = sys!(k::__NR_prlimit64, 0, which, &raw const limit, 0);
            }
        }
    }
}
