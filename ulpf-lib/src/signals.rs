//! Signal numbers: the protocol has its own (GDB, `include/gdb/signals.def`), Linux has others.
//!
//! LLDB uses them too with a stub that does not announce `native-signals+`.

/// Protocol number of Linux signal 1…31, at index signo - 1; 0 where the protocol has none.
const TO_GDB: [u8; 31] = [
    1, 2, 3, 4, 5, 6, 10, 8, 9, 30, 11, 31, 13, 14, 15, //  HUP … TERM
    0,  // SIGSTKFLT
    20, 19, 17, 18, 21, 22, 16, 24, 25, 26, 27, 28, 23, 32, 12, // CHLD … SYS
];

/// "Some other signal" of the protocol. Linux has one signal that the protocol has no name for: a client that passes
/// "some other" on, or ignores it, means that one.
const GDB_UNKNOWN: u8 = 143;
/// "Could not access memory": a signal of Darwin, so no program here can have it. A debugger that passes it on passes
/// nothing.
pub const EXC_BAD_ACCESS: u8 = 145;
const SIGSTKFLT: i32 = 16;

/// The protocol's number of a signal of Linux; 0 for 0.
pub fn to_gdb(linux: i32) -> u8 {
    match linux {
        0 => 0,
        1..=31 => match TO_GDB[linux as usize - 1] {
            0 => GDB_UNKNOWN,
            n => n,
        },
        32 => 77,
        33..=63 => (linux - 33 + 45) as u8,
        64 => 78,
        _ => GDB_UNKNOWN,
    }
}

/// `None`: no signal (0), or one that Linux does not have.
pub fn from_gdb(gdb: u8) -> Option<i32> {
    match gdb {
        0 => None,
        45..=75 => Some(i32::from(gdb) - 45 + 33),
        77 => Some(32),
        78 => Some(64),
        GDB_UNKNOWN => Some(SIGSTKFLT),
        n => TO_GDB.iter().position(|g| *g == n).map(|i| i as i32 + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_of_linux_comes_back() {
        for linux in 1..=64 {
            assert_eq!(from_gdb(to_gdb(linux)), Some(linux));
        }
        assert_eq!((to_gdb(0), to_gdb(65), to_gdb(-1)), (0, 143, 143));
    }

    #[test]
    fn numbers_are_those_of_the_protocol() {
        // include/gdb/signals.def: SEGV, CHLD, USR1, SIG33, SIG63, SIG32, SIG64.
        let linux = [11, 17, 10, 33, 63, 32, 64];
        assert_eq!(linux.map(to_gdb), [11, 20, 30, 45, 75, 77, 78]);
    }

    #[test]
    fn what_linux_has_not_is_none() {
        // EMT, LOST and SIG65.
        for gdb in [0, 7, 29, 79, EXC_BAD_ACCESS] {
            assert_eq!(from_gdb(gdb), None, "{gdb}");
        }
    }
}
