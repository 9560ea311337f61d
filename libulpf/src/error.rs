//! What went wrong: an errno value and a sentence.

use core::cell::RefCell;
use core::fmt;

use ulpf_lib::Refusal;
use ulpf_lib::sys::Errno;

/// Why a request was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// As errno(3) names it.
    pub errno: i32,
    pub text: String,
}

impl Failure {
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

thread_local! {
    static LAST: RefCell<[u8; ROOM]> = const { RefCell::new([0; ROOM]) };
}

/// Keeps the sentence for `ulpf_error`, as a C string.
pub fn remember(text: &str) {
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            let mut n = text.len().min(ROOM - 1);
            while !text.is_char_boundary(n) {
                n -= 1;
            }
            last[..n].copy_from_slice(&text.as_bytes()[..n]);
            last[n] = 0;
        }
    });
}

/// The calling thread's last sentence; lives as long as the thread.
pub fn last() -> *const u8 {
    LAST.try_with(|last| last.as_ptr().cast::<u8>().cast_const())
        .unwrap_or(c"".as_ptr().cast())
}
