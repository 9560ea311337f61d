//! The rings of the program, created by io_uring_setup(2), and our own view of their memory.
//!
//! A ring is known by its file ([`identity`]), so descriptors may be duplicated, closed and used again. Our view would
//! keep a ring alive after its last descriptor: [`State::bury`] checks after every call that can close one.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use linux_raw_sys::io_uring as u;
use ulpf_lib::sync::lock::Lock;

use super::flight::{Flight, Span};
use super::identity::{self, unmap, view};
use super::provided::Given;
use super::registered::Registered;

pub const RINGS: usize = 64;

/// There has been a ring: calls that may close it come to the stub.
pub static SOME: AtomicBool = AtomicBool::new(false);

/// A registered buffer: the program's address, the length, and the address that the kernel has got.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Fixed {
    pub at: u64,
    pub len: u64,
    pub given: u64,
}

#[derive(Clone, Copy)]
pub struct Ring {
    /// Identity of the ring's file ([`identity`]), or 0 if this slot is free.
    pub identity: u64,
    pub fd: i32,
    pub flags: u32,
    /// The program has asked for a thread that polls it, but the ring has no such thread.
    pub polled: bool,
    /// The kernel accepts an absolute end time for a wait.
    pub until: bool,
    sq: u64,
    sq_len: u64,
    sqes: u64,
    sqes_len: u64,
    pub entries: u32,
    cq_entries: u32,
    sq_off: [u32; 3],
    cq_off: [u32; 2],
    /// Position up to which its completions have been read.
    pub seen: u32,
    /// Completions have been missed, or requests have not been noted: all memory may be in flight.
    pub lost: bool,
    /// A request completes more than once, or silently: completions cannot be counted.
    pub many: bool,
    pub submitted: u32,
    pub fixed: *mut Fixed,
    pub fixed_len: u32,
}

impl Ring {
    const NONE: Ring = Ring {
        identity: 0,
        fd: -1,
        flags: 0,
        polled: false,
        until: false,
        sq: 0,
        sq_len: 0,
        sqes: 0,
        sqes_len: 0,
        entries: 0,
        cq_entries: 0,
        sq_off: [0; 3],
        cq_off: [0; 2],
        seen: 0,
        lost: false,
        many: false,
        submitted: 0,
        fixed: core::ptr::null_mut(),
        fixed_len: 0,
    };

    /// Maps the memory that the kernel shares with the program.
    pub fn new(fd: i32, p: &u::io_uring_params) -> Option<Ring> {
        let big = if p.flags & u::IORING_SETUP_CQE32 != 0 {
            32
        } else {
            16
        };
        let sqe = if p.flags & u::IORING_SETUP_SQE128 != 0 {
            128
        } else {
            64
        };
        let array = p.sq_off.array as u64 + p.sq_entries as u64 * 4;
        let cqes = p.cq_off.cqes as u64 + p.cq_entries as u64 * big;
        let sq_len = array.max(cqes).next_multiple_of(4096);
        let sqes_len = (p.sq_entries as u64 * sqe).next_multiple_of(4096);
        let sq = view(fd, sq_len, u::IORING_OFF_SQ_RING as u64)?;
        let Some(sqes) = view(fd, sqes_len, u::IORING_OFF_SQES as u64) else {
            unmap(sq, sq_len);
            return None;
        };
        let Some(identity) = identity::give(fd, p, sq) else {
            unmap(sq, sq_len);
            unmap(sqes, sqes_len);
            return None;
        };
        Some(Ring {
            identity,
            fd,
            flags: p.flags,
            until: p.features & u::IORING_FEAT_MIN_TIMEOUT != 0,
            sq,
            sq_len,
            sqes,
            sqes_len,
            entries: p.sq_entries,
            cq_entries: p.cq_entries,
            sq_off: [p.sq_off.head, p.sq_off.tail, p.sq_off.array],
            cq_off: [p.cq_off.tail, p.cq_off.cqes],
            ..Ring::NONE
        })
    }

