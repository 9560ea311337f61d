//! Tells a debugger from other clients by the first bytes of a connection. A web page can make a browser connect to a
//! port of its reader's machine, so a listener interprets nothing before this is known.

/// Whether these are the first bytes of a debugger: acknowledgements and a whole packet without blanks, which no request
/// of HTTP begins with. `None` while more bytes are needed.
pub fn is_debugger(said: &[u8]) -> Option<bool> {
    enum State {
        Between,
        Body,
        Digits(u8),
    }
    let (mut state, mut whole) = (State::Between, false);
    for &b in said {
        state = match (state, b) {
            // A request line has no such byte before its first blank.
            (State::Between, crate::INTERRUPT) => return Some(true),
            (State::Between, b'+' | b'-') => State::Between,
            (State::Between, b'$' | b'%') => State::Body,
            // Line ends come from a terminal.
            (State::Between, b'\r' | b'\n') if whole => State::Between,
            (State::Between, _) => return Some(false),
            (State::Body, b'#') => State::Digits(2),
            // Later packets may have binary data, but the blank of a request line arrives with the first.
            (State::Body, b) if b.is_ascii_graphic() || whole && b != b' ' => State::Body,
            (State::Body, _) => return Some(false),
            (State::Digits(_), b) if !b.is_ascii_alphanumeric() => return Some(false),
            (State::Digits(2), _) => State::Digits(1),
            (State::Digits(_), _) => {
                whole = true;
                State::Between
            }
        };
    }
    whole.then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_words() {
        assert_eq!(is_debugger(b"+$qSupported#37"), Some(true));
        assert_eq!(is_debugger(b"+$qSupp"), None);
        assert_eq!(is_debugger(b"GET / HTTP/1.1"), Some(false));
        assert_eq!(is_debugger(b"{\"id\":1}\n"), Some(false));
    }
}
