//! C++ and Rust names as a programmer writes them.
//!
//! The parser of C++ names backtracks: its time can double with each level of a name (`_Zli1_DT` and twenty times `dl`). Its
//! caller can limit the levels, but not the time, and a hostile program may have such symbols. So this process parses names of
//! a few levels only. A child parses the others, and the kernel ends it when a name takes too much processor time:
//!
//! ```text
//!   readable ── a few levels ──▶ cpp_demangle
//!      │
//!      └── more: the name ──▶ ulpf --demangle ──▶ cpp_demangle ──▶ the readable name, or SIGVTALRM
//! ```

use crate::meter;
use std::fmt::{self, Write as _};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use ulpf_host::signals::asked_to_end;
use ulpf_host::{programs, sys};

/// Symbols beyond that stay as they are.
const MOST_MANGLED: usize = 64 << 10;
/// The longest readable name. Characters of a mangled name can refer to others, so a short one may be endless when readable.
const MOST_READABLE: usize = 64 << 10;
const STEPS_A_MICROSECOND: u64 = 100;
/// Levels of a name that is parsed at once: four of five names in LLVM's and GNU's libraries have no more, and the worst one
/// takes some milliseconds.
const FEW_LEVELS: u32 = 24;
/// Levels of any name. A template argument within another one is four levels, and each uses a kilobyte or two of the stack.
const MOST_LEVELS: u32 = 512;
/// Processor time for a name of many levels. The slowest one of 135,000 in the libraries of a Debian took 4 ms.
const MOST_TIME: Duration = Duration::from_millis(200);
/// Limit of children that end; after that, names of many levels stay mangled.
const MOST_CHILDREN: u32 = 4;
/// A child that has not answered for so long is not asked again.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The command's first argument that makes it such a child (`serve`).
pub const WORD: &str = "--demangle";

static ENABLED: AtomicBool = AtomicBool::new(false);
static PARSER: Mutex<Parser> = Mutex::new(Parser {
    child: None,
    started: 0,
});

/// This program is a child that demangles ([`serve`]) when its first argument is [`WORD`].
pub fn enable() {
    ENABLED.store(true, Relaxed);
}

/// The name as a programmer writes it. Names of other languages stay: to a demangler, `f` is `float`.
pub fn demangle(name: &str) -> String {
    readable(name).unwrap_or_else(|| name.to_string())
}

/// `__shapes_MOD_area`: `shapes::area`, as gfortran mangles what a module has.
fn fortran(name: &str) -> Option<String> {
    let (module, name) = name.strip_prefix("__")?.split_once("_MOD_")?;
    let plain =
        |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (plain(module) && plain(name)).then(|| format!("{module}::{name}"))
}

fn readable(name: &str) -> Option<String> {
    if name.starts_with("__") {
        return fortran(name);
    }
    let mangled = name.starts_with("_Z") || name.starts_with("_R");
    if !mangled || name.len() > MOST_MANGLED {
        return None;
    }
    // Real names take microseconds; a table of those that take much longer uses up the work that is allowed.
    if !meter::step(1) {
        return None;
    }
    let before = Instant::now();
    let text = match rustc_demangle::try_demangle(name) {
        Ok(rust) => {
            let mut text = Limited(String::new());
            write!(text, "{rust:#}").ok().map(|()| text.0)
        }
        Err(_) => cpp(name, FEW_LEVELS).unwrap_or_else(|_| {
            let mut parser = PARSER.lock().unwrap_or_else(PoisonError::into_inner);
            parser.ask(name)
        }),
    };
    meter::step(before.elapsed().as_micros() as u64 * STEPS_A_MICROSECOND);
    text
}

/// The name has more levels than the limit.
struct TooDeep;

/// Parses a C++ name of at most `levels` levels; `None` if it is not a mangled name.
fn cpp(name: &str, levels: u32) -> Result<Option<String>, TooDeep> {
    use cpp_demangle::error::Error;
    use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};
    let parsed = Symbol::new_with_options(name, &ParseOptions::default().recursion_limit(levels));
    let symbol = match parsed {
        Ok(symbol) => symbol,
        Err(Error::TooMuchRecursion) => return Err(TooDeep),
        Err(_) => return Ok(None),
    };
    let mut text = Limited(String::new());
    let options = DemangleOptions::default().recursion_limit(levels.max(96));
    let written = symbol.structured_demangle(&mut text, &options);
    Ok(written.ok().map(|()| text.0))
}

