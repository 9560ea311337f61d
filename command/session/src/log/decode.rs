//! Decodes the payload of a block. Files are untrusted: each number is checked.

use crate::log::format::{
    A_SITE, A_STACK, FIELD, MORE, MOST_SITES, MOST_STACKS, NO_HIT, SHORT_SITES, Site, TIME, Values,
    more, number, unzigzag,
};
use ulpf_lib::ring::{Hit, MAX_FRAMES, MAX_VALUE, SystemCall, hit_flags};

/// Reasons why a payload cannot be decoded to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    #[error("it ends in the middle of a hit")]
    Cut,
    #[error("it names an instruction that it has not introduced")]
    NoSite,
    #[error("it names callers that it has not introduced")]
    NoStack,
    #[error("it holds something that is no part of a hit")]
    Unknown,
    #[error("it introduces more than a block may")]
    TooMany,
}

/// Reads one block.
pub struct Decoder {
    payload: Vec<u8>,
    at: usize,
    sites: Vec<(Site, u64)>,
    stacks: Vec<Vec<u64>>,
    values: Values,
    time: u64,
}

/// Optional parts of the next hit.
#[derive(Default)]
struct Beside {
    lost: u64,
    inside: u64,
    values: Option<(u8, [u8; 2 * MAX_VALUE])>,
    call: Option<Box<SystemCall>>,
    stack: Option<usize>,
}

impl Decoder {
    /// Decodes a payload whose first hit has the time `first`.
    pub fn new(payload: Vec<u8>, first: u64) -> Decoder {
        Decoder {
            payload,
            at: 0,
            sites: Vec::new(),
            stacks: Vec::new(),
            values: Values::default(),
            time: first,
        }
    }

    /// The next hit, or `None` after the last one.
    ///
    /// # Errors
    /// The rest of the payload cannot be read.
    pub fn next_hit(&mut self) -> Result<Option<Hit>, Bad> {
        let mut beside = Beside::default();
        loop {
            let Some(first) = self.payload.get(self.at).copied() else {
                return Ok(None);
            };
            self.at += 1;
            if first == NO_HIT {
                self.no_hit(&mut beside)?;
                continue;
            }
            let site = match usize::from(first) {
                short if short < SHORT_SITES => short,
                long => SHORT_SITES + ((long - SHORT_SITES) << 8) + usize::from(self.byte()?),
            };
            return self.hit(site, beside).map(Some);
        }
    }

    fn hit(&mut self, site: usize, beside: Beside) -> Result<Hit, Bad> {
        let control = self.byte()?;
        let code = |shift: u8| usize::from(control >> shift & 3);
        let since = self.field(TIME[code(0)])?;
        let fields = [2, 4, 6].map(|shift| FIELD[code(shift)]);
        let mut read = || -> Result<[u64; 3], Bad> {
            let [addr, old, new] = fields;
            Ok([self.field(addr)?, self.field(old)?, self.field(new)?].map(unzigzag))
        };
        let [moved, left, change] = read()?;
        let (site, last) = self.sites.get_mut(site).ok_or(Bad::NoSite)?;
        let addr = last.wrapping_add(moved);
        *last = addr;
        self.time = self.time.wrapping_add(since);
        let kept = self.values.at(addr);
        let old = kept.wrapping_add(left);
        let new = old.wrapping_add(change);
        *kept = new;
        let mut hit = Hit {
            time: self.time,
            pc: site.pc,
            addr,
            len: site.len,
            watch: site.watch,
            tid: site.tid,
            kind: site.kind,
            flags: site.flags,
            inside: beside.inside,
            lost: beside.lost,
            ..Hit::default()
        };
        let used = hit.used();
        for (to, first, n) in [(&mut hit.old, old, 0), (&mut hit.new, new, 1)] {
            let word = first.to_le_bytes();
            let head = used.min(8);
            to[..head].copy_from_slice(&word[..head]);
            if let (Some((len, rest)), 9..) = (&beside.values, used)
                && usize::from(*len) == used - 8
            {
                to[8..used].copy_from_slice(&rest[n * (used - 8)..(n + 1) * (used - 8)]);
            }
        }
        if hit.flags & hit_flags::KERNEL != 0 {
            hit.call = Some(beside.call.unwrap_or_default());
        }
        if let Some(stack) = beside.stack {
            hit.frames = self.stacks.get(stack).ok_or(Bad::NoStack)?.clone();
        }
        Ok(hit)
    }

    fn no_hit(&mut self, beside: &mut Beside) -> Result<(), Bad> {
        match self.byte()? {
            A_SITE => {
                if self.sites.len() >= MOST_SITES {
                    return Err(Bad::TooMany);
                }
                let site = Site {
                    pc: self.field(8)?,
                    watch: self.field(4)? as u32,
                    tid: self.field(4)? as u32,
                    len: self.field(4)? as u32,
                    kind: self.byte()?,
                    flags: self.byte()?,
                };
                self.sites.push((site, 0));
            }
            A_STACK => {
                let n = usize::from(self.byte()?);
                if self.stacks.len() >= MOST_STACKS || n > MAX_FRAMES {
                    return Err(Bad::TooMany);
                }
                let frames: Result<Vec<u64>, Bad> = (0..n).map(|_| self.field(8)).collect();
                self.stacks.push(frames?);
            }
            MORE => *beside = self.beside()?,
            _ => return Err(Bad::Unknown),
        }
        Ok(())
    }

    fn beside(&mut self) -> Result<Beside, Bad> {
        let mask = self.byte()?;
        let mut beside = Beside::default();
        if mask & more::LOST != 0 {
            beside.lost = self.field(8)?;
        }
        if mask & more::INSIDE != 0 {
            beside.inside = self.field(8)?;
        }
        if mask & more::VALUES != 0 {
            // The hit's site gives their length, but comes later.
            let len = self.length_of_values()?;
            let from = self.bytes(2 * usize::from(len))?;
            let mut values = [0; 2 * MAX_VALUE];
            values[..from.len()].copy_from_slice(from);
            beside.values = Some((len, values));
        }
        if mask & more::CALL != 0 {
            let nr = self.field(8)?;
            let mut args = [0; 6];
            for arg in &mut args {
                *arg = self.field(8)?;
            }
            let result = self.field(8)? as i64;
            beside.call = Some(Box::new(SystemCall { nr, args, result }));
        }
        if mask & more::STACK != 0 {
            beside.stack = Some(self.field(2)? as usize);
        }
        Ok(beside)
    }

    fn length_of_values(&mut self) -> Result<u8, Bad> {
        let len = self.byte()?;
        match usize::from(len) {
            1..=24 => Ok(len),
            _ => Err(Bad::Unknown),
        }
    }

    fn byte(&mut self) -> Result<u8, Bad> {
        let byte = self.payload.get(self.at).copied().ok_or(Bad::Cut)?;
        self.at += 1;
        Ok(byte)
    }

    fn bytes(&mut self, n: usize) -> Result<&[u8], Bad> {
        let from = self.payload.get(self.at..).ok_or(Bad::Cut)?;
        let bytes = from.get(..n).ok_or(Bad::Cut)?;
        self.at += n;
        Ok(bytes)
    }

    /// Reads a number of `n` bytes.
    #[inline]
    fn field(&mut self, n: usize) -> Result<u64, Bad> {
        if self.payload.len() - self.at < n {
            return Err(Bad::Cut);
        }
        let value = number(&self.payload, self.at);
        self.at += n;
        Ok(match n {
            8 => value,
            _ => value & !(u64::MAX << (8 * n)),
        })
    }
}
