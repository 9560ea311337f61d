//! Watches in the processor's debug registers: perf events that send SIGTRAP behind the access.
//!
//! ```text
//! store ─▶ #DB ─▶ SIGTRAP (TRAP_PERF, which watch) ─▶ which instruction was it? ─▶ its hits
//! ```
//! Each thread that exists when a watch is set has events of its own; threads that it makes later inherit them. The
//! kernel sends one SIGTRAP even if several registers have matched. So the instruction is found
//! (`engine/src/attribution.rs`) and all its hits are determined. A second event for the same thread and watch (a thread
//! that was just being made) is harmless for the same reason.
//!
//! No page is guarded, so system calls work on watched memory, but their accesses are no hits. The old value is the last
//! one seen.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::access::Insn;
use ulpf_engine::attribution::{self, Program, State, Touch};
use ulpf_engine::frame::{SigInfo, UContext};
use ulpf_lib::perf::{Event, TRAP_PERF};
use ulpf_lib::sys::Errno;
use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange, sys};

use crate::callbacks::after_access;
use crate::change;
use crate::code::gs_base;
use crate::error::Failure;
use crate::exception_stacks::OwnBlock;
use crate::hits::Pending;
use crate::memory::read_by_kernel;
use crate::shared::S;
use crate::thread;

/// The number of registers of x86.
const SLOTS: usize = 4;
/// In `perf_event_attr.sig_data` of our events, above the watch's number: the program may have events of its own.
const COOKIE: u64 = (u32::from_le_bytes(*b"ulpf") as u64) << 32;

/// One register. Written by the changer, but for `last`.
struct Register {
    /// 0: free.
    id: AtomicU32,
    kind: AtomicU32,
    addr: AtomicU64,
    len: AtomicU64,
    /// The last value seen.
    last: AtomicU64,
}

static REGISTERS: [Register; SLOTS] = [const {
    Register {
        id: AtomicU32::new(0),
        kind: AtomicU32::new(0),
        addr: AtomicU64::new(0),
        len: AtomicU64::new(0),
        last: AtomicU64::new(0),
    }
}; SLOTS];

/// The descriptors of each register's events.
pub struct Events([Vec<i32>; SLOTS]);

impl Events {
    pub const fn none() -> Events {
        Events([const { Vec::new() }; SLOTS])
    }
}

impl Register {
    fn watch(&self) -> Option<(u32, WatchRange, WatchKind)> {
        let id = self.id.load(Acquire);
        let kind = match self.kind.load(Relaxed) {
            1 => WatchKind::Write,
            2 => WatchKind::Read,
            _ => WatchKind::Access,
        };
        let start = TargetAddr(self.addr.load(Relaxed));
        let range = WatchRange::new(start, self.len.load(Relaxed))?;
        (id != 0).then_some((id, range, kind))
    }

    /// Stores the present value as the last one seen; returns the one before.
    fn look(&self) -> u64 {
        let mut bytes = [0u8; 8];
        let len = self.len.load(Relaxed) as usize;
        let whole = bytes
            .get_mut(..len)
            .is_some_and(|to| read_by_kernel(self.addr.load(Relaxed), to) == len as u64);
        if whole {
            self.last.swap(u64::from_le_bytes(bytes), AcqRel)
        } else {
            self.last.load(Acquire)
        }
    }
}

// ---- events -------------------------------------------------------------------------------------

fn open(thread: i32, id: u32, range: WatchRange, kind: WatchKind) -> Result<i32, Errno> {
    let event = Event::breakpoint(range, kind, COOKIE | u64::from(id));
    event.of_new_threads().open(thread)
}

fn close(fd: i32) {
    // SAFETY: ours.
    let _ = unsafe { sys!(k::__NR_close, fd) };
}

