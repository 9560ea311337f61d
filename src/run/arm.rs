//! How the stub is told to watch: many watches of which the same is wanted in few words (the stub's
//! `control/places.rs` reads them).

use std::fmt::Write;

/// One watch, as the stub is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Address and length; `None`: the heap.
    pub place: Option<(u64, u64)>,
    /// Kind, and what is to be done at a hit: `w log bt 4`.
    pub how: String,
    /// Which hits matter, as the stub's `ulpf filter` takes it; empty: all.
    pub filter: String,
}

impl Arm {
    /// May it stand in a list with others?
    fn is_plain(&self) -> bool {
        self.place.is_some() && self.filter.is_empty()
    }

    /// One alone.
    pub fn command(&self) -> String {
        let Arm { how, filter, .. } = self;
        match self.place {
            None => format!("ulpf watch heap {how}{filter};"),
            Some((addr, len)) => format!("ulpf watch {addr:#x} {len} {how}{filter};"),
        }
    }
}

/// About how long a command may become, in bytes.
const ENOUGH: usize = 16 << 10;

/// A command, and how many watches it asks for.
pub fn commands(arms: &[&Arm]) -> impl Iterator<Item = (String, usize)> {
    let mut rest = arms;
    std::iter::from_fn(move || {
        let (first, others) = rest.split_first()?;
        let mut text = String::new();
        let mut taken = 0;
        if !first.is_plain() {
            text = first.command();
            taken = 1;
            for arm in others.iter().take_while(|a| !a.is_plain()) {
                if text.len() >= ENOUGH {
                    break;
                }
                text += &arm.command();
                taken += 1;
            }
        } else {
            let _ = write!(text, "ulpf watches {} at", first.how);
            while text.len() < ENOUGH
                && let Some(n) = stretch(&rest[taken..], &first.how)
            {
                put(&mut text, &rest[taken..taken + n]);
                taken += n;
            }
        }
        rest = &rest[taken..];
        Some((text, taken))
    })
}

/// How many from the first on make one place: of the same length, and as far from each other.
fn stretch(arms: &[&Arm], how: &str) -> Option<usize> {
    let of = |n: usize| arms.get(n).filter(|a| a.is_plain() && a.how == how)?.place;
    let (first, len) = of(0)?;
    let Some(stride) = of(1).and_then(|second| second.0.checked_sub(first)) else {
        return Some(1);
    };
    let fits = |n: &usize| {
        of(*n).map(|a| (a.0.wrapping_sub(first), a.1)) == Some((stride * *n as u64, len))
    };
    let n = 1 + (1..arms.len()).take_while(fits).count();
    // Two of them take as many words alone.
    Some(if n > 2 { n } else { 1 })
}

fn put(text: &mut String, arms: &[&Arm]) {
    let Some((addr, len)) = arms.first().and_then(|a| a.place) else {
        return;
    };
    let _ = write!(text, " {addr:#x}:{len}");
    if let Some((second, _)) = arms.get(1).and_then(|a| a.place) {
        let _ = write!(text, "*{}+{}", arms.len(), second - addr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(addr: u64, len: u64, how: &str) -> Arm {
        Arm {
            place: Some((addr, len)),
            how: how.into(),
            filter: String::new(),
        }
    }

    fn told(arms: &[Arm]) -> Vec<(String, usize)> {
        commands(&arms.iter().collect::<Vec<_>>()).collect()
    }

    #[test]
    fn what_is_alike_goes_together() {
        let arms = [
            arm(0x10, 8, "w"),
            arm(0x20, 8, "w"),
            arm(0x30, 8, "w"),
            arm(0x38, 4, "w"),
            arm(0x40, 8, "w log"),
            arm(0x30, 8, "w log"),
        ];
        let expected = [
            ("ulpf watches w at 0x10:8*3+16 0x38:4".to_string(), 4),
            ("ulpf watches w log at 0x40:8 0x30:8".to_string(), 2),
        ];
        assert_eq!(told(&arms), expected);
    }

    #[test]
    fn what_is_not_goes_alone() {
        let heap = Arm {
            place: None,
            how: "w".into(),
            filter: String::new(),
        };
        let filtered = Arm {
            filter: " changed".into(),
            ..arm(0x10, 8, "w")
        };
        let expected = [
            (
                "ulpf watch heap w;ulpf watch 0x10 8 w changed;".to_string(),
                2,
            ),
            ("ulpf watches w at 0x20:1".to_string(), 1),
        ];
        assert_eq!(told(&[heap, filtered, arm(0x20, 1, "w")]), expected);
        assert!(told(&[]).is_empty());
    }

    #[test]
    fn commands_have_bounds() {
        let scattered: Vec<Arm> = (0..5_000u64).map(|n| arm(n * n * 64, 8, "w")).collect();
        let told = told(&scattered);
        assert!(told.len() > 1 && told.iter().all(|c| c.0.len() < ENOUGH + 100));
        assert_eq!(told.iter().map(|c| c.1).sum::<usize>(), scattered.len());
    }

    /// The same places twice: they stand where they stood, not as a stretch with no stride.
    #[test]
    fn doubles() {
        let arms = [arm(0x10, 8, "w"), arm(0x10, 8, "w"), arm(0x10, 8, "w")];
        assert_eq!(
            told(&arms),
            [("ulpf watches w at 0x10:8*3+0".to_string(), 3)]
        );
    }
}
