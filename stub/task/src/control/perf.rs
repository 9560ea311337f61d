//! The kernel's side of debug registers: perf events of type PERF_TYPE_BREAKPOINT, one a register and
//! task, and a ring for each task. Opened by the stub's task for the program's threads, so neither
//! descriptors nor children of ours show in the program.

use linux_raw_sys::general as k;
use ulpf_lib::place::{self, AfterFork};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_lib::{WatchKind, WatchRange};

use ulpf_stub_handlers::runtime::debug_registers::COOKIE;

/// `struct perf_event_attr`, version 7 (Linux 5.13), as words.
type Attr = [u64; 16];

const PERF_TYPE_SOFTWARE: u64 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_TYPE_BREAKPOINT: u64 = 5;
const SIZE: u64 = size_of::<Attr>() as u64;
const SAMPLE_IP_ADDR: u64 = 1 | 8;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const WATERMARK: u64 = 1 << 14;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;
const HW_BREAKPOINT_RW: u64 = 3;
const HW_BREAKPOINT_W: u64 = 2;
const FD_CLOEXEC: u64 = 8;
const SET_OUTPUT: u64 = 0x2405;
/// A page that describes the ring, and one of records.
const RING_LEN: u64 = 2 << 12;

fn open(attr: &Attr, tid: i32) -> Result<i32, Errno> {
    // SAFETY: the block is as long as it says.
    let fd = unsafe {
        sys!(
            k::__NR_perf_event_open,
            attr.as_ptr(),
            tid,
            -1i64,
            -1i64,
            FD_CLOEXEC
        )
    }?;
    Ok(fd as i32)
}

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
    let mut attr: Attr = [0; 16];
    attr[0] = PERF_TYPE_BREAKPOINT | SIZE << 32;
    attr[2] = 1; // every one
    attr[3] = SAMPLE_IP_ADDR;
    attr[5] = EXCLUDE_KERNEL | EXCLUDE_HV | WATERMARK | REMOVE_ON_EXEC | SIGTRAP;
    let what = match kind {
        WatchKind::Write => HW_BREAKPOINT_W,
        _ => HW_BREAKPOINT_RW,
    };
    attr[6] = 0x7fff_ffff | what << 32; // nobody is to be woken by the ring
    attr[7] = range.start.0;
    attr[8] = range.len;
    attr[15] = COOKIE;
    let fd = open(&attr, tid)?;
    if let Some(ring) = ring {
        // SAFETY: both descriptors are ours.
        let joined = unsafe { sys!(k::__NR_ioctl, fd, SET_OUTPUT, ring.fd) };
        joined.inspect_err(|_| close(fd))?;
    }
    Ok(fd)
}

/// Where the matches of one task are written down.
pub struct Ring {
    fd: i32,
    pub addr: u64,
}

impl Ring {
    pub fn new(tid: i32) -> Result<Ring, Errno> {
        // A mapping keeps its event alive; so it is that of an event that does nothing.
        let mut attr: Attr = [0; 16];
        attr[0] = PERF_TYPE_SOFTWARE | SIZE << 32;
        attr[1] = PERF_COUNT_SW_DUMMY;
        attr[5] = EXCLUDE_KERNEL | EXCLUDE_HV | WATERMARK | REMOVE_ON_EXEC;
        attr[6] = 0x7fff_ffff;
        let fd = open(&attr, tid)?;
        let prot = k::PROT_READ | k::PROT_WRITE;
        // The kernel gives such a ring to no child.
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
