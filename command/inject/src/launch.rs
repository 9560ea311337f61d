//! Starts a program as gdbserver does, up to its first instruction, with the stub inside.

use crate::error::{ExecError, StartError};
use crate::image::stub_image;
use crate::injected::{Injected, finish};
use crate::settings::Settings;
use crate::tracee::{Stop, Tracee};
use crate::{load, refuse};
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use ulpf_area::shared::Clocks;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::{foreground, process, sys};
use ulpf_lib::boot::BOOT_LAUNCHED;

/// The program to start, and how.
#[derive(Clone, Debug)]
pub struct Launch {
    pub program: OsString,
    /// A plain name means a file in the current folder before one in PATH, as in gdb and gdbserver.
    pub here: bool,
    pub args: Arguments,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    pub cwd: Option<PathBuf>,
    /// A command that executes its arguments (`env A=1`, `nice`), between shell and program.
    pub wrapper: Vec<OsString>,
    /// Start through `$SHELL -c "exec …"`, as gdb and gdbserver do.
    pub shell: bool,
    pub disable_randomization: bool,
    /// In its own process group.
    pub own_group: bool,
    /// Its group gets the terminal at once (as with gdbserver).
    pub foreground: bool,
    pub stdio: Stdio,
    pub settings: Settings,
}

/// The program's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// These words, passed unchanged.
    Words(Vec<OsString>),
    /// The text of GDB's `run TEXT`: the shell splits and expands it and applies redirections. Without a shell, spaces
    /// separate words, as in native GDB.
    Text(OsString),
}

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments::Words(Vec::new())
    }
}

impl Arguments {
    /// The arguments as text for a shell.
    pub fn shell_text(&self) -> OsString {
        match self {
            Arguments::Words(words) => {
                let quoted: Vec<_> = words.iter().map(|w| quote(w)).collect();
                quoted.join(OsStr::new(" "))
            }
            Arguments::Text(text) => text.clone(),
        }
    }

    fn words(&self) -> Vec<OsString> {
        match self {
            Arguments::Words(words) => words.clone(),
            Arguments::Text(text) => text
                .as_bytes()
                .split(|b| matches!(b, b' ' | b'\t' | b'\n'))
                .filter(|word| !word.is_empty())
                .map(|word| OsStr::from_bytes(word).to_owned())
                .collect(),
        }
    }
}

/// The program's standard input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// The program inherits our stdin, stdout and stderr.
    Inherit,
    /// Ours carry the protocol: stdin is /dev/null, stdout goes to stderr.
    Redirect,
    /// stdin is /dev/null, the others are these descriptors of ours.
    Given { stdout: i32, stderr: i32 },
}

impl Launch {
    /// The program with our own environment and gdbserver's defaults.
    pub fn new(program: impl Into<OsString>, args: impl IntoIterator<Item = OsString>) -> Launch {
        Launch {
            program: program.into(),
            here: true,
            args: Arguments::Words(args.into_iter().collect()),
            env: std::env::vars_os().collect(),
            cwd: None,
            wrapper: Vec::new(),
            shell: true,
            disable_randomization: true,
            own_group: true,
            foreground: true,
            stdio: Stdio::Inherit,
            settings: Settings::default(),
        }
    }

    /// The file that the program's name denotes ([`here`](Launch::here)). A file that is not executable counts only if
    /// there is no other.
    pub fn file(&self) -> Option<PathBuf> {
        let program = &self.program;
        let plain = !program.as_bytes().contains(&b'/');
        let path = std::env::var_os("PATH").filter(|_| plain);
        let folders = path.iter().flat_map(std::env::split_paths);
        let here = (self.here || !plain).then(PathBuf::new);
        let files = here.into_iter().chain(folders).map(|f| f.join(program));
        let files: Vec<PathBuf> = files.filter(|f| f.is_file()).collect();
        let may_be_executed = |f: &&PathBuf| f.metadata().is_ok_and(|m| m.mode() & 0o111 != 0);
        files
            .iter()
            .find(may_be_executed)
            .or(files.first())
            .cloned()
    }

