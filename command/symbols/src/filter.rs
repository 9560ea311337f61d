//! The clauses after a watch, which select the hits that matter.
//!
//! ```text
//! FILTER := 'if' COND                     (condition/mod.rs has its grammar)
//!         | 'from' PLACES | 'outside' PLACES           where the instruction is
//!         | 'called' ('from' | 'outside') PLACES       where its function was called
//!         | 'thread' N | 'thread' 'main'
//!         | 'skip' N | 'count' N          of the hits that all the others let pass
//!         | 'changed'                     only accesses that leave another value
//!         | 'snapshot'                    the watch stays where its pointers lead now
//!         | 'freeze'                      the value stays what it is: stores that change it are undone
//!         | 'most' N                      it may have so many places
//! PLACES := PLACE (',' PLACE)*
//! PLACE  := FUNCTION | OBJECT | OBJECT '`' FUNCTION | ADDRESS '-' ADDRESS
//! ```
//!
//! The command resolves it into a filter without names (`ulpf_lib::filter`): address ranges and bytecode.

use crate::closest::closest;
use crate::condition::{self, Node, Parser, Wrong};
use crate::demangle::demangle;
use crate::elf_symbols::SymbolSort;
use crate::maps::Program;
use crate::meter::Work;
use crate::problem::Problem;
use std::ops::Range;
use ulpf_lib::filter as target;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub conditions: Vec<Node>,
    pub from: Option<Vec<Place>>,
    pub outside: Option<Vec<Place>>,
    pub called_from: Option<Vec<Place>>,
    pub called_outside: Option<Vec<Place>>,
    pub thread: Option<Thread>,
    pub skip: Option<u64>,
    pub count: Option<u64>,
    pub changed: bool,
    /// Property of the watch itself: it does not follow its pointers.
    pub snapshot: bool,
    /// Property of the watch itself: stores that change its bytes are undone.
    pub freeze: bool,
    /// Property of the watch itself: limit of its places.
    pub most: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    Main,
    Id(u32),
}

/// A place in the code, as written by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub at: usize,
    pub what: Code,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// A function or an object.
    Name(String),
    Function {
        object: String,
        name: String,
    },
    Range(u64, u64),
}

/// A clause that names nothing of the program, so that the debugger's plugin passes it on as it is.
pub struct Plain {
    pub word: &'static str,
    /// A number follows it.
    pub number: bool,
    /// Its lines in the help of `ulpf run`.
    pub help: &'static str,
    /// Adds it to a filter, with its number or 0. Returns whether the filter has such a clause already.
    pub add: fn(&mut Filter, u64) -> bool,
}

pub const PLAIN: [Plain; 3] = [
    Plain {
        word: "changed",
        number: false,
        help: "  total changed           only accesses that leave another value\n",
        add: |f, _| std::mem::replace(&mut f.changed, true),
    },
    Plain {
        word: "skip",
        number: true,
        help: "  total skip 10 count 5   of the hits that are left: from the 11th on, five of them\n",
        add: |f, n| f.skip.replace(n).is_some(),
    },
    Plain {
        word: "count",
        number: true,
        help: "",
        add: |f, n| f.count.replace(n).is_some(),
    },
];

/// The first words of all other clauses.
const WORDS: [&str; 8] = [
    "if", "from", "outside", "called", "thread", "snapshot", "freeze", "most",
];

