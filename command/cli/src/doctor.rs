//! `ulpf doctor`: what this machine offers, what works, and what to do about the rest.
//!
//! ```text
//!   ok    kernel                Linux 6.1.0-18-amd64
//!   FAIL  syscall user dispatch Function not implemented
//!           Needed to … Use a kernel built with CONFIG_GENERIC_ENTRY (5.11 or later).
//! ```
//! Exit status 0: a program can be watched. 1: a requirement is missing. `--report` prints the same in a form for
//! issues, with the properties of the system and without names of users or machines.
#![forbid(unsafe_code)]

use std::fs;
use std::process::{Command, Stdio};
use ulpf_host::foreign::text::{Text, lines};
use ulpf_host::{process, sys};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Available.
    Ok,
    /// Not available, and a function is missing without it.
    Missing,
    /// Not available, and not used by this version.
    Note,
    /// Not available, and nothing works without it.
    Fail,
}

struct Finding {
    level: Level,
    what: &'static str,
    value: String,
    /// The meaning, and what to do.
    advice: Option<String>,
}

fn ok(what: &'static str, value: impl Into<String>) -> Finding {
    Finding {
        level: Level::Ok,
        what,
        value: value.into(),
        advice: None,
    }
}

fn lacks(
    level: Level,
    what: &'static str,
    value: impl Into<String>,
    advice: impl Into<String>,
) -> Finding {
    Finding {
        level,
        what,
        value: value.into(),
        advice: Some(advice.into()),
    }
}

#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Print what an issue needs: the findings, and which system this is (no names of users or machines)
    #[arg(long)]
    report: bool,
}

pub fn doctor(args: &DoctorArgs) -> i32 {
    if args.report {
        ulpf_host::say::outln!("ulpf {}\n\n```text", env!("CARGO_PKG_VERSION"));
        system()
            .iter()
            .for_each(|(what, value)| ulpf_host::say::outln!("{what}: {}", Text(value)));
        ulpf_host::say::outln!("");
    }
    let status = examine();
    if args.report {
        ulpf_host::say::outln!("```");
    }
    status
}

fn examine() -> i32 {
    let findings = [
        kernel(),
        processor(),
        processes(),
        security(),
        system_call(
            "syscall user dispatch",
            sys::probe::user_dispatch(),
            "The program's system calls are seen through it. Use Linux 5.11 or later; a container's seccomp filter may also be in the way.",
        ),
        system_call(
            "memfd",
            sys::probe::memfd(),
            "Watched pages move into a memory file. A container's seccomp filter may forbid memfd_create; allow it.",
        ),
        descriptors(),
        system_call(
            "ptrace",
            sys::probe::ptrace(),
            match process::ptrace_scope() {
                Some(2..) => {
                    "Programs are started under ptrace, which yama forbids to all but root (or to all): see `attaching`."
                }
                _ => {
                    "Programs are started under ptrace. In Docker: --cap-add=SYS_PTRACE, or --security-opt seccomp=unconfined."
                }
            },
        ),
        attach(),
        overcommit(),
        address_space(),
        stub(),
        trial(),
        debug_registers(),
        protection_keys(),
        device(),
        early_upcalls(
            fs::metadata("/sys/module/ulpf").is_ok(),
            fs::read_to_string("/sys/module/ulpf/parameters/early").ok(),
        ),
        debugger("gdb", "gdb", "apt install gdb"),
        lldb(),
        debugger(
            "gdbserver",
            "gdbserver",
            "apt install gdbserver (only to compare with)",
        ),
    ];
    let width = findings.iter().map(|f| f.what.len()).max().unwrap_or(0);
    for f in &findings {
        let mark = match f.level {
            Level::Ok => "ok  ",
            Level::Missing => "no  ",
            Level::Note => "-   ",
            Level::Fail => "FAIL",
        };
        ulpf_host::say::outln!("{mark}  {:width$}  {}", f.what, Text(&f.value));
        if let Some(advice) = &f.advice {
            ulpf_host::say::outln!("{:6}{:width$}  {}", "", "", lines(advice));
        }
    }
    let failed = findings.iter().filter(|f| f.level == Level::Fail).count();
    ulpf_host::say::outln!("");
    if failed == 0 {
        match ulpf_inject::backend::usable() {
            Ok(()) => ulpf_host::say::outln!(
                "Watchpoints work on this machine, through page guards and the kernel module (backend `kernel`)."
            ),
            Err(_) => ulpf_host::say::outln!(
                "Watchpoints work on this machine, through page guards and signals (backend `signal`)."
            ),
        }
        0
    } else {
        ulpf_host::say::outln!("Watchpoints do not work on this machine: see FAIL above.");
        1
    }
}

fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim()
        .to_string();
    let mut parts = release
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|p| p.parse::<u32>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let text = format!("Linux {release}");
    match version {
        (0, _) => lacks(
            Level::Fail,
            "kernel",
            text,
            "This is not Linux, or /proc is not mounted. ulpf needs both.",
        ),
        v if v < (5, 11) => lacks(
            Level::Fail,
            "kernel",
            text,
            "Linux 5.11 or later is needed.",
        ),
        _ => ok("kernel", text),
    }
}

/// Properties of the system that the findings do not contain.
fn system() -> Vec<(&'static str, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let release = read("/etc/os-release");
    let name = release
        .lines()
        .find_map(|l| l.strip_prefix("PRETTY_NAME="))
        .map_or("not said", |name| name.trim_matches('"'));
    let memory = read("/proc/meminfo");
    let total = memory.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    let containers = [
        ("/.dockerenv", "Docker"),
        ("/run/.containerenv", "Podman"),
        ("/run/systemd/container", "systemd-nspawn or another"),
    ];
    let container = containers
        .iter()
        .find(|(path, _)| fs::exists(path).unwrap_or(false));
    let library = first_line("ldd").unwrap_or_else(|| "not reported by ldd".into());
    let who = match sys::is_root() {
        true => "root",
        false => "an ordinary user",
    };
    vec![
        ("system", name.into()),
        (
            "kernel's build",
            read("/proc/sys/kernel/version").trim().into(),
        ),
        ("C library", library),
        ("memory", total.unwrap_or("not said").trim().into()),
        (
            "processors",
            read("/sys/devices/system/cpu/online").trim().into(),
        ),
        ("container", container.map_or("none seen", |c| c.1).into()),
        ("run by", who.into()),
    ]
}

/// Visibility of processes.
fn processes() -> Finding {
    const WHAT: &str = "processes";
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match hidden(&mounts) {
        None => lacks(
            Level::Fail,
            WHAT,
            "/proc is not mounted",
            "The program's memory and symbols are found there: mount -t proc proc /proc",
        ),
        Some(true) if !sys::is_root() => lacks(
            Level::Missing,
            WHAT,
            "those of other users are hidden (/proc is mounted with hidepid)",
            "Your own are watched as anywhere. For others' run ulpf as root, or be a member of the group that /proc's gid= names.",
        ),
        Some(_) => ok(WHAT, "/proc is there"),
    }
}

/// Whether /proc hides processes of other users. `None` if it is not mounted. (proc(5), proc_pid_mountinfo(5))
fn hidden(mounts: &str) -> Option<bool> {
    let proc = mounts
        .lines()
        .rfind(|l| l.split(' ').nth(4) == Some("/proc"))?;
    let options = proc.rsplit(' ').next().unwrap_or("");
    let hide = options.split(',').find_map(|o| o.strip_prefix("hidepid="));
    Some(hide.is_some_and(|how| !matches!(how, "0" | "off")))
}

