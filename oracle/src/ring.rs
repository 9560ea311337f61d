//! The threads' hit rings, straight out of the program's memory. Between two looks there are fewer hits
//! than one holds (the judge has counted them): nothing is ever overwritten.

use crate::chain;
use crate::hits::Hit;
use crate::program::Watch;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, HashMap};
use std::ptr::without_provenance_mut;
use ulpf_lib::mapping::mappings;
use ulpf_lib::ring::{
    AREAS, HEADS_OFFSET, Progress, Reader, RingHead, Rings, SHARED_MAGIC, SLOT_WORDS, SharedHeader,
    Start, hit_flags, ring_place,
};

/// Hits that a ring holds with room to spare: those of more than eight bytes and the kernel's take two or
/// three slots.
pub const MOST_HITS: usize = ring_place(0).1 as usize / 3 - 1024;

/// The shared area, read out of the program's own mapping.
pub struct Ring {
    pid: libc::pid_t,
    base: u64,
    reader: Option<Reader>,
}

impl Ring {
    pub fn of(pid: i32) -> Result<Ring> {
        let maps = std::fs::read(format!("/proc/{pid}/maps"))?;
        let area = mappings(&maps)
            .find(|m| m.path() == b"/memfd:ulpf-shared")
            .context("the program has no ring")?;
        let ring = Ring {
            pid,
            base: area.start,
            reader: Some(Reader::new(Start::First)),
        };
        let magic = ring.word(std::mem::offset_of!(SharedHeader, magic) as u64)?;
        ensure!(magic == SHARED_MAGIC, "not a ring");
        Ok(ring)
    }

    /// Copies `to.len()` bytes at an offset of the area.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<()> {
        read_memory(self.pid, self.base + at, to)
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// All hits since the last time, of these threads, held to be chains if their watches are given. The program rests.
    pub fn drain(
        &mut self,
        ids: &HashMap<u32, u32>,
        threads: &BTreeMap<u32, u32>,
        chained: Option<&[Watch]>,
    ) -> Result<BTreeMap<u32, Vec<Hit>>> {
        let mut out: BTreeMap<u32, Vec<Hit>> = BTreeMap::new();
        let mut reader = self.reader.take().context("a reader")?;
        let (mut lost, mut unknown, mut raced) = (0, None, Vec::new());
        for ring in 0..self.rings() {
            let progress = reader.read(self, ring, usize::MAX, |r| {
                lost += r.lost;
                let Some(watch) = ids.get(&r.watch) else {
                    unknown = Some(r.watch);
                    return;
                };
                if chained.is_some() {
                    raced.push((*watch, r.clone()));
                }
                out.entry(r.tid).or_default().push(Hit {
                    watch: *watch,
                    pc: r.pc,
                    addr: r.addr,
                    len: r.len,
                    kind: r.kind,
                    silent: r.flags & hit_flags::SILENT != 0,
                    syscall: r.call.map(|c| c.nr as u32),
                    old: r.old,
                    new: r.new,
                });
            });
            ensure!(
                progress == Progress::All,
                "a record of ring {ring} is not complete"
            );
            lost += reader.lost_at_end(self, ring);
        }
        self.reader = Some(reader);
        ensure!(lost == 0, "{lost} hits were lost");
        if let Some(watch) = unknown {
            bail!("a hit of watch {watch}, which is not armed");
        }
        chain::check(raced, chained.unwrap_or(&[]))?;
        out.into_iter()
            .map(|(tid, hits)| {
                let n = threads.get(&tid);
                let n = n.with_context(|| format!("a hit of thread {tid}, which is nobody"))?;
                Ok((*n, hits))
            })
            .collect()
    }
}

/// The program's memory.
pub fn read_memory(pid: libc::pid_t, addr: u64, to: &mut [u8]) -> Result<()> {
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let remote = libc::iovec {
        iov_base: without_provenance_mut(addr as usize),
        iov_len: to.len(),
    };
    // SAFETY: writes to `to` only.
    let n = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    ensure!(
        n == to.len() as isize,
        "reading {addr:#x}: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// Memory that cannot be read counts as no hits, which is a difference.
impl Rings for Ring {
    fn rings(&self) -> usize {
        let at = std::mem::offset_of!(SharedHeader, rings) as u64;
        let mut n = [0; 4];
        self.read(at, &mut n)
            .map_or(0, |()| u32::from_le_bytes(n) as usize)
    }
    fn slots(&self, ring: usize) -> u64 {
        ring_place((ring as u64).min(AREAS - 1)).1
    }
    fn head(&self, ring: usize) -> (u64, u64) {
        let at = HEADS_OFFSET + (ring * size_of::<RingHead>()) as u64;
        let word = |field: usize| self.word(at + field as u64).unwrap_or(0);
        (
            word(std::mem::offset_of!(RingHead, taken)),
            word(std::mem::offset_of!(RingHead, records)),
        )
    }
    fn copy(&self, ring: usize, slot: u64, to: &mut [u64]) -> bool {
        let at = ring_place(ring as u64).0 + slot * SLOT_WORDS as u64 * 8;
        let mut bytes = vec![0; to.len() * 8];
        let read = self.read(at, &mut bytes).is_ok();
        for (to, from) in to.iter_mut().zip(bytes.chunks_exact(8)) {
            *to = u64::from_le_bytes(from.try_into().unwrap_or_default());
        }
        read
    }
}
