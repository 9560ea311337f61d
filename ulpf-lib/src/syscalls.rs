//! What is known of each x86-64 system call: its arguments, what it reads and writes, whether it waits, and
//! what is special about it. `rows` is the table, and the only place where this is written; `row` says what
//! a row can say; `show` writes a call for people.

pub mod row;
mod rows;
mod show;
#[cfg(test)]
mod tests;
pub mod uring;

pub use row::Row;
pub use rows::{NUMBERS, row};
pub use show::write_call;

/// The name of a system call.
pub fn name(number: u64) -> Option<&'static str> {
    row(number)
        .map(|row| row.name)
        .or_else(|| uring::name(number))
}
