// SPDX-License-Identifier: GPL-2.0-or-later
//! The thesis's Tables 4.1 to 4.7.

use super::Options;
use super::guest::{self, GuestReport, HEAP, SWEEP, SWEEP_O0};
use super::published::{Row, TABLE_4_3, TABLE_4_4, TABLE_4_5, TABLE_4_6, TABLE_4_7};
use super::table::{Table, count, ratio};
use anyhow::Result;
use ulpf_sim_bridge::costs::{Costs, DELIVERY, SIGNALS, STEPS, Step};

/// Cycles of a store of the loop in Tables 4.3 to 4.6, with the instructions around it. The thesis does
/// not tell; its tables imply it: (130 + 85) * 4096 faults for 1/256 of the loop add 0.0083 to the
/// slowdown (Table 4.3, without lookup), so the loop takes 215 / (256 * 0.0083) a store.
pub const BASE: u64 = 101;

/// Cycles that one fault costs by the model, and what was counted in a run: they have to be the same.
fn per_fault(of: &GuestReport, faults: u64, step: Step) -> String {
    let cycles = of.stats.steps[step as usize];
    match faults {
        0 => "–".into(),
        n if cycles.is_multiple_of(n) => (cycles / n).to_string(),
        n => format!("{:.2}", cycles as f64 / n as f64),
    }
}

fn one_page(handler: &str) -> Result<GuestReport> {
    guest::run(SWEEP, &[handler, "1", "first", "1", "1"])
}

pub fn steps(_: &Options) -> Result<Table> {
    let (bare, empty, lookup) = (one_page("none")?, one_page("empty")?, one_page("lookup")?);
    let native = guest::signals()?;
    let faults = empty.stats.faults;
    let enter = DELIVERY
        .iter()
        .chain(&[Step::Raise])
        .map(|&s| empty.stats.steps[s as usize])
        .sum::<u64>();
    let looked = (lookup.cycles - empty.cycles) as f64 / faults as f64;
    let mut t = Table::new(
        "Table 4.1: a fault, in cycles",
        &[
            "",
            "thesis, ULPF",
            "ours, ULPF",
            "thesis, signals",
            "signals here",
        ],
    );
    let dash = || "–".to_owned();
    let ours = [
        (enter / faults).to_string(),
        format!("{looked:.0}"),
        dash(),
        per_fault(&empty, faults, Step::Return),
        dash(),
        dash(),
    ];
    let published = ["130", "200", "–", "85", "–", "–"];
    let here = [
        native[0].to_string(),
        format!("{looked:.0}"),
        native[1].to_string(),
        native[2].to_string(),
        "(in the line above)".into(),
        native[3].to_string(),
    ];
    for (n, (name, signals)) in SIGNALS.iter().enumerate() {
        t.row([
            format!("({}) {name}", n + 1),
            published[n].into(),
            ours[n].clone(),
            signals.to_string(),
            here[n].clone(),
        ]);
    }
    let fault = (empty.cycles - bare.cycles) as f64 / faults as f64;
    t.note(format!(
        "Measured: {} faults of a loop on one page with an empty handler; the program's own time-stamp counter says {fault:.1} cycles a fault. The costs of the steps are parameters (`--cost`), the thesis's; that they add up to it is measured. The lookup is no parameter. It is libulpf's splay tree, run by the handler on the machine, with one cycle an instruction and {} a TLB miss. The figure includes its entry and its call.",
        count(faults),
        Costs::default().of(Step::Walk)
    ));
    t.note("Signals here: the same steps on this processor and kernel, natively, medians of 1,000; the kernel's way back and the second execution are one figure.");
    Ok(t)
}

