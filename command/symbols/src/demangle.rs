//! C++ and Rust names as a programmer writes them.

use crate::meter;
use std::fmt::{self, Write};
use std::time::Instant;

/// Symbols beyond that stay as they are.
const MOST_MANGLED: usize = 64 << 10;
/// The longest readable name. A few characters can stand for endless ones, because they refer to each other.
const MOST_READABLE: usize = 64 << 10;
const STEPS_A_MICROSECOND: u64 = 100;

/// The name as a programmer writes it. Names of other languages stay: to a demangler, `f` is `float`.
pub fn demangle(name: &str) -> String {
    readable(name).unwrap_or_else(|| name.to_string())
}

fn readable(name: &str) -> Option<String> {
    let mangled = name.starts_with("_Z") || name.starts_with("_R");
    if !mangled || name.len() > MOST_MANGLED {
        return None;
    }
    // Real names take microseconds; a table of those that take much longer uses up the work that is allowed.
    if !meter::step(1) {
        return None;
    }
    let before = Instant::now();
    let mut text = Limited(String::new());
    let done = match rustc_demangle::try_demangle(name) {
        Ok(rust) => write!(text, "{rust:#}").ok(),
        Err(_) => cpp_demangle::Symbol::new(name)
            .ok()
            .and_then(|s| s.structured_demangle(&mut text, &Default::default()).ok()),
    };
    meter::step(before.elapsed().as_micros() as u64 * STEPS_A_MICROSECOND);
    done.map(|()| text.0)
}

/// Text that does not become longer than [`MOST_READABLE`].
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.0.len() + more.len() > MOST_READABLE {
            return Err(fmt::Error);
        }
        self.0.push_str(more);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
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
