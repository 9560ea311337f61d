//! GDB's machine interface, a line at a time (the grammar is in GDB's manual, "GDB/MI Output Syntax").
//!
//! ```text
//!   12^done,bkpt={number="1",…}     an answer           ~"text\n"   what a command prints
//!   *stopped,reason="…"             the program         @"text\n"   the target's own words
//!   =breakpoint-modified,bkpt={…}   something changed   &"text\n"   GDB's complaints
//! ```
//! For any input from GDB (or from a program that shares its output) the result is a record or plain text. Parsing
//! never panics.

/// Limit of nesting; GDB's own values are far below it.
const DEPTH: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Tuple(Fields),
    List(Vec<Value>),
}

/// `name=value` pairs in GDB's order. A list of results is stored so, too (`[frame={…},frame={…}]`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<(String, Value)>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// `^`: token, class, results.
    Answer(Option<u64>, String, Fields),
    /// `*`, `+` or `=`: kind, class, results.
    Async(char, String, Fields),
    /// `~`, `@` or `&`.
    Stream(char, String),
    /// `(gdb)`
    Prompt,
    /// Other output, such as the program's.
    Other(String),
}

impl Fields {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// A string; empty if the field is missing.
    pub fn text(&self, name: &str) -> &str {
        match self.get(name) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// Replaces the string of a field.
    pub fn set(&mut self, name: &str, text: &str) {
        self.0.retain(|(n, _)| n != name);
        self.0.push((name.into(), Value::Text(text.into())));
    }

    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn number(&self, name: &str) -> Option<i64> {
        let text = self.text(name);
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(|n| n as i64),
            None => text.parse().ok(),
        }
    }

    /// The value of a field as an address.
    pub fn address(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.text(name).strip_prefix("0x")?, 16).ok()
    }

    pub fn fields(&self, name: &str) -> Option<&Fields> {
        self.get(name).and_then(Value::fields)
    }

    /// The elements of a list; empty if the list is missing.
    pub fn list(&self, name: &str) -> &[Value] {
        match self.get(name) {
            Some(Value::List(values)) => values,
            _ => &[],
        }
    }

    /// The tuples of a list.
    pub fn tuples(&self, name: &str) -> impl Iterator<Item = &Fields> {
        self.list(name).iter().filter_map(Value::fields)
    }
}

impl Value {
    pub fn fields(&self) -> Option<&Fields> {
        match self {
            Value::Tuple(fields) => Some(fields),
            _ => None,
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Value::Text(text) => text,
            _ => "",
        }
    }
}

/// Parses one line without its end.
pub fn line(text: &[u8]) -> Record {
    let whole = || Record::Other(String::from_utf8_lossy(text).into_owned());
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.starts_with(b"(gdb)") && text[5..].iter().all(|b| *b == b' ') {
        return Record::Prompt;
    }
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let token = std::str::from_utf8(&text[..digits])
        .ok()
        .and_then(|t| t.parse().ok());
    let Some(&kind) = text.get(digits) else {
        return whole();
    };
    let mut rest = Cursor {
        text: &text[digits + 1..],
        at: 0,
    };
    let record = match kind {
        b'^' => rest
            .class()
            .map(|(class, fields)| Record::Answer(token, class, fields)),
        b'*' | b'+' | b'=' => rest
            .class()
            .map(|(class, fields)| Record::Async(kind as char, class, fields)),
        b'~' | b'@' | b'&' if digits == 0 => {
            rest.string().map(|text| Record::Stream(kind as char, text))
        }
        _ => None,
    };
    record
        .filter(|_| rest.at == rest.text.len())
        .unwrap_or_else(whole)
}

struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// `done,a="1"`
    fn class(&mut self) -> Option<(String, Fields)> {
        let class = self.name()?;
        let mut fields = Fields::default();
        while self.take(b',') {
            self.member(&mut fields, DEPTH)?;
        }
        Some((class, fields))
    }

    /// Parses a result. GDB omits the name for further locations of a breakpoint (`,{number="1.1"}`).
    fn member(&mut self, fields: &mut Fields, depth: usize) -> Option<()> {
        if matches!(self.peek(), Some(b'{' | b'[' | b'"')) {
            let value = self.value(depth)?;
            fields.0.push((String::new(), value));
            return Some(());
        }
        let name = self.name()?;
        if !self.take(b'=') {
            return None;
        }
        let value = self.value(depth)?;
        fields.0.push((name, value));
        Some(())
    }

    fn name(&mut self) -> Option<String> {
        let from = self.at;
        while self
            .peek()
            .is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b' '))
        {
            self.at += 1;
        }
        (self.at > from).then(|| String::from_utf8_lossy(&self.text[from..self.at]).into_owned())
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        match self.peek()? {
            b'"' => self.string().map(Value::Text),
            b'{' => {
                self.at += 1;
                let mut fields = Fields::default();
                while !self.take(b'}') {
                    if !fields.0.is_empty() && !self.take(b',') {
                        return None;
                    }
                    self.member(&mut fields, depth)?;
                }
                Some(Value::Tuple(fields))
            }
            b'[' => {
                self.at += 1;
                let mut values = Vec::new();
                while !self.take(b']') {
                    if !values.is_empty() && !self.take(b',') {
                        return None;
                    }
                    // A list contains values or results; all results in a list have the same name.
                    let mut one = Fields::default();
                    self.member(&mut one, depth)?;
                    values.extend(one.0.into_iter().map(|(_, value)| value));
                }
                Some(Value::List(values))
            }
            _ => None,
        }
    }

    /// Parses a C string. Bytes that are not UTF-8 come as octal escapes, so decoding is done at the end.
    fn string(&mut self) -> Option<String> {
        if !self.take(b'"') {
            return None;
        }
        let mut bytes = Vec::new();
        loop {
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b'"' => return Some(String::from_utf8_lossy(&bytes).into_owned()),
                b'\\' => {
                    let escaped = self.peek()?;
                    self.at += 1;
                    match escaped {
                        b'n' => bytes.push(b'\n'),
                        b't' => bytes.push(b'\t'),
                        b'r' => bytes.push(b'\r'),
                        b'a' => bytes.push(7),
                        b'b' => bytes.push(8),
                        b'f' => bytes.push(12),
                        b'v' => bytes.push(11),
                        b'e' => bytes.push(27),
                        b'0'..=b'7' => {
                            let mut n = u32::from(escaped - b'0');
                            for _ in 0..2 {
                                match self.peek() {
                                    Some(d @ b'0'..=b'7') => n = n * 8 + u32::from(d - b'0'),
                                    _ => break,
                                }
                                self.at += 1;
                            }
                            bytes.push(n as u8);
                        }
                        other => bytes.push(other),
                    }
                }
                other => bytes.push(other),
            }
        }
    }
}

