//! Round trips: hits of any kind come back in order from a file that is whole, damaged or cut short.

use crate::log::decode::{Bad, Decoder};
use crate::log::encode::Encoder;
use crate::log::file::{Item, LogFile};
use crate::log::format::{HEAD_LEN, MAGIC, What};
use crate::log::words::Word;
use crate::log::writer::Log;
use proptest::prelude::*;
use std::fs::File;
use std::io::{Seek, Write};
use ulpf_lib::ring::{Hit, MAX_VALUE, SystemCall, hit_flags};

/// Clears the bytes of both values past the used length: the log does not keep them.
fn meant(mut hit: Hit) -> Hit {
    let used = hit.used();
    hit.old[used..].fill(0);
    hit.new[used..].fill(0);
    hit
}

fn value() -> impl Strategy<Value = [u8; MAX_VALUE]> {
    prop_oneof![
        any::<[u8; MAX_VALUE]>(),
        any::<u8>().prop_map(|n| {
            let mut bytes = [0; MAX_VALUE];
            bytes[0] = n;
            bytes
        }),
    ]
}

prop_compose! {
    fn hit()(
        pc in 0u64..6, addr in prop_oneof![0u64..64, any::<u64>()],
        len in prop_oneof![0u32..40, any::<u32>()],
        watch in 0u32..3, tid in 1u32..3, kind in 1u8..4,
        silent in any::<bool>(), inside in any::<bool>(), called in 0..4,
        old in value(), new in value(),
        frames in prop_oneof![Just(vec![]), prop::collection::vec(0u64..9, 0..=16)],
        lost in prop_oneof![9 => Just(0u64), 1 => any::<u64>()],
        number in any::<u64>(),
    ) -> Hit {
        let mut hit = Hit { pc, addr, len, watch, tid, kind, old, new, frames, lost, ..Hit::default() };
        hit.flags = (u8::from(silent) * hit_flags::SILENT) | (u8::from(inside) * hit_flags::INSIDE);
        hit.inside = if inside { number } else { 0 };
        if called == 0 {
            hit.flags |= hit_flags::KERNEL;
            let args = std::array::from_fn(|n| number.rotate_left(n as u32));
            hit.call = Some(Box::new(SystemCall { nr: number, args, result: -1 }));
        }
        meant(hit)
    }
}

fn payloads(hits: &[Hit]) -> Vec<(crate::log::format::Head, Vec<u8>)> {
    let (mut encoder, mut blocks) = (Encoder::new(1, 2), Vec::new());
    let mut all = |encoder: &mut Encoder| {
        encoder.take(|head, payload| blocks.push((head.clone(), payload.to_vec())));
    };
    for hit in hits {
        if encoder.is_full() {
            all(&mut encoder);
        }
        encoder.hit(hit, hit.time, |_, _| {});
    }
    all(&mut encoder);
    blocks
}

fn read(first: u64, payload: &[u8]) -> (Vec<Hit>, Option<Bad>) {
    let (mut decoder, mut hits) = (Decoder::new(payload.to_vec(), first), Vec::new());
    loop {
        match decoder.next_hit() {
            Ok(Some(hit)) => hits.push(hit),
            Ok(None) => return (hits, None),
            Err(bad) => return (hits, Some(bad)),
        }
    }
}

proptest! {
    #[test]
    fn hits_are_read_back(mut hits in prop::collection::vec(hit(), 1..200), steps in any::<u64>()) {
        let mut time = 1000;
        for (n, hit) in hits.iter_mut().enumerate() {
            time = u64::wrapping_add(time, steps >> (n * 7 % 60));
            hit.time = time;
        }
        let blocks = payloads(&hits);
        let mut back = Vec::new();
        for (head, payload) in &blocks {
            let (hits, bad) = read(head.first, payload);
            prop_assert_eq!(bad, None);
            prop_assert_eq!(hits.len(), head.hits as usize);
            for hit in &hits {
                prop_assert!(head.may_touch(hit.addr, hit.len.into()));
            }
            back.extend(hits);
        }
        prop_assert_eq!(&back, &hits);
        // A payload cut anywhere yields a prefix of the hits.
        let (head, payload) = &blocks[0];
        let cut = steps as usize % payload.len();
        let (before, _) = read(head.first, &payload[..cut]);
        prop_assert_eq!(&before[..], &hits[..before.len()]);
    }
}

