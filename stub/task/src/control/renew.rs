//! Breakpoints that the program has overwritten. Some debuggers remove their breakpoints at every stop and set them
//! again. So they are in place at every resume, even where the program has written new code or mapped other memory. The
//! server answers such pairs of packets without us (`command/server/src/watches.rs`), and names the breakpoints that
//! were set again.

use ulpf_stub_handlers::stopped::Stopped;

use super::text;

/// Before the program runs.
pub fn breakpoint(stopped: &mut Stopped, addr: u64) {
    if let Some(b) = stopped.tables_mut().breakpoints.at_mut(addr) {
        // Where nothing is mapped any more, no breakpoint can be set.
        let _ = text::plant_again(b);
    }
}
