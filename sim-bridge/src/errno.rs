// SPDX-License-Identifier: GPL-2.0-or-later
//! What a system call of the program answers if it fails, with the sign that Linux gives it.

pub use ulpf_lib::sys::failure::*;
