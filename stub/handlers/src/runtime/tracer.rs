//! Tracers of the program's threads by ptrace(2).
//!
//! A task besides the program's threads may share their memory and trace them, as LeakSanitizer's does. A thread that
//! it has stopped in the middle of an instruction cannot park. So the tracer does not wait for the world to stop then
//! ([`super::park::request`]), nor does it park itself: it would never release the thread.

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use super::thread::Current;
use crate::global::g;

const FIELD: &[u8] = b"\nTracerPid:\t";

/// True if the task traces a thread that is not stopped.
pub fn holds(t: Current) -> bool {
    if !t.own().traces.get() {
        return false;
    }
    let runs = g().threads.iter().filter(|other| !other.is_stopped());
    // Assumed if /proc does not tell.
    let by = |tid: i32| tracer(&Path::of(tid).0).is_none_or(|tracer| tracer == t.tid());
    runs.map(|other| other.tid())
        .any(|tid| tid != 0 && tid != t.tid() && by(tid))
}

/// True if the calling thread is traced, also if /proc does not tell.
pub fn is_traced() -> bool {
    tracer(b"/proc/thread-self/status\0").is_none_or(|tracer| tracer != 0)
}

/// The tracer that this status file of /proc names, or 0.
fn tracer(path: &[u8]) -> Option<i32> {
    let mut status = [0u8; 512];
    // SAFETY: a NUL-terminated path, a descriptor of our own, and room for the data.
    let read = unsafe {
        sys!(
            k::__NR_openat,
            -100i64,
            path.as_ptr(),
            k::O_RDONLY | k::O_CLOEXEC,
            0
        )
        .and_then(|fd| {
            let read = sys!(k::__NR_read, fd, status.as_mut_ptr(), status.len());
            let _ = sys!(k::__NR_close, fd);
            read
        })
    };
    let text = status.get(..read.ok()? as usize)?;
    number(text)
}

fn number(text: &[u8]) -> Option<i32> {
    let at = text.windows(FIELD.len()).position(|w| w == FIELD)? + FIELD.len();
    let digits = text.get(at..)?.iter().take_while(|b| b.is_ascii_digit());
    Some(digits.fold(0, |n, b| n * 10 + i32::from(b - b'0')))
}

/// `/proc/TID/status`, with a final NUL.
struct Path([u8; 32]);

impl Path {
    fn of(tid: i32) -> Path {
        let mut path = [0u8; 32];
        let mut digits = [0u8; 10];
        let mut rest = tid;
        let mut first = digits.len();
        for (at, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            first = at;
            if rest == 0 {
                break;
            }
        }
        let number = digits.get(first..).unwrap_or(&[]);
        let parts = b"/proc/".iter().chain(number).chain(b"/status");
        for (to, from) in path.iter_mut().zip(parts) {
            *to = *from;
        }
        Path(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_numbers() {
        assert!(Path::of(7).0.starts_with(b"/proc/7/status\0"));
        assert!(Path::of(4194304).0.starts_with(b"/proc/4194304/status\0"));
        assert_eq!(number(b"Name:\tx\nTracerPid:\t0\nUid:\t1\n"), Some(0));
        assert_eq!(number(b"Name:\tx\nTracerPid:\t4711\nUid:\t1\n"), Some(4711));
        assert_eq!(number(b"Name:\tx\n"), None);
    }
}
