//! Rings of hits whose writer does what it likes while they are read.

use crate::Numbers;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use ulpf_lib::ring::last::{Asked, all, last};
use ulpf_lib::ring::{Progress, Reader, Rings, SLOT_WORDS, Start};
use ulpf_session::merge::{Flow, Source, read};

pub const INPUTS: u64 = 2_500;

const RINGS: usize = 3;
const SLOTS: u64 = 64;

/// Every look at a head may find another one; slots are the input's bytes, with stamps that fit now and then.
struct Wild<'a> {
    numbers: RefCell<Numbers<'a>>,
    heads: [Cell<(u64, u64)>; RINGS],
    bytes: &'a [u8],
    looks: Cell<u32>,
    flow: Flow,
}

impl<'a> Wild<'a> {
    fn new(data: &'a [u8]) -> Wild<'a> {
        let (numbers, bytes) = data.split_at(data.len() / 2);
        let mut numbers = Numbers(numbers);
        let mut head = || Cell::new((numbers.number(), numbers.number()));
        let heads = [head(), head(), head()];
        Wild {
            numbers: RefCell::new(numbers),
            heads,
            bytes,
            looks: Cell::new(0),
            flow: Flow::default(),
        }
    }
}

impl Rings for Wild<'_> {
    fn rings(&self) -> usize {
        RINGS
    }
    fn slots(&self, _: usize) -> u64 {
        SLOTS
    }
    fn head(&self, ring: usize) -> (u64, u64) {
        let mut numbers = self.numbers.borrow_mut();
        let change = match numbers.byte() % 8 {
            0 => Some((numbers.number(), numbers.number())),
            1 => {
                let (taken, records) = self.heads[ring].get();
                let more = u64::from(numbers.byte());
                Some((taken.wrapping_add(more), records.wrapping_add(1)))
            }
            _ => None,
        };
        if let Some(change) = change {
            self.heads[ring].set(change);
        }
        self.heads[ring].get()
    }
    fn copy(&self, ring: usize, slot: u64, to: &mut [u64]) -> bool {
        let mut numbers = self.numbers.borrow_mut();
        let (taken, _) = self.heads[ring].get();
        for (n, word) in to.iter_mut().enumerate() {
            let at = (slot as usize * SLOT_WORDS + n) * 8 % self.bytes.len().max(1);
            let byte = |i: usize| self.bytes.get((at + i) % self.bytes.len().max(1)).copied();
            *word = u64::from_le_bytes(std::array::from_fn(|i| byte(i).unwrap_or(0)));
            // A stamp names its position (`mark` in ring/record.rs) and counts records.
            if n % SLOT_WORDS == 0 && !numbers.byte().is_multiple_of(4) {
                let position = slot + n as u64 / SLOT_WORDS as u64;
                let round = taken.saturating_sub(position + 1) / SLOTS * SLOTS;
                let mark = ((position + round) as u32).wrapping_add(1);
                let mark = mark.wrapping_mul(0x9e37_79b1);
                *word = u64::from(mark) | *word << 32;
            }
        }
        numbers.byte() != 0xff
    }
}

impl Source for Wild<'_> {
    fn now(&self) -> u64 {
        self.looks.set(self.looks.get() + 1);
        if self.looks.get() > 2 {
            self.end();
        }
        self.numbers.borrow_mut().number()
    }
    fn wait(&self, any: impl Fn() -> bool, _: Duration) {
        any();
        self.end();
    }
}

impl Wild<'_> {
    fn end(&self) {
        let end = &self.flow.finish;
        end.store(true, std::sync::atomic::Ordering::Release);
    }
}

pub fn run(data: &[u8]) {
    for start in [Start::First, Start::Oldest, Start::Tail(5)] {
        let wild = Wild::new(data);
        let mut reader = Reader::new(start);
        for ring in 0..RINGS {
            for _ in 0..8 {
                if reader.read(&wild, ring, 20, |hit| assert!(hit.used() <= 32))
                    == Progress::Unfinished
                {
                    reader.skip(ring);
                }
                let _ = (reader.any(&wild), reader.room(&wild, ring));
            }
            reader.keep_last(&wild, ring, 3);
            reader.lost_at_end(&wild, ring);
        }
    }
    let asked = Asked {
        addr: 0,
        len: u64::MAX,
        reads: true,
        most: 10,
    };
    assert!(last(&Wild::new(data), &asked).hits.len() <= asked.most);
    assert!(all(&Wild::new(data), &asked).hits.len() <= asked.most);
    let wild = Wild::new(data);
    // Between two looks `read` sleeps for a millisecond: most inputs have one look.
    if !data.len().is_multiple_of(8) {
        wild.end();
    }
    read(&wild, &wild.flow.clone(), |batch| {
        batch.hits.len() < 100_000
    });
}
