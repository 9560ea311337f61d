//! Every single reading, and what is made of them.

use std::fmt::Write;

/// Milliseconds by the clock.
pub const CLOCK: &str = "ms";
/// Milliseconds of processor time ([`super::clock::Clock`]).
pub const PROCESSOR: &str = "processor ms";

#[derive(Clone, Debug)]
pub struct Reading {
    pub case: &'static str,
    /// The variant that was run, e.g. `16 watches, patched`.
    pub variant: String,
    pub unit: &'static str,
    pub value: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Readings(pub Vec<Reading>);

impl Readings {
    pub fn add(&mut self, case: &'static str, variant: &str, unit: &'static str, value: f64) {
        let variant = variant.to_string();
        self.0.push(Reading {
            case,
            variant,
            unit,
            value,
        });
    }

    /// Unit of a case's costs: processor time, if all of them have it.
    pub fn unit_of_cost(&self, case: &str) -> &'static str {
        let count = |unit: &str| {
            let all = self.0.iter().filter(|r| r.case == case && r.unit == unit);
            all.count()
        };
        match count(PROCESSOR) < count(CLOCK) {
            true => CLOCK,
            false => PROCESSOR,
        }
    }

    /// The median of a variant's readings.
    pub fn median(&self, case: &str, variant: &str, unit: &str) -> Option<f64> {
        let wanted = |r: &&Reading| r.case == case && r.variant == variant && r.unit == unit;
        median(self.0.iter().filter(wanted).map(|r| r.value).collect())
    }

    /// Ratio of a variant to `base`: the median of the ratios of each reading to the last one of `base`
    /// before it. They take turns, so a machine that becomes slower meanwhile slows both.
    pub fn ratio(&self, case: &str, variant: &str, base: &str, unit: &str) -> Option<f64> {
        let mut last = None;
        let mut ratios = Vec::new();
        for r in self.0.iter().filter(|r| r.case == case && r.unit == unit) {
            if r.variant == base {
                last = Some(r.value).filter(|b| *b > 0.0);
            } else if r.variant == variant {
                ratios.push(last.map(|base| r.value / base));
            }
        }
        match ratios.iter().copied().collect() {
            Some(ratios) => median(ratios),
            // Some came first.
            None => {
                let base = self.median(case, base, unit).filter(|b| *b > 0.0)?;
                Some(self.median(case, variant, unit)? / base)
            }
        }
    }

    /// One line a reading; before them, what machine it was.
    pub fn csv(&self, machine: &[(&str, String)]) -> String {
        let mut out = String::new();
        for (what, value) in machine {
            let _ = writeln!(out, "{}", field(&format!("# {what}: {value}")));
        }
        out += "case,variant,unit,value\n";
        for r in &self.0 {
            let (variant, unit) = (field(&r.variant), field(r.unit));
            let _ = writeln!(out, "{},{variant},{unit},{}", r.case, r.value);
        }
        out
    }
}

/// The middle one, or what is between the two.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    Some(match values.len() % 2 {
        1 => *values.get(middle)?,
        _ => (values.get(middle.checked_sub(1)?)? + values.get(middle)?) / 2.0,
    })
}

/// One field of a line, quoted where it must be.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"").replace('\n', " ")),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let mut r = Readings::default();
        for value in [3.0, 1.0, 2.0] {
            r.add("c", "a", "ns", value);
            r.add("c", "b", "ns", value * 2.0);
        }
        r.add("c", "even", "ns", 1.0);
        r.add("c", "even", "ns", 2.0);
        assert_eq!(r.median("c", "a", "ns"), Some(2.0));
        assert_eq!(r.median("c", "even", "ns"), Some(1.5));
        assert_eq!(r.ratio("c", "b", "a", "ns"), Some(2.0));
        assert_eq!(r.median("c", "a", "ms"), None);
        assert_eq!(r.ratio("c", "a", "none", "ns"), None);
        assert_eq!(r.ratio("c", "none", "a", "ns"), None);
    }

    #[test]
    fn ratios_are_those_of_a_turn() {
        let mut r = Readings::default();
        for (bare, watched) in [(1.0, 2.0), (3.0, 6.0), (10.0, 25.0)] {
            r.add("c", "bare", "ns", bare);
            r.add("c", "watched", "ns", watched);
        }
        assert_eq!(r.ratio("c", "watched", "bare", "ns"), Some(2.0));
        // The first has none before it: the medians.
        assert_eq!(r.ratio("c", "bare", "watched", "ns"), Some(0.5));
    }

    #[test]
    fn csv_quotes_commas() {
        let mut r = Readings::default();
        r.add("c", "16 watches, \"x\"", "ns", 0.5);
        let text = r.csv(&[("cpu", "A, B".into())]);
        let expected =
            "\"# cpu: A, B\"\ncase,variant,unit,value\nc,\"16 watches, \"\"x\"\"\",ns,0.5\n";
        assert_eq!(text, expected);
    }
}
