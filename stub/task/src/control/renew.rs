//! Breakpoints that the program has overwritten. A debugger that takes its breakpoints away at every stop and sets them
//! again has them in place at every resume, even where the program has written new code or mapped other memory
//! meanwhile. The server settles such pairs of packets without us (`command/server/src/watches.rs`), and names what has
//! been set again.

use ulpf_stub_handlers::rest::AtRest;

use super::text;

/// Before the program runs.
pub fn breakpoint(rest: &mut AtRest, addr: u64) {
    if let Some(b) = rest.tables_mut().breakpoints.at_mut(addr) {
        // Where nothing is mapped any more there is nothing to set.
        let _ = text::plant_again(b);
    }
}