/// Mechanisms that may refuse system calls; the findings below show whether they do.
fn security() -> Finding {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name));
    let mut there = Vec::new();
    if field("Seccomp:").is_some_and(|mode| mode.trim() == "2") {
        let count = field("Seccomp_filters:").map_or("", str::trim);
        there.push(format!("seccomp filters ({count})"));
    }
    if field("NoNewPrivs:").is_some_and(|on| on.trim() == "1") {
        there.push("no new privileges".into());
    }
    if read("/sys/fs/selinux/enforce").trim() == "1" {
        there.push("SELinux, enforcing".into());
    }
    let profile = read("/proc/self/attr/current");
    let profile = profile.trim_matches(['\0', '\n']);
    if !profile.is_empty() && profile != "unconfined" {
        there.push(format!("the profile {profile}"));
    }
    match there.is_empty() {
        true => ok("security", "nothing special is in force"),
        false => ok("security", format!("in force: {}", there.join(", "))),
    }
}

/// Watches a program, as `ulpf run` does.
fn trial() -> Finding {
    const WHAT: &str = "a trial";
    const PROGRAM: &str = "true";
    let Some(us) = std::env::current_exe().ok() else {
        return lacks(
            Level::Missing,
            WHAT,
            "not made",
            "ulpf does not find itself: is /proc mounted?",
        );
    };
    if Command::new(PROGRAM).status().is_err() {
        return lacks(
            Level::Note,
            WHAT,
            "not made: there is no `true` in PATH",
            "Not needed.",
        );
    }
    let made = Command::new(us)
        .args(["run", "-q", "--no-summary", "-w", "heap", PROGRAM])
        .stdin(Stdio::null())
        .output();
    match made {
        Ok(out) if out.status.success() => ok(WHAT, "`true` has run with its heap watched"),
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr);
            let first = said.lines().next().unwrap_or("without a word").to_string();
            let advice = "A program could not be watched. What is refused above is the likely cause; ulpf run -v -w heap true says more.";
            lacks(
                Level::Fail,
                WHAT,
                format!("{}: {first}", out.status),
                advice,
            )
        }
        Err(e) => lacks(Level::Missing, WHAT, "not made", e.to_string()),
    }
}

fn processor() -> Finding {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        info.lines()
            .find(|l| l.starts_with(name))
            .and_then(|l| l.split_once(": "))
            .map(|f| f.1.trim().to_string())
    };
    let name = field("model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let flags = field("flags").unwrap_or_default();
    let has: Vec<&str> = ["avx", "avx2", "avx512f", "amx_tile"]
        .into_iter()
        .filter(|f| flags.split(' ').any(|x| x == *f))
        .collect();
    ok(
        "processor",
        if has.is_empty() {
            name
        } else {
            format!("{name} ({})", has.join(", "))
        },
    )
}

fn system_call(what: &'static str, result: std::io::Result<()>, advice: &str) -> Finding {
    match result {
        Ok(()) => ok(what, "available"),
        Err(e) => lacks(
            Level::Fail,
            what,
            e.raw_os_error()
                .map_or_else(|| e.to_string(), ulpf_host::errno::errno_text),
            advice,
        ),
    }
}

/// Whether descriptors of programs can be fetched.
fn descriptors() -> Finding {
    const WHAT: &str = "pidfd_getfd";
    match sys::probe::pidfd_getfd() {
        Ok(()) => ok(WHAT, "available"),
        Err(_) => lacks(
            Level::Note,
            WHAT,
            "not available: a container's seccomp filter is likely",
            "Not needed: a program connects to ulpf instead. One in another container cannot (Docker: --cap-add=SYS_PTRACE, or attach from the host).",
        ),
    }
}

