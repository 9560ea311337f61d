//! Errors: an errno value and a sentence.

use core::cell::RefCell;
use core::fmt;

use ulpf_lib::Refusal;
use ulpf_lib::sys::Errno;

/// Reason why a request was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// An errno of errno(3).
    pub errno: i32,
    /// A sentence for users: the failed request, the reason, and the remedy.
    pub text: String,
}

impl Failure {
    /// With an errno of errno(3) and a sentence that does not end with a full stop.
    pub fn new(errno: i32, text: impl Into<String>) -> Failure {
        Failure {
            errno,
            text: text.into(),
        }
    }
    pub(crate) fn os(e: Errno, text: &str) -> Failure {
        Failure::new(e.0, text)
    }
    pub(crate) fn refused(errno: i32, refusal: &Refusal) -> Failure {
        Failure::new(errno, refusal.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

const ROOM: usize = 512;
type Text = RefCell<[u8; ROOM]>;

thread_local! {
    static LAST: Text = const { RefCell::new([0; ROOM]) };
    static ANSWER: Text = const { RefCell::new([0; ROOM]) };
}

fn put(text: &str, to: &Text) {
    if let Ok(mut to) = to.try_borrow_mut() {
        let mut n = text.len().min(ROOM - 1);
        while !text.is_char_boundary(n) {
            n -= 1;
        }
        to[..n].copy_from_slice(&text.as_bytes()[..n]);
        to[n] = 0;
    }
}

/// Keeps the sentence for `ulpf_error`, as a C string.
pub fn remember(text: &str) {
    let _ = LAST.try_with(|last| put(text, last));
}

/// The calling thread's last sentence; lives as long as the thread.
pub fn last() -> *const u8 {
    LAST.try_with(|last| last.as_ptr().cast::<u8>().cast_const())
        .unwrap_or(c"".as_ptr().cast())
}

/// An answer as a C string, until the calling thread asks for the next one.
pub fn keep(text: &str) -> *const core::ffi::c_char {
    ANSWER
        .try_with(|answer| {
            put(text, answer);
            answer.as_ptr().cast::<core::ffi::c_char>().cast_const()
        })
        .unwrap_or(c"".as_ptr())
}