    /// The path to execute, if the file is in the current folder; else the name, for a search in PATH.
    fn path(&self) -> OsString {
        if self.here
            && !self.program.as_bytes().contains(&b'/')
            && self.file().is_some_and(|file| file == self.program)
            && let Ok(here) = std::env::current_dir()
        {
            return here.join(&self.program).into_os_string();
        }
        self.program.clone()
    }

    fn shell() -> OsString {
        std::env::var_os("SHELL")
            .filter(|s| !s.is_empty())
            .unwrap_or_else(|| "/bin/sh".into())
    }

    /// The file of the first exec, for the message if that exec fails. Failures of later ones are reported by the shell
    /// or wrapper.
    fn first(&self) -> String {
        let program = self.program.to_string_lossy();
        if self.shell {
            let shell = Launch::shell();
            let shell = shell.to_string_lossy();
            format!(
                "{shell}, the shell that is to start {program}. SHELL names another one; --no-startup-with-shell needs none"
            )
        } else {
            match self.wrapper.first() {
                Some(wrapper) => wrapper.to_string_lossy().into_owned(),
                None => program.into_owned(),
            }
        }
    }

    /// argv of the first exec, and the number of execs up to the program.
    fn command(&self) -> (Vec<OsString>, u32) {
        let words = self.wrapper.iter().cloned().chain([self.path()]);
        let execs = 1 + u32::from(!self.wrapper.is_empty());
        if !self.shell {
            return (words.chain(self.args.words()).collect(), execs);
        }
        let mut line = OsString::from("exec");
        for word in words {
            line.push(" ");
            line.push(quote(&word));
        }
        let args = self.args.shell_text();
        if !args.is_empty() {
            line.push(" ");
            line.push(args);
        }
        (vec![Launch::shell(), "-c".into(), line], execs + 1)
    }
}

/// Quotes a word for the shell so that it stays one word and nothing in it is expanded, in gdbserver's style.
pub fn quote(word: &OsStr) -> OsString {
    const SPECIAL: &[u8] = b"\t !\"#$&*()\\|[]{}<>?`~^;'";
    if word.is_empty() {
        return "''".into();
    }
    let mut out = Vec::with_capacity(word.len() + 8);
    for &b in word.as_bytes() {
        match b {
            // A backslash before a newline would make it disappear.
            b'\n' => out.extend_from_slice(b"'\n'"),
            _ => {
                if SPECIAL.contains(&b) {
                    out.push(b'\\');
                }
                out.push(b);
            }
        }
    }
    OsStr::from_bytes(&out).to_owned()
}

/// Starts the program.
pub fn launch(spec: &Launch) -> Result<Injected, StartError> {
    let program = spec.program.to_string_lossy().into_owned();
    let cannot = |source| StartError::Fork {
        program: program.clone(),
        source,
    };
    let image = stub_image()?;
    let since = Clocks::now();
    let (mut report, child_report) = UnixStream::pair().map_err(cannot)?;
    let (pid, execs) = fork(spec, &child_report).map_err(cannot)?;
    drop(child_report);
    let leader = Tracee::adopt(pid);
    // From here on, an error path must not leave a stopped child behind.
    let result = run_to_entry(&leader, execs, &mut report, spec).and_then(|()| {
        refuse::class(pid)?;
        let mut warnings = Vec::new();
        if process::loses_privileges(pid) {
            // As under gdb and gdbserver.
            warnings.push(format!(
                "warning: {} is a set-user-ID or set-group-ID program; the kernel lets it run only with your own rights while an ordinary user debugs it. Run ulpf as root to watch it with its own.",
                refuse::program_name(pid)
            ));
        }
        let process =
            Process::open(pid).map_err(|e| StartError::step("watch over the program", e))?;
        if spec.own_group && spec.foreground {
            foreground::hand_to(pid);
        }
        let loaded = load::load(
            pid,
            &mut [leader],
            image,
            BOOT_LAUNCHED | spec.settings.boot_flags(),
            None,
        )?;
        Ok((loaded, process, warnings))
    });
    match result {
        Ok((loaded, process, warnings)) => {
            finish(process, loaded, since, true, spec.settings, warnings)
        }
        Err(error) => {
            if !matches!(
                error,
                StartError::ExitedEarly { .. } | StartError::KilledEarly { .. }
            ) {
                let _ = sys::kill(pid, libc::SIGKILL);
                let _ = Tracee::adopt(pid).wait();
                let _ = sys::try_reap(pid);
            }
            Err(error)
        }
    }
}

