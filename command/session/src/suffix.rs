//! The kind of a file of hits, by the end of its name. gdb-plugin/ulpf/history.py has the same table.

use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lines for people.
    Text,
    /// JSON, one object a line.
    Jsonl,
    /// A table.
    Csv,
    /// Chrome's trace format, for ui.perfetto.dev.
    Trace,
    /// A compact log, which `ulpf log` reads.
    Compact,
}

/// `None`: the end of the name says nothing.
pub fn kind_of(path: &Path) -> Option<Kind> {
    let Some(end) = path.extension() else {
        return Some(Kind::Text);
    };
    Some(match &end.to_string_lossy().to_lowercase()[..] {
        "txt" | "log" | "out" | "err" => Kind::Text,
        "jsonl" | "ndjson" => Kind::Jsonl,
        "csv" => Kind::Csv,
        "json" => Kind::Trace,
        "ulpf" => Kind::Compact,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files() {
        let of = |name: &str| kind_of(Path::new(name));
        assert_eq!(of("a.jsonl"), Some(Kind::Jsonl));
        assert_eq!(of("X.CSV"), Some(Kind::Csv));
        assert_eq!(of("a.trace.json"), Some(Kind::Trace));
        assert_eq!((of("a"), of("x.out")), (Some(Kind::Text), Some(Kind::Text)));
        assert_eq!((of("a.ulpf"), of("a.xml")), (Some(Kind::Compact), None));
    }
}
