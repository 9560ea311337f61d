//! The parts of a watch that is set in a debugger: expression and condition are in the debugged language, so they stay
//! texts here.
//!
//! ```text
//! PARTS  := EXPR [':' ('r' | 'w' | 'rw')] CLAUSE*
//! CLAUSE := 'if' COND | 'from' PLACE | 'outside' PLACE | 'called' ('from' | 'outside') PLACE
//!         | 'thread' N | 'skip' N | 'count' N | 'most' N | 'bt' N
//!         | 'changed' | 'log' | 'follow' | 'snapshot' | 'auto' | 'guard' | 'debug-register'
//! ```
//! A word of a clause begins one where it stands alone, outside brackets and quotes, and not behind an operator.

use crate::filter::{Filter, PLAIN, clause, with_plain};
use crate::problem::Problem;
use serde::Serialize;

/// The first words of clauses, apart from those of [`PLAIN`].
const WORDS: [&str; 13] = [
    "if",
    "from",
    "outside",
    "called",
    "thread",
    "most",
    "bt",
    "log",
    "follow",
    "snapshot",
    "auto",
    "guard",
    "debug-register",
];

const USAGE: &str = "say: ulpf watch EXPR [:r|w|rw] [if COND] [thread N] [from|outside FUNC|LIBRARY] [changed] [skip N] \
[count N] [log] [bt N] [follow] [snapshot] [most N]";

/// Maximum number of callers of a hit.
const MOST_FRAMES: u64 = 16;

/// The parts, as the debugger's plugin takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ParsedWatch {
    /// As typed, without surrounding blanks.
    pub text: String,
    pub expression: String,
    /// `r`, `w`, `rw`.
    pub kind: String,
    pub condition: Option<String>,
    /// The debugger's number of the thread.
    pub thread: Option<u64>,
    /// Places in the code: whether its function's caller is meant, whether inside, and the name.
    pub places: Vec<(bool, bool, String)>,
    /// The clauses of [`PLAIN`], in the stub's words.
    pub words: String,
    pub log: bool,
    pub bt: u64,
    pub follow: bool,
    pub snapshot: bool,
    pub most: Option<u64>,
    pub placement: Option<String>,
}

fn wrong(why: impl Into<String>) -> Problem {
    Problem::new("ulpf watch", why, USAGE)
}

impl ParsedWatch {
    /// Splits the text of a watch.
    ///
    /// # Errors
    ///
    /// A description of the mistake, for the user.
    pub fn parse(text: &str) -> Result<ParsedWatch, Problem> {
        let text = text.trim();
        let (head, mut rest) = text.split_at(clause(text, &with_plain(&WORDS)));
        let (expression, kind) = with_kind(head.trim())?;
        if expression.is_empty() {
            return Err(wrong("it does not say what to watch"));
        }
        let mut parts = ParsedWatch {
            text: text.into(),
            expression: expression.into(),
            kind: kind.into(),
            ..ParsedWatch::default()
        };
        let mut plain = Filter::default();
        while !rest.is_empty() {
            rest = parts.clause(rest, &mut plain)?.trim_start();
        }
        parts.words = plain.plain().to_string().trim_start().into();
        Ok(parts)
    }

    /// Takes the clause at the beginning of `text`; returns the text behind it.
    fn clause<'a>(&mut self, text: &'a str, plain: &mut Filter) -> Result<&'a str, Problem> {
        let words = with_plain(&WORDS);
        let begins = |word: &&&str| {
            let behind = text.strip_prefix(**word);
            behind
                .is_some_and(|b| !b.starts_with(|c: char| c.is_alphanumeric() || "_-".contains(c)))
        };
        let Some(word) = words.iter().find(begins).copied() else {
            let said = text.split_whitespace().next().unwrap_or_default();
            return Err(wrong(format!("{said} begins no clause")));
        };
        let behind = &text[word.len()..];
        let said = |word: &str| wrong(format!("{word} is said twice"));
        let number = || number(word, behind);
        let (again, rest) = match word {
            "if" => {
                let (condition, rest) = behind.split_at(clause(behind, &words));
                let condition = condition.trim();
                if condition.is_empty() {
                    return Err(wrong("if is not followed by a condition"));
                }
                (self.condition.replace(condition.into()).is_some(), rest)
            }
            "called" => {
                let (side, rest) = token(behind);
                if !matches!(side, "from" | "outside") {
                    return Err(wrong("called is followed by from or outside"));
                }
                (false, self.place(true, side, rest)?)
            }
            "from" | "outside" => (false, self.place(false, word, behind)?),
            "thread" => {
                let (n, rest) = number()?;
                (self.thread.replace(n).is_some(), rest)
            }
            "most" => {
                let (n, rest) = number()?;
                (self.most.replace(n).is_some(), rest)
            }
            "bt" => {
                let (n, rest) = number()?;
                if n > MOST_FRAMES {
                    return Err(wrong(format!("bt takes at most {MOST_FRAMES} frames")));
                }
                (std::mem::replace(&mut self.bt, n) > 0, rest)
            }
            "log" => (std::mem::replace(&mut self.log, true), behind),
            "follow" => (std::mem::replace(&mut self.follow, true), behind),
            "snapshot" => (std::mem::replace(&mut self.snapshot, true), behind),
            word => match PLAIN.iter().find(|clause| clause.word == word) {
                Some(clause) => {
                    let (n, rest) = match clause.number {
                        true => number()?,
                        false => (0, behind),
                    };
                    ((clause.add)(plain, n), rest)
                }
                None => (self.placement.replace(word.into()).is_some(), behind),
            },
        };
        match again {
            true => Err(said(word)),
            false => Ok(rest),
        }
    }

    fn place<'a>(&mut self, called: bool, side: &str, behind: &'a str) -> Result<&'a str, Problem> {
        let (name, rest) = token(behind);
        if name.is_empty() {
            return Err(wrong(format!("{side} is not followed by anything")));
        }
        self.places.push((called, side == "from", name.into()));
        Ok(rest)
    }
}

