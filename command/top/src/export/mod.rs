//! `ulpf export`: writes all hits of a session to a file, or serves its counters to Prometheus.
#![forbid(unsafe_code)]

mod formats;
mod http;
mod metrics;

pub use formats::snapshot;

use anyhow::{Context, Result, bail};
use clap::Args;
use formats::{Export, Format};
use http::Server;
use metrics::metrics;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use ulpf_area::SharedArea;
use ulpf_area::sessions::{Watched, Whose};
use ulpf_host::say::say;
use ulpf_host::{process, sys};
use ulpf_lib::ring::Rings;
use ulpf_session::find::choose;
use ulpf_session::merge::{self, Batch, Flow, Source};
use ulpf_session::snapshot::Snapshot;
use ulpf_session::watcher::{Look, Watcher};

const EXAMPLES: &str = "\
Examples:
  ulpf export -o hits.jsonl                 until the program ends, or Ctrl-C
  ulpf export -o hits.trace.json --for 10   ten seconds, for ui.perfetto.dev
  ulpf export --metrics                     http://127.0.0.1:9469/metrics for Prometheus

It begins with the hits that the rings still hold. The program is not slowed down: what comes faster than
it is written is lost, and counted.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// The watched program, or the ulpf that watches it; may be left out if there is only one
    #[arg(short, long, value_name = "PID")]
    pub pid: Option<i32>,

    /// Write to FILE (.jsonl, .csv, .trace.json); - is standard output
    #[arg(short, long, value_name = "FILE", required_unless_present = "metrics")]
    pub output: Option<PathBuf>,

    /// Format of the output, if the name of the file does not say it
    #[arg(long, value_enum)]
    pub format: Option<Format>,

    /// End after so many seconds
    #[arg(long = "for", value_name = "SECONDS")]
    pub seconds: Option<f64>,

    /// Serve the counters of all sessions to Prometheus, at this loopback address or port
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:9469", conflicts_with_all = ["output", "format"])]
    pub metrics: Option<String>,

    /// Another name of this machine by which --metrics may be asked; localhost and its addresses always work
    #[arg(long, value_name = "NAME", requires = "metrics")]
    pub allow_host: Vec<String>,

    /// As root: other users' sessions, too
    #[arg(long)]
    pub all_users: bool,
}

/// Runs the command and returns the exit status.
pub fn main(args: &ExportArgs) -> i32 {
    match run(args) {
        Ok(()) => 0,
        Err(error) => {
            say!("{error:#}");
            2
        }
    }
}

fn run(args: &ExportArgs) -> Result<()> {
    let leave = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, leave.clone()).context("cannot heed signals")?;
    }
    let end = args
        .seconds
        .map(|s| Instant::now() + Duration::from_secs_f64(s.clamp(0.0, 1e9)));
    let over = || leave.load(Ordering::Relaxed) || end.is_some_and(|e| Instant::now() >= e);
    let whose = Whose::of(args.all_users);
    match (&args.metrics, &args.output) {
        (Some(address), _) => serve(address, &args.allow_host, args.pid, whose, &over),
        (None, Some(path)) => {
            let format = match args.format {
                Some(format) => format,
                None if path.as_os_str() == "-" => Format::Jsonl,
                None => Format::of(path)?,
            };
            let name = path.display().to_string();
            let session = choose(args.pid, whose)?;
            if name == "-" {
                let out = std::io::BufWriter::new(stdout());
                return hits(session, Export::new(out, format)?, "standard output", &over);
            }
            hits(session, Export::create(path, format)?, &name, &over)
        }
        (None, None) => bail!("say where to: -o FILE, or --metrics"),
    }
}

/// A session's rings, read-only.
struct Outside(SharedArea);

impl Rings for Outside {
    fn rings(&self) -> usize {
        self.0.rings()
    }
    fn slots(&self, ring: usize) -> u64 {
        self.0.slots(ring)
    }
    fn head(&self, ring: usize) -> (u64, u64) {
        self.0.head(ring)
    }
    fn copy(&self, ring: usize, slot: u64, to: &mut [u64]) -> bool {
        self.0.copy(ring, slot, to)
    }
}

