//! `qXfer`: whole objects in pieces.

use super::xml::xml_text;
use super::{Served, libraries};
use crate::gdb::packet::{self, Xfer, XferBody};
use crate::gdb::reason::Reported;
use crate::gdb::{GdbSession, procfs};
use crate::inferior::Inferior;
use alloc::vec::Vec;
use linux_raw_sys::general as k;

pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    let Some(request) = packet::xfer(payload) else {
        return Served::error();
    };
    match &request.body {
        XferBody::Read { len } => match object(session, inf, &request) {
            Object::Data(data) => Served::Reply(piece(&data, request.offset, *len)),
            Object::Failed => Served::error(),
            Object::Unknown => Served::unknown(),
        },
        XferBody::Write { data } => match request.object {
            b"siginfo" => {
                write_siginfo(session, inf, request.offset, data).unwrap_or_else(Served::error)
            }
            _ => Served::unknown(),
        },
    }
}

/// The answer to `qXfer:threads:read:…`.
pub fn thread_list(
    session: &GdbSession,
    inf: &mut dyn Inferior,
    payload: &[u8],
) -> Option<Vec<u8>> {
    match packet::xfer(payload)? {
        Xfer {
            object: b"threads",
            offset,
            body: XferBody::Read { len },
            ..
        } => Some(piece(&threads(session, inf), offset, len)),
        _ => None,
    }
}

enum Object {
    Data(Vec<u8>),
    Failed,
    Unknown,
}

fn object(session: &mut GdbSession, inf: &mut dyn Inferior, request: &Xfer<'_>) -> Object {
    let pid = session.debuggee.pid;
    let or_failed = |data: Option<Vec<u8>>| data.map_or(Object::Failed, Object::Data);
    match request.object {
        b"features" if request.annex == b"target.xml" => {
            Object::Data(session.debuggee.layout.xml.as_bytes().to_vec())
        }
        b"features" => Object::Failed,
        b"threads" => Object::Data(threads(session, inf)),
        b"auxv" => or_failed(procfs::read(pid, "auxv")),
        b"exec-file" => or_failed(procfs::exe(pid).ok()),
        b"siginfo" => or_failed(siginfo(session, inf)),
        b"libraries-svr4" => or_failed(libraries::list(inf, pid, request.annex)),
        _ => Object::Unknown,
    }
}

/// The thread's own signal, or the one that the kernel would have sent a tracer for a stop of ours.
fn siginfo(session: &GdbSession, inf: &mut dyn Inferior) -> Option<Vec<u8>> {
    const SI_KERNEL: i32 = k::SI_KERNEL as i32;
    let mut info = *inf.siginfo(session.thread)?;
    let reason = session.reason_of(session.thread);
    let ours = reason.and_then(|reason| Reported::of(reason, session.client).sent);
    if let Some((signo, code)) = ours {
        // struct siginfo: si_signo, si_errno, si_code, padding, si_addr
        info = [0; 128];
        info[..4].copy_from_slice(&signo.to_le_bytes());
        info[8..12].copy_from_slice(&code.to_le_bytes());
        if code != SI_KERNEL {
            let pc = inf.gprs(session.thread)?.rip;
            info[16..24].copy_from_slice(&pc.to_le_bytes());
        }
    }
    Some(info.to_vec())
}

/// `m` + a piece, `l` + the last piece.
fn piece(data: &[u8], offset: u64, len: u64) -> Vec<u8> {
    let rest = usize::try_from(offset)
        .ok()
        .and_then(|o| data.get(o..))
        .unwrap_or_default();
    let want = usize::try_from(len).unwrap_or(rest.len()).min(rest.len());
    let mut reply = b"m".to_vec();
    let took = packet::push_escaped(&mut reply, &rest[..want], packet::PACKET_SIZE - 1);
    if took == rest.len() {
        reply[0] = b'l';
    }
    reply
}

fn threads(session: &GdbSession, inf: &mut dyn Inferior) -> Vec<u8> {
    let pid = session.debuggee.pid;
    let mut x = b"<threads>\n".to_vec();
    for tid in inf.threads() {
        x.extend_from_slice(b"<thread id=\"");
        packet::thread_id(&mut x, pid, tid, session.client.features.multiprocess);
        if let Some(core) = procfs::core_of(inf, pid, tid) {
            x.extend_from_slice(alloc::format!("\" core=\"{core}").as_bytes());
        }
        x.extend_from_slice(b"\" name=\"");
        x.extend_from_slice(xml_text(&inf.thread_name(tid)).as_bytes());
        // pthread_self(), as it lies in memory: the thread pointer, with glibc and musl.
        if let Some((fs, _)) = inf.fs_gs_base(tid).filter(|(fs, _)| *fs != 0) {
            x.extend_from_slice(b"\" handle=\"");
            packet::push_hex(&mut x, &fs.to_le_bytes());
        }
        x.extend_from_slice(b"\"/>\n");
    }
    x.extend_from_slice(b"</threads>\n");
    x
}

fn write_siginfo(
    session: &GdbSession,
    inf: &mut dyn Inferior,
    offset: u64,
    data: &[u8],
) -> Option<Served> {
    let info = inf.siginfo(session.thread)?;
    let at = usize::try_from(offset).ok()?;
    info.get_mut(at..at.checked_add(data.len())?)?
        .copy_from_slice(data);
    let mut reply = Vec::new();
    packet::push_num(&mut reply, data.len() as u64);
    Some(Served::Reply(reply))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn pieces_make_up_the_whole(data in vec(any::<u8>(), 0..300), len in 1u64..100) {
            let mut got = Vec::<u8>::new();
            loop {
                let part = piece(&data, got.len() as u64, len);
                let (lead, rest) = part.split_first().unwrap();
                let bytes = packet::unescape(rest).unwrap();
                prop_assert!(bytes.len() as u64 <= len);
                got.extend(&bytes);
                prop_assert_eq!(*lead == b'l', got.len() == data.len());
                if *lead == b'l' {
                    break;
                }
                prop_assert!(!bytes.is_empty());
            }
            prop_assert_eq!(got, data);
        }
    }

    #[test]
    fn a_piece_fits_into_a_packet_and_there_is_none_behind_the_end() {
        let data = vec![b'}'; packet::PACKET_SIZE];
        let part = piece(&data, 0, u64::MAX);
        assert!(part.len() <= packet::PACKET_SIZE && part[0] == b'm');
        assert_eq!(piece(b"abc", 3, 9), b"l");
        assert_eq!(piece(b"abc", u64::MAX, 9), b"l");
        assert_eq!(piece(b"abc", 1, u64::MAX), b"lbc");
    }
}
