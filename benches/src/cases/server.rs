//! Operations that a debugger waits for: stops, start-up, arming packet by packet.

use super::super::packets::{Client, Server, Session};
use super::super::readings::Readings;
use super::super::table::{Goal, Table, Unit, count as whole, some};
use super::super::tools::{Peer, Run};
use super::super::turns::Bench;
use anyhow::{Context, Result};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

// ---- stops ------------------------------------------------------------------------------------------

const STOP: &str = "stop";
const WHO: [(&str, Peer); 5] = [
    ("ulpf", Peer::Ulpf(&[])),
    (
        "ulpf, --placement=guard",
        Peer::Ulpf(&["--placement=guard"]),
    ),
    ("ulpf gdb", Peer::UlpfGdb),
    ("gdbserver", Peer::Gdbserver),
    ("gdb alone", Peer::Gdb),
];
/// Debug registers.
const FEW: usize = 4;
const MANY: usize = 1_000;

pub fn stop(bench: &mut Bench) -> Result<()> {
    for watches in [1, FEW, MANY] {
        let count = match (bench.quick, watches) {
            (true, MANY) => 5,
            (true, _) => 50,
            (false, MANY) => 20,
            (false, _) => 200,
        };
        for _ in 0..bench.turns {
            for (who, peer) in WHO {
                let serves = watches <= FEW || matches!(peer, Peer::Ulpf(_) | Peer::UlpfGdb);
                if let Some(why) = peer.missing() {
                    bench.skip(who, &why);
                } else if serves {
                    one_stop(bench, (who, peer), watches, count)?;
                }
            }
        }
    }
    Ok(())
}

/// One watch is hit again and again; the others lie beside it. gdb's own processor time is also reported.
fn one_stop(
    bench: &mut Bench,
    (who, peer): (&str, Peer),
    watches: usize,
    count: usize,
) -> Result<()> {
    let program = bench.programs.get("stores")?;
    let stores = (count + 5).to_string();
    let run = Run {
        program: &program,
        arguments: &["change", &stores],
    };
    let script = format!(
        "watch -l page[0]\npython\nimport time\n\
         for i in range(1, {watches}): gdb.execute('watch -l ((char *) page)[%d]' % (1024 + i), to_string=True)\n\
         gdb.execute('continue', to_string=True)\n\
         start, own = time.perf_counter(), time.process_time()\n\
         for i in range({count}): gdb.execute('continue', to_string=True)\n\
         took, own = time.perf_counter() - start, time.process_time() - own\n\
         print('bench: us=%f own=%f' % (took / {count} * 1e6, own / {count} * 1e6))\nend\ndelete"
    );
    let measured = bench.peer(peer, &script, run)?;
    let variant = stop_variant(who, watches);
    bench.reading(STOP, &variant, "µs", measured.get("us")?);
    bench.reading(STOP, &variant, "µs of gdb", measured.get("own")?);
    Ok(())
}

fn stop_variant(who: &str, watches: usize) -> String {
    match watches {
        1 => who.into(),
        _ => format!("{who}, {} watches", whole(watches as f64)),
    }
}

pub fn stop_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "A stop, as gdb sees it (hit, report, next `continue`)",
        &[
            "",
            "1 watch, µs",
            "gdb's own processor time",
            "4 watches, µs",
            "gdb's own processor time",
            "1,000 watches, µs",
            "gdb's own processor time",
        ],
    );
    for (who, _) in WHO {
        let of = |watches, unit| some(r.median(STOP, &stop_variant(who, watches), unit));
        t.row(&[
            who,
            &of(1, "µs"),
            &of(1, "µs of gdb"),
            &of(FEW, "µs"),
            &of(FEW, "µs of gdb"),
            &of(MANY, "µs"),
            &of(MANY, "µs of gdb"),
        ]);
    }
    t.note("gdb alone and gdbserver have four debug registers; with a thousand watches gdb steps through the program.");
    let native = r.ratio(STOP, "gdb alone", "gdbserver", "µs");
    for who in ["ulpf", "ulpf gdb"] {
        if let Some(value) = r.ratio(STOP, who, "gdbserver", "µs") {
            t.goals.push(Goal {
                what: format!("a stop under {who}, against gdbserver (goal: gdb alone)"),
                value,
                bar: 1.0,
                goal: native.unwrap_or(1.0),
                unit: Unit::Times,
                at_least: false,
            });
        }
    }
    vec![t]
}

// ---- start-up ---------------------------------------------------------------------------------------

pub fn start(bench: &mut Bench) -> Result<()> {
    const CASE: &str = "start";
    let gdbserver = Peer::Gdbserver.missing();
    if let Some(why) = &gdbserver {
        bench.skip("start-up of gdbserver", why);
    }
    for _ in 0..bench.turns * 2 {
        let begun = Instant::now();
        Command::new("/bin/true").stdin(Stdio::null()).status()?;
        bench.reading(
            CASE,
            "/bin/true bare",
            "ms",
            begun.elapsed().as_secs_f64() * 1e3,
        );
        for who in ["ulpf", "gdbserver"] {
            if who == "gdbserver" && gdbserver.is_some() {
                continue;
            }
            let mut command = match who {
                "ulpf" => bench.ulpf(),
                _ => Command::new("gdbserver"),
            };
            if who == "ulpf" {
                command.arg("server");
            }
            let begun = Instant::now();
            let since = || begun.elapsed().as_secs_f64() * 1e3;
            let server = Server::start(command.args(["--once", "127.0.0.1:0", "/bin/true"]))?;
            bench.reading(CASE, &format!("{who} listens"), "ms", since());
            let mut client = Client::connect(server.port)?;
            bench.reading(CASE, &format!("{who}, first stop seen"), "ms", since());
            client.send("vCont;c")?;
            let _ = client.receive();
            bench.reading(CASE, &format!("{who}, program ended"), "ms", since());
            drop(client);
            server.finish(Duration::from_secs(10))?;
        }
    }
    Ok(())
}

