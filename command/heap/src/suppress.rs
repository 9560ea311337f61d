//! Suppressions of errors: files in the format of Valgrind's memcheck, with additional kinds.
//!
//! ```text
//!     {
//!        any name
//!        Memcheck:Addr4                or ulpf:outside
//!        fun:png_*                     the access, or the function that frees or allocates
//!        …                             its callers, the innermost first: fun:, obj:, src:, at:, and ... for any number
//!     }
//! ```
//! Files are untrusted: they have limits, and each error names its line.

use super::kind::word;
use super::pattern::{Frame, Pattern, fit, glob};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use ulpf_host::foreign::text::{Text, path as shown};
use ulpf_lib::ring::findings::Wrong;

/// Limit of the bytes of a file.
const LONGEST: u64 = 4 << 20;
/// Limit of the suppressions of all files together.
const MOST: usize = 10_000;
/// Limit of the patterns of a suppression.
const MOST_FRAMES: usize = 64;
/// Kinds of memcheck that are not checked here: undefined values, stacks, pools.
const OTHERS: [&str; 17] = [
    "User",
    "Cond",
    "Value0",
    "Value1",
    "Value2",
    "Value4",
    "Value8",
    "Value16",
    "Value32",
    "Jump",
    "Mempool",
    "MemPool",
    "Align",
    "BadAlign",
    "BadSize",
    "ReallocZero",
    "Core",
];
const ACCESSES: [&str; 6] = ["Addr1", "Addr2", "Addr4", "Addr8", "Addr16", "Addr32"];

/// Memcheck's name of a leak.
fn leak(wrong: Wrong) -> Option<&'static str> {
    match wrong {
        Wrong::Lost => Some("definite"),
        Wrong::LostWith => Some("indirect"),
        Wrong::PerhapsLost => Some("possible"),
        Wrong::Reachable => Some("reachable"),
        _ => None,
    }
}

/// Properties of an error that suppressions are compared with.
pub struct Case<'a> {
    pub wrong: Wrong,
    /// The system call that made the access.
    pub syscall: Option<&'a str>,
    pub frames: &'a [Frame],
    /// Number of the first frames that only some versions of memcheck have.
    pub inner: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// An access by the program's own instructions.
    Access,
    /// An access by a system call: `write(buf)`.
    Param(String),
    Free,
    /// Leaks of these memcheck kinds.
    Leak(Vec<&'static str>),
    /// An error of our kinds; `None` for any.
    Own(Option<Wrong>),
    /// A kind of another tool, or one that is not checked.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Suppression {
    name: String,
    kind: Kind,
    frames: Vec<Pattern>,
}

/// All active suppressions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions(Vec<Suppression>);

impl Suppressions {
    /// Adds the suppressions of a file. The error names the file and the line.
    pub fn read(&mut self, path: &Path) -> Result<(), String> {
        let fails = |why: &dyn std::fmt::Display| format!("cannot read {}: {why}", shown(path));
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|e| fails(&e))?;
        let read = file.take(LONGEST + 1).read_to_end(&mut bytes);
        read.map_err(|e| fails(&e))?;
        if bytes.len() as u64 > LONGEST {
            return Err(fails(&format!("it is longer than {} MiB", LONGEST >> 20)));
        }
        // (A name that is not UTF-8 matches the form in which the symbol table is shown.)
        let text = String::from_utf8_lossy(&bytes);
        self.parse(&text)
            .map_err(|(line, why)| format!("{}:{line}: {why}", shown(path)))
    }

    /// As [`Suppressions::read`]; the error has the line's number.
    pub fn parse(&mut self, text: &str) -> Result<(), (usize, String)> {
        let lines = text.lines().zip(1..).map(|(line, n)| (n, line.trim()));
        let mut lines = lines.filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
        while let Some((begins, line)) = lines.next() {
            if line != "{" {
                return Err((begins, format!("expected {{, and here is {}", Text(line))));
            }
            if self.0.len() >= MOST {
                return Err((begins, format!("there are more than {MOST} suppressions")));
            }
            let mut inside = Vec::new();
            let ended = lines.by_ref().find(|(n, line)| {
                if *line != "}" && inside.len() <= MOST_FRAMES + 3 {
                    inside.push((*n, *line));
                }
                *line == "}"
            });
            if ended.is_none() {
                return Err((begins, "this { has no }".into()));
            }
            self.0.push(Suppression::of(begins, &inside)?);
        }
        Ok(())
    }

    /// The index of the first suppression that matches this error.
    pub fn find(&self, case: &Case) -> Option<usize> {
        self.0.iter().position(|s| s.fits(case))
    }

    /// Whether there are no suppressions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name that its author gave it.
    pub fn name(&self, number: usize) -> &str {
        self.0.get(number).map_or("", |s| &s.name)
    }
}

