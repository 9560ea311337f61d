//! `ulpf watches KIND [stop] [log] [bt N] [PLACEMENT] at PLACE …`: many watches of which the same is wanted.
//!
//! ```text
//! PLACE  ADDR:LEN[*COUNT+STRIDE]     0x4040:8, or 0x4040:8*1000+64: a thousand (at most a million), 64 bytes apart
//! ```
//! The answer goes through them in order, a line for each stretch: `{"watches":[FIRST,COUNT]}` for so many
//! consecutive numbers, or why one was refused.

use core::fmt::Write;

use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

use super::Control;
use super::monitor::refused;
use super::watches::refusal;
use super::words::place;
use crate::attributes::Attributes;
use crate::inferior::Refusal;

/// Numbers that follow each other.
struct Stretch {
    first: u32,
    count: u32,
}

impl Stretch {
    fn tell(&mut self, out: &mut dyn Write) {
        if self.count > 0 {
            let _ = writeln!(out, "{{\"watches\":[{},{}]}}", self.first, self.count);
        }
        self.count = 0;
    }

    fn add(&mut self, id: WatchId, out: &mut dyn Write) {
        if id.0 != self.first.wrapping_add(self.count) {
            self.tell(out);
        }
        if self.count == 0 {
            self.first = id.0;
        }
        self.count += 1;
    }
}

impl Control {
    /// Arms them with the next resumption.
    pub fn watch_places<'a>(
        &mut self,
        kind: WatchKind,
        a: &Attributes,
        places: impl Iterator<Item = &'a str>,
        out: &mut dyn Write,
    ) {
        let mut told = Stretch { first: 0, count: 0 };
        for word in places {
            let Some(p) = place(word) else {
                told.tell(out);
                refused(out, &not_a_place(word));
                continue;
            };
            for n in 0..p.count {
                let start = p
                    .stride
                    .checked_mul(n)
                    .and_then(|far| p.start.checked_add(far));
                let range = start.and_then(|start| WatchRange::new(TargetAddr(start), p.len));
                let done = match range {
                    Some(range) => self.watch_bulk(range, kind, a),
                    None => Err(no_range(word)),
                };
                match done {
                    Ok(id) => told.add(id, out),
                    Err(why) => {
                        told.tell(out);
                        refused(out, &why);
                    }
                }
            }
        }
        told.tell(out);
    }

    /// A watch with these attributes; its place is `a.wish`.
    pub fn watch_bulk(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        a: &Attributes,
    ) -> Result<WatchId, Refusal> {
        let id = self.stage(range, kind, a.wish)?;
        // It may be one that was taken away since the program ran, with what was said about it then.
        let was = crate::g().attributes(id);
        let (wish, group) = (was.wish, was.group);
        let a = Attributes {
            wish,
            group,
            ..a.clone()
        };
        self.set_attributes(id, a);
        Ok(id)
    }
}

fn not_a_place(word: &str) -> Refusal {
    refusal(
        alloc::format!("cannot watch `{word}`"),
        "this is no place".into(),
        "say ADDR:LEN, or ADDR:LEN*COUNT+STRIDE for COUNT of them (at most 1048576), for example 0x4040:8*1000+64"
            .into(),
    )
}

fn no_range(word: &str) -> Refusal {
    refusal(
        alloc::format!("cannot watch `{word}`"),
        "the length is zero or the range wraps around the end of the address space".into(),
        "watch fewer bytes".into(),
    )
}
