//! The shared area as the command sees it (`ulpf_lib::ring` describes it).

use super::sys;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use ulpf_lib::ring::{
    AREAS, AREAS_OFFSET, Area, COUNTER_SLOTS, COUNTERS_OFFSET, Counters, HitRecord, RING_OFFSET,
    RING_RECORDS, SHARED_LEN, SHARED_MAGIC, SharedHeader,
};

pub const NAME: &std::ffi::CStr = c"ulpf-shared";

/// A mapping of the shared area; stays valid after the program has died. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedArea(Arc<Mapping>);

#[derive(Debug)]
struct Mapping(NonNull<u8>);

// SAFETY: the mapping is plain shared memory; all access goes through atomics or volatile copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The two clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    tsc: u64,
    /// CLOCK_MONOTONIC.
    ns: u64,
}

impl Clocks {
    pub(super) fn now() -> Clocks {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` outlives the call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        let tsc = sys::tsc();
        Clocks {
            tsc,
            ns: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
        }
    }

    /// Now, and how far both have come since; at least 2 ms, for precision.
    fn rate(self) -> (Clocks, u64, u64) {
        loop {
            let now = Clocks::now();
            if now.ns - self.ns >= 2_000_000 && now.tsc > self.tsc {
                return (now, now.tsc - self.tsc, now.ns - self.ns);
            }
            std::thread::sleep(std::time::Duration::from_micros(500));
        }
    }
}

/// What stands in the ring for a ticket.
pub enum HitRead {
    /// Copied completely.
    Hit(Box<HitRecord>),
    /// Its writer has not finished, or has not begun.
    NotYet,
    /// Overwritten by a later hit: the reader was too slow.
    Lost,
}

impl SharedArea {
    /// Maps the area and sets its clock: the rate comes from the time since `since`, which was taken
    /// when the start of the program began, some milliseconds ago.
    pub(super) fn map(file: File, since: Clocks) -> io::Result<SharedArea> {
        // SAFETY: a fresh mapping of SHARED_LEN bytes; the file has that length (see `load`)
        // and nobody shrinks it.
        let addr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SHARED_LEN as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if addr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let area = SharedArea(Arc::new(Mapping(
            NonNull::new(addr.cast()).ok_or(io::ErrorKind::InvalidData)?,
        )));
        let (now, tsc, ns) = since.rate();
        let header = area.0.0.cast::<SharedHeader>().as_ptr();
        // SAFETY: inside our mapping; these fields are ours to write, before anybody reads them.
        unsafe {
            (&raw mut (*header).base_tsc).write_volatile(now.tsc);
            (&raw mut (*header).base_ns).write_volatile(now.ns);
            (&raw mut (*header).tsc_mult)
                .write_volatile(((u128::from(ns) << 32) / u128::from(tsc)) as u64);
            (&raw mut (*header).magic).write_volatile(SHARED_MAGIC);
        }
        Ok(area)
    }

    pub fn header(&self) -> &SharedHeader {
        // SAFETY: the mapping starts with the header, whose changing fields are atomics; any bytes
        // are valid values of its fields.
        unsafe { self.0.0.cast().as_ref() }
    }

    /// What patches keep for each thread.
    pub fn areas(&self) -> &[Area] {
        // SAFETY: inside the mapping; the elements are integers and atomics.
        unsafe {
            let first = self.0.0.add(AREAS_OFFSET as usize).cast::<Area>();
            std::slice::from_raw_parts(first.as_ptr(), AREAS as usize)
        }
    }

    /// Counters of a watch; watches at or above the number of slots share the last one.
    pub fn counters(&self, watch: u32) -> &Counters {
        let slot = u64::from(watch).min(COUNTER_SLOTS - 1);
        // SAFETY: `slot` is inside the array, whose elements are atomics only.
        unsafe {
            self.0
                .0
                .add((COUNTERS_OFFSET as usize) + slot as usize * size_of::<Counters>())
                .cast()
                .as_ref()
        }
    }

    /// Waits until hits beyond `seen` tickets are there, at most for `limit`; may return early.
    pub fn wait_for_hit(&self, seen: u64, limit: std::time::Duration) {
        let header = self.header();
        let word = header.wake.load(Ordering::Acquire);
        header.reader_waits.store(1, Ordering::SeqCst);
        // A writer that did not see the flag has published before it was set.
        if header.tickets() <= seen {
            let timeout = libc::timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: limit.subsec_nanos().into(),
            };
            // SAFETY: the futex word and the timeout live through the call; the word is in shared
            // memory, so the key is not private.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    &raw const header.wake,
                    libc::FUTEX_WAIT,
                    word,
                    &raw const timeout,
                )
            };
            // The writer has paid for one wake-up; let it write some more before the next.
            std::thread::sleep(std::time::Duration::from_millis(1).min(limit));
        }
        header.reader_waits.store(0, Ordering::Relaxed);
    }

    /// The hit with that ticket (0 is the first one).
    pub fn hit(&self, ticket: u64) -> HitRead {
        let at = RING_OFFSET as usize + (ticket % RING_RECORDS) as usize * size_of::<HitRecord>();
        // SAFETY: inside the ring; HitRecord is integers only, so any bytes are a valid value, and a
        // copy that a writer has raced is thrown away below.
        let (before, copy, after) = unsafe {
            let record = self.0.0.add(at).cast::<HitRecord>();
            let seq = &record.as_ref().seq;
            let before = seq.load(Ordering::Acquire);
            let copy = Box::new(std::ptr::read_volatile(record.as_ptr()));
            std::sync::atomic::fence(Ordering::Acquire);
            (before, copy, seq.load(Ordering::Relaxed))
        };
        match (before == ticket + 1, after == ticket + 1) {
            (true, true) => HitRead::Hit(copy),
            _ if before > ticket + 1 || after > ticket + 1 => HitRead::Lost,
            // A writer of a later round may have begun and cleared it.
            _ if self.header().tickets() > ticket + RING_RECORDS => HitRead::Lost,
            _ => HitRead::NotYet,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and the last reference to it.
        let _ =
            sys::check(unsafe { libc::munmap(self.0.as_ptr().cast(), SHARED_LEN as usize) } as i64);
    }
}
