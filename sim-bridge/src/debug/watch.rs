// SPDX-License-Identifier: GPL-2.0-or-later
//! A watch, and the watches of a page.

use crate::memory::PAGE;
use std::collections::BTreeSet;
use ulpf_lib::WatchKind;
use ulpf_lib::filter::Filter;
use ulpf_rsp::reports::WatchCounts;

/// Bytes of all watches together; larger ones are refused.
pub const MAX_WATCHED: u64 = 1 << 30;

/// Treatment of a watch's hits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchRequest {
    /// Hits that pass the filter stop the machine.
    pub stop: bool,
    pub filter: Option<Filter>,
}

impl Default for WatchRequest {
    fn default() -> WatchRequest {
        WatchRequest {
            stop: true,
            filter: None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watch {
    pub addr: u64,
    pub len: u64,
    pub kind: WatchKind,
    /// Without false positives, which are a page's.
    pub counts: WatchCounts,
    pub request: WatchRequest,
    /// Hits that all of the filter but `skip` and `count` has let pass.
    pub(super) passed: u64,
    /// The user knows that its condition cannot be evaluated.
    pub(super) reported: bool,
}

/// The watches of one page, and which of its bytes they cover: most accesses to a busy page touch none.
pub(super) struct Page {
    pub(super) ids: BTreeSet<u64>,
    pub(super) bits: [u64; PAGE as usize / 64],
    /// Accesses to it that met no watch.
    pub(super) false_positives: u64,
}

impl Default for Page {
    fn default() -> Page {
        Page {
            ids: BTreeSet::new(),
            bits: [0; PAGE as usize / 64],
            false_positives: 0,
        }
    }
}

impl Page {
    pub(super) fn cover(&mut self, page: u64, w: &Watch) {
        let (from, to) = (w.addr.max(page), (w.addr + w.len).min(page + PAGE));
        for byte in from - page..to - page {
            self.bits[byte as usize / 64] |= 1 << (byte % 64);
        }
    }

    pub(super) fn covers(&self, page: u64, addr: u64, end: u64) -> bool {
        let (from, to) = (addr.max(page), end.min(page + PAGE));
        (from - page..to - page).any(|byte| self.bits[byte as usize / 64] >> (byte % 64) & 1 != 0)
    }
}

/// An access to guarded memory, and what was there before it.
pub(super) struct Piece {
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) write: bool,
    pub(super) old: Vec<u8>,
}
