//! gdbserver's command line.
//!
//! Parsed by hand: options end at COMM, the words after PROG belong to the program, and error messages are gdbserver's.
//! No general parser does this.
#![forbid(unsafe_code)]

use super::bridge::backend::BackEnd;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use ulpf_heap::options::{Asked, HeapOptions};
use ulpf_inject::backend::Backend;
use ulpf_inject::placement::Placement;
use ulpf_inject::settings::Settings;

/// The text of `--help`.
pub const USAGE: &str = "\
Usage:\tulpf server [OPTIONS] COMM PROG [ARGS ...]
\tulpf server [OPTIONS] --attach COMM PID
\tulpf server [OPTIONS] --multi COMM

COMM may either be HOST:PORT to listen for a TCP connection, the path of a
unix socket to listen on, a character device (a serial line, a port of
virtio-serial), or '-' or 'stdio' to use stdin/stdout of the server.
:PORT listens on this machine only (127.0.0.1); write 0.0.0.0:PORT to let
other machines in, all of whose users can then run programs as you. Port 0
picks a free one.
PROG is the executable program.  ARGS are arguments passed to inferior.
PID is the process ID to attach to, when --attach is specified; it may also
follow it directly (--attach PID COMM), or come last (COMM --attach PID).

Operating modes:

  --attach              Attach to running process PID.
  --multi               Start server without a specific program, and
                        only quit when explicitly commanded.
  --once                Exit after the first connection has closed.
  --help                Print this message and then exit.
  --version             Display version information and exit.

Other options:

  --wrapper WRAPPER --  Run WRAPPER to start new programs.
  --disable-randomization
                        Run PROG with address space randomization disabled.
  --no-disable-randomization
                        Don't disable address space randomization when
                        starting PROG.
  --startup-with-shell
                        Start PROG using a shell.  I.e., execs a shell that
                        then execs PROG.  (default)
  --no-startup-with-shell
                        Exec PROG directly instead of using a shell.
                        Disables argument globbing and variable substitution
                        on UNIX-like systems.
  --backend NAME        Who has the program and serves its watchpoints:
                          auto           our stub in the program itself; accesses
                                         to guarded pages come to it by the kernel
                                         module where that can be used  (default)
                          kernel         the same, and not without the module
                          signal         the same, by SIGSEGV
                          sim            ulpf-sim, a simulated processor with
                                         user-level page faults (static programs)
                          gem5           gem5 v24.0 with sim-bridge/gem5 (its
                                         README.md); see --gem5
                          rsp:ADDR       any remote stub that listens at ADDR, a
                                         socket's path or HOST:PORT: another ulpf
                                         server, gdbserver, QEMU; no PROG then
  --gem5 PATH           The gem5 for --backend gem5.  (default: gem5.opt in PATH)
  --placement WHERE     Where watches live: guard (guarded pages),
                        debug-register (up to four small ones), or auto: guarded
                        pages, and debug registers where they cost less.
                        (default: auto)
  --check               Check the heap of the program: it stops before an access
                        beside a block or to a freed one, and at wrong frees, and
                        blocks that are lost are listed at its end.
                        (`ulpf check` does the same without a debugger.)
  --base, --no-leaks, --frames N, --quarantine BYTES, --redzone BYTES,
  --suppressions FILE, --allocator NAME=FUNCTION
                        With --check: as `ulpf check --help` says.
  --blame               Record the last writer of each byte of heap and data,
                        for `ulpf last`.
  --no-patch            Leave the program's code as it is: hot instructions and
                        system calls are not patched, and cost a signal each.
  --follow-setuid       Follow PROG also into programs that gain rights when they
                        are executed (set-user-ID, set-group-ID, capabilities).
                        Only root can.

  --any-user            Let every user of this machine connect, not only your own
                        and root.
  --allow-files         Read and write files for the debugger (vFile) also where
                        other machines can connect.  (On this machine: always.)
  --ask-arguments=SOCKET
                        Where GDB's plugin tells the text of `run ARGS`, so that
                        a shell expands and redirects.  (Before GDB 17 the
                        protocol has words only.)

