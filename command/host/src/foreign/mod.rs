//! What somebody else sent, wrote or named. `ulpf` often has more rights than the program that it watches
//! and than its neighbours, so nothing of theirs is used before one of these three modules has looked at it:
//!
//! ```text
//! files.rs     a file that somebody else named      regular, not blocking, of limited size, no more rights than theirs
//! numbers.rs   a number that somebody else sent     bounded; a process number is a task or a child of the target
//! text.rs      a text that somebody else wrote      no control character reaches a terminal
//! ```
//!
//! docs/threat-model.md says who "somebody else" is.
#![forbid(unsafe_code)]

pub mod files;
pub mod numbers;
pub mod text;

/// Only root can start processes of other users, and these only run something where the root folder is open
/// to them (that of a chroot may not be).
#[cfg(test)]
fn no_other_users() -> bool {
    use std::os::unix::fs::PermissionsExt;
    let root = std::fs::metadata("/").unwrap();
    let none = !crate::sys::is_root() || root.permissions().mode() & 1 == 0;
    if none {
        eprintln!("skipped: no process of another user can be started here");
    }
    none
}
