//! Encodes the hits of one ring as the payload of a block.
//!
//! ```text
//! hit := site (1 or 2 bytes)  control (1)  time (1, 2, 4, 8)  addr (0, 1, 4, 8)  old (0, 1, 4, 8)  new (0, 1, 4, 8)
//! ```
//! Most hits of a counter take five bytes. The site is known, the time takes two bytes, and the address is the site's
//! last one. The old value equals the last new value, and the new value is near it. Each field is stored as eight
//! bytes; the control byte says how many of them count, so the encoder does not branch per byte.

use crate::log::format::{
    A_SITE, A_STACK, FIELD, FULL, Head, LARGEST_HIT, MORE, MOST_SITES, MOST_STACKS, NO_HIT,
    SHORT_SITES, Site, TIME, Values, What, more, zigzag,
};
use std::collections::HashMap;
use ulpf_lib::ring::{Hit, MAX_FRAMES, hit_flags};

/// Slots of the hash table of sites; a power of two.
const PLACES: usize = 4096;
const NOWHERE: u16 = u16::MAX;

/// Builds the block of one ring.
pub struct Encoder {
    head: Head,
    out: Box<[u8]>,
    at: usize,
    sites: Vec<Known>,
    places: Box<[u16; PLACES]>,
    stacks: HashMap<Vec<u64>, u16>,
    values: Values,
    /// Time of the previous hit.
    time: u64,
}

struct Known {
    site: Site,
    /// Address of the site's last access.
    addr: u64,
}

impl Encoder {
    pub fn new(life: u32, ring: u32) -> Encoder {
        Encoder {
            head: Head::new(What::Hits, life, ring),
            out: vec![0; FULL + LARGEST_HIT].into(),
            at: 0,
            sites: Vec::new(),
            places: Box::new([NOWHERE; PLACES]),
            stacks: HashMap::new(),
            values: Values::default(),
            time: 0,
        }
    }