/// The n-th hit of a counter that a loop increments.
fn counting(n: u64) -> Hit {
    let mut hit = Hit {
        time: 5_000 + n * 300,
        pc: 0x40_1136,
        addr: 0x40_4040,
        len: 8,
        watch: 0,
        tid: 77,
        kind: 3,
        ..Hit::default()
    };
    hit.old[..8].copy_from_slice(&n.to_le_bytes());
    hit.new[..8].copy_from_slice(&(n + 1).to_le_bytes());
    hit
}

#[test]
fn a_hit_of_a_counter_takes_five_bytes() {
    let hits: Vec<Hit> = (0..10_000).map(counting).collect();
    let blocks = payloads(&hits);
    let bytes: usize = blocks.iter().map(|(_, payload)| payload.len()).sum();
    assert_eq!(blocks.len(), 1);
    assert!(bytes < 5 * hits.len() + 100, "{bytes}");
}

#[test]
fn many_sites_and_callers_begin_a_new_block() {
    let hits = (0..10_000u64).map(|n| Hit {
        pc: n,
        time: n,
        frames: vec![n, n / 2],
        ..counting(n)
    });
    let hits: Vec<Hit> = hits.collect();
    let mut back = Vec::new();
    let blocks = payloads(&hits);
    for (head, payload) in &blocks {
        back.extend(read(head.first, payload).0);
    }
    assert!(blocks.len() > 4);
    assert_eq!(back, hits);
}

#[test]
fn what_nobody_has_written_is_refused() {
    for (payload, bad) in [
        (&[0u8, 0, 0][..], Bad::NoSite),
        (&[0xff, 9], Bad::Unknown),
        (&[0xff, 1, 2], Bad::Cut),
        (&[0xff, 2, 200], Bad::TooMany),
        (&[0xff, 3, 4, 25], Bad::Unknown),
        (&[5], Bad::Cut),
    ] {
        assert_eq!(read(0, payload), (vec![], Some(bad)), "{payload:?}");
    }
    let sites = [&[0xff, 1][..], &[0; 22]].concat().repeat(3000);
    assert_eq!(read(0, &sites).1, Some(Bad::TooMany));
}

/// A file with words and two rings whose times interleave, and the offsets of its blocks.
fn file(hits: u64) -> (File, Vec<u8>) {
    let file = tempfile::tempfile().unwrap();
    let log = Log::begin(file.try_clone().unwrap()).unwrap();
    log.words([
        Word::Log {
            ulpf: "0".into(),
            tsc: 0,
            rate: 1 << 32,
            several: false,
        },
        Word::Life { life: 0, pid: 5 },
    ]);
    let mut rings = [Encoder::new(0, 0), Encoder::new(0, 1)];
    for n in 0..hits {
        let ring = &mut rings[n as usize % 2];
        if n % 500 < 2 {
            ring.take(|head, payload| log.block(head, payload));
        }
        ring.hit(&counting(n), counting(n).time, |_, _| {});
    }
    rings[1].lose(3);
    for ring in &mut rings {
        ring.take(|head, payload| log.block(head, payload));
    }
    log.words([Word::End]);
    let mut bytes = Vec::new();
    let mut from = file.try_clone().unwrap();
    from.rewind().unwrap();
    std::io::Read::read_to_end(&mut from, &mut bytes).unwrap();
    (file, bytes)
}

fn of_bytes(bytes: &[u8]) -> anyhow::Result<LogFile> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    LogFile::read(file)
}

