// SPDX-License-Identifier: GPL-2.0-or-later
//! A debugger's connection to the machine.

pub mod serve;
pub mod session;
