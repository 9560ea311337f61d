//! Properties of each x86-64 system call: its arguments, the memory it reads and writes, whether it waits, and its
//! peculiarities. `rows` is the table and the only source; `row` defines the fields of a row; `show` prints a call for
//! users.

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
