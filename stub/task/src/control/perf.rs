//! The kernel's side of debug registers: perf events of type PERF_TYPE_BREAKPOINT, one a register and
//! task, and a ring for each task. Opened by the stub's task for the program's threads, so neither
//! descriptors nor children of ours show in the program.

use linux_raw_sys::general as k;
use ulpf_lib::perf::Event;
use ulpf_lib::place::{self, AfterFork};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_lib::{WatchKind, WatchRange};

use ulpf_lib::sys::uapi::PERF_EVENT_IOC_SET_OUTPUT;
use ulpf_stub_handlers::runtime::debug_registers::COOKIE;

/// A page that describes the ring, and a page of records.
const RING_LEN: u64 = 2 << 12;

pub fn close(fd: i32) {
    // SAFETY: a descriptor of ours.
    let _ = unsafe { sys!(k::__NR_close, fd) };
}

/// A breakpoint on a task's accesses, writing to `ring` if there is one.
pub fn breakpoint(
    tid: i32,
    range: WatchRange,
    kind: WatchKind,
    ring: Option<&Ring>,
) -> Result<i32, Errno> {
    let fd = Event::breakpoint(range, kind, COOKIE)
        .recorded()
        .open(tid)?;
    if let Some(ring) = ring {
        // SAFETY: both descriptors are ours.
        let joined = unsafe { sys!(k::__NR_ioctl, fd, PERF_EVENT_IOC_SET_OUTPUT, ring.fd) };
        joined.inspect_err(|_| close(fd))?;
    }
    Ok(fd)
}

/// Ring buffer for the breakpoint hits of one task.
pub struct Ring {
    fd: i32,
    pub addr: u64,
}

impl Ring {
    pub fn new(tid: i32) -> Result<Ring, Errno> {
        // A mapping keeps its event alive, so it belongs to an event that does nothing.
        let fd = Event::ring().open(tid)?;
        let prot = k::PROT_READ | k::PROT_WRITE;
        // The kernel passes such a ring to no child.
        let at = place::map(
            RING_LEN,
            prot,
            k::MAP_SHARED,
            i64::from(fd),
            AfterFork::Both,
        );
        let addr = at.inspect_err(|_| close(fd))?;
        Ok(Ring { fd, addr })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        place::unmap(self.addr, RING_LEN);
        close(self.fd);
    }
}
