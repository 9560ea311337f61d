//! A target's corpus, and a fixed number of changed inputs, in a process of its own.
//!
//! ```text
//!     test process                                child: the same test binary, the same test
//!     ────────────                                ───────────────────────────────────────────
//!     starts the child ─────────────────────────▶ writes "input n: these bytes" to a file,
//!     looks at n: the same for ten seconds,         runs the target with them,
//!     and the child is killed                       …
//!     the child has ended ◀────────────────────── writes that all inputs have passed
//! ```
//! The file identifies the input to the parent, however the child has died.

use crate::changes::Changes;
use crate::corpus::{self, FUZZ};
use crate::{Target, memory};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, panic, process, thread};

/// Set in the child: the file with the input that runs.
const RUNNING: &str = "ULPF_FUZZ_RUNNING";
/// Set by users: a file that is to be the only input. A relative path starts at the root of the workspace.
const ONLY: &str = "ULPF_FUZZ_INPUT";
/// An input that takes longer has failed.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Stack of a thread of the command.
const STACK: usize = 2 << 20;
/// Number of the input after the last one.
const DONE: u64 = u64::MAX;
/// Number and length of the input, before its bytes.
const HEADER: usize = 16;

/// Result of a target whose inputs have all passed.
pub struct Passed {
    pub corpus: u64,
    pub changed: u64,
    pub took: Duration,
}

/// Runs a target in a child process, which runs the test of this name and so calls this function again.
///
/// # Errors
/// An input has failed: which one, how, and where it has been written to.
pub fn run(target: &Target, test: &str, deadline: Duration) -> Result<Passed, String> {
    match env::var_os(RUNNING) {
        Some(file) => inside(target, Path::new(&file)),
        None => outside(target, test, deadline),
    }
}

/// The parent's side.
fn outside(target: &Target, test: &str, deadline: Duration) -> Result<Passed, String> {
    let kept = Path::new(FUZZ).join("../target/fuzz");
    let kept = fs::create_dir_all(&kept).and_then(|()| kept.canonicalize());
    let kept = kept.map_err(|error| format!("target/fuzz: {error}"))?;
    let watched = watch(target, test, deadline, &kept);
    watched.map_err(|error| format!("{}: {error}", target.name))?
}

fn watch(
    target: &Target,
    test: &str,
    deadline: Duration,
    kept: &Path,
) -> io::Result<Result<Passed, String>> {
    let folder = kept.join("slice");
    fs::create_dir_all(&folder)?;
    let path = folder.join(target.name);
    let log = path.with_extension("log");
    fs::write(&path, [0; HEADER])?;
    let file = File::open(&path)?;
    let start = Instant::now();
    let mut child = Command::new(env::current_exe()?)
        .args(["--exact", test, "--nocapture"])
        .env(RUNNING, &path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log)?)
        .spawn()?;
    let (mut last, mut since) = (0, start);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        let now = running(&file)?.0;
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > deadline {
            child.kill()?;
            child.wait()?;
            break None;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let took = start.elapsed();
    let (number, len) = running(&file)?;
    let ended = match status {
        Some(status) => status.to_string(),
        None => format!("it ran for {} s and was killed", deadline.as_secs()),
    };
    if number == DONE && status.is_some_and(|status| status.success()) {
        fs::remove_file(&path)?;
        let changed = target.inputs;
        let corpus = len - changed;
        return Ok(Ok(Passed {
            corpus,
            changed,
            took,
        }));
    }
    if number == 0 || number == DONE {
        let log = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        return Ok(Err(format!("no input was running: {ended}\n{log}")));
    }
    let mut input = vec![0; len as usize];
    file.read_exact_at(&mut input, HEADER as u64)?;
    let failed = kept.join("failed").join(target.name);
    fs::create_dir_all(&failed)?;
    let failed = failed.join(format!("slice-{:016x}", corpus::hash(&input)));
    fs::write(&failed, &input)?;
    let said = fs::read(&log)?;
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(6000)..]).into_owned();
    let how = format!("{said}\n{}: input {number} failed: {ended}", target.name);
    Ok(Err(report(&how, target.name, &input, &failed)))
}

/// Number and length of the input that runs.
fn running(file: &File) -> io::Result<(u64, u64)> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    let word = |at| u64::from_le_bytes(std::array::from_fn(|n| header[at + n]));
    Ok((word(0), word(8)))
}

fn report(how: &str, name: &str, input: &[u8], path: &Path) -> String {
    let begin = input[..input.len().min(300)].escape_ascii();
    let path = path.display();
    format!(
        "{how}\n{path} ({} bytes: {begin})\n\
         To run it again, in this build or in libFuzzer's:\n  \
         ULPF_FUZZ_INPUT={path} cargo test --release --test fuzz {name}\n  \
         fuzz/run --reproduce {name} {path}",
        input.len()
    )
}

/// The child's side.
fn inside(target: &Target, path: &Path) -> ! {
    no_core_file();
    // A panic in a detached task fails, too.
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        say(info);
        process::exit(101);
    }));
    let options = File::options().write(true).open(path);
    let file = options.expect("the parent has made the file");
    thread::scope(|scope| {
        let builder = thread::Builder::new().stack_size(STACK);
        let body = || all_inputs(target, &file);
        let thread = builder.spawn_scoped(scope, body).expect("a thread");
        thread.join().expect("a panic ends the process");
    });
    process::exit(0);
}

fn all_inputs(target: &Target, file: &File) {
    let mut number = 0u64;
    let mut record = Vec::new();
    let mut one = |input: &[u8]| {
        number += 1;
        record.clear();
        record.extend_from_slice(&number.to_le_bytes());
        record.extend_from_slice(&(input.len() as u64).to_le_bytes());
        record.extend_from_slice(input);
        file.write_all_at(&record, 0).expect("the parent's file");
        memory::bounded(|| (target.run)(input));
        number
    };
    let mut passed = 0;
    if let Some(only) = env::var_os(ONLY) {
        one(&corpus::read(&Path::new(FUZZ).join("..").join(only)));
        passed = target.inputs + 1;
    } else {
        let inputs = corpus::inputs(target.name);
        let words = corpus::words(target.name);
        for input in &inputs {
            passed = one(input);
        }
        let seed = corpus::hash(target.name.as_bytes());
        let mut changes = Changes::new(seed, &inputs, &words);
        let mut input = Vec::new();
        for _ in 0..target.inputs {
            changes.next(&mut input);
            passed = one(&input);
        }
    }
    let done = [DONE.to_le_bytes(), passed.to_le_bytes()].concat();
    file.write_all_at(&done, 0).expect("the parent's file");
}

/// Inputs that fail are written down by the parent; cores would only fill the disk.
fn no_core_file() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is ours, and the kernel only reads it.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}