/// Quotes a text as a C string, for a command.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            // Control characters never appear literally in a command line.
            c if c < ' ' => quoted.push_str(&format!("\\{:03o}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn answers() {
        let Record::Answer(Some(9), class, fields) = line(
            br#"9^done,bkpt={number="1",addr="0x0000555555555176",thread-groups=["i1"],times="0"}"#,
        ) else {
            panic!();
        };
        assert_eq!(class, "done");
        let bkpt = fields.fields("bkpt").unwrap();
        assert_eq!(bkpt.text("number"), "1");
        assert_eq!(bkpt.address("addr"), Some(0x5555_5555_5176));
        assert_eq!(bkpt.list("thread-groups")[0].text(), "i1");
        assert_eq!(bkpt.number("times"), Some(0));
    }

    #[test]
    fn lists_of_results_and_nameless_tuples() {
        let Record::Answer(_, _, fields) =
            line(br#"^done,stack=[frame={level="0"},frame={level="1"}],empty=[],none={}"#)
        else {
            panic!();
        };
        let levels: Vec<_> = fields
            .tuples("stack")
            .map(|f| f.text("level").to_string())
            .collect();
        assert_eq!(levels, ["0", "1"]);
        // The format before mi3.
        let Record::Answer(_, _, fields) =
            line(br#"^done,bkpt={number="2",addr="<MULTIPLE>"},{number="2.1"},{number="2.2"}"#)
        else {
            panic!();
        };
        assert_eq!(fields.0.len(), 3);
    }

    #[test]
    fn text_of_any_kind() {
        assert_eq!(
            line(br#"~"a\tb \"c\" \\ \303\274\n""#),
            Record::Stream('~', "a\tb \"c\" \\ ü\n".into())
        );
        assert_eq!(line(b"(gdb) "), Record::Prompt);
        assert_eq!(line(b"hello"), Record::Other("hello".into()));
        assert_eq!(
            line(b"*running,thread-id=\"all\"\r"),
            Record::Async(
                '*',
                "running".into(),
                Fields(vec![("thread-id".into(), Value::Text("all".into()))])
            )
        );
    }

    /// Each is truncated or damaged, and must not be parsed as the intended record.
    #[test]
    fn broken_records_are_text() {
        for broken in [
            &b"1^done,bkpt={number=\"1\""[..],
            b"1^done,bkpt={number=\"1}",
            b"^done,a=",
            b"^done,=\"1\"",
            b"^",
            b"12",
            b"",
            b"~\"no end",
            b"~\"end\" and more",
            b"*stopped,frame=[{]}",
            b"=x,a=\"\\",
            b"99999999999999999999999",
        ] {
            assert!(
                matches!(line(broken), Record::Other(_)),
                "{}",
                String::from_utf8_lossy(broken)
            );
        }
        // Deeper nesting than GDB ever writes.
        let deep = format!("^done,a={}", "[".repeat(100_000));
        assert!(matches!(line(deep.as_bytes()), Record::Other(_)));
    }

    #[test]
    fn what_is_quoted_reads_back() {
        for text in ["", "a b", "\"\\\n\t\r", "ü", "\u{1}"] {
            assert_eq!(
                line(format!("~{}", quote(text)).as_bytes()),
                Record::Stream('~', text.into())
            );
        }
    }

    const GOOD: &[u8] =
        br#"7^done,stack=[frame={level="0",args=[{name="a",value="\"x\\"}]}],b={c="d"}"#;

    proptest! {
        #[test]
        fn any_bytes(text: Vec<u8>) {
            line(&text);
        }

        #[test]
        fn a_good_line_with_one_byte_changed(at in 0..GOOD.len(), byte: u8, cut: bool) {
            let mut text = GOOD.to_vec();
            text[at] = byte;
            if cut {
                text.truncate(at);
            }
            line(&text);
        }

        #[test]
        fn any_text_is_quoted_in_one_line(text: String) {
            let quoted = quote(&text);
            prop_assert!(!quoted.contains('\n'));
            prop_assert_eq!(line(format!("~{quoted}").as_bytes()), Record::Stream('~', text));
        }
    }
}
