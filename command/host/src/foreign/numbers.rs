//! Numbers from untrusted sources, checked before use.
//!
//! A stub is not trusted: with the right to inspect the program, a user may take over the stub's end of the control
//! channel, and lie. So a count is compared with the request before anything is allocated. A number of a process or
//! thread is only a hint, which is checked with the kernel.
//!
//! ```text
//!   number ──▶ pidfd_open(2)                 from here on the pidfd means one process, whatever its number
//!          ──▶ /proc/NUMBER: its parent, its rights
//!          ──▶ both pidfds: has neither ended?   then what was read was read of that process, and its
//!                                                parent is the target and no later owner of that number
//! ```
//! A thread has no such handle, but while it is listed under a process that has not ended, it belongs to that process.
//! The caller that traces a thread or a process must check again after that: while it is traced, its number is not
//! reused.

use crate::errno::error_text;
use crate::{process, sys};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use thiserror::Error;

/// Linux gives no process a higher number (PID_MAX_LIMIT).
const HIGHEST_PROCESS: u64 = 1 << 22;

/// The number of one process or thread. 0 and negative numbers, which kill(2) takes for many, are refused.
pub fn of_process(number: u64) -> Option<i32> {
    (1..=HIGHEST_PROCESS)
        .contains(&number)
        .then_some(number as i32)
}

/// `count` numbers from `first` on; `None` if that is more than `most`, the number requested.
pub fn ids(first: u64, count: u64, most: usize) -> Option<Range<u32>> {
    let end = u32::try_from(first.checked_add(count)?).ok()?;
    (count <= most as u64).then(|| end - count as u32..end)
}

/// Reason why a process that a stub has named is left alone.
#[derive(Debug, Error)]
pub enum RelationError {
    #[error("there is no process {number} any more")]
    Gone { number: i32 },
    #[error("process {number} is not a child of process {parent}")]
    NoChild { number: i32, parent: i32 },
    #[error("process {pid} has other rights than process {parent}")]
    OtherRights { pid: i32, parent: i32 },
    #[error("{number} is not a thread of process {pid}")]
    NoThread { number: i32, pid: i32 },
    #[error("{}, so process {pid} cannot be looked at", error_text(source))]
    Unknown { pid: i32, source: io::Error },
}

impl RelationError {
    /// Interprets the kernel's error for process `pid`.
    fn of(pid: i32, source: io::Error) -> RelationError {
        match source.raw_os_error() {
            // No such process (any more); or a thread; or an impossible number.
            Some(libc::ESRCH | libc::ENOENT | libc::EINVAL) => RelationError::Gone { number: pid },
            _ => RelationError::Unknown { pid, source },
        }
    }
}

/// A process, which a later process with the same number is not mistaken for.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: i32,
    pidfd: Arc<OwnedFd>,
}

impl Process {
    /// The process that has this number now.
    ///
    /// # Errors
    /// ESRCH: it does not exist. EINVAL: the number belongs to a thread.
    pub fn open(pid: i32) -> io::Result<Process> {
        let pidfd = Arc::new(sys::pidfd_open(pid)?);
        Ok(Process { pid, pidfd })
    }

    /// Whether it has ended; it may be a zombie.
    pub fn has_ended(&self) -> bool {
        sys::has_ended(self.pidfd.as_fd())
    }

