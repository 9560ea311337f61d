//! A thread's registration for restartable sequences (rseq(2)).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::sys;

/// RSEQ_FLAG_UNREGISTER.
pub const UNREGISTER: u64 = 1;

/// A thread's area as the program has registered it. The kernel knows it by its alias, if the page has one.
pub struct Registered {
    at: AtomicU64,
    len: AtomicU32,
    signature: AtomicU32,
    /// The address by which the kernel knows it, or 0 if it is not registered now.
    known: AtomicU64,
}

impl Registered {
    /// Sets the area, or removes it if `at` is 0. It is not registered with the kernel yet.
    pub fn set(&self, at: u64, len: u32, signature: u32) {
        self.known.store(0, Relaxed);
        self.len.store(len, Relaxed);
        self.signature.store(signature, Relaxed);
        self.at.store(at, SeqCst);
    }

    /// Address of the area, or 0 if none is registered.
    pub fn at(&self) -> u64 {
        self.at.load(SeqCst)
    }

    /// True if no area is registered.
    pub fn is_empty(&self) -> bool {
        self.at() == 0
    }

    pub fn signature(&self) -> u32 {
        self.signature.load(Relaxed)
    }

    /// The address by which the kernel knows it, or 0 if it is not registered now.
    pub fn known(&self) -> u64 {
        self.known.load(Relaxed)
    }

    /// True if some of it is in `[start, end)`.
    pub fn meets(&self, start: u64, end: u64) -> bool {
        let at = self.at();
        at != 0 && at < end && start < at + u64::from(self.len.load(Relaxed))
    }

    /// Registers the calling thread's area with the kernel, at `to`. Returns the kernel's answer.
    pub fn tell(&self, to: u64) -> i64 {
        let result = self.call(to, 0);
        if result == 0 {
            self.known.store(to, Relaxed);
        }
        result
    }

    /// Unregisters the calling thread's area. Returns the kernel's answer.
    pub fn withdraw(&self) -> i64 {
        let result = self.call(self.known(), UNREGISTER);
        if result == 0 {
            self.known.store(0, Relaxed);
        }
        result
    }

    fn call(&self, at: u64, flags: u64) -> i64 {
        let (len, signature) = (self.len.load(Relaxed), self.signature());
        // SAFETY: memory that the program has given the kernel for this.
        match unsafe { sys!(k::__NR_rseq, at, len, flags, signature) } {
            Ok(_) => 0,
            Err(e) => -i64::from(e.0),
        }
    }
}

/// Progress of a thread that executes a sequence alone.
#[derive(Clone, Copy, Default)]
pub struct Section {
    /// The abort handler of the sequence that it must execute.
    pub abort: u64,
    /// The thread has entered the sequence.
    pub entered: bool,
    pub steps: u32,
}
