//! Properties of a process, from /proc. (The crate procfs has no status of a process whose name is not UTF-8, and a
//! program chooses its name.)

use crate::foreign::files;
use crate::{rights, sys};
use std::fs;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use ulpf_lib::mapping::{Mapping, mappings};

/// Fields of `/proc/PID/status`.
pub struct Status(String);

/// Signals that an instruction raises.
pub const FAULTS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

impl Status {
    /// Reads the status of a process, or of any thread by its number.
    pub fn of(pid: i32) -> io::Result<Status> {
        Status::in_folder(&format!("{pid}"))
    }
    fn in_folder(of: &str) -> io::Result<Status> {
        // Lossy: the name of a process may be any bytes.
        let text = fs::read(format!("/proc/{of}/status"))?;
        Ok(Status(String::from_utf8_lossy(&text).into_owned()))
    }
    /// Reads the status of this process.
    pub fn of_self() -> io::Result<Status> {
        Status::of(std::process::id() as i32)
    }
    /// Reads the status of a thread, if it belongs to process `pid`.
    pub fn of_thread(pid: i32, tid: i32) -> io::Result<Status> {
        Status::in_folder(&format!("{pid}/task/{tid}"))
    }
    fn field(&self, name: &str) -> Option<&str> {
        self.0
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    }
    fn number(&self, name: &str) -> Option<i32> {
        self.field(name)?.split_whitespace().next()?.parse().ok()
    }
    fn mask(&self, name: &str) -> u64 {
        self.field(name)
            .and_then(|v| u64::from_str_radix(v, 16).ok())
            .unwrap_or(0)
    }
    /// Its name: at most 15 bytes, chosen by the program.
    pub fn name(&self) -> &str {
        self.field("Name").unwrap_or("?")
    }
    /// The process that the thread belongs to.
    pub fn process(&self) -> Option<i32> {
        self.number("Tgid")
    }
    /// The parent's number; `None` if the parent is outside of our container, or the process is being reaped.
    pub fn parent(&self) -> Option<i32> {
        self.number("PPid").filter(|&p| p != 0)
    }
    /// Its tracer.
    pub fn tracer(&self) -> Option<i32> {
        self.number("TracerPid").filter(|&t| t != 0)
    }
    /// Its numbers in nested containers: ours first, its own last.
    fn names(&self) -> Vec<i32> {
        let names = self.field("NSpid").unwrap_or_default();
        names
            .split_whitespace()
            .filter_map(|n| n.parse().ok())
            .collect()
    }
    /// Its real user.
    pub fn user(&self) -> Option<u32> {
        self.number("Uid").map(|u| u as u32)
    }
    /// Whether its real, effective, saved and file-system user are all this user.
    pub fn is_of(&self, user: u32) -> bool {
        let mut users = self.field("Uid").unwrap_or("?").split_whitespace();
        users.all(|id| id.parse() == Ok(user))
    }
    /// Its state: R, S, D, T, t, Z, X.
    pub fn state(&self) -> char {
        self.field("State")
            .and_then(|s| s.chars().next())
            .unwrap_or('?')
    }
    /// Number of its voluntary context switches.
    pub fn sleeps(&self) -> Option<i32> {
        self.number("voluntary_ctxt_switches")
    }
    /// Whether it is a kernel thread: these have no memory of their own.
    pub fn is_kernel_thread(&self) -> bool {
        self.field("VmSize").is_none()
    }
    /// Whether the kernel is writing its core file.
    pub fn dumps_core(&self) -> bool {
        self.field("CoreDumping") == Some("1")
    }
    /// Number of its seccomp(2) filters; the strict mode counts as one. (Before Linux 5.9 the number is unknown, and 1
    /// is returned.)
    pub fn seccomp_filters(&self) -> i32 {
        match self.number("Seccomp") {
            Some(0) | None => 0,
            Some(_) => self.number("Seccomp_filters").unwrap_or(1).max(1),
        }
    }
    /// Whether exec gives it no rights (PR_SET_NO_NEW_PRIVS).
    pub fn no_new_privileges(&self) -> bool {
        self.field("NoNewPrivs") == Some("1")
    }
    /// Whether a signal is pending that an instruction of the thread has raised.
    pub fn has_fault(&self) -> bool {
        let faults = FAULTS.iter().fold(0, |mask, n| mask | 1u64 << (n - 1));
        self.mask("SigPnd") & !self.mask("SigBlk") & faults != 0
    }
    /// Whether SIGSTOP or job control has stopped it, or SIGSTOP is about to.
    pub fn is_stopping(&self) -> bool {
        let pending = self.mask("SigPnd") | self.mask("ShdPnd");
        self.state() == 'T' || pending >> (libc::SIGSTOP - 1) & 1 != 0
    }
    /// Whether a signal is pending that the thread does not block.
    pub fn has_deliverable_signal(&self) -> bool {
        (self.mask("SigPnd") | self.mask("ShdPnd")) & !self.mask("SigBlk") != 0
    }
}

