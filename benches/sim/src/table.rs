// SPDX-License-Identifier: GPL-2.0-or-later
//! A table with what is to be said about it, for the terminal and for a page.

use std::fmt::Write;

pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub notes: Vec<String>,
}

impl Table {
    pub fn new(title: &str, head: &[&str]) -> Table {
        Table {
            title: title.to_owned(),
            head: head.iter().map(|&h| h.to_owned()).collect(),
            rows: vec![],
            notes: vec![],
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Columns under each other, numbers to the right; notes in lines of a terminal's width.
    pub fn text(&self) -> String {
        let width = |n: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(n));
            cells
                .chain([&self.head[n]])
                .map(|c| c.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.head.len()).map(width).collect();
        let mut out = format!("{}\n", self.title);
        for row in [&self.head].into_iter().chain(&self.rows) {
            for (n, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let _ = match n {
                    0 => write!(out, "  {cell:<width$}"),
                    _ => write!(out, "  {cell:>width$}"),
                };
            }
            out.push('\n');
        }
        for note in &self.notes {
            let mut line = String::from("  ");
            for word in note.split(' ') {
                if line.chars().count() + word.chars().count() > 110 {
                    out += line.trim_end();
                    out += "\n";
                    line = "  ".into();
                }
                line += word;
                line.push(' ');
            }
            out += line.trim_end();
            out += "\n";
        }
        out
    }

    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut out = format!("### {}\n\n{}", self.title, line(&self.head));
        let marks: Vec<_> = (0..self.head.len())
            .map(|n| if n == 0 { "---" } else { "---:" }.to_owned())
            .collect();
        out += &line(&marks);
        for row in &self.rows {
            out += &line(row);
        }
        for note in &self.notes {
            let _ = write!(out, "\n{note}\n");
        }
        out.push('\n');
        out
    }
}

/// 2.29, 15.8, 1,446,000: three figures, as the papers have them.
pub fn ratio(x: f64) -> String {
    match x {
        x if x >= 1000. => count(x.round() as u64),
        x if x >= 100. => format!("{x:.0}"),
        x if x >= 10. => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(
            [1.006, 15.84, 799.6, 799_600.4].map(ratio),
            ["1.01", "15.8", "800", "799,600"]
        );
        assert_eq!([0, 999, 1_048_576].map(count), ["0", "999", "1,048,576"]);
    }

    #[test]
    fn two_forms() {
        let mut t = Table::new("A table", &["what", "n"]);
        t.row(["long name".into(), "1".into()]);
        t.note("word ".repeat(40).trim_end());
        let text = t.text();
        assert!(text.starts_with("A table\n  what       n\n  long name  1\n  word"));
        assert!(text.lines().all(|l| l.len() <= 112));
        assert!(t.markdown().contains("| what | n |\n| --- | ---: |\n"));
    }
}