/// Runs the child from its first stop to the system call exit of the last exec: the program's memory is mapped, and it
/// has executed no instruction.
fn run_to_entry(
    leader: &Tracee,
    mut execs: u32,
    report: &mut UnixStream,
    spec: &Launch,
) -> Result<(), StartError> {
    let step = |e| StartError::step("run the program to its start", e);
    match leader.wait().map_err(step)? {
        Stop::Signal(libc::SIGSTOP) => {}
        stop => return Err(ended(stop, report, spec)),
    }
    leader
        .set_options(
            libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL,
        )
        .map_err(step)?;
    let mut signal = 0;
    while execs > 0 {
        leader.cont(signal).map_err(step)?;
        signal = 0;
        match leader.wait().map_err(step)? {
            Stop::Event(libc::PTRACE_EVENT_EXEC) => execs -= 1,
            Stop::Signal(s) => signal = s,
            stop @ (Stop::Exited(_) | Stop::Killed(_)) => return Err(ended(stop, report, spec)),
            _ => {}
        }
    }
    leader.cont_syscall(0).map_err(step)?;
    match leader.wait().map_err(step)? {
        Stop::Syscall => Ok(()),
        stop => Err(ended(stop, report, spec)),
    }
}

/// Added to the errno that a child reports if it may not be traced.
const NOT_TRACED: i32 = 1 << 16;

fn ended(stop: Stop, report: &mut UnixStream, spec: &Launch) -> StartError {
    match stop {
        Stop::Exited(code) => {
            let mut errno = [0; 4];
            let reported = report.read_exact(&mut errno).ok();
            let errno = reported.map(|()| i32::from_ne_bytes(errno));
            if let Some(errno) = errno.and_then(|n| n.checked_sub(NOT_TRACED))
                && errno >= 0
            {
                return StartError::NotTraced {
                    source: io::Error::from_raw_os_error(errno),
                };
            }
            let exec_error = errno.map(|errno| ExecError {
                program: match errno {
                    0.. => spec.first(),
                    _ => spec.program.to_string_lossy().into_owned(),
                },
                source: io::Error::from_raw_os_error(errno.abs()),
            });
            StartError::ExitedEarly { code, exec_error }
        }
        Stop::Killed(signal) | Stop::Signal(signal) => StartError::KilledEarly { signal },
        other => StartError::step(
            "run the program to its start",
            io::Error::other(format!("{other:?}")),
        ),
    }
}

/// Forks the child that becomes the program; it stops itself before its first exec.
fn fork(spec: &Launch, report: &UnixStream) -> io::Result<(i32, u32)> {
    let nul = |_| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "an argument or environment variable contains a NUL byte",
        )
    };
    let (command, execs) = spec.command();
    let argv: Vec<CString> = command
        .iter()
        .map(|w| CString::new(w.as_bytes()))
        .collect::<Result<_, _>>()
        .map_err(nul)?;
    let env: Vec<CString> = spec
        .env
        .iter()
        .map(|(k, v)| CString::new([k.as_bytes(), b"=", v.as_bytes()].concat()))
        .collect::<Result<_, _>>()
        .map_err(nul)?;
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect()
    };
    let (argv_pointers, env_pointers) = (pointers(&argv), pointers(&env));
    let cwd = spec
        .cwd
        .as_ref()
        .map(|d| CString::new(d.as_os_str().as_bytes()))
        .transpose()
        .map_err(nul)?;
    // SAFETY: between fork and exec the child of a multi-threaded process may only make async-signal-safe calls. All
    // memory that it needs was allocated above, and `child` only makes system calls.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: in the child; the pointer arrays end with null and outlive the call.
            let errno = unsafe { child(spec, &argv_pointers, &env_pointers, cwd.as_deref()) };
            let _ = (&mut &*report).write_all(&errno.to_ne_bytes());
            // SAFETY: ends the process at once, as it must after a failed exec.
            unsafe { libc::_exit(0o177) }
        }
        pid => Ok((pid, execs)),
    }
}