/// Text that does not become longer than [`MOST_READABLE`].
struct Limited(String);

impl fmt::Write for Limited {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.0.len() + more.len() > MOST_READABLE {
            return Err(fmt::Error);
        }
        self.0.push_str(more);
        Ok(())
    }
}

/// The child that parses names of many levels.
struct Parser {
    child: Option<(Child, BufReader<UnixStream>)>,
    started: u32,
}

impl Parser {
    fn ask(&mut self, name: &str) -> Option<String> {
        // A name is a line.
        if name.contains('\n') || !ENABLED.load(Relaxed) {
            return None;
        }
        if self.child.is_none() && self.started < MOST_CHILDREN {
            self.started += 1;
            self.child = start().ok();
        }
        let (child, stream) = self.child.as_mut()?;
        match answer(stream, name) {
            Ok(text) => (!text.is_empty()).then_some(text),
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                self.child = None;
                None
            }
        }
    }
}

fn start() -> io::Result<(Child, BufReader<UnixStream>)> {
    let (child, socket) = programs::start_helper(WORD)?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok((child, BufReader::new(socket)))
}

/// Asks the child: its answer is a line, empty if the name is not a mangled one.
fn answer(stream: &mut BufReader<UnixStream>, name: &str) -> io::Result<String> {
    stream.get_mut().write_all(format!("{name}\n").as_bytes())?;
    let end = Instant::now() + TIMEOUT;
    let mut line = Vec::new();
    loop {
        match stream.read_until(b'\n', &mut line) {
            Ok(_) if line.pop() == Some(b'\n') => {
                return String::from_utf8(line).map_err(io::Error::other);
            }
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
            Err(e) if asked_to_end() || Instant::now() > end => return Err(e),
            Err(_) => {}
        }
    }
}

/// The child: answers names until its parent has gone. Its exit status.
pub fn serve() -> i32 {
    fn all() -> io::Result<()> {
        programs::name_helper("ulpf-demangle");
        let mut to = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut names = BufReader::new(to.try_clone()?);
        let mut name = Vec::new();
        while names
            .by_ref()
            .take(MOST_MANGLED as u64 + 1)
            .read_until(b'\n', &mut name)?
            > 0
        {
            sys::end_after(MOST_TIME)?;
            let text = std::str::from_utf8(name.trim_ascii_end()).ok();
            let text = text.and_then(|name| cpp(name, MOST_LEVELS).ok().flatten());
            let line = text.filter(|text| !text.contains('\n')).unwrap_or_default() + "\n";
            sys::end_after(Duration::ZERO)?;
            to.write_all(line.as_bytes())?;
            name.clear();
        }
        Ok(())
    }
    i32::from(all().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulpf_host::rights::thread_time;

    #[test]
    fn names_of_three_languages() {
        for (name, text) in [
            ("main", "main"),
            ("f", "f"),
            ("_ZN2ns4fillEiPc", "ns::fill(int, char*)"),
            ("_ZN3app4main17h0123456789abcdefE", "app::main"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_Zbroken", "_Zbroken"),
        ] {
            assert_eq!(demangle(name), text);
        }
    }

    /// Each of them keeps a demangler without limits busy for minutes, or makes it write gigabytes.
    #[test]
    fn names_that_explode() {
        let mut doubling = String::from("_Z1f1aIiiE");
        for i in 0..34 {
            let last = match i {
                0 => "S0_".to_string(),
                _ => format!(
                    "S{}_",
                    char::from_digit(i, 36).unwrap().to_ascii_uppercase()
                ),
            };
            doubling += &format!("S_I{last}{last}E");
        }
        let before = thread_time();
        for name in [
            format!("_Zli1_DT{}", "dl".repeat(22)),
            format!("_ZD0gsM{}{}", "y".repeat(22), "gsL1aI".repeat(9)),
            format!("_ZcvDT{}{}", "rs".repeat(22), "ildl".repeat(22)),
            doubling,
            format!("_Z{}", "P".repeat(100_000)),
            format!("_RNvC1a{}", "NvB_".repeat(1000)),
        ] {
            for _ in 0..3 {
                let text = demangle(&name);
                assert!(text == name || text.len() <= MOST_READABLE);
            }
        }
        assert!(thread_time() - before < Duration::from_secs(20));
    }
}