/// These first words of clauses, and those of [`PLAIN`].
pub fn with_plain(words: &[&'static str]) -> Vec<&'static str> {
    let plain = PLAIN.iter().map(|clause| clause.word);
    words.iter().copied().chain(plain).collect()
}

/// Behind these a word belongs to an expression.
const OPERATORS: &str = "-+*/%&|^!~<>=,?:([.";

/// The start of the filter in a watch's text: the first clause, after the watch itself.
pub fn begin(text: &str) -> usize {
    clause(text, &with_plain(&WORDS))
}

/// The start of the first clause behind some other text: one of `words` that stands alone, outside brackets and quotes,
/// and not behind an operator. Without such a clause: the end of the text.
pub fn clause(text: &str, words: &[&str]) -> usize {
    let (mut depth, mut blank, mut escaped) = (0, false, false);
    // The last character that is no blank; the quote around this one.
    let (mut before, mut quote) = (None, None);
    for (at, c) in text.char_indices() {
        let rest = &text[at..];
        if let Some(end) = quote {
            if c == end && !escaped {
                (quote, before) = (None, Some(c));
            }
            escaped = c == '\\' && !escaped;
            continue;
        }
        let starts = std::mem::replace(&mut blank, c.is_whitespace()) && depth == 0;
        if blank {
            continue;
        }
        let alone = |word: &&str| {
            let behind = rest.strip_prefix(*word);
            let next = behind.map(|behind| behind.chars().next());
            next.is_some_and(|next| {
                next.is_none_or(|c| c.is_whitespace() || c == '(' && *word == "if")
            })
        };
        let follows = before.is_some_and(|c| !OPERATORS.contains(c));
        if starts && follows && words.iter().any(alone) {
            return at;
        }
        match c {
            '"' | '\'' if rest[1..].contains(c) => quote = Some(c),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        before = Some(c);
    }
    text.len()
}

/// Parses `text` from `at` to its end.
pub fn parse(text: &str, at: usize) -> Result<Filter, Wrong> {
    let mut f = Filter::default();
    let mut p = Parser::new(text, at);
    while !p.at_end() {
        let start = p.at;
        let word = p.peek_word();
        p.at += word.len();
        let again = match word {
            "if" => {
                if p.at_end() {
                    return Err(Wrong::new(start, "nothing follows `if`"));
                }
                f.conditions.push(p.condition()?);
                false
            }
            "from" => f.from.replace(places(&mut p, word)?).is_some(),
            "outside" => f.outside.replace(places(&mut p, word)?).is_some(),
            "called" => {
                let side = p.peek_word();
                p.at += side.len();
                match side {
                    "from" => f.called_from.replace(places(&mut p, word)?).is_some(),
                    "outside" => f.called_outside.replace(places(&mut p, word)?).is_some(),
                    _ => {
                        let why = "`called` is followed by `from` or `outside`";
                        return Err(Wrong::new(p.at - side.len(), why));
                    }
                }
            }
            "thread" => {
                let main = p.peek_word() == "main";
                let thread = match main {
                    true => {
                        p.at += "main".len();
                        Thread::Main
                    }
                    false => {
                        let at = p.at;
                        match u32::try_from(number(&mut p, word)?) {
                            Ok(n) if n > 0 => Thread::Id(n),
                            _ => return Err(Wrong::new(at, "no thread has that number")),
                        }
                    }
                };
                f.thread.replace(thread).is_some()
            }
            "most" => f.most.replace(number(&mut p, word)?).is_some(),
            "snapshot" => std::mem::replace(&mut f.snapshot, true),
            "freeze" => std::mem::replace(&mut f.freeze, true),
            _ => match PLAIN.iter().find(|clause| clause.word == word) {
                Some(clause) => {
                    let n = match clause.number {
                        true => number(&mut p, word)?,
                        false => 0,
                    };
                    (clause.add)(&mut f, n)
                }
                None => {
                    let why = format!("one of {} is expected", with_plain(&WORDS).join(", "));
                    return Err(Wrong::new(start, why));
                }
            },
        };
        if again {
            return Err(Wrong::new(start, format!("`{word}` is said twice")));
        }
    }
    Ok(f)
}

fn number(p: &mut Parser, after: &str) -> Result<u64, Wrong> {
    p.blanks();
    let at = p.at;
    let word = p.peek_word();
    p.at += word.len();
    let number = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    number.map_err(|_| Wrong::new(at, format!("`{after}` is followed by a number")))
}

fn places(p: &mut Parser, after: &str) -> Result<Vec<Place>, Wrong> {
    let mut places = Vec::new();
    loop {
        p.blanks();
        let at = p.at;
        let rest = p.rest();
        // Arguments and templates contain commas and blanks.
        let mut depth = 0;
        let end = rest.find(|c: char| {
            match c {
                '<' | '(' => depth += 1,
                '>' | ')' => depth -= 1,
                _ => {}
            }
            depth == 0 && (c == ',' || c.is_whitespace())
        });
        let text = &rest[..end.unwrap_or(rest.len())];
        p.at += text.len();
        if text.is_empty() {
            let why = format!("a function, an object or START-END is missing after `{after}`");
            return Err(Wrong::new(at, why));
        }
        let what = match text.split_once('`') {
            Some((object, name)) if !object.is_empty() && !name.is_empty() => Code::Function {
                object: object.into(),
                name: name.into(),
            },
            Some(_) => return Err(Wrong::new(at, "write OBJECT`FUNCTION")),
            None if text.starts_with(|c: char| c.is_ascii_digit()) => range(text)
                .ok_or_else(|| Wrong::new(at, "a range is START-END, as 0x401000-0x402000"))?,
            None => Code::Name(text.into()),
        };
        places.push(Place { at, what });
        if !p.eat(",") {
            return Ok(places);
        }
    }
}

fn range(text: &str) -> Option<Code> {
    let number = |t: &str| u64::from_str_radix(t.trim().strip_prefix("0x")?, 16).ok();
    let (start, end) = text.split_once('-')?;
    let (start, end) = (number(start)?, number(end)?);
    (start < end).then_some(Code::Range(start, end))
}

type Ranges = Vec<(u64, u64)>;

impl Filter {
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether it refers to code that may come and go with libraries.
    pub fn names_code(&self) -> bool {
        let lists = [
            &self.from,
            &self.outside,
            &self.called_from,
            &self.called_outside,
        ];
        lists
            .into_iter()
            .flatten()
            .flatten()
            .any(|p| !matches!(p.what, Code::Range(..)))
    }

    /// Resolves names to the present addresses of code. Conditions are not included.
    pub fn resolve(&self, program: &Program) -> Result<target::Filter, Wrong> {
        let thread = self.thread.map(|thread| match thread {
            Thread::Main => target::Thread::Main,
            Thread::Id(n) => target::Thread::Id(n.into()),
        });
        let ranges = |from: &Option<Vec<Place>>, outside: &Option<Vec<Place>>| {
            let found = |list: &Option<Vec<Place>>| {
                let list = list.as_ref()?;
                let found: Result<Vec<_>, _> = list.iter().map(|p| code(program, p)).collect();
                Some(found.map(|f| joined(f.into_iter().flatten().collect())))
            };
            let (inside, list) = match (found(from).transpose()?, found(outside).transpose()?) {
                (None, None) => return Ok(None),
                (Some(from), None) => (true, from),
                (None, Some(outside)) => (false, outside),
                (Some(from), Some(outside)) => (true, without(from, &outside)),
            };
            Ok(Some(target::Ranges::new(inside, list)))
        };
        Ok(target::Filter {
            thread,
            pc: ranges(&self.from, &self.outside)?,
            caller: ranges(&self.called_from, &self.called_outside)?,
            ..self.plain()
        })
    }

    /// The clauses of [`PLAIN`].
    pub(crate) fn plain(&self) -> target::Filter {
        target::Filter {
            changed: self.changed,
            skip: self.skip.unwrap_or(0),
            count: self.count,
            ..target::Filter::default()
        }
    }
}

/// Merges ranges: the result is ascending and disjoint.
fn joined(mut list: Ranges) -> Ranges {
    list.sort_unstable();
    let mut out: Ranges = Vec::new();
    for r in list {
        match out.last_mut() {
            Some(last) if r.0 <= last.1 => last.1 = last.1.max(r.1),
            _ => out.push(r),
        }
    }
    out
}

fn without(from: Ranges, outside: &[(u64, u64)]) -> Ranges {
    let cut = |list: Ranges, hole: &(u64, u64)| {
        let parts = |r: (u64, u64)| {
            let below = (r.0, r.1.min(hole.0));
            let above = (r.0.max(hole.1), r.1);
            [below, above].into_iter().filter(|r| r.0 < r.1)
        };
        list.into_iter().flat_map(parts).collect()
    };
    outside.iter().fold(from, cut)
}

/// The present code of a place. Code that is not loaded has no ranges.
fn code(program: &Program, place: &Place) -> Result<Ranges, Wrong> {
    let (object, name) = match &place.what {
        Code::Range(start, end) => return Ok(vec![(*start, *end)]),
        Code::Function { object, name } => (Some(object.as_str()), name.as_str()),
        Code::Name(name) => (None, name.as_str()),
    };
    let functions = program.code_of(object, name);
    if !functions.is_empty() {
        return Ok(functions);
    }
    let whole: Ranges = match object {
        Some(_) => Vec::new(),
        None => program
            .modules_named(name)
            .flat_map(|m| m.code.clone())
            .collect(),
    };
    if !whole.is_empty() {
        return Ok(whole);
    }
    let may_come = match object {
        Some(object) => program.modules_named(object).next().is_none(),
        None => name.starts_with("lib") || name.contains(".so"),
    };
    if may_come {
        return Ok(Vec::new());
    }
    let why = match object {
        Some(object) => format!("there is no function `{name}` in {object}"),
        None => {
            let near = program.function_like(name);
            let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
            format!("there is neither a function nor a library `{name}`{hint}")
        }
    };
    Err(Wrong::new(place.at, why))
}

impl Program {
    /// The code of all functions of this name (as the log shows it), including parts that the compiler has split off:
    /// `f.cold`, `f.part.0`.
    fn code_of(&self, object: Option<&str>, name: &str) -> Ranges {
        let mut found = Vec::new();
        for module in &self.modules {
            if object.is_some_and(|o| {
                !self
                    .modules_named(o)
                    .any(|m| std::rc::Rc::ptr_eq(m, module))
            }) {
                continue;
            }
            let symbols = module.object.symbols();
            let _work = Work::through(symbols.iter().count() as u64);
            let path = |symbol: &str| {
                let full = demangle(symbol);
                let path = full.split('(').next().unwrap_or(&full).to_string();
                path == name || path.ends_with(&format!("::{name}"))
            };
            for s in symbols.iter().filter(|s| s.sort == SymbolSort::Function) {
                let plain = s.name == name
                    || s.name
                        .strip_prefix(name)
                        .is_some_and(|rest| rest.starts_with('.'))
                    || s.name.starts_with('_') && path(s.name);
                if plain {
                    let start = s.addr.wrapping_add(module.bias);
                    let len = match s.len {
                        0 => symbols.extent_at(s.addr),
                        len => len,
                    };
                    found.push((start, start.wrapping_add(len)));
                }
            }
        }
        if found.is_empty() && object.is_none() {
            // (The linker's name may be another one.)
            for module in &self.modules {
                let of_module = |range: Range<u64>| {
                    let start = range.start.wrapping_add(module.bias);
                    (start, range.end.wrapping_add(module.bias))
                };
                found.extend(module.functions_called(name).into_iter().map(of_module));
            }
        }
        joined(found.into_iter().filter(|r| r.0 < r.1).collect())
    }

    /// A function with a similar name.
    fn function_like(&self, name: &str) -> Option<&str> {
        let names = self.modules.iter().flat_map(|m| m.object.symbols().iter());
        let names = names.filter(|s| s.sort == SymbolSort::Function);
        closest(name, names.map(|s| s.name))
    }
}

/// The error as a message in three sentences.
pub fn problem(text: &str, wrong: &Wrong) -> Problem {
    Problem::new(
        format!("cannot watch `{text}`"),
        wrong.in_text(text),
        "`ulpf run --help` shows what may follow a watch",
    )
}

/// Adds the conditions on values of `unit` bytes (0: the accessed value).
pub fn add_conditions(
    to: &mut target::Filter,
    filter: &Filter,
    value: &condition::Value,
    unit: u64,
    names: &dyn condition::Names,
) -> Result<(), Wrong> {
    for node in &filter.conditions {
        let compiled = condition::compile(node, value, names)?;
        let condition = target::Condition::new(compiled.code);
        to.conditions
            .push(condition.map_err(|why| Wrong::new(0, why))?);
        to.unit = unit;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the table of clauses, tests/filters.json.
    #[test]
    fn clauses_become_words() {
        let table = include_str!("../../../tests/filters.json");
        let table: serde_json::Value = serde_json::from_str(table).unwrap();
        let program = Program::default();
        for case in table["clauses"].as_array().unwrap() {
            let filter = parsed(case["said"].as_str().unwrap());
            let words = filter.resolve(&program).map(|f| f.to_string());
            let words = words.unwrap_or_else(|w| panic!("{case}: {}", w.why));
            assert_eq!(words.trim_start(), case["words"], "{case}");
        }
    }

    fn split(text: &str) -> (&str, &str) {
        text.split_at(begin(text))
    }

    #[test]
    fn where_it_begins() {
        assert_eq!(split("total if $new > 3"), ("total ", "if $new > 3"));
        assert_eq!(split("count"), ("count", ""));
        assert_eq!(split("count count 3"), ("count ", "count 3"));
        assert_eq!(split("x:4:rw  changed"), ("x:4:rw  ", "changed"));
        assert_eq!(split("x if(a)"), ("x ", "if(a)"));
        assert_eq!(split("Map<int, from >::x"), ("Map<int, from >::x", ""));
        assert_eq!(split("a - count count 3"), ("a - count ", "count 3"));
        assert_eq!(split("x[' if '] changed"), ("x[' if '] ", "changed"));
        assert_eq!(split("*(p if )"), ("*(p if )", ""));
        assert_eq!(split("x iffy"), ("x iffy", ""));
    }

    fn parsed(text: &str) -> Filter {
        parse(text, 0).unwrap_or_else(|w| panic!("{}", w.in_text(text)))
    }

    #[test]
    fn words() {
        let f = parsed("skip 3 count 0x10 changed thread main");
        assert_eq!((f.skip, f.count, f.changed), (Some(3), Some(16), true));
        assert_eq!(f.thread, Some(Thread::Main));
        assert_eq!(parsed("thread 42").thread, Some(Thread::Id(42)));
        let f = parsed(
            "from f, ns::g(int, char) ,libx`h outside 0x10-0x20 called from libc called outside q",
        );
        let names: Vec<_> = f.from.unwrap().into_iter().map(|p| p.what).collect();
        assert_eq!(
            names,
            [
                Code::Name("f".into()),
                Code::Name("ns::g(int, char)".into()),
                Code::Function {
                    object: "libx".into(),
                    name: "h".into()
                }
            ]
        );
        assert_eq!(f.outside.unwrap()[0].what, Code::Range(0x10, 0x20));
        assert_eq!(f.called_from.unwrap()[0].what, Code::Name("libc".into()));
        assert!(f.called_outside.is_some());
        assert_eq!(parsed("if a > b from f if c count 2").conditions.len(), 2);
    }

    #[test]
    fn what_is_wrong_and_where() {
        for (text, column, why) in [
            ("skip", 5, "number"),
            ("skip x", 6, "number"),
            ("skip 3 skip 4", 8, "twice"),
            ("thread 0", 8, "no thread"),
            ("from", 5, "missing"),
            ("from a,", 8, "missing"),
            ("from `f", 6, "OBJECT"),
            ("from 12", 6, "START-END"),
            ("called by x", 8, "`from` or `outside`"),
            ("changed perhaps", 9, "one of if, from"),
            ("if", 1, "nothing follows `if`"),
            ("if a >", 6, "nothing follows `>`"),
            ("if a > b)", 9, "one of if"),
            ("if (a", 6, "a `)` is missing"),
            ("if a = 3", 6, "compare with `==`"),
            ("if $", 5, "after `$`"),
            ("if f(3)", 4, "cannot be called"),
            ("if a[3", 7, "a `]` is missing"),
            ("if 3x", 4, "`3x` is no number"),
            ("if a ? b : c", 6, "not supported"),
            ("if @", 4, "`@` begins no value"),
        ] {
            let wrong = parse(text, 0).expect_err(text);
            assert!(wrong.why.contains(why), "{text}: {}", wrong.why);
            assert_eq!(wrong.at + 1, column, "{text}: {}", wrong.why);
        }
    }

    #[test]
    fn ranges() {
        assert_eq!(
            joined(vec![(5, 9), (1, 3), (3, 4), (8, 12)]),
            [(1, 4), (5, 12)]
        );
        assert_eq!(
            without(vec![(0, 10), (20, 30)], &[(5, 22), (25, 26)]),
            [(0, 5), (22, 25), (26, 30)]
        );
        assert_eq!(without(vec![(0, 10)], &[(0, 10)]), []);
    }
}
