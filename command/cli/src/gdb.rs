//! `ulpf gdb`: the real GDB, connected to a server in this process.
//!
//! GDB, the program and the server share one terminal, each in its own process group. The program's group has the
//! terminal while the program runs, and GDB's group has it after a stop, as with GDB alone. So Ctrl-C reaches the
//! program, and the stop reaches GDB.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use ulpf_heap::options::{Asked, HeapOptions};
use ulpf_host::foreign::text::lines;
use ulpf_host::listen::socket_dir::SocketDir;
use ulpf_host::programs::{find, locate};
use ulpf_host::{foreground, sys};
use ulpf_server::options::Options;
use ulpf_server::{BackEnd, Terminal};

/// Options of GDB that take the next word as their value.
const WITH_VALUE: &[&str] = &[
    "x",
    "ex",
    "ix",
    "iex",
    "eval-command",
    "command",
    "init-command",
    "init-eval-command",
    "early-init-command",
    "early-init-eval-command",
    "eix",
    "eiex",
    "d",
    "directory",
    "cd",
    "D",
    "data-directory",
    "s",
    "symbols",
    "e",
    "exec",
    "se",
    "c",
    "core",
    "p",
    "pid",
    "b",
    "baud",
    "l",
    "i",
    "interpreter",
    "ui",
    "tty",
    // Our options.
    "placement",
    "backend",
    "allocator",
    "frames",
    "gap",
    "quarantine",
    "redzone",
    "suppressions",
];

/// Options of GDB without a value.
const WITHOUT_VALUE: &[&str] = &[
    "batch",
    "batch-silent",
    "fullname",
    "nh",
    "nx",
    "quiet",
    "readnever",
    "readnow",
    "return-child-result",
    "silent",
    "tui",
    "q",
    // Our options.
    "blame",
    "check",
    "follow-setuid",
];

/// Whether the word is an option of GDB's, or ours, and whether its value is the next word.
fn option(word: &OsStr) -> Option<bool> {
    let word = word.as_bytes();
    let name = word
        .strip_prefix(b"--")
        .or_else(|| word.strip_prefix(b"-"))?;
    let name = std::str::from_utf8(name).ok()?;
    let (name, value) = match name.split_once('=') {
        Some((name, _)) => (name, true),
        None => (name, false),
    };
    if WITH_VALUE.contains(&name) {
        return Some(!value);
    }
    WITHOUT_VALUE.contains(&name).then_some(false)
}

/// Moves options behind the program before it, where GDB takes them for its own, too (without `--args`). Options of one
/// letter (`left` is called for them) and those that GDB does not have remain the program's.
fn options_first(words: Vec<OsString>, mut left: impl FnMut(&OsStr)) -> Vec<OsString> {
    let ends = |word: &OsString| ["--args", "-args", "--"].iter().any(|end| word == end);
    let (options, program) = split(&words);
    if words.iter().take(options.len() + 1).any(ends) || program.is_empty() {
        return words;
    }
    let (mut first, mut rest) = (options.to_vec(), vec![program[0].clone()]);
    let mut behind = program[1..].iter();
    while let Some(word) = behind.next() {
        if ends(word) {
            // `PROG --args …` has GDB complain.
            rest.push(word.clone());
            rest.extend(behind.cloned());
            break;
        }
        let is_short = word.as_bytes().len() < 3;
        match option(word) {
            Some(value) if !is_short => {
                first.push(word.clone());
                if value {
                    first.extend(behind.next().cloned());
                }
            }
            Some(_) => {
                left(word);
                rest.push(word.clone());
            }
            None => rest.push(word.clone()),
        }
    }
    first.append(&mut rest);
    first
}

/// Splits the words into GDB's options and the program with its arguments.
fn split(words: &[OsString]) -> (&[OsString], &[OsString]) {
    let mut at = 0;
    while let Some(word) = words.get(at).map(|w| w.as_bytes()) {
        if word == b"--args" || word == b"--" || word == b"-args" {
            return (&words[..at], &words[at + 1..]);
        }
        let Some(name) = word.strip_prefix(b"--").or_else(|| word.strip_prefix(b"-")) else {
            break;
        };
        let takes_value = WITH_VALUE.iter().any(|o| o.as_bytes() == name);
        at += if takes_value { 2 } else { 1 };
    }
    words.split_at(at.min(words.len()))
}