/// Runs the child up to exec; returns errno, negative if a call before exec failed.
///
/// # Safety
/// Call only in the child of a fork, with null-terminated arrays.
unsafe fn child(
    spec: &Launch,
    argv: &[*const libc::c_char],
    env: &[*const libc::c_char],
    cwd: Option<&std::ffi::CStr>,
) -> i32 {
    let exec_errno = || {
        io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL)
    };
    let errno = || -exec_errno();
    // SAFETY: system calls with valid pointers; see the caller.
    unsafe {
        // Rust's runtime ignores SIGPIPE, and we may ignore the terminal's stops (see `foreground`); the program must
        // not inherit that.
        for signal in [libc::SIGPIPE, libc::SIGTTOU, libc::SIGTTIN, libc::SIGXFSZ] {
            libc::signal(signal, libc::SIG_DFL);
        }
        if spec.own_group {
            libc::setpgid(0, 0);
        }
        let outputs = match spec.stdio {
            Stdio::Inherit => None,
            Stdio::Redirect => Some((2, 2)),
            Stdio::Given { stdout, stderr } => Some((stdout, stderr)),
        };
        if let Some((stdout, stderr)) = outputs {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
            if null < 0 || libc::dup2(null, 0) < 0 {
                return errno();
            }
            if libc::dup2(stdout, 1) < 0 || libc::dup2(stderr, 2) < 0 {
                return errno();
            }
            if null > 2 {
                libc::close(null);
            }
        }
        if cwd.is_some_and(|dir| libc::chdir(dir.as_ptr()) != 0) {
            return errno();
        }
        if spec.disable_randomization {
            let now = libc::personality(0xffff_ffff);
            // Some containers forbid it; gdbserver continues as well.
            libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong);
        }
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) < 0 {
            return NOT_TRACED - errno();
        }
        libc::raise(libc::SIGSTOP);
        libc::execvpe(argv[0], argv.as_ptr(), env.as_ptr());
        exec_errno()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(args: &[&str]) -> String {
        let mut spec = Launch::new("/bin/prog", args.iter().map(OsString::from));
        spec.shell = true;
        spec.command().0[2].to_str().unwrap().to_string()
    }

    #[test]
    fn words_stay_words() {
        assert_eq!(
            line(&["a b", "", "*", "$HOME", "q'x"]),
            r"exec /bin/prog a\ b '' \* \$HOME q\'x"
        );
        assert_eq!(line(&["two\nlines"]), "exec /bin/prog two'\n'lines");
    }

    #[test]
    fn text_is_the_shells() {
        let mut spec = Launch::new("/bin/prog", []);
        spec.args = Arguments::Text("*.c <'in put' $HOME".into());
        assert_eq!(spec.command().0[2], "exec /bin/prog *.c <'in put' $HOME");
        spec.shell = false;
        let words = ["/bin/prog", "*.c", "<'in", "put'", "$HOME"].map(OsString::from);
        assert_eq!(spec.command(), (words.into(), 1));
    }

    #[test]
    fn the_shell_and_the_wrapper_are_counted() {
        let mut spec = Launch::new("/bin/prog", []);
        assert_eq!(spec.command().1, 2);
        spec.wrapper = vec!["env".into(), "A=b c".into()];
        assert_eq!(spec.command().1, 3);
        spec.shell = false;
        let (words, execs) = spec.command();
        assert_eq!(
            (words, execs),
            (vec!["env".into(), "A=b c".into(), "/bin/prog".into()], 2)
        );
    }

    proptest::proptest! {
        /// A shell reads back exactly the words that were quoted.
        #[test]
        fn a_shell_undoes_quoting(words in proptest::collection::vec("[ -~\n\t\u{e9}]{0,12}", 1..4)) {
            let mut script = String::from("printf '%s\\0'");
            for word in &words {
                script.push(' ');
                script.push_str(quote(OsStr::new(word)).to_str().unwrap());
            }
            let out = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap().stdout;
            let expected: Vec<u8> = words.iter().flat_map(|w| [w.as_bytes(), b"\0"].concat()).collect();
            proptest::prop_assert_eq!(out, expected);
        }
    }
}
