//! A lock for short critical sections in code that cannot use the C library's: futex(2) alone.
//!
//! ```text
//! 0 free ── lock ─▶ 1 held ── lock of another thread ─▶ 2 held, and a thread may sleep
//!   ▲                │ unlock                             │ unlock: wakes one
//!   └────────────────┴────────────────────────────────────┘
//! ```
//! The three states are those of Drepper, "Futexes Are Tricky" (2011), section 6. A thread that waits sleeps after
//! some looks, so the owner runs even if the waiting thread has a real-time priority. `models/src/lock.rs` is the model.

use core::sync::atomic::{AtomicU32, Ordering::*};

use super::stop_the_world::Futexes;
use super::{Atomic, futex};

/// Looks at the word before the thread sleeps.
const LOOKS: u32 = 100;
const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// Takes the lock whose word this is. `looks`: how often it is looked at before the thread sleeps.
pub fn lock<A: Atomic<u32>>(word: &A, looks: u32, futexes: &impl Futexes<A>) {
    if word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
        return;
    }
    for _ in 0..looks {
        core::hint::spin_loop();
        if word.load(Relaxed) == FREE && word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
        {
            return;
        }
    }
    // Whether others sleep is not known from here on, so the owner is to wake one.
    while word.swap(AWAITED, Acquire) != FREE {
        futexes.wait(word, AWAITED);
    }
}

/// Gives the lock back that the caller has.
pub fn unlock<A: Atomic<u32>>(word: &A, futexes: &impl Futexes<A>) {
    if word.swap(FREE, Release) == AWAITED {
        futexes.wake(word);
    }
}

/// A lock without data: its owner knows what it protects.
///
/// A signal handler that takes it must not interrupt a thread that has it.
pub struct Lock(AtomicU32);

/// The lock is the caller's until this is dropped.
pub struct Locked<'a>(&'a Lock);

impl Lock {
    /// A free lock.
    pub const fn open() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Waits until the lock is the caller's.
    #[inline]
    pub fn lock(&self) -> Locked<'_> {
        lock(&self.0, LOOKS, &Kernel);
        Locked(self)
    }

    /// Frees the lock of an owner that may have failed, after waiting some tenths of a second for its release.
    pub fn free_if_stuck(&self) {
        const TURNS: u32 = 50_000_000;
        for _ in 0..TURNS {
            if self.0.load(Acquire) == FREE {
                return;
            }
            core::hint::spin_loop();
        }
        self.let_go();
    }

    /// Frees the lock of an owner that has ended, or that exists only in another process.
    pub fn let_go(&self) {
        unlock(&self.0, &Kernel);
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// The kernel's futexes. One thread is woken: it takes the lock as one that is awaited, and so wakes the next one.
struct Kernel;

impl Futexes<AtomicU32> for Kernel {
    fn wait(&self, word: &AtomicU32, seen: u32) {
        futex::wait(word, seen);
    }
    fn wake(&self, word: &AtomicU32) {
        futex::wake_one(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_whole() {
        static LOCK: Lock = Lock::open();
        static SUM: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..20_000 {
                        let _locked = LOCK.lock();
                        SUM.store(SUM.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(SUM.load(Relaxed), 80_000);
        assert_eq!(LOCK.0.load(Relaxed), FREE);
    }
}
