//! Description of the machine that the readings were taken on.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Name and value, for the CSV file and the page.
pub fn describe() -> Vec<(&'static str, String)> {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, model)| model);
    let processors = info.lines().filter(|l| l.starts_with("processor")).count();
    let read = |path| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_string()
    };
    let mut all = vec![
        ("processor", format!("{model}, {processors} of them")),
        (
            "kernel",
            format!("Linux {}", release(&read("/proc/sys/kernel/osrelease"))),
        ),
        ("ulpf", env!("CARGO_PKG_VERSION").to_string()),
    ];
    for (name, program) in [
        ("cc", "cc"),
        ("gdb", "gdb"),
        ("gdbserver", "gdbserver"),
        ("valgrind", "valgrind"),
        ("redis", "redis-server"),
        ("sqlite3", "sqlite3"),
        ("python3", "/usr/bin/python3"),
    ] {
        all.push((
            name,
            version(program).unwrap_or_else(|| "not installed".into()),
        ));
    }
    all
}

/// The kernel release without its local suffix.
fn release(text: &str) -> &str {
    text.split('-').next().unwrap_or(text)
}

/// The first word with a dot in it that begins with a digit.
fn version(program: &str) -> Option<String> {
    let said = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let is_version = |w: &&str| w.contains('.') && w.starts_with(|c: char| c.is_ascii_digit());
    let words = || {
        text.split([' ', '\n', '-', '=', '(', ')'])
            .map(|w| w.trim_start_matches('v'))
    };
    words().find(is_version).map(str::to_string)
}

/// Is there such a program?
pub fn find(program: &str) -> Option<std::path::PathBuf> {
    if program.contains('/') {
        return Path::new(program).is_file().then(|| program.into());
    }
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(program));
    found.find(|p| p.is_file())
}