fn refused(e: Errno) -> Failure {
    let why = match e.0 {
        libc::EACCES | libc::EPERM => {
            "the kernel does not let this program use debug registers (kernel.perf_event_paranoid above 2, or a \
             sandbox)"
        }
        libc::ENOSPC => {
            "the processor's debug registers are taken: by a debugger's hardware watchpoints, or by other events"
        }
        libc::EMFILE | libc::ENFILE => {
            "no descriptor is left, and each watch takes one for each thread; raise the limit (ulimit -n)"
        }
        _ => {
            "this kernel or machine has no debug registers for programs (Linux 5.13 or later is needed)"
        }
    };
    Failure::os(e, &format!("{why}; ULPF_BACKEND=signal needs none"))
}

/// Checks that such events can be opened.
pub fn probe() -> Result<(), Failure> {
    static PLACE: AtomicU64 = AtomicU64::new(0);
    let Some(range) = WatchRange::new(TargetAddr(PLACE.as_ptr() as u64), 8) else {
        return Ok(());
    };
    open(0, 0, range, WatchKind::Write)
        .map(close)
        .map_err(refused)
}

/// Calls `f` for each thread of the process. (Not by the C library, which allocates.)
fn each_thread(mut f: impl FnMut(i32) -> Result<(), Errno>) -> Result<(), Errno> {
    // SAFETY: a directory of the kernel's; entries are parsed within what was read.
    unsafe {
        let flags = k::O_RDONLY | k::O_DIRECTORY | k::O_CLOEXEC;
        let fd = sys!(
            k::__NR_openat,
            -100i64,
            c"/proc/self/task".as_ptr(),
            flags,
            0
        )? as i32;
        let mut buffer = [0u64; 256];
        let result = loop {
            match sys!(
                k::__NR_getdents64,
                fd,
                buffer.as_mut_ptr(),
                size_of_val(&buffer)
            ) {
                Ok(0) => break Ok(()),
                Ok(n) => {
                    let bytes =
                        core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), n as usize);
                    if let Err(e) = names(bytes, &mut f) {
                        break Err(e);
                    }
                }
                Err(e) => break Err(e),
            }
        };
        close(fd);
        result
    }
}

/// The numbers among the names of `struct linux_dirent64`s.
fn names(mut bytes: &[u8], f: &mut impl FnMut(i32) -> Result<(), Errno>) -> Result<(), Errno> {
    const NAME: usize = 19;
    while let (Some(len), Some(name)) = (bytes.get(16..18), bytes.get(NAME..)) {
        let len = u16::from_le_bytes([len[0], len[1]]) as usize;
        let digits = name.iter().take_while(|c| c.is_ascii_digit());
        let number = digits.fold(0i32, |n, c| {
            n.wrapping_mul(10).wrapping_add((c - b'0') as i32)
        });
        if number != 0 {
            f(number)?;
        }
        bytes = bytes.get(len.max(NAME)..).unwrap_or(&[]);
    }
    Ok(())
}

/// Events for all threads: for those that exist, which the later ones inherit.
fn open_all(id: u32, range: WatchRange, kind: WatchKind, fds: &mut Vec<i32>) -> Result<(), Errno> {
    let mut known: Vec<i32> = Vec::new();
    loop {
        let before = known.len();
        each_thread(|thread| {
            if known.contains(&thread) {
                return Ok(());
            }
            known.push(thread);
            match open(thread, id, range, kind) {
                Ok(fd) => fds.push(fd),
                Err(Errno(libc::ESRCH)) => {} // it has ended
                Err(e) => return Err(e),
            }
            Ok(())
        })?;
        // Repeat until no thread was created meanwhile by one without an event.
        if known.len() == before {
            return Ok(());
        }
    }
}

