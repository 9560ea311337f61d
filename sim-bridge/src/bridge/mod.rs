// SPDX-License-Identifier: GPL-2.0-or-later
//! The remote port, at which a debugger has the machine.

pub mod serve;
pub mod session;
