//! Findings in the XML format of Valgrind's memcheck (`docs/internals/xml-output-protocol4.txt` of its sources), for
//! IDEs and plugins of CI servers.
//!
//! ```text
//! valgrindoutput
//!   protocolversion, protocoltool, preamble, pid, ppid, tool, args
//!   status RUNNING     error …              as they are found
//!   status FINISHED    error …              leaks
//!   errorcounts, suppcounts
//! ```

use super::sink::Sink;
use std::fmt::{Display, Write as _};
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use ulpf_heap::error::Error;
use ulpf_heap::kind;
use ulpf_host::foreign::text::Text;
use ulpf_host::process::Status;
use ulpf_session::hit::place::Place;

pub struct Xml {
    file: Sink,
    began: Instant,
    finished: bool,
}

/// Foreign text as the content of an element. (XML cannot represent most control characters.)
struct Content<'a>(&'a str);

impl Display for Content<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '\n' | '\t' => f.write_char(c)?,
                '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => f.write_char('?')?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Appends one line with an element.
fn element(out: &mut String, depth: usize, name: &str, content: &str) {
    let shown = Text(content).to_string();
    let _ = writeln!(out, "{:depth$}<{name}>{}</{name}>", "", Content(&shown));
}

/// Memcheck's name of the error.
fn kind(error: &Error) -> &'static str {
    match error.wrong {
        wrong if wrong.is_access() && error.syscall().is_some() => "SyscallParam",
        wrong if wrong.is_access() && error.writes() => "InvalidWrite",
        wrong => kind::kind(wrong).memcheck,
    }
}

fn frame(out: &mut String, place: &Place, error: &Error, function: Option<&str>, source: bool) {
    out.push_str("    <frame>\n");
    element(out, 6, "ip", &format!("0x{:X}", place.pc.0));
    if let Some(object) = error.object_of(place).or(place.object.as_deref()) {
        element(out, 6, "obj", object);
    }
    if let Some(function) = function {
        element(out, 6, "fn", function);
    }
    if let (true, Some(file)) = (source, &place.file) {
        let (dir, name) = file.rsplit_once('/').unwrap_or(("", file));
        if !dir.is_empty() {
            element(out, 6, "dir", dir);
        }
        element(out, 6, "file", name);
        if let Some(line) = place.line {
            element(out, 6, "line", &line.to_string());
        }
    }
    out.push_str("    </frame>\n");
}

fn stack<'a>(out: &mut String, error: &Error, places: impl Iterator<Item = &'a Rc<Place>>) {
    let mut any = false;
    for place in places {
        if !any {
            out.push_str("  <stack>\n");
            any = true;
        }
        let function = place.function.as_deref();
        match &place.inlined {
            Some(inlined) => {
                frame(out, place, error, Some(inlined), true);
                frame(out, place, error, function, false);
            }
            None => frame(out, place, error, function, true),
        }
    }
    if any {
        out.push_str("  </stack>\n");
    }
}

impl Xml {
    pub fn begin(file: Arc<File>, pid: i32, command: &[String]) -> Xml {
        let mut xml = Xml {
            file: Sink(Some(file)),
            began: Instant::now(),
            finished: false,
        };
        let mut out = String::from(
            "<?xml version=\"1.0\"?>\n\n<valgrindoutput>\n\n<protocolversion>4</protocolversion>\n\
             <protocoltool>memcheck</protocoltool>\n\n<preamble>\n",
        );
        element(
            &mut out,
            2,
            "line",
            concat!("ulpf check ", env!("CARGO_PKG_VERSION")),
        );
        element(
            &mut out,
            2,
            "line",
            &format!("Command: {}", command.join(" ")),
        );
        out.push_str("</preamble>\n\n");
        element(&mut out, 0, "pid", &pid.to_string());
        let parent = Status::of(pid).ok().and_then(|s| s.parent());
        let parent = parent.unwrap_or_else(|| std::process::id() as i32);
        element(&mut out, 0, "ppid", &parent.to_string());
        element(&mut out, 0, "tool", "memcheck");
        let ours: Vec<String> = std::env::args_os()
            .map(|a| a.to_string_lossy().into_owned())
            .collect();
        let ours = ours
            .get(..ours.len().saturating_sub(command.len()))
            .unwrap_or_default();
        out.push_str("\n<args>\n");
        for (name, words) in [("vargv", ours), ("argv", command)] {
            let _ = writeln!(out, "  <{name}>");
            for (n, word) in words.iter().enumerate() {
                element(&mut out, 4, if n == 0 { "exe" } else { "arg" }, word);
            }
            let _ = writeln!(out, "  </{name}>");
        }
        out.push_str("</args>\n\n");
        xml.state(&mut out, "RUNNING");
        xml.file.write(&out);
        xml
    }