/// Sets a watch (the changer).
pub fn arm(
    events: &mut Events,
    id: u32,
    range: WatchRange,
    kind: WatchKind,
) -> Result<(), Failure> {
    let len = range.len;
    if !matches!(len, 1 | 2 | 4 | 8) || !range.start.0.is_multiple_of(len) {
        return Err(Failure::new(
            libc::EOPNOTSUPP,
            "a debug register watches 1, 2, 4 or 8 bytes at a multiple of their number; other ranges need page \
             guards (ULPF_BACKEND=signal)",
        ));
    }
    let Some((n, register)) = REGISTERS
        .iter()
        .enumerate()
        .find(|(_, r)| r.id.load(Relaxed) == 0)
    else {
        return Err(Failure::new(
            libc::ENOSPC,
            "the processor has four debug registers, and all hold watches; delete one, or use page guards \
             (ULPF_BACKEND=signal)",
        ));
    };
    register.kind.store(kind as u32, Relaxed);
    register.addr.store(range.start.0, Relaxed);
    register.len.store(len, Relaxed);
    register.look();
    register.id.store(id, Release);
    let result = open_all(id, range, kind, &mut events.0[n]);
    result.map_err(|e| {
        disarm(events, id);
        refused(e)
    })
}

/// Ends a watch (the changer).
pub fn disarm(events: &mut Events, id: u32) {
    for (n, register) in REGISTERS.iter().enumerate() {
        if register.id.load(Relaxed) == id {
            events.0[n].drain(..).for_each(close);
            register.id.store(0, Release);
        }
    }
}

// ---- traps --------------------------------------------------------------------------------------

struct Ourselves;

impl Program for Ourselves {
    fn read(&self, addr: u64, to: &mut [u8]) -> usize {
        read_by_kernel(addr, to) as usize
    }
    fn decode(&self, pc: u64, bytes: &[u8]) -> Option<Insn> {
        S.engine()?.decoder.decode(pc, bytes).ok()
    }
}

/// Handles a trap of ours: its hits. Returns `false` if it is not ours.
pub fn trapped(own: OwnBlock, uc: &mut UContext, info: &SigInfo) -> bool {
    let [_, data, ..] = info.data;
    if info.code != TRAP_PERF || data & !0xffff_ffff != COOKIE {
        return false;
    }
    let after = uc.gprs.rip;
    let mut pending = Pending::new(after);
    let still = change::enter(own);
    let first = REGISTERS.iter().find(|r| r.id.load(Acquire) == data as u32);
    if let Some((first, (id, range, kind))) = first.and_then(|r| Some((r, r.watch()?))) {
        let mut code = [0u8; 16];
        let n = Ourselves.read(after.wrapping_sub(16), &mut code);
        let state = State {
            gprs: uc.gprs,
            xsave: uc.fpstate,
            bases: (thread::pointer(), gs_base(code.get(..n).unwrap_or(&[]))),
        };
        let touch = attribution::touched(&Ourselves, state, after, None, range, kind);
        if let Some(touch) = touch {
            pending.pc = touch.pc;
            note(&mut pending, first, id, range, kind, &touch);
            for other in REGISTERS.iter().filter(|r| !core::ptr::eq(*r, first)) {
                let Some((id, range, kind)) = other.watch() else {
                    continue;
                };
                let touch =
                    attribution::touched_too(&Ourselves, state, after, touch.pc, range, kind);
                if let Some(touch) = touch {
                    note(&mut pending, other, id, range, kind, &touch);
                }
            }
        }
    }
    pending.made(&still);
    change::leave(own, still);
    after_access(own, uc.sigmask, uc, &pending);
    true
}

fn note(
    pending: &mut Pending,
    register: &Register,
    id: u32,
    range: WatchRange,
    kind: WatchKind,
    touch: &Touch,
) {
    let old = register.look().to_le_bytes();
    if !kind.sees(touch.kind) {
        return;
    }
    let from = touch.addr.0.saturating_sub(range.start.0) as usize;
    let old = old.get(from..from + touch.len as usize).unwrap_or(&[]);
    pending.push(WatchId(id), touch.addr.0, touch.len, touch.kind, |to| {
        let n = to.len().min(old.len());
        to[..n].copy_from_slice(&old[..n]);
        n == to.len()
    });
}
