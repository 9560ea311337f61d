//! Parses text into [`Node`]s.

use super::tree::{Base, Binary, CastTo, Node, Unary, What, Wrong};
use crate::brackets::angle_brackets;

/// Limits of nesting and of operators, beyond any condition that is typed by hand.
const MOST_NESTED: u32 = 50;
const MOST_OPERATORS: u32 = 100;
const MOST_STARS: u32 = 8;

/// A parser, also for the words around a condition.
pub struct Parser<'a> {
    pub text: &'a str,
    pub at: usize,
    depth: u32,
    operators: u32,
}

type Parsed = Result<Node, Wrong>;

/// Operators and their precedence. A longer operator comes before its own prefix.
const OPERATORS: &[(&str, Option<Binary>, u8)] = &[
    ("||", None, 1),
    ("&&", None, 2),
    ("|", Some(Binary::Or), 3),
    ("^", Some(Binary::Xor), 4),
    ("&", Some(Binary::And), 5),
    ("==", Some(Binary::Equal), 6),
    ("!=", Some(Binary::NotEqual), 6),
    ("<<", Some(Binary::Left), 8),
    (">>", Some(Binary::Right), 8),
    ("<=", Some(Binary::LessEqual), 7),
    (">=", Some(Binary::GreaterEqual), 7),
    ("<", Some(Binary::Less), 7),
    (">", Some(Binary::Greater), 7),
    ("+", Some(Binary::Add), 9),
    ("-", Some(Binary::Subtract), 9),
    ("*", Some(Binary::Multiply), 10),
    ("/", Some(Binary::Divide), 10),
    ("%", Some(Binary::Remainder), 10),
];