impl Suppression {
    fn of(begins: usize, lines: &[(usize, &str)]) -> Result<Suppression, (usize, String)> {
        let [(_, name), (at, kinds), rest @ ..] = lines else {
            return Err((
                begins,
                "here should be a name, a kind (Memcheck:Leak) and functions".into(),
            ));
        };
        let (mut kind, mut rest) = (Kind::of(kinds).map_err(|why| (*at, why))?, rest);
        match (&mut kind, rest) {
            (Kind::Param(what), [(_, first), after @ ..]) => {
                *what = (*first).into();
                rest = after;
            }
            (Kind::Leak(of), [(n, first), after @ ..])
                if first.starts_with("match-leak-kinds:") =>
            {
                *of = leaks(first).map_err(|why| (*n, why))?;
                rest = after;
            }
            _ => {}
        }
        let name = (*name).into();
        let mut frames = Vec::new();
        // Entries of other tools may contain anything.
        if kind != Kind::Nothing {
            if rest.len() > MOST_FRAMES {
                return Err((
                    begins,
                    format!("this one has more than {MOST_FRAMES} functions"),
                ));
            }
            for (n, line) in rest {
                frames.push(Pattern::of(line).map_err(|why| (*n, why))?);
            }
            if frames.iter().all(|p| *p == Pattern::Any) {
                return Err((begins, "this one names no function, and would hide every error of its kind; obj:* says so".into()));
            }
        }
        Ok(Suppression { name, kind, frames })
    }

    fn fits(&self, case: &Case) -> bool {
        let mut from = (0..=case.inner).filter_map(|n| case.frames.get(n..));
        self.kind.fits(case) && from.any(|frames| fit(&self.frames, frames))
    }
}

impl Kind {
    /// Parses `Memcheck:Addr4`, `Helgrind,Memcheck:Leak`, `ulpf:freed`.
    fn of(text: &str) -> Result<Kind, String> {
        let Some((tools, kind)) = text.split_once(':') else {
            return Err(format!(
                "expected TOOL:KIND (Memcheck:Leak, ulpf:freed), and here is {}",
                Text(text)
            ));
        };
        let mut tools = tools.split(',').map(str::trim);
        let kind = kind.trim();
        let unknown = |of: &str| format!("{of} has no kind {}", Text(kind));
        match tools.find(|t| matches!(*t, "Memcheck" | "ulpf")) {
            None => Ok(Kind::Nothing),
            Some("ulpf") if kind == "*" => Ok(Kind::Own(None)),
            Some("ulpf") => {
                let found = Wrong::ALL.into_iter().find(|w| word(*w) == kind);
                found
                    .map(|w| Kind::Own(Some(w)))
                    .ok_or_else(|| unknown("ulpf"))
            }
            Some(_) => match kind {
                "Free" => Ok(Kind::Free),
                "Leak" => Ok(Kind::Leak(leaks("match-leak-kinds: all")?)),
                "Param" => Ok(Kind::Param(String::new())),
                _ if ACCESSES.contains(&kind) => Ok(Kind::Access),
                "Overlap" => Ok(Kind::Own(Some(Wrong::Overlap))),
                _ if OTHERS.contains(&kind) => Ok(Kind::Nothing),
                _ => Err(unknown("Memcheck")),
            },
        }
    }

    fn fits(&self, case: &Case) -> bool {
        let access = case.wrong.is_access();
        match self {
            Kind::Access => access && case.syscall.is_none(),
            Kind::Param(what) => {
                // `write(buf)`: the call and its argument.
                let name = what.split('(').next().unwrap_or(what);
                access && case.syscall.is_some_and(|call| glob(name, call))
            }
            Kind::Free => case.wrong.is_free(),
            Kind::Leak(of) => leak(case.wrong).is_some_and(|is| of.contains(&is)),
            Kind::Own(wrong) => wrong.is_none_or(|w| w == case.wrong),
            Kind::Nothing => false,
        }
    }
}

/// `match-leak-kinds: definite,possible`
fn leaks(line: &str) -> Result<Vec<&'static str>, String> {
    const ALL: [&str; 4] = ["definite", "indirect", "possible", "reachable"];
    let (_, list) = line.split_once(':').unwrap_or_default();
    let mut out = Vec::new();
    for kind in list.split(',').map(str::trim) {
        match (kind, ALL.iter().find(|k| **k == kind)) {
            ("all", _) => out.extend(ALL),
            ("none", _) => {}
            (_, Some(known)) => out.push(known),
            _ => {
                return Err(format!(
                    "leaks are {}, all or none, not {}",
                    ALL.join(", "),
                    Text(kind)
                ));
            }
        }
    }
    Ok(out)
}