fn attach() -> Finding {
    const ALLOW: &str = "echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope";
    match process::ptrace_scope() {
        None => ok(
            "attaching",
            "allowed to processes of the same user (no yama)",
        ),
        Some(0) => ok(
            "attaching",
            "allowed to processes of the same user (ptrace_scope 0)",
        ),
        Some(n) if sys::is_root() && n < 3 => {
            ok("attaching", format!("allowed, as root (ptrace_scope {n})"))
        }
        Some(1) => lacks(
            Level::Missing,
            "attaching",
            "not allowed to running programs (yama's ptrace_scope is 1)",
            format!(
                "Starting programs works. To attach, run ulpf as root, or until the next boot: {ALLOW}"
            ),
        ),
        Some(2) => lacks(
            Level::Missing,
            "attaching",
            "only root may trace (yama's ptrace_scope is 2)",
            format!(
                "No other user can start programs under a debugger either. Run ulpf as root, or until the next boot: {ALLOW}"
            ),
        ),
        Some(n) => lacks(
            Level::Fail,
            "attaching",
            format!("ptrace is forbidden until the next boot (ptrace_scope {n})"),
            "Nothing can be started under a debugger either. Boot with another setting of kernel.yama.ptrace_scope.",
        ),
    }
}

fn overcommit() -> Finding {
    match fs::read_to_string("/proc/sys/vm/overcommit_memory")
        .unwrap_or_default()
        .trim()
    {
        "2" => lacks(
            Level::Missing,
            "overcommit",
            "off (vm.overcommit_memory is 2)",
            "Large tables are reserved and hardly used. If a program fails to start for lack of memory: sudo sysctl vm.overcommit_memory=0",
        ),
        mode => ok("overcommit", format!("on (vm.overcommit_memory is {mode})")),
    }
}

fn address_space() -> Finding {
    match sys::address_space_limit() {
        None => ok("address space", "unlimited"),
        Some(bytes) => lacks(
            Level::Missing,
            "address space",
            format!("limited to {} MiB (ulimit -v)", bytes >> 20),
            "The stub and its tables need address space of their own. If a program fails to start: ulimit -v unlimited",
        ),
    }
}

fn stub() -> Finding {
    match ulpf_inject::stub_image() {
        Ok(image) => ok("stub", format!("{} KiB", image.len / 1024)),
        Err(e) => lacks(Level::Fail, "stub", "unusable", e.to_string()),
    }
}

fn debug_registers() -> Finding {
    const WITHOUT: &str = "Not needed: every watch can live on a guarded page. A small one on a busy page would cost less in a debug register.";
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let paranoid = paranoid.trim();
    let no = |why: String, advice: &str| {
        lacks(
            Level::Note,
            "debug registers",
            format!("not available: {why}"),
            format!("{WITHOUT} {advice}"),
        )
    };
    let (free, failure) = sys::probe::debug_registers();
    let Some(e) = failure.filter(|_| free == 0) else {
        return ok(
            "debug registers",
            format!("{free} free, through perf events (kernel.perf_event_paranoid is {paranoid})"),
        );
    };
    match e.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) if paranoid.parse().is_ok_and(|n: i32| n > 2) => no(
            format!("kernel.perf_event_paranoid is {paranoid}"),
            "To have it: sudo sysctl kernel.perf_event_paranoid=2",
        ),
        Some(libc::EACCES | libc::EPERM) => no(
            format!(
                "perf_event_open is forbidden, though kernel.perf_event_paranoid is {paranoid}"
            ),
            "A container's seccomp filter is likely: Docker needs --cap-add=PERFMON, or --security-opt seccomp=unconfined.",
        ),
        Some(libc::EINVAL | libc::E2BIG) => no(
            "the kernel has no synchronous perf breakpoints".into(),
            "Linux 5.13 or later has them.",
        ),
        Some(libc::ENOSPC) => no(
            "all are in use".into(),
            "Another debugger or perf has them.",
        ),
        Some(n) => no(
            ulpf_host::errno::errno_text(n),
            "Some virtual machines have none.",
        ),
        None => no(e.to_string(), ""),
    }
}

fn protection_keys() -> Finding {
    match sys::probe::protection_key() {
        Ok(()) => ok("protection keys", "available (not used by this version)"),
        Err(_) => lacks(
            Level::Note,
            "protection keys",
            "not available",
            "Not needed.",
        ),
    }
}