/// Takes out an option that is ours, not GDB's; the last occurrence counts.
fn take<'a>(name: &str, options: Vec<&'a OsString>) -> (Option<String>, Vec<&'a OsString>) {
    let (mut value, mut rest) = (None, Vec::new());
    let mut words = options.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == name {
            // An option without a value gets an empty one, which is invalid.
            value = Some(
                words
                    .next()
                    .map_or("".into(), |w| w.to_string_lossy().into()),
            );
        } else if let Some(own) = text.strip_prefix(name).and_then(|t| t.strip_prefix('=')) {
            value = Some(own.to_string());
        } else {
            rest.push(word);
        }
    }
    (value, rest)
}

/// Takes out `--check` and its options. (Without `--check`, each of them may be an option of GDB's.)
fn check(options: Vec<&OsString>) -> Result<(Option<HeapOptions>, Vec<&OsString>), String> {
    if !options.iter().any(|word| *word == "--check") {
        return Ok((None, options));
    }
    let (mut asked, mut rest) = (Asked::default(), Vec::new());
    let mut words = options.into_iter();
    while let Some(word) = words.next() {
        let next = || Some(words.next()?.to_string_lossy().into_owned());
        if !asked
            .take(&word.to_string_lossy(), next)
            .map_err(|why| format!("{why}."))?
        {
            rest.push(word);
        }
    }
    Ok((asked.done()?, rest))
}

/// Checks that the heap of the subject can be checked (`--check`).
fn can_check(subject: &Subject, bridge: bool) -> Result<(), String> {
    match subject {
        Subject::Core => Err("A core file runs no more, so there is nothing to check.".into()),
        _ if bridge => {
            Err("The heap is checked in programs of this machine. Leave --backend out.".into())
        }
        Subject::Program(..) | Subject::Process(..) | Subject::Nothing => Ok(()),
    }
}

/// The subject to debug.
#[derive(Debug, PartialEq)]
enum Subject<'a> {
    /// The program and its arguments.
    Program(&'a OsString, &'a [OsString]),
    /// A process, and the file that it runs, if given.
    Process(i32, Option<&'a OsString>),
    /// None yet: GDB's `file` names it later.
    Nothing,
    /// A core file, which GDB opens alone.
    Core,
}

/// Takes the process out of GDB's options (`-p PID`, `--pid=PID`), or finds it after the program, as GDB does.
fn subject<'a>(
    words: &'a [OsString],
    options: Vec<&'a OsString>,
    program: &'a [OsString],
) -> Result<(Subject<'a>, Vec<&'a OsString>), String> {
    let (mut pid, mut rest) = (None, options);
    for name in ["-p", "-pid", "--pid"] {
        let (value, others) = take(name, rest);
        (pid, rest) = (value.or(pid), others);
    }
    let number = |text: &str| {
        text.parse::<i32>()
            .ok()
            .filter(|pid| *pid > 0)
            .ok_or_else(|| {
                format!("`{text}` is no number of a process. Write: ulpf gdb --pid=PID.")
            })
    };
    if let Some(pid) = pid {
        return match program {
            [] => Ok((Subject::Process(number(&pid)?, None), rest)),
            [file] => Ok((Subject::Process(number(&pid)?, Some(file)), rest)),
            _ => Err("A process that runs already gets no arguments. Write: ulpf gdb --pid=PID [PROGRAM].".into()),
        };
    }
    let names_core = |word: &&OsString| {
        let text = word.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        matches!(name, "-c" | "-core" | "--core")
    };
    if rest.iter().any(names_core) {
        return Ok((Subject::Core, rest));
    }
    let with_arguments = words.iter().any(|w| w == "--args" || w == "-args");
    match program {
        [] => Ok((Subject::Nothing, rest)),
        [file, second] if !with_arguments && !Path::new(second).exists() => {
            let subject = match number(&second.to_string_lossy()) {
                Ok(pid) => Subject::Process(pid, Some(file)),
                Err(_) => Subject::Program(file, &program[1..]),
            };
            Ok((subject, rest))
        }
        [file, args @ ..] => Ok((Subject::Program(file, args), rest)),
    }
}

pub async fn gdb(words: Vec<OsString>) -> i32 {
    let words = options_first(words, |word| {
        ulpf_host::say::message!(
            "ulpf gdb: {} is the program's argument; options of GDB go before the program.",
            word.display()
        );
    });
    match open(&words).await {
        Ok(status) => status,
        Err(why) => {
            ulpf_host::say::message!("ulpf gdb: {}", lines(&why));
            1
        }
    }
}

