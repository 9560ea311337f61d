//! loom's cells behind the product's trait, and what the kernel does with them.

use std::sync::Mutex as Plain;
use std::sync::atomic::Ordering::{self, *};

use loom::cell::UnsafeCell;
use loom::sync::atomic::fence;
use loom::sync::{Condvar, Mutex};
use loom::thread::{self, ThreadId};
use ulpf_lib::sync::Atomic;

/// An atomic cell of loom.
///
/// loom takes a `SeqCst` access for `AcqRel`, and would report failures that no machine has. So these cells do what
/// x86-64 does: a `SeqCst` store or exchange is followed by a full fence, a `SeqCst` load is a plain one.
///
/// loom does not order a plain store behind an exchange that has not read it, though there is no other order. So a
/// `SeqCst` store is an exchange, as on x86-64.
///
/// loom remembers only the last access to a cell. It tries a store before a load of another thread only if that load
/// was the last access. A load by the storing thread itself would hide the other one. So a thread that was the last to
/// write a cell reads it without loom.
pub struct Cell<A, T> {
    cell: A,
    last: Plain<Option<(ThreadId, T)>>,
}

impl<A, T> Cell<A, T> {
    /// The calling thread is the only one that writes the cell, which holds `value`.
    pub fn adopt(&self, value: T) {
        self.written(value);
    }

    fn written(&self, value: T) {
        *self.last.lock().unwrap() = Some((thread::current().id(), value));
    }
}

macro_rules! cells {
    ($($name:ident: $of:ty, $cell:ident;)*) => {$(
        pub type $name = Cell<loom::sync::atomic::$cell, $of>;

        impl $name {
            pub fn new(value: $of) -> $name {
                Cell {
                    cell: loom::sync::atomic::$cell::new(value),
                    last: Plain::new(None),
                }
            }
        }

        impl Atomic<$of> for $name {
            fn load(&self, order: Ordering) -> $of {
                let last = *self.last.lock().unwrap();
                match last.filter(|last| last.0 == thread::current().id()) {
                    Some((_, value)) => value,
                    None => self.cell.load(weaker(order, Acquire)),
                }
            }
            fn store(&self, value: $of, order: Ordering) {
                match order {
                    SeqCst => drop(self.cell.swap(value, Release)),
                    _ => self.cell.store(value, order),
                }
                self.written(value);
                full_fence(order);
            }
            fn swap(&self, value: $of, order: Ordering) -> $of {
                let old = self.cell.swap(value, weaker(order, AcqRel));
                self.written(value);
                full_fence(order);
                old
            }
            fn compare_exchange(
                &self,
                current: $of,
                new: $of,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$of, $of> {
                let (success, after) = (weaker(success, AcqRel), success);
                let failure = weaker(failure, Acquire);
                let done = self.cell.compare_exchange(current, new, success, failure);
                if done.is_ok() {
                    self.written(new);
                }
                full_fence(after);
                done
            }
            fn fetch_add(&self, value: $of, order: Ordering) -> $of {
                let old = self.cell.fetch_add(value, weaker(order, AcqRel));
                self.written(old.wrapping_add(value));
                full_fence(order);
                old
            }
            fn fence(order: Ordering) {
                fence(order)
            }
        }
    )*};
}

cells! {
    Word32: u32, AtomicU32;
    Word64: u64, AtomicU64;
}

fn weaker(order: Ordering, instead_of_seq_cst: Ordering) -> Ordering {
    if order == SeqCst {
        instead_of_seq_cst
    } else {
        order
    }
}

fn full_fence(order: Ordering) {
    if order == SeqCst {
        fence(SeqCst);
    }
}

/// futex(2) on one word, without a time limit: a lost wake-up is a deadlock, which loom reports.
pub struct Futex {
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    pub fn new() -> Futex {
        Futex {
            queue: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// FUTEX_WAIT. May return early, as the call does.
    pub fn wait(&self, word: &Word32, seen: u32) {
        let queue = self.queue.lock().unwrap();
        // The kernel reads the word after a full barrier.
        fence(SeqCst);
        if word.load(Acquire) == seen {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    /// FUTEX_WAKE of all that wait.
    pub fn wake(&self) {
        // (The lock: a waiter that has read the word before its change is in the queue by now.)
        drop(self.queue.lock().unwrap());
        self.woken.notify_all();
    }

    /// FUTEX_WAKE of one that waits.
    pub fn wake_one(&self) {
        drop(self.queue.lock().unwrap());
        self.woken.notify_one();
    }
}

/// A value that one side changes while no other side reads. loom reports two accesses that are not ordered by
/// happens-before.
pub struct Table(UnsafeCell<u32>);

// SAFETY: loom ends the model at the first access that is not ordered.
#[allow(unsafe_code)]
unsafe impl Sync for Table {}

impl Table {
    pub fn new(value: u32) -> Table {
        Table(UnsafeCell::new(value))
    }
    pub fn read(&self) -> u32 {
        // SAFETY: loom has just checked that no thread writes.
        #[allow(unsafe_code)]
        self.0.with(|value| unsafe { *value })
    }
    pub fn write(&self, value: u32) {
        // SAFETY: loom has just checked that no other thread reads or writes.
        #[allow(unsafe_code)]
        self.0.with_mut(|at| unsafe { *at = value });
    }
}

/// Runs a model through all interleavings with at most `preemptions` preemptions.
pub fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut all = loom::model::Builder::new();
    all.preemption_bound = Some(preemptions);
    all.check(model);
}