/// The number by which a process knows itself (different from ours in a container).
pub fn own_number(pid: i32) -> Option<i32> {
    names_of(pid).ok()?.last().copied()
}

/// The numbers of a process, from ours to its own.
pub fn names_of(pid: i32) -> io::Result<Vec<i32>> {
    Ok(Status::of(pid)?.names())
}

/// The process among `pids` that is known as `number` in containers of that depth.
pub fn named(pids: &[i32], depth: usize, number: i32) -> Option<i32> {
    let name = |pid: i32| names_of(pid).ok()?.get(depth.max(1) - 1).copied();
    pids.iter().copied().find(|&pid| name(pid) == Some(number))
}

/// Rights of a process, as far as other processes can see them.
#[derive(Debug, PartialEq, Eq)]
pub struct Rights {
    /// Users: real, effective, saved, of the file system. `groups` is likewise; `others` are its supplementary groups.
    users: String,
    groups: String,
    others: String,
    permitted: u64,
    effective: u64,
    /// The user namespace in which its capabilities hold.
    namespace: Option<PathBuf>,
    /// Owner of its files in /proc: root, if it has had other rights or runs a file that may not be read.
    owner: u32,
}

impl Rights {
    /// Its present rights.
    pub fn of(pid: i32) -> io::Result<Rights> {
        let status = Status::of(pid)?;
        let text = |name| status.field(name).unwrap_or_default().to_string();
        Ok(Rights {
            users: text("Uid"),
            groups: text("Gid"),
            others: text("Groups"),
            permitted: status.mask("CapPrm"),
            effective: status.mask("CapEff"),
            namespace: fs::read_link(format!("/proc/{pid}/ns/user")).ok(),
            owner: fs::metadata(format!("/proc/{pid}"))?.uid(),
        })
    }

    /// Whether a process with these rights may inspect one with the rights `other`.
    pub fn include(&self, other: &Rights) -> bool {
        let same = |of: fn(&Rights) -> &str| of(self) == of(other);
        let more = |of: fn(&Rights) -> u64| of(other) & !of(self) != 0;
        same(|r| &r.users)
            && same(|r| &r.groups)
            && same(|r| &r.others)
            && self.owner == other.owner
            // In its own namespace a process has all capabilities, which are worth nothing here.
            && (self.namespace != other.namespace
                || !more(|r| r.permitted) && !more(|r| r.effective))
    }

    /// [`may_trace`] for a thread and a process in a user namespace; `outer` are the namespaces around it.
    fn may_trace(&self, other: &Rights, outer: &[(PathBuf, u32)]) -> bool {
        const SYS_PTRACE: u64 = 1 << 19;
        let ids = |text: &str| -> Vec<u32> {
            let words = text.split_whitespace();
            words.filter_map(|id| id.parse().ok()).collect()
        };
        // The tracer's real id must equal each id of the other.
        let one = |own: &str, other: &str| match (ids(own).first(), ids(other).get(..3)) {
            (Some(real), Some(others)) => others.iter().all(|id| id == real),
            _ => false,
        };
        let same = self.namespace == other.namespace;
        let peers = same
            && one(&self.users, &other.users)
            && one(&self.groups, &other.groups)
            && other.permitted & !self.permitted == 0;
        // The creator of a namespace has all capabilities in it.
        let user = ids(&self.users).get(1).copied();
        let capable = self.effective & SYS_PTRACE != 0;
        let around = |(space, owner): &(PathBuf, u32)| {
            Some(space) == self.namespace.as_ref() && (capable || Some(*owner) == user)
        };
        peers || same && capable || outer.iter().any(around)
    }

