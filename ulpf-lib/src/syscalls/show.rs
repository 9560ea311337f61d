//! Prints system calls for users.

use core::fmt::{Result, Write};

use super::row::Role::{Fd, Hex, Int, Millis, Octal, Position, Uint};
use super::row::{ARGUMENTS, Role};
use super::rows::row;
use super::uring;

/// One call as strace would begin its line: `read(3, 0x4010, 512) = 512`. A call without a name here
/// is shown with all six arguments.
///
/// # Errors
/// Those of `out`.
pub fn write_call(out: &mut dyn Write, number: u64, args: &[u64; 6], result: i64) -> Result {
    let roles: &[Role] = match row(number) {
        Some(row) => {
            out.write_str(row.name)?;
            row.roles
        }
        None => match uring::name(number) {
            Some(name) => {
                out.write_str(name)?;
                uring::ROLES
            }
            None => {
                write!(out, "syscall {number}")?;
                &[Hex; ARGUMENTS]
            }
        },
    };
    out.write_char('(')?;
    for (i, (role, &v)) in roles.iter().zip(args).enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        match role {
            Fd | Int | Position | Millis if v >> 32 == 0 || v >> 31 == (1 << 33) - 1 => {
                write!(out, "{}", v as i32)?
            }
            Fd | Int | Position | Millis => write!(out, "{}", v as i64)?,
            Uint => write!(out, "{v}")?,
            Octal => write!(out, "{v:#o}")?,
            Hex => write!(out, "{v:#x}")?,
            _ if v == 0 => out.write_str("NULL")?,
            _ => write!(out, "{v:#x}")?,
        }
    }
    match result {
        // Addresses (mmap and the like).
        4_294_967_296.. => write!(out, ") = {result:#x}"),
        _ => write!(out, ") = {result}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn requests_of_io_uring() {
        let args = [0x4010, 512, 0, 0, 0, 0];
        assert_eq!(
            show(uring::FIRST + 22, args, 8),
            "io_uring read(0x4010, 512) = 8"
        );
        assert_eq!(super::super::name(uring::FIRST + 27), Some("io_uring recv"));
        assert_eq!(super::super::name(uring::FIRST + 255), Some("io_uring"));
        assert_eq!(super::super::name(uring::FIRST + 256), None);
    }

    fn show(number: u64, args: [u64; 6], result: i64) -> String {
        let mut out = String::new();
        write_call(&mut out, number, &args, result).unwrap();
        out
    }

    #[test]
    fn calls_are_decoded() {
        let at = 0x5555_0010;
        assert_eq!(
            show(0, [3, at, 512, 9, 9, 9], 512),
            "read(3, 0x55550010, 512) = 512"
        );
        assert_eq!(
            show(257, [-100i32 as u32 as u64, at, 0x80000, 0o644, 0, 0], -2),
            "openat(-100, 0x55550010, 0x80000, 0o644) = -2"
        );
        assert_eq!(
            show(262, [-100i64 as u64, at, 0, 0, 0, 0], 0),
            "newfstatat(-100, 0x55550010, NULL, 0x0) = 0"
        );
        assert_eq!(show(39, [0; 6], 17), "getpid() = 17");
        assert_eq!(
            show(9999, [1, 2, 3, 4, 5, 6], 0),
            "syscall 9999(0x1, 0x2, 0x3, 0x4, 0x5, 0x6) = 0"
        );
        assert_eq!(
            show(9, [0, 4096, 3, 34, u64::MAX, 0], 0x7fff_0000_0000),
            "mmap(NULL, 4096, 0x3, 0x22, -1, 0x0) = 0x7fff00000000"
        );
    }
}
