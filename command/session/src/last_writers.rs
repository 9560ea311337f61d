//! Records of last writers ([`ulpf_lib::last_writer`]), read from the memory of a running program that has them. The program
//! can write to all that is read here.

use std::sync::atomic::Ordering::Relaxed;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::alias_in;
use ulpf_lib::last_writer::{
    LastWriter, RECORD, RECORDS_OFFSET, SITES_OFFSET, Site, Written, stretches,
};
use ulpf_lib::ring::SharedHeader;
use ulpf_symbols::Memory;

/// The records of a program.
pub struct LastWriters<'a> {
    memory: &'a dyn Memory,
    tables: u64,
    place: u64,
    page_map: u64,
    /// TSC when records began.
    pub since: u64,
}

/// A stretch of bytes with one last writer.
pub struct Stretch {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The instruction, or the call.
    pub site: Site,
    /// The thread, and the TSC from which on it may have been; `None`: not known.
    pub when: Option<(u32, u64)>,
}

impl<'a> LastWriters<'a> {
    /// `None`: the program has no records.
    pub fn of(header: &SharedHeader, memory: &'a dyn Memory) -> Option<LastWriters<'a>> {
        let [tables, place, page_map] = header.writers.each_ref().map(|at| at.load(Relaxed));
        (tables != 0).then(|| LastWriters {
            memory,
            tables,
            place,
            page_map,
            since: header.writers_since.load(Relaxed),
        })
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory
            .read(at, &mut bytes)
            .then_some(u64::from_le_bytes(bytes))
    }

    /// The last writers of `[addr, addr + len)`, without bytes that have not been written. `None`: there are no records of
    /// the first byte.
    pub fn last(&self, addr: u64, len: u64) -> Option<Vec<Stretch>> {
        let mut records = Vec::new();
        let end = addr.saturating_add(len);
        let mut at = addr;
        while at < end {
            let next = (at | (PAGE_SIZE - 1)).saturating_add(1).min(end);
            match self.records(at, next - at) {
                Some(some) => records.extend(some),
                None if at == addr => return None,
                None => records.extend((at..next).map(|_| LastWriter::NONE)),
            }
            at = next;
        }
        let all = stretches(addr, records.into_iter());
        Some(all.into_iter().filter_map(|of| self.stretch(of)).collect())
    }

    /// The records of bytes on one page.
    fn records(&self, addr: u64, len: u64) -> Option<Vec<LastWriter>> {
        let alias = alias_in(self.page_map, addr, |at| self.word(at))?;
        let at = alias.checked_sub(self.place)?.checked_mul(RECORD)?;
        let mut bytes = vec![0; (len * RECORD) as usize];
        let from = self.tables.checked_add(RECORDS_OFFSET)?.checked_add(at)?;
        let (words, _) = self
            .memory
            .read(from, &mut bytes)
            .then_some(bytes.as_chunks::<4>())?;
        Some(
            words
                .iter()
                .map(|w| LastWriter(u32::from_le_bytes(*w)))
                .collect(),
        )
    }

    fn stretch(&self, of: Written) -> Option<Stretch> {
        let site = self.word(
            self.tables
                .wrapping_add(SITES_OFFSET + of.by.site() as u64 * 8),
        )?;
        let stamp = self.tables.wrapping_add(of.by.stamp() as u64 * 16);
        let when = self.word(stamp).zip(self.word(stamp.wrapping_add(8)));
        Some(Stretch {
            addr: of.addr,
            len: of.len,
            site: Site::of(site)?,
            when: when
                .filter(|(since, _)| *since != 0)
                .map(|(since, tid)| (tid as u32, since)),
        })
    }
}
