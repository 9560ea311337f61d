//! What the server knows, and what every part of it says and tells.
#![forbid(unsafe_code)]

use super::changes::Changes;
use super::common::{Terminal, serves_files};
use super::host_io::HostIo;
use super::options::{Options, Target as Wanted};
use super::osdata::OsData;
use super::packets::PACKET_SIZE;
use super::stops::Stops;
use super::target::Target;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use ulpf_area::shared::SharedArea;
use ulpf_host::foreground;
use ulpf_host::foreign::numbers::{Process, RelationError};
use ulpf_inferior::Ending;
use ulpf_inject::Arguments;
use ulpf_listen::Listener;
use ulpf_say::message;

/// A child that has been reported and has no stub.
pub struct PendingChild {
    /// As the debugger knows them.
    pub number: i32,
    pub parent: i32,
    pub vfork: bool,
    /// What the kernel knows by that number. Without it the child is only reported.
    pub process: Result<Process, RelationError>,
}

pub struct Server {
    pub options: Options,
    /// What vRun, R and the command line start.
    pub program: Option<(OsString, Arguments)>,
    pub env: BTreeMap<OsString, OsString>,
    pub cwd: Option<PathBuf>,
    pub shell: bool,
    pub disable_randomization: bool,
    /// The debugger has sent `!`.
    pub extended: bool,
    /// The debugger understands `p1.2`, `;process:`.
    pub multiprocess: bool,
    /// Its vRun has the text of all arguments in the place of words.
    pub one_argument: bool,
    /// The debugger wants to hear of exec, fork, vfork.
    pub exec_events: bool,
    pub fork_events: bool,
    pub vfork_events: bool,
    /// The debugger's last qSupported, for the stubs of programs that are started later.
    pub supported: Option<Vec<u8>>,
    /// Settings that outlive a program: packet up to its `:` → packet.
    pub sticky: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What qSupported has announced.
    pub packet_size: usize,
    /// The first one is the one that packets are for (see [`processes`]).
    pub targets: Vec<Target>,
    /// Of the last process that there was, until there is another.
    pub past: Option<SharedArea>,
    /// Forked children that the debugger has heard of and has not decided about.
    pub pending_children: Vec<PendingChild>,
    /// The debugger has selected this one of them.
    pub selected: Option<i32>,
    pub host_io: HostIo,
    pub osdata: OsData,
    pub stdio: bool,
    pub terminal: Terminal,
    pub changes: Changes,
    /// Non-stop mode.
    pub stops: Stops,
}

impl Server {
    /// One without a program yet.
    pub fn new(options: Options, listener: &Listener, terminal: Terminal) -> Server {
        Server {
            program: match &options.target {
                Wanted::Program { program, args } => {
                    Some((program.clone(), Arguments::Words(args.clone())))
                }
                _ => None,
            },
            env: std::env::vars_os().collect(),
            cwd: None,
            shell: !options.no_shell,
            disable_randomization: !options.keep_randomization,
            extended: false,
            multiprocess: false,
            one_argument: false,
            exec_events: false,
            fork_events: false,
            vfork_events: false,
            supported: None,
            sticky: BTreeMap::new(),
            packet_size: PACKET_SIZE,
            targets: Vec::new(),
            past: None,
            pending_children: Vec::new(),
            selected: None,
            host_io: HostIo::new(serves_files(&options, listener)),
            osdata: OsData::default(),
            stdio: listener.is_stdio(),
            terminal,
            changes: Changes::default(),
            stops: Stops::default(),
            options,
        }
    }

    /// What gdbserver's callers read, and its users expect.
    pub fn say(&self, text: &str) {
        if self.terminal == Terminal::Program {
            message!("{text}");
        }
    }

    /// After a stop, where the terminal is shared.
    pub fn take_terminal(&self) {
        if self.terminal == Terminal::Shared {
            foreground::to_debugger();
        }
    }

    /// Takes note of the program's end, says so on stderr, and gives the stop reply for it.
    pub fn ended(&mut self, ending: Ending) -> String {
        let pid = self.take_front().map_or(0, |t| t.number);
        self.ending_of(pid, ending)
    }

    pub fn ending_of(&self, pid: i32, ending: Ending) -> String {
        self.take_terminal();
        let (letter, number) = match ending {
            Ending::Exited(status) => {
                self.say(&format!("\nChild exited with status {status}"));
                ('W', status)
            }
            Ending::Killed(signal) => {
                let gdb = ulpf_host::signals::to_gdb(signal);
                self.say(&format!(
                    "\nChild terminated with signal = {gdb:#x} ({})",
                    ulpf_host::signals::name(signal)
                ));
                ('X', gdb)
            }
            Ending::Unknown => {
                message!(
                    "\nProcess {pid} has ended; only its parent was told its exit status, so 0 is reported."
                );
                ('W', 0)
            }
        };
        if self.multiprocess {
            format!("{letter}{number:02x};process:{pid:x}")
        } else {
            format!("{letter}{number:02x}")
        }
    }

    /// The process that packets are for; another one comes to the front.
    pub fn take_front(&mut self) -> Option<Target> {
        let front = (!self.targets.is_empty()).then(|| self.targets.swap_remove(0))?;
        self.past = Some(front.shared().clone());
        Some(front)
    }

    /// Tells a new stub what it has to know first.
    pub async fn greet(&self, target: &mut Target) {
        target.greeting = self.greeting();
        for packet in target.greeting.clone() {
            let _ = target.request(&packet).await;
        }
        target.non_stop = self.stops.on;
    }

    /// What a stub is told before anything else: that we follow its program, and what the debugger has
    /// said so far.
    pub fn greeting(&self) -> Vec<Vec<u8>> {
        std::iter::once(self.offer())
            .chain(self.supported.iter().cloned())
            .chain(self.sticky.values().cloned())
            .collect()
    }
}
