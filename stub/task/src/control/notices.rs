//! Messages for the user besides the protocol's own replies, as console output. The debugger shows them at once while
//! it waits for a stop; otherwise they wait for the next resume.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use ulpf_lib::AccessKind;
use ulpf_lib::syscalls::write_call;

use super::parked::Parked;
use ulpf_stub_handlers::runtime::events::Event;

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

    /// Explains the stop that `event` on `t` makes, if the kernel made the access.
    pub fn explain(&mut self, t: Parked, event: Event) {
        self.last_call = None;
        let (Event::Watch { addr, access, .. }, Some(call)) = (event, t.call()) else {
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

    /// All messages that were not sent yet.
    pub fn take(&mut self) -> Vec<String> {
        core::mem::take(&mut self.waiting)
    }
}

/// Sends `text` at once: a client that waits for a stop or for a reply accepts console output. Allocates nothing,
/// because it may be this task's last message.
pub fn tell(text: &str) {
    const MOST: usize = 400;
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for part in text.as_bytes().chunks(MOST) {
        let mut frame = [0u8; 2 * MOST + 5];
        let mut sum = b'O';
        let hex = part.iter().flat_map(|b| [b >> 4, b & 15]);
        let digits = hex.filter_map(|n| DIGITS.get(n as usize).copied());
        let mut end = 2;
        for (to, digit) in frame.iter_mut().skip(2).zip(digits) {
            *to = digit;
            sum = sum.wrapping_add(digit);
            end += 1;
        }
        let tail = [
            b'#',
            DIGITS[(sum >> 4) as usize],
            DIGITS[(sum & 15) as usize],
        ];
        (frame[0], frame[1]) = (b'$', b'O');
        for (to, byte) in frame.iter_mut().skip(end).zip(tail) {
            *to = byte;
        }
        super::socket::send_all(
            super::reader::CONTROL.load(Relaxed),
            frame.get(..end + 3).unwrap_or(&[]),
        );
    }
}
