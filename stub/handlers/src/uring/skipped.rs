//! Requests that post no completion when they succeed (IOSQE_CQE_SKIP_SUCCESS). A request that is linked to another one
//! has ended when that one has. Any other request is assumed to be in flight until `MOST` later ones of its kind have
//! been submitted.

/// Later requests until one is assumed to have ended.
const MOST: usize = 1024;

pub struct Skipped {
    /// Span and number of the request.
    of: [(u32, u32); MOST],
    next: usize,
}

impl Skipped {
    pub const NONE: Skipped = Skipped {
        of: [(0, 0); MOST],
        next: 0,
    };

    /// Adds a request. Returns the one that is too old now.
    pub fn push(&mut self, link: u32, request: u32) -> Option<(u32, u32)> {
        let slot = self.of.get_mut(self.next)?;
        let old = core::mem::replace(slot, (link, request));
        self.next = (self.next + 1) % MOST;
        (old.0 != 0).then_some(old)
    }
}
