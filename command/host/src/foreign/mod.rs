//! Data that other users or programs sent, wrote or named. `ulpf` often has more rights than the watched program and
//! its neighbours, so their data passes through one of these three modules before it is used:
//!
//! ```text
//!     files.rs    a file that another program named   regular, not blocking, limited size, no more rights than theirs
//!     numbers.rs  a number that another program sent  bounded; a process number is a task or a child of the target
//!     text.rs     a text that another program wrote   no control character reaches a terminal
//! ```
//!
//! docs/threat-model.md lists these programs and users.
#![forbid(unsafe_code)]

pub mod files;
pub mod numbers;
pub mod text;

/// Whether tests cannot run processes of other users. Only root can start them, and they run only if the root folder is
/// open to them (that of a chroot may not be).
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
