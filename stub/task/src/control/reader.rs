//! A second thread of the stub's task: waits on the control socket and on the program's pidfd, so
//! that the main loop can wait on one futex word for everything.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::sync::lock::Lock;
use ulpf_lib::sys;

use linux_raw_sys::errno::ENOMEM;
use linux_raw_sys::net::MSG_DONTWAIT;
use ulpf_lib::sync::futex;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::asm::ulpf_spawn;
use ulpf_stub_handlers::runtime::park;

const ROOM: usize = 256 << 10;
const STACK: usize = 64 << 10;
static STACK_TOP: AtomicU64 = AtomicU64::new(0);
/// The thread's number.
static READER: AtomicI32 = AtomicI32::new(0);
/// The thread is to end ([`stop`]); a descriptor wakes it.
static ENDS: AtomicBool = AtomicBool::new(false);
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Single producer (the reader), single consumer (the main loop).
struct Pipe {
    bytes: core::cell::UnsafeCell<[u8; ROOM]>,
    written: AtomicUsize,
    taken: AtomicUsize,
}

// SAFETY: the producer writes only free room, the consumer reads only filled room.
unsafe impl Sync for Pipe {}

static PIPE: Pipe = Pipe {
    bytes: core::cell::UnsafeCell::new([0; ROOM]),
    written: AtomicUsize::new(0),
    taken: AtomicUsize::new(0),
};
pub static CONTROL: AtomicI32 = AtomicI32::new(-1);
static PIDFD: AtomicI32 = AtomicI32::new(-1);
/// 1 while the program runs: then this thread reads the socket. While the program is stopped the main loop reads it,
/// which saves two context switches for each of a debugger's many packets. For the first moments after a resume neither
/// reads: in a session with many stops, nearly all of them come then.
static LISTEN: AtomicU32 = AtomicU32::new(1);
/// Held around every read, so that bytes stay in order.
static READING: Lock = Lock::open();

/// The command has closed its end.
pub static CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns whether the program has died; for waits during which no thread may be listening.
pub fn program_is_dead() -> bool {
    if !DEAD.load(SeqCst) && LISTEN.load(SeqCst) == 0 {
        let mut fds = [PollFd {
            fd: PIDFD.load(Relaxed),
            events: 1,
            revents: 0,
        }];
        // SAFETY: polls one descriptor of this task.
        let _ = unsafe { sys!(k::__NR_poll, fds.as_mut_ptr(), 1, 0) };
        if fds[0].revents != 0 {
            DEAD.store(true, SeqCst);
        }
    }
    DEAD.load(SeqCst)
}

/// The program has ended.
pub static DEAD: AtomicBool = AtomicBool::new(false);

#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

pub fn start(control: i32, pidfd: i32) -> Result<(), sys::Errno> {
    CONTROL.store(control, SeqCst);
    PIDFD.store(pidfd, SeqCst);
    let stack = ulpf_lib::arena::map_anonymous(STACK);
    if stack.is_null() {
        return Err(sys::Errno(ENOMEM as i32));
    }
    STACK_TOP.store(stack as u64 + STACK as u64, SeqCst);
    // SAFETY: a descriptor of this task's.
    let wake = unsafe { sys!(k::__NR_eventfd2, 0, k::O_CLOEXEC | k::O_NONBLOCK) }?;
    WAKE.store(wake as i32, SeqCst);
    again()
}

/// Ends the thread, whose rights differ from this task's.
pub fn stop() {
    let reader = READER.load(SeqCst);
    ENDS.store(true, SeqCst);
    // SAFETY: one's own descriptor, and a signal that only asks whether the thread is there.
    unsafe {
        loop {
            futex::wake_all(&LISTEN);
            let _ = sys!(k::__NR_write, WAKE.load(SeqCst), &1u64 as *const u64, 8);
            if sys!(k::__NR_tgkill, g().stub_tid.load(Relaxed), reader, 0).is_err() {
                break;
            }
            super::pause::sleep();
        }
        let mut count = 0u64;
        let _ = sys!(k::__NR_read, WAKE.load(SeqCst), &raw mut count, 8);
    }
    ENDS.store(false, SeqCst);
}

/// Starts the thread, with this task's present rights.
pub fn again() -> Result<(), sys::Errno> {
    if STACK_TOP.load(SeqCst) == 0 {
        return Ok(());
    }
    // A thread of the stub's task.
    const FLAGS: u32 = k::CLONE_VM
        | k::CLONE_FS
        | k::CLONE_FILES
        | k::CLONE_SIGHAND
        | k::CLONE_THREAD
        | k::CLONE_SYSVSEM;
    // SAFETY: a stack that no thread uses, and an entry that never returns.
    let r = unsafe { ulpf_spawn(FLAGS.into(), STACK_TOP.load(SeqCst), work) };
    sys::check(r).map(|tid| READER.store(tid as i32, SeqCst))
}

