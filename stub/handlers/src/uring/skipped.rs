//! Requests whose completion is not told when they succeed (IOSQE_CQE_SKIP_SUCCESS). One that is linked to another is
//! known to have ended when that one has. Of any other nothing is heard: it is taken as in flight until so many later
//! ones of its sort have been submitted.

/// So many.
const MOST: usize = 1024;

pub struct Skipped {
    /// Where the request is noted, and its number.
    of: [(u32, u32); MOST],
    next: usize,
}

impl Skipped {
    pub const NONE: Skipped = Skipped {
        of: [(0, 0); MOST],
        next: 0,
    };

    /// The one that is too old now.
    pub fn push(&mut self, link: u32, request: u32) -> Option<(u32, u32)> {
        let slot = self.of.get_mut(self.next)?;
        let old = core::mem::replace(slot, (link, request));
        self.next = (self.next + 1) % MOST;
        (old.0 != 0).then_some(old)
    }
}
