//! What is measured. Each case takes its readings in `run` and makes its tables from them.

mod check;
mod condition;
mod count;
mod debuggers;
mod following;
mod heap;
mod log;
mod plugin;
mod real;
mod redis;
mod server;
mod store;
mod sweep;
mod system;
mod workloads;

use super::readings::Readings;
use super::table::Table;
use super::turns::Bench;
use anyhow::Result;

pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    pub run: fn(&mut Bench) -> Result<()>,
    pub tables: fn(&Readings) -> Vec<Table>,
}

const fn case(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Bench) -> Result<()>,
    tables: fn(&Readings) -> Vec<Table>,
) -> Case {
    Case {
        name,
        about,
        run,
        tables,
    }
}

pub const CASES: &[Case] = &[
    case(
        "sparse",
        "the thesis's table 4.3: 256 pages stored byte by byte, watches at random",
        sweep::sparse,
        sweep::sparse_tables,
    ),
    case(
        "dense",
        "table 4.4: watches 256 bytes apart",
        sweep::dense,
        sweep::dense_tables,
    ),
    case(
        "extreme",
        "table 4.5: one watch on each page, and every byte watched",
        sweep::extreme,
        sweep::extreme_tables,
    ),
    case(
        "debuggers",
        "table 4.6: 8 pages at -O0, beside gdb's hardware and software watches",
        debuggers::run,
        debuggers::tables,
    ),
    case(
        "heap",
        "tables 4.7 and 4.8: libquantum and lbm with the whole heap watched",
        heap::programs,
        heap::program_tables,
    ),
    case(
        "store",
        "one store: bare, false positive, hit, logged hit; signals; gdb's conditional watch",
        store::run,
        store::tables,
    ),
    case(
        "log",
        "hits into a log: how many a second, and what one costs the program",
        log::run,
        log::tables,
    ),
    case(
        "untouched",
        "a program that never touches its guarded page",
        system::untouched,
        system::untouched_tables,
    ),
    case(
        "count",
        "a false positive among a thousand and among a million watches; arming them in bulk",
        count::run,
        count::tables,
    ),
    case(
        "threads",
        "two threads on two processors against one",
        count::threads,
        count::thread_tables,
    ),
    case(
        "faults",
        "sqlite3, redis and CPython with the whole heap watched: accesses that still fault",
        heap::faults,
        heap::fault_tables,
    ),
    case(
        "real",
        "sixteen programs that everybody knows, their heaps watched as a whole, beside valgrind's idle",
        real::run,
        real::tables,
    ),
    case(
        "check",
        "eight programs that everybody knows with their heaps checked (`ulpf check`), beside memcheck",
        check::run,
        check::tables,
    ),
    case(
        "coverage",
        "store sites that some tactic can patch, in sqlite3, redis and libc",
        heap::coverage,
        heap::coverage_tables,
    ),
    case(
        "placement",
        "a local beside the loop's own: guard, debug register, what ulpf chooses",
        system::placement,
        system::placement_tables,
    ),
    case(
        "syscall",
        "a system call from a patched site",
        system::syscall,
        system::syscall_tables,
    ),
    case(
        "redis",
        "redis-benchmark against a server with an idle watch",
        redis::run,
        redis::tables,
    ),
    case(
        "stop",
        "a stop as gdb sees it",
        server::stop,
        server::stop_tables,
    ),
    case(
        "start",
        "from the command to the program's first instruction, and to its end",
        server::start,
        server::start_tables,
    ),
    case(
        "packets",
        "watches set by gdb's packets, one by one; a stop with 10,000 of them",
        server::packets,
        server::packet_tables,
    ),
    case(
        "condition",
        "a hit of gdb's own watch whose condition does not hold",
        condition::run,
        condition::tables,
    ),
    case(
        "following",
        "a pointer that changes under a watch that follows it",
        following::run,
        following::tables,
    ),
    case(
        "plugin",
        "a stop with ten and with ten thousand watches of `ulpf watch`",
        plugin::run,
        plugin::tables,
    ),
];

/// Name and SVG text of what can be drawn.
pub fn charts(readings: &Readings) -> Vec<(&'static str, String)> {
    let all = [
        ("slowdown-by-pages", sweep::chart(readings)),
        ("debuggers", debuggers::chart(readings)),
    ];
    all.into_iter()
        .filter_map(|(name, chart)| Some((name, chart?)))
        .collect()
}
