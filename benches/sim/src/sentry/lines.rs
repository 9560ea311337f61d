// SPDX-License-Identifier: GPL-2.0-or-later
//! Lines, pages, and what a domain may do with a line.

pub const LINE: u64 = 64;
pub const PAGE: u64 = 4096;
pub const LINES: usize = (PAGE / LINE) as usize;

/// Two bits a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Permission {
    #[default]
    ReadWrite,
    ReadOnly,
    None,
    Execute,
}
