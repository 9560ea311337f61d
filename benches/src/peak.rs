//! Peak memory of a command and all its descendants.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const OFTEN: Duration = Duration::from_millis(10);

/// Runs `work`, and samples the memory of this process's descendants every ten milliseconds. Returns the largest sum in bytes.
/// Pages that several processes share count once (proportional set size).
pub fn during<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let mut most = 0;
            while !over.load(Relaxed) {
                most = most.max(now(std::process::id()));
                thread::sleep(OFTEN);
            }
            most
        });
        let done = work();
        over.store(true, Relaxed);
        (done, looker.join().unwrap_or(0))
    })
}

/// Present memory of the descendants of `top`, in bytes.
fn now(top: u32) -> u64 {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
        if let Some((pid, parent)) = pid.and_then(|pid: u32| Some((pid, parent(pid)?))) {
            parents.insert(pid, parent);
        }
    }
    let is_below = |mut pid: u32| {
        // (Numbers may be used again while they are read.)
        for _ in 0..64 {
            match parents.get(&pid) {
                Some(&parent) if parent == top => return true,
                Some(&parent) => pid = parent,
                None => return false,
            }
        }
        false
    };
    let below = parents.keys().filter(|pid| is_below(**pid));
    below.map(|pid| size(*pid)).sum()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may have blanks and brackets: state and parent.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

/// Its share of what it maps; nothing, if it has just ended.
fn size(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let pss = rollup.lines().find_map(|l| l.strip_prefix("Pss:"));
    let kib = pss.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_started_counts_as_long_as_it_runs() {
        // The shell holds 8 MiB while it waits for its child.
        let script = "x=$(head -c 8388608 /dev/zero | tr '\\0' x); sleep 0.3; echo ${#x}";
        let (said, most) = during(|| Command::new("sh").args(["-c", script]).output());
        assert_eq!(said.unwrap().stdout, b"8388608\n");
        assert!(most >= 8 << 20, "{most}");
        // (A process ID that does not exist has no children. Other tests may start children of this process meanwhile.)
        assert_eq!(now(u32::MAX), 0);
    }
}
