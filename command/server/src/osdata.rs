//! `qXfer:osdata`: system information for GDB's `info os`. Tables and columns are gdbserver's. The texts are the kernel's
//! own, so no crate reads them first.
#![forbid(unsafe_code)]

use super::packets::PACKET_SIZE;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::time::{Duration, SystemTime};
use ulpf_host::foreign::text::shown;
use ulpf_host::peer;
use ulpf_host::process::{self, Status};
use ulpf_rsp::xfer::{Xfer, xml_text};

/// The current table. It is kept whole while the debugger reads it in pieces.
#[derive(Default)]
pub struct OsData {
    kind: Vec<u8>,
    text: Vec<u8>,
}

type Row = Vec<(&'static str, String)>;

/// Name, title, description, and the function that makes the rows.
type Table = (&'static str, &'static str, &'static str, fn() -> Vec<Row>);

const TABLES: &[Table] = &[
    (
        "cpus",
        "CPUs",
        "Listing of all cpus/cores on the system",
        cpus,
    ),
    (
        "files",
        "File descriptors",
        "Listing of all file descriptors",
        files,
    ),
    (
        "modules",
        "Kernel modules",
        "Listing of all loaded kernel modules",
        modules,
    ),
    (
        "msg",
        "Message queues",
        "Listing of all message queues",
        message_queues,
    ),
    (
        "processes",
        "Processes",
        "Listing of all processes",
        processes,
    ),
    (
        "procgroups",
        "Process groups",
        "Listing of all process groups",
        groups,
    ),
    (
        "semaphores",
        "Semaphores",
        "Listing of all semaphores",
        semaphores,
    ),
    (
        "shm",
        "Shared-memory regions",
        "Listing of all shared-memory regions",
        shared_memory,
    ),
    (
        "sockets",
        "Internet-domain sockets",
        "Listing of all internet-domain sockets",
        sockets,
    ),
    ("threads", "Threads", "Listing of all threads", threads),
];

impl OsData {
    /// Answers `qXfer:osdata:read:KIND:OFFSET,LENGTH`. An empty KIND lists the tables.
    pub fn answer(&mut self, packet: &[u8]) -> Vec<u8> {
        let Some(request) = Xfer::parse(packet) else {
            return b"E01".into();
        };
        if request.offset == 0 || self.kind != request.annex {
            self.kind = request.annex.into();
            self.text = table(request.annex);
        }
        let piece = request.piece(&self.text, PACKET_SIZE);
        piece.unwrap_or_else(|| b"E01".into())
    }
}

/// A table as XML, or the empty text for an unknown kind.
fn table(kind: &[u8]) -> Vec<u8> {
    let (name, rows) = if kind.is_empty() {
        let of = |(name, title, what, _): &Table| -> Row {
            vec![
                ("Type", (*name).into()),
                ("Description", (*what).into()),
                ("Title", (*title).into()),
            ]
        };
        ("types", TABLES.iter().map(of).collect())
    } else {
        match TABLES.iter().find(|t| t.0.as_bytes() == kind) {
            Some((name, _, _, rows)) => (*name, rows()),
            None => return Vec::new(),
        }
    };
    let mut x = format!(
        "<?xml version=\"1.0\"?>\n<!DOCTYPE target SYSTEM \"osdata.dtd\">\n<osdata type=\"{name}\">\n"
    );
    for row in rows {
        x.push_str("<item>");
        for (column, value) in row {
            // Writing to a String does not fail.
            let _ = write!(
                x,
                "<column name=\"{column}\">{}</column>",
                xml_text(&shown(&value))
            );
        }
        x.push_str("</item>\n");
    }
    x.push_str("</osdata>\n");
    x.into_bytes()
}

/// A file of /proc, or the empty text if it cannot be read or its process has gone.
fn read(path: &str) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn all() -> Vec<i32> {
    process::all().unwrap_or_default()
}

/// Names by number, from a file in the format of passwd(5) or group(5).
fn names(path: &str) -> BTreeMap<u32, String> {
    let lines = read(path);
    let one = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_string();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    lines.lines().filter_map(one).collect()
}

fn named(names: &BTreeMap<u32, String>, number: u32) -> String {
    names
        .get(&number)
        .cloned()
        .unwrap_or_else(|| number.to_string())
}

fn command_name(pid: i32) -> String {
    read(&format!("/proc/{pid}/comm"))
        .trim_end_matches('\n')
        .to_string()
}

/// The words of a process's command line; for a kernel thread, its name in brackets.
fn command_line(pid: i32) -> String {
    match &process::command_line(pid).join(" ")[..] {
        "" => format!("[{}]", command_name(pid)),
        words => words.trim_end().into(),
    }
}

fn thread_ids(pid: i32) -> Vec<i32> {
    process::threads(pid).unwrap_or_default()
}

fn core(pid: i32, tid: i32) -> String {
    const PROCESSOR: usize = 36;
    let fields = process::stat(&format!("{pid}/task/{tid}")).unwrap_or_default();
    fields.get(PROCESSOR).cloned().unwrap_or_default()
}

fn processes() -> Vec<Row> {
    let users = names("/etc/passwd");
    let row = |pid: i32| {
        let user = Status::of(pid).ok()?.user()?;
        let cores: BTreeSet<u32> = thread_ids(pid)
            .iter()
            .filter_map(|tid| core(pid, *tid).parse().ok())
            .collect();
        let cores: Vec<String> = cores.iter().map(u32::to_string).collect();
        Some(vec![
            ("pid", pid.to_string()),
            ("user", named(&users, user)),
            ("command", command_line(pid)),
            ("cores", cores.join(",")),
        ])
    };
    all().into_iter().filter_map(row).collect()
}

fn groups() -> Vec<Row> {
    const GROUP: usize = 2;
    let mut members: Vec<(i32, i32)> = all()
        .into_iter()
        .filter_map(|pid| {
            Some((
                process::stat(&format!("{pid}"))
                    .ok()?
                    .get(GROUP)?
                    .parse()
                    .ok()?,
                pid,
            ))
        })
        .collect();
    // The leader is the first of its group.
    members.sort_by_key(|(group, pid)| (*group, pid != group, *pid));
    let row = |(group, pid): (i32, i32)| {
        vec![
            ("pgid", group.to_string()),
            ("leader command", command_name(group)),
            ("pid", pid.to_string()),
            ("command line", command_line(pid)),
        ]
    };
    members.into_iter().map(row).collect()
}

fn threads() -> Vec<Row> {
    let of = |pid: i32| {
        let row = move |tid: i32| {
            vec![
                ("pid", pid.to_string()),
                ("command", command_name(pid)),
                ("tid", tid.to_string()),
                ("core", core(pid, tid)),
            ]
        };
        thread_ids(pid).into_iter().map(row)
    };
    all().into_iter().flat_map(of).collect()
}

fn files() -> Vec<Row> {
    let of = |pid: i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut open: Vec<_> = open
            .filter_map(|entry| {
                let number: u32 = entry.file_name().to_str()?.parse().ok()?;
                Some((number, fs::read_link(entry.path()).ok()?))
            })
            .collect();
        open.sort();
        let name = command_name(pid);
        let row = move |(number, path): (u32, std::path::PathBuf)| {
            vec![
                ("pid", pid.to_string()),
                ("command", name.clone()),
                ("file descriptor", number.to_string()),
                ("name", path.to_string_lossy().into_owned()),
            ]
        };
        open.into_iter().map(row)
    };
    all().into_iter().flat_map(of).collect()
}

/// One row for each processor. GDB requires the same columns in each row.
fn cpus() -> Vec<Row> {
    const SHOWN: &[&str] = &[
        "processor",
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "cpu MHz",
        "cache size",
        "physical id",
        "core id",
        "cpu cores",
    ];
    let text = read("/proc/cpuinfo");
    let row = |one: &str| -> Row {
        let value = |name: &str| {
            let mut lines = one.lines().filter_map(|line| line.split_once(':'));
            lines
                .find(|(key, _)| key.trim() == name)
                .map_or("", |(_, value)| value.trim())
                .to_string()
        };
        SHOWN.iter().map(|name| (*name, value(name))).collect()
    };
    text.split("\n\n")
        .filter(|one| !one.trim().is_empty())
        .map(row)
        .collect()
}

fn modules() -> Vec<Row> {
    let text = read("/proc/modules");
    let row = |line: &str| -> Option<Row> {
        let mut fields = line.split_whitespace().map(str::to_string);
        let mut next = |column| Some((column, fields.next()?));
        Some(vec![
            next("name")?,
            next("size")?,
            next("num uses")?,
            next("dependencies")?,
            next("status")?,
            next("address")?,
        ])
    };
    text.lines().filter_map(row).collect()
}

/// The rows of a table of /proc/sysvipc, by column name.
fn ipc(table: &str) -> Vec<BTreeMap<String, u64>> {
    let text = read(&format!("/proc/sysvipc/{table}"));
    let mut lines = text.lines();
    let columns: Vec<String> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_string)
        .collect();
    let number = |(name, value): (&String, &str)| -> Option<(String, u64)> {
        // Keys may be negative.
        let value = value
            .parse::<i64>()
            .map(|n| n as u64)
            .or_else(|_| value.parse());
        Some((name.clone(), value.ok()?))
    };
    lines
        .map(|line| {
            columns
                .iter()
                .zip(line.split_whitespace())
                .filter_map(number)
                .collect()
        })
        .collect()
}

