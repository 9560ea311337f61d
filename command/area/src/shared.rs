//! The shared area as the command sees it (`ulpf_lib::ring` describes it).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use ulpf_host::sys;
use ulpf_lib::ring::findings::{FINDINGS_OFFSET, Findings};
use ulpf_lib::ring::{
    AREAS, AREAS_OFFSET, Area, COUNTER_SLOTS, COUNTERS_OFFSET, Clock, Counters, Entry,
    HEADS_OFFSET, Handshake, Listed, Ring, RingHead, Rings, SHARED_LEN, SHARED_MAGIC, SLOT_WORDS,
    SharedHeader, WATCH_TABLE_OFFSET, copy_slots, ring_place,
};

/// Name of the memory file; the name of an area for a program on another machine starts with it.
pub const NAME: &std::ffi::CStr = c"ulpf-shared";

/// A mapping of the shared area; stays valid after the program has died. Clones share it.
///
/// Other processes that map it may be hostile and write while we read: each number is read once, and then checked.
#[derive(Clone, Debug)]
pub struct SharedArea(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    at: NonNull<u8>,
    /// Copy of the clock, taken when the area was mapped.
    clock: Clock,
    /// An area of our own stays open, so that `ulpf last` finds it among our descriptors.
    own_file: Option<File>,
}

// SAFETY: the mapping is plain shared memory; all access goes through atomics or volatile copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Readings of the two clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    tsc: u64,
    /// CLOCK_MONOTONIC.
    ns: u64,
}