/// Makes a suppression that matches this error. `shown`: number of frames that belong to the program and are worth
/// naming.
pub fn make(case: &Case, len: u64, shown: usize) -> String {
    use std::fmt::Write as _;
    let frames = case.frames.get(..shown.min(24)).unwrap_or(case.frames);
    let frames = frames.get(case.inner..).unwrap_or_default();
    // Memcheck has no notation for addresses in a module; it ignores entries for other tools.
    let nameless = |f: &Frame| f.names.is_empty() && f.object.is_some();
    let kind = match leak(case.wrong) {
        _ if frames.iter().any(nameless) => format!("ulpf:{}", word(case.wrong)),
        Some(kind) => format!("Memcheck:Leak\n   match-leak-kinds: {kind}"),
        None => match (case.wrong, case.syscall) {
            (wrong, Some(call)) if wrong.is_access() => format!("Memcheck:Param\n   {call}(*)"),
            (wrong, None) if wrong.is_access() => {
                format!("Memcheck:Addr{}", len.clamp(1, 32).next_power_of_two())
            }
            (Wrong::Overlap, _) => "Memcheck:Overlap".into(),
            _ => "Memcheck:Free".into(),
        },
    };
    // (The functions that a freeing or allocating function calls come before it.)
    let access = case.wrong.is_access();
    let mut callers = frames.iter().skip(usize::from(!access));
    let named = callers.find_map(|f| f.names.last());
    let of = named.map_or("?", |name| name.as_str());
    let mut out = format!("{{\n   {} in {}\n   {kind}\n", word(case.wrong), Text(of));
    for frame in frames {
        let name = match (frame.names.first(), &frame.object) {
            (Some(name), _) => format!("fun:{}", Text(name)),
            (None, Some(object)) => {
                let file = object.rsplit('/').next().unwrap_or(object);
                format!("at:{}+{:#x}", Text(file), frame.linked)
            }
            (None, None) => "obj:*".into(),
        };
        let _ = writeln!(out, "   {name}");
    }
    if frames.is_empty() {
        out.push_str("   obj:*\n");
    }
    out + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str) -> Frame {
        Frame {
            names: vec![name.into()],
            object: Some("/usr/lib/libshop.so.1".into()),
            linked: 0x1234,
            source: Some("/src/shop.c".into()),
            line: Some(7),
        }
    }

    fn suppresses(text: &str, wrong: Wrong, syscall: Option<&str>, names: &[&str]) -> bool {
        let mut all = Suppressions::default();
        all.parse(text).unwrap();
        let frames: Vec<Frame> = names.iter().map(|n| frame(n)).collect();
        let frames = &frames;
        all.find(&Case {
            wrong,
            syscall,
            frames,
            inner: 0,
        })
        .is_some()
    }

    #[test]
    fn what_is_suppressed() {
        let one = |kind: &str, lines: &str| format!("# why\n{{\n  a name\n  {kind}\n{lines}\n}}\n");
        let stack = &["free", "drop", "shop", "main"];
        for (kind, wrong, fits) in [
            ("Memcheck:Addr1", Wrong::Outside, true),
            ("Memcheck:Addr16", Wrong::Freed, true),
            ("Memcheck:Addr4", Wrong::Poisoned, true),
            ("Memcheck:Addr4", Wrong::Far, true),
            ("ulpf:far", Wrong::Far, true),
            ("ulpf:outside", Wrong::Far, false),
            ("Memcheck:Addr4", Wrong::Twice, false),
            ("Memcheck:Free", Wrong::Twice, true),
            ("Helgrind,Memcheck:Free", Wrong::Mismatch, true),
            ("Helgrind:Race", Wrong::Outside, false),
            ("Memcheck:Cond", Wrong::Outside, false),
            ("Memcheck:Leak", Wrong::Reachable, true),
            (
                "Memcheck:Leak\nmatch-leak-kinds: definite,possible",
                Wrong::Lost,
                true,
            ),
            (
                "Memcheck:Leak\nmatch-leak-kinds: indirect",
                Wrong::Lost,
                false,
            ),
            ("ulpf:double-free", Wrong::Twice, true),
            ("ulpf:double-free", Wrong::NoBlock, false),
            ("ulpf:*", Wrong::NoBlock, true),
        ] {
            assert_eq!(
                suppresses(&one(kind, "fun:free"), wrong, None, stack),
                fits,
                "{kind}"
            );
        }
        for (lines, fits) in [
            ("fun:free\nfun:drop", true),
            ("fun:drop", false),
            ("fun:fr?e\nfun:d*p", true),
            ("...\nfun:main", true),
            ("...\nfun:other", false),
            ("fun:free\n...\nfun:shop\nfun:main", true),
            ("fun:free\n...\nfun:shop\nfun:shop", false),
            ("fun:free\nfun:drop\nfun:shop\nfun:main\nfun:more", false),
            ("...\nfun:drop\n...\nfun:main\n...", true),
            ("obj:*/libshop.so*", true),
            ("obj:libshop.so.?", true),
            ("obj:*libc*", false),
            ("src:shop.c", true),
            ("src:shop.c:7", true),
            ("src:/src/*:7", true),
            ("src:shop.c:8", false),
            ("at:libshop.so.1+0x1234", true),
            ("at:libshop.so.1+0x1235", false),
        ] {
            let text = one("Memcheck:Free", lines);
            assert_eq!(
                suppresses(&text, Wrong::NoBlock, None, stack),
                fits,
                "{lines}"
            );
        }
        let names = ["memalign", "posix_memalign", "shop"].map(frame);
        for (lines, fits) in [
            ("fun:memalign\nfun:posix_memalign\nfun:shop", true),
            ("fun:posix_memalign\nfun:shop", true),
            ("fun:shop", false),
        ] {
            let mut all = Suppressions::default();
            all.parse(&one("Memcheck:Leak", lines)).unwrap();
            let case = Case {
                wrong: Wrong::Lost,
                syscall: None,
                frames: &names,
                inner: 1,
            };
            assert_eq!(all.find(&case).is_some(), fits, "{lines}");
            assert!(make(&case, 0, 3).contains("fun:posix_memalign\n   fun:shop\n}"));
        }
        let param = one("Memcheck:Param\nwrite(buf)", "...\nfun:main");
        assert!(suppresses(&param, Wrong::Outside, Some("write"), stack));
        assert!(!suppresses(&param, Wrong::Outside, Some("read"), stack));
        assert!(!suppresses(&param, Wrong::Outside, None, stack));
    }

    #[test]
    fn what_is_wrong_says_where() {
        for (text, line, why) in [
            ("\nfun:main\n", 2, "expected {"),
            ("{\n  n\n  Memcheck:Leak\n  fun:f\n", 1, "has no }"),
            ("{\n}\n", 1, "a name, a kind"),
            ("{\n n\n Leak\n fun:f\n}", 3, "TOOL:KIND"),
            ("{\n n\n Memcheck:Lek\n fun:f\n}", 3, "no kind Lek"),
            ("{\n n\n ulpf:leak\n fun:f\n}", 3, "no kind leak"),
            ("{\n n\n Memcheck:Free\n f\n}", 4, "expected fun:"),
            ("{\n n\n Memcheck:Free\n at:x+9\n}", 4, "expected at:"),
            (
                "{\n n\n Memcheck:Leak\n match-leak-kinds: some\n fun:f\n}",
                4,
                "leaks are",
            ),
            ("{\n n\n Memcheck:Free\n ...\n}", 1, "names no function"),
            ("{\n n\n Memcheck:Free\n}", 1, "names no function"),
        ] {
            let (at, said) = Suppressions::default().parse(text).unwrap_err();
            assert_eq!(at, line, "{text}: {said}");
            assert!(said.contains(why), "{said}");
        }
        let many = format!("{{\n n\n ulpf:*\n{}}}", "fun:f\n".repeat(65));
        assert!(
            Suppressions::default()
                .parse(&many)
                .unwrap_err()
                .1
                .contains("more than 64")
        );
        let all = "{\n n\n ulpf:*\n fun:f\n}\n".repeat(MOST + 1);
        assert_eq!(
            Suppressions::default().parse(&all).unwrap_err().0,
            MOST * 5 + 1
        );
    }

    #[test]
    fn what_is_made_fits() {
        let mut nameless = frame("");
        nameless.names.clear();
        let stripped = vec![nameless, frame("main"), Frame::default()];
        for frames in [vec![frame("f"), frame("main")], stripped] {
            for wrong in Wrong::ALL {
                for syscall in [None, Some("read")] {
                    let case = Case {
                        wrong,
                        syscall,
                        frames: &frames,
                        inner: 0,
                    };
                    let text = make(&case, 3, frames.len());
                    let mut all = Suppressions::default();
                    all.parse(&text).unwrap();
                    assert_eq!(all.find(&case), Some(0), "{text}");
                }
            }
        }
    }
}
