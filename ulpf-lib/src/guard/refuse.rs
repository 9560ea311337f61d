//! Reasons why memory cannot be guarded, in sentences.

use alloc::format;
use alloc::string::String;

use linux_raw_sys::errno::*;
use linux_raw_sys::general::RLIMIT_FSIZE;

use super::os;
use crate::addr::{TargetAddr, USER_END};
use crate::device::Unusable;
use crate::pages::PageRun;
use crate::refusal::Refusal;
use crate::sys::Errno;
use crate::watch::{WatchKind, WatchRange};

/// Pages that could not be guarded. Nothing of them has changed.
#[derive(Clone, Debug)]
pub struct Unarmed {
    /// The pages.
    pub run: PageRun,
    /// Why not.
    pub refusal: Refusal,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    Unmapped,
    NotUser,
    Vsyscall,
    Kernel,
    Text,
    Device,
    HugePages,
    Keyed,
    Ours,
    StackEnd,
}

pub(super) fn watch(range: WatchRange, kind: WatchKind, at: TargetAddr, why: Why) -> Refusal {
    let kind = match kind {
        WatchKind::Write => "write",
        WatchKind::Read => "read",
        WatchKind::Access => "access",
    };
    let what = format!(
        "cannot set a {kind} watch on {} ({} bytes)",
        range.start, range.len
    );
    let (why, what_to_do) = words(at, why);
    Refusal {
        what,
        why,
        what_to_do,
    }
}

pub(super) fn words(at: TargetAddr, why: Why) -> (String, String) {
    let (why, todo) = match why {
        Why::Unmapped => (
            format!("no memory is mapped at {at}"),
            "check the address, or set the watch once the program has allocated the memory",
        ),
        Why::NotUser => (
            format!("{at} does not belong to the program: its addresses end at {USER_END:#x}"),
            "watch an address of the program; `info proc mappings` lists them",
        ),
        Why::Vsyscall => (
            format!("{at} is the kernel's vsyscall page, which holds code only"),
            "watch the memory that the system call writes to",
        ),
        Why::Kernel => (
            format!("{at} lies in a page that the kernel shares with all programs (vdso, vvar)"),
            "watch the variable that the program copies the value to",
        ),
        Why::Text => (
            format!(
                "{at} lies in executable memory, and guarding instruction pages is not supported"
            ),
            "use a breakpoint to see the code run; to see it change, watch writes to 1, 2, 4 or 8 bytes of it (there are debug registers for four such watches)",
        ),
        Why::Device => (
            format!("{at} maps a device, whose memory cannot have a second mapping"),
            "watch writes to 1, 2, 4 or 8 bytes of it (there are debug registers for four such watches), or the program's own copy of the data",
        ),
        Why::HugePages => (
            format!(
                "{at} lies in explicitly mapped huge pages, which cannot be guarded in units of 4096 bytes"
            ),
            "watch writes to 1, 2, 4 or 8 bytes of it (there are debug registers for four such watches), or run the program with its huge pages (MAP_HUGETLB, hugetlbfs) turned off",
        ),
        Why::Keyed => (
            format!(
                "the program has given the memory at {at} a protection key of its own (pkey_mprotect), which a guard would take away"
            ),
            "watch writes to 1, 2, 4 or 8 bytes of it (there are debug registers for four such watches), or this memory once the program has given the key back",
        ),
        Why::Ours => (
            format!("{at} lies where ulpf keeps its own memory"),
            "watch an address outside; a program that takes so much address space must take less of it",
        ),
        Why::StackEnd => (
            format!("{at} lies in the last page that the stack may grow to"),
            "raise the stack limit (ulimit -s) and start again",
        ),
    };
    (why, todo.into())
}

fn errno(Errno(e): Errno) -> String {
    let name = match e as u32 {
        ENOMEM => "out of memory",
        EAGAIN => "locked-memory limit",
        EMFILE | ENFILE => "too many open files",
        EFBIG => "file size limit",
        ENOSYS => "not supported by this kernel",
        EPERM | EACCES => "not permitted",
        ENOSPC => "no memory left to promise",
        _ => return format!("error {e}"),
    };
    format!("{name} (error {e})")
}