    /// Sends a signal (Linux number; 0 only checks whether that is allowed).
    ///
    /// # Errors
    /// ESRCH: it has ended. EPERM: it belongs to another user.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        sys::pidfd_signal(self.pidfd.as_fd(), signal)
    }

    /// Readable when the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Queries the kernel by the process's number; an error if the process has ended.
    fn ask<T>(&self, question: impl FnOnce(i32) -> io::Result<T>) -> io::Result<T> {
        let answer = question(self.pid)?;
        match self.has_ended() {
            true => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            false => Ok(answer),
        }
    }

    /// The child that this process knows by `number`.
    pub fn child(&self, number: i32) -> Result<Process, RelationError> {
        let child = self.relative(number, |child| {
            Ok(child.ask(process::Status::of)?.parent() == Some(self.pid))
        })?;
        self.check_rights(&child)?;
        Ok(child)
    }

    /// The child that runs in the memory of this process, or has until it called exec. (A child made with CLONE_PARENT
    /// has another parent.)
    pub fn vfork_child(&self, number: i32) -> Result<Process, RelationError> {
        let child = match self.child(number) {
            Err(RelationError::NoChild { .. }) => self.in_its_memory(number)?,
            child => child?,
        };
        self.check_rights(&child)?;
        Ok(child)
    }

    fn relative(
        &self,
        number: i32,
        is_ours: impl Fn(&Process) -> io::Result<bool>,
    ) -> Result<Process, RelationError> {
        let gone = || RelationError::Gone { number };
        let unknown = |source| RelationError::of(number, source);
        let names = process::names_of(self.pid).map_err(unknown)?;
        // In a container the process knows its child by a number different from ours.
        let pid = match names.len() {
            0 | 1 => Some(number),
            depth => process::named(&process::all().map_err(unknown)?, depth, number),
        };
        let child = Process::open(pid.ok_or_else(gone)?).map_err(unknown)?;
        let ours = is_ours(&child).map_err(unknown)?;
        // If our process had ended, the children could belong to a process that has reused its number.
        if self.has_ended() {
            return Err(gone());
        }
        let parent = self.pid;
        if !ours {
            return Err(RelationError::NoChild { number, parent });
        }
        Ok(child)
    }

    /// Refuses a child that has gained rights over its parent.
    pub fn check_rights(&self, child: &Process) -> Result<(), RelationError> {
        let (parent, pid) = (self.pid, child.pid);
        let of = |process: &Process| {
            let rights = process.ask(process::Rights::of);
            rights.map_err(|source| RelationError::of(process.pid, source))
        };
        match of(self)?.include(&of(child)?) {
            true => Ok(()),
            false => Err(RelationError::OtherRights { pid, parent }),
        }
    }

    /// The process that runs in the memory of this one, which knows it by `number`.
    pub fn in_its_memory(&self, number: i32) -> Result<Process, RelationError> {
        self.relative(number, |other| {
            other.ask(|pid| Ok(sys::same_memory(pid, self.pid)))
        })
    }

    /// Our number of the thread that this process knows by `number`.
    pub fn thread(&self, number: i32) -> Result<i32, RelationError> {
        let pid = self.pid;
        let found = self.ask(|pid| {
            let depth = process::names_of(pid)?.len();
            Ok(process::thread_named(pid, depth, number))
        });
        found
            .map_err(|source| RelationError::of(pid, source))?
            .ok_or(RelationError::NoThread { number, pid })
    }

    /// Whether `tid`, by our number, is one of its threads.
    pub fn has_thread(&self, tid: i32) -> bool {
        self.ask(|pid| process::Status::of_thread(pid, tid)).is_ok()
    }
}

/// Limit of the bytes that a stub (or another remote port) may send until the next request. Unrequested output is a
/// line now and then; an answer may be long, but not endless.
#[derive(Debug)]
pub struct Budget {
    whole: usize,
    left: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::of(Budget::WHOLE)
    }
}

impl Budget {
    /// The usual budget, in bytes.
    pub const WHOLE: usize = 64 << 20;

    /// A budget of `whole` bytes.
    pub fn of(whole: usize) -> Budget {
        Budget { whole, left: whole }
    }

    /// Restores the budget at a request.
    pub fn renew(&mut self) {
        self.left = self.whole;
    }

