//! Parsing and building packets: size limits, process numbers, actions, stop replies. No I/O.
#![forbid(unsafe_code)]

use super::options::Disabled;

/// The packet size that the server announces while it has no program; the stub announces its own.
pub const PACKET_SIZE: usize = 0x10000;
/// Longer packets are refused, whatever the stub announces.
pub const PACKET_LIMIT: usize = 0x40000;

/// The answer to a longer packet. It is not a NAK, because sending the packet again would not help.
pub const TOO_LONG: &[u8] = b"E.The packet is longer than the PacketSize that was announced.";

/// Whether this is `O` and hex digits: text to print, with more replies to follow. (`OK` is not.)
pub fn is_output(reply: &[u8]) -> bool {
    reply.first() == Some(&b'O')
        && reply.len() % 2 == 1
        && reply[1..].iter().all(u8::is_ascii_hexdigit)
}

/// The process in `pPID.TID`; negative means all.
pub fn process_of(thread: &[u8]) -> Option<i64> {
    let text = thread.strip_prefix(b"p")?;
    let pid = text.split(|&b| b == b'.').next()?;
    if pid == b"-1" {
        return Some(-1);
    }
    ulpf_rsp::hex_number(pid).map(|n| n as i64)
}

/// Whether this action of `vCont` applies to process `number`.
pub fn concerns(action: &[u8], number: i32) -> bool {
    let Some(at) = action.iter().position(|&b| b == b':') else {
        return true;
    };
    match process_of(&action[at + 1..]) {
        Some(process) => process <= 0 || process == i64::from(number),
        None => true,
    }
}

/// The actions of `vCont` that apply to process `number`, or `None` if none does.
pub fn actions_for(packet: &[u8], number: i32) -> Option<Vec<u8>> {
    let Some(actions) = packet.strip_prefix(b"vCont;") else {
        return Some(packet.into());
    };
    let mine = actions.split(|&b| b == b';');
    let mine: Vec<&[u8]> = mine.filter(|action| concerns(action, number)).collect();
    (!mine.is_empty()).then(|| [b"vCont;", &mine.join(&b';')[..]].concat())
}

/// The packet that resumes a program again after a halt in the middle of a resume. Signals have been delivered. `None`
/// if it cannot be repeated (a step may have been made).
pub fn resume_again(packet: &[u8]) -> Option<Vec<u8>> {
    if let [b'c' | b'C', ..] = packet {
        return Some(b"c".into());
    }
    let actions = packet.strip_prefix(b"vCont;")?.split(|&b| b == b';');
    let mut again = b"vCont".to_vec();
    for action in actions {
        let at = action.iter().position(|&b| b == b':');
        let (verb, thread) = action.split_at(at.unwrap_or(action.len()));
        if !matches!(verb, [b'c'] | [b'C', ..]) {
            return None;
        }
        again.extend_from_slice(b";c");
        again.extend_from_slice(thread);
    }
    Some(again)
}

/// The packet that resumes a program again if it has stopped before it made any progress. It has no signals, because
/// these have been delivered.
pub fn repeated(packet: &[u8]) -> Vec<u8> {
    let quiet = |verb: &[u8]| match verb {
        [b'c' | b'C', ..] => b"c".to_vec(),
        [b's' | b'S', ..] => b"s".to_vec(),
        other => other.to_vec(), // a range of addresses
    };
    let Some(actions) = packet.strip_prefix(b"vCont;") else {
        return quiet(packet);
    };
    let actions = actions.split(|&b| b == b';').map(|action| {
        let at = action.iter().position(|&b| b == b':');
        let (verb, thread) = action.split_at(at.unwrap_or(action.len()));
        [&quiet(verb), thread].concat()
    });
    [b"vCont;", &actions.collect::<Vec<_>>().join(&b';')[..]].concat()
}

