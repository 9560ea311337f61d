//! Breakpoints that the program has overwritten. A debugger that takes its breakpoints away at every stop and sets them
//! again has them in place at every resume, even where the program has written new code or mapped other memory
//! meanwhile. The server settles such pairs of packets without us (`command/server/src/watches.rs`), and names what has
//! been set again.

use ulpf_stub_handlers::rest::AtRest;

use super::text;

const INT3: u8 = 0xcc;

/// Before the program runs. Where nothing is mapped any more there is nothing to set.
pub fn breakpoint(rest: &mut AtRest, addr: u64) {
    let lost = |now: &u8| *now != INT3;
    if let Some(b) = rest.tables_mut().breakpoints.at_mut(addr)
        && let Some(now) = text::byte(addr).filter(lost)
        && text::plant(addr).is_ok()
    {
        b.original = now;
    }
}
