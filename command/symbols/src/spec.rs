//! Parses the text after `--watch`.
//!
//! ```text
//!     SPEC  := [FILE.c ':' | OBJECT '`'] EXPR [':' LEN] [':' KIND] FILTER*      (filter.rs has FILTER)
//!     KIND  := 'r' | 'w' | 'rw'                       (w when nothing is said)
//!     EXPR  := '*' EXPR | FIRST STEP* ['+' BYTES | '-' BYTES]
//!              | '*' EXPR '@' COUNT | EXPR '[' N ']' '@' COUNT       (as gdb writes ranges)
//!              | 'heap' | '[heap]'
//!     FIRST := NAME | ADDRESS | '(' EXPR ')'
//!     STEP  := '.' FIELD | '%' FIELD | '(' N [',' N]… ')' (Fortran) | '->' FIELD | '[' N ']'
//!              | '[' [N] '..' [M] ']' | '[' [N] '..=' M ']'
//!              | '[*]' (all elements) | '->*' FIELD (the nodes of a list)
//!     NAME  := C, C++ or Rust path: counts, ns::Class<int>::total, krate::module::STATIC
//! ```
//!
//! Only a doubled colon is part of a name, so the suffixes are cut off from the right.

use crate::brackets::angle_brackets;
use crate::filter::{self, Filter};
use crate::problem::Problem;
use std::fmt;
use ulpf_lib::WatchKind;

/// One watch, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// As typed, without surrounding blanks.
    pub text: String,
    /// The expression alone, as typed; it names the watch in hits.
    pub expr_text: String,
    /// `FILE.c:` or OBJECT`.
    pub scope: Option<Scope>,
    pub expr: Expr,
    /// Length in bytes given by the user; wins over the size of the type.
    pub len: Option<u64>,
    pub kind: WatchKind,
    /// The hits that matter.
    pub filter: Filter,
}

/// Where to search a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Statics of a source file, matched from the end of its path.
    File(String),
    /// One executable or library, matched by file name, soname or a prefix of it (`libc`).
    Object(String),
}

/// The expression of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    Name(String),
    /// All memory that the program allocates. (`heap` alone may also be a variable.)
    Heap,
    Address(u64),
    Deref(Box<Expr>),
    Field(Box<Expr>, String),
    Arrow(Box<Expr>, String),
    Index(Box<Expr>, i64),
    /// `grid(2,3)`
    Call(Box<Expr>, Vec<i64>),
    /// From the first index up to, but not including, the second; `None`: from the array's first, to its last element.
    Slice(Box<Expr>, Option<i64>, Option<i64>),
    /// All present elements of an array or a container.
    All(Box<Expr>),
    /// The nodes of a list: the pointer's target, the target of its field of that name, and so on.
    Chain(Box<Expr>, String),
    /// Plain bytes from here on, whatever the type.
    Offset(Box<Expr>, i64),
    /// Text that is not a valid watch.
    Malformed(Problem),
}

impl Spec {
    /// A placeholder for a text that could not be parsed, in a list of watches.
    pub fn malformed(text: &str, problem: Problem) -> Spec {
        let text = text.trim().to_string();
        Spec {
            expr_text: text.clone(),
            text,
            scope: None,
            expr: Expr::Malformed(problem),
            len: None,
            kind: WatchKind::Write,
            filter: Filter::default(),
        }
    }

    /// Why the text could not be parsed.
    pub fn problem(&self) -> Option<&Problem> {
        match &self.expr {
            Expr::Malformed(problem) => Some(problem),
            _ => None,
        }
    }

    /// Parses a SPEC.
    ///
    /// # Errors
    ///
    /// A description of the mistake, for the user.
    pub fn parse(text: &str) -> Result<Spec, Problem> {
        let text = text.trim();
        let fail = |why: String| {
            Problem::new(
                format!("`{}` is no watch", shortened(text)),
                why,
                "write NAME, NAME.FIELD, NAME[3], NAME[0..16], *NAME or ADDRESS:LENGTH, and :r, :w or :rw at the end",
            )
        };
        if text.is_empty() {
            return Err(fail("nothing is named".into()));
        }
        let behind = filter::begin(text);
        let (mut rest, mut kind, mut len) = (&text[..behind], WatchKind::Write, None);
        if let Some((before, last)) = cut_last_colon(rest)
            && let Some(k) = parse_kind(last)
        {
            (rest, kind) = (before, k);
        }
        if let Some((before, last)) = cut_last_colon(rest) {
            if let Some(n) = parse_number(last) {
                if n == 0 {
                    return Err(fail("its length is zero".into()));
                }
                (rest, len) = (before, Some(n));
            } else if last.trim().is_empty() {
                return Err(fail("nothing follows the last colon".into()));
            }
        }
        let mut scope = None;
        if let Some((object, expr)) = rest.split_once('`') {
            scope = Some(Scope::Object(object.trim().to_string()));
            rest = expr;
        } else if let Some((file, expr)) = cut_last_colon(rest) {
            scope = Some(Scope::File(file.trim().to_string()));
            rest = expr;
        }
        let rest = rest.trim();
        let mut parser = Parser {
            text: rest,
            at: 0,
            steps: 0,
        };
        let expr = if parser.eat("[heap]") {
            Expr::Heap
        } else {
            parser
                .expr()
                .and_then(|expr| parser.repeated(expr))
                .map_err(&fail)?
        };
        parser.blanks();
        if parser.at != rest.len() {
            let over = shortened(&rest[parser.at..]);
            return Err(fail(format!("`{over}` is left over")));
        }
        if expr == Expr::Heap && (len.is_some() || scope.is_some()) {
            return Err(fail("the heap is watched as a whole".into()));
        }
        if len.is_none() && matches!(expr, Expr::Address(_)) {
            return Err(fail(
                "an address alone does not say how many bytes to watch".into(),
            ));
        }
        let filter = filter::parse(text, behind).map_err(|wrong| filter::problem(text, &wrong))?;
        Ok(Spec {
            filter,
            text: text.to_string(),
            expr_text: rest.to_string(),
            scope,
            expr,
            len,
            kind,
        })
    }
}

