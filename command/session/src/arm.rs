//! Encodes watches as commands to the stub; many similar watches become one short command
//! (`ulpf_lib::command::Command::Watches`). [`crate::armed`] reads the answers.

use ulpf_lib::command::{Arm, Command, How, Place, What};
use ulpf_lib::filter::Filter;
use ulpf_lib::{TargetAddr, WatchRange};
use ulpf_symbols::{Problem, Watched};

/// Approximate limit of a command, in bytes.
const ENOUGH: usize = 16 << 10;

/// The request to the stub for a resolved watch.
pub fn of(watched: &Watched, how: How) -> Result<Arm, Problem> {
    let what = match &watched.path {
        _ if watched.heap => What::Heap,
        Some(path) => What::Along(path.clone(), watched.len),
        None => match WatchRange::new(TargetAddr(watched.addr), watched.len) {
            Some(range) => What::Range(range),
            None => {
                return Err(Problem::new(
                    format!("cannot watch `{}`", watched.spec),
                    "the length is zero or the range wraps around the end of the address space",
                    "watch fewer bytes",
                ));
            }
        },
    };
    Ok(Arm {
        what,
        kind: watched.kind,
        how: How {
            freeze: watched.freeze,
            ..how
        },
        filter: watched.filter.clone(),
    })
}

/// Whether it may share a command with others.
fn is_plain(arm: &Arm) -> bool {
    arm.what.range().is_some() && arm.filter == Filter::default() && !arm.how.freeze
}

/// Command texts, each with its number of watches.
pub fn commands(arms: &[&Arm]) -> impl Iterator<Item = (String, usize)> {
    let mut rest = arms;
    std::iter::from_fn(move || {
        let (first, others) = rest.split_first()?;
        let (text, taken) = if !is_plain(first) {
            let (mut text, mut taken) = (alone(first), 1);
            for arm in others.iter().take_while(|a| !is_plain(a)) {
                if text.len() >= ENOUGH {
                    break;
                }
                text += &alone(arm);
                taken += 1;
            }
            (text, taken)
        } else {
            let (mut places, mut long, mut taken) = (vec![], 0, 0);
            while long < ENOUGH
                && let Some((place, n)) = stretch(&rest[taken..], first)
            {
                long += place.to_string().len() + 1;
                places.push(Ok(place));
                taken += n;
            }
            let (kind, how) = (first.kind, first.how);
            let command = Command::Watches { kind, how, places };
            (command.to_string(), taken)
        };
        rest = &rest[taken..];
        Some((text, taken))
    })
}

fn alone(arm: &Arm) -> String {
    format!("{};", Command::Watch(arm.clone()))
}

/// The leading watches with the same length and equal distances, as one place, and their number.
fn stretch(arms: &[&Arm], like: &Arm) -> Option<(Place, usize)> {
    let of = |n: usize| {
        let arm = arms.get(n).filter(|a| is_plain(a))?;
        let same = (arm.kind, arm.how) == (like.kind, like.how);
        arm.what.range().filter(|_| same)
    };
    let WatchRange { start, len } = of(0)?;
    let one = Place {
        start: start.0,
        len,
        count: 1,
        stride: 0,
    };
    let second = of(1).and_then(|second| second.start.0.checked_sub(start.0));
    let Some(stride) = second else {
        return Some((one, 1));
    };
    let fits = |n: &usize| {
        of(*n).map(|r| (r.start.0.wrapping_sub(start.0), r.len)) == Some((stride * *n as u64, len))
    };
    let n = 1 + (1..arms.len()).take_while(fits).count();
    // Two watches take as many words alone.
    if n <= 2 {
        return Some((one, 1));
    }
    let count = n as u64;
    let many = Place {
        count,
        stride,
        ..one
    };
    Some((many, n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(addr: u64, len: u64, how: &str) -> Arm {
        match Command::parse(&format!("ulpf watch {addr:#x} {len} {how}")) {
            Ok(Command::Watch(arm)) => arm,
            other => panic!("{other:?}"),
        }
    }

    fn commands_of(arms: &[Arm]) -> Vec<(String, usize)> {
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
        assert_eq!(commands_of(&arms), expected);
    }

    #[test]
    fn what_is_not_goes_alone() {
        let heap = Arm {
            what: What::Heap,
            ..arm(0x10, 8, "w")
        };
        let filtered = arm(0x10, 8, "w changed");
        let expected = [
            (
                "ulpf watch heap w;ulpf watch 0x10 8 w changed;".to_string(),
                2,
            ),
            ("ulpf watches w at 0x20:1".to_string(), 1),
        ];
        assert_eq!(commands_of(&[heap, filtered, arm(0x20, 1, "w")]), expected);
        assert!(commands_of(&[]).is_empty());
    }

    #[test]
    fn commands_have_bounds() {
        let scattered: Vec<Arm> = (0..5_000u64).map(|n| arm(n * n * 64, 8, "w")).collect();
        let lines = commands_of(&scattered);
        assert!(lines.len() > 1 && lines.iter().all(|c| c.0.len() < ENOUGH + 100));
        assert_eq!(lines.iter().map(|c| c.1).sum::<usize>(), scattered.len());
    }

    /// Equal places stay apart; they do not become a place with stride 0.
    #[test]
    fn doubles() {
        let arms = [arm(0x10, 8, "w"), arm(0x10, 8, "w"), arm(0x10, 8, "w")];
        assert_eq!(
            commands_of(&arms),
            [("ulpf watches w at 0x10:8*3+0".to_string(), 3)]
        );
    }
}
