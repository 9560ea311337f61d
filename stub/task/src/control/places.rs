//! `ulpf watches KIND … at PLACE …`: many watches with the same attributes.
//!
//! The answer goes through them in order, a line for each stretch: `{"watches":[FIRST,COUNT]}` for COUNT consecutive
//! numbers, or why one was refused.

use alloc::string::String;
use core::fmt::Write;

use ulpf_lib::command::{Place, Reply};
use ulpf_lib::{WatchId, WatchKind, WatchRange};

use super::Control;
use super::replies::refused;
use super::watches::IfUnmapped;
use crate::inferior::Refusal;
use ulpf_stub_tables::attributes::Attributes;

/// Numbers that follow each other.
struct Stretch {
    first: u32,
    count: u32,
}

impl Stretch {
    fn tell(&mut self, out: &mut dyn Write) {
        let (first, count) = (self.first, self.count);
        if count > 0 {
            let _ = writeln!(out, "{}", Reply::Watches { first, count });
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
    pub fn watch_places(
        &mut self,
        kind: WatchKind,
        a: &Attributes,
        places: &[Result<Place, String>],
        out: &mut dyn Write,
    ) {
        let mut stretch = Stretch { first: 0, count: 0 };
        for place in places {
            let place = match place {
                Ok(place) => *place,
                Err(word) => {
                    stretch.tell(out);
                    refused(out, &not_a_place(word));
                    continue;
                }
            };
            for range in place.ranges() {
                let done = match range {
                    Some(range) => self.watch_out_of_band(range, kind, a),
                    None => Err(no_range(place)),
                };
                match done {
                    Ok(id) => stretch.add(id, out),
                    Err(why) => {
                        stretch.tell(out);
                        refused(out, &why);
                    }
                }
            }
        }
        stretch.tell(out);
    }

    /// A watch with these attributes; its place is `a.placement`.
    pub fn watch_out_of_band(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        a: &Attributes,
    ) -> Result<WatchId, Refusal> {
        let id = self.stage(range, kind, a.placement, IfUnmapped::Refuse)?;
        // It may be a watch that was removed since the program ran, with its attributes of then.
        let was = ulpf_stub_handlers::global::g().attributes(id);
        let (placement, group) = (was.placement, was.group);
        let a = Attributes {
            placement,
            group,
            ..a.clone()
        };
        self.set_attributes(id, a);
        Ok(id)
    }
}

fn not_a_place(word: &str) -> Refusal {
    Refusal::new(
        alloc::format!("cannot watch `{word}`"),
        "this is no place",
        "say ADDR:LEN, or ADDR:LEN*COUNT+STRIDE for COUNT of them (at most 1048576), for example 0x4040:8*1000+64",
    )
}

fn no_range(place: Place) -> Refusal {
    Refusal::new(
        alloc::format!("cannot watch `{place}`"),
        "the length is zero or the range wraps around the end of the address space",
        "watch fewer bytes",
    )
}