/// The expression and the kind behind its colon.
fn with_kind(head: &str) -> Result<(&str, &'static str), Problem> {
    for (suffix, kind) in [(":rw", "rw"), (":w", "w"), (":r", "r")] {
        // (Two colons are part of a name.)
        if let Some(before) = head.strip_suffix(suffix).filter(|b| !b.ends_with(':')) {
            return Ok((before.trim_end(), kind));
        }
    }
    let last = head.split_whitespace().last().unwrap_or_default();
    if last.starts_with(':') && !last.starts_with("::") && last.len() < head.len() && last != ":" {
        return Err(wrong(format!(
            "{last} is no kind of access (r, w and rw are)"
        )));
    }
    Ok((head, "w"))
}

/// The next word, in which brackets may enclose blanks, and the text behind it.
fn token(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let mut depth = 0;
    let end = text.find(|c: char| {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            _ => {}
        }
        depth == 0 && c.is_whitespace()
    });
    text.split_at(end.unwrap_or(text.len()))
}

fn number<'a>(word: &str, behind: &'a str) -> Result<(u64, &'a str), Problem> {
    let (digits, rest) = token(behind);
    if digits.is_empty() {
        return Err(wrong(format!("{word} is not followed by anything")));
    }
    let number = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    match number {
        Ok(0) if matches!(word, "thread" | "most") => {
            Err(wrong(format!("{word} takes a positive number")))
        }
        Ok(number) => Ok((number, rest)),
        Err(_) => Err(wrong(format!(
            "{word} takes a number, and {digits} is none"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ParsedWatch {
        ParsedWatch::parse(text).unwrap_or_else(|p| panic!("{text}: {p}"))
    }

    #[test]
    fn parts() {
        let p = parse(
            "  list->*next.refs :rw if $new > 3 && log thread 2 from libfoo.so called outside main skip 3 count 0x10 bt 4 log changed ",
        );
        assert_eq!(
            (p.expression.as_str(), p.kind.as_str()),
            ("list->*next.refs", "rw")
        );
        assert_eq!(p.condition.as_deref(), Some("$new > 3 && log"));
        assert_eq!(
            (p.thread, p.words.as_str(), p.bt),
            (Some(2), "changed skip 3 count 16", 4)
        );
        assert!(p.log && !p.follow && !p.snapshot);
        let places = [
            (false, true, "libfoo.so".into()),
            (true, false, "main".into()),
        ];
        assert_eq!(p.places, places);
        let p = parse("x debug-register most 7 follow snapshot outside ns::g(int, char)");
        assert_eq!(
            (p.placement.as_deref(), p.most),
            (Some("debug-register"), Some(7))
        );
        assert!(p.follow && p.snapshot);
        assert_eq!(p.places, [(false, false, "ns::g(int, char)".into())]);
    }

    #[test]
    fn clauses_before_the_condition() {
        let p = parse("x thread 3 if y == (a if b) changed");
        assert_eq!((p.expression.as_str(), p.thread), ("x", Some(3)));
        assert_eq!(
            (p.condition.as_deref(), p.words.as_str()),
            (Some("y == (a if b)"), "changed")
        );
    }

    #[test]
    fn words_of_clauses_in_conditions() {
        let p = parse("x if count - skip > 3 && \"a log\"[0] skip 2");
        assert_eq!(
            p.condition.as_deref(),
            Some("count - skip > 3 && \"a log\"[0]")
        );
        assert_eq!(p.words, "skip 2");
    }

    #[test]
    fn expressions_stay_whole() {
        for text in [
            "a ? b : w",
            "ns::w",
            "p->thread",
            "log",
            "a - log",
            "f(x, if_y)",
            "*(char (*)[3]) \"if x\"",
            "v[1].from",
        ] {
            let p = parse(text);
            assert_eq!((p.expression.as_str(), p.kind.as_str()), (text, "w"));
            assert!(p.condition.is_none() && !p.log, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for text in [
            "",
            ":r",
            "x if",
            "x thread",
            "x bt 17",
            "x thread 0",
            "x skip many",
            "x :q",
            "log if",
            "x from",
            "x called by y",
            "x skip 1 skip 2",
            "x log and more",
        ] {
            let wrong = ParsedWatch::parse(text).expect_err(text).to_string();
            assert!(wrong.contains("; say: ulpf watch EXPR"), "{text}: {wrong}");
        }
    }
}