Debug options:

  --debug               Accepted and ignored.
  --debug-format=OPT1[,OPT2,...]
                        Accepted and ignored.
  --remote-debug        Enable remote protocol debugging output.
  --event-loop-debug    Accepted and ignored.
  --disable-packet=OPT1[,OPT2,...]
                        Disable support for RSP packets or features.
                          Options:
                            vCont, T, Tthread, qC, qfThreadInfo and 
                            threads (disable all threading packets).

Without a program left, the server ends when a `target remote` client leaves,
with or without --multi; after `target extended-remote` it goes on listening.

It takes the place of gdbserver: connect with `target remote` or
`target extended-remote` in GDB, `gdb-remote` in LLDB.
";

const DISABLEABLE: &str = "
Disableable packets:
  vCont       \tAll vCont packets
  qC          \tQuerying the current thread
  qfThreadInfo\tThread listing
  Tthread     \tPassing the thread specifier in the T stop reply packet
  threads     \tAll of the above
  T           \tAll 'T' packets
";

/// Packets that `--disable-packet` has turned off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disabled {
    pub vcont: bool,
    pub qc: bool,
    pub thread_info: bool,
    pub stop_thread: bool,
    /// Whole T stop replies; S replies are sent instead.
    pub stop_t: bool,
}

/// The options of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub comm: OsString,
    pub target: Target,
    pub once: bool,
    pub multi: bool,
    pub wrapper: Vec<OsString>,
    pub no_shell: bool,
    pub keep_randomization: bool,
    pub disabled: Disabled,
    pub remote_debug: bool,
    pub settings: Settings,
    /// Check the heap of each program that is started; the program stops at its errors.
    pub check: Option<HeapOptions>,
    /// Record the last writers in each program that is started.
    pub blame: bool,
    /// Users other than the server's own and root may connect, too.
    pub any_user: bool,
    /// Serve vFile even if other machines can connect.
    pub allow_files: bool,
    /// The back end that runs the program (see [`BackEnd`]). `None`: the program runs here with the stub inside.
    pub backend: Option<BackEnd>,
    /// Unix socket on which the plugin sends the text of the arguments of GDB's `run`.
    pub ask_arguments: Option<PathBuf>,
    /// Descriptors for the program's stdout and stderr; its stdin is /dev/null then.
    pub output: Option<[i32; 2]>,
}

/// The program to debug.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    #[default]
    None,
    Program {
        program: OsString,
        args: Vec<OsString>,
    },
    Attach(i32),
}

/// The result of parsing the command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    Serve(Box<Options>),
    /// Text for stdout, exit status 0.
    Print(String),
    /// Text for stderr, exit status 1.
    Refuse(String),
}

