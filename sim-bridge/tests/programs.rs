// SPDX-License-Identifier: GPL-2.0-or-later
//! Whole programs on the machine: compiled here with `gcc -static`, run by `ulpf-sim`.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Compiles `source` (relative to this crate) with further options, once for each test.
fn build(source: &str, options: &[&str]) -> PathBuf {
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let test = std::thread::current().name().unwrap().to_owned();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{name}"));
    let done = Command::new("gcc")
        .args(["-O2", "-I../kernel/include/uapi", "-o"])
        .arg(&out)
        .arg(source)
        .args(options)
        .current_dir(HERE)
        .status()
        .expect("gcc is there");
    assert!(done.success(), "{source} does not compile");
    out
}

fn program(name: &str) -> PathBuf {
    build(&format!("tests/programs/{name}.c"), &["-static", "-lm"])
}

struct Run {
    status: i32,
    out: String,
    err: String,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn sim(options: &[&str], program: &Path, args: &[&str]) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_ulpf-sim"))
        .args(options)
        .arg(program)
        .args(args)
        .output()
        .unwrap();
    Run {
        status: status.code().expect("ulpf-sim ends by itself"),
        out: text(&stdout),
        err: text(&stderr),
    }
}

impl Run {
    /// A number of the statistics in JSON.
    fn count(&self, name: &str) -> u64 {
        let key = format!("\"{name}\":");
        let at = self
            .err
            .find(&key)
            .unwrap_or_else(|| panic!("no {name} in {}", self.err))
            + key.len();
        let digits = self.err[at..]
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap();
        digits.parse().unwrap()
    }

    fn succeeds(&self, out: &str) {
        assert_eq!((self.status, self.out.as_str()), (0, out), "{}", self.err);
    }
}

#[test]
fn a_program_runs_as_on_linux() {
    let p = program("hello");
    let native = Command::new(&p).arg("you").output().unwrap();
    assert_eq!(native.status.code(), Some(7));
    for options in [&[][..], &["--functional"]] {
        let run = sim(options, &p, &["you"]);
        assert_eq!(
            (run.status, run.out),
            (7, text(&native.stdout)),
            "{}",
            run.err
        );
    }
}

#[test]
fn examples_run_as_on_linux() {
    let tests = ["five", "heap1000", "strings"].map(|name| format!("../tests/programs/{name}.c"));
    for name in tests
        .iter()
        .map(String::as_str)
        .chain(["../examples/structs.c"])
    {
        let p = build(name, &["-static"]);
        let native = Command::new(&p).output().unwrap();
        let run = sim(&["--functional"], &p, &[]);
        assert_eq!(
            (Some(run.status), run.out),
            (native.status.code(), text(&native.stdout)),
            "{name}: {}",
            run.err
        );
    }
}

/// Also position-independent, and the same in every run.
#[test]
fn a_run_can_be_repeated() {
    let p = build("tests/programs/hello.c", &["-static-pie", "-fPIE", "-lm"]);
    let runs = [0, 1].map(|_| sim(&["--json=-"], &p, &["you"]));
    assert_eq!(runs[0].status, 7, "{}", runs[0].err);
    assert_eq!(runs[0].err, runs[1].err);
    assert!(runs[0].count("tlb_misses") > 10);
}

#[test]
fn the_thesis_mechanism() {
    for options in [&[][..], &["--functional"], &["--write-once=thesis"]] {
        sim(options, &program("thesis"), &[]).succeeds("thesis: done\n");
    }
}

/// Section 3.2.2: if both would fault, it is the kernel's. And a frame needs memory.
#[test]
fn no_handler_is_entered() {
    let p = program("thesis");
    for (how, why) in [
        ("kernel", "the page's protection forbids"),
        ("frame", "no room for the handler's frame"),
    ] {
        let run = sim(&[], &p, &[how]);
        assert!(
            run.status == 128 + 11 && run.err.contains(why),
            "{how}: {} {}",
            run.out,
            run.err
        );
    }
}

/// Section 3.2.3 and DESIGN.md, with Unicorn's own pieces of a MOVUPS.
#[test]
fn write_once_rules() {
    let p = program("instruction");
    let run = |rule: &str, what: &str| {
        let run = sim(&["--limit=300000", "--write-once", rule], &p, &[what]);
        match run.status {
            0 => Some(run.out),
            _ => {
                assert!(
                    run.status == 125 && run.err.contains("has not ended"),
                    "{}",
                    run.err
                );
                None
            }
        }
    };
    let one = Some("1 faults, 1 0\n".into());
    for rule in ["bit", "thesis", "corrected"] {
        assert_eq!(run(rule, "store"), one);
    }
    let both = Some("2 faults, -1 -1\n".into());
    assert_eq!(run("bit", "movups"), None);
    assert_eq!(run("thesis", "movups"), both);
    assert_eq!(run("corrected", "movups"), both);
    assert_eq!(run("bit", "rmw"), None);
    assert_eq!(run("thesis", "rmw"), None);
    assert_eq!(run("corrected", "rmw"), one);
}

