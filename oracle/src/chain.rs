//! The chain: what a hit finds is what the hit before has left, whichever thread made it.

use crate::program::Watch;
use anyhow::{Result, ensure};
use std::collections::HashMap;
use ulpf_lib::ring::{Hit, hit_flags};
use ulpf_lib::{AccessKind, WatchKind};

/// Checks the hits of one epoch, each with the number of its watch: in the order of their times, and of a thread's ring
/// where times are the same. Only watches that see each store to their bytes can tell.
///
/// # Errors
/// A hit that breaks the chain and does not say so.
pub fn check(mut hits: Vec<(u32, Hit)>, watches: &[Watch]) -> Result<()> {
    hits.sort_by_key(|(_, hit)| hit.time);
    let mut left: HashMap<(u32, u64), u8> = HashMap::new();
    for (watch, hit) in &hits {
        let kind = watches.get(*watch as usize).map(|w| w.kind);
        if hit.flags & hit_flags::UNKNOWN != 0 || matches!(kind, None | Some(WatchKind::Read)) {
            continue;
        }
        let known = hit.old.iter().zip(&hit.new).take(hit.used());
        for (n, (old, new)) in known.enumerate() {
            let byte = left.entry((*watch, hit.addr + n as u64)).or_insert(*old);
            ensure!(
                byte == old || hit.flags & hit_flags::UNCHAINED != 0,
                "the chain is broken at {:#x}: {old:#04x} was found where {byte:#04x} was left: {hit:x?}",
                hit.addr + n as u64
            );
            // (What a read tells as new may be of its own instruction's store: push [rsp-4].)
            if hit.kind != AccessKind::Read as u8 {
                *byte = *new;
            }
        }
        // Of what is longer only the beginning is known.
        for n in hit.used() as u64..hit.len.into() {
            left.remove(&(*watch, hit.addr + n));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_chain_is_found() {
        let hit = |time, old, new, flags| {
            let mut hit = Hit {
                time,
                len: 1,
                kind: 2,
                flags,
                ..Hit::default()
            };
            (hit.old[0], hit.new[0]) = (old, new);
            (0, hit)
        };
        let watches = [Watch {
            addr: 0,
            len: 1,
            kind: WatchKind::Write,
        }];
        assert!(check(vec![hit(2, 5, 6, 0), hit(1, 4, 5, 0)], &watches).is_ok());
        assert!(check(vec![hit(2, 4, 6, 0), hit(1, 4, 5, 0)], &watches).is_err());
        let reported = vec![hit(2, 4, 6, hit_flags::UNCHAINED), hit(1, 4, 5, 0)];
        assert!(check(reported, &watches).is_ok());
        // One instruction that reads and writes the byte.
        let mut read = hit(1, 4, 5, 0);
        read.1.kind = 1;
        assert!(check(vec![read, hit(2, 4, 5, 0)], &watches).is_ok());
    }
}
