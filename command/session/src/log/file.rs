//! Reads a log file: its blocks, its damage, and its hits in order of time.

use crate::log::decode::Decoder;
use crate::log::format::{HEAD_LEN, Head, MAGIC, What};
use crate::log::words::Words;
use crate::words::{Seconds, count};
use anyhow::{Context, Result, bail};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use ulpf_lib::ring::Hit;

/// A part of a file that cannot be read, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset of the part, in bytes.
    pub at: u64,
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "damaged at byte {}: {}", self.at, self.what)
    }
}

/// A block of hits, and the position of its payload.
struct Block {
    at: u64,
    len: u32,
    /// The file ends inside this block.
    cut: bool,
    crc: u32,
    hits: u32,
    first: u64,
    last: u64,
    lost: u64,
}

/// An open log.
pub struct LogFile {
    file: File,
    pub words: Words,
    /// Blocks by life and ring, in file order.
    rings: BTreeMap<(u32, u32), Vec<Block>>,
    pub damage: Vec<Damage>,
}

/// Limit of the damaged places that are reported.
const MOST_DAMAGE: usize = 20;
/// Bytes of one read in the search for the next block.
const PIECE: usize = 1 << 20;

impl LogFile {
    /// Reads the heads of all blocks, and the words.
    ///
    /// # Errors
    /// The file cannot be read or is not a log.
    pub fn open(path: &Path) -> Result<LogFile> {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
        LogFile::read(file).with_context(|| format!("cannot read {name}"))
    }

    /// As [`LogFile::open`].
    ///
    /// # Errors
    /// As [`LogFile::open`].
    pub fn read(mut file: File) -> Result<LogFile> {
        let end = file.seek(SeekFrom::End(0)).context("it is no plain file")?;
        let mut magic = [0; MAGIC.len()];
        let n = read_up_to(&file, &mut magic, 0)?;
        match (&magic[..n.min(7)], magic[7]) {
            (_, _) if n == MAGIC.len() && magic == *MAGIC => {}
            (b"ulpflog", version) if n == MAGIC.len() => bail!(
                "it is a log of version {version}, and this ulpf reads version {}",
                MAGIC[7]
            ),
            _ => bail!("it is no log that `ulpf run --log FILE.ulpf` has written"),
        }
        let mut log = LogFile {
            file,
            words: Words::default(),
            rings: BTreeMap::new(),
            damage: Vec::new(),
        };
        log.scan(end)?;
        Ok(log)
    }

    fn scan(&mut self, end: u64) -> io::Result<()> {
        let mut at = MAGIC.len() as u64;
        while at < end {
            let mut head = [0; HEAD_LEN];
            let n = read_up_to(&self.file, &mut head, at)?;
            if n < HEAD_LEN {
                self.damaged(at, "the file ends in the middle of a block's head".into());
                break;
            }
            let Some(head) = Head::read(&head) else {
                let Some(next) = self.next_block(at + 1, end)? else {
                    let rest = end - at;
                    self.damaged(at, format!("no block is found in the last {rest} bytes"));
                    break;
                };
                let n = next - at;
                self.damaged(at, format!("{n} bytes are no block, and are left out"));
                at = next;
                continue;
            };
            let payload = at + HEAD_LEN as u64;
            let there = (end - payload).min(head.len.into()) as u32;
            match head.what {
                What::Words => self.read_words(payload, &head, there)?,
                What::Hits => self.hits(payload, &head, there),
            }
            at = payload + u64::from(head.len);
        }
        Ok(())
    }

    fn read_words(&mut self, at: u64, head: &Head, len: u32) -> io::Result<()> {
        let mut payload = vec![0; len as usize];
        let n = read_up_to(&self.file, &mut payload, at)?;
        payload.truncate(n);
        if crc32fast::hash(&payload) == head.crc {
            self.words.read(&payload);
        } else if n < head.len as usize {
            self.damaged(
                at,
                "the file ends in the middle of words: names may be missing".into(),
            );
            // Whole lines are intact.
            let whole = payload
                .iter()
                .rposition(|b| *b == b'\n')
                .map_or(0, |n| n + 1);
            self.words.read(&payload[..whole]);
        } else {
            self.damaged(at, "words are left out: names may be missing".into());
        }
        Ok(())
    }

