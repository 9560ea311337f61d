//! `watch x if …` at gdb's prompt: what a hit costs whose condition does not hold.

use super::super::readings::Readings;
use super::super::table::{Goal, Table, Unit, some};
use super::super::tools::{Measured, Peer, Run};
use super::super::turns::Bench;
use anyhow::{Context, Result};

const CASE: &str = "condition";
const NATIVE: &str = "`watch` in gdb by itself (a debug register)";
const OURS: &str = "the same `watch` under ulpf gdb";
const ULPF: &str = "`ulpf watch`";
const SERVER: &str = "`watch` over gdbserver";

/// As a user types it: the program stores 1, 2, 3, ….
const WATCH: &str = "watch page[0] if page[0] == -5";

pub fn run(bench: &mut Bench) -> Result<()> {
    let folder = bench.programs.folder.join("condition");
    let plugin = ulpf_server::plugin::write(&folder).context("cannot write the plugin")?;
    let plugin = format!("source {}", plugin.display());
    let program = bench.programs.get("stores")?;
    let many = if bench.quick { "200000" } else { "2000000" };
    let ulpf = Peer::Ulpf(&[]);
    let cases = [
        (NATIVE, Peer::Gdb, WATCH.to_string(), "5000"),
        (SERVER, Peer::Gdbserver, WATCH.to_string(), "2000"),
        (OURS, ulpf, format!("{plugin}\n{WATCH}"), many),
        (
            ULPF,
            ulpf,
            format!("{plugin}\nulpf watch page[0] if $new == -5"),
            many,
        ),
    ];
    for _ in 0..bench.turns {
        for (name, peer, script, count) in &cases {
            if let Some(why) = peer.missing() {
                bench.skip(name, &why);
                continue;
            }
            let run = Run {
                program: &program,
                arguments: &["change", count],
            };
            let said = bench.debugged(*peer, script, run)?;
            bench.reading(CASE, name, "ns", Measured::find(&said)?.get("ns")?);
        }
    }
    Ok(())
}

pub fn tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "A hit whose condition does not hold",
        &["", "ns a hit", "gdb by itself takes so many times as long"],
    );
    for name in [NATIVE, SERVER, OURS, ULPF] {
        t.row(&[
            name,
            &some(r.median(CASE, name, "ns")),
            &some(r.ratio(CASE, NATIVE, name, "ns")),
        ]);
    }
    if let Some(value) = r.ratio(CASE, NATIVE, OURS, "ns") {
        t.goals.push(Goal {
            what: "`watch … if`: gdb by itself, against ulpf gdb, a hit".into(),
            value,
            bar: 1000.0,
            goal: 1000.0,
            unit: Unit::Times,
            at_least: true,
        });
    }
    if let Some(value) = r.ratio(CASE, OURS, ULPF, "ns") {
        t.goals.push(Goal {
            what: "`watch … if` under ulpf gdb, against `ulpf watch … if`, a hit".into(),
            value,
            bar: 1.5,
            goal: 1.2,
            unit: Unit::Times,
            at_least: false,
        });
    }
    vec![t]
}