fn device() -> Finding {
    match ulpf_inject::backend::usable() {
        Ok(()) => ok("/dev/ulpf", "there, and it may be used"),
        Err(why) => lacks(
            Level::Note,
            "/dev/ulpf",
            why.why().trim_start_matches("/dev/ulpf "),
            format!(
                "Not needed: signals do the same, slower. To have it: {}.",
                why.what_to_do()
            ),
        ),
    }
}

/// Whether the administrator lets the module trace page faults. `loaded`: the module is loaded; `parameter`: value of
/// its parameter.
fn early_upcalls(loaded: bool, parameter: Option<String>) -> Finding {
    const WHAT: &str = "early upcalls";
    let no = |value: &str, advice: &str| lacks(Level::Note, WHAT, value, advice);
    match parameter.as_deref().map(str::trim) {
        _ if !loaded => no("the kernel module is not loaded", "Not needed."),
        None => no(
            "not possible: this kernel cannot trace its functions",
            "Not needed: what the module catches comes the longer way.",
        ),
        Some("Y") => ok(
            WHAT,
            "on (each page fault of the machine costs 0.7 % more while a program is watched)",
        ),
        Some(_) => no(
            "off (the module's parameter `early`)",
            "Not needed. With them what the module catches costs 40 % less, and each other page fault of the machine 0.7 % more meanwhile, so it is root's to decide: echo Y | sudo tee /sys/module/ulpf/parameters/early (at each boot: \"options ulpf early=Y\" in /etc/modprobe.d/ulpf.conf)",
        ),
    }
}

fn first_line(program: &str) -> Option<String> {
    let out = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    Some(
        String::from_utf8_lossy(&out.stdout)
            .lines()
            .next()?
            .trim()
            .to_string(),
    )
}

fn debugger(what: &'static str, program: &str, install: &str) -> Finding {
    match first_line(program) {
        Some(version) => ok(what, version),
        None => lacks(
            Level::Note,
            what,
            "not installed",
            format!("Debian, Ubuntu: {install}"),
        ),
    }
}

fn lldb() -> Finding {
    let found: Vec<String> = [
        "lldb", "lldb-14", "lldb-15", "lldb-16", "lldb-17", "lldb-18", "lldb-19", "lldb-20",
    ]
    .into_iter()
    .filter_map(first_line)
    .collect();
    match found.is_empty() {
        false => ok("lldb", found.join("; ")),
        true => lacks(
            Level::Note,
            "lldb",
            "not installed",
            "Debian, Ubuntu: apt install lldb",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_hides() {
        let proc =
            |options: &str| format!("22 27 0:21 / /proc rw,relatime - proc proc rw{options}\n");
        assert_eq!(hidden(&proc("")), Some(false));
        assert_eq!(hidden(&proc(",hidepid=off")), Some(false));
        assert_eq!(hidden(&proc(",gid=5,hidepid=invisible")), Some(true));
        // The last mount is on top.
        assert_eq!(hidden(&(proc(",hidepid=2") + &proc(""))), Some(false));
        assert_eq!(hidden("27 1 254:0 / / rw - ext4 /dev/vda rw\n"), None);
    }

    #[test]
    fn the_parameter_early() {
        let said = |loaded, parameter: Option<&str>| {
            let f = early_upcalls(loaded, parameter.map(str::to_string));
            (f.level == Level::Ok, f.value, f.advice.unwrap_or_default())
        };
        assert!(said(true, Some("Y\n")).0);
        let (well, value, advice) = said(true, Some("N\n"));
        assert!(!well && value.starts_with("off"), "{value}");
        assert!(
            advice.contains("echo Y | sudo tee /sys/module/ulpf/parameters/early"),
            "{advice}"
        );
        assert!(said(true, None).1.contains("cannot trace"));
        assert!(said(false, None).1.contains("not loaded"));
    }
}
