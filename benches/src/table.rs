//! Tables of figures, for a terminal and for the page, and what was to be reached.

use serde_json::{Value, json};
use std::fmt::Write;

#[derive(Clone, Debug, Default)]
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Sentences below it.
    pub notes: Vec<String>,
    pub goals: Vec<Goal>,
}

/// One line of what must be reached.
#[derive(Clone, Debug)]
pub struct Goal {
    pub what: String,
    pub value: f64,
    pub bar: f64,
    pub goal: f64,
    pub unit: Unit,
    /// More is better.
    pub at_least: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Times,
    Percent,
    Cycles,
    Seconds,
    Bytes,
}

impl Unit {
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Times => format!("{}×", figure(value)),
            Unit::Percent => format!("{value:.2} %"),
            Unit::Cycles => format!("{} cycles", figure(value)),
            Unit::Seconds => format!("{value:.2} s"),
            Unit::Bytes => format!("{value:.0} B"),
        }
    }
}

impl Goal {
    /// Less is better.
    pub fn at_most(what: impl Into<String>, value: f64, bar: f64, goal: f64, unit: Unit) -> Goal {
        Goal {
            what: what.into(),
            value,
            bar,
            goal,
            unit,
            at_least: false,
        }
    }

    /// More is better.
    pub fn at_least(what: impl Into<String>, value: f64, bar: f64, goal: f64, unit: Unit) -> Goal {
        Goal {
            at_least: true,
            ..Goal::at_most(what, value, bar, goal, unit)
        }
    }

    pub fn outcome(&self) -> &'static str {
        let reached = |limit: f64| match self.at_least {
            true => self.value >= limit,
            false => self.value <= limit,
        };
        match (reached(self.goal), reached(self.bar)) {
            (true, _) => "goal met",
            (false, true) => "bar met",
            (false, false) => "missed",
        }
    }
    fn sign(&self) -> &'static str {
        if self.at_least { "≥" } else { "≤" }
    }
    pub fn limit(&self, value: f64) -> String {
        format!("{} {}", self.sign(), self.unit.show(value))
    }
}

/// As many digits as tell something.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.as_str()),
    };
    let (whole, rest) = text
        .split_once('.')
        .map_or((text, None), |(w, r)| (w, Some(r)));
    let mut out = String::new();
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    match rest {
        Some(rest) => format!("{sign}{out}.{rest}"),
        None => format!("{sign}{out}"),
    }
}

/// A number of things.
pub fn count(value: f64) -> String {
    // Whole ones, however few.
    figure(value.round() * 1000.0)
        .strip_suffix(",000")
        .map_or_else(|| format!("{value:.0}"), str::to_string)
}

pub fn counted(value: Option<f64>) -> String {
    value.map_or("–".into(), count)
}

pub fn some(value: Option<f64>) -> String {
    value.map_or("–".into(), figure)
}

pub fn times(value: Option<f64>) -> String {
    value.map_or("–".into(), |v| Unit::Times.show(v))
}

impl Table {
    pub fn new(title: &str, head: &[&str]) -> Table {
        Table {
            title: title.into(),
            head: head.iter().map(|h| h.to_string()).collect(),
            ..Table::default()
        }
    }
    pub fn row(&mut self, cells: &[&str]) {
        self.rows
            .push(cells.iter().map(|c| c.to_string()).collect());
    }
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Adds what was to be reached, if there is a figure; what became of it.
    pub fn goal(&mut self, goal: Option<Goal>) -> String {
        let Some(goal) = goal else {
            return "–".into();
        };
        let outcome = goal.outcome();
        self.goals.push(goal);
        outcome.into()
    }

    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.title);
        let cells = || std::iter::once(&self.head).chain(&self.rows);
        let width = |n: usize| {
            let longest = cells()
                .filter_map(|row| row.get(n))
                .map(|c| c.chars().count());
            longest.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for row in cells() {
            let mut line = String::from(" ");
            for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let pad = " ".repeat(width - cell.chars().count());
                let _ = match n {
                    0 => write!(line, " {cell}{pad}"),
                    _ => write!(line, "  {pad}{cell}"),
                };
            }
            out += line.trim_end();
            out.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(out, "  {note}");
        }
        out
    }

    pub fn markdown(&self) -> String {
        let mut out = format!("### {}\n\n", self.title);
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|c| c.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        out += &line(&self.head);
        out += &format!(
            "| --- |{}\n",
            " ---: |".repeat(self.head.len().saturating_sub(1))
        );
        self.rows.iter().for_each(|row| out += &line(row));
        for note in &self.notes {
            let _ = write!(out, "\n{note}\n");
        }
        out
    }

    pub fn json(&self) -> Value {
        let goals: Vec<Value> = self.goals.iter().map(|g| {
            json!({"what": g.what, "value": g.value, "bar": g.bar, "goal": g.goal, "at_least": g.at_least, "outcome": g.outcome()})
        }).collect();
        json!({"title": self.title, "head": self.head, "rows": self.rows, "notes": self.notes, "goals": goals})
    }
}

/// All that was to be reached, in one table.
pub fn goals(tables: &[Table]) -> Option<Table> {
    let mut table = Table::new("What was to be reached", &["", "ours", "bar", "goal", ""]);
    for goal in tables.iter().flat_map(|t| &t.goals) {
        table.row(&[
            &goal.what,
            &goal.unit.show(goal.value),
            &goal.limit(goal.bar),
            &goal.limit(goal.goal),
            goal.outcome(),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(value: f64, at_least: bool) -> Goal {
        Goal {
            what: "x".into(),
            value,
            bar: if at_least { 1.9 } else { 1.1 },
            goal: if at_least { 2.0 } else { 1.0 },
            unit: Unit::Times,
            at_least,
        }
    }

    #[test]
    fn outcomes() {
        let said: Vec<_> = [0.9, 1.0, 1.05, 1.2]
            .map(|v| goal(v, false).outcome())
            .into();
        assert_eq!(said, ["goal met", "goal met", "bar met", "missed"]);
        let said: Vec<_> = [2.0, 1.95, 1.5].map(|v| goal(v, true).outcome()).into();
        assert_eq!(said, ["goal met", "bar met", "missed"]);
    }

    #[test]
    fn figures() {
        let said = [0.2449, 9.999, 12.34, 123.4, 1_234_567.0, -1.5].map(figure);
        assert_eq!(said, ["0.24", "10.00", "12.3", "123", "1,234,567", "-1.50"]);
    }

    #[test]
    fn counts() {
        let said = [0.0, 1.0, 2.0, 999.0, 1000.0, 1_048_576.0].map(count);
        assert_eq!(said, ["0", "1", "2", "999", "1,000", "1,048,576"]);
    }

    #[test]
    fn text_and_markdown() {
        let mut t = Table::new("T", &["case", "ns"]);
        t.row(&["bare", "0.2"]);
        t.row(&["watched", "12"]);
        assert_eq!(
            t.text(),
            "T\n  case      ns\n  bare     0.2\n  watched   12\n"
        );
        assert!(t.markdown().contains("| --- | ---: |\n| bare | 0.2 |\n"));
    }
}
