//! Numbers that fit into a column.

/// `1234567` as `1,234,567`; from ten million on as `12.3M`.
pub fn figure(n: u64) -> String {
    if n >= 10_000_000 {
        return short(n as f64);
    }
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// At most four characters before the unit: `999`, `12.3k`, `1.20M`.
pub fn short(n: f64) -> String {
    let n = n.max(0.0);
    let (value, unit) = match n {
        n if n >= 999.5e9 => (n / 1e12, "T"),
        n if n >= 999.5e6 => (n / 1e9, "G"),
        n if n >= 999.5e3 => (n / 1e6, "M"),
        n if n >= 999.5 => (n / 1e3, "k"),
        n if n >= 10.0 || n == 0.0 => return format!("{n:.0}"),
        n => return format!("{n:.1}"),
    };
    match value {
        v if v >= 99.95 => format!("{v:.0}{unit}"),
        v if v >= 9.995 => format!("{v:.1}{unit}"),
        v => format!("{v:.2}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(figure(0), "0");
        assert_eq!(figure(1234567), "1,234,567");
        assert_eq!(figure(123), "123");
        assert_eq!(figure(12_345_678), "12.3M");
        assert_eq!(short(0.0), "0");
        assert_eq!(short(0.25), "0.2");
        assert_eq!(short(999.0), "999");
        assert_eq!(short(999.9), "1.00k");
        assert_eq!(short(12_345.0), "12.3k");
        assert_eq!(short(1_234_567.0), "1.23M");
        assert_eq!(short(999_600.0), "1.00M");
        assert_eq!(short(5e12), "5.00T");
    }
}