/// The counter's values in file order, and the number of lost hits.
fn numbers(log: &mut LogFile) -> (Vec<u64>, u64) {
    let (mut numbers, mut lost) = (Vec::new(), 0);
    log.each(|life, item| {
        assert_eq!(life, 0);
        match item {
            Item::Hit(hit) => numbers.push(u64::from_le_bytes(*hit.old.first_chunk().unwrap())),
            Item::Lost(n) => lost += n,
        }
        Ok(())
    })
    .unwrap();
    (numbers, lost)
}

#[test]
fn rings_are_brought_into_one_order() {
    let (file, _) = file(5_000);
    let mut log = LogFile::read(file).unwrap();
    assert_eq!(numbers(&mut log), ((0..5_000).collect(), 3));
    assert_eq!(
        (log.damage.len(), log.words.ended, log.hits_declared()),
        (0, true, 5_000)
    );
}

#[test]
fn a_file_that_is_cut_short_gives_all_that_was_before() {
    let (_, bytes) = file(5_000);
    for cut in (MAGIC.len()..bytes.len()).step_by(97) {
        let mut log = of_bytes(&bytes[..cut]).unwrap();
        let (some, _) = numbers(&mut log);
        // Each ring yields a prefix of its hits: the last hit of one ring may be older than those of the other.
        for ring in 0..2 {
            let of_ring: Vec<u64> = some.iter().copied().filter(|n| n % 2 == ring).collect();
            let whole = (0..5_000).filter(|n| n % 2 == ring);
            assert_eq!(
                of_ring,
                whole.take(of_ring.len()).collect::<Vec<_>>(),
                "{cut}"
            );
        }
        // Five bytes a hit, plus the start of each block.
        assert!(
            some.len() * 6 + 2_000 > cut.saturating_sub(20 * HEAD_LEN),
            "{cut}: {}",
            some.len()
        );
        assert!(!log.words.ended);
    }
}

#[test]
fn what_is_damaged_costs_its_own_block_alone() {
    let (_, bytes) = file(5_000);
    for at in (MAGIC.len()..bytes.len()).step_by(331) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        let mut log = of_bytes(&damaged).unwrap();
        let (some, _) = numbers(&mut log);
        assert!(some.len() >= 4_500, "byte {at}: {}", some.len());
        assert!(some.is_sorted());
        assert!(!log.damage.is_empty() || log.words.bad > 0, "byte {at}");
    }
    // Foreign bytes in between, as long as two blocks.
    let mut between = bytes[..5_000].to_vec();
    between.extend(vec![b'U'; 9_000]);
    between.extend(&bytes[5_000..]);
    let mut log = of_bytes(&between).unwrap();
    assert!(numbers(&mut log).0.len() >= 4_500);
}

#[test]
fn what_is_no_log_is_refused() {
    for (bytes, why) in [
        (&b"{\"type\":\"start\"}\n"[..], "it is no log"),
        (b"", "it is no log"),
        (b"ulpf", "it is no log"),
        (b"ulpflog\x07", "version 7"),
    ] {
        let error = of_bytes(bytes).err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(of_bytes(MAGIC).is_ok());
}

#[test]
fn the_last_before_a_time() {
    let (file, _) = file(5_000);
    let mut log = LogFile::read(file).unwrap();
    let found = |log: &mut LogFile, before: u64, most, addr| {
        let near = |_, head: &crate::log::format::Head| {
            assert_eq!(head.what, What::Hits);
            head.may_touch(addr, 8)
        };
        let wanted = |_, hit: &Hit| hit.addr == addr;
        let hits = log.last(before, most, near, wanted).unwrap();
        let number = |hit: &Hit| u64::from_le_bytes(*hit.old.first_chunk().unwrap());
        hits.iter().map(|(_, hit)| number(hit)).collect::<Vec<_>>()
    };
    let at = counting(0).addr;
    assert_eq!(found(&mut log, u64::MAX, 3, at), [4999, 4998, 4997]);
    assert_eq!(found(&mut log, counting(1234).time, 2, at), [1233, 1232]);
    assert_eq!(found(&mut log, counting(0).time, 2, at), [0u64; 0]);
    assert_eq!(found(&mut log, u64::MAX, 2, at + 64), [0u64; 0]);
}
