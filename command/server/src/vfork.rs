//! vfork children that the debugger follows, until they execute another program. Such a child runs in its parent's
//! memory, so its parent's stub stops it and reads its registers. For the stub it is one more thread; for the debugger
//! it is a process.
//!
//! ```text
//!   debugger       vCont;c:p20.-1    Hgp20.20    thread:p20.20;
//!   stub of p10    vCont;c:p10.20    Hgp10.20    thread:p10.20;
//! ```
#![forbid(unsafe_code)]

use super::packets::{actions_for, concerns, process_of};
use ulpf_host::foreign::numbers::Process;
use ulpf_inject::inferior::{Ending, Exit};

#[derive(Debug)]
pub struct VforkChild {
    /// The number by which the debugger and the stub know it.
    pub number: i32,
    pub process: Process,
    pub exit: Exit,
    /// It has executed another program and could not be followed: only its end will be reported.
    pub lost: bool,
}

impl VforkChild {
    fn in_stub(&self, parent: i32) -> Vec<u8> {
        format!("p{parent:x}.{:x}", self.number).into_bytes()
    }

    fn for_debugger(&self) -> Vec<u8> {
        format!("p{0:x}.{0:x}", self.number).into_bytes()
    }
}

/// The next end of one of the children. Never returns if the list is empty. Cancel-safe.
pub async fn next_end(children: &mut [VforkChild]) -> (i32, Ending) {
    let mut all: Vec<_> = children
        .iter_mut()
        .map(|c| Box::pin(async { (c.number, c.exit.wait().await) }))
        .collect();
    std::future::poll_fn(|cx| {
        for one in &mut all {
            if let std::task::Poll::Ready(end) = one.as_mut().poll(cx) {
                return std::task::Poll::Ready(end);
            }
        }
        std::task::Poll::Pending
    })
    .await
}

/// The actions of `vCont` for the parent and its children, in the stub's numbering. `None` if no action applies.
///
/// A child without an action stays stopped; in non-stop mode its state does not change.
pub fn actions(
    packet: &[u8],
    parent: i32,
    children: &[VforkChild],
    non_stop: bool,
) -> Option<Vec<u8>> {
    let Some(actions) = packet.strip_prefix(b"vCont;") else {
        return Some(packet.into());
    };
    let mut wanted = false;
    let mut list: Vec<Vec<u8>> = Vec::new();
    for child in children {
        let action = actions
            .split(|&b| b == b';')
            .find(|action| concerns(action, child.number))
            .and_then(|action| action.split(|&b| b == b':').next());
        wanted |= action.is_some_and(|a| a != b"t" || non_stop);
        if non_stop && action.is_none() {
            continue;
        }
        list.push([action.unwrap_or(b"t"), b":", &child.in_stub(parent)].concat());
    }
    let rest = actions_for(packet, parent);
    if !wanted && rest.is_none() {
        return None;
    }
    list.extend(
        rest.as_deref()
            .and_then(|r| r.strip_prefix(b"vCont;"))
            .map(Into::into),
    );
    Some([b"vCont;", &list.join(&b';')[..]].concat())
}

/// A packet that contains a thread, in the stub's numbering.
pub fn to_stub(packet: &[u8], parent: i32, children: &[VforkChild]) -> Option<Vec<u8>> {
    let at = match packet {
        [b'H', _, ..] => 2,
        [b'T', ..] => 1,
        _ => packet.strip_prefix(b"qThreadExtraInfo,").map(|_| 17)?,
    };
    let number = process_of(&packet[at..])?;
    let child = children.iter().find(|c| i64::from(c.number) == number)?;
    Some([&packet[..at], &child.in_stub(parent)].concat())
}

/// A reply of the parent's stub, in the debugger's numbering.
pub fn to_debugger(reply: Vec<u8>, parent: i32, children: &[VforkChild]) -> Vec<u8> {
    let names_threads = reply.starts_with(b"T")
        || reply.starts_with(b"QC")
        || reply.starts_with(b"mp")
        || matches!(reply.first(), Some(b'm' | b'l')) && reply.windows(7).any(|w| w == b"<thread");
    if !names_threads {
        return reply;
    }
    let mut out = Vec::with_capacity(reply.len() + 8);
    let mut rest = &reply[..];
    while let Some(at) = rest.iter().position(|&b| b == b'p') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let len = 1 + rest[1..].iter().take_while(|b| is_name(**b)).count();
        let child = thread_of(&rest[..len], parent)
            .and_then(|tid| children.iter().find(|c| i64::from(c.number) == tid));
        match child {
            Some(child) => out.extend(child.for_debugger()),
            None => out.extend_from_slice(&rest[..len]),
        }
        rest = &rest[len..];
    }
    out.extend_from_slice(rest);
    out
}

