//! Replies as whoever has asked reads them. What is no reply is an error that says so: the line may come from
//! a program that has taken a stub's place.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Deserializer, de};

use super::Reply;
use crate::number::number;
use crate::refusal::Refusal;

/// All fields of all replies.
#[derive(Deserialize)]
struct Fields {
    watch: Option<u32>,
    heap: Option<u64>,
    on: Option<bool>,
    watches: Option<(u32, u32)>,
    filtered: Option<Vec<u32>>,
    unwatched: Option<Unwatched>,
    session: Option<String>,
    pid: Option<i32>,
    stops_at: Option<String>,
    refused: Option<Refusal>,
}

#[derive(Deserialize)]
struct Unwatched {
    start: Option<u64>,
    len: Option<u64>,
}

impl<'de> Deserialize<'de> for Reply {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Reply, D::Error> {
        let f = Fields::deserialize(d)?;
        f.reply()
            .ok_or(de::Error::custom("this is no answer to a command"))
    }
}

impl Fields {
    fn reply(self) -> Option<Reply> {
        if let Some(refusal) = self.refused {
            return Some(Reply::Refused(refusal));
        }
        if let Some(watch) = self.watch {
            return Some(match (self.heap, self.on) {
                (Some(bytes), _) => Reply::Heap { watch, bytes },
                (None, Some(on)) => Reply::Switched { watch, on },
                (None, None) => Reply::Watch(watch),
            });
        }
        if let Some((first, count)) = self.watches {
            return Some(Reply::Watches { first, count });
        }
        if let Some(ids) = self.filtered {
            return Some(Reply::Filtered(ids));
        }
        if let Some(u) = self.unwatched {
            return Some(Reply::Unwatched(u.start.zip(u.len)));
        }
        Some(Reply::About {
            session: number(self.session.as_deref())?,
            pid: self.pid?,
            stops_at: number(self.stops_at.as_deref())?,
        })
    }
}