/// CLOCK_MONOTONIC in nanoseconds.
fn monotonic() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Clocks {
    /// Reads both clocks at the same moment; an interrupted attempt is repeated.
    pub fn now() -> Clocks {
        /// Longest attempt that counts as one moment: TSC ticks, some 10 µs.
        const AT_ONCE: u64 = 30_000;
        /// Limit of the attempts; then the closest one is taken.
        const ATTEMPTS: usize = 100;
        let mut closest = (u64::MAX, Clocks { tsc: 0, ns: 0 });
        for _ in 0..ATTEMPTS {
            let before = sys::tsc();
            let ns = monotonic();
            let took = sys::tsc().saturating_sub(before);
            if took < closest.0 {
                let tsc = before + took / 2;
                closest = (took, Clocks { tsc, ns });
            }
            if took < AT_ONCE {
                break;
            }
        }
        closest.1
    }

    /// Reads the clocks again, at least 2 ms later for precision. Returns the reading and the ticks and nanoseconds
    /// since `self`.
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

/// The clock of an area that begins now. The first area of this command takes its rate from the time since `since`.
/// Later areas use the first one's rate, so that hits of several processes are ordered by time.
fn clock(since: Clocks) -> Clock {
    static FIRST: OnceLock<Clock> = OnceLock::new();
    /// In nanoseconds: the TSC differs this much from CLOCK_MONOTONIC only after the machine has slept.
    const ASTRAY: u64 = 1_000_000_000;
    if let Some(first) = FIRST.get() {
        let now = Clocks::now();
        let base_ns = first.nanos(now.tsc);
        if base_ns.abs_diff(now.ns) < ASTRAY {
            return Clock {
                base_tsc: now.tsc,
                base_ns,
                ..*first
            };
        }
    }
    let (now, tsc, ns) = since.rate();
    let clock = Clock {
        base_tsc: now.tsc,
        base_ns: now.ns,
        tsc_mult: ((u128::from(ns) << 32) / u128::from(tsc)) as u64,
    };
    let _ = FIRST.set(clock);
    clock
}

impl SharedArea {
    /// Maps the area and sets its clock ([`clock`]). `since` was read when the start of the program began, some
    /// milliseconds ago.
    pub fn map(file: File, pid: i32, since: Clocks) -> io::Result<SharedArea> {
        let mut mapping = Mapping::of(&file, libc::PROT_READ | libc::PROT_WRITE)?;
        mapping.clock = clock(since);
        let header = mapping.at.cast::<SharedHeader>().as_ptr();
        // SAFETY: inside our mapping; no other process reads these fields before we have written them.
        unsafe {
            (&raw mut (*header).base_tsc).write_volatile(mapping.clock.base_tsc);
            (&raw mut (*header).base_ns).write_volatile(mapping.clock.base_ns);
            (&raw mut (*header).tsc_mult).write_volatile(mapping.clock.tsc_mult);
            (&raw mut (*header).magic).write_volatile(SHARED_MAGIC);
        }
        mapping.own_file = Some(file);
        let area = SharedArea(Arc::new(mapping));
        area.header().pid.store(pid as u32, Ordering::Release);
        Ok(area)
    }

    /// Gives a new memory file the area's length and seals it.
    pub fn size(file: &File) -> io::Result<()> {
        sys::set_len(file, SHARED_LEN)?;
        sys::seal(file)
    }

    /// An area for a program on another machine, whose hits we write ourselves. `pid` is the process that represents
    /// it. The area's name carries the load bias and the path of its file, for the lookup of symbols.
    pub fn elsewhere(pid: i32, bias: u64, program: &str) -> io::Result<SharedArea> {
        let since = Clocks::now();
        let mut name = NAME.to_bytes().to_vec();
        name.extend(format!(":{bias:x}:").bytes());
        // The kernel's limit of a name; without a path, the program has no symbols.
        if program.len() + name.len() < 240 {
            name.extend(program.bytes().filter(|b| *b != 0));
        }
        let name = std::ffi::CString::new(name).unwrap_or_else(|_| NAME.into());
        let file = sys::memfd(&name)?;
        SharedArea::size(&file)?;
        SharedArea::map(file, pid, since)
    }

    /// The table entry of a watch; marks the watch as listed.
    pub fn list(&self, watch: u32) -> Option<&Listed> {
        if u64::from(watch) >= COUNTER_SLOTS {
            return None;
        }
        self.header().listed.fetch_max(watch + 1, Ordering::AcqRel);
        self.watch_table().get(watch as usize)
    }

    /// Writes a record to a ring of this process.
    pub fn record(&self, ring: u32, entry: &Entry, now: u64) {
        self.header().rings.fetch_max(ring + 1, Ordering::AcqRel);
        if let Some(head) = self.heads().get(ring as usize) {
            Ring::new(head, self.words(ring as usize)).write(entry, || now);
        }
    }

    /// Maps another process's area read-only. `None` if it is of another version of ulpf, or not ready.
    pub fn look(file: &File) -> io::Result<Option<SharedArea>> {
        if !sys::is_sealed_memory(file, SHARED_LEN)? {
            return Ok(None);
        }
        let mut mapping = Mapping::of(file, libc::PROT_READ)?;
        let header = mapping.at.cast::<SharedHeader>().as_ptr();
        // SAFETY: inside our mapping; any bytes are valid values of these fields.
        let (magic, clock) = unsafe {
            (
                (&raw const (*header).magic).read_volatile(),
                Clock {
                    base_tsc: (&raw const (*header).base_tsc).read_volatile(),
                    base_ns: (&raw const (*header).base_ns).read_volatile(),
                    tsc_mult: (&raw const (*header).tsc_mult).read_volatile(),
                },
            )
        };
        mapping.clock = clock;
        let area = SharedArea(Arc::new(mapping));
        let ready = magic == SHARED_MAGIC && area.header().pid.load(Ordering::Acquire) != 0;
        Ok(ready.then_some(area))
    }

    /// Start of the area and conversion of its times. Use this copy rather than the header's fields, which the program
    /// may change.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The header; its numbers may change while they are read, and may be anything.
    pub fn header(&self) -> &SharedHeader {
        // SAFETY: the mapping starts with the header, whose changing fields are atomics; any bytes
        // are valid values of its fields. The others are read by `look` alone.
        unsafe { self.0.at.cast().as_ref() }
    }

    /// State of the patches for each thread.
    pub fn areas(&self) -> &[Area] {
        // SAFETY: inside the mapping; the elements are integers and atomics.
        unsafe {
            let first = self.0.at.add(AREAS_OFFSET as usize).cast::<Area>();
            std::slice::from_raw_parts(first.as_ptr(), AREAS as usize)
        }
    }

    /// Counters of a watch; watches at or above the number of slots share the last one.
    pub fn counters(&self, watch: u32) -> &Counters {
        let slot = u64::from(watch).min(COUNTER_SLOTS - 1);
        // SAFETY: `slot` is inside the array, whose elements are atomics only.
        unsafe {
            self.0
                .at
                .add((COUNTERS_OFFSET as usize) + slot as usize * size_of::<Counters>())
                .cast()
                .as_ref()
        }
    }

    /// Number of hits of a watch, and how many of them were silent.
    pub fn hits(&self, watch: u32) -> (u64, u64) {
        let n = self.counters(watch);
        let (hits, silent) = self.header().tallied(self.areas(), watch);
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (
            hits.saturating_add(count(&n.hits)),
            silent.saturating_add(count(&n.silent)),
        )
    }

    /// Findings of the heap check.
    pub fn findings(&self) -> &Findings {
        // SAFETY: inside the mapping; all of it is atomics.
        unsafe {
            let at = self.0.at.add(FINDINGS_OFFSET as usize);
            at.cast::<Findings>().as_ref()
        }
    }

    /// All watches that ever existed, by number.
    pub fn watch_table(&self) -> &[Listed] {
        // SAFETY: inside the mapping; the elements are atomics.
        let all = unsafe {
            let first = self.0.at.add(WATCH_TABLE_OFFSET as usize).cast::<Listed>();
            std::slice::from_raw_parts(first.as_ptr(), COUNTER_SLOTS as usize)
        };
        let used = self.header().listed.load(Ordering::Acquire) as usize;
        &all[..used.min(all.len())]
    }

    fn heads(&self) -> &[RingHead] {
        // SAFETY: inside the mapping; the elements are atomics.
        unsafe {
            let first = self.0.at.add(HEADS_OFFSET as usize).cast::<RingHead>();
            std::slice::from_raw_parts(first.as_ptr(), AREAS as usize)
        }
    }

    fn words(&self, ring: usize) -> &[AtomicU64] {
        let (at, slots) = ring_place((ring as u64).min(AREAS - 1));
        // SAFETY: inside the mapping.
        unsafe {
            let first = self.0.at.add(at as usize).cast::<AtomicU64>();
            std::slice::from_raw_parts(first.as_ptr(), slots as usize * SLOT_WORDS)
        }
    }

    /// Waits for a new record, at most for `limit`; may return early. `any` checks for records once more after the
    /// reader has announced that it waits.
    pub fn wait(&self, any: impl Fn() -> bool, limit: Duration) {
        let header = self.header();
        let word = header.wake.load(Ordering::Acquire);
        header.reader_waits.store(1, Ordering::SeqCst);
        // A writer that did not see the flag has published before it was set (but see `stub/handlers/src/log.rs`).
        if !any() {
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
        }
        header.reader_waits.store(0, Ordering::Relaxed);
    }

    /// From now on no record is lost: a thread whose ring is full waits as long as the reader calls
    /// [`SharedArea::alive`].
    pub fn lose_nothing(&self) {
        self.header().lossless.store(1, Ordering::SeqCst);
    }

    /// Whether threads still wait for room. A thread gives up if the reader shows no sign of life for long.
    pub fn is_lossless(&self) -> bool {
        self.header().lossless.load(Ordering::Relaxed) != 0
    }

    /// Shows the waiting threads that the reader is alive.
    pub fn alive(&self) {
        let lossless = &self.header().lossless;
        let now = lossless.load(Ordering::Relaxed);
        if now != 0 {
            let next = now.checked_add(1).unwrap_or(1);
            let _ = lossless.compare_exchange(now, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Releases the slots of a ring before `slot` for new records.
    pub fn has_read(&self, ring: usize, slot: u64) {
        let Some(head) = self.heads().get(ring) else {
            return;
        };
        let header = self.header();
        if Handshake::of(header).make(&head.read, slot) {
            // SAFETY: a futex word that lives as long as the mapping.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    &raw const header.room,
                    libc::FUTEX_WAKE,
                    i32::MAX,
                )
            };
        }
    }

    /// The memory file of an area of our own.
    pub(crate) fn file(&self) -> Option<&File> {
        self.0.own_file.as_ref()
    }

    /// Ends a [`SharedArea::wait`].
    pub fn wake(&self) {
        let wake = &self.header().wake;
        wake.fetch_add(1, Ordering::SeqCst);
        // SAFETY: a futex word that lives as long as the mapping.
        unsafe { libc::syscall(libc::SYS_futex, &raw const *wake, libc::FUTEX_WAKE, 1) };
    }
}

impl Mapping {
    /// Maps the whole area. The descriptor may come from a process that has put another file in its place. So the file
    /// must be sealed memory of the right length, which cannot shrink under the mapping.
    fn of(file: &File, protection: i32) -> io::Result<Mapping> {
        if !sys::is_sealed_memory(file, SHARED_LEN)? {
            let why = "it is no sealed memory file of the right length: somebody has exchanged it";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        // SAFETY: a fresh mapping of SHARED_LEN bytes of a file that has that length for good.
        let addr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SHARED_LEN as usize,
                protection,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if addr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: our own mapping. Untouched pages must not be allocated for a core file.
        unsafe { libc::madvise(addr, SHARED_LEN as usize, libc::MADV_DONTDUMP) };
        Ok(Mapping {
            at: NonNull::new(addr.cast()).ok_or(io::ErrorKind::InvalidData)?,
            clock: Clock::default(),
            own_file: None,
        })
    }
}

impl Rings for SharedArea {
    fn rings(&self) -> usize {
        let used = self.header().rings.load(Ordering::Acquire);
        (used as usize).min(AREAS as usize)
    }
    fn slots(&self, ring: usize) -> u64 {
        ring_place(ring as u64).1
    }
    fn head(&self, ring: usize) -> (u64, u64) {
        self.heads().get(ring).map_or((0, 0), RingHead::progress)
    }
    fn copy(&self, ring: usize, slot: u64, to: &mut [u64]) -> bool {
        copy_slots(self.words(ring), slot, to)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and the last reference to it.
        let _ = sys::check(
            unsafe { libc::munmap(self.at.as_ptr().cast(), SHARED_LEN as usize) } as i64,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_areas_of_a_command_have_one_clock() {
        let first = clock(Clocks::now());
        let second = clock(Clocks::now());
        assert!(second.base_tsc > first.base_tsc);
        for ticks in [0, 1_000_000, 1_000_000_000_000] {
            let tsc = second.base_tsc + ticks;
            assert!(first.nanos(tsc).abs_diff(second.nanos(tsc)) <= 1);
        }
        let now = Clocks::now();
        let said = second.nanos(now.tsc);
        assert!(said.abs_diff(now.ns) < 100_000_000, "{said} for {}", now.ns);
    }
}
