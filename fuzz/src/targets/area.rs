//! A shared area from another process, read as `top`, `last` and `export` read it. The input fills its header,
//! counters, table of watches, rings' heads and rings.

use crate::Numbers;
use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use ulpf_area::SharedArea;
use ulpf_area::sessions::{Elsewhere, Watched};
use ulpf_lib::ring::last::{Asked, last};
use ulpf_lib::ring::{
    AREAS_OFFSET, COUNTERS_OFFSET, HEADS_OFFSET, RINGS_OFFSET, WATCH_TABLE_OFFSET,
};
use ulpf_session::listing::Listing;
use ulpf_session::observer::Observer;

pub const INPUTS: u64 = 200;

struct Area {
    shared: SharedArea,
    file: File,
    /// Offsets and lengths that the last input has written.
    written: Vec<(u64, usize)>,
}

thread_local! {
    static AREA: RefCell<Option<Area>> = const { RefCell::new(None) };
}

fn make() -> Area {
    let shared = SharedArea::elsewhere(std::process::id() as i32, 0, "").expect("an area");
    let ours = |fd: &fs::DirEntry| {
        let name = fs::read_link(fd.path()).unwrap_or_default();
        name.to_string_lossy().starts_with("/memfd:ulpf-shared")
    };
    let fds = fs::read_dir("/proc/self/fd").expect("our descriptors");
    let fd = fds.flatten().find(ours).expect("the area's descriptor");
    let file = OpenOptions::new().read(true).write(true).open(fd.path());
    Area {
        shared,
        file: file.expect("the area's file"),
        written: Vec::new(),
    }
}

pub fn run(data: &[u8]) {
    AREA.with_borrow_mut(|area| {
        let area = area.get_or_insert_with(make);
        for (at, len) in std::mem::take(&mut area.written) {
            area.file.write_all_at(&vec![0; len], at).expect("zeros");
        }
        fill(area, data);
        look(area);
    });
}

fn fill(area: &mut Area, data: &[u8]) {
    let mut numbers = Numbers(data);
    while !numbers.0.is_empty() {
        let place = numbers.byte();
        // The header's first 32 bytes are written once, before any reader exists; the process's number follows.
        let (start, unit) = match place % 6 {
            0 => (36, 4),
            1 => (COUNTERS_OFFSET, 8),
            2 => (WATCH_TABLE_OFFSET, 4),
            3 => (HEADS_OFFSET, 8),
            4 => (RINGS_OFFSET, 8),
            _ => (AREAS_OFFSET, 8),
        };
        let at = start + u64::from(numbers.byte()) * unit;
        let n = usize::from(place / 6) + 1;
        let bytes: Vec<u8> = (0..n * 8).map(|_| numbers.byte()).collect();
        area.file
            .write_all_at(&bytes, at)
            .expect("the area is ours");
        area.written.push((at, bytes.len()));
    }
}

fn look(area: &Area) {
    let found = Watched {
        pid: std::process::id() as i32,
        by: std::process::id() as i32,
        started: ulpf_host::process::started(std::process::id() as i32).unwrap_or(0),
        shared: area.shared.clone(),
        elsewhere: Some(Elsewhere::default()),
    };
    let mut observer = Observer::new(&found);
    observer.listing = Listing::default();
    let mut snapshot = observer.begin();
    for _ in 0..2 {
        observer.look(&mut snapshot, Some(&|_, _, _| true));
    }
    let asked = Asked {
        addr: 0,
        len: u64::MAX,
        reads: true,
        most: 5,
    };
    assert!(last(&area.shared, &asked).hits.len() <= 5);
}
