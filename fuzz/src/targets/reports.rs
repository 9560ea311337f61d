//! Packets of ulpf's own, both ways: a back end may be another machine's, and so may a front end.

use ulpf_rsp::reports::{About, Ask, Counts, Hits};

pub const INPUTS: u64 = 83_000;

pub fn run(data: &[u8]) {
    for packet in crate::lines(data) {
        if let Some(ask) = Ask::parse(packet) {
            assert_eq!(Ask::parse(ask.packet().as_bytes()), Some(ask));
        }
        if let Some(about) = About::parse(packet) {
            assert_eq!(About::parse(about.reply().as_bytes()), Some(about));
        }
        if let Some(counts) = Counts::parse(packet) {
            let again = Counts::reply(counts.from, &counts.totals, &counts.watches);
            assert_eq!(Counts::parse(again.as_bytes()), Some(counts));
        }
        if let Some(hits) = Hits::parse(packet) {
            let again = Hits::reply(&hits, &hits.hits);
            assert_eq!(Hits::parse(again.as_bytes()), Some(hits));
        }
    }
}
