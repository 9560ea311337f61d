//! `m M X x`: memory. gdbstub's `m` has no bound on the answer, and reads on behind a hole. Its `M` and `X` do not compare
//! the length with the data. It has no `x`. Test: `memory_in_pieces_and_at_the_edge` in `stub/host-tests`.

use super::Served;
use crate::gdb::{GdbSession, packet};
use crate::inferior::Inferior;
use alloc::vec;
use alloc::vec::Vec;
use ulpf_lib::TargetAddr;
use ulpf_rsp::xfer::split_once;
use ulpf_rsp::{from_hex, push_escaped, push_hex, unescape};

pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    let Some((verb, rest)) = payload.split_first() else {
        return Served::unknown();
    };
    session.large.read(rest);
    let reply = match verb {
        b'm' => read_hex(inf, rest),
        b'x' => read_binary(session, inf, rest),
        b'M' => write(inf, rest, from_hex),
        _ => write(inf, rest, unescape),
    };
    reply.unwrap_or_else(Served::error)
}

/// Up to `most` bytes of what `ADDR,LEN` asks for; fewer at the first unreadable one.
fn read(inf: &mut dyn Inferior, rest: &[u8], most: usize) -> Option<Vec<u8>> {
    let (addr, len) = packet::addr_len(rest)?;
    let mut data = vec![0; usize::try_from(len).unwrap_or(most).min(most)];
    let got = inf.read_memory(TargetAddr(addr), &mut data);
    if got == 0 && len != 0 {
        return None;
    }
    data.truncate(got);
    Some(data)
}

fn read_hex(inf: &mut dyn Inferior, rest: &[u8]) -> Option<Served> {
    hex(inf, rest).map(Served::Reply)
}

/// The bytes at `ADDR,LEN`, in hexadecimal.
pub fn hex(inf: &mut dyn Inferior, rest: &[u8]) -> Option<Vec<u8>> {
    let data = read(inf, rest, packet::PACKET_SIZE / 2)?;
    let mut reply = Vec::new();
    push_hex(&mut reply, &data);
    Some(reply)
}

/// `x`: the bytes unencoded but escaped, behind a `b` (`binary-upload`, GDB 16). LLDB's older `x` has no `b`; LLDB
/// probes for the packet with `x0,0`.
fn read_binary(session: &mut GdbSession, inf: &mut dyn Inferior, rest: &[u8]) -> Option<Served> {
    if packet::addr_len(rest)? == (0, 0) {
        session.client.bare_reads = true;
        return Some(Served::Ok);
    }
    let data = read(inf, rest, packet::PACKET_SIZE)?;
    let mut reply = Vec::new();
    if !session.client.bare_reads {
        reply.push(b'b');
    }
    push_escaped(&mut reply, &data, packet::PACKET_SIZE);
    Some(Served::Reply(reply))
}

fn write(
    inf: &mut dyn Inferior,
    rest: &[u8],
    decode: fn(&[u8]) -> Option<Vec<u8>>,
) -> Option<Served> {
    let (head, data) = split_once(rest, b':')?;
    let (addr, len) = packet::addr_len(head)?;
    let data = decode(data)?;
    if data.len() as u64 != len {
        return None;
    }
    // GDB probes for `X` with an empty write.
    let done = data.is_empty() || inf.write_memory(TargetAddr(addr), &data).is_ok();
    Some(Served::ok_or_error(done))
}