    /// Whether [`Encoder::take`] must be called before the next hit.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.at >= FULL || self.sites.len() >= MOST_SITES || self.stacks.len() >= MOST_STACKS
    }

    pub fn is_empty(&self) -> bool {
        self.at == 0 && self.head.lost == 0
    }

    /// Counts `lost` hits lost after the last hit.
    pub fn lose(&mut self, lost: u64) {
        self.head.lost = self.head.lost.saturating_add(lost);
    }

    /// Adds a hit. `time` orders the hits of a thread: it is not before the time of the previous hit. `new_code` is
    /// called for each instruction and (`true`) each return address that is new to this block.
    #[inline]
    pub fn hit(&mut self, hit: &Hit, time: u64, mut new_code: impl FnMut(u64, bool)) {
        let site = Site {
            pc: hit.pc,
            watch: hit.watch,
            tid: hit.tid,
            len: hit.len,
            kind: hit.kind,
            flags: hit.flags,
        };
        let number = match self.find(&site) {
            Ok(number) => number,
            Err(place) => {
                new_code(site.pc, false);
                self.add(site, place)
            }
        };
        let used = hit.used();
        if hit.flags & (hit_flags::KERNEL | hit_flags::INSIDE) != 0
            || hit.lost > 0
            || used > 8
            || !hit.frames.is_empty()
        {
            self.more(hit, used, &mut new_code);
        }
        if self.head.hits == 0 {
            (self.head.first, self.time) = (time, time);
        }
        self.head.hits += 1;
        self.head.last = time;
        self.head.touch(hit.addr, hit.len);
        let known = &mut self.sites[number];
        let addr = zigzag(hit.addr.wrapping_sub(known.addr));
        known.addr = hit.addr;
        let since = time.wrapping_sub(self.time);
        self.time = time;
        let (old, new) = (first(&hit.old, used), first(&hit.new, used));
        let kept = self.values.at(hit.addr);
        let (left, change) = (
            zigzag(old.wrapping_sub(*kept)),
            zigzag(new.wrapping_sub(old)),
        );
        *kept = new;
        match number {
            0..SHORT_SITES => self.byte(number as u8),
            _ => {
                let number = number - SHORT_SITES;
                self.byte(SHORT_SITES as u8 + (number >> 8) as u8);
                self.byte(number as u8);
            }
        }
        let control = self.at;
        self.at += 1;
        let mut codes = self.field(since, TIME, time_code(since));
        for (shift, value) in [(2, addr), (4, left), (6, change)] {
            codes |= self.field(value, FIELD, field_code(value)) << shift;
        }
        self.out[control] = codes;
    }

    /// Passes the block to `write`, unless it is empty, and starts the next one.
    pub fn take(&mut self, write: impl FnOnce(&Head, &[u8])) {
        if self.is_empty() {
            return;
        }
        write(&self.head, &self.out[..self.at]);
        self.head = Head::new(What::Hits, self.head.life, self.head.ring);
        self.at = 0;
        self.sites.clear();
        self.places.fill(NOWHERE);
        self.stacks.clear();
        self.values.clear();
    }

    /// The number of a site, or the slot where it belongs in the table.
    #[inline]
    fn find(&self, site: &Site) -> Result<usize, usize> {
        let who = u64::from(site.watch) << 32 ^ u64::from(site.tid);
        let what = u64::from(site.len) << 16 ^ u64::from(site.kind) << 8 ^ u64::from(site.flags);
        let hash = (site.pc ^ who.rotate_left(17) ^ what.rotate_left(41))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut place = (hash >> 52) as usize % PLACES;
        loop {
            // (There are fewer sites than slots.)
            match self.places[place] {
                NOWHERE => return Err(place),
                n if self.sites[usize::from(n)].site == *site => return Ok(n.into()),
                _ => place = (place + 1) % PLACES,
            }
        }
    }

    fn add(&mut self, site: Site, place: usize) -> usize {
        let number = self.sites.len();
        self.places[place] = number as u16;
        self.sites.push(Known { site, addr: 0 });
        self.put(&[NO_HIT, A_SITE]);
        self.put(&site.pc.to_le_bytes());
        for word in [site.watch, site.tid, site.len] {
            self.put(&word.to_le_bytes());
        }
        self.put(&[site.kind, site.flags]);
        number
    }

    /// Writes the optional parts of a hit: those that most hits do not have.
    #[cold]
    fn more(&mut self, hit: &Hit, used: usize, new_code: &mut impl FnMut(u64, bool)) {
        // (The program may write anything to its ring.)
        let stack = match &hit.frames[..hit.frames.len().min(MAX_FRAMES)] {
            [] => None,
            frames => match self.stacks.get(frames) {
                Some(known) => Some(*known),
                None => Some(self.stack(frames, new_code)),
            },
        };
        let has = |is: bool, bit: u8| if is { bit } else { 0 };
        let call = hit.call.as_deref();
        let mask = has(hit.lost > 0, more::LOST)
            | has(hit.flags & hit_flags::INSIDE != 0, more::INSIDE)
            | has(used > 8, more::VALUES)
            | has(call.is_some(), more::CALL)
            | has(stack.is_some(), more::STACK);
        if mask == 0 {
            return;
        }
        self.put(&[NO_HIT, MORE, mask]);
        if mask & more::LOST != 0 {
            self.put(&hit.lost.to_le_bytes());
        }
        if mask & more::INSIDE != 0 {
            self.put(&hit.inside.to_le_bytes());
        }
        if mask & more::VALUES != 0 {
            self.put(&[(used - 8) as u8]);
            self.put(&hit.old[8..used]);
            self.put(&hit.new[8..used]);
        }
        if let Some(c) = call {
            self.put(&c.nr.to_le_bytes());
            c.args.iter().for_each(|a| self.put(&a.to_le_bytes()));
            self.put(&c.result.to_le_bytes());
        }
        if let Some(stack) = stack {
            self.put(&stack.to_le_bytes());
        }
    }

    fn stack(&mut self, frames: &[u64], new_code: &mut impl FnMut(u64, bool)) -> u16 {
        let number = self.stacks.len() as u16;
        self.stacks.insert(frames.to_vec(), number);
        self.put(&[NO_HIT, A_STACK, frames.len() as u8]);
        for frame in frames {
            new_code(*frame, true);
            self.put(&frame.to_le_bytes());
        }
        number
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        self.out[self.at] = byte;
        self.at += 1;
    }

    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Stores eight bytes and keeps as many as the code says.
    #[inline]
    fn field(&mut self, value: u64, lengths: [usize; 4], code: u8) -> u8 {
        self.out[self.at..self.at + 8].copy_from_slice(&value.to_le_bytes());
        self.at += lengths[usize::from(code)];
        code
    }
}

/// The shortest length of [`TIME`] that holds the value.
#[inline]
fn time_code(value: u64) -> u8 {
    u8::from(value > 0xff) + u8::from(value > 0xffff) + u8::from(value > 0xffff_ffff)
}

/// The shortest length of [`FIELD`] that holds the value.
#[inline]
fn field_code(value: u64) -> u8 {
    u8::from(value > 0) + u8::from(value > 0xff) + u8::from(value > 0xffff_ffff)
}

/// The first `used` bytes of a value, at most eight, as a number.
#[inline]
fn first(value: &[u8; 32], used: usize) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *value;
    let word = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    match used {
        0 => 0,
        1..8 => word & (u64::MAX >> (64 - 8 * used)),
        _ => word,
    }
}