    /// Marks its polling thread as asleep. The kernel's ring has no such thread, so the kernel leaves the flag
    /// unchanged.
    pub fn polls(&mut self, p: &u::io_uring_params) {
        self.polled = true;
        self.word(p.sq_off.flags)
            .fetch_or(u::IORING_SQ_NEED_WAKEUP, SeqCst);
    }

    fn word(&self, off: u32) -> &AtomicU32 {
        // SAFETY: within our view of the ring, which lives as long as this is in the table.
        unsafe { &*((self.sq + off as u64) as *const AtomicU32) }
    }
    pub fn head(&self) -> u32 {
        self.word(self.sq_off[0]).load(Acquire)
    }
    pub fn tail(&self) -> u32 {
        self.word(self.sq_off[1]).load(Acquire)
    }
    pub fn completed(&self) -> u32 {
        self.word(self.cq_off[0]).load(Acquire)
    }
    /// Address of the request at this position of the submission queue; `None` if the kernel drops it.
    pub fn sqe(&self, position: u32) -> Option<u64> {
        let at = position & (self.entries - 1);
        let n = match self.flags & u::IORING_SETUP_NO_SQARRAY != 0 {
            true => at,
            false => self.word(self.sq_off[2] + 4 * at).load(Relaxed),
        };
        let size = self.sqes_len_of_one();
        (n < self.entries).then(|| self.sqes + n as u64 * size)
    }
    fn sqes_len_of_one(&self) -> u64 {
        if self.flags & u::IORING_SETUP_SQE128 != 0 {
            128
        } else {
            64
        }
    }
    /// The completion at this position: user_data, result, flags.
    pub fn cqe(&self, position: u32) -> (u64, i32, u32) {
        let size = if self.flags & u::IORING_SETUP_CQE32 != 0 {
            32
        } else {
            16
        };
        let at = (position & (self.cq_entries - 1)) as u64 * size;
        let at = self.sq + self.cq_off[1] as u64 + at;
        // SAFETY: within our view.
        unsafe {
            (
                (at as *const u64).read_volatile(),
                ((at + 8) as *const i32).read_volatile(),
                ((at + 12) as *const u32).read_volatile(),
            )
        }
    }
    /// The number of completions that can be read at once.
    pub fn window(&self) -> u32 {
        self.cq_entries
    }

    pub fn fixed(&self, n: u32) -> Option<Fixed> {
        // SAFETY: so many were written there.
        (n < self.fixed_len).then(|| unsafe { *self.fixed.add(n as usize) })
    }
    pub fn forget_fixed(&mut self) {
        if !self.fixed.is_null() {
            let len = self.fixed_len as usize * size_of::<Fixed>();
            ulpf_lib::arena::unmap_anonymous(self.fixed.cast(), len);
        }
        (self.fixed, self.fixed_len) = (core::ptr::null_mut(), 0);
    }
    /// Drops a ring for which there was no room in the table.
    pub fn give_up(mut self) {
        self.end();
    }
    fn end(&mut self) {
        unmap(self.sq, self.sq_len);
        unmap(self.sqes, self.sqes_len);
        self.forget_fixed();
        *self = Ring::NONE;
    }
}

/// The state of rings, and of requests in flight.
pub struct State {
    pub rings: [Ring; RINGS],
    pub flight: Flight,
    pub registered: Registered,
    pub given: Given,
}

impl State {
    pub fn find(&mut self, fd: i32) -> Option<usize> {
        let file = identity::of(fd)?;
        let n = self.rings.iter().position(|r| r.identity == file)?;
        if let Some(ring) = self.rings.get_mut(n) {
            ring.fd = fd;
        }
        Some(n)
    }

    /// The ring that a thread names by a registered number.
    pub fn registered(&mut self, tid: i32, number: u32) -> Option<usize> {
        let file = self.registered.find(tid, number)?;
        self.rings.iter().position(|r| r.identity == file)
    }

    pub fn add(&mut self, ring: Ring) -> bool {
        match self.rings.iter_mut().find(|r| r.identity == 0) {
            Some(free) => {
                *free = ring;
                true
            }
            None => false,
        }
    }

