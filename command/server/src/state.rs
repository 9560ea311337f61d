//! The server's state, and what all its modules need.
#![forbid(unsafe_code)]

use super::changes::Changes;
use super::common::{Terminal, serves_files};
use super::host_io::HostIo;
use super::options::{Options, Target as Wanted};
use super::osdata::OsData;
use super::packets::PACKET_SIZE;
use super::reports::Reports;
use super::stops::Stops;
use super::target::Target;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use ulpf_area::shared::SharedArea;
use ulpf_host::foreground;
use ulpf_host::foreign::numbers::{Process, RelationError};
use ulpf_host::listen::Listener;
use ulpf_host::say::message;
use ulpf_inject::Arguments;
use ulpf_inject::inferior::Ending;
use ulpf_symbols::Program;

/// A child that has been reported and has no stub.
pub struct PendingChild {
    /// Numbers by which the debugger knows them.
    pub number: i32,
    pub parent: i32,
    pub vfork: bool,
    /// The kernel's handle of the process. Without it the child is only reported.
    pub process: Result<Process, RelationError>,
}

pub struct Server {
    pub options: Options,
    /// The program for vRun, R and the command line.
    pub program: Option<(OsString, Arguments)>,
    pub env: BTreeMap<OsString, OsString>,
    pub cwd: Option<PathBuf>,
    pub shell: bool,
    pub disable_randomization: bool,
    /// The debugger has sent `!`.
    pub extended: bool,
    /// The debugger understands `p1.2`, `;process:`.
    pub multiprocess: bool,
    /// Its vRun contains the text of all arguments instead of words.
    pub one_argument: bool,
    /// The debugger has requested reports of exec, fork, vfork.
    pub exec_events: bool,
    pub fork_events: bool,
    pub vfork_events: bool,
    /// The debugger's last qSupported, for the stubs of programs that are started later.
    pub supported: Option<Vec<u8>>,
    /// Settings that outlive a program: packet up to its `:` → packet.
    pub sticky: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The packet size announced by qSupported.
    pub packet_size: usize,
    /// Packets are for the first process (see `processes.rs`).
    pub targets: Vec<Target>,
    /// The shared area of the last process, and its names, until there is another one.
    pub past: Option<(SharedArea, Program)>,
    /// Forked children that have been reported and that the debugger has neither followed nor detached.
    pub pending_children: Vec<PendingChild>,
    /// The pending child that the debugger has selected.
    pub selected: Option<i32>,
    pub host_io: HostIo,
    pub osdata: OsData,
    pub stdio: bool,
    pub terminal: Terminal,
    pub changes: Changes,
    pub reports: Reports,
    /// Non-stop mode.
    pub stops: Stops,
}

impl Server {
    /// A server without a program.
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
            reports: Reports::default(),
            stops: Stops::default(),
            options,
        }
    }

    /// Prints a message of gdbserver's, which its callers parse and its users expect.
    pub fn say(&self, text: &str) {
        if self.terminal == Terminal::Program {
            message!("{text}");
        }
    }

    /// Takes the terminal back after a stop, if it is shared.
    pub fn take_terminal(&self) {
        if self.terminal == Terminal::Shared {
            foreground::to_debugger();
        }
    }

    /// Removes the ended program, prints its end on stderr, and returns the stop reply for it.
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
                let gdb = i32::from(ulpf_lib::signals::to_gdb(signal));
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

    /// Removes the process in front. Another one takes its place.
    pub fn take_front(&mut self) -> Option<Target> {
        let mut front = (!self.targets.is_empty()).then(|| self.targets.swap_remove(0))?;
        let names = front.program.take().unwrap_or_default();
        self.past = Some((front.shared().clone(), names));
        Some(front)
    }

    /// Sends a new stub its first packets.
    pub async fn greet(&self, target: &mut Target) {
        target.greeting = self.greeting();
        for packet in target.greeting.clone() {
            let _ = target.request(&packet).await;
        }
        target.non_stop = self.stops.on;
    }

    /// First packets for a stub: the offer to follow its program, and the debugger's settings so far.
    pub fn greeting(&self) -> Vec<Vec<u8>> {
        std::iter::once(self.offer())
            .chain(self.supported.iter().cloned())
            .chain(self.sticky.values().cloned())
            .collect()
    }
}