pub fn delivery(_: &Options) -> Result<Table> {
    let run = one_page("empty")?;
    let costs = Costs::default();
    let names = [
        "flushing the pipeline",
        "inform microarchitecture of ULI",
        "save the next PC",
        "save the current RFLAGS",
        "save the current RDI register",
        "write the CPU id to RDI",
        "misprediction",
        "execute first instruction of the handler prologue",
    ];
    let mut t = Table::new(
        "Table 4.2: from the fault to the handler, in cycles",
        &["", "thesis", "ours"],
    );
    let mut total = 0;
    for (n, (&step, name)) in DELIVERY.iter().zip(names).enumerate() {
        total += run.stats.steps[step as usize];
        t.row([
            format!("({}) {name}", n + 1),
            STEPS[step as usize].2.to_string(),
            per_fault(&run, run.stats.faults, step),
        ]);
    }
    t.row([
        "total".into(),
        "65".into(),
        (total / run.stats.faults).to_string(),
    ]);
    t.note(format!(
        "Parameters, and charged step by step in a run of {} faults. Table 4.1 has 130 for the same; the {} that are missing here are `raise`.",
        count(run.stats.faults),
        costs.of(Step::Raise)
    ));
    Ok(t)
}

/// Slowdown of the loop by a run, and its cycles a fault.
struct Point {
    pages: f64,
    slowdown: f64,
    cycles: f64,
}

fn point(bare: &GuestReport, run: &GuestReport, stores: u64, pages: u64, base: u64) -> Point {
    let added = run.cycles.saturating_sub(bare.cycles) as f64;
    Point {
        pages: pages as f64,
        slowdown: 1. + added / (stores * base) as f64,
        cycles: added / run.stats.faults.max(1) as f64,
    }
}

/// Least squares: slowdown a page, and the share of the variance that a line explains.
fn line(points: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64) {
    let n = points.clone().count() as f64;
    let mean = |f: fn((f64, f64)) -> f64| points.clone().map(f).sum::<f64>() / n;
    let (mx, my) = (mean(|p| p.0), mean(|p| p.1));
    let sum = |f: &dyn Fn((f64, f64)) -> f64| points.clone().map(f).sum::<f64>();
    let (xx, yy) = (sum(&|p| (p.0 - mx).powi(2)), sum(&|p| (p.1 - my).powi(2)));
    let xy = sum(&|p| (p.0 - mx) * (p.1 - my));
    (xy / xx, xy * xy / (xx * yy))
}