/// Tables 4.1 and 4.2, each row from the steps that a run has really taken.
#[test]
fn the_thesis_tables_to_the_cycle() {
    let run = sim(&["--json=-"], &program("instruction"), &["store"]);
    run.succeeds("1 faults, 1 0\n");
    let table_4_2 = [
        ("flush", 10),
        ("inform", 6),
        ("save-pc", 6),
        ("save-flags", 12),
        ("save-rdi", 12),
        ("cpu-id", 7),
        ("mispredict", 10),
        ("first-instruction", 2),
    ];
    for (step, cycles) in table_4_2 {
        assert_eq!(run.count(step), cycles, "{step}");
    }
    let total: u64 = table_4_2.iter().map(|row| run.count(row.0)).sum();
    assert_eq!(total, 65);
    assert_eq!(total + run.count("raise"), 130);
    assert_eq!(run.count("return"), 85);
    assert_eq!(run.count("signal_cycles_modelled"), 24910);
    // The handler's five instructions before ULIRET; the first one is a step of the table.
    assert_eq!(run.count("handler_cycles"), 4);
    let steps = run.count("instruction") + run.count("walk") + 130 + 85;
    assert_eq!(run.count("cycles"), steps);
    // Of all instructions, those two are not charged as such.
    assert_eq!(run.count("instructions") - run.count("instruction"), 2);
}

/// `rdtsc` in a program reads the cycles that the model has charged: three instructions; then 130 and
/// 85 cycles more, and four of the handler's.
#[test]
fn rdtsc_counts_the_models_cycles() {
    let p = program("measure");
    sim(&[], &p, &[]).succeeds("open 3, guarded 222\n");
    sim(&["--cost=raise=0", "--cost=instruction=3"], &p, &[]).succeeds("open 9, guarded 171\n");
}

/// The third row of Table 4.1 that is ULPF's: the modelled handler's lookup.
#[test]
fn watches_with_the_modelled_handler() {
    let p = program("loop");
    let plain = sim(&["--json=-"], &p, &["3"]);
    let run = sim(
        &["--json=-", "--watch=table:64", "--watch", "total"],
        &p,
        &["3"],
    );
    run.succeeds(&plain.out);
    // Sixteen elements in three rounds, and one store to `total`.
    assert_eq!(run.count("hits"), 49);
    let faults = run.count("faults");
    assert_eq!(run.count("false_positives"), faults - 49);
    assert_eq!(run.count("lookup"), 200 * faults);
    assert_eq!(
        run.count("cycles") - plain.count("cycles"),
        (130 + 200 + 85) * faults
    );
    assert_eq!(run.count("tlb_misses"), plain.count("tlb_misses"));
}

#[test]
fn a_small_tlb_misses_more() {
    let p = program("loop");
    let misses = |size| sim(&["--json=-", "--tlb", size], &p, &["3"]).count("tlb_misses");
    assert!(misses("2") > 2 * misses("256"));
}

#[test]
fn a_program_for_the_device() {
    for options in [&[][..], &["--functional"], &["--write-once=thesis"]] {
        sim(options, &program("device"), &[]).succeeds("device: done\n");
    }
}

/// The program that also gem5 runs (tests/sim/test_gem5.py).
#[test]
fn handlers_that_return_by_ordinary_instructions() {
    let program = build("tests/programs/upcalls.c", &["-static"]);
    sim(&[], &program, &[]).succeeds("upcalls: done\n");
    sim(&["--functional"], &program, &[]).succeeds("upcalls: done\n");
    for (rule, modify, moves) in [
        ("bit", "does not end, 1001 ", "does not end, 1001 "),
        ("thesis", "does not end, 1001 ", "ends, 2 "),
        ("corrected", "ends, 1 ", "ends, 2 "),
    ] {
        let out = format!("modify: {modify}faults\nmove: {moves}faults\n");
        sim(&["--write-once", rule], &program, &["once"]).succeeds(&out);
    }
}

#[test]
fn what_is_refused() {
    let refused = |options: &[&str], program: &Path, why: &str| {
        let run = sim(options, program, &[]);
        assert!(
            run.status == 125 && run.err.contains(why),
            "{}: {}",
            run.status,
            run.err
        );
    };
    let dynamic = build("tests/programs/loop.c", &[]);
    refused(&[], &dynamic, "link it with -static");
    refused(&[], Path::new("/nonexistent"), "No such file");
    refused(&[], &Path::new(HERE).join("Cargo.toml"), "not an ELF file");
    let p = program("loop");
    refused(&["--tlb=3"], &p, "a power of two");
    refused(&["--cost=rise=1"], &p, "no step is called `rise`");
    refused(&["--watch=tabel"], &p, "no variable `tabel`");
    refused(&["--watch=0x10:4"], &p, "nothing is mapped at 0x10");
    refused(
        &["--limit=1000"],
        &p,
        "has not ended after 1000 instructions",
    );
}

