//! Text from untrusted sources, escaped for output.
//!
//! Examples are names of symbols, types, source files and threads, paths, and input of a user of another machine or of
//! a hostile program. A terminal must show such text and not obey it. Nor may it look like a line of ours, or read from
//! right to left.
//!
//! ```text
//!     one name in a line of ours     Text(name)      ESC ]0;…  →  \x1b]0;…     a newline →  \n     cut if it is long
//!     lines of ours on their way out  lines(text)    the same, but newlines and tabs are ours
//!     one cell of the screen          is_plain(c)
//! ```
//! Output for other programs (JSON, CSV, Prometheus) is quoted as their formats require; `crate::say::json` leaves no
//! control character either. The program's own output is passed through unchanged.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write};

/// Limit of the bytes that are shown of one name.
pub const LONGEST: usize = 4096;

/// A foreign text on one line: characters that a terminal would obey are shown as C escapes.
pub struct Text<'a>(pub &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = cut(self.0, LONGEST);
        put(f, text, |_| false)?;
        if text.len() < self.0.len() {
            f.write_str("…")?;
        }
        Ok(())
    }
}

/// The same for text that may not be UTF-8: other bytes are shown as `\xNN`.
pub struct Bytes<'a>(pub &'a [u8]);

impl Display for Bytes<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let most = self.0.get(..LONGEST).unwrap_or(self.0);
        for chunk in most.utf8_chunks() {
            put(f, chunk.valid(), |_| false)?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        if most.len() < self.0.len() {
            f.write_str("…")?;
        }
        Ok(())
    }
}

/// A path, shown as [`Bytes`].
pub fn path(path: &std::path::Path) -> Bytes<'_> {
    Bytes(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))
}

/// The text as [`Text`] shows it.
pub fn shown(text: &str) -> Cow<'_, str> {
    match text.len() <= LONGEST && text.chars().all(is_plain) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(Text(text).to_string()),
    }
}

/// Escapes lines of ours that may contain unchecked foreign text.
pub fn lines(text: &str) -> Cow<'_, str> {
    let ours = |c: char| matches!(c, '\n' | '\t');
    if text.chars().all(|c| is_plain(c) || ours(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    // Writing to a String does not fail.
    let _ = put(&mut out, text, ours);
    Cow::Owned(out)
}

/// At most `most` bytes of a text.
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Whether a terminal only shows the character: it is visible, and does not change how its neighbours read.
pub fn is_plain(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // C0, DEL and C1 (a terminal may take U+009B for ESC [).
        c if c.is_control() => false,
        // Soft hyphen; marks, embeddings, overrides and isolates of direction; joiners, separators of lines and
        // paragraphs, invisible operators; byte order mark, annotations, tags.
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => {
            false
        }
        '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' => false,
        '\u{e0000}'..='\u{e0fff}' => false,
        _ => true,
    }
}

fn put(to: &mut dyn Write, text: &str, ours: impl Fn(char) -> bool) -> fmt::Result {
    let mut rest = text;
    while let Some(at) = rest.find(|c| !is_plain(c) && !ours(c)) {
        let (plain, from) = rest.split_at(at);
        to.write_str(plain)?;
        let mut chars = from.chars();
        match chars.next() {
            Some('\n') => to.write_str("\\n")?,
            Some('\r') => to.write_str("\\r")?,
            Some('\t') => to.write_str("\\t")?,
            Some(c) if c.is_ascii() => write!(to, "\\x{:02x}", u32::from(c))?,
            Some(c) => write!(to, "\\u{{{:x}}}", u32::from(c))?,
            None => {}
        }
        rest = chars.as_str();
    }
    to.write_str(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        for (text, shown_as) in [
            ("main at a.c:3", "main at a.c:3"),
            ("größe→→ 変数 🦀", "größe→→ 変数 🦀"),
            ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
            ("a\nb\r\tc\0\x7f", "a\\nb\\r\\tc\\x00\\x7f"),
            ("\u{9b}31m\u{85}", "\\u{9b}31m\\u{85}"),
            (
                "a\u{202e}b\u{2066}c\u{200b}d\u{feff}",
                "a\\u{202e}b\\u{2066}c\\u{200b}d\\u{feff}",
            ),
        ] {
            assert_eq!(Text(text).to_string(), shown_as);
            assert_eq!(shown(text), shown_as);
            assert_eq!(Bytes(text.as_bytes()).to_string(), shown_as);
        }
        assert_eq!(Bytes(b"a\xffb\xc3").to_string(), "a\\xffb\\xc3");
        assert_eq!(lines("a\n\tb\x1b[2J\n"), "a\n\tb\\x1b[2J\n");
        assert!(matches!(lines("a\nb"), Cow::Borrowed(_)));
    }

    #[test]
    fn what_is_long_is_cut() {
        let long = "ä".repeat(LONGEST);
        let shown = shown(&long);
        assert!(
            shown.len() <= LONGEST + 3 && shown.ends_with("ä…"),
            "{}",
            shown.len()
        );
        assert!(Bytes(&[b'x'; LONGEST + 1]).to_string().ends_with("x…"));
        assert_eq!(cut("aä", 2), "a");
    }

    #[test]
    fn nothing_gets_through() {
        for c in (0..=0x0011_0000).filter_map(char::from_u32) {
            let text = Text(&c.to_string()).to_string();
            assert!(text.chars().all(is_plain), "{c:?}");
            assert!(!text.chars().any(char::is_control), "{c:?}");
        }
    }
}
