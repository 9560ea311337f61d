//! The machine that `ulpf` runs on, and data of other programs and users on it.
//!
//! ```text
//!     foreign/     files, numbers and texts of others: looked at before they are used
//!     process      what /proc says of a process         foreground   whose the terminal is
//!     signals      numbers, names; those that we get    programs     of this machine, as a shell finds them
//!     rights       those of one thread of ours          sys          system calls, each behind a safe function
//!     cache        the folder for what we keep between runs      apart   others' memory, read by a process apart
//!     listen/      listening addresses, access of clients      peer/    the owner of a connection's other end
//!     say/         messages to the user, JSON
//! ```
//! Only [`sys`], [`rights`] and [`apart`] contain unsafe code.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod apart;
pub mod cache;
pub mod errno;
pub mod foreground;
pub mod foreign;
pub mod listen;
pub mod peer;
pub mod process;
pub mod programs;
#[allow(unsafe_code)]
pub mod rights;
pub mod say;
pub mod signals;
#[allow(unsafe_code)]
pub mod sys;
