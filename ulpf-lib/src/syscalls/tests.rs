use std::collections::BTreeMap;

use super::row::{Len, Memory, Role};
use super::{NUMBERS, name, row};

/// The kernel's numbers, by a header.
fn numbers(header: &str, prefix: &str) -> BTreeMap<u64, String> {
    header
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix(prefix)?.split_whitespace();
            let name = words.next()?;
            Some((words.next()?.parse().ok()?, name.to_string()))
        })
        .collect()
}

#[test]
fn names_are_known() {
    assert_eq!(name(0), Some("read"));
    assert_eq!(name(231), Some("exit_group"));
    assert_eq!(name(400), None);
    assert_eq!(name(9999), None);
    assert_eq!(name(u64::MAX), None);
}

/// Every call that this machine's header knows has its row, under its name.
#[test]
fn no_number_is_missing() {
    let Ok(header) = std::fs::read_to_string("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    else {
        eprintln!("skipped: no asm/unistd_64.h here");
        return;
    };
    for (number, expected) in numbers(&header, "#define __NR_") {
        assert_eq!(name(number), Some(&*expected), "{number}");
    }
}

/// No row is left out: the kernel's numbers have one gap, up to 424, where they are the same on all processors.
#[test]
fn numbers_have_one_gap() {
    let missing: Vec<_> = (0..NUMBERS as u64).filter(|&n| row(n).is_none()).collect();
    assert_eq!(missing, (336..424).collect::<Vec<_>>());
}

/// The rows are in the order of their numbers, without duplicates.
#[test]
fn rows_are_in_order() {
    let text = include_str!("rows.rs");
    let written = text.lines().filter(|l| l.starts_with("    __NR_"));
    let written: Vec<_> = written
        .map(|l| l["    __NR_".len()..].split('(').next().unwrap_or(""))
        .collect();
    let known: Vec<_> = (0..NUMBERS as u64).filter_map(name).collect();
    assert_eq!(written, known);
}

/// A row refers only to arguments that the call has.
#[test]
fn rows_name_their_own_arguments() {
    for row in (0..NUMBERS as u64).filter_map(row) {
        let of = |n: u8| {
            assert!(
                (n as usize) < row.roles.len(),
                "{}: no argument {n}",
                row.name
            );
            row.roles[n as usize]
        };
        for b in row.buffers {
            match b.len {
                Len::Arg(n) | Len::ArgTimes(n, _) | Len::ArgAnd(n, _) | Len::Pages(n) => {
                    assert!(matches!(of(n), Role::Uint | Role::Int), "{}", row.name);
                }
                Len::Deref(n) => assert!(matches!(of(n), Role::InOut(_)), "{}", row.name),
                Len::FdSet(n) => assert_eq!(of(n), Role::Int, "{}", row.name),
                Len::Fixed(_) | Len::OwnSize | Len::Str => {}
            }
        }
        if let Some((n, _)) = row.timeout.and_then(|t| t.unless) {
            of(n);
        }
        let none = row.buffers.is_empty();
        assert!(
            none || matches!(row.memory, Memory::Buffers | Memory::ByCommand),
            "{}",
            row.name
        );
    }
}