/// The action of a packet for a thread (`p1.2`): `c`, `s` or a range.
pub fn action_for(packet: &[u8], thread: &[u8]) -> Vec<u8> {
    let all = repeated(packet);
    let Some(actions) = all.strip_prefix(b"vCont;") else {
        return all;
    };
    // The first matching action counts.
    let mut actions = actions.split(|&b| b == b';');
    let fits = actions.find_map(|action| {
        let mut parts = action.splitn(2, |&b| b == b':');
        let (verb, whom) = (parts.next()?, parts.next());
        let whole = |whom: &[u8]| {
            let process = thread.split(|&b| b == b'.').next();
            whom == b"-1"
                || whom == b"p-1.-1"
                || whom
                    .strip_suffix(b".-1")
                    .is_some_and(|p| Some(p) == process)
        };
        whom.is_none_or(|whom| whom == thread || whole(whom))
            .then(|| verb.to_vec())
    });
    fits.unwrap_or_else(|| b"c".into())
}

/// A stop reply without its reason, as after a step.
pub fn plain_stop(reply: &[u8]) -> Vec<u8> {
    let fields = reply.get(3..).unwrap_or_default().split(|&b| b == b';');
    let kept = fields.filter(|f| {
        !f.starts_with(b"ulpfheap:")
            && !f.starts_with(b"reason:")
            && !f.starts_with(b"description:")
    });
    [b"T05", &kept.collect::<Vec<_>>().join(&b';')[..]].concat()
}

/// The thread of a stop reply, by the debugger's numbers.
pub fn thread_in(stop: &[u8]) -> Option<&[u8]> {
    let mut fields = stop.get(3..)?.split(|b| *b == b';');
    fields.find_map(|field| field.strip_prefix(b"thread:"))
}

/// The PC of a stop reply, if it contains one.
pub fn pc_in(reply: &[u8]) -> Option<u64> {
    let mut fields = reply.split(|&b| b == b';');
    let hex = fields.find_map(|f| f.strip_prefix(b"10:"))?;
    let bytes = ulpf_rsp::from_hex(hex)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Feature of `qSupported`: the debugger shows the text of an error (GDB since version 15).
pub const ERROR_TEXTS: &[u8] = b"error-message+";

/// Whether a debugger's `qSupported` contains this feature.
pub fn announces(supported: &[u8], feature: &[u8]) -> bool {
    let mut features = supported.split(|&b| b == b':' || b == b';');
    features.any(|f| f == feature)
}

/// `T05…` with the exec reason, for a program that has just been executed.
pub fn exec_stop(reply: &[u8], program: &str) -> Vec<u8> {
    let reason = format!("exec:{};", ulpf_rsp::to_hex(program.as_bytes()));
    with_reason(reply, &reason)
}

/// `T05…` with a reason `NAME:VALUE;`.
pub fn with_reason(reply: &[u8], reason: &str) -> Vec<u8> {
    let (head, rest) = reply.split_at(reply.len().min(3));
    [head, reason.as_bytes(), rest].concat()
}

/// Whether `QCatchSyscalls:1[;NUMBER…]` selects execve(2) or all calls.
pub fn catches_execve(packet: &[u8]) -> bool {
    match packet.strip_prefix(b"QCatchSyscalls:1") {
        Some(b"") => true,
        Some(list) => list.split(|&b| b == b';').any(|nr| nr == b"3b"),
        None => false,
    }
}

/// The error for a packet. GDB accepts an error text only where it cannot be mistaken for data in hex.
pub fn error_for<'a>(packet: &[u8], text: &'a [u8]) -> &'a [u8] {
    match packet.first() {
        Some(b'g' | b'm' | b'p' | b'x') => b"E01",
        _ => text,
    }
}