pub fn parse(args: impl IntoIterator<Item = OsString>) -> Parsed {
    let mut args = args.into_iter().peekable();
    let mut o = Options::default();
    let mut attach = false;
    let mut asked = Asked::default();
    let mut attach_pid = None;
    let mut gem5 = None;
    while let Some(arg) = args.next_if(|a| a.as_bytes().starts_with(b"-") && a != "-") {
        let text = arg.to_string_lossy();
        // As in gdbserver, the single-dash spellings are not accepted.
        match &*text {
            "--help" => return Parsed::Print(USAGE.into()),
            "--version" => return Parsed::Print(version()),
            "--attach" => {
                attach = true;
                // `--attach PID COMM`: a COMM is never a bare number.
                attach_pid = attach_pid.or_else(|| args.next_if(|a| is_number(a)));
            }
            "--multi" => o.multi = true,
            "--once" => o.once = true,
            "--blame" => o.blame = true,
            "--wrapper" => loop {
                match args.next() {
                    Some(word) if word == "--" && !o.wrapper.is_empty() => break,
                    Some(word) if word != "--" => o.wrapper.push(word),
                    _ => return usage_error(),
                }
            },
            "--disable-randomization" => o.keep_randomization = false,
            "--no-disable-randomization" => o.keep_randomization = true,
            "--startup-with-shell" => o.no_shell = false,
            "--no-startup-with-shell" => o.no_shell = true,
            "--debug" | "--event-loop-debug" => {}
            "--remote-debug" => o.remote_debug = true,
            "--no-patch" => o.settings.no_patch = true,
            "--follow-setuid" => o.settings.follow_setuid = true,
            "--any-user" => o.any_user = true,
            "--allow-files" => o.allow_files = true,
            "--backend" => match args.next() {
                Some(name) => match backend(&name.to_string_lossy()) {
                    Ok(chosen) => (o.backend, o.settings.backend) = chosen,
                    Err(why) => return Parsed::Refuse(why),
                },
                None => return usage_error(),
            },
            _ if text.starts_with("--ask-arguments=") => {
                o.ask_arguments = Some(text["--ask-arguments=".len()..].into());
            }
            "--gem5" => match args.next() {
                Some(path) => gem5 = Some(PathBuf::from(path)),
                None => return usage_error(),
            },
            _ if text.starts_with("--gem5=") => gem5 = Some(text["--gem5=".len()..].into()),
            "--placement" => match args.next() {
                Some(word) => match Placement::parse(&word.to_string_lossy()) {
                    Ok(placement) => o.settings.placement = placement,
                    Err(why) => return Parsed::Refuse(why),
                },
                None => return usage_error(),
            },
            _ if text.starts_with("--placement=") => {
                match Placement::parse(&text["--placement=".len()..]) {
                    Ok(placement) => o.settings.placement = placement,
                    Err(why) => return Parsed::Refuse(why),
                }
            }
            "--selftest" => {
                return Parsed::Refuse(
                    "Selftests are not part of ulpf server; its tests run with `make test`.\n"
                        .into(),
                );
            }
            _ if text.starts_with("--backend=") => match backend(&text["--backend=".len()..]) {
                Ok(chosen) => (o.backend, o.settings.backend) = chosen,
                Err(why) => return Parsed::Refuse(why),
            },
            _ if text.starts_with("--debug-format=")
                || text.starts_with("--debug=")
                || text.starts_with("--debug-file=") => {}
            "--disable-packet" => return Parsed::Print(DISABLEABLE[1..].into()),
            _ if text.starts_with("--disable-packet=") => {
                for name in text["--disable-packet=".len()..].split(',') {
                    let d = &mut o.disabled;
                    match name {
                        "vCont" => d.vcont = true,
                        "qC" => d.qc = true,
                        "qfThreadInfo" => d.thread_info = true,
                        "Tthread" => d.stop_thread = true,
                        "T" => d.stop_t = true,
                        "threads" => {
                            *d = Disabled {
                                vcont: true,
                                qc: true,
                                thread_info: true,
                                stop_thread: true,
                                ..*d
                            }
                        }
                        _ => {
                            return Parsed::Refuse(format!(
                                "Don't know how to disable \"{name}\".\n{DISABLEABLE}"
                            ));
                        }
                    }
                }
            }
            _ => {
                let next = || Some(args.next()?.to_string_lossy().into_owned());
                match asked.take(&text, next) {
                    Ok(true) => {}
                    Ok(false) => return Parsed::Refuse(format!("Unknown argument: {text}\n")),
                    Err(why) => return Parsed::Refuse(format!("{why}.\n")),
                }
            }
        }
    }
    o.check = match asked.done() {
        Ok(check) => check,
        Err(why) => return Parsed::Refuse(format!("{why}.\n")),
    };
    match &mut o.backend {
        Some(BackEnd::Gem5(path)) => *path = gem5,
        _ if gem5.is_some() => {
            return Parsed::Refuse("--gem5 goes with --backend gem5.\n".into());
        }
        _ => {}
    }
    if o.blame && o.backend.is_some() {
        return Parsed::Refuse(
            "--blame goes with programs of this machine, not with another --backend.\n".into(),
        );
    }
    if o.check.is_some() && o.backend.is_some() {
        return Parsed::Refuse(
            "--check goes with programs of this machine, not with another --backend.\n".into(),
        );
    }
    let Some(comm) = args.next() else {
        return usage_error();
    };
    o.comm = comm;
    // `COMM --attach PID`
    if args.next_if(|a| a == "--attach").is_some() {
        attach = true;
    }
    let rest: Vec<OsString> = args.collect();
    o.target = if attach {
        let pid = match (&attach_pid, &rest[..]) {
            (Some(pid), []) => pid,
            (None, [pid]) => pid,
            _ => return usage_error(),
        };
        match pid.to_str().and_then(|p| p.parse().ok()) {
            Some(pid) if pid > 0 => Target::Attach(pid),
            _ => return usage_error(),
        }
    } else if let Some((program, args)) = rest.split_first() {
        Target::Program {
            program: program.clone(),
            args: args.to_vec(),
        }
    } else if o.multi || matches!(o.backend, Some(BackEnd::At(_))) {
        Target::None
    } else {
        return usage_error();
    };
    Parsed::Serve(Box::new(o))
}

