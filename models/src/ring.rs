//! The hit ring: one writer in a signal handler, one reader in another process (`ulpf-lib/src/ring`).
//!
//! Writer, reader and the handshake for room are the product's. Of each slot only the words that differ between these
//! records are loom's cells; the others hold the same value in each record of a kind, and cost no interleavings.

use std::sync::atomic::{AtomicU64, Ordering};

use loom::sync::Arc;
use loom::thread;
use ulpf_lib::ring::{
    Entry, Handshake, Hit, Progress, Reader, Ring, RingHead, Rings, SLOT_WORDS, Start, copy_slots,
};
use ulpf_lib::sync::Atomic;

use crate::words::{Futex, Word32, Word64, check};

/// A word of a slot.
enum Word {
    Modelled(Word64),
    /// Holds the same value in each record. (A load synchronizes with nothing, so another value would be seen too early.)
    Plain(AtomicU64),
}

impl Word {
    fn modelled() -> Word {
        Word::Modelled(Word64::new(0))
    }
    fn plain() -> Word {
        Word::Plain(AtomicU64::new(0))
    }
}

impl Atomic<u64> for Word {
    fn load(&self, order: Ordering) -> u64 {
        match self {
            Word::Modelled(word) => word.load(order),
            Word::Plain(word) => word.load(Ordering::Relaxed),
        }
    }
    fn store(&self, value: u64, order: Ordering) {
        match self {
            Word::Modelled(word) => word.store(value, order),
            Word::Plain(word) => word.store(value, Ordering::Relaxed),
        }
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        match self {
            Word::Modelled(word) => word.swap(value, order),
            Word::Plain(_) => unreachable!(),
        }
    }
    fn compare_exchange(&self, _: u64, _: u64, _: Ordering, _: Ordering) -> Result<u64, u64> {
        unreachable!()
    }
    fn fetch_add(&self, _: u64, _: Ordering) -> u64 {
        unreachable!()
    }
    fn fence(order: Ordering) {
        Word64::fence(order);
    }
}

struct Memory {
    head: RingHead<Word>,
    words: Vec<Word>,
}

/// Words of a slot that follow from the number of its record: stamp, time, new value.
const MODELLED: [usize; 3] = [0, 1, 7];

impl Memory {
    fn new(slots: usize, modelled: &[usize]) -> Memory {
        let word = |n: usize| match modelled.contains(&(n % SLOT_WORDS)) {
            true => Word::modelled(),
            false => Word::plain(),
        };
        Memory {
            head: RingHead {
                taken: Word::modelled(),
                records: Word::modelled(),
                read: Word::modelled(),
            },
            words: (0..slots * SLOT_WORDS).map(word).collect(),
        }
    }

    /// The calling thread is the writer of a ring in which nothing has been written.
    fn adopt(&self) {
        for word in [&self.head.taken, &self.head.records] {
            if let Word::Modelled(word) = word {
                word.adopt(0);
            }
        }
    }

    /// Writes the `n`-th record; its time and its new value are `n` + 1.
    fn write(&self, n: u64) {
        let entry = Entry {
            pc: 0x1000,
            addr: 0x2000,
            len: 8,
            watch: 1,
            tid: 2,
            kind: 2,
            flags: 0,
            old: &[0; 4],
            new: &[n + 1, 0, 0, 0],
            inside: 0,
            call: None,
            frames: &[],
        };
        Ring::new(&self.head, &self.words).write(&entry, || n + 1);
    }
}

impl Rings for Memory {
    fn rings(&self) -> usize {
        1
    }
    fn slots(&self, _: usize) -> u64 {
        (self.words.len() / SLOT_WORDS) as u64
    }
    fn head(&self, _: usize) -> (u64, u64) {
        self.head.progress()
    }
    fn copy(&self, _: usize, slot: u64, to: &mut [u64]) -> bool {
        copy_slots(&self.words, slot, to)
    }
}

