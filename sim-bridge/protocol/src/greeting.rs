//! Tells a front end's connection from others to a listening back end: a web page's (through a browser), or
//! another user's.

/// Whether these are the first bytes of a front end; `None` if more bytes are needed.
///
/// Its first line is a whole request, which begins with a brace: no HTTP request does, so what a web page
/// makes a browser send is never interpreted. Empty lines before that are part of the protocol.
pub fn is_front_end(said: &[u8]) -> Option<bool> {
    let start = said.iter().position(|b| !matches!(b, b'\r' | b'\n'))?;
    match said[start] {
        b'{' => said[start..].contains(&b'\n').then_some(true),
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_ends() {
        assert_eq!(is_front_end(b"\n{}\n"), Some(true));
        assert_eq!(is_front_end(b"\r\n"), None);
        assert_eq!(is_front_end(b"{\"id\":1"), None);
        assert_eq!(is_front_end(b"\nGET / HTTP/1.1"), Some(false));
    }
}