fn usage_error() -> Parsed {
    Parsed::Refuse(USAGE.into())
}

fn is_number(arg: &OsStr) -> bool {
    !arg.is_empty() && arg.as_bytes().iter().all(u8::is_ascii_digit)
}

/// A back end of the bridge, or a backend of the stub.
fn backend(name: &str) -> Result<(Option<BackEnd>, Backend), String> {
    if let Some(backend) = BackEnd::parse(name) {
        return Ok((Some(backend), Backend::Auto));
    }
    Backend::parse(name).map(|guards| (None, guards))
}

pub fn version() -> String {
    format!(
        "ulpf server {}\nIt takes the place of gdbserver on x86_64-linux-gnu.\n",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(line: &str) -> Options {
        match parse(line.split(' ').map(OsString::from)) {
            Parsed::Serve(o) => *o,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn all_spellings_of_attach() {
        for line in [
            "--attach :0 42",
            "--attach 42 :0",
            ":0 --attach 42",
            "--once --attach 42 :0",
        ] {
            let o = serve(line);
            assert_eq!(
                (o.target, o.comm),
                (Target::Attach(42), ":0".into()),
                "{line}"
            );
        }
    }

    #[test]
    fn options_end_at_comm() {
        let o = serve("--once - prog --once -x");
        assert_eq!(o.comm, "-");
        assert_eq!(
            o.target,
            Target::Program {
                program: "prog".into(),
                args: vec!["--once".into(), "-x".into()]
            }
        );
        assert!(o.once && !o.multi);
    }

    #[test]
    fn placement_is_a_word_of_its_own_or_not() {
        assert_eq!(
            serve("--placement=guard :0 x").settings.placement,
            Placement::Guard
        );
        let o = serve("--placement debug-register --once :0 x");
        assert!(o.once && o.settings.placement == Placement::DebugRegister);
        assert_eq!(serve(":0 x").settings.placement, Placement::Auto);
    }

    #[test]
    fn heaps_are_checked_on_demand() {
        assert_eq!(serve("--check :0 x").check, Some(HeapOptions::default()));
        assert_eq!(serve(":0 --check x").check, None);
        let how = serve("--base --check --gap=32 --quarantine 1M --once :0 x").check;
        let how = how.unwrap().how;
        assert!(how.base && how.stop && (how.redzone.least, how.quarantine) == (32, 1 << 20));
        assert!(serve("--check --attach :0 1").check.is_some());
    }

    #[test]
    fn wrapper_ends_at_two_dashes() {
        let o = serve("--wrapper env A=1 -- :0 prog");
        assert_eq!(o.wrapper, ["env", "A=1"]);
        assert!(matches!(
            parse(["--wrapper", "env"].map(OsString::from)),
            Parsed::Refuse(_)
        ));
    }

    #[test]
    fn mistakes() {
        for line in [
            "",
            "--once",
            ":0",
            "--attach :0",
            "--attach :0 x",
            "--attach 1 :0 2",
            "--backend pkeys :0 x",
            "--gem5 /x :0 x",
            "--backend gem5 --gem5",
            "--bogus :0 x",
            "--placement here :0 x",
            "--check --backend sim :0 x",
            "--blame --backend sim :0 x",
            "--base :0 x",
            "--check --base=1 :0 x",
            "--check --gap :0 x",
            "--check --gap",
        ] {
            let words = line
                .split(' ')
                .filter(|w| !w.is_empty())
                .map(OsString::from);
            assert!(matches!(parse(words), Parsed::Refuse(_)), "{line}");
        }
    }

    #[test]
    fn packets_are_disabled_by_name() {
        let o = serve("--disable-packet=vCont,T :0 x");
        assert!(o.disabled.vcont && o.disabled.stop_t && !o.disabled.qc);
        assert!(serve("--disable-packet=threads :0 x").disabled.stop_thread);
    }
}