/// A reader's position in a ring.
struct Seen {
    reader: Reader,
    /// The number of the record that would come next, if none is lost.
    next: u64,
}

impl Seen {
    fn new() -> Seen {
        Seen {
            reader: Reader::new(Start::First),
            next: 0,
        }
    }

    /// Reads all records that are available. Each record is whole, and contains how many before it were lost.
    fn read(&mut self, memory: &Memory) -> Progress {
        let next = &mut self.next;
        self.reader.read(memory, 0, usize::MAX, |hit: Hit| {
            *next += hit.lost;
            assert_eq!(hit.time, *next + 1, "time of another record");
            assert_eq!(hit.new[0], *next as u8 + 1, "value of another record");
            assert_eq!((hit.pc, hit.addr, hit.len), (0x1000, 0x2000, 8));
            *next += 1;
        })
    }
}

/// A ring of two slots goes round while it is read: no record is torn, and each is seen or counted as lost.
///
/// Fails without the fence of `Ring::write`, with a relaxed stamp, or with `taken` stored after the words. Also fails
/// without the second look at the head in `Reader::read`, and with relaxed loads in `copy_slots`.
#[test]
fn records_that_are_overwritten_while_they_are_read_are_whole_or_lost() {
    const RECORDS: u64 = 3;
    check(1, || {
        let memory = Arc::new(Memory::new(2, &MODELLED));
        let writer = {
            let memory = memory.clone();
            thread::spawn(move || {
                memory.adopt();
                (0..RECORDS).for_each(|n| memory.write(n));
            })
        };
        let mut seen = Seen::new();
        seen.read(&memory);
        writer.join().unwrap();
        assert_eq!(seen.read(&memory), Progress::All);
        let lost = seen.reader.lost_at_end(&*memory, 0);
        assert_eq!(seen.next + lost, RECORDS);
    });
}

/// Where no record may be lost, a writer without room waits until the reader has made some, and is always woken.
///
/// Mirrors `wait_for_room` (`stub/handlers/src/log.rs`) and `SharedArea::has_read` without their time limits. Fails
/// without the second `has_room`, with a relaxed `writer_waits` in `Handshake::announce`, and with a relaxed `read` in
/// `Handshake::make`. Fails if `Handshake::make` does not raise `room`.
#[test]
fn a_writer_without_room_waits_and_is_woken() {
    // One more than what has room unread in the smallest ring.
    const RECORDS: u64 = 5;
    struct Shared {
        memory: Memory,
        room: Word32,
        writer_waits: Word32,
        futex: Futex,
    }
    impl Shared {
        fn handshake(&self) -> Handshake<'_, Word32> {
            Handshake {
                room: &self.room,
                writer_waits: &self.writer_waits,
            }
        }
        fn wait_for_room(&self) {
            let ring = Ring::new(&self.memory.head, &self.memory.words);
            while !ring.has_room() {
                let word = self.handshake().announce();
                if ring.has_room() {
                    return;
                }
                self.futex.wait(&self.room, word);
            }
        }
    }
    check(3, || {
        let shared = Arc::new(Shared {
            memory: Memory::new(8, &[]),
            room: Word32::new(0),
            writer_waits: Word32::new(0),
            futex: Futex::new(),
        });
        // The ring is full before any other thread looks.
        (0..RECORDS - 1).for_each(|n| shared.memory.write(n));
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.wait_for_room();
                shared.memory.write(RECORDS - 1);
            })
        };
        let mut seen = Seen::new();
        seen.read(&shared.memory);
        let slot = seen.reader.position(0);
        if shared.handshake().make(&shared.memory.head.read, slot) {
            shared.futex.wake();
        }
        writer.join().unwrap();
        assert_eq!(seen.read(&shared.memory), Progress::All);
        assert_eq!(
            (seen.next, seen.reader.lost_at_end(&shared.memory, 0)),
            (RECORDS, 0)
        );
    });
}
