//! How the number of watches, and that of threads, changes what an access costs.

use super::super::packets::Session;
use super::super::readings::Readings;
use super::super::table::{Goal, Table, Unit, count as whole, some};
use super::super::tools::{Measured, PATCHED, Run};
use super::super::turns::Bench;
use anyhow::Result;
use std::time::Instant;
use ulpf_lib::command::{Arm, How, What};
use ulpf_lib::filter::Filter;
use ulpf_lib::{TargetAddr, WatchKind, WatchRange};

const CASE: &str = "count";
const PAGES: u64 = 256;
/// The rest of each page is what the program stores to.
const WATCHED: u64 = 4096 - 64;

/// As many one-byte watches, evenly on 256 pages.
fn offsets(count: u64) -> impl Iterator<Item = u64> {
    let stride = WATCHED / count.div_ceil(PAGES);
    (0..count).map(move |n| n % PAGES * 4096 + n / PAGES * stride)
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let program = bench.programs.get("mates")?;
    let seconds = if bench.quick { "0.05" } else { "0.3" };
    let bare = Run {
        program: &program,
        arguments: &[seconds],
    };
    let counts: &[u64] = match bench.quick {
        true => &[1_000, 100_000],
        false => &[1_000, 1_000_000],
    };
    for _ in 0..bench.turns.min(3) {
        let measured = bench.bare(bare)?;
        bench.reading(CASE, "bare", "ns", measured.get("ns")?);
        for &count in counts {
            let mut command = bench.ulpf();
            command.args(["server", "--once", "--placement=guard"]);
            let mut session = Session::at_ready(&mut command, &program, &[seconds])?;
            let block = session.address(&program, "block")?;
            session.step()?;
            let before = session.resident()?;
            let start = Instant::now();
            let watches: Vec<Arm> = offsets(count)
                .map(|n| Arm {
                    what: WatchRange::new(TargetAddr(block + n), 1).map_or(What::Heap, What::Range),
                    kind: WatchKind::Write,
                    how: How::default(),
                    filter: Filter::default(),
                })
                .collect();
            session.client.arm(&watches)?;
            session.step()?;
            let took = start.elapsed().as_secs_f64();
            let variant = format!("{count} watches");
            bench.reading(CASE, &variant, "s to arm", took);
            bench.reading(
                CASE,
                &variant,
                "bytes a watch",
                (session.resident()? - before) / count as f64,
            );
            let measured = Measured::find(&session.end()?)?;
            bench.reading(CASE, &variant, "ns", measured.get("ns")?);
        }
    }
    Ok(())
}

pub fn tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Many one-byte watches on the same 256 pages",
        &[
            "watches",
            "false positive, ns",
            "armed in, s",
            "bytes a watch",
        ],
    );
    let of = |count: u64, unit| r.median(CASE, &format!("{count} watches"), unit);
    t.row(&["bare", &some(r.median(CASE, "bare", "ns")), "", ""]);
    for count in [1_000, 100_000, 1_000_000] {
        if of(count, "ns").is_some() {
            t.row(&[
                &whole(count as f64),
                &some(of(count, "ns")),
                &some(of(count, "s to arm")),
                // Of a few, the guards take more, and what the program has in use changes more.
                &some(of(count, "bytes a watch").filter(|_| count > 1_000)),
            ]);
        }
    }
    let many = 1_000_000;
    if let (Some(few), Some(all)) = (of(1_000, "ns"), of(many, "ns")) {
        t.goal(Some(Goal::at_most(
            "10^6 watches against 10^3 on the same pages",
            all / few,
            1.1,
            1.0,
            Unit::Times,
        )));
    }
    if let Some(seconds) = of(many, "s to arm") {
        t.goal(Some(Goal::at_most(
            "arming 10^6 watches in bulk",
            seconds,
            1.0,
            0.2,
            Unit::Seconds,
        )));
    }
    if let Some(bytes) = of(many, "bytes a watch") {
        t.goal(Some(Goal::at_most(
            "memory of 10^6 watches, each",
            bytes,
            64.0,
            24.0,
            Unit::Bytes,
        )));
    }
    t.note("Stores to the last 64 bytes of each page, the watches are on the others. Armed as `ulpf run --watch-file` does it; memory: what more of the program is resident then.");
    vec![t]
}

// ---- threads ----------------------------------------------------------------------------------------

const THREADS: &str = "threads";

pub fn threads(bench: &mut Bench) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        bench.skip(
            "two threads on two processors",
            "there is only one processor",
        );
        return Ok(());
    }
    let program = bench.programs.get("threads")?;
    let rounds = if bench.quick { "100" } else { "600" };
    // One on each page, on all pages of both.
    let specs: Vec<String> = (0..PAGES)
        .map(|n| format!("block+{}:1", n * 4096 + 2048))
        .collect();
    for _ in 0..bench.turns {
        for count in ["1", "2"] {
            let arguments = [count, rounds];
            let run = Run {
                program: &program,
                arguments: &arguments,
            };
            let bare = bench.bare(run)?;
            bench.reading(THREADS, &format!("{count}, bare"), "ns", bare.get("ns")?);
            let (measured, _) = bench.watched(&PATCHED, &specs, run)?;
            bench.reading(
                THREADS,
                &format!("{count}, patched"),
                "ns",
                measured.get("ns")?,
            );
        }
    }
    Ok(())
}

pub fn thread_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Two threads on two processors against one",
        &[
            "",
            "one thread, ns a store",
            "two threads, ns a store",
            "throughput",
        ],
    );
    let mut of = |who: &str| {
        let (one, two) = (format!("1, {who}"), format!("2, {who}"));
        let gain = r.ratio(THREADS, &one, &two, "ns");
        t.row(&[
            who,
            &some(r.median(THREADS, &one, "ns")),
            &some(r.median(THREADS, &two, "ns")),
            &super::super::table::times(gain),
        ]);
        gain
    };
    of("bare");
    if let Some(gain) = of("patched") {
        t.goal(Some(Goal::at_least(
            "two threads on two processors against one",
            gain,
            1.9,
            2.0,
            Unit::Times,
        )));
    }
    t.note("Each thread stores every byte of 128 pages of its own, each with a watch. The row of the bare program shows what the machine itself gives.");
    vec![t]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_million_different_bytes_that_nobody_stores_to() {
        for count in [1_000, 1_000_000] {
            let all: BTreeSet<u64> = offsets(count).collect();
            assert_eq!(all.len() as u64, count);
            assert!(all.iter().all(|n| n % 4096 < WATCHED));
            let pages: BTreeSet<u64> = all.iter().map(|n| n / 4096).collect();
            assert_eq!(pages.len() as u64, PAGES);
        }
    }
}