impl<'a> Parser<'a> {
    pub fn new(text: &'a str, at: usize) -> Parser<'a> {
        Parser {
            text,
            at,
            depth: 0,
            operators: 0,
        }
    }

    pub fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    pub fn blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    pub fn at_end(&mut self) -> bool {
        self.blanks();
        self.rest().is_empty()
    }

    pub fn eat(&mut self, token: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// The next word, without consuming it.
    pub fn peek_word(&mut self) -> &'a str {
        self.blanks();
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        &rest[..end.unwrap_or(rest.len())]
    }

    fn wrong<T>(&self, why: impl Into<String>) -> Result<T, Wrong> {
        Err(Wrong::new(self.at, why))
    }

    /// Parses the longest expression.
    pub fn condition(&mut self) -> Parsed {
        self.binary(1)
    }

    fn deeper(&mut self, parse: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        if self.depth == MOST_NESTED {
            return self.wrong("too deeply nested");
        }
        self.depth += 1;
        let node = parse(self);
        self.depth -= 1;
        node
    }

    /// Counts operators and steps, whose nodes nest, too.
    fn count(&mut self) -> Result<(), Wrong> {
        self.operators += 1;
        match self.operators {
            ..=MOST_OPERATORS => Ok(()),
            _ => self.wrong("the condition is too long"),
        }
    }

    fn binary(&mut self, least: u8) -> Parsed {
        let mut left = self.deeper(Self::unary)?;
        loop {
            self.blanks();
            let at = self.at;
            let found = OPERATORS
                .iter()
                .find(|(text, ..)| self.rest().starts_with(text));
            let Some((text, operator, strength)) = found else {
                if self.rest().starts_with('=') {
                    return self.wrong("a condition changes nothing: compare with `==`");
                }
                if self.rest().starts_with('?') {
                    return self.wrong("`?:` is not supported: use && and ||");
                }
                return Ok(left);
            };
            if *strength < least {
                return Ok(left);
            }
            self.count()?;
            self.at += text.len();
            if self.at_end() {
                return Err(Wrong::new(at, format!("nothing follows `{text}`")));
            }
            let right = Box::new(self.deeper(|p| p.binary(strength + 1))?);
            let of = Box::new(left);
            let what = match operator {
                Some(operator) => What::Binary(*operator, of, right),
                None if *text == "&&" => What::And(of, right),
                None => What::Or(of, right),
            };
            left = Node { at, what };
        }
    }

    fn unary(&mut self) -> Parsed {
        self.blanks();
        let at = self.at;
        const SIGNS: [(char, Unary); 6] = [
            ('!', Unary::Not),
            ('~', Unary::Invert),
            ('-', Unary::Negate),
            ('+', Unary::Plus),
            ('*', Unary::Deref),
            ('&', Unary::Address),
        ];
        for (sign, unary) in SIGNS {
            if self.eat(sign.encode_utf8(&mut [0; 4])) {
                let of = self.deeper(Self::unary)?;
                let what = match (unary, of.what) {
                    (Unary::Negate, What::Float(bits)) => {
                        What::Float((-f64::from_bits(bits)).to_bits())
                    }
                    (_, what) => What::Unary(unary, Box::new(Node { at: of.at, what })),
                };
                return Ok(Node { at, what });
            }
        }
        if let Some(to) = self.cast() {
            let of = self.deeper(Self::unary)?;
            let what = What::Cast(to, Box::new(of));
            return Ok(Node { at, what });
        }
        let mut node = self.first()?;
        loop {
            let at = self.at;
            let what = if self.eat("->") {
                What::Arrow(Box::new(node), self.field()?)
            } else if self.eat(".") {
                What::Field(Box::new(node), self.field()?)
            } else if self.eat("[") {
                let index = self.deeper(Self::condition)?;
                if !self.eat("]") {
                    return self.wrong("a `]` is missing");
                }
                What::Index(Box::new(node), Box::new(index))
            } else {
                return Ok(node);
            };
            self.count()?;
            node = Node { at, what };
        }
    }

    fn field(&mut self) -> Result<String, Wrong> {
        let word = self.peek_word();
        if word.is_empty() {
            return self.wrong("a field name is missing");
        }
        self.at += word.len();
        // A tuple field `.0` of Rust is `__0` in the debug information.
        Ok(match word.bytes().all(|b| b.is_ascii_digit()) {
            true => format!("__{word}"),
            false => word.to_string(),
        })
    }

    fn first(&mut self) -> Parsed {
        self.blanks();
        let at = self.at;
        let rest = self.rest();
        let what = match rest.chars().next() {
            None => return self.wrong("a value is missing"),
            Some('(') => {
                self.at += 1;
                let node = self.deeper(Self::condition)?;
                if !self.eat(")") {
                    return self.wrong("a `)` is missing");
                }
                return Ok(node);
            }
            Some('$') => {
                self.at += 1;
                let word = match self.rest().starts_with(|c: char| c.is_alphanumeric()) {
                    true => self.peek_word(),
                    false => "",
                };
                if word.is_empty() {
                    return self.wrong("a name is missing after `$`");
                }
                self.at += word.len();
                What::Word(word.to_string())
            }
            Some('\'') => self.character()?,
            Some(c) if c.is_ascii_digit() => self.number()?,
            Some(c) if c.is_alphabetic() || c == '_' || c == ':' || c == '{' => {
                match self.peek_word() {
                    word @ ("true" | "false") => {
                        self.at += word.len();
                        What::Number {
                            value: u64::from(word == "true"),
                            bits: 32,
                            signed: true,
                        }
                    }
                    "sizeof" => return self.wrong("`sizeof` is not supported: write the number"),
                    _ => self.name()?,
                }
            }
            Some(c) => return self.wrong(format!("`{c}` begins no value")),
        };
        if self.rest().starts_with('(') {
            return Err(Wrong::new(at, "functions cannot be called"));
        }
        Ok(Node { at, what })
    }

    fn character(&mut self) -> Result<What, Wrong> {
        let rest = self.rest();
        let (value, len) = match rest.as_bytes() {
            [b'\'', b'\\', c, b'\'', ..] => {
                let value = match c {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'0' => 0,
                    b'\\' | b'\'' | b'"' => *c,
                    _ => return self.wrong("no such character: write its number"),
                };
                (value, 4)
            }
            [b'\'', c, b'\'', ..] if c.is_ascii() && *c != b'\'' => (*c, 3),
            _ => return self.wrong("a character is one letter between `'` and `'`"),
        };
        self.at += len;
        Ok(What::Number {
            value: value.into(),
            bits: 32,
            signed: true,
        })
    }

    /// An integer with the type that C gives it, or a floating-point number.
    fn number(&mut self) -> Result<What, Wrong> {
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let hex = rest.starts_with("0x") || rest.starts_with("0X");
        let mut len = 0;
        while let Some(c) = bytes.get(len) {
            let exponent = !hex
                && matches!(c, b'+' | b'-')
                && matches!(bytes[len - 1], b'e' | b'E')
                && bytes[..len].contains(&b'.');
            let point = *c == b'.' && !hex && bytes.get(len + 1).is_some_and(u8::is_ascii_digit);
            if !(c.is_ascii_alphanumeric() || *c == b'_' || exponent || point) {
                break;
            }
            len += 1;
        }
        let word = &rest[..len];
        let digits: String = word.chars().filter(|c| *c != '_').collect();
        let no = |p: &Self| p.wrong(format!("`{word}` is no number"));
        if !hex && (word.contains('.') || word.contains(['e', 'E'])) {
            let Ok(value) = digits.trim_end_matches(['f', 'F']).parse::<f64>() else {
                return no(self);
            };
            self.at += len;
            return Ok(What::Float(value.to_bits()));
        }
        let plain = digits.trim_end_matches(['u', 'U', 'l', 'L']);
        let suffix = digits[plain.len()..].to_ascii_lowercase();
        let octal = plain.len() > 1 && plain.starts_with('0') && !hex;
        let value = match () {
            _ if hex => u64::from_str_radix(&plain[2..], 16),
            _ if octal => u64::from_str_radix(&plain[1..], 8),
            _ => plain.parse(),
        };
        let Ok(value) = value else { return no(self) };
        self.at += len;
        let unsigned = suffix.contains('u');
        let long = suffix.contains('l');
        // Decimal numbers without `u` stay signed if their value allows it.
        let may_be_unsigned = unsigned || hex || octal;
        let (bits, signed) = match value {
            v if !long && !unsigned && v <= i32::MAX as u64 => (32, true),
            v if !long && may_be_unsigned && v <= u64::from(u32::MAX) => (32, false),
            v if !unsigned && v <= i64::MAX as u64 => (64, true),
            _ => (64, false),
        };
        Ok(What::Number {
            value,
            bits,
            signed,
        })
    }

    /// `counts`, `ns::Class<int>::total`, ``libfoo`limit``.
    fn name(&mut self) -> Result<What, Wrong> {
        let rest = self.rest();
        let object = rest.find('`').map(|end| &rest[..end]).filter(|o| {
            o.chars()
                .all(|c| c.is_alphanumeric() || "._-+/".contains(c))
        });
        if let Some(object) = object {
            self.at += object.len() + 1;
        }
        let start = self.at;
        self.at += if self.rest().starts_with("::") { 2 } else { 0 };
        loop {
            let rest = self.rest();
            let brace = rest.starts_with('{').then(|| rest.find('}')).flatten();
            let word = brace.map_or(self.word(), |end| end + 1);
            if word == 0 {
                return self.wrong("a name is missing");
            }
            self.at += word;
            // `a<b` is a comparison; `a<b>` is a template only if `::` follows.
            let rest = self.rest();
            if rest.starts_with('<') {
                let end = angle_brackets(rest).filter(|end| rest[*end..].starts_with("::"));
                self.at += end.unwrap_or(0);
            }
            // Names made by compilers: `counter.0`
            let digits =
                |t: &str| t.len() - t.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            while let Some(n) = self.rest().strip_prefix('.').map(digits).filter(|n| *n > 0) {
                self.at += 1 + n;
            }
            if !self.rest().starts_with("::") {
                break;
            }
            self.at += 2;
        }
        let path = &self.text[start..self.at];
        let path = path.strip_prefix("::").unwrap_or(path).to_string();
        Ok(What::Name(object.map(str::to_string), path))
    }

    fn word(&self) -> usize {
        let rest = self.rest();
        let is = |c: char| c.is_alphanumeric() || "_$".contains(c);
        rest.find(|c: char| !is(c)).unwrap_or(rest.len())
    }

    /// `(unsigned char)`, `(struct node *)`. Consumes nothing if the text is not a cast.
    fn cast(&mut self) -> Option<CastTo> {
        let before = self.at;
        let to = self.parenthesised_type();
        if to.is_none() {
            self.at = before;
        }
        to
    }

    fn parenthesised_type(&mut self) -> Option<CastTo> {
        if !self.eat("(") {
            return None;
        }
        let mut words = Vec::new();
        loop {
            let word = self.peek_word();
            if word.is_empty() {
                break;
            }
            self.at += word.len();
            words.push(word);
        }
        words.retain(|w| !matches!(*w, "const" | "volatile"));
        let mut stars = 0;
        while self.eat("*") {
            stars += 1;
        }
        if !self.eat(")") || words.is_empty() || stars > MOST_STARS {
            return None;
        }
        let base = match (integer(&words), words.as_slice()) {
            (Some(base), _) => base,
            (None, ["struct" | "union" | "class", name] | [name]) if stars > 0 => {
                Base::Named(name.to_string())
            }
            _ => return None,
        };
        (stars > 0 || base != Base::Void).then_some(CastTo { base, stars })
    }
}

fn integer(words: &[&str]) -> Option<Base> {
    let int = |size, signed| Some(Base::Int { size, signed });
    match words {
        ["void"] => return Some(Base::Void),
        ["bool" | "_Bool"] => return Some(Base::Bool),
        ["int8_t" | "i8"] => return int(1, true),
        ["int16_t" | "i16"] => return int(2, true),
        ["int32_t" | "i32" | "pid_t"] => return int(4, true),
        ["int64_t" | "i64" | "ssize_t" | "isize" | "intptr_t" | "ptrdiff_t" | "off_t"] => {
            return int(8, true);
        }
        ["uint8_t" | "u8"] => return int(1, false),
        ["uint16_t" | "u16"] => return int(2, false),
        ["uint32_t" | "u32"] => return int(4, false),
        ["uint64_t" | "u64" | "size_t" | "usize" | "uintptr_t"] => return int(8, false),
        _ => {}
    }
    let known = ["signed", "unsigned", "char", "short", "int", "long"];
    if !words.iter().all(|w| known.contains(w)) {
        return None;
    }
    let has = |w| words.contains(&w);
    let size = match () {
        _ if has("char") => 1,
        _ if has("short") => 2,
        _ if has("long") => 8,
        _ => 4,
    };
    int(size, !has("unsigned"))
}