async fn open(words: &[OsString]) -> Result<i32, String> {
    let (options, program) = split(words);
    let (placement, rest) = take("--placement", options.iter().collect());
    let (backend, rest) = take("--backend", rest);
    let (backend, mut settings) = BackEnd::choose(placement.as_deref(), backend.as_deref(), false)?;
    let (mut blame, mut others) = (false, Vec::new());
    for word in rest {
        match word.as_bytes() {
            b"--follow-setuid" => settings.follow_setuid = true,
            b"--blame" => blame = true,
            _ => others.push(word),
        }
    }
    let rest = others;
    let (check, rest) = check(rest)?;
    let (subject, gdb_options) = subject(words, rest, program)?;
    if blame && backend.is_some() {
        return Err(
            "Last writers are recorded in programs of this machine. Leave --backend out.".into(),
        );
    }
    if check.is_some() {
        can_check(&subject, backend.is_some())?;
    }
    let gdb = find("gdb").ok_or("There is no gdb in PATH. Install it (Debian, Ubuntu: apt install gdb; Fedora: dnf install gdb).")?;
    if asks_about_gdb(&gdb_options) {
        let error = Command::new(&gdb).args(gdb_options).exec();
        return Err(format!("{} cannot be started: {error}.", gdb.display()));
    }
    if subject == Subject::Core {
        ulpf_host::say::message!(
            "ulpf gdb: a core file runs no more, so there is nothing to watch: GDB looks at it alone."
        );
        let error = Command::new(&gdb).args(gdb_options).args(program).exec();
        return Err(format!("{} cannot be started: {error}.", gdb.display()));
    }
    let path = match subject {
        Subject::Program(file, _) | Subject::Process(_, Some(file)) => Some(locate(file)?),
        Subject::Process(_, None) | Subject::Nothing | Subject::Core => None,
    };
    if let Subject::Process(pid, _) = subject {
        // GDB would only say that it has failed.
        sys::kill(pid, 0).map_err(|e| match e.raw_os_error() {
            Some(libc::ESRCH) => format!("There is no process {pid}."),
            _ => format!(
                "Process {pid} cannot be attached to: {e}. It is somebody else's: try as root."
            ),
        })?;
    }
    let dir = SocketDir::new()?;
    let socket = dir.file("gdb");
    let options = Options {
        comm: socket.clone().into(),
        multi: true,
        once: true,
        ask_arguments: Some(dir.file("arguments")),
        settings,
        check,
        blame,
        ..Options::default()
    };
    let with_stub = backend.is_none();
    let no_connection = |e| format!("The connection to GDB cannot be set up: {e}");
    let server: Pin<Box<dyn Future<Output = ()>>> = match backend {
        None => {
            let bound = ulpf_server::Bound::new(options, Terminal::Shared).await;
            Box::pin(bound.map_err(no_connection)?.serve())
        }
        Some(backend) => {
            let bound = ulpf_server::BridgeBound::new(options, backend, Terminal::Shared).await;
            Box::pin(bound.map_err(no_connection)?.serve())
        }
    };

    let mut command = Command::new(&gdb);
    // The program's files are on this machine: no need to fetch them through the protocol.
    command.args(["-iex", "set sysroot /"]);
    if with_stub {
        // By default GDB removes each breakpoint and watch at every stop and inserts it again, a packet each. That is
        // not needed here: the stub shows memory without them, and the server removes those that GDB leaves behind.
        command.args(["-iex", "set breakpoint always-inserted on"]);
    }
    // Removed with the socket.
    let plugin = ulpf_server::plugin::write(&dir.file("plugin"))
        .map_err(|e| format!("The plugin for GDB cannot be written: {e}."))?;
    command.args(["-iex", "python ulpf_gdb = True"]);
    command.arg("-iex").arg(join("source ", plugin.as_os_str()));
    let offer = format!(
        "python ulpf.arguments.offer({:?})",
        dir.file("arguments").display().to_string()
    );
    command.args(["-iex", &offer]);
    let beginning = beginning(&socket, path.as_deref(), greets(&gdb_options));
    let script = dir.file("begin");
    std::fs::write(&script, beginning.as_bytes())
        .map_err(|e| format!("{} cannot be written: {e}.", script.display()))?;
    command.arg("-ex").arg(join("source ", script.as_os_str()));
    if let Subject::Process(pid, _) = subject {
        command.arg("-ex").arg(format!("attach {pid}"));
    }
    command.args(gdb_options);
    match (subject, &path) {
        (Subject::Program(_, args), Some(path)) => command.arg("--args").arg(path).args(args),
        (_, Some(path)) => command.arg(path),
        (_, None) => &mut command,
    };

    let mut child_changed = signal(SignalKind::child()).map_err(|e| e.to_string())?;
    // The terminal sends these to GDB or the program; those that reach us are not meant for us.
    let _interrupt = signal(SignalKind::interrupt()).map_err(|e| e.to_string())?;
    let _quit = signal(SignalKind::quit()).map_err(|e| e.to_string())?;
    let mut leave = [
        signal(SignalKind::hangup()).map_err(|e| e.to_string())?,
        signal(SignalKind::terminate()).map_err(|e| e.to_string())?,
    ];
    let [hangup, terminate] = &mut leave;

    // A process group of its own. A background group that uses the terminal is stopped only if its parent is in another
    // group (ours); otherwise it gets errors.
    let own_terminal = foreground::is_ours();
    if own_terminal {
        command.process_group(0);
    }
    let child = command
        .spawn()
        .map_err(|e| format!("{} cannot be started: {e}.", gdb.display()))?;
    let pid = child.id() as i32;
    if own_terminal {
        foreground::share_with(pid);
    }
    let watch_gdb = async {
        loop {
            match sys::child_state(pid) {
                Ok(sys::ChildState::Ended(status)) => return status,
                // GDB wanted the terminal while the program had it (`continue &`), or before we gave it.
                Ok(sys::ChildState::Stopped(libc::SIGTTIN | libc::SIGTTOU)) => {
                    foreground::to_debugger();
                    let _ = sys::kill(-pid, libc::SIGCONT);
                    continue;
                }
                // Ctrl-Z: we stop with it, so that our shell notices.
                Ok(sys::ChildState::Stopped(_)) => {
                    foreground::take_back();
                    sys::stop_here();
                    foreground::share_with(pid);
                    let _ = sys::kill(-pid, libc::SIGCONT);
                    continue;
                }
                Ok(sys::ChildState::Running) => {}
                Err(_) => return 0,
            }
            child_changed.recv().await;
        }
    };
    let mut serve = server;
    tokio::pin!(watch_gdb);
    let mut served = false;
    let status = loop {
        tokio::select! {
            status = &mut watch_gdb => break status,
            _ = &mut serve, if !served => served = true,
            _ = hangup.recv() => { let _ = sys::kill(pid, libc::SIGHUP); }
            _ = terminate.recv() => { let _ = sys::kill(pid, libc::SIGTERM); }
        }
    };
    // GDB has ended; the server sees the end of the connection, and kills or releases the program.
    if !served {
        let _ = tokio::time::timeout(std::time::Duration::from_secs(10), serve).await;
    }
    foreground::take_back();
    Ok(match status & 0x7f {
        0 => (status >> 8) & 0xff,
        signal => 128 + signal,
    })
}

