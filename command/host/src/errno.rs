//! Texts for errors of system calls.
#![forbid(unsafe_code)]

use std::io;

/// The C library's text for an errno, without the "(os error N)" that Rust appends.
pub fn errno_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    match text.rfind(" (os error") {
        Some(at) => text[..at].to_string(),
        None => text,
    }
}

/// The text of an error; for a system call, [`errno_text`].
pub fn error_text(error: &io::Error) -> String {
    error
        .raw_os_error()
        .map_or_else(|| error.to_string(), errno_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rusts_addition_is_left_out() {
        assert_eq!(errno_text(libc::ENOENT), "No such file or directory");
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(error_text(&error), "No such file or directory");
        assert_eq!(error_text(&io::Error::other("late")), "late");
    }
}