/// Makes rows of such a table. Each column is (title, field, format).
fn ipc_rows(table: &str, columns: &[(&'static str, &'static str, Shown)]) -> Vec<Row> {
    let (users, groups) = (names("/etc/passwd"), names("/etc/group"));
    let row = |fields: BTreeMap<String, u64>| -> Row {
        let value = |(column, field, how): &(&'static str, &'static str, Shown)| {
            let n = fields.get(*field).copied().unwrap_or(0);
            let text = match how {
                // For permissions, too: the kernel prints them in octal.
                Shown::Number => (n as i64).to_string(),
                Shown::User => named(&users, n as u32),
                Shown::Group => named(&groups, n as u32),
                Shown::Command => command_name(n as i32),
                Shown::Time => date(n),
            };
            (*column, text)
        };
        columns.iter().map(value).collect()
    };
    ipc(table).into_iter().map(row).collect()
}

#[derive(Clone, Copy)]
enum Shown {
    Number,
    User,
    Group,
    Command,
    Time,
}

fn shared_memory() -> Vec<Row> {
    use Shown::*;
    ipc_rows(
        "shm",
        &[
            ("key", "key", Number),
            ("shmid", "shmid", Number),
            ("perms", "perms", Number),
            ("size", "size", Number),
            ("creator command", "cpid", Command),
            ("last op. command", "lpid", Command),
            ("num attached", "nattch", Number),
            ("user", "uid", User),
            ("group", "gid", Group),
            ("creator user", "cuid", User),
            ("creator group", "cgid", Group),
            ("last shmat() time", "atime", Time),
            ("last shmdt() time", "dtime", Time),
            ("last shmctl() time", "ctime", Time),
        ],
    )
}

