//! Perf events of ours: breakpoints on the debug registers, and what records them (linux/perf_event.h,
//! linux/hw_breakpoint.h; perf_event_open(2)).
#![allow(unsafe_code)]

use crate::sys;
use crate::sys::Errno;
use crate::{WatchKind, WatchRange};
use linux_raw_sys::general::__NR_perf_event_open;

/// `struct perf_event_attr`, version 7 (Linux 5.13), as words.
#[derive(Clone, Debug)]
pub struct Event([u64; 16]);

/// `si_code` of the SIGTRAP that a breakpoint sends.
pub const TRAP_PERF: i32 = linux_raw_sys::general::TRAP_PERF as i32;

const TYPE_SOFTWARE: u64 = 1;
const TYPE_BREAKPOINT: u64 = 5;
const COUNT_SW_DUMMY: u64 = 9;
const SAMPLE_IP: u64 = 1;
const SAMPLE_ADDR: u64 = 1 << 3;
const BREAKPOINT_W: u64 = 2;
const BREAKPOINT_RW: u64 = 3;
const OPEN_CLOEXEC: u64 = 8;

/// Where the fields are, in words.
mod field {
    pub const TYPE_AND_SIZE: usize = 0;
    pub const CONFIG: usize = 1;
    pub const SAMPLE_PERIOD: usize = 2;
    pub const SAMPLE_TYPE: usize = 3;
    pub const FLAGS: usize = 5;
    /// The wake-up in the lower half, the breakpoint's type in the upper one.
    pub const WAKEUP_AND_BREAKPOINT: usize = 6;
    pub const BREAKPOINT_ADDR: usize = 7;
    pub const BREAKPOINT_LEN: usize = 8;
    pub const SIGNAL_DATA: usize = 15;
}

/// Bits of `field::FLAGS`.
mod flag {
    pub const DISABLED: u64 = 1;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const WATERMARK: u64 = 1 << 14;
    pub const INHERIT_THREAD: u64 = 1 << 35;
    pub const REMOVE_ON_EXEC: u64 = 1 << 36;
    pub const SIGTRAP: u64 = 1 << 37;
}

impl Event {
    fn new(kind: u64) -> Event {
        let mut words = [0; 16];
        words[field::TYPE_AND_SIZE] = kind | (size_of::<Event>() as u64) << 32;
        words[field::FLAGS] = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | flag::REMOVE_ON_EXEC;
        Event(words)
    }

    /// A debug register. Every access of the program to `range` (1, 2, 4 or 8 aligned bytes) raises SIGTRAP after it; the
    /// signal's `si_perf_data` is `data`. x86 cannot watch loads alone, so the caller decodes the instruction.
    pub fn breakpoint(range: WatchRange, kind: WatchKind, data: u64) -> Event {
        let mut event = Event::new(TYPE_BREAKPOINT);
        event.0[field::SAMPLE_PERIOD] = 1;
        event.0[field::FLAGS] |= flag::SIGTRAP;
        let what = match kind {
            WatchKind::Write => BREAKPOINT_W,
            _ => BREAKPOINT_RW,
        };
        event.0[field::WAKEUP_AND_BREAKPOINT] = what << 32;
        event.0[field::BREAKPOINT_ADDR] = range.start.0;
        event.0[field::BREAKPOINT_LEN] = range.len;
        event.0[field::SIGNAL_DATA] = data;
        event
    }

    /// An event without effect, whose ring outlives the breakpoints that write to it.
    pub fn ring() -> Event {
        let mut event = Event::new(TYPE_SOFTWARE);
        event.0[field::CONFIG] = COUNT_SW_DUMMY;
        event.without_wakeup()
    }

    /// Written to a ring (PERF_EVENT_IOC_SET_OUTPUT): instruction pointer and address.
    pub fn recorded(mut self) -> Event {
        self.0[field::SAMPLE_TYPE] = SAMPLE_IP | SAMPLE_ADDR;
        self.without_wakeup()
    }

    fn without_wakeup(mut self) -> Event {
        self.0[field::FLAGS] |= flag::WATERMARK;
        self.0[field::WAKEUP_AND_BREAKPOINT] |= 0x7fff_ffff;
        self
    }

    /// New threads of the process inherit it; new processes do not.
    pub fn of_new_threads(mut self) -> Event {
        self.0[field::FLAGS] |= flag::INHERIT | flag::INHERIT_THREAD;
        self
    }

    /// Opens disabled: it has no effect.
    pub fn disabled(mut self) -> Event {
        self.0[field::FLAGS] |= flag::DISABLED;
        self
    }

    /// Opens it for one task (0: the calling one): a descriptor, close-on-exec.
    ///
    /// # Errors
    /// ENOSPC: all debug registers are taken. EACCES, EPERM: kernel.perf_event_paranoid, or a sandbox. EINVAL: the
    /// kernel is older than Linux 5.13.
    pub fn open(&self, task: i32) -> Result<i32, Errno> {
        let (any_cpu, no_group) = (-1i64, -1i64);
        // SAFETY: the block is as long as it says.
        let fd = unsafe {
            sys!(
                __NR_perf_event_open,
                self.0.as_ptr(),
                task,
                any_cpu,
                no_group,
                OPEN_CLOEXEC
            )
        }?;
        Ok(fd as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TargetAddr;

    #[test]
    fn words_are_the_kernels() {
        let range = WatchRange::new(TargetAddr(0x1000), 8).unwrap();
        let event = Event::breakpoint(range, WatchKind::Write, 7);
        let flags = 1 << 5 | 1 << 6 | 1 << 36 | 1 << 37;
        let words = [
            5 | 128 << 32,
            0,
            1,
            0,
            0,
            flags,
            2 << 32,
            0x1000,
            8,
            0,
            0,
            0,
            0,
            0,
            0,
            7,
        ];
        assert_eq!(event.0, words);
        let event = Event::breakpoint(range, WatchKind::Access, 7).recorded();
        assert_eq!((event.0[3], event.0[6]), (9, 0x7fff_ffff | 3 << 32));
        assert_eq!(event.0[5], flags | 1 << 14);
        assert_eq!(event.of_new_threads().0[5], flags | 1 << 14 | 2 | 1 << 35);
        let ring = Event::ring();
        assert_eq!(ring.0[..4], [1 | 128 << 32, 9, 0, 0]);
        assert_eq!(
            (ring.0[5], ring.0[6]),
            (1 << 5 | 1 << 6 | 1 << 14 | 1 << 36, 0x7fff_ffff)
        );
        assert_eq!(ring.disabled().0[5] & 1, 1);
    }
}