impl Source for Outside {
    fn now(&self) -> u64 {
        sys::tsc()
    }
    /// Polls: the writers wake only the process that watches.
    fn wait(&self, _: impl Fn() -> bool, limit: Duration) {
        std::thread::sleep(limit.min(Duration::from_millis(20)));
    }
}

fn hits<W: Write>(
    found: Watched,
    mut to: Export<W>,
    name: &str,
    over: &dyn Fn() -> bool,
) -> Result<()> {
    let mut snapshots: Vec<Snapshot> = Vec::new();
    let pid = found.pid;
    let shared = Outside(found.shared.clone());
    let mut watcher = Watcher::new(Vec::new(), Whose::Own);
    watcher.only(&found);
    // The owner of the session supplies the names.
    watcher.look(&mut snapshots, &Look::everything());
    while watcher.waits_for_lists() && !over() {
        std::thread::sleep(Duration::from_millis(5));
        watcher.look(&mut snapshots, &Look::everything());
    }
    let failed = || format!("cannot write {name}: the export is incomplete");
    to.begin(&snapshots[0]).with_context(failed)?;
    let flow = Flow::default();
    let (sender, batches) = sync_channel::<Batch>(64);
    let theirs = flow.clone();
    std::thread::spawn(move || merge::read(&shared, &theirs, |batch| sender.send(batch).is_ok()));
    let (mut lost, mut damaged, mut next) = (0u64, 0u64, Instant::now());
    loop {
        if over() || !process::is_alive(pid) {
            flow.finish.store(true, Ordering::Release);
        }
        if Instant::now() >= next {
            watcher.look(&mut snapshots, &Look::everything());
            next = Instant::now() + Duration::from_millis(500);
        }
        match batches.recv_timeout(Duration::from_millis(50)) {
            Ok(batch) => {
                let known = |w: &mut Watcher| {
                    let mut hits = batch.hits.iter();
                    w.observer(0).is_none_or(|o| hits.all(|h| o.knows(h.watch)))
                };
                if !known(&mut watcher) {
                    // New watches enter the shared table before the program resumes, so a look now finds them.
                    watcher.look(&mut snapshots, &Look::everything());
                }
                for hit in &batch.hits {
                    to.lost(hit.lost).with_context(failed)?;
                    lost = lost.saturating_add(hit.lost);
                    if let Some(line) = watcher.observer(0).and_then(|o| o.line(hit.clone())) {
                        to.hit(pid, &line).with_context(failed)?;
                    }
                }
                to.lost(batch.lost).with_context(failed)?;
                lost = lost.saturating_add(batch.lost);
                damaged += batch.damaged;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    watcher.look(&mut snapshots, &Look::everything());
    let written = to.end(&snapshots[0]).with_context(failed)?;
    let lost = match lost {
        0 => String::new(),
        n => format!("; {n} were overwritten before they could be read"),
    };
    say!("{written} hits written to {name}{lost}");
    if damaged > 0 {
        say!(
            "process {pid} has written over the memory in which its hits are kept ({damaged} of them came from the future): none of them can be relied on"
        );
    }
    Ok(())
}

/// Serves metrics until `over`.
fn serve(
    address: &str,
    hosts: &[String],
    pid: Option<i32>,
    whose: Whose,
    over: &dyn Fn() -> bool,
) -> Result<()> {
    let address: SocketAddr = match address.parse::<u16>() {
        Ok(port) => SocketAddr::from(([127, 0, 0, 1], port)),
        Err(_) => address
            .parse()
            .with_context(|| format!("`{address}` is no address: say PORT or 127.0.0.1:PORT"))?,
    };
    if !address.ip().is_loopback() {
        bail!(
            "{address} can be reached from outside, where everybody could read what is watched; use a loopback address, and a tunnel if need be"
        );
    }
    let server = Server::bind(address, hosts)?;
    say!("metrics at http://{}/metrics", server.address()?);
    let mut snapshots: Vec<Snapshot> = Vec::new();
    let mut watcher = Watcher::new(pid.into_iter().collect(), whose);
    watcher.look(&mut snapshots, &Look::everything());
    while !over() {
        if let Some(wanted) = server.next() {
            watcher.look(&mut snapshots, &Look::everything());
            // The client may be gone; then the metrics are dropped.
            let _ = wanted.send(metrics(&snapshots));
        }
    }
    Ok(())
}