/// The memfd's size counts as a file size.
pub(super) fn raise_file_limit() -> Result<(), Refusal> {
    match os::limit(RLIMIT_FSIZE) {
        Some((soft, hard)) if soft < os::FILE_SIZE => {
            if hard >= os::FILE_SIZE && os::set_soft_limit(RLIMIT_FSIZE, hard, hard).is_ok() {
                return Ok(());
            }
            Err(Refusal {
                what: "cannot guard memory".into(),
                why: format!(
                    "the file size limit is {hard} bytes, and guarded memory lives in a sparse memory file"
                ),
                what_to_do: "start the program with `ulimit -f unlimited`".into(),
            })
        }
        _ => Ok(()),
    }
}

pub(super) fn no_device(why: Unusable) -> Refusal {
    Refusal::new(
        "cannot guard memory with the kernel module (backend `kernel`)",
        why.why(),
        why.what_to_do(),
    )
}

pub(super) fn no_memfd(e: Errno) -> Refusal {
    Refusal {
        what: "cannot guard memory".into(),
        why: format!(
            "the kernel gives no memory file (memfd_create): {}",
            errno(e)
        ),
        what_to_do: "check a sandbox around the program (seccomp) and its limit of open files"
            .into(),
    }
}

pub(super) fn no_maps(e: Errno) -> Refusal {
    Refusal {
        what: "cannot look up the program's memory".into(),
        why: format!("/proc/self/maps cannot be read: {}", errno(e)),
        what_to_do: "mount /proc where the program runs".into(),
    }
}

pub(super) fn no_alias(start: u64, end: u64, e: Errno) -> Refusal {
    Refusal {
        what: format!("cannot guard {start:#x}-{end:#x}"),
        why: format!("there is no room for a second mapping of it: {}", errno(e)),
        what_to_do: "raise the limit of address space (ulimit -v) or of locked memory (ulimit -l)"
            .into(),
    }
}

pub(super) fn in_use(start: u64, end: u64) -> Refusal {
    Refusal {
        what: format!("cannot guard {start:#x}-{end:#x}"),
        why: "requests of io_uring in flight may access this memory, it is registered with a ring (IORING_REGISTER_BUFFERS), or a thread has registered it for restartable sequences (rseq(2))".into(),
        what_to_do: "set the watch when the requests have completed, or before the program makes them; beside an area of rseq(2), watch 1, 2, 4 or 8 bytes in a debug register (placement register)".into(),
    }
}

pub(super) fn no_move(start: u64, end: u64, e: Errno) -> Refusal {
    Refusal {
        what: format!("cannot guard {start:#x}-{end:#x}"),
        why: format!("the pages cannot be replaced: {}", errno(e)),
        what_to_do: match e.0 as u32 {
            ENOMEM => "raise vm.max_map_count (sysctl) or watch fewer separate pages",
            EPERM | EACCES => {
                "the program or its sandbox has sealed this memory: watch a copy of the data"
            }
            _ => "watch memory that the program has allocated in the usual ways",
        }
        .into(),
    }
}

pub(super) fn no_memory(start: u64, end: u64, e: Errno) -> Refusal {
    Refusal {
        what: format!("cannot guard {start:#x}-{end:#x}"),
        why: format!("memory for its pages is not to be had: {}", errno(e)),
        what_to_do: "free memory, or allow overcommit (sysctl vm.overcommit_memory=0)".into(),
    }
}

/// `e`: the error that ended the copy into the memory file.
pub(super) fn no_content(start: u64, end: u64, e: Errno) -> Refusal {
    if e.0 as u32 != EFAULT {
        return no_memory(start, end, e);
    }
    Refusal {
        what: format!("cannot guard {start:#x}-{end:#x}"),
        why: "its content cannot be read (a mapping beyond the end of its file, or a guard region)"
            .into(),
        what_to_do: "watch memory that the program can read".into(),
    }
}

pub(super) fn no_return(start: u64, end: u64, e: Errno) -> Refusal {
    Refusal {
        what: format!("cannot give {start:#x}-{end:#x} back as private memory"),
        why: errno(e),
        what_to_do: "free memory, or raise the limits of address space and data (ulimit -v, -d)"
            .into(),
    }
}