fn is_name(byte: u8) -> bool {
    byte == b'.' || byte.is_ascii_hexdigit()
}

/// The thread of process `parent` in `pPID.TID`. (Numbers may have leading zeros.)
fn thread_of(name: &[u8], parent: i32) -> Option<i64> {
    let at = name.iter().position(|&b| b == b'.')?;
    let process = process_of(name)?;
    let thread = ulpf_rsp::hex_number(&name[at + 1..])?;
    (process == i64::from(parent)).then_some(thread as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(numbers: &[i32]) -> Vec<VforkChild> {
        // None of them ends before the test does.
        let process = Process::open(std::process::id() as i32).unwrap();
        let one = |&number: &i32| VforkChild {
            number,
            process: process.clone(),
            exit: Exit::of(&process, false).unwrap(),
            lost: false,
        };
        numbers.iter().map(one).collect()
    }

    #[tokio::test]
    async fn actions_name_threads_of_the_parent() {
        let of = |packet: &str| {
            let actions = actions(packet.as_bytes(), 0x10, &children(&[0x20]), false);
            actions.map(|a| String::from_utf8(a).unwrap())
        };
        assert_eq!(of("vCont;c:p20.-1").unwrap(), "vCont;c:p10.20");
        assert_eq!(of("vCont;s:p20.20;c:p20.-1").unwrap(), "vCont;s:p10.20");
        assert_eq!(of("vCont;c:p10.-1").unwrap(), "vCont;t:p10.20;c:p10.-1");
        assert_eq!(of("vCont;c").unwrap(), "vCont;c:p10.20;c");
        assert_eq!(of("vCont;C05:p20.20;c").unwrap(), "vCont;C05:p10.20;c");
        assert_eq!(of("vCont;c:p30.-1"), None);
        assert_eq!(of("c").unwrap(), "c");
        let of = |packet: &str| {
            let actions = actions(packet.as_bytes(), 0x10, &children(&[0x20]), true);
            actions.map(|a| String::from_utf8(a).unwrap())
        };
        assert_eq!(of("vCont;c:p10.-1").unwrap(), "vCont;c:p10.-1");
        assert_eq!(of("vCont;t:p20.20").unwrap(), "vCont;t:p10.20");
    }

    #[tokio::test]
    async fn names_both_ways() {
        let children = children(&[0x20]);
        let to_stub = |packet: &str| {
            let packet = to_stub(packet.as_bytes(), 0x10, &children);
            packet.map(|p| String::from_utf8(p).unwrap())
        };
        assert_eq!(to_stub("Hgp20.20").unwrap(), "Hgp10.20");
        assert_eq!(to_stub("Hcp20.-1").unwrap(), "Hcp10.20");
        assert_eq!(to_stub("Tp20.20").unwrap(), "Tp10.20");
        assert_eq!(
            to_stub("qThreadExtraInfo,p20.20").unwrap(),
            "qThreadExtraInfo,p10.20"
        );
        assert_eq!(to_stub("Hgp10.10"), None);
        assert_eq!(to_stub("m20,20"), None);
        let to_debugger =
            |reply: &str| String::from_utf8(to_debugger(reply.into(), 0x10, &children)).unwrap();
        assert_eq!(to_debugger("T05thread:p10.20;"), "T05thread:p20.20;");
        assert_eq!(to_debugger("T05thread:p10.201;"), "T05thread:p10.201;");
        assert_eq!(
            to_debugger("T05swbreak:;thread:p0010.0020;"),
            "T05swbreak:;thread:p20.20;"
        );
        assert_eq!(to_debugger("mp10.10,p10.20"), "mp10.10,p20.20");
        assert_eq!(
            to_debugger("l<threads>\n<thread id=\"p10.20\"/>"),
            "l<threads>\n<thread id=\"p20.20\"/>"
        );
        assert_eq!(to_debugger("lp10.20"), "lp10.20");
    }
}