fn end_if_asked() {
    if ENDS.load(SeqCst) {
        // SAFETY: ends this thread.
        let _ = unsafe { sys!(k::__NR_exit, 0) };
    }
}

extern "C" fn work() -> ! {
    let mut fds = [
        PollFd {
            fd: CONTROL.load(SeqCst),
            events: 1,
            revents: 0,
        },
        PollFd {
            fd: if DEAD.load(SeqCst) {
                -1
            } else {
                PIDFD.load(SeqCst)
            },
            events: 1,
            revents: 0,
        },
        PollFd {
            fd: WAKE.load(SeqCst),
            events: 1,
            revents: 0,
        },
    ];
    if CLOSED.load(SeqCst) {
        fds[0].fd = -1;
    }
    loop {
        end_if_asked();
        while LISTEN.load(SeqCst) == 0 {
            futex::wait(&LISTEN, 0);
            end_if_asked();
        }
        // SAFETY: polls three descriptors of this task.
        let _ = unsafe { sys!(k::__NR_poll, fds.as_mut_ptr(), 3, -1i64) };
        end_if_asked();
        if fds[1].revents != 0 {
            DEAD.store(true, SeqCst);
            fds[1].fd = -1;
            fds[1].revents = 0;
            park::notify();
        }
        if fds[0].revents != 0 {
            let written = PIPE.written.load(Relaxed);
            let free = ROOM - (written - PIPE.taken.load(SeqCst));
            let at = written % ROOM;
            let n = free.min(ROOM - at);
            if n == 0 {
                super::pause::sleep(); // until the consumer has made room
                continue;
            }
            let got = exclusively(|| {
                if LISTEN.load(SeqCst) == 0 {
                    return Err(EAGAIN);
                }
                // SAFETY: free room of the pipe.
                let got =
                    unsafe { receive_into((PIPE.bytes.get() as *mut u8).add(at), n, MSG_DONTWAIT) };
                // Before another thread may read the bytes behind these.
                if let Ok(n) = got {
                    PIPE.written.store(written + n as usize, SeqCst);
                }
                got
            });
            match got {
                Err(EAGAIN | EINTR) => continue,
                Ok(0) | Err(_) => {
                    CLOSED.store(true, SeqCst);
                    fds[0].fd = -1;
                    fds[0].revents = 0;
                }
                Ok(_) => {}
            }
            park::notify();
        }
    }
}

const EAGAIN: sys::Errno = sys::Errno(11);
const EINTR: sys::Errno = sys::Errno(4);

/// # Safety
/// `to` has room for `len` bytes.
unsafe fn receive_into(to: *mut u8, len: usize, flags: u32) -> Result<u64, sys::Errno> {
    // SAFETY: the caller's duty.
    unsafe {
        sys!(
            k::__NR_recvfrom,
            CONTROL.load(Relaxed),
            to,
            len,
            flags,
            0,
            0
        )
    }
}

fn exclusively<R>(f: impl FnOnce() -> R) -> R {
    let _locked = READING.lock();
    f()
}

/// Selects the reader from now on: this thread (`true`) or the main loop.
pub fn listen(on: bool) {
    if LISTEN.load(SeqCst) == on as u32 {
        return;
    }
    exclusively(|| LISTEN.store(on as u32, SeqCst));
    if on {
        futex::wake_all(&LISTEN);
    }
}

pub fn listens() -> bool {
    LISTEN.load(SeqCst) == 1
}

/// For the main loop, while it reads the socket: waits for bytes for at most a tenth of a second. `None`: no bytes
/// came, or the other end is closed ([`CLOSED`]).
pub fn receive(to: &mut [u8]) -> Option<usize> {
    let mut fds = [CONTROL.load(Relaxed), PIDFD.load(Relaxed)].map(|fd| PollFd {
        fd,
        events: 1,
        revents: 0,
    });
    // SAFETY: polls two descriptors of this task.
    let _ = unsafe { sys!(k::__NR_poll, fds.as_mut_ptr(), 2, 100) };
    if fds[1].revents != 0 {
        DEAD.store(true, SeqCst);
        return None;
    }
    // SAFETY: the slice's own room.
    match unsafe { receive_into(to.as_mut_ptr(), to.len(), MSG_DONTWAIT) } {
        Err(EAGAIN | EINTR) => None,
        Ok(0) | Err(_) => {
            CLOSED.store(true, SeqCst);
            None
        }
        Ok(n) => Some(n as usize),
    }
}

/// Moves the bytes that have arrived into `to`, and returns their number.
pub fn take(to: &mut [u8]) -> usize {
    let (written, taken) = (PIPE.written.load(SeqCst), PIPE.taken.load(Relaxed));
    let at = taken % ROOM;
    let n = (written - taken).min(ROOM - at).min(to.len());
    // SAFETY: filled room of the pipe.
    unsafe {
        core::ptr::copy_nonoverlapping((PIPE.bytes.get() as *const u8).add(at), to.as_mut_ptr(), n)
    };
    PIPE.taken.store(taken + n, SeqCst);
    n
}