/// Tables 4.3 to 4.5 are one experiment with different watches.
fn sweep(o: &Options, title: &str, published: &[Row], layout: &[&str]) -> Result<Table> {
    const STORES: u64 = 256 * 4096;
    let bare = guest::run(SWEEP, &["none", "256", "first", "0", "0"])?;
    let mut t = Table::new(
        title,
        &[
            "watches",
            "pages",
            "false positives",
            "tree nodes",
            "lookup: thesis",
            "ours",
            "cycles of it",
            "no lookup: thesis",
            "ours",
            "cycles a fault",
        ],
    );
    let (mut ours, mut theirs) = (vec![], vec![]);
    for (&(watches, pages, lookup, none), layout) in published.iter().zip(layout.iter().cycle()) {
        if o.quick && pages > 16 {
            continue;
        }
        let (w, p) = (watches.to_string(), pages.to_string());
        let run = |handler| guest::run(SWEEP, &[handler, "256", layout, &w, &p]);
        let (empty, with) = (run("empty")?, run("lookup")?);
        anyhow::ensure!(
            (with.hits, with.faults()) == (watches, pages * 4096)
                && empty.stats.faults == with.faults(),
            "{title}: {} hits of {watches}, {} faults on {pages} pages",
            with.hits,
            with.faults()
        );
        let (a, b) = (
            point(&bare, &with, STORES, pages, o.base),
            point(&bare, &empty, STORES, pages, o.base),
        );
        theirs.push((pages as f64, lookup, none));
        t.row([
            count(watches),
            pages.to_string(),
            count(with.false_positives),
            count(with.nodes),
            ratio(lookup),
            ratio(a.slowdown),
            format!("{:.0}", a.cycles - b.cycles),
            ratio(none),
            ratio(b.slowdown),
            format!("{:.0}", b.cycles),
        ]);
        ours.push((b.pages, a.slowdown, b.slowdown));
    }
    // Few rows tell a slope only from the bare loop on, and with two digits only between two ends.
    let few = layout != ["sparse"];
    let slope = |of: &[(f64, f64, f64)], which: fn(&(f64, f64, f64)) -> f64| match few {
        true => of.iter().map(|p| (which(p) - 1.) / p.0).sum::<f64>() / of.len() as f64,
        false => line(of.iter().map(|p| (p.0, which(p)))).0,
    };
    if !ours.is_empty() {
        let (a, b) = (slope(&ours, |p| p.2), slope(&theirs, |p| p.2));
        let digits = if published[0].3 < 2. { 0.005 } else { 0.05 };
        let ends = theirs.iter().fold((0f64, f64::MAX), |e, p| {
            (
                e.0.max((p.2 - digits - 1.) / p.0),
                e.1.min((p.2 + digits - 1.) / p.0),
            )
        });
        let (fit, compared) = match few {
            true => (
                String::new(),
                format!(
                    "with the digits that they have the thesis's figures lie between {:.5} and {:.5}, so ours is at most {:.1} % away from their nearer end",
                    ends.0,
                    ends.1,
                    100. * ((a / ends.1 - 1.).max(1. - a / ends.0)).max(0.)
                ),
            ),
            false => (
                format!(
                    " (a line explains {:.3} % of it)",
                    100. * line(ours.iter().map(|p| (p.0, p.2))).1
                ),
                format!(
                    "the thesis's figures have {b:.5}, so ours is {:+.1} % off",
                    100. * (a / b - 1.)
                ),
            ),
        };
        t.note(format!(
            "No lookup: {a:.5} of the loop for each page{fit}; {compared}. It follows from 215 cycles a fault (Table 4.1), 4,096 faults a page and {} cycles for a store of the bare loop with the instructions around it. The last is a parameter (`--base`): the thesis does not give it, and its slope implies some hundred. On the machine alone, an instruction taking a cycle, the loop takes {:.2}.",
            o.base,
            bare.cycles as f64 / STORES as f64
        ));
        let (a, b) = (slope(&ours, |p| p.1), slope(&theirs, |p| p.1));
        t.note(format!(
            "Lookup: {a:.4} a page, the thesis {b:.4}. Measured: libulpf's splay tree in the handler, on the machine. The thesis's slope implies some {:.0} cycles a lookup, while its Table 4.1 says 200. Its trees missed caches, and its processor took several cycles an instruction. Ours, with one cycle an instruction and no caches, is near Table 4.1's.",
            b * 256. * o.base as f64 - 215.
        ));
    }
    Ok(t)
}

pub fn sparse(o: &Options) -> Result<Table> {
    let title = "Table 4.3: watches at random places of 256 pages, slowdown of a loop that stores to each byte";
    sweep(o, title, &TABLE_4_3, &["sparse"])
}

pub fn dense(o: &Options) -> Result<Table> {
    let title = "Table 4.4: watches 256 bytes apart, slowdown of the same loop";
    sweep(o, title, &TABLE_4_4, &["dense"])
}

pub fn extreme(o: &Options) -> Result<Table> {
    let title = "Table 4.5: one watch on each page, and every byte watched";
    sweep(o, title, &TABLE_4_5, &["first", "all"])
}

