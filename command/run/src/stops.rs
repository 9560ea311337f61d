//! Parses the stub's packets, and builds those that resume.

use ulpf_inject::inferior::follow::child_in;

/// GDB's numbers for SIGTRAP, and for the interrupt that we request ourselves.
pub const TRAP: u8 = 5;
pub const INTERRUPT: u8 = 2;

/// Reason of a stop, as the stub reports it.
pub enum Stop {
    /// GDB signal number, and thread in the notation of the protocol.
    Signal { signal: u8, thread: String },
    /// This thread (0 if unknown) has made this child, which waits.
    Forked {
        child: i32,
        vfork: bool,
        thread: i32,
    },
    /// The thread is about to trace this process or thread (ptrace), or to be traced by its parent (0).
    Traces { number: i32 },
    /// The program has ended.
    Gone,
    /// The program does not stop, and the user wants to leave all the same.
    GivenUp,
}

/// The packet that resumes all threads, with `signal` for the thread that it stopped.
pub fn pass_on(signal: u8, thread: &str) -> String {
    match (signal, thread) {
        (0, _) => "vCont;c".into(),
        (_, "") => format!("vCont;C{signal:02x}"),
        _ => format!("vCont;C{signal:02x}:{thread};c"),
    }
}

/// A text of the stub for the user.
pub fn console(packet: &[u8]) -> Option<String> {
    let text = ulpf_rsp::from_hex(packet.strip_prefix(b"O")?)?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Reads a stop reply; `None` for other packets (console output).
pub fn stop_of(packet: &[u8]) -> Option<Stop> {
    match packet {
        [kind @ (b'T' | b'S'), high, low, rest @ ..] => {
            let signal = ulpf_rsp::hex_digit(*high)? << 4 | ulpf_rsp::hex_digit(*low)?;
            let fields = std::str::from_utf8(rest).unwrap_or("");
            let field = |name| fields.split(';').find_map(|f| f.strip_prefix(name));
            let thread = field("thread:").filter(|_| *kind == b'T').unwrap_or("");
            if let Some((child, vfork)) = child_in(packet) {
                let thread = number_of(thread).unwrap_or(0);
                return Some(Stop::Forked {
                    child,
                    vfork,
                    thread,
                });
            }
            if let Some(number) = field("ulpftraces:") {
                let number = ulpf_rsp::hex_number(number.as_bytes())?;
                let number = i32::try_from(number).ok()?;
                return Some(Stop::Traces { number });
            }
            Some(Stop::Signal {
                signal,
                thread: thread.to_string(),
            })
        }
        [b'W' | b'X', ..] => Some(Stop::Gone),
        _ => None,
    }
}

/// The thread number in `pPROCESS.THREAD` or `THREAD`.
fn number_of(thread: &str) -> Option<i32> {
    let thread = thread.rsplit('.').next()?;
    i32::try_from(ulpf_rsp::hex_number(thread.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_replies() {
        match stop_of(b"T0bthread:p12.34;core:1;").unwrap() {
            Stop::Signal { signal, thread } => {
                assert_eq!((signal, thread.as_str()), (11, "p12.34"));
                assert_eq!(pass_on(signal, &thread), "vCont;C0b:p12.34;c");
            }
            _ => panic!(),
        }
        assert!(matches!(
            stop_of(b"S05"),
            Some(Stop::Signal { signal: 5, .. })
        ));
        assert!(matches!(stop_of(b"W00"), Some(Stop::Gone)));
        assert!(matches!(
            stop_of(b"T05thread:1;ulpftraces:1f;"),
            Some(Stop::Traces { number: 31 })
        ));
        assert!(matches!(
            stop_of(b"T05fork:p20.20;thread:p12.1f;"),
            Some(Stop::Forked {
                child: 32,
                vfork: false,
                thread: 31,
            })
        ));
        for bad in ["", "x", "ffffffff", "123456789abcdef01"] {
            assert!(stop_of(format!("T05ulpftraces:{bad};").as_bytes()).is_none());
        }
        assert!(stop_of(b"O48").is_none());
        assert!(stop_of(b"Tzz").is_none());
        assert_eq!(pass_on(0, "1"), "vCont;c");
    }
}