/// Adapts a stop reply to `--disable-packet`.
pub fn shape_stop(reply: Vec<u8>, disabled: &Disabled) -> Vec<u8> {
    if reply.first() != Some(&b'T') || !(disabled.stop_thread || disabled.stop_t) {
        return reply;
    }
    if disabled.stop_t {
        return [b"S", &reply[1..reply.len().min(3)]].concat();
    }
    let (signal, fields) = reply.split_at(reply.len().min(3));
    let fields = fields.split_inclusive(|b| *b == b';');
    let fields = fields.filter(|field| !field.starts_with(b"thread:"));
    fields.fold(signal.to_vec(), |all, field| [&all[..], field].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_threads() {
        assert_eq!(process_of(b"p10.-1"), Some(16));
        assert_eq!(process_of(b"p-1.-1"), Some(-1));
        assert_eq!(process_of(b"-1"), None);
    }

    #[test]
    fn stops_that_nobody_hears_of() {
        let repeated = |p: &str| String::from_utf8(repeated(p.as_bytes())).unwrap();
        for (packet, again) in [
            ("c", "c"),
            ("C0b;4010", "c"),
            ("S05", "s"),
            ("vCont;s:p1.2;c:p1.-1", "vCont;s:p1.2;c:p1.-1"),
            ("vCont;S0a:p1.2;C0b:p1.3;c", "vCont;s:p1.2;c:p1.3;c"),
            ("vCont;r10,20:p1.2;c", "vCont;r10,20:p1.2;c"),
        ] {
            assert_eq!(repeated(packet), again);
        }
        let action = |p: &str| String::from_utf8(action_for(p.as_bytes(), b"p1.2")).unwrap();
        for (packet, verb) in [
            ("s", "s"),
            ("vCont;s:p1.2;c", "s"),
            ("vCont;s:p1.3;c", "c"),
            ("vCont;r1,2:p1.2;c:p1.-1", "r1,2"),
            ("vCont;s:p1.-1;c", "s"),
            ("vCont;s:p2.-1;c:p2.3", "c"),
            ("vCont;s", "s"),
        ] {
            assert_eq!(action(packet), verb, "{packet}");
        }
        let stop = b"T91thread:p1.2;10:6554555555550000;core:0;reason:exception;ulpfheap:1f;";
        assert_eq!(pc_in(stop), Some(0x5555_5555_5465));
        let plain = plain_stop(stop);
        assert_eq!(plain, b"T05thread:p1.2;10:6554555555550000;core:0;");
        assert_eq!(pc_in(b"T05thread:1;"), None);
    }

    #[test]
    fn what_can_be_said_again() {
        let again = |p: &str| resume_again(p.as_bytes()).map(|p| String::from_utf8(p).unwrap());
        assert_eq!(again("c"), Some("c".into()));
        assert_eq!(again("C0b;4010"), Some("c".into()));
        assert_eq!(again("s"), None);
        assert_eq!(again("vCont;c"), Some("vCont;c".into()));
        assert_eq!(
            again("vCont;C0a:p1.2;c:p1.-1"),
            Some("vCont;c:p1.2;c:p1.-1".into())
        );
        assert_eq!(again("vCont;s:p1.2;c"), None);
        assert_eq!(again("vCont;r1,2:p1.2"), None);
        assert_eq!(again("?"), None);
    }

    #[test]
    fn stops_without_threads() {
        let shaped = |disabled: Disabled| {
            let stop = shape_stop(b"T05thread:p1.2;06:00;core:0;".into(), &disabled);
            String::from_utf8(stop).unwrap()
        };
        let thread = Disabled {
            stop_thread: true,
            ..Disabled::default()
        };
        assert_eq!(shaped(thread), "T0506:00;core:0;");
        let all = Disabled {
            stop_t: true,
            ..Disabled::default()
        };
        assert_eq!(shaped(all), "S05");
        assert_eq!(shaped(Disabled::default()), "T05thread:p1.2;06:00;core:0;");
    }

    #[test]
    fn actions_go_to_whom_they_name() {
        let of = |packet: &[u8], number| {
            actions_for(packet, number).map(|p| String::from_utf8(p).unwrap())
        };
        assert_eq!(of(b"vCont;c:p10.-1", 16).unwrap(), "vCont;c:p10.-1");
        assert_eq!(of(b"vCont;c:p10.-1", 17), None);
        assert_eq!(
            of(b"vCont;s:p10.11;c:p11.-1;c", 16).unwrap(),
            "vCont;s:p10.11;c"
        );
        assert_eq!(of(b"vCont;c:p-1.-1", 16).unwrap(), "vCont;c:p-1.-1");
        assert_eq!(of(b"c", 16).unwrap(), "c");
    }
}
