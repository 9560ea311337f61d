//! What the user is told beside the protocol's own words: console lines, which the debugger shows at
//! once while it waits for a stop, and which otherwise wait for the next resume.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use ulpf_lib::AccessKind;
use ulpf_lib::syscalls::write_call;

use crate::runtime::thread::{Event, Thread};

#[derive(Default)]
pub struct Notices {
    waiting: Vec<String>,
    /// The kernel's access behind the last stop (`monitor ulpf why`).
    pub last_call: Option<String>,
}

impl Notices {
    pub fn push(&mut self, text: String) {
        self.waiting.push(text);
    }

    /// The stop that `event` on `t` makes: says so if the kernel made the access.
    pub fn explain(&mut self, t: &Thread, event: Event) {
        self.last_call = None;
        let (Event::Watch { addr, access, .. }, Some(call)) = (event, t.inner().call) else {
            return;
        };
        let verb = match access {
            AccessKind::Read => "read",
            AccessKind::Write => "written",
            AccessKind::ReadWrite => "read and written",
        };
        let mut text = String::new();
        let _ = write!(text, "ulpf: {addr} {verb} by ");
        let _ = write_call(&mut text, call.nr, &call.args, call.result);
        text.push('\n');
        self.last_call = Some(text.clone());
        self.push(text);
    }

    /// Everything that has not been said yet.
    pub fn take(&mut self) -> Vec<String> {
        core::mem::take(&mut self.waiting)
    }
}