pub fn start_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new("Start-up", &["", "ulpf, ms", "gdbserver, ms"]);
    for what in [" listens", ", first stop seen", ", program ended"] {
        let of = |who: &str| some(r.median("start", &format!("{who}{what}"), "ms"));
        t.row(&[
            what.trim_start_matches([',', ' ']),
            &of("ulpf"),
            &of("gdbserver"),
        ]);
    }
    t.row(&[
        "`/bin/true` bare",
        &some(r.median("start", "/bin/true bare", "ms")),
        "",
    ]);
    vec![t]
}

// ---- packets ----------------------------------------------------------------------------------------

const CASE: &str = "packets";
const COUNTS: [u64; 4] = [1, 1_000, 100_000, 1_000_000];

fn session(bench: &Bench) -> Result<(Session, u64)> {
    let program = bench.programs.get("mates")?;
    let mut command = bench.ulpf();
    command.args(["server", "--once"]);
    let session = Session::at_ready(&mut command, &program, &["0"])?;
    let block = session.address(&program, "block")?;
    Ok((session, block))
}

pub fn packets(bench: &mut Bench) -> Result<()> {
    for count in COUNTS {
        let large = count > 10_000;
        if bench.quick && large || !bench.quick && count == 100_000 {
            continue;
        }
        for _ in 0..if large { 1 } else { bench.turns } {
            let (mut session, block) = session(bench)?;
            let before = session.resident()?;
            let start = Instant::now();
            session
                .client
                .many((0..count).map(|n| format!("Z2,{:x},1", block + n)))?;
            let each = |start: Instant| start.elapsed().as_secs_f64() / count as f64 * 1e6;
            let variant = format!("{count} watches");
            bench.reading(CASE, &variant, "µs until answered", each(start));
            session.step()?;
            bench.reading(CASE, &variant, "µs until armed", each(start));
            bench.reading(
                CASE,
                &variant,
                "bytes",
                (session.resident()? - before) / count as f64,
            );
        }
    }
    // At every stop, gdb removes all ten thousand watches and inserts them again.
    let (mut session, block) = session(bench)?;
    let all = |letter: char| (0..10_000).map(move |n| format!("{letter}2,{:x},8", block + 64 * n));
    session.client.many(all('Z'))?;
    session.step()?;
    for _ in 0..bench.turns * 2 {
        let start = Instant::now();
        session.client.many(all('z'))?;
        session.client.many(all('Z'))?;
        bench.reading(
            CASE,
            "20,000 packets answered",
            "ms",
            start.elapsed().as_secs_f64() * 1e3,
        );
        let before = stub_seconds(session.pid);
        session.step()?;
        if let (Some(before), Some(after)) = (before, stub_seconds(session.pid)) {
            bench.reading(CASE, "stub at a resumption", "ms", (after - before) * 1e3);
        }
    }
    Ok(())
}

/// Processor time of the stub's own task: it has the program's command line and another number.
fn stub_seconds(program: u32) -> Option<f64> {
    let command = fs::read(format!("/proc/{program}/cmdline")).ok()?;
    let all = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let same = pid > program && fs::read(format!("/proc/{pid}/cmdline")).ok()? == command;
        same.then_some(pid)
    });
    let pid = all.max()?;
    let times = fs::read_to_string(format!("/proc/{pid}/schedstat"))
        .context("gone")
        .ok()?;
    Some(times.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}

pub fn packet_tables(r: &Readings) -> Vec<Table> {
    let mut t = Table::new(
        "Watches set by Z2 packets over a local connection, then a resumption",
        &[
            "watches",
            "µs a watch until answered",
            "µs a watch until armed",
            "bytes a watch",
        ],
    );
    for count in COUNTS {
        let of = |unit| r.median(CASE, &format!("{count} watches"), unit);
        if of("µs until answered").is_some() {
            let bytes = of("bytes").filter(|_| count > 1);
            t.row(&[
                &whole(count as f64),
                &some(of("µs until answered")),
                &some(of("µs until armed")),
                &some(bytes),
            ]);
        }
    }
    let mut many = Table::new(
        "A stop with 10,000 watches (gdb removes and inserts them all)",
        &["", "ms"],
    );
    many.row(&[
        "the stub's own work at the resumption, processor time",
        &some(r.median(CASE, "stub at a resumption", "ms")),
    ]);
    many.row(&[
        "20,000 packets, each answered, wall time",
        &some(r.median(CASE, "20,000 packets answered", "ms")),
    ]);
    vec![t, many]
}