    fn hits(&mut self, at: u64, head: &Head, len: u32) {
        let block = Block {
            at,
            len,
            cut: len < head.len,
            crc: head.crc,
            hits: head.hits,
            first: head.first,
            last: head.last,
            lost: head.lost,
        };
        if len < head.len {
            self.damaged(
                at,
                "the file ends in the middle of hits: those before that are shown".into(),
            );
        }
        self.rings
            .entry((head.life, head.ring))
            .or_default()
            .push(block);
    }

    fn damaged(&mut self, at: u64, what: String) {
        if self.damage.len() < MOST_DAMAGE {
            self.damage.push(Damage { at, what });
        }
    }

    /// Offset of the next block.
    fn next_block(&self, from: u64, end: u64) -> io::Result<Option<u64>> {
        let mut at = from;
        let mut piece = vec![0; PIECE + HEAD_LEN];
        while at < end {
            let n = read_up_to(&self.file, &mut piece, at)?;
            for i in 0..n.min(PIECE) {
                let head = piece[i..n].first_chunk();
                if piece[i] == b'U' && head.is_some_and(|head| Head::read(head).is_some()) {
                    return Ok(Some(at + i as u64));
                }
            }
            at += PIECE as u64;
        }
        Ok(None)
    }

    /// Number of hits according to the heads.
    pub fn hits_declared(&self) -> u64 {
        self.rings
            .values()
            .flatten()
            .map(|b| u64::from(b.hits))
            .sum()
    }

    fn load(&self, block: &Block) -> io::Result<Result<Decoder, Damage>> {
        let mut payload = vec![0; block.len as usize];
        let n = read_up_to(&self.file, &mut payload, block.at)?;
        payload.truncate(n);
        // (A block that the end of the file cuts off has no checksum to compare; the cut is already reported.)
        if block.cut || crc32fast::hash(&payload) == block.crc {
            return Ok(Ok(Decoder::new(payload, block.first)));
        }
        let clock = self.words.clock;
        let what = format!(
            "{} of {} to {} s are left out",
            count(block.hits.into(), "hit"),
            Seconds(clock.nanos(block.first)),
            Seconds(clock.nanos(block.last)),
        );
        Ok(Err(Damage { at: block.at, what }))
    }

    /// Passes all hits to `out` in order of time; the hits of one thread stay in its order.
    ///
    /// # Errors
    /// The file cannot be read. Damaged blocks are left out and listed in [`LogFile::damage`].
    pub fn each(&mut self, mut out: impl FnMut(u32, Item) -> Result<()>) -> Result<()> {
        let mut damage = Vec::new();
        let mut rings: Vec<Stream> = Vec::new();
        let mut next = BinaryHeap::new();
        for ((life, _), blocks) in &self.rings {
            let stream = Stream {
                life: *life,
                blocks: blocks.iter().collect(),
                open: None,
                hit: None,
                latest: 0,
            };
            next.extend(blocks.first().map(|b| Reverse((b.first, rings.len()))));
            rings.push(stream);
        }
        while let Some(Reverse((_, n))) = next.pop() {
            let stream = &mut rings[n];
            if let Some(hit) = stream.hit.take() {
                out(stream.life, Item::Hit(hit))?;
            }
            if let Some(at) = stream.advance(self, &mut damage, &mut out)? {
                next.push(Reverse((at, n)));
            }
        }
        damage.truncate(MOST_DAMAGE.saturating_sub(self.damage.len()));
        self.damage.extend(damage);
        Ok(())
    }

