//! `ulpf find`: finds a value in a running program, and narrows the places down when it has changed. The places can be
//! watched (`ulpf attach -w @found`).
//!
//! ```text
//!   /proc/PID/maps, /proc/PID/mem ─▶ scan ─▶ places ─▶ kept (~/.cache/ulpf/PID.found) ─▶ --next ─▶ fewer ─▶ attach -w @found
//! ```
#![forbid(unsafe_code)]

mod kept;
mod scan;
mod value;

use anyhow::{Result, bail};
use clap::Args;
use kept::Found;
use scan::{Kind, Memory};
use std::fmt::Write as _;
use std::io::{Write, stdout};
use ulpf_host::foreign::text::Text;
use ulpf_host::say::say;
use ulpf_session::words::count;
use value::{Type, Wanted};

const EXAMPLES: &str = "\
WHAT
  42   -1   0x2a   1.5      a value; its type is i32, i64, u64 or f64 unless --type names another
  10..20   10..=20   ..     a range, as watches have it; .. is any value
  hello                     a text
  changed   unchanged   increased   decreased
                            with --next: what has become of it since the last search

  ulpf find 4711 100                       all places that hold 100
  ulpf find 4711 --next 99                 those of them that hold 99 now
  ulpf find 4711 --next decreased          those that hold less than at the last search
  ulpf attach -w @found 4711               watches what is left

The program goes on meanwhile. What is found is kept in ~/.cache/ulpf, for this user alone. Exit status: 0; 1: nothing was
found; 2: the memory cannot be read.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct FindArgs {
    /// The process
    pub pid: i32,

    /// The value to look for
    #[arg(allow_hyphen_values = true)]
    pub what: String,

    /// Look only at what the last search has found
    #[arg(short, long)]
    pub next: bool,

    /// Type of the value; with --next it is that of the last search
    #[arg(short = 't', long = "type", value_enum, conflicts_with = "next")]
    pub ty: Option<Type>,

    /// Only in this kind of memory; may be repeated
    #[arg(long = "in", value_enum, value_name = "KIND", conflicts_with = "next")]
    pub kinds: Vec<Kind>,

    /// Values that begin anywhere, not only where compilers put them
    #[arg(long, conflicts_with = "next")]
    pub unaligned: bool,

    /// Number of places that are listed
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub list: usize,
}

/// Runs the command and returns the exit status.
pub fn main(args: &FindArgs) -> i32 {
    match find(args) {
        Ok(0) => 1,
        Ok(_) => 0,
        Err(error) => {
            say!("{error:#}");
            2
        }
    }
}

fn find(args: &FindArgs) -> Result<usize> {
    let pid = args.pid;
    let (memory, found) = match args.next {
        false => {
            let memory = Memory::of(pid, &args.kinds)?;
            let ty = args.ty.unwrap_or_else(|| Type::of(&args.what));
            let wanted = Wanted::parse(&args.what, ty, false)?;
            let step = if args.unaligned { 1 } else { ty.size() };
            let places = memory.search(&wanted, ty, step)?;
            let len = match &wanted {
                Wanted::Text(text) => text.len(),
                _ => ty.size(),
            };
            (memory, Found::new(pid, ty, len, places)?)
        }
        true => {
            let memory = Memory::of(pid, &[])?;
            let mut found = Found::of(pid)?;
            let wanted = Wanted::parse(&args.what, found.ty, true)?;
            if found.ty == Type::Str && !matches!(wanted, Wanted::Text(_)) {
                bail!(
                    "the last search was for a text: what is left of it is known by searching for a text"
                );
            }
            if let Wanted::Text(text) = &wanted {
                found.len = text.len();
            }
            found.places = memory.narrow(&found.places, &wanted, found.ty, found.len)?;
            (memory, found)
        }
    };
    for region in memory.silent() {
        let (name, start) = (Text(&region.name), region.start);
        say!("{name} at {start:#x} is not searched: its file system does not answer");
    }
    found.keep()?;
    let mut text = String::new();
    let places = count(found.places.len() as u64, "place");
    let verb = if found.places.len() == 1 {
        "holds"
    } else {
        "hold"
    };
    let _ = writeln!(
        text,
        "{places} in process {pid} {verb} {} ({}; {} MiB searched)",
        Text(&args.what),
        found.ty,
        memory.len() >> 20
    );
    for (at, bits) in found.places.iter().take(args.list) {
        let value = match found.ty {
            Type::Str => String::new(),
            ty => format!("{:>12}  ", ty.number(*bits)),
        };
        let _ = writeln!(text, "  {at:#014x}  {value}{}", Text(&memory.name(*at)));
    }
    if let more @ 1.. = found.places.len().saturating_sub(args.list) {
        let _ = writeln!(text, "  and {more} more (--list N)");
    }
    let _ = stdout().write_all(text.as_bytes());
    Ok(found.places.len())
}

/// The SPECs for `@found` in a process: the places that the last search left.
///
/// # Errors
/// There was no search, or it left no places or too many.
pub fn specs(pid: i32, rest: &str) -> Result<Vec<String>> {
    const MOST: usize = 10_000;
    let found = Found::of(pid)?;
    match found.places.len() {
        0 => bail!("`@found`: the last search in process {pid} has found nothing"),
        n if n > MOST => bail!(
            "`@found`: {n} places are left of the last search in process {pid}, and {MOST} at most are watched; narrow them with `ulpf find {pid} --next`"
        ),
        _ => {}
    }
    let spec = |(at, _): &(u64, u64)| format!("{at:#x}:{}{rest}", found.len);
    Ok(found.places.iter().map(spec).collect())
}
