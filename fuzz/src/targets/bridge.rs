//! Messages of the bridge, both ways: a back end may be another machine's, and so may a front end.

use ulpf_bridge::{Ask, Lines, Said, line};

pub const INPUTS: u64 = 125_000;

pub fn run(data: &[u8]) {
    let mut lines = Lines::default();
    for piece in data.chunks(100) {
        lines.feed(piece);
        while let Ok(Some(text)) = lines.take() {
            message(&text);
        }
    }
    message(&String::from_utf8_lossy(data));
}

fn message(text: &str) {
    if let Ok(ask) = Ask::parse(text) {
        let again = String::from_utf8(line(&ask)).expect("our own JSON");
        assert_eq!(Ask::parse(again.trim_end()), Ok(ask));
    }
    if let Ok(said) = Said::parse(text) {
        let again = String::from_utf8(said.line()).expect("our own JSON");
        assert_eq!(Said::parse(again.trim_end()).ok(), Some(said));
    }
}
