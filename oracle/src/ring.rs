//! The hit ring, straight out of the program's memory. Between two looks there are fewer hits than it
//! holds (the judge has counted them): nothing is ever overwritten.

use crate::hits::Hit;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, HashMap};
use std::ptr::without_provenance_mut;
use std::sync::atomic::Ordering;
use ulpf_lib::ring::{HitRecord, RING_OFFSET, RING_RECORDS, SHARED_MAGIC, SharedHeader, hit_flags};

/// Hits that the ring holds with room to spare.
pub const MOST_HITS: usize = RING_RECORDS as usize - 4096;

/// The shared area, read out of the program's own mapping.
pub struct Ring {
    pid: libc::pid_t,
    base: u64,
    next: u64,
}

impl Ring {
    pub fn of(pid: i32) -> Result<Ring> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let line = maps
            .lines()
            .find(|l| l.contains("/memfd:ulpf-shared"))
            .context("the program has no ring")?;
        let base = line.split('-').next().unwrap_or("");
        let ring = Ring {
            pid,
            base: u64::from_str_radix(base, 16)?,
            next: 0,
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

    /// All hits since the last time. The program rests.
    pub fn drain(
        &mut self,
        ids: &HashMap<u32, u32>,
        threads: &BTreeMap<u32, u32>,
    ) -> Result<BTreeMap<u32, Vec<Hit>>> {
        const RECORD: usize = size_of::<HitRecord>();
        let head = self.word(std::mem::offset_of!(SharedHeader, head) as u64)?;
        ensure!(
            head - self.next <= RING_RECORDS,
            "the ring was lapped: {} hits",
            head - self.next
        );
        let mut out: BTreeMap<u32, Vec<Hit>> = BTreeMap::new();
        let mut buf = vec![0u8; RECORD * 4096];
        while self.next < head {
            let slot = self.next % RING_RECORDS;
            let n = (head - self.next).min(RING_RECORDS - slot).min(4096);
            let bytes = &mut buf[..n as usize * RECORD];
            self.read(RING_OFFSET + slot * RECORD as u64, bytes)?;
            for record in bytes.chunks(RECORD) {
                // SAFETY: a record's bytes; every field is an integer.
                let r = unsafe { record.as_ptr().cast::<HitRecord>().read_unaligned() };
                ensure!(
                    r.seq.load(Ordering::Acquire) == self.next + 1,
                    "record {} is not complete",
                    self.next
                );
                self.next += 1;
                let Some(watch) = ids.get(&r.watch) else {
                    bail!("a hit of watch {}, which is not armed", r.watch)
                };
                out.entry(r.tid).or_default().push(Hit {
                    watch: *watch,
                    pc: r.pc,
                    addr: r.addr,
                    len: r.len,
                    kind: r.kind,
                    silent: r.flags & hit_flags::SILENT != 0,
                    syscall: (r.flags & hit_flags::KERNEL != 0).then_some(r.syscall),
                    old: r.old,
                    new: r.new,
                });
            }
        }
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