    fn state(&self, out: &mut String, state: &str) {
        let ms = self.began.elapsed().as_millis();
        let (s, m, h) = (ms / 1000 % 60, ms / 60_000 % 60, ms / 3_600_000 % 24);
        let _ = write!(
            out,
            "<status>\n  <state>{state}</state>\n  <time>{:02}:{h:02}:{m:02}:{s:02}.{:03}</time>\n</status>\n\n",
            ms / 86_400_000,
            ms % 1000
        );
    }

    /// Leaks follow the end of the program.
    fn finish(&mut self, out: &mut String) {
        if !std::mem::replace(&mut self.finished, true) {
            self.state(out, "FINISHED");
        }
    }

    /// `finishes`: if it is a leak, no other errors follow.
    pub fn error(&mut self, error: &Error, number: usize, finishes: bool) {
        let mut out = String::new();
        let leak = error.wrong.is_leak();
        if leak && finishes {
            self.finish(&mut out);
        }
        out.push_str("<error>\n");
        element(&mut out, 2, "unique", &format!("{number:#x}"));
        element(&mut out, 2, "tid", &error.thread().to_string());
        element(&mut out, 2, "kind", kind(error));
        if leak {
            out.push_str("  <xwhat>\n");
            element(&mut out, 4, "text", &error.what());
            element(&mut out, 4, "leakedbytes", &error.len.to_string());
            element(&mut out, 4, "leakedblocks", &error.count.to_string());
            out.push_str("  </xwhat>\n");
            stack(&mut out, error, error.allocated_by.iter());
        } else {
            element(&mut out, 2, "what", &error.what());
            stack(
                &mut out,
                error,
                [&error.place].into_iter().chain(&error.callers),
            );
            let (block, other) = (error.block(), error.other());
            for (what, block, places) in [
                ("Freed by", block, &error.freed_by),
                ("Allocated by", block, &error.allocated_by),
                (
                    "The other one allocated by",
                    other,
                    &error.other_allocated_by,
                ),
            ] {
                if !places.is_empty() {
                    let what = match block {
                        Some((start, size)) => {
                            format!("{what}: the block of {size} bytes at {start:#x}")
                        }
                        None => what.to_string(),
                    };
                    element(&mut out, 2, "auxwhat", &what);
                    stack(&mut out, error, places.iter());
                }
            }
        }
        if let Some(text) = &error.suppression {
            suppression(&mut out, text);
        }
        out.push_str("</error>\n\n");
        self.file.write(&out);
    }

    pub fn end<'a>(
        &mut self,
        counts: impl Iterator<Item = (usize, u64)>,
        suppressed: impl Iterator<Item = (u64, &'a str)>,
    ) {
        let mut out = String::new();
        self.finish(&mut out);
        out.push_str("<errorcounts>\n");
        for (number, count) in counts {
            let _ = writeln!(
                out,
                "  <pair>\n    <count>{count}</count>\n    <unique>{number:#x}</unique>\n  </pair>"
            );
        }
        out.push_str("</errorcounts>\n\n<suppcounts>\n");
        for (count, name) in suppressed {
            let _ = writeln!(out, "  <pair>\n    <count>{count}</count>");
            element(&mut out, 4, "name", name);
            out.push_str("  </pair>\n");
        }
        out.push_str("</suppcounts>\n\n</valgrindoutput>\n");
        self.file.write(&out);
    }
}

/// An entry of a suppression file, in parts and as it is.
fn suppression(out: &mut String, text: &str) {
    let mut lines = text
        .lines()
        .map(str::trim)
        .filter(|l| !matches!(*l, "{" | "}"));
    out.push_str("  <suppression>\n");
    element(out, 4, "sname", lines.next().unwrap_or_default());
    element(out, 4, "skind", lines.next().unwrap_or_default());
    for line in lines {
        match line.split_once(':') {
            Some((what @ ("fun" | "obj"), name)) => {
                let _ = writeln!(
                    out,
                    "    <sframe> <{what}>{}</{what}> </sframe>",
                    Content(name)
                );
            }
            // (Memcheck has no element for it.)
            Some(("at", _)) => {
                let _ = writeln!(out, "    <sframe> <obj>*</obj> </sframe>");
            }
            _ => element(out, 4, "skaux", line),
        }
    }
    let _ = writeln!(
        out,
        "    <rawtext>\n{}    </rawtext>\n  </suppression>",
        Content(text)
    );
}