/// One line, so that this GDB is not mistaken for a plain one.
const GREETING: &str = "This GDB has ulpf: any number of watches of any size, exact and fast, with `watch` as ever. \
                        `help ulpf` shows what else there is.";

/// GDB's first commands. They are a script, because GDB prints a message for a connection that was typed.
fn beginning(socket: &Path, program: Option<&Path>, greets: bool) -> OsString {
    let mut script = join("target extended-remote ", socket.as_os_str());
    if let Some(program) = program {
        script.push(join("\nset remote exec-file ", program.as_os_str()));
    }
    script.push("\npython ulpf.program.follow()\npython ulpf.screen.begin()");
    if greets {
        script.push(format!("\necho {GREETING}\\n"));
    }
    script.push("\n");
    script
}

/// Whether one of these is among GDB's options.
fn has(options: &[&OsString], names: &[&str]) -> bool {
    options.iter().any(|word| {
        let word = word.to_string_lossy();
        let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
        name.is_some_and(|name| names.contains(&name.split('=').next().unwrap_or_default()))
    })
}

/// Whether a user reads GDB's greeting: not in a batch, and not a program that uses MI.
fn greets(options: &[&OsString]) -> bool {
    !has(options, &["batch", "batch-silent", "i", "interpreter"])
}

/// Whether GDB only prints information and ends.
fn asks_about_gdb(options: &[&OsString]) -> bool {
    has(options, &["v", "version", "h", "help", "configuration"])
}

