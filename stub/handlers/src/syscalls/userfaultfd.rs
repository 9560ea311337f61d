//! Memory with a userfaultfd(2), which reports accesses to missing pages, or moves pages away. Moved memory is never
//! missing, and is not private to the program. So it goes back to its place first, and is no heap from then on.

use linux_raw_sys::general as k;
use linux_raw_sys::ioctl::UFFDIO_REGISTER;
use ulpf_lib::addr::USER_END;

use super::call::{Args, raw};
use crate::runtime::memory;

/// `_IOWR(0xAA, 5, struct uffdio_move)`, since Linux 6.8.
const UFFDIO_MOVE: u32 = 0xc028_aa05;

/// The words that such an ioctl points to; the kernel writes the last one.
///
/// ```text
///   UFFDIO_REGISTER   start  len     mode  answer
///   UFFDIO_MOVE       to     start   len   mode  answer
/// ```
pub struct Request {
    at: u64,
    words: [u64; 5],
    count: u64,
    start: usize,
}

/// `None` if it is another call.
pub fn request(nr: u64, a: &Args) -> Option<Request> {
    if nr as u32 != k::__NR_ioctl {
        return None;
    }
    let (count, start) = match a[1] as u32 {
        UFFDIO_REGISTER => (4, 0),
        UFFDIO_MOVE => (5, 1),
        _ => return None,
    };
    let mut words = [0; 5];
    for (i, word) in words.iter_mut().take(count as usize).enumerate() {
        *word = memory::get(a[2].checked_add(i as u64 * 8)?)?;
    }
    Some(Request {
        at: a[2],
        words,
        count,
        start,
    })
}

impl Request {
    pub fn range(&self) -> (u64, u64) {
        let word = |i: usize| self.words.get(i).copied().unwrap_or(0);
        let (start, len) = (word(self.start), word(self.start + 1));
        (start & !4095, start.saturating_add(len).min(USER_END))
    }

    /// The words that the kernel reads: address and length.
    pub fn question(&self) -> (u64, u64) {
        (self.at, (self.count - 1) * 8)
    }

    /// The word that the kernel writes: address and length.
    pub fn answer(&self) -> (u64, u64) {
        (self.at + (self.count - 1) * 8, 8)
    }

    /// Makes the call with a copy, since the program's words may be guarded.
    pub fn make(&self, a: &Args) -> i64 {
        let mut copy = self.words;
        let mut args = *a;
        args[2] = copy.as_mut_ptr() as u64;
        let r = raw(k::__NR_ioctl.into(), &args);
        // The kernel may write an answer along with an error.
        if let Some(answer) = copy.get(self.count as usize - 1) {
            memory::put(self.answer().0, answer);
        }
        r
    }
}