/// Threads take turns; locks, conditions, thread-local storage, time-outs. A deadlock is reported.
#[test]
fn threads() {
    let p = build("tests/programs/threads.c", &["-static", "-pthread"]);
    for options in [&[][..], &["--functional"]] {
        sim(options, &p, &[]).succeeds("80000 80000 80000, time-out 1\n");
        let run = sim(options, &p, &["for ever"]);
        assert!(
            run.status == 125 && run.err.contains("wait for each other"),
            "{}",
            run.err
        );
    }
}

/// Handlers, masks, faults, alternate stacks, forked children, their statuses, pipes, timers.
#[test]
fn signals_and_processes() {
    let p = build("tests/programs/signals.c", &["-static"]);
    for options in [&[][..], &["--functional"]] {
        sim(options, &p, &[]).succeeds("signals: done\n");
    }
}

/// The machine ends by itself where hardware would go on for ever.
#[test]
fn handlers_that_never_end() {
    let p = program("endless");
    for options in [&[][..], &["--functional"]] {
        let run = sim(options, &p, &["spins"]);
        let why = "has not returned after 10000000 instructions (--handler-limit)";
        assert!(run.status == 125 && run.err.contains(why), "{}", run.err);
        let run = sim(options, &p, &["returns"]);
        let why = "times to 0x";
        assert!(run.status == 125 && run.err.contains(why), "{}", run.err);
    }
    let run = sim(&["--handler-limit=20000"], &p, &["spins"]);
    assert!(run.status == 125 && run.err.contains("after 20000 instructions"));
}

/// execve, vfork (the parent waits and sees what is stored), posix_spawn.
#[test]
fn other_programs() {
    let p = program("family");
    assert_eq!(
        text(&Command::new(&p).output().unwrap().stdout),
        "family: done\n"
    );
    for options in [&[][..], &["--functional"]] {
        sim(options, &p, &[]).succeeds("family: done\n");
        assert_eq!(sim(options, &p, &["become"]).status, 5);
    }
    for (other, why) in [
        ("/bin/sh", "execve of /bin/sh: dynamically linked"),
        (&format!("{HERE}/../tests/run"), "not an ELF file"),
    ] {
        let run = sim(&[], &p, &["script", other]);
        assert!(run.status == 125 && run.err.contains(why), "{}", run.err);
    }
}

/// The header says another processor, or another size: refused before anything is loaded.
#[test]
fn other_architectures() {
    let p = program("loop");
    let bytes = std::fs::read(&p).unwrap();
    for (at, value, why) in [(18, 183, "x86-64"), (4, 1, "32-bit"), (18, 3, "x86-64")] {
        let mut changed = bytes.clone();
        changed[at] = value;
        let copy = p.with_extension(format!("{at}-{value}"));
        std::fs::write(&copy, changed).unwrap();
        let run = sim(&[], &copy, &[]);
        assert!(run.status == 125 && run.err.contains(why), "{}", run.err);
    }
}

/// A system call that the machine does not have ends the run by name.
#[test]
fn unknown_system_calls() {
    let p = program("ends");
    for options in [&[][..], &["--functional"]] {
        let run = sim(options, &p, &["System call"]);
        let why = "the machine does not know system call 41, socket";
        assert!(run.status == 125 && run.err.contains(why), "{}", run.err);
    }
}

/// Code that it changes itself, by stores, system calls and mappings, also while it runs there.
#[test]
fn code_that_changes() {
    let p = program("code");
    assert_eq!(
        text(&Command::new(&p).output().unwrap().stdout),
        "code: done\n"
    );
    for options in [&[][..], &["--functional"], &["--watch=returns"]] {
        sim(options, &p, &[]).succeeds("code: done\n");
    }
}

/// Faults, traps, an exception of the kernel's, and what only a kernel may do.
#[test]
fn signals_end_it_as_a_shell_would_say() {
    let p = program("ends");
    for how in [
        "div",
        "abort",
        "ud2",
        "breakpoint",
        "null",
        "read-only",
        "jump",
        "xn",
        "kernel",
        "hlt",
        "iretq",
        "stack",
    ] {
        let native = Command::new(&p).arg(how).output().unwrap().status.signal();
        for options in [&[][..], &["--functional"]] {
            let run = sim(options, &p, &[how]);
            let signal = run.status - 128;
            assert_eq!(Some(signal), native, "{how}: {}", run.err);
            assert!(
                run.err.contains(&format!("signal {signal}: ")),
                "{how}: {}",
                run.err
            );
        }
    }
}
