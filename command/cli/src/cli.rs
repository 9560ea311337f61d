//! The command line of `ulpf`.

use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::future::Future;
use std::path::Path;
use ulpf_inject::{keeper, kept};
use ulpf_server::options::{self, Parsed};
use ulpf_symbols::demangle;

const TO_TRY: &str = "\
Three things to try:
  ulpf run PROGRAM               lists the largest variables of a program
  ulpf run -w VARIABLE PROGRAM   logs each write to a variable: the place in the code, the value before and after
  ulpf gdb PROGRAM               GDB as always, but `watch` has no limit";

/// Unlimited, exact data watchpoints for stock GDB and LLDB
#[derive(Debug, Parser)]
#[command(
    name = "ulpf",
    version,
    arg_required_else_help = true,
    after_help = TO_TRY
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a program to a debugger; takes what gdbserver takes
    #[command(disable_help_flag = true)]
    Server(Words),
    /// Open GDB on a program, connected, with unlimited watchpoints
    Gdb(GdbArgs),
    /// Serve an IDE: a debug adapter (DAP) that drives GDB, with data breakpoints of any size and number
    Dap(ulpf_dap::DapArgs),
    /// Write GDB's ulpf commands to a folder, for a GDB that `ulpf gdb` does not start
    GdbPlugin(ulpf_server::plugin::PluginArgs),
    /// Watch without a debugger: start a program and log every hit
    Run(ulpf_run::RunArgs),
    /// Watch a running program without a debugger
    Attach(ulpf_run::AttachArgs),
    /// Find errors of the heap: overflows, uses after free, wrong frees, leaks; with all threads running
    Check(ulpf_run::CheckArgs),
    /// Show the last writes to a variable or an address that is being watched
    Last(crate::last::LastArgs),
    /// Show live what is watched: hits, sites, pages, threads
    Top(ulpf_top::TopArgs),
    /// Write hits and counters for other tools: JSON lines, CSV, a trace, Prometheus
    Export(ulpf_top::export::ExportArgs),
    /// Read a compact log (`ulpf run --log FILE.ulpf`): as text, JSON, CSV, a trace; or the last writes to something
    /// before a time
    Log(ulpf_session::log::LogArgs),
    /// Find a value in a running program; the places left after narrowing can be watched
    Find(ulpf_run::find::FindArgs),
    /// Run a static program on simulated hardware with user-level page faults; `ulpf sim --help`
    #[command(disable_help_flag = true)]
    Sim(Words),
    /// Report what this machine supports, and how to get what is missing
    Doctor(crate::doctor::DoctorArgs),
    /// Write the manual pages and the completions of bash, zsh and fish to a folder
    Pages(crate::pages::PagesArgs),
}

#[derive(Debug, Args)]
struct Words {
    /// Its own command line; see `ulpf server --help`, `ulpf sim --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(override_usage = "ulpf gdb [GDB OPTIONS] [PROGRAM [ARGS]...]")]
struct GdbArgs {
    /// GDB's own options (-x FILE, -ex COMMAND, …) and those of ulpf, then the program and its arguments. Long options of GDB (-ex, -batch) may follow the program, but not --args.
    /// Options of ulpf: --placement=auto|guard|debug-register, --backend=auto|signal|kernel|sim|rsp:ADDR, --follow-setuid.
    /// --blame records the last writer of each byte of heap and data. --check stops at errors of the heap; with it also
    /// --base, --redzone=BYTES and other options of `ulpf check`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORDS"
    )]
    words: Vec<OsString>,
}

/// Runs the command line, with this image of the stub for the watched programs; returns the exit status.
pub fn main(stub: &'static [u8]) -> i32 {
    let status = serve(stub);
    ulpf_host::say::finish();
    status
}

fn serve(stub: &'static [u8]) -> i32 {
    ulpf_inject::provide(stub);
    keeper::enable();
    demangle::enable();
    // clap does not parse the words after `server`, which are gdbserver's, or those for ulpf-sim.
    let mut all = std::env::args_os();
    let name = all.next().unwrap_or_default();
    let words: Vec<OsString> = all.collect();
    // Tools that start GDB need one program name, followed by GDB's own words.
    if Path::new(&name).file_name() == Some("ulpf-gdb".as_ref()) {
        return run(crate::gdb::gdb(words));
    }
    if words.first().is_some_and(|word| word == keeper::WORD) {
        return kept::main();
    }
    if words.first().is_some_and(|word| word == demangle::WORD) {
        return demangle::serve();
    }
    let is = |at: usize, word: &str| words.get(at).is_some_and(|w| w == word);
    if is(0, "server") || is(0, "help") && is(1, "server") {
        return server(theirs(&words));
    }
    if is(0, "sim") || is(0, "help") && is(1, "sim") {
        return crate::sim::sim(theirs(&words));
    }
    match Cli::parse().command {
        Command::Server(Words { words }) => server(words),
        Command::Sim(Words { words }) => crate::sim::sim(words),
        Command::Gdb(GdbArgs { words }) => run(crate::gdb::gdb(words)),
        Command::Dap(args) => run(ulpf_dap::dap(args)),
        Command::GdbPlugin(args) => ulpf_server::plugin::main(&args),
        Command::Run(args) => ulpf_run::run(&args),
        Command::Attach(args) => ulpf_run::attach(&args),
        Command::Check(args) => ulpf_run::check(&args),
        Command::Last(args) => crate::last::main(&args),
        Command::Top(args) => ulpf_top::main(&args),
        Command::Export(args) => ulpf_top::export::main(&args),
        Command::Find(args) => ulpf_run::find::main(&args),
        Command::Log(args) => ulpf_session::log::main(&args),
        Command::Doctor(args) => crate::doctor::doctor(&args),
        Command::Pages(args) => crate::pages::main(&args, Cli::command()),
    }
}

/// The words for a subcommand that parses its own: `help server` becomes `--help`.
fn theirs(words: &[OsString]) -> Vec<OsString> {
    match words.split_first() {
        Some((first, _)) if first == "help" => vec!["--help".into()],
        Some((_, rest)) => rest.to_vec(),
        None => vec![],
    }
}

fn server(words: Vec<OsString>) -> i32 {
    match options::parse(words) {
        Parsed::Print(text) => {
            ulpf_host::say::outln!("{}", text.trim_end());
            0
        }
        Parsed::Refuse(text) => {
            ulpf_host::say::message!("{}", text.trim_end());
            1
        }
        Parsed::Serve(options) => {
            if let Err(why) = options.settings.backend.check() {
                ulpf_host::say::message!("{why}");
                return 1;
            }
            run(ulpf_server::serve(*options))
        }
    }
}

/// One thread is enough for our work; a second one runs only while a program is started (blocking).
fn run(work: impl Future<Output = i32>) -> i32 {
    match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => {
            let status = runtime.block_on(work);
            // A read of stdin that blocks must not delay our exit.
            runtime.shutdown_background();
            status
        }
        Err(e) => {
            ulpf_host::say::message!("ulpf cannot start: {e}.");
            1
        }
    }
}