    /// Removes rings that no descriptor of the program leads to any more, along with their requests in flight.
    pub fn bury(&mut self) {
        for n in 0..RINGS {
            let Some(ring) = self.rings.get_mut(n).filter(|r| r.identity != 0) else {
                continue;
            };
            if identity::of(ring.fd) == Some(ring.identity) || self.registered.keeps(ring.identity)
            {
                continue;
            }
            match other_descriptor(ring.identity) {
                Some(fd) => ring.fd = fd,
                None => {
                    ring.end();
                    self.flight.forget_ring(n as u8);
                    self.given.remove(n as u8, None);
                }
            }
        }
    }
}

impl State {
    /// Records that the fate of a request of the ring is not known.
    pub fn lose(&mut self, n: usize) {
        if let Some(ring) = self.rings.get_mut(n) {
            ring.lost = true;
        }
    }

    /// True if a request in flight, or a later one, may touch memory that the kernel has got.
    pub fn holds(&mut self, start: u64, end: u64) -> bool {
        let held = |r: &Ring| {
            (0..r.fixed_len)
                .filter_map(|n| r.fixed(n))
                .any(|f| f.at < end && start < f.at.saturating_add(f.len))
        };
        let rings = self.rings.iter();
        rings.filter(|r| r.identity != 0).any(|r| r.lost || held(r))
            || self.flight.meets(start, end)
    }

    /// Notes a completion with this number that a request to another ring posts to a ring.
    pub fn posts(&mut self, fd: i32, request: u32, number: u64) {
        let Some(n) = self.find(fd) else { return };
        if self
            .flight
            .add(Span::without_memory(n as u8, request, number))
        {
            self.flight.noted();
        }
        if let Some(ring) = self.rings.get_mut(n) {
            ring.many = true;
        }
    }

    /// Reads new completions, and hands on the buffers that the program has given.
    pub fn exchange(&mut self) {
        self.mark();
        for (n, _) in self
            .rings
            .iter()
            .enumerate()
            .filter(|(_, r)| r.identity != 0)
        {
            self.given.hand_on(&mut self.flight, n as u8);
        }
    }

    /// Reads new completions.
    pub fn mark(&mut self) {
        for n in 0..RINGS {
            let Some(ring) = self.rings.get(n).copied().filter(|r| r.identity != 0) else {
                continue;
            };
            let done = ring.completed();
            let mut lost = ring.lost;
            let mut seen = ring.seen;
            if done.wrapping_sub(seen) > ring.window() {
                lost = true;
                seen = done.wrapping_sub(ring.window());
            }
            while seen != done {
                let (user_data, result, flags) = ring.cqe(seen);
                self.flight.complete(n as u8, user_data, result, flags);
                seen = seen.wrapping_add(1);
            }
            // As many as were submitted: no request is in flight.
            if lost && !ring.many && ring.submitted == done {
                lost = false;
                self.flight.ring_done(n as u8);
            }
            if let Some(ring) = self.rings.get_mut(n) {
                (ring.seen, ring.lost) = (seen, lost);
            }
        }
    }
}

/// True if the program has asked for a thread that polls the ring.
pub fn polled(n: usize) -> bool {
    with(|state| state.rings.get(n).is_some_and(|r| r.polled))
}

fn other_descriptor(file: u64) -> Option<i32> {
    const MOST: i32 = 4096;
    (0..MOST).find(|fd| identity::of(*fd) == Some(file))
}

struct Guarded(core::cell::UnsafeCell<State>);
// SAFETY: only `with` gives access, one thread at a time.
unsafe impl Sync for Guarded {}

static STATE: Guarded = Guarded(core::cell::UnsafeCell::new(State {
    rings: [Ring::NONE; RINGS],
    flight: Flight::NONE,
    registered: Registered::NONE,
    given: Given::NONE,
}));
static LOCK: Lock = Lock::open();

/// Runs `f` under the lock. `f` makes no request to the stub's task: while the world is stopped, no thread holds the
/// lock.
pub fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    let _locked = LOCK.lock();
    // SAFETY: the lock is ours.
    f(unsafe { &mut *STATE.0.get() })
}
