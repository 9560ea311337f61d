//! The lock of code without a C library: `ulpf-lib/src/sync/lock.rs`.
//!
//! Seen to fail: `unlock` with `Relaxed`; `lock` that sleeps after it has stored 1 instead of 2; `unlock` without a
//! wake.

use loom::sync::Arc;
use loom::thread;
use ulpf_lib::sync::lock::{lock, unlock};
use ulpf_lib::sync::stop_the_world::Futexes;

use crate::words::{Futex, Table, Word32, check};

struct Shared {
    word: Word32,
    futex: Futex,
    /// Data that the lock protects.
    sum: Table,
}

impl Futexes<Word32> for Shared {
    fn wait(&self, word: &Word32, seen: u32) {
        self.futex.wait(word, seen);
    }
    fn wake(&self, _: &Word32) {
        self.futex.wake_one();
    }
}

impl Shared {
    fn add(&self) {
        lock(&self.word, 1, self);
        self.sum.write(self.sum.read() + 1);
        unlock(&self.word, self);
    }
}

fn several(threads: u32, turns: u32) -> impl Fn() {
    move || {
        let shared = Arc::new(Shared {
            word: Word32::new(0),
            futex: Futex::new(),
            sum: Table::new(0),
        });
        let begin = |_| {
            let shared = shared.clone();
            thread::spawn(move || (0..turns).for_each(|_| shared.add()))
        };
        let all: Vec<_> = (0..threads).map(begin).collect();
        for one in all {
            one.join().unwrap();
        }
        assert_eq!(shared.sum.read(), threads * turns);
    }
}

#[test]
fn two_threads_twice() {
    check(3, several(2, 2));
}

#[test]
fn three_threads() {
    check(2, several(3, 1));
}