    /// Counts received bytes. False if the budget is exceeded.
    pub fn take(&mut self, bytes: usize) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Message to the user that `who` has sent more.
    pub fn too_much(&self, who: &str) -> String {
        format!(
            "{who} says more than {} MiB at a time, which is no answer; it is not listened to any more",
            self.whole >> 20
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Sleep(Child);

    impl Sleep {
        fn new() -> Sleep {
            Sleep(Command::new("sleep").arg("60").spawn().unwrap())
        }
        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Sleep {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn me() -> Process {
        Process::open(std::process::id() as i32).unwrap()
    }

    #[test]
    fn one_process_each() {
        assert_eq!(of_process(1), Some(1));
        assert_eq!(of_process(1 << 22), Some(1 << 22));
        // kill(2) and waitpid(2) take these for many processes; the last one is -1 in 32 bits.
        for many in [0, u64::MAX, 1 << 63, 0xffff_ffff, (1 << 32) + 7] {
            assert_eq!(of_process(many), None, "{many:#x}");
        }
    }

    #[test]
    fn as_many_as_were_asked_for() {
        assert_eq!(ids(9, 2, 2), Some(9..11));
        assert_eq!(ids(9, 1, 2), Some(9..10));
        assert_eq!(ids(0, 0, 0), Some(0..0));
        assert_eq!(ids(0, 0xffff_ffff, 2), None);
        assert_eq!(ids(u64::MAX, 2, 2), None);
        assert_eq!(ids(0xffff_ffff, 2, 2), None);
    }

    #[test]
    fn a_child_is_the_kernels_word() {
        let child = Sleep::new();
        assert_eq!(me().child(child.pid()).unwrap().pid, child.pid());
        assert_eq!(me().vfork_child(child.pid()).unwrap().pid, child.pid());
        let another = Process::open(child.pid()).unwrap();
        for stranger in [1, me().pid] {
            assert!(
                matches!(another.child(stranger), Err(RelationError::NoChild { .. })),
                "{stranger}"
            );
        }
        assert!(matches!(me().child(1), Err(RelationError::NoChild { .. })));
        assert!(matches!(me().child(-1), Err(RelationError::Gone { .. })));
    }

    #[test]
    fn who_has_ended_is_nobodys_child() {
        let mut child = Sleep::new();
        let (held, number) = (Process::open(child.pid()).unwrap(), child.pid());
        child.0.kill().unwrap();
        while !held.has_ended() {
            std::thread::yield_now();
        }
        // A zombie still has its number and its parent.
        assert!(matches!(
            me().child(number),
            Err(RelationError::Gone { .. })
        ));
        child.0.wait().unwrap();
        assert!(matches!(
            me().child(number),
            Err(RelationError::Gone { .. })
        ));
        assert!(!held.has_thread(number));
        assert!(held.signal(0).is_err());
    }

    #[test]
    fn threads_are_those_of_the_process() {
        let child = Sleep::new();
        let held = Process::open(child.pid()).unwrap();
        assert_eq!(held.thread(child.pid()).unwrap(), child.pid());
        assert!(held.has_thread(child.pid()));
        for stranger in [1, me().pid, 0, -1] {
            assert!(matches!(
                held.thread(stranger),
                Err(RelationError::NoThread { .. })
            ));
            assert!(!held.has_thread(stranger));
        }
    }

    #[test]
    fn rights_gained_are_seen() {
        use std::os::unix::process::CommandExt;
        let child = Sleep::new();
        let held = Process::open(child.pid()).unwrap();
        me().check_rights(&held).unwrap();
        if crate::foreign::no_other_users() {
            return;
        }
        let sleep = Command::new("sleep").arg("60").uid(54321).spawn().unwrap();
        let other = Sleep(sleep);
        assert!(matches!(
            me().child(other.pid()),
            Err(RelationError::OtherRights { .. })
        ));
    }

    #[test]
    fn a_budget_ends_and_is_renewed() {
        let mut budget = Budget::default();
        assert!(budget.take(Budget::WHOLE));
        assert!(!budget.take(1));
        budget.renew();
        assert!(budget.take(1));
        assert!(!budget.take(usize::MAX));
        assert!(!budget.take(1));
    }
}
