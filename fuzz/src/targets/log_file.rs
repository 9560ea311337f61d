//! A compact log of unknown origin: as it is, and with correct checksums, so that the code behind the checks is reached.

use std::fs::File;
use std::io::{Seek, Write};
use ulpf_lib::ring::Hit;
use ulpf_session::log::{Encoder, Head, Item, Log, LogFile, What, Word, show_all};

pub const INPUTS: u64 = 20_000;

/// Before this time, hits are asked for.
const LATEST: u64 = u64::MAX;

fn read(file: &File) {
    let Ok(mut log) = LogFile::read(file.try_clone().expect("a file of ours")) else {
        return;
    };
    let mut hits = 0u64;
    let read = log.each(|_, item| {
        if let Item::Hit(hit) = item {
            assert!(hit.used() <= 32);
            hits += u64::from(hit.time < LATEST);
        }
        Ok(())
    });
    assert!(read.is_ok());
    let last = log.last(LATEST, 3, |_, _| true, |_, _| true);
    let last = last.expect("what can be read once can be read twice");
    assert_eq!(last.len() as u64, hits.min(3));
    for json in [false, true] {
        let _ = show_all(&mut log, json);
    }
}

fn file(bytes: &[u8]) -> File {
    // SAFETY: a name that ends, and no flags.
    let fd = unsafe { libc::memfd_create(c"log".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new, and has no other owner.
    let mut file: File = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
    file.write_all(bytes).expect("memory");
    file.rewind().expect("memory");
    file
}

pub fn run(data: &[u8]) {
    read(&file(data));
    // The first byte says where words end and hits begin; each is a block whose sums fit.
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let cut = rest.len() * usize::from(*first) / 256;
    let (words, hits) = rest.split_at(cut);
    let made = file(b"");
    let log = Log::begin(made.try_clone().expect("a file of ours")).expect("memory");
    log.words([Word::Life { life: 0, pid: 1 }]);
    log.block(&Head::new(What::Words, 0, 0), words);
    let mut head = Head::new(What::Hits, 0, 0);
    head.hits = u32::from(*first);
    log.block(&head, hits);
    // And one of ours behind it.
    let mut encoder = Encoder::new(0, 0);
    let hit = Hit {
        len: 4,
        ..Hit::default()
    };
    encoder.hit(&hit, 7, |_, _| {});
    encoder.take(|head, payload| log.block(head, payload));
    read(&made);
}
