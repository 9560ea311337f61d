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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_holds_any_text() {
        assert_eq!(
            xml_text("<a b='\"'>&\n\u{e9}"),
            "&lt;a b=&apos;&quot;&apos;&gt;&amp;?\u{e9}"
        );
    }
}