/// The beginning of a text, short enough for a message.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// Splits at the last single colon outside brackets.
fn cut_last_colon(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let mut i = bytes.len();
    while i > 0 {
        i -= 1;
        if bytes[i] == b':' {
            if i > 0 && bytes[i - 1] == b':' {
                i -= 1;
                continue;
            }
            return Some((&text[..i], &text[i + 1..]));
        }
    }
    None
}

fn parse_kind(text: &str) -> Option<WatchKind> {
    match text.trim() {
        "w" => Some(WatchKind::Write),
        "r" => Some(WatchKind::Read),
        "rw" | "a" => Some(WatchKind::Access),
        _ => None,
    }
}

fn parse_number(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    match digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if digits.starts_with(|c: char| c.is_ascii_digit()) => {
            // K, M and G as size units.
            let (number, unit) = match digits.as_bytes().last() {
                Some(b'K' | b'k') => (&digits[..digits.len() - 1], 1 << 10),
                Some(b'M') => (&digits[..digits.len() - 1], 1 << 20),
                Some(b'G') => (&digits[..digits.len() - 1], 1 << 30),
                _ => (&digits[..], 1u64),
            };
            number.parse::<u64>().ok()?.checked_mul(unit)
        }
        None => None,
    }
}

/// Limit of signs and steps of one expression, beyond anything typed by hand. Each nests the expression deeper.
const MOST_STEPS: usize = 100;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    steps: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn blanks(&mut self) {
        while self.rest().starts_with(char::is_whitespace) {
            self.at += self.rest().chars().next().map_or(0, char::len_utf8);
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        match self.steps {
            ..=MOST_STEPS => Ok(()),
            _ => Err(format!(
                "it has more than {MOST_STEPS} signs, brackets and fields in one another"
            )),
        }
    }

    fn expr(&mut self) -> Result<Expr, String> {
        self.step()?;
        if self.eat("*") {
            return Ok(Expr::Deref(Box::new(self.expr()?)));
        }
        let mut expr = self.first()?;
        loop {
            self.step()?;
            if self.eat("->*") {
                expr = Expr::Chain(Box::new(expr), self.field()?);
            } else if self.eat("->") {
                expr = Expr::Arrow(Box::new(expr), self.field()?);
            } else if self.eat("(") {
                let mut indices = vec![self.number()?];
                while self.eat(",") {
                    self.step()?;
                    indices.push(self.number()?);
                }
                if !self.eat(")") {
                    return Err("a `)` is missing".into());
                }
                expr = Expr::Call(Box::new(expr), indices);
            } else if self.eat(".") || self.eat("%") {
                expr = Expr::Field(Box::new(expr), self.field()?);
            } else if self.eat("[") {
                expr = self.index(expr)?;
            } else if self.eat("+") {
                expr = Expr::Offset(Box::new(expr), self.number()?);
            } else if self.eat("-") {
                expr = Expr::Offset(Box::new(expr), -self.number()?);
            } else {
                return Ok(expr);
            }
        }
    }

    /// gdb's syntax for a number of elements: `*POINTER@3`, `ARRAY[2]@3`.
    fn repeated(&mut self, expr: Expr) -> Result<Expr, String> {
        if !self.eat("@") {
            return Ok(expr);
        }
        let count = self.number()?;
        if count <= 0 {
            return Err(
                "the range is empty: at least one element has to be named behind the `@`".into(),
            );
        }
        match expr {
            Expr::Deref(pointer) => Ok(Expr::Slice(pointer, Some(0), Some(count))),
            Expr::Index(array, first) => {
                let behind = first.checked_add(count).ok_or("too large an index")?;
                Ok(Expr::Slice(array, Some(first), Some(behind)))
            }
            _ => Err("`@` stands behind *POINTER or ARRAY[N]".into()),
        }
    }

    fn index(&mut self, base: Expr) -> Result<Expr, String> {
        if self.eat("*") {
            return match self.eat("]") {
                true => Ok(Expr::All(Box::new(base))),
                false => Err("a `]` is missing".into()),
            };
        }
        let from = match self.range_sign() {
            Some(inclusive) => return self.slice(base, None, inclusive),
            None => self.number()?,
        };
        if let Some(inclusive) = self.range_sign() {
            return self.slice(base, Some(from), inclusive);
        }
        let expr = Expr::Index(Box::new(base), from);
        if !self.eat("]") {
            return Err("a `]` is missing".into());
        }
        Ok(expr)
    }

    /// `..` excludes the end, `..=` includes it (true).
    fn range_sign(&mut self) -> Option<bool> {
        match self.eat("..=") {
            true => Some(true),
            false => self.eat("..").then_some(false),
        }
    }

    /// Parses the rest of a slice after the sign.
    fn slice(&mut self, base: Expr, from: Option<i64>, inclusive: bool) -> Result<Expr, String> {
        let to = if !inclusive && self.eat("]") {
            None
        } else {
            let end = self.number()?;
            if !self.eat("]") {
                return Err("a `]` is missing".into());
            }
            match inclusive {
                true => Some(end.checked_add(1).ok_or("too large an index")?),
                false => Some(end),
            }
        };
        if let (Some(from), Some(to)) = (from, to) {
            if from > to {
                return Err(format!("the range {from}..{to} ends before it begins"));
            }
            if from == to {
                return Err(format!(
                    "the range {from}..{to} is empty: `..` excludes its end, `..=` includes it"
                ));
            }
        }
        Ok(Expr::Slice(Box::new(base), from, to))
    }

    fn first(&mut self) -> Result<Expr, String> {
        if self.eat("(") {
            let inner = self.expr()?;
            return if self.eat(")") {
                Ok(inner)
            } else {
                Err("a `)` is missing".into())
            };
        }
        self.blanks();
        if self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            let word: String = self
                .rest()
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            self.at += word.len();
            return parse_number(&word)
                .map(Expr::Address)
                .ok_or(format!("`{word}` is no address"));
        }
        let name = self.path()?;
        Ok(Expr::Name(name))
    }

    /// A name with its namespaces, template arguments and Rust's `{impl#0}` parts.
    fn path(&mut self) -> Result<String, String> {
        self.blanks();
        let start = self.at;
        self.eat("::");
        loop {
            if self.rest().starts_with('{') {
                let end = self.rest().find('}').ok_or("a `}` is missing")?;
                self.at += end + 1;
            } else {
                let word = self.word();
                if word == 0 {
                    return Err(match self.rest().chars().next() {
                        Some(c) => format!("`{c}` cannot start a name"),
                        None => "a name is missing at the end".into(),
                    });
                }
                self.at += word;
            }
            if self.rest().starts_with('<') {
                self.at += angle_brackets(self.rest()).ok_or("a `>` is missing")?;
            }
            // Names made by compilers (`counter.0`, `sym@VERS`) are one word if a digit follows.
            while let Some(tail) = self.rest().strip_prefix(['.', '@']) {
                // (`@3` is a number of elements, as in gdb.)
                let digit = tail.starts_with(|c: char| c.is_ascii_digit());
                let version = tail.starts_with(|c: char| c.is_alphabetic() || c == '@' || c == '_');
                let word = match self.rest().starts_with('@') {
                    true => version,
                    false => digit,
                };
                if !word {
                    break;
                }
                let digits = tail
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '@'))
                    .count();
                self.at += 1 + digits;
            }
            // (gdb writes the statics of functions so: `f()::calls`.)
            if self.rest().starts_with("()::") {
                self.at += 2;
            }
            if !self.rest().starts_with("::") {
                break;
            }
            self.at += 2;
        }
        let path = &self.text[start..self.at];
        Ok(path
            .strip_prefix("::")
            .unwrap_or(path)
            .replace("()::", "::"))
    }

    fn word(&self) -> usize {
        let mut len = 0;
        for c in self.rest().chars() {
            let ok = if len == 0 {
                c.is_alphabetic() || "_$~".contains(c)
            } else {
                c.is_alphanumeric() || "_$".contains(c)
            };
            if !ok {
                break;
            }
            len += c.len_utf8();
        }
        len
    }

    fn field(&mut self) -> Result<String, String> {
        self.blanks();
        let word: String = self
            .rest()
            .chars()
            .take_while(|c| c.is_alphanumeric() || "_$".contains(*c))
            .collect();
        if word.is_empty() {
            return Err("a field name is missing".into());
        }
        self.at += word.len();
        // A tuple field `.0` of Rust is `__0` in the debug information.
        Ok(if word.bytes().all(|b| b.is_ascii_digit()) {
            format!("__{word}")
        } else {
            word
        })
    }

    fn number(&mut self) -> Result<i64, String> {
        let minus = self.eat("-");
        self.blanks();
        let word: String = self
            .rest()
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        let number = parse_number(&word).and_then(|n| i64::try_from(n).ok());
        let number = number.ok_or(if word.is_empty() {
            "a number is missing".to_string()
        } else {
            format!("`{word}` is no number")
        })?;
        self.at += word.len();
        Ok(if minus { -number } else { number })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests;
