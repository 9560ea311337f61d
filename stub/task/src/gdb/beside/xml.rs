//! Text in XML.

use alloc::string::String;

/// Text for an attribute; what XML cannot hold becomes `?`.
pub fn xml_text(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c if c < ' ' => out.push('?'),
            c => out.push(c),
        }
    }
    out
}
