//! The command lines of `ulpf run` and `ulpf attach`.

use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use ulpf_heap::functions::{Named, Names};
use ulpf_heap::options::{bytes, redzone};
use ulpf_heap::suppress::Suppressions;
use ulpf_host::foreign::text;
use ulpf_inject::backend::Backend;
use ulpf_inject::placement::Placement;
use ulpf_inject::settings::Settings;
use ulpf_lib::command::{HeapCheck, Redzone};
use ulpf_symbols::PLAIN;

const SPECS: &str = "\
WATCHES (SPEC)
  counter                 a variable: global, static, class member, ns::var, crate::module::STATIC
  node.next  p->x  *p     fields and pointers; p->x goes wherever p points, NULL is nowhere
  tab[3]  tab[0..16]      an element; elements 0 to 15 (0..=15 is the same, [..] is all)
  grid[1][2].x            all of it combined
  file.c:name             the static `name` of that source file
  libfoo`name             the `name` of that library; watched as soon as it is loaded
  0x7fffe000:64           64 bytes at an address
  *buf:256  buf+16:8      256 bytes from where buf points; 8 bytes, 16 bytes into buf
  @found                  with `attach`: what `ulpf find PID` has left (@found:rw, @found changed, …)
  heap                    all that the program allocates, now and later ([heap] where a variable has that name)
  …:r  …:w  …:rw          reads, writes (default), both

WHICH HITS MATTER (after a SPEC; the others are only counted, inside the program)
  total if $new > 900     a condition: C operators, $new and $old (the value), variables (p->x, a[i]),
                          $tid $pid $addr $len $hits $pc $kind $reads $writes, registers ($rax)
  total from add,libfoo   by an instruction of these functions or objects (or of 0x401000-0x402000)
  total outside libfoo    by any other
  buf called from parse   by a function that parse has called: memcpy, a system call's wrapper
                          (called outside: by others)
  total thread main       by this thread (or a number)
PLAIN  p->x snapshot           no filter: the watch stays where p points when it is set
  list->*next.x most 1000000
                          no filter: it may have so many places (100000)

WHAT THE SUMMARY SAYS
  hits                    accesses of the watch's kind to the watched bytes; every one is counted
  silent                  of these: writes that left the value as it was
  filtered                of these: those that the clauses behind the SPEC have rejected
  false                   accesses to a guarded page beside the watched bytes: in the row of the page's first
                          watch; those of patched instructions in a row of their own
  place                   guard: the page is guarded; register: a debug register watches
  lost                    hits that the log has left out, because they came faster than it was written
  fault                   page faults and traps of the program, for a hit or a false positive
  on the slow path        of these: those that had to stop all threads
  system call             system calls of the program that ulpf has intercepted, to see their accesses
The hits are the lines of the log, those filtered, and those lost (without -q and --changes-only).

Variables are found through debug information (-g), else in the symbol table. With --json each line
is one object; docs/json.md describes them.

The exit status is the program's (a fatal signal is ours, too); 2: nothing was watched: a watch was
refused or the start failed; 126, 127: it cannot be executed, was not found. `attach`: 0 after Ctrl-C,
or if it was killed.";

fn specs() -> String {
    let plain = PLAIN.iter().map(|clause| clause.help);
    SPECS.replace("PLAIN", &plain.collect::<String>())
}

#[derive(Args, Clone, Debug)]
#[command(after_help = specs())]
pub struct RunArgs {
    #[command(flatten)]
    pub watching: WatchArgs,

    /// Turn address space randomization off, as debuggers do: addresses are the same in every run. Children inherit that
    #[arg(long, overrides_with = "aslr")]
    pub no_aslr: bool,

    /// Leave address space randomization as it is (default)
    #[arg(long, overrides_with = "no_aslr")]
    pub aslr: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = specs())]
pub struct AttachArgs {
    #[command(flatten)]
    pub watching: WatchArgs,

    /// Process to watch; Ctrl-C ends the watching and leaves the program running
    pub pid: i32,
}

/// A number of seconds that may have a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().map(Duration::try_from_secs_f64);
    let time = time.and_then(Result::ok).filter(|time| !time.is_zero());
    time.ok_or_else(|| "that is no number of seconds".into())
}

#[derive(Args, Clone, Debug, Default)]
pub struct WatchArgs {
    /// Watch this; may be repeated
    #[arg(short, long = "watch", value_name = "SPEC")]
    pub watch: Vec<String>,

    /// Watch what this file lists, one SPEC a line; # starts a comment
    #[arg(long, value_name = "FILE")]
    pub watch_file: Vec<PathBuf>,

    /// Write the hits to FILE instead of standard error. Lines: .txt, .log; JSON lines: .jsonl; a table: .csv; a
    /// compact log, which is written fastest and read by `ulpf log FILE`: .ulpf. - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub log: Option<PathBuf>,

    /// Policy for hits that come faster than the log is written
    #[arg(long, value_enum, value_name = "POLICY", default_value_t)]
    pub log_policy: LogPolicy,

    /// JSON lines instead of text
    #[arg(long)]
    pub json: bool,

    /// Log up to N callers with each hit (by unwind tables; in code without them, by frame pointers)
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub backtrace: Option<u8>,

    /// Leave out writes that store the value that was there (they are still counted)
    #[arg(long)]
    pub changes_only: bool,

    /// Set the watches when this function, or this line of the source (FILE:LINE), is first reached, instead of at the
    /// program's entry
    #[arg(long, value_name = "FUNCTION")]
    pub at: Option<String>,

    /// Watch for so many seconds: then leave the program to itself (attach), or end it by SIGTERM (run)
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    pub time: Option<Duration>,

    /// Mechanism of the watches
    #[arg(long, value_enum, value_name = "WHERE", default_value_t)]
    pub placement: Placement,

    /// Mechanism that detects accesses to watched pages
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    pub backend: Backend,

    /// Leave the program's code as it is: hot instructions are not patched, and cost a signal each time
    #[arg(long)]
    pub no_patch: bool,

    /// Watch the children that the program forks, too, and those that execute it again (posix_spawn),
    /// until the last one has ended
    #[arg(short, long)]
    pub follow: bool,

    /// With --follow: watch only programs whose file is called so (a pattern with * and ?; with a slash, of the whole
    /// path). All that is started is followed into, so that wrappers, scripts and `make check` may start them; may be
    /// repeated
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,

    /// With --follow: watch all programs but those
    #[arg(long, value_name = "PATTERN")]
    pub skip: Vec<String>,

    /// Follow also into programs that gain rights when they are executed (set-user-ID, set-group-ID, capabilities); as root
    #[arg(long)]
    pub follow_setuid: bool,

    /// Continue without the watches that are refused
    #[arg(long)]
    pub keep_going: bool,

    /// Count only: no line per hit (--log FILE gets its lines all the same, unless --json is said)
    #[arg(short, long)]
    pub quiet: bool,

    /// Print the backend of the watches, and the reason for it
    #[arg(short, long)]
    pub verbose: bool,

    /// Record the last writer of each byte of heap and data, for `ulpf last` and for the report of a crash
    #[arg(long)]
    pub blame: bool,

    /// List every watch in the summary at the end, also those without hits
    #[arg(long, overrides_with = "no_summary")]
    pub summary: bool,

    /// Stop ourselves when the watches are set, and let the program run when we are continued; nothing
    /// to watch is not an error (`ulpf top` adds watches)
    #[arg(long, hide = true)]
    pub held: bool,

    /// No summary at the end
    #[arg(long)]
    pub no_summary: bool,

    /// The heap is checked (`ulpf check`).
    #[arg(skip)]
    pub check: Option<Check>,
}

const ERRORS: &str = "\
WHAT IS FOUND
  outside                 a read or write before, behind or between the blocks of the heap
  far                     a read or write by a pointer to one block that lies in another one (see --base)
  freed                   the same of a block that has been freed, as long as it is in the quarantine
  double-free, invalid-free, mismatched-free
                          the freed address was freed before, does not begin a block, or was allocated by
                          another family of functions (malloc, new, new[])
  lost, indirectly-lost, possibly-lost, reachable
                          blocks that are left at the end; the kinds are those of Valgrind's memcheck
All threads run in parallel. An error is reported once for each place; the summary has the counts.

The program's malloc, free and their relatives are served by ulpf (see --allocator). Children
that the program forks go on with the same heap, unchecked (see --follow).

The exit status is the program's (see --error-exitcode); 2: it could not be started or checked; 126, 127: it cannot be executed,
was not found.";

#[derive(Args, Clone, Debug)]
#[command(after_help = ERRORS, override_usage = "ulpf check [OPTIONS] <PROGRAM>...")]
pub struct CheckArgs {
    /// Do not search for leaks at the end
    #[arg(long)]
    pub no_leaks: bool,

    /// Report also blocks that are reachable at the end, and were not freed
    #[arg(long)]
    pub show_reachable: bool,

    /// Callers that are noted for each block, when it is allocated and when it is freed
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub frames: u8,

    /// Size of the quarantine: freed blocks are used again after so many bytes of blocks, with redzones and records,
    /// have been freed after them (64M, 1G)
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = bytes)]
    pub quarantine: u64,

    /// Poisoned bytes between blocks, at least (16 to 4096); larger blocks have larger redzones. Two numbers (16..256): a random one for each
    /// block, others in each run
    #[arg(long, value_name = "BYTES", default_value = "16", alias = "gap", value_parser = redzone)]
    pub redzone: Redzone,

    /// Find out-of-block accesses also where the pointer is a guess, and at each access: slower
    #[arg(long)]
    pub base: bool,

    /// The exit status when there were errors, or blocks are lost; else it is the program's
    #[arg(long, value_name = "STATUS")]
    pub error_exitcode: Option<i32>,

    /// Write the errors to FILE instead of standard error; --log-file is the same
    #[arg(short, long, alias = "log-file", value_name = "FILE")]
    pub log: Option<PathBuf>,

    /// JSON lines instead of text
    #[arg(long)]
    pub json: bool,

    /// Suppress the errors that FILE names, in the format of memcheck's suppressions; may be given several times
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,

    /// Print a suppression after each error
    #[arg(long)]
    pub gen_suppressions: bool,

    /// Write FILE as memcheck does with --xml=yes (protocol 4), for IDEs and plugins of CI servers
    #[arg(long, value_name = "FILE")]
    pub xml: Option<PathBuf>,

    /// Write FILE in SARIF 2.1.0, for code hosts
    #[arg(long, value_name = "FILE")]
    pub sarif: Option<PathBuf>,

    /// End the program at its first error; exit status 1, if --error-exitcode names no other
    #[arg(long)]
    pub exit_on_first_error: bool,

    /// Check also the processes that the program forks, and all that these and the program execute
    #[arg(short, long)]
    pub follow: bool,

    /// Follow also into programs that gain rights when they are executed (set-user-ID, set-group-ID, capabilities); as root
    #[arg(long)]
    pub follow_setuid: bool,

    /// FUNCTION of the program is its NAME (malloc, free, calloc, realloc ...) under another name: a symbol, or
    /// FILE+0xADDRESS as the file has it; may be given several times
    #[arg(long, value_name = "NAME=FUNCTION", value_parser = Named::list)]
    pub allocator: Vec<Names>,

    /// Print the backend of the check, and the reason for it
    #[arg(short, long)]
    pub verbose: bool,

    /// Turn address space randomization off: addresses are the same in every run. Children inherit that
    #[arg(long, overrides_with = "aslr")]
    pub no_aslr: bool,

    /// Leave address space randomization as it is (default)
    #[arg(long, overrides_with = "no_aslr")]
    pub aslr: bool,

    /// Check a process that runs already, until it ends or Ctrl-C: it goes on then
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "aslr", "no_aslr", "exit_on_first_error"])]
    pub attach: Option<i32>,

    /// The program and its arguments
    #[arg(
        required_unless_present = "attach",
        trailing_var_arg = true,
        value_name = "PROGRAM"
    )]
    pub command: Vec<OsString>,
}

/// Policy for hits that come faster than the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogPolicy {
    /// The program never waits; hits for which there is no room are lost, and counted
    #[default]
    Fast,
    /// No hit is lost: a thread without room waits until the log has been written, as long as ulpf lives
    Lossless,
}

impl WatchArgs {
    /// Settings for the program's start.
    pub fn settings(&self) -> Settings {
        Settings {
            placement: self.placement,
            backend: self.backend,
            no_patch: self.no_patch,
            follow_setuid: self.follow_setuid,
        }
    }
}

/// Settings of a heap check, for the stub and for the reports.
#[derive(Clone, Debug)]
pub struct Check {
    pub how: HeapCheck,
    pub json: bool,
    pub reachable: bool,
    pub log: Option<PathBuf>,
    pub status: Option<i32>,
    pub suppressions: Arc<Suppressions>,
    /// Suppression entries are printed.
    pub make: bool,
    pub xml: Option<Arc<File>>,
    pub sarif: Option<Arc<File>>,
    /// The first error ends the program.
    pub first: bool,
    /// Children, and the programs that they and the program execute, are checked, too.
    pub follow: bool,
    /// Allocators with other names.
    pub allocator: Vec<Named>,
    /// The program and its arguments.
    pub command: Vec<String>,
    pub verbose: bool,
}

impl Check {
    /// The options of a run that checks. An error names the file that cannot be read or written.
    pub fn options(args: &CheckArgs) -> Result<WatchArgs, String> {
        let mut suppressions = Suppressions::default();
        for path in &args.suppressions {
            suppressions.read(path)?;
        }
        let create = |path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            let file = File::create(path);
            Some(
                file.map(Arc::new)
                    .map_err(|e| format!("cannot write {}: {e}", text::path(path))),
            )
        };
        let (xml, sarif) = (
            create(&args.xml).transpose()?,
            create(&args.sarif).transpose()?,
        );
        let own = args.command.iter();
        let mut command: Vec<String> = own.map(|a| a.to_string_lossy().into_owned()).collect();
        if let Some(pid) = args.attach {
            command = ulpf_host::process::command_line(pid);
        }
        Ok(WatchArgs {
            quiet: true,
            no_summary: true,
            follow: args.follow,
            follow_setuid: args.follow_setuid,
            verbose: args.verbose,
            check: Some(Check {
                how: HeapCheck {
                    frames: args.frames,
                    quarantine: args.quarantine,
                    redzone: args.redzone,
                    leaks: !args.no_leaks,
                    stop: false,
                    running: args.attach.is_some(),
                    base: args.base,
                    of: None,
                },
                json: args.json,
                reachable: args.show_reachable,
                log: args.log.clone(),
                status: args.error_exitcode,
                suppressions: Arc::new(suppressions),
                make: args.gen_suppressions,
                xml,
                sarif,
                first: args.exit_on_first_error,
                follow: args.follow,
                allocator: args.allocator.concat(),
                command,
                verbose: args.verbose,
            }),
            ..WatchArgs::default()
        })
    }
}
