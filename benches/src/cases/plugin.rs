//! The plugin's own watches, past gdb's breakpoint table: what ten thousand of them cost at a stop.

use super::super::readings::Readings;
use super::super::table::{Goal, Table, Unit, some};
use super::super::tools::{Peer, Run};
use super::super::turns::Bench;
use anyhow::{Context, Result};

const CASE: &str = "plugin";
/// Names of the readings that `benches/programs/plugin.py` prints, with their meaning.
const READINGS: [(&str, &str); 3] = [
    ("few", "a stop and a resumption with 10 watches"),
    ("many", "the same with 10,000"),
    (
        "armed",
        "10,000 watches set by one command, until the second stop after it",
    ),
];

pub fn run(bench: &mut Bench) -> Result<()> {
    let peer = Peer::Ulpf(&[]);
    if let Some(why) = peer.missing() {
        bench.skip("gdb's plugin", &why);
        return Ok(());
    }
    let folder = bench.programs.folder.join("plugin");
    let plugin = ulpf_server::plugin::write(&folder).context("cannot write the plugin")?;
    let script = format!(
        "source {}\nsource {}\ndelete",
        plugin.display(),
        bench.programs.file("plugin.py").display()
    );
    let program = bench.programs.get("stores")?;
    let run = Run {
        program: &program,
        arguments: &["change", "1000"],
    };
    for _ in 0..bench.turns {
        let said = bench.debugged(peer, &script, run)?;
        // The program prints a line of its own at its end.
        let ours = said.lines().find(|l| l.contains("bench: few="));
        let measured = super::super::tools::Measured::find(ours.unwrap_or(&said))?;
        for (name, what) in READINGS {
            bench.reading(CASE, what, "ms", measured.get(name)?);
        }
    }
    Ok(())
}

pub fn tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "`ulpf watch` in gdb: ten watches and ten thousand",
        &["", "ms"],
    );
    for (_, what) in READINGS {
        t.row(&[what, &some(r.median(CASE, what, "ms"))]);
    }
    if let Some(value) = r.ratio(CASE, READINGS[1].1, READINGS[0].1, "ms") {
        t.goals.push(Goal {
            what: "a stop and a resumption with 10,000 watches, against 10".into(),
            value,
            bar: 1.2,
            goal: 1.2,
            unit: Unit::Times,
            at_least: false,
        });
    }
    vec![t]
}
