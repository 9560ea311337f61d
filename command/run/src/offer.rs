//! Lists variables to watch if the user has named none.

use super::Target;
use std::path::Path;
use std::rc::Rc;
use ulpf_host::say::say;
use ulpf_session::words::count;
use ulpf_symbols::{Global, Module, Program};

/// Limit of the variables in the list.
const MOST: usize = 12;
/// Limit of the characters of a name or a type.
const WIDEST: usize = 48;

/// Says that no watch is named, and lists variables.
pub fn offer(target: &Target) {
    let notice = ulpf_host::signals::ReadingNotice::begin();
    let (module, start) = match target {
        Target::Launch(launch) => (
            launch.file().and_then(|path| of_file(&path)),
            format!("ulpf run --watch WHAT {}", launch.program.to_string_lossy()),
        ),
        Target::Attach(pid) => (of_process(*pid), format!("ulpf attach --watch WHAT {pid}")),
    };
    let (largest, all) = module
        .as_ref()
        .map_or_else(Default::default, |m| m.largest(MOST));
    drop(notice);
    let what = largest.first().map_or("heap".into(), |g| quoted(&g.name));
    let example = start.replacen("WHAT", &what, 1);
    if let (Some(module), false) = (&module, largest.is_empty()) {
        say!(
            "nothing to watch: name it with --watch. {}:",
            of_which(module, largest.len(), all)
        );
        lines(&largest).for_each(|line| say!("  {line}"));
        say!("or `heap`, all that it allocates. For example: {example}");
    } else {
        say!(
            "nothing to watch: name it with --watch SPEC, a variable of the program, or `heap`, all that it allocates. For example: {example}"
        );
    }
}

fn of_which(module: &Module, shown: usize, all: usize) -> String {
    let name = module.object.name();
    match shown < all {
        true => format!("The largest of {name}'s {}", count(all as u64, "variable")),
        false => format!("The variables of {name}"),
    }
}

fn of_file(path: &Path) -> Option<Rc<Module>> {
    let path = path.canonicalize().ok()?;
    let us = std::process::id() as i32;
    Program::of_file(&path, 0, us).executable().cloned()
}

fn of_process(pid: i32) -> Option<Rc<Module>> {
    Program::of_process(pid).ok()?.executable().cloned()
}

/// Lines with columns.
fn lines(globals: &[Global]) -> impl Iterator<Item = String> {
    let sizes = globals.iter().map(|g| count(g.size, "byte"));
    let cells: Vec<_> = globals
        .iter()
        .zip(sizes)
        .map(|(g, size)| (cut(&g.name), size, g.ty.as_deref().map(cut)))
        .collect();
    let widest = |of: fn(&(String, String, Option<String>)) -> &String| {
        cells
            .iter()
            .map(|c| of(c).chars().count())
            .max()
            .unwrap_or(0)
    };
    let (name_width, size_width) = (widest(|c| &c.0), widest(|c| &c.1));
    cells.into_iter().map(move |(name, size, ty)| {
        let line = format!(
            "{name:name_width$}  {size:>size_width$}  {}",
            ty.unwrap_or_default()
        );
        line.trim_end().to_string()
    })
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

/// Quotes a name for the shell.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_:./".contains(c);
    match name.chars().all(plain) {
        true => name.into(),
        false => format!("'{}'", name.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns() {
        let global = |name: &str, size, ty: Option<&str>| Global {
            name: name.into(),
            size,
            ty: ty.map(Into::into),
        };
        let all = [
            global("a", 1, Some("char")),
            global(&"b".repeat(60), 1200, None),
        ];
        let lines: Vec<_> = lines(&all).collect();
        assert_eq!(lines[0], format!("a{}      1 byte  char", " ".repeat(48)));
        assert_eq!(lines[1], format!("{}…  1200 bytes", "b".repeat(48)));
    }

    #[test]
    fn names_for_a_shell() {
        assert_eq!(quoted("a::b"), "a::b");
        assert_eq!(quoted("t<int>::n"), "'t<int>::n'");
    }
}
