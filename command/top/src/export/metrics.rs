//! Metrics for Prometheus.

use std::fmt::Write;
use ulpf_host::foreign::text::shown;
use ulpf_session::snapshot::{Snapshot, Totals, Watch};

/// A label's value: line ends are escaped as the format requires, other control characters are shown.
fn label(text: &str) -> String {
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| shown(line).replace('\\', "\\\\").replace('"', "\\\""))
        .collect();
    lines.join("\\n")
}

/// Counters for Prometheus, as OpenMetrics text.
pub fn metrics(sessions: &[Snapshot]) -> String {
    let mut out = String::new();
    let watches = || {
        sessions
            .iter()
            .flat_map(|s| s.watches.iter().map(move |w| (s, w)))
    };
    type Figure = fn(&Watch) -> u64;
    let counters: [(&str, &str, Figure); 4] = [
        ("hits", "Accesses to the watched bytes", |w| w.hits),
        ("silent_stores", "Hits that left the value as it was", |w| {
            w.silent
        }),
        ("filtered", "Hits that the filter has rejected", |w| {
            w.filtered
        }),
        (
            "false_positives",
            "Accesses to its pages beside every watch, made by a fault",
            |w| w.false_positives,
        ),
    ];
    for (name, help, figure) in counters {
        let _ = writeln!(
            out,
            "# TYPE ulpf_watch_{name} counter\n# HELP ulpf_watch_{name} {help}."
        );
        for (s, w) in watches() {
            let _ = writeln!(
                out,
                "ulpf_watch_{name}_total{{pid=\"{}\",program=\"{}\",watch=\"{}\",kind=\"{}\"}} {}",
                s.pid,
                label(&s.program),
                label(&w.name),
                w.kind,
                figure(w)
            );
        }
    }
    type Total = fn(&Totals) -> u64;
    let totals: [(&str, &str, Total); 4] = [
        ("faults", "Faults on guarded pages", |t| t.faults),
        (
            "false_positives",
            "Accesses to guarded pages beside every watch",
            |t| t.false_positives,
        ),
        ("slow", "Accesses that were made on the slow path", |t| {
            t.slow
        }),
        ("system_calls", "System calls that went through ulpf", |t| {
            t.syscalls
        }),
    ];
    for (name, help, figure) in totals {
        let _ = writeln!(
            out,
            "# TYPE ulpf_{name} counter\n# HELP ulpf_{name} {help}."
        );
        for s in sessions {
            let _ = writeln!(
                out,
                "ulpf_{name}_total{{pid=\"{}\"}} {}",
                s.pid,
                figure(&s.totals)
            );
        }
    }
    out + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        let program = "a\n} 7\nb\\\"\x1b[2J";
        assert_eq!(label(program), r#"a\n} 7\nb\\\"\\x1b[2J"#);
    }
}