pub fn debuggers(o: &Options) -> Result<Table> {
    const STORES: u64 = 8 * 4096;
    let bare = guest::run(SWEEP_O0, &["none", "8", "first", "0", "0"])?;
    let mut t = Table::new(
        "Table 4.6: beside gdb, 8 pages, -O0; slowdowns",
        &[
            "watches",
            "pages",
            "gdb hardware: thesis",
            "gdb software: thesis",
            "native",
            "ULPF: thesis",
            "ours",
            "ours, splay tree with -O3",
        ],
    );
    for (watches, hardware, software, ulpf, native) in TABLE_4_6 {
        if o.quick && watches > 4 {
            continue;
        }
        // Random places on eight pages: 1, 2, 3 of them, four on three, then all.
        let pages =
            [1, 2, 3, 3, 5, 7, 8, 8][TABLE_4_6.iter().position(|r| r.0 == watches).unwrap_or(0)];
        let (w, p) = (watches.to_string(), pages.to_string());
        let args = ["lookup", "8", "sparse", &w, &p];
        let slow = point(&bare, &guest::run(SWEEP_O0, &args)?, STORES, pages, o.base);
        let fast_bare = guest::run(SWEEP, &["none", "8", "first", "0", "0"])?;
        let fast = point(
            &fast_bare,
            &guest::run(SWEEP, &args)?,
            STORES,
            pages,
            o.base,
        );
        t.row([
            watches.to_string(),
            pages.to_string(),
            hardware.map_or("–".into(), ratio),
            ratio(software),
            ratio(native),
            ratio(ulpf),
            ratio(slow.slowdown),
            ratio(fast.slowdown),
        ]);
    }
    t.note("gdb is not simulated. Column `native` has gdb 13's software watchpoints on the machine of `make bench`, for the same loop (`ulpf-bench --only debuggers`). The thesis's columns have its figures. gdb's hardware watchpoints have four registers.");
    t.note(format!(
        "ULPF, ours: measured with the loop and the splay tree compiled without optimisation, as the thesis compiled its; {} cycles a store of the bare loop, as above. The thesis does not say how many pages its random places spanned; the figures go with the pages, so rows are to be compared by them.",
        o.base
    ));
    Ok(t)
}

pub fn heap(o: &Options) -> Result<Table> {
    let mut t = Table::new(
        "Table 4.7: all of the heap watched",
        &[
            "program",
            "hits: thesis",
            "ours",
            "false positives: thesis",
            "ours",
            "nodes: thesis",
            "ours",
            "lookup: thesis",
            "ours",
            "no lookup: thesis",
            "ours",
        ],
    );
    let sizes = if o.quick { ["8", "6"] } else { ["12", "12"] };
    for ((name, hits, fps, nodes, lookup, none), (kernel, size)) in TABLE_4_7
        .into_iter()
        .zip(["quantum", "lbm"].into_iter().zip(sizes))
    {
        let run = |handler| guest::run(HEAP, &[handler, kernel, size]);
        let (bare, empty, with) = (run("none")?, run("empty")?, run("lookup")?);
        // The program's instructions cost what the thesis's processor took for one, as its loop tells.
        let base = bare.cycles as f64 * CPI;
        let slowdown = |r: &GuestReport| ratio(1. + (r.cycles - bare.cycles) as f64 / base);
        t.row([
            name.to_owned(),
            count(hits),
            count(with.hits),
            count(fps),
            count(with.false_positives),
            count(nodes),
            count(with.nodes),
            ratio(lookup),
            slowdown(&with),
            ratio(none),
            slowdown(&empty),
        ]);
    }
    t.note(format!(
        "Not the same programs: the thesis had SPEC CPU2006's. Ours are a quantum register of 2^{} states and a lattice Boltzmann kernel of {}^3 cells (`benches/sim/guest/heap.c`). So only the shape can be compared. Nearly every store to the heap is a hit. False positives are accesses to what shares a page with a block (malloc's own words, the zeroing of the next block): fewer, the larger the blocks are. The lookup costs most. An instruction of the program takes {CPI} cycles, a parameter, as in the loops above ({} cycles for four instructions); each fault is charged and each lookup executed as there.",
        sizes[0], sizes[1], BASE
    ));
    Ok(t)
}

/// Cycles of an instruction that the thesis's slope implies: its loop has four to a store.
const CPI: f64 = BASE as f64 / 4.;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line() {
        let (slope, fit) = line([(1., 3.), (2., 5.), (4., 9.)].into_iter());
        assert!((slope - 2.).abs() < 1e-9 && (fit - 1.).abs() < 1e-9);
    }

    /// The base follows from the thesis's own figures.
    #[test]
    fn the_base_follows_from_table_4_3() {
        let (slope, fit) = line(TABLE_4_3.iter().map(|r| (r.1 as f64, r.3)));
        let implied = 215. / (256. * slope);
        assert!((implied - BASE as f64).abs() < 1.5, "{implied}");
        assert!(fit > 0.999);
    }
}