    /// The last `most` hits before `before` (TSC) that `wanted` accepts, youngest first. `near` tells from a head
    /// whether the block may hold such a hit, by life; other blocks are not read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn last(
        &mut self,
        before: u64,
        most: usize,
        near: impl Fn(u32, &Head) -> bool,
        wanted: impl Fn(u32, &Hit) -> bool,
    ) -> Result<Vec<(u32, Hit)>> {
        let mut blocks: Vec<(u32, u32, usize)> = Vec::new();
        for ((life, ring), of_ring) in &self.rings {
            let early = of_ring.iter().enumerate().filter(|(_, b)| b.first < before);
            blocks.extend(early.map(|(n, _)| (*life, *ring, n)));
        }
        let block = |(life, ring, n): &(u32, u32, usize)| &self.rings[&(*life, *ring)][*n];
        blocks.sort_by_key(|b| Reverse(block(b).last));
        // Ordered by time, life and position in the file.
        let mut found: BTreeMap<(u64, u32, u32, usize, usize), Hit> = BTreeMap::new();
        let mut damage = Vec::new();
        for key @ (life, ring, n) in &blocks {
            let block = block(key);
            let full = found.len() >= most;
            if full
                && found
                    .first_key_value()
                    .is_some_and(|(first, _)| first.0 > block.last)
            {
                break;
            }
            let mut head = [0; HEAD_LEN];
            read_up_to(&self.file, &mut head, block.at - HEAD_LEN as u64)?;
            if Head::read(&head).is_some_and(|head| !near(*life, &head)) {
                continue;
            }
            let mut decoder = match self.load(block)? {
                Ok(decoder) => decoder,
                Err(bad) => {
                    damage.push(bad);
                    continue;
                }
            };
            let mut count = 0;
            while let Ok(Some(hit)) = decoder.next_hit() {
                count += 1;
                if hit.time >= before || !wanted(*life, &hit) {
                    continue;
                }
                found.insert((hit.time, *life, *ring, *n, count), hit);
                if found.len() > most {
                    found.pop_first();
                }
            }
        }
        self.damage.extend(damage);
        let youngest_first = found.into_iter().rev();
        Ok(youngest_first
            .map(|((_, life, ..), hit)| (life, hit))
            .collect())
    }
}

/// A hit, or a gap where hits were lost.
pub enum Item {
    Hit(Hit),
    /// Number of hits of one thread that are missing here.
    Lost(u64),
}

/// One ring's hits.
struct Stream<'a> {
    life: u32,
    /// Blocks that are not read yet.
    blocks: VecDeque<&'a Block>,
    open: Option<(Decoder, &'a Block, u32)>,
    /// The next hit.
    hit: Option<Hit>,
    latest: u64,
}

impl Stream<'_> {
    /// Reads the next hit. Returns its time, or the earliest time that the next unread block can have.
    fn advance(
        &mut self,
        log: &LogFile,
        damage: &mut Vec<Damage>,
        out: &mut impl FnMut(u32, Item) -> Result<()>,
    ) -> Result<Option<u64>> {
        loop {
            let Some((decoder, block, count)) = &mut self.open else {
                let Some(block) = self.blocks.pop_front() else {
                    return Ok(None);
                };
                match log.load(block)? {
                    Ok(decoder) => self.open = Some((decoder, block, 0)),
                    Err(bad) => damage.push(bad),
                }
                continue;
            };
            let why = match decoder.next_hit() {
                Ok(Some(hit)) => {
                    *count += 1;
                    self.latest = self.latest.max(hit.time);
                    self.hit = Some(hit);
                    return Ok(Some(self.latest));
                }
                Ok(None) if *count == block.hits || block.cut => None,
                Ok(None) => Some(format!("it has {count} hits, and says {}", block.hits)),
                Err(_) if block.cut => None,
                Err(bad) => Some(format!("{bad}, behind {count} of its {} hits", block.hits)),
            };
            damage.extend(why.map(|what| Damage { at: block.at, what }));
            if block.lost > 0 && !block.cut {
                out(self.life, Item::Lost(block.lost))?;
            }
            self.open = None;
            // Later blocks are read only when they are due, so that not all rings' blocks are in memory.
            if let Some(block) = self.blocks.front() {
                self.latest = self.latest.max(block.first);
                return Ok(Some(self.latest));
            }
        }
    }
}

/// Fills the buffer as far as the file reaches.
fn read_up_to(file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < to.len() {
        match file.read_at(&mut to[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
