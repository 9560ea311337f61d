//! Options of the heap check for a debugger's programs: those of `ulpf check` that have a meaning there, by their
//! names.

use super::functions::Named;
use super::suppress::Suppressions;
use std::path::Path;
use std::sync::Arc;
use ulpf_lib::command::{HeapCheck, Redzone};

/// Settings of a heap check for a debugger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapOptions {
    pub how: HeapCheck,
    /// The program does not stop for these.
    pub suppressions: Arc<Suppressions>,
    /// Functions of its allocator that have other names.
    pub allocator: Vec<Named>,
}

impl Default for HeapOptions {
    fn default() -> HeapOptions {
        HeapOptions {
            how: HeapCheck {
                stop: true,
                ..HeapCheck::default()
            },
            suppressions: Arc::default(),
            allocator: Vec::new(),
        }
    }
}

/// Names of the options, and whether a value follows.
pub const OPTIONS: [(&str, bool); 8] = [
    ("--allocator", true),
    ("--base", false),
    ("--frames", true),
    // The earlier name of --redzone.
    ("--gap", true),
    ("--no-leaks", false),
    ("--quarantine", true),
    ("--redzone", true),
    ("--suppressions", true),
];

impl HeapOptions {
    /// Sets one of [`OPTIONS`].
    ///
    /// # Errors
    /// The value is invalid; the text is for people.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let how = &mut self.how;
        match name {
            "--base" => how.base = true,
            "--no-leaks" => how.leaks = false,
            "--frames" => how.frames = number(name, value, 1, 16)? as u8,
            "--redzone" | "--gap" => {
                how.redzone = redzone(value).map_err(|why| format!("{name} {why}"))?
            }
            "--quarantine" => {
                how.quarantine = bytes(value).map_err(|why| format!("{name}: {why}"))?;
            }
            "--suppressions" => {
                Arc::make_mut(&mut self.suppressions).read(Path::new(value))?;
            }
            "--allocator" => self.allocator.extend(Named::list(value)?),
            _ => return Err(format!("{name} is no option of a check")),
        }
        Ok(())
    }
}

/// The heap check that a command line asks for: `--check` and its [`OPTIONS`].
#[derive(Debug, Default)]
pub struct Asked {
    check: bool,
    how: HeapOptions,
    /// The first of the options.
    first: Option<String>,
}

impl Asked {
    /// Takes `word` if it is one of the options. `next` returns the word after it.
    ///
    /// # Errors
    /// The option is invalid; the text is for people.
    pub fn take(
        &mut self,
        word: &str,
        next: impl FnOnce() -> Option<String>,
    ) -> Result<bool, String> {
        if word == "--check" {
            self.check = true;
            return Ok(true);
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (word, None),
        };
        let Some((_, takes)) = OPTIONS.iter().find(|(n, _)| *n == name) else {
            return Ok(false);
        };
        let value = match (takes, value) {
            (true, value) => value.or_else(next).ok_or(format!("{name} takes a value"))?,
            (false, None) => String::new(),
            (false, Some(_)) => return Err(format!("{name} takes no value")),
        };
        self.first.get_or_insert_with(|| name.into());
        self.how.set(name, &value)?;
        Ok(true)
    }

    /// The settings, or `None` without `--check`.
    ///
    /// # Errors
    /// An option of the check was given without `--check`.
    pub fn done(self) -> Result<Option<HeapOptions>, String> {
        match (self.check, self.first) {
            (true, _) => Ok(Some(self.how)),
            (false, None) => Ok(None),
            (false, Some(name)) => Err(format!("{name} goes with --check")),
        }
    }
}

/// Bytes of the redzone between blocks: `64`; `16..256` for a random number for each block. Rounded to multiples of 16.
///
/// # Errors
/// The text is invalid. The error is for people; the caller puts the option's name before it.
pub fn redzone(text: &str) -> Result<Redzone, String> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let bytes = |text: &str| text.parse().ok().filter(|n| Redzone::BYTES.contains(n));
    match (bytes(least), bytes(most)) {
        (Some(least), Some(most)) if least <= most => Ok(Redzone {
            least: least.next_multiple_of(16),
            most: most.next_multiple_of(16),
        }),
        _ => Err(format!(
            "takes a number from {} to {}, or two of them, as 16..256, not `{text}`",
            Redzone::BYTES.start(),
            Redzone::BYTES.end()
        )),
    }
}

fn number(name: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = value.parse().ok();
    number
        .filter(|n| (least..=most).contains(n))
        .ok_or_else(|| format!("{name} takes a number from {least} to {most}, not `{value}`"))
}

/// Bytes with a unit: 64M, 1G.
///
/// # Errors
/// The text is invalid; the error is for people.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        unit => return Err(format!("`{unit}` is no unit; K, M and G are")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "it takes a number of bytes, as 64M".to_string())?;
    number
        .checked_shl(shift)
        .filter(|n| n >> shift == number)
        .ok_or_else(|| "so many bytes there are not".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("64M"), Ok(64 << 20));
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("1G"), Ok(1 << 30));
        assert!(bytes("").is_err());
        assert!(bytes("12X").is_err());
        assert!(bytes("99999999999G").is_err());
    }

    #[test]
    fn options_of_a_debugger() {
        let mut o = HeapOptions::default();
        for (name, value) in [
            ("--base", ""),
            ("--no-leaks", ""),
            ("--frames", "3"),
            ("--gap", "40"),
            ("--quarantine", "2M"),
            ("--allocator", "malloc=get,free=put"),
        ] {
            o.set(name, value).unwrap();
        }
        let HeapCheck {
            frames,
            quarantine,
            redzone,
            leaks,
            stop,
            base,
            ..
        } = o.how;
        assert_eq!((frames, quarantine), (3, 2 << 20));
        assert_eq!((redzone.least, redzone.most), (48, 48));
        o.set("--gap", "16..250").unwrap();
        assert_eq!((o.how.redzone.least, o.how.redzone.most), (16, 256));
        assert_eq!((leaks, stop, base), (false, true, true));
        assert_eq!(o.allocator.len(), 2);
        for (name, value) in [
            ("--frames", "17"),
            ("--frames", ""),
            ("--gap", "8"),
            ("--gap", "64..32"),
            ("--gap", "16..8192"),
            ("--gap", "..64"),
            ("--quarantine", "much"),
            ("--suppressions", "/there/is/no/such/file"),
            ("--allocator", "get"),
            ("--gaps", "16"),
        ] {
            assert!(o.set(name, value).is_err(), "{name} {value}");
        }
    }
}