fn join(head: &str, tail: &OsStr) -> OsString {
    let mut text = OsString::from(head);
    text.push(tail);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gdb_options_end_at_the_program() {
        let words: Vec<OsString> = "-q -ex run --batch -x=file prog -ex y"
            .split(' ')
            .map(OsString::from)
            .collect();
        let (options, program) = split(&words);
        assert_eq!((options.len(), program.len()), (5, 3));
        let words: Vec<OsString> = "--args prog".split(' ').map(OsString::from).collect();
        assert_eq!(split(&words).1, ["prog"]);
        let words: Vec<OsString> = ["-ex".into()].into();
        assert_eq!(split(&words).1.len(), 0);
    }

    #[test]
    fn options_behind_the_program_are_gdbs() {
        for (line, first, told) in [
            ("prog -ex run a -batch -9", "-ex run -batch prog a -9", 0),
            (
                "-nx prog --eval-command=run",
                "-nx --eval-command=run prog",
                0,
            ),
            ("prog -q -x 5 -v", "prog -q -x 5 -v", 2),
            ("--args prog -ex run", "--args prog -ex run", 0),
            ("prog a -- -ex run", "prog a -- -ex run", 0),
            ("-ex run", "-ex run", 0),
            ("prog -ex", "-ex prog", 0),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let mut left = 0;
            let moved = options_first(words, |_| left += 1);
            assert_eq!((moved.join(OsStr::new(" ")), left), (first.into(), told));
        }
    }

    #[test]
    fn a_greeting_is_for_people() {
        for (line, wanted) in [
            ("-q -nx", true),
            ("-ex batch", true),
            ("-q -batch", false),
            ("--batch", false),
            ("-i mi", false),
            ("--interpreter=mi3", false),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(greets(&words.iter().collect::<Vec<_>>()), wanted, "{line}");
        }
        let script = beginning(Path::new("/tmp/a"), Some(Path::new("/bin/true")), false);
        assert_eq!(
            script,
            "target extended-remote /tmp/a\nset remote exec-file /bin/true\npython ulpf.program.follow()\npython ulpf.screen.begin()\n"
        );
    }

    #[test]
    fn processes_and_cores() {
        let all = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        for (line, process) in [
            ("-q --pid=12 -batch", Some((12, None))),
            ("-p 12", Some((12, None))),
            ("-pid 12 prog", Some((12, Some("prog")))),
            ("prog 12", Some((12, Some("prog")))),
            ("--args prog 12", None),
            ("prog 12 13", None),
            ("prog twelve", None),
        ] {
            let words = all(line);
            let (options, program) = split(&words);
            let (subject, rest) = subject(&words, options.iter().collect(), program).unwrap();
            match (subject, process) {
                (Subject::Process(pid, file), Some((number, name))) => {
                    assert_eq!(
                        (pid, file.and_then(|f| f.to_str())),
                        (number, name),
                        "{line}"
                    );
                }
                (Subject::Program(file, _), None) => assert_eq!(file, "prog"),
                other => panic!("{line}: {other:?}"),
            }
            assert!(
                rest.iter().all(|w| !w.to_string_lossy().contains('p')),
                "{line}: {rest:?}"
            );
        }
        for line in ["-c core prog", "--core=core", "-q prog -core core"] {
            let words = all(line);
            let (options, program) = split(&words);
            let core = subject(&words, options.iter().collect(), program);
            assert_eq!(
                core.is_ok_and(|(s, _)| s == Subject::Core),
                !line.starts_with("-q"),
                "{line}"
            );
        }
        let words = all("--pid=0");
        let (options, program) = split(&words);
        assert!(subject(&words, options.iter().collect(), program).is_err());
    }

    #[test]
    fn placement_is_ours() {
        for line in ["-q --placement guard prog", "-q --placement=guard prog"] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let (options, program) = split(&words);
            let (placement, rest) = take("--placement", options.iter().collect());
            assert_eq!((placement.as_deref(), rest.len()), (Some("guard"), 1));
            assert_eq!(program, ["prog"]);
        }
    }
}
