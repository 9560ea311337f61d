//! The control socket: requests, and answers (perhaps of another process that took the name).

use ulpf_session::control_socket::Ask;
use ulpf_session::listing::Listing;

pub const INPUTS: u64 = 130_000;

pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok((pid, ask)) = Ask::parse(&text) {
        assert_eq!(Ask::parse(&ask.to_json(pid)), Ok((pid, ask)));
    }
    let Ok(value) = serde_json::from_str(&text) else {
        return;
    };
    if let Some(listing) = Listing::parse(&value) {
        let again = serde_json::from_str(&listing.to_json());
        let again = Listing::parse(&again.expect("our own JSON")).expect("a listing");
        for (a, b) in listing.entries.iter().zip(&again.entries) {
            assert_eq!((a.number, &a.spec, a.addr), (b.number, &b.spec, b.addr));
            let _ = listing
                .armed(a.number as u32)
                .or(listing.past(a.number as u32));
            let _ = a.row([1, 2, 3, 4]);
        }
    }
}