    /// Whether an exec has added rights to those in `before`: the effective user or group was not among the process's
    /// own, or a capability is new.
    pub fn exceed(&self, before: &Rights) -> bool {
        let ids = |text: &str| -> Vec<u32> {
            let words = text.split_whitespace();
            words.filter_map(|id| id.parse().ok()).collect()
        };
        // Real, effective, saved, of the file system. A process may assume the first three.
        let new = |now: &str, then: &str| match (ids(now).get(1), ids(then).get(..3)) {
            (Some(effective), Some(own)) => !own.contains(effective),
            _ => true,
        };
        new(&self.users, &before.users)
            || new(&self.groups, &before.groups)
            || self.permitted & !before.permitted != 0
    }
}

/// Whether the kernel lets a thread of `tracer` trace `target`, as far as credentials decide (ptrace(2), "Ptrace access
/// mode checking"). A security module may still refuse.
pub fn may_trace(tracer: i32, target: i32) -> bool {
    let Ok(its) = Rights::of(target) else {
        return false;
    };
    let outer = outer_namespaces(target);
    let threads = threads(tracer).unwrap_or_default();
    let mut rights = threads.iter().filter_map(|tid| Rights::of(*tid).ok());
    rights.any(|own| own.may_trace(&its, &outer))
}

/// The user namespaces around a process's own, innermost first, each with the owner of the namespace inside it.
fn outer_namespaces(pid: i32) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    let own = fs::File::open(format!("/proc/{pid}/ns/user")).ok();
    let mut inner = own.map(std::os::fd::OwnedFd::from);
    while let Some(space) = inner.take() {
        let (Ok(outer), Ok(owner)) = sys::outer_user_namespace(space.as_fd()) else {
            break;
        };
        let Ok(meta) = fs::metadata(format!("/proc/self/fd/{}", outer.as_raw_fd())) else {
            break;
        };
        found.push((format!("user:[{}]", meta.ino()).into(), owner));
        inner = Some(outer);
    }
    found
}

/// A 64-bit program's auxiliary vector (getauxval(3)): keys and values, with zeros at the end.
pub fn auxiliary_vector(pid: i32) -> io::Result<Vec<[u64; 2]>> {
    let vector = fs::read(format!("/proc/{pid}/auxv"))?;
    let (words, _) = vector.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    Ok(pairs
        .iter()
        .map(|pair| pair.map(u64::from_le_bytes))
        .collect())
}

/// An entry of that vector.
pub fn auxiliary(pid: i32, entry: u64) -> io::Result<Option<u64>> {
    let mut entries = auxiliary_vector(pid)?.into_iter();
    Ok(entries
        .find(|[key, _]| *key == entry)
        .map(|[_, value]| value))
}

/// Whether a process that has just called exec on a 64-bit program has gained rights over `before`. AT_SECURE says so,
/// also for a security module; the credentials are compared as well.
pub fn has_gained_privileges(pid: i32, before: &Rights) -> io::Result<bool> {
    let secure = auxiliary(pid, libc::AT_SECURE)?;
    Ok(secure != Some(0) || Rights::of(pid)?.exceed(before))
}