fn semaphores() -> Vec<Row> {
    use Shown::*;
    ipc_rows(
        "sem",
        &[
            ("key", "key", Number),
            ("semid", "semid", Number),
            ("perms", "perms", Number),
            ("num semaphores", "nsems", Number),
            ("user", "uid", User),
            ("group", "gid", Group),
            ("creator user", "cuid", User),
            ("creator group", "cgid", Group),
            ("last semop() time", "otime", Time),
            ("last semctl() time", "ctime", Time),
        ],
    )
}

fn message_queues() -> Vec<Row> {
    use Shown::*;
    ipc_rows(
        "msg",
        &[
            ("key", "key", Number),
            ("msqid", "msqid", Number),
            ("perms", "perms", Number),
            ("num used bytes", "cbytes", Number),
            ("num messages", "qnum", Number),
            ("last msgsnd() command", "lspid", Command),
            ("last msgrcv() command", "lrpid", Command),
            ("user", "uid", User),
            ("group", "gid", Group),
            ("creator user", "cuid", User),
            ("creator group", "cgid", Group),
            ("last msgsnd() time", "stime", Time),
            ("last msgrcv() time", "rtime", Time),
            ("last msgctl() time", "ctime", Time),
        ],
    )
}

/// Seconds since 1970 as a date in UTC, or the empty text for 0 (days to a date: H. Hinnant, "chrono-compatible
/// low-level date algorithms").
fn date(seconds: u64) -> String {
    if seconds == 0
        || SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_secs(seconds))
            .is_none()
    {
        return String::new();
    }
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let (day, month) = (
        day_of_year - (153 * m + 2) / 5 + 1,
        if m < 10 { m + 3 } else { m - 9 },
    );
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

fn sockets() -> Vec<Row> {
    const STATES: [&str; 13] = [
        "",
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
        "NEW_SYN_RECV",
    ];
    let users = names("/etc/passwd");
    let mut rows = Vec::new();
    for (file, family, protocol) in [
        ("tcp", "INET", "STREAM"),
        ("udp", "INET", "DGRAM"),
        ("tcp6", "INET6", "STREAM"),
        ("udp6", "INET6", "DGRAM"),
    ] {
        for line in read(&format!("/proc/net/{file}")).lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let place = |at: usize| fields.get(at).and_then(|text| peer::address(text));
            let (Some(local), Some(remote)) = (place(1), place(2)) else {
                continue;
            };
            let state = fields
                .get(3)
                .and_then(|n| usize::from_str_radix(n, 16).ok());
            let user = fields.get(7).and_then(|n| n.parse().ok()).unwrap_or(0);
            rows.push(vec![
                ("local address", local.0.to_string()),
                ("local port", local.1.to_string()),
                ("remote address", remote.0.to_string()),
                ("remote port", remote.1.to_string()),
                (
                    "state",
                    state
                        .and_then(|n| STATES.get(n))
                        .copied()
                        .unwrap_or("")
                        .into(),
                ),
                ("user", named(&users, user)),
                ("family", family.into()),
                ("protocol", protocol.into()),
            ]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_700_000_000), "2023-11-14 22:13:20 UTC");
    }

    #[test]
    fn a_table_comes_in_pieces() {
        let mut data = OsData::default();
        let (mut text, mut offset) = (Vec::new(), 0);
        loop {
            let reply =
                data.answer(format!("qXfer:osdata:read:processes:{offset:x},40").as_bytes());
            let part = ulpf_rsp::unescape(&reply[1..]).unwrap();
            offset += part.len();
            text.extend(part);
            if reply[0] == b'l' {
                break;
            }
        }
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(&format!(
            "<column name=\"pid\">{}</column>",
            std::process::id()
        )));
        assert!(text.ends_with("</osdata>\n"));
        assert_eq!(data.answer(b"qXfer:osdata:read:nothing:0,1000"), b"l");
    }
}