/// The command line of a process; empty if unknown.
pub fn command_line(pid: i32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    let words = line.split(|byte| *byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Whether the process exists and has not ended; memory is the first thing that goes.
pub fn is_alive(pid: i32) -> bool {
    Status::of(pid).is_ok_and(|s| !matches!(s.state(), 'Z' | 'X') && !s.is_kernel_thread())
}

/// Whether the kernel is writing a core file of the process.
pub fn dumps_core(pid: i32) -> bool {
    Status::of(pid).is_ok_and(|s| s.dumps_core())
}

/// The fields of stat(5) of a process (`PID`) or a thread (`PID/task/TID`) behind its name: the state is the first.
pub fn stat(of: &str) -> io::Result<Vec<String>> {
    let text = fs::read(format!("/proc/{of}/stat"))?;
    let text = String::from_utf8_lossy(&text);
    // The name may contain anything, even ')'.
    let behind = text.rsplit_once(')').map_or("", |(_, behind)| behind);
    Ok(behind.split_whitespace().map(str::to_string).collect())
}

/// Start time of the process, in ticks since boot. Together with its number it identifies one process.
///
/// # Errors
/// The process has ended, or the kernel does not give the time.
pub fn started(pid: i32) -> io::Result<u64> {
    // The 22nd field of all.
    let began = stat(&format!("{pid}"))?
        .get(19)
        .and_then(|f| f.parse().ok());
    began.ok_or_else(|| {
        let why = "the kernel does not say when the process began";
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

/// The threads of a process, in ascending order of their numbers.
pub fn threads(pid: i32) -> io::Result<Vec<i32>> {
    numbers(&format!("/proc/{pid}/task"))
}

/// Every process that we can see.
pub fn all() -> io::Result<Vec<i32>> {
    numbers("/proc")
}

fn numbers(dir: &str) -> io::Result<Vec<i32>> {
    let mut list = Vec::new();
    for entry in fs::read_dir(dir)? {
        // A listing that breaks off is an error: processes would be missed.
        let name = entry?.file_name();
        list.extend(name.to_str().and_then(|n| n.parse::<i32>().ok()));
    }
    list.sort_unstable();
    Ok(list)
}

/// Another process that runs in the same memory.
pub fn shares_memory(pid: i32) -> Option<i32> {
    all()
        .ok()?
        .into_iter()
        .find(|&other| other != pid && sys::same_memory(pid, other))
}

/// The first mapping whose name starts with `name`.
pub fn mapping(pid: i32, name: &str) -> io::Result<Option<Range<u64>>> {
    let maps = files::maps(pid)?;
    let named = |m: &Mapping| m.name.starts_with(name.as_bytes());
    Ok(mappings(&maps).find(named).map(|m| m.start..m.end))
}

/// The program that a live process runs, if it has no mapping of that name.
pub fn without_mapping(pid: i32, name: &str) -> Option<PathBuf> {
    match mapping(pid, name) {
        // An exiting process has no maps, and no program either.
        Ok(None) => executable(pid),
        _ => None,
    }
}

/// Machine code of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Bits64,
    Bits32,
    /// x32, another machine, or not an ELF file.
    Other,
}

/// Class of the program that the process runs now.
pub fn class(pid: i32) -> io::Result<Class> {
    let mut head = [0; 20];
    fs::File::open(format!("/proc/{pid}/exe"))?.read_exact(&mut head)?;
    let machine = u16::from_le_bytes([head[18], head[19]]);
    Ok(match (head[4], machine) {
        _ if &head[..4] != b"\x7fELF" => Class::Other,
        (2, object::elf::EM_X86_64) => Class::Bits64,
        (1, object::elf::EM_386) => Class::Bits32,
        _ => Class::Other,
    })
}

/// The path of its program as the kernel reports it, with ` (deleted)` appended if the file is gone.
pub fn executable(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The file that a thread of `pid` means by `path`: absolute, or relative to one of its directories.
pub fn file_of(pid: i32, dir: i32, path: &Path) -> PathBuf {
    let start = match dir {
        _ if path.is_absolute() => format!("/proc/{pid}/root"),
        libc::AT_FDCWD => format!("/proc/{pid}/cwd"),
        fd => format!("/proc/{pid}/fd/{fd}"),
    };
    if path.as_os_str().is_empty() {
        return start.into();
    }
    // The thread's own /proc/self, not ours.
    if let Ok(rest) = path.strip_prefix("/proc/self") {
        return Path::new(&format!("/proc/{pid}")).join(rest);
    }
    Path::new(&start).join(path.strip_prefix("/").unwrap_or(path))
}

/// A path of [`file_of`] as the program knows it.
pub fn own_path(file: &Path) -> String {
    let text = file.display().to_string();
    text.split_once("/root/")
        .map_or(text.clone(), |(_, path)| format!("/{path}"))
}

/// Metadata of a file that [`file_of`] named, found as the process itself finds it: its links do not lead out of its
/// root, and no file is opened.
fn look(pid: i32, file: &Path) -> io::Result<fs::Metadata> {
    let own = fs::File::from(name(pid, file)?);
    own.metadata()
}

fn name(pid: i32, file: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let named = sys::open_path;
    let root = format!("/proc/{pid}/root");
    // Only the beginning of a relative path is a link of the kernel's.
    let relative = ["cwd", "fd"].map(|link| format!("/proc/{pid}/{link}/"));
    let text = file.to_string_lossy();
    let Some(link) = relative.iter().find(|link| text.starts_with(*link)) else {
        return match file.strip_prefix(&root) {
            Ok(below) => rights::name_below(named(root.as_ref())?.as_fd(), below),
            // Its own folder in /proc, whose links belong to the kernel.
            Err(_) if text.contains("/../") => Err(io::ErrorKind::NotFound.into()),
            Err(_) => Ok(named(file)?.into()),
        };
    };
    let parts = if link.ends_with("/fd/") { 5 } else { 4 };
    let start: PathBuf = file.components().take(parts).collect();
    let rest: PathBuf = file.components().skip(parts).collect();
    if rest.as_os_str().is_empty() {
        return Ok(named(&start)?.into());
    }
    let folder = fs::read_link(&start)?;
    let below = match folder.strip_prefix(fs::read_link(&root)?) {
        Ok(below) => below.join(rest),
        Err(_) => folder.join(rest),
    };
    rights::name_below(named(root.as_ref())?.as_fd(), &below)
}

/// Device and inode of a file.
pub type FileId = (u64, u64);

/// Whether the process has mapped this file, under any name.
///
/// # Errors
/// We may not read its mappings, or it has ended.
pub fn maps_file(pid: i32, file: FileId) -> io::Result<bool> {
    let (device, inode) = file;
    let device = (libc::major(device), libc::minor(device));
    let maps = fs::File::open(format!("/proc/{pid}/maps"))?;
    let (mut maps, mut line) = (io::BufReader::new(maps), Vec::new());
    // Stops at the first match: a program may have mapped thousands of files.
    while maps.read_until(b'\n', &mut line)? > 0 {
        let mapping = Mapping::parse(line.trim_ascii_end());
        if mapping.is_some_and(|m| (m.device, m.inode) == (device, inode)) {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

fn file_id(meta: &fs::Metadata) -> FileId {
    (meta.dev(), meta.ino())
}

/// The file that the process runs.
pub fn program_file(pid: i32) -> Option<FileId> {
    let own = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some(file_id(&own))
}

/// Whether the process runs this very file.
pub fn runs(pid: i32, file: &Path) -> bool {
    let own = program_file(pid);
    own.is_some() && own == look(pid, file).ok().as_ref().map(file_id)
}

/// Whether the process runs a set-user-ID or set-group-ID program without that user or group: the kernel withholds them
/// under a tracer without privileges.
pub fn loses_privileges(pid: i32) -> bool {
    let (Ok(file), Ok(status)) = (fs::metadata(format!("/proc/{pid}/exe")), Status::of(pid)) else {
        return false;
    };
    changes_identity(&file, &status)
}

/// Whether exec of this file would change the user or group of a process with this status.
fn changes_identity(file: &fs::Metadata, status: &Status) -> bool {
    let effective = |field| {
        status
            .field(field)
            .and_then(|ids| ids.split_whitespace().nth(1)?.parse::<u32>().ok())
    };
    let setuid = file.mode() & 0o4000 != 0 && effective("Uid") != Some(file.uid());
    // Without group execution the bit means mandatory locking.
    let setgid = file.mode() & 0o2010 == 0o2010 && effective("Gid") != Some(file.gid());
    setuid || setgid
}

/// Whether exec of this file would give the process more rights.
pub fn would_gain_privileges(pid: i32, file: &Path) -> bool {
    let Ok(file) = name(pid, file).map(fs::File::from) else {
        return false;
    };
    let (Ok(meta), Ok(status)) = (file.metadata(), Status::of(pid)) else {
        return false;
    };
    if status.no_new_privileges() {
        return false;
    }
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    // File capabilities outside the bounding set are not gained.
    let more = status.mask("CapBnd") & !status.mask("CapPrm") != 0;
    changes_identity(&meta, &status) || more && sys::has_capabilities(link.as_ref())
}

/// Our number of a thread that its process knows by `number` in containers of that depth.
pub fn thread_named(pid: i32, depth: usize, number: i32) -> Option<i32> {
    let name = |tid: i32| {
        let names = Status::of_thread(pid, tid).ok()?.names();
        names.get(depth.max(1) - 1).copied()
    };
    let is_it = |tid: &i32| name(*tid) == Some(number);
    if is_it(&number) {
        return Some(number);
    }
    threads(pid).ok()?.into_iter().find(is_it)
}

/// Exit status (as wait(2) returns it) of a process that its parent has not reaped yet.
pub fn zombie_status(pid: i32) -> Option<i32> {
    let fields = stat(&format!("{pid}")).ok()?;
    (fields.first()? == "Z").then(|| fields.last()?.parse().ok())?
}

/// Whether keys of the terminal (Ctrl-C) signal this process as well as us.
pub fn gets_keys_with_us(pid: i32) -> bool {
    // State, parent, group, session, terminal, the terminal's foreground group.
    let fields = stat(&format!("{pid}")).unwrap_or_default();
    let fields = fields.iter().skip(1).take(5);
    let fields: Vec<i32> = fields.filter_map(|f| f.parse().ok()).collect();
    let own = sys::own_group();
    matches!(fields[..], [_, group, _, _, foreground] if group == own && foreground == own)
}

/// Yama's ptrace_scope; `None` without Yama.
pub fn ptrace_scope() -> Option<u32> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(user: u32, permitted: u64, namespace: &str) -> Rights {
        let ids = format!("{user}\t{user}\t{user}\t{user}");
        Rights {
            users: ids.clone(),
            groups: ids,
            others: String::new(),
            permitted,
            effective: permitted,
            namespace: Some(namespace.into()),
            owner: user,
        }
    }

    #[test]
    fn whoever_has_fewer_rights_traces_nobody() {
        let (ours, inner) = ("user:[1]", "user:[2]");
        let outer = [(PathBuf::from(ours), 1000)];
        let root = rights(0, u64::MAX, ours);
        let user = rights(1000, 0, ours);
        assert!(root.may_trace(&user, &[]) && user.may_trace(&rights(1000, 0, ours), &[]));
        assert!(!user.may_trace(&root, &[]) && !user.may_trace(&rights(1001, 0, ours), &[]));
        // One keeps a capability, and one has another user as its saved user.
        assert!(!user.may_trace(&rights(1000, 1, ours), &[]));
        let mut other = rights(1000, 0, ours);
        other.users = "1000\t1000\t0\t1000".into();
        assert!(!user.may_trace(&other, &[]));
        // All capabilities of its own namespace are worth nothing outside; the creator of the namespace has them
        // inside.
        let within = rights(1000, u64::MAX, inner);
        assert!(!within.may_trace(&user, &[]) && !within.may_trace(&root, &[]));
        assert!(user.may_trace(&within, &outer) && root.may_trace(&within, &outer));
        assert!(!rights(1001, 0, ours).may_trace(&within, &outer));
    }

    #[test]
    fn an_exec_gains_what_the_process_could_not_assume() {
        let before = rights(1000, 2, "user:[1]");
        assert!(!rights(1000, 2, "user:[1]").exceed(&before));
        assert!(!rights(1000, 0, "user:[1]").exceed(&before));
        assert!(rights(1000, 6, "user:[1]").exceed(&before));
        let mut setuid = rights(1000, 2, "user:[1]");
        setuid.users = "1000\t0\t0\t0".into();
        assert!(setuid.exceed(&before));
        // It has had this user before.
        assert!(!before.exceed(&setuid) && !setuid.exceed(&setuid));
        let mut setgid = rights(1000, 2, "user:[1]");
        setgid.groups = "1000\t5\t5\t5".into();
        assert!(setgid.exceed(&before));
    }

    #[test]
    fn paths_are_the_programs_own() {
        let file = |dir, path| file_of(7, dir, Path::new(path)).display().to_string();
        assert_eq!(file(libc::AT_FDCWD, "/bin/sh"), "/proc/7/root/bin/sh");
        assert_eq!(file(libc::AT_FDCWD, "a/b"), "/proc/7/cwd/a/b");
        assert_eq!(file(5, "b"), "/proc/7/fd/5/b");
        assert_eq!(file(5, ""), "/proc/7/fd/5");
        assert_eq!(own_path(Path::new("/proc/7/root/bin/sh")), "/bin/sh");
    }
}
