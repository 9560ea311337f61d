//! The GDB remote serial protocol for all that speak it: the command, the stub, the simulator. No I/O, no `std`.
//! Framing and encoding are here, amd64's [`registers`], and packets of ulpf's own ([`reports`]).
//!
//! ```text
//!     $ payload # c1 c2        packet; c1 c2 = sum of the payload bytes mod 256, in hex
//!     % payload # c1 c2        notification, never acknowledged
//!     +  -                     acknowledged, send again (not in no-ack mode)
//!     0x03                     interrupt request
//!     } x                      inside a payload: the byte x ^ 0x20
//!     c * n                    inside a reply: c repeated (n - 29) more times
//! ```
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod greeting;
pub mod registers;
pub mod reports;
pub mod stub;
pub mod xfer;

use alloc::string::String;
use alloc::vec::Vec;

/// Requests a stop of the program; sent outside of packets.
pub const INTERRUPT: u8 = 0x03;

/// Hard limit of a packet: more than any PacketSize that a stub announces.
pub const MAX_PACKET: usize = 1 << 20;

/// An element of the byte stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Payload as it was sent, with its escapes and runs.
    Packet(Vec<u8>),
    Notification(Vec<u8>),
    BadChecksum {
        sent: u8,
        computed: u8,
    },
    /// The packet was longer than the decoder's limit and has been dropped.
    Oversize,
    Ack,
    Nak,
    Interrupt,
}

/// Turns a byte stream into events. Bytes that mean nothing between packets are ignored, as
/// gdbserver does.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    body: Vec<u8>,
    notification: bool,
    limit: usize,
    oversize: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Body,
    FirstDigit,
    SecondDigit(Option<u8>),
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new(MAX_PACKET)
    }
}

impl Decoder {
    /// `limit`: the longest payload, in bytes; longer ones are dropped.
    pub fn new(limit: usize) -> Decoder {
        Decoder {
            state: State::Idle,
            body: Vec::new(),
            notification: false,
            limit,
            oversize: false,
        }
    }

    /// Takes bytes, and calls `event` for each event that they complete.
    pub fn feed(&mut self, bytes: &[u8], mut event: impl FnMut(Event)) {
        for &b in bytes {
            if let Some(e) = self.byte(b) {
                event(e);
            }
        }
    }

    fn begin(&mut self, notification: bool) {
        self.state = State::Body;
        self.notification = notification;
        self.oversize = false;
        self.body.clear();
    }

    /// Takes one byte, and returns the event that it completes.
    pub fn byte(&mut self, b: u8) -> Option<Event> {
        match self.state {
            State::Idle => match b {
                b'$' => self.begin(false),
                b'%' => self.begin(true),
                b'+' => return Some(Event::Ack),
                b'-' => return Some(Event::Nak),
                INTERRUPT => return Some(Event::Interrupt),
                _ => {}
            },
            State::Body => match b {
                // Never part of a payload unescaped: the sender has started over.
                b'$' => self.begin(false),
                b'#' => self.state = State::FirstDigit,
                _ if self.body.len() >= self.limit => self.oversize = true,
                _ => self.body.push(b),
            },
            State::FirstDigit => self.state = State::SecondDigit(hex_digit(b)),
            State::SecondDigit(first) => {
                self.state = State::Idle;
                let computed = checksum(&self.body);
                let sent = first.zip(hex_digit(b)).map(|(high, low)| high << 4 | low);
                return Some(match sent {
                    _ if self.oversize => Event::Oversize,
                    Some(sent) if sent == computed => {
                        let body = core::mem::take(&mut self.body);
                        if self.notification {
                            Event::Notification(body)
                        } else {
                            Event::Packet(body)
                        }
                    }
                    // Characters that are not hex digits never match.
                    sent => Event::BadChecksum {
                        sent: sent.unwrap_or(!computed),
                        computed,
                    },
                });
            }
        }
        None
    }
}

/// The sum of the bytes, modulo 256.
pub fn checksum(payload: &[u8]) -> u8 {
    payload.iter().fold(0, |sum, &b| sum.wrapping_add(b))
}

/// `$payload#xx`
pub fn frame(payload: &[u8]) -> Vec<u8> {
    framed(b'$', payload)
}

/// `%payload#xx`
pub fn notification(payload: &[u8]) -> Vec<u8> {
    framed(b'%', payload)
}

fn framed(lead: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 4);
    out.push(lead);
    out.extend_from_slice(payload);
    out.push(b'#');
    push_hex(&mut out, &[checksum(payload)]);
    out
}

/// Value of a hex digit of either case: 0 to 15.
pub fn hex_digit(b: u8) -> Option<u8> {
    (b as char).to_digit(16).map(|d| d as u8)
}

fn digit_of(n: u8) -> u8 {
    b"0123456789abcdef"[usize::from(n & 15)]
}

/// Appends two lower-case hex digits for each byte.
pub fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(2 * bytes.len());
    for b in bytes {
        out.extend_from_slice(&[digit_of(b >> 4), digit_of(*b)]);
    }
}

/// Encodes each byte as two lower-case hex digits.
pub fn to_hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|b| [digit_of(b >> 4), digit_of(*b)]);
    digits.map(char::from).collect()
}

/// Decodes pairs of hex digits; `None` for an odd number of digits or any other character.
pub fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits
        .chunks_exact(2)
        .map(|p| Some(hex_digit(p[0])? << 4 | hex_digit(p[1])?))
        .collect()
}

/// A hexadecimal number without sign or prefix, which fits into 64 bits.
pub fn hex_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, &b| {
        (n >> 60 == 0).then_some(n << 4 | u64::from(hex_digit(b)?))
    })
}

/// Appends a number as the protocol writes it: lower case, no leading zeros.
pub fn push_number(out: &mut Vec<u8>, n: u64) {
    let digits = n.max(1).ilog2() / 4 + 1;
    out.extend((0..digits).rev().map(|d| digit_of((n >> (4 * d)) as u8)));
}

/// Appends as much of `data` as fits into `room` bytes in escaped form (`*` too, which would start a run). Returns how
/// much of `data` that was.
pub fn push_escaped(out: &mut Vec<u8>, data: &[u8], room: usize) -> usize {
    let end = out.len().saturating_add(room);
    for (n, &b) in data.iter().enumerate() {
        let special = matches!(b, b'#' | b'$' | b'}' | b'*');
        if out.len() + 1 + usize::from(special) > end {
            return n;
        }
        match special {
            true => out.extend_from_slice(&[b'}', b ^ 0x20]),
            false => out.push(b),
        }
    }
    data.len()
}

/// Escapes binary data for a reply.
pub fn escape(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    push_escaped(&mut out, data, usize::MAX);
    out
}

/// Undoes [`escape`]; `None` if an escape character is the last one.
pub fn unescape(data: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(data.len());
    let mut bytes = data.iter();
    while let Some(&b) = bytes.next() {
        out.push(if b == b'}' { bytes.next()? ^ 0x20 } else { b });
    }
    Some(out)
}

/// Undoes run-length encoding. `None` if a run has no byte to repeat or an impossible count, or if the result is longer
/// than a packet may be.
pub fn expand_runs(data: &[u8]) -> Option<Vec<u8>> {
    let mut out: Vec<u8> = Vec::with_capacity(data.len());
    let mut bytes = data.iter();
    while let Some(&b) = bytes.next() {
        if b == b'*' {
            let count = bytes.next()?.checked_sub(29).filter(|&n| n >= 3)?;
            let last = *out.last()?;
            out.extend(core::iter::repeat_n(last, count.into()));
            if out.len() > MAX_PACKET {
                return None;
            }
        } else {
            out.push(b);
            // An escaped byte may be anything, even '*'.
            if b == b'}' {
                out.push(*bytes.next()?);
            }
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        Decoder::default().feed(bytes, |e| events.push(e));
        events
    }

    #[test]
    fn packets_and_what_lies_between_them() {
        assert_eq!(
            decode(b"+$?#3f\x03xyz-$#00%Stop:T05#00"),
            [
                Event::Ack,
                Event::Packet(b"?".into()),
                Event::Interrupt,
                Event::Nak,
                Event::Packet(b"".into()),
                Event::BadChecksum {
                    sent: 0,
                    computed: checksum(b"Stop:T05")
                }
            ]
        );
    }

    #[test]
    fn a_dollar_starts_over() {
        assert_eq!(decode(b"$m12$?#3f"), [Event::Packet(b"?".into())]);
    }

    #[test]
    fn hex_is_demanded() {
        assert!(matches!(decode(b"$?#zz")[..], [Event::BadChecksum { .. }]));
    }

    #[test]
    fn too_long_is_dropped_whole() {
        let mut events = Vec::new();
        let mut decoder = Decoder::new(4);
        decoder.feed(b"$12345#ff$1234#ca", |e| events.push(e));
        assert_eq!(events, [Event::Oversize, Event::Packet(b"1234".into())]);
    }

    #[test]
    fn what_is_no_number_is_none() {
        for bad in ["", "g", "-1", "10000000000000000", "0x1", "1 "] {
            assert_eq!(hex_number(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(hex_number(b"0000000000000000000f"), Some(15));
        assert_eq!(from_hex(b"123"), None);
        assert_eq!(from_hex(b"1x"), None);
        assert_eq!(unescape(b"a}"), None);
    }

    #[test]
    fn runs() {
        assert_eq!(expand_runs(b"0* 1").unwrap(), b"00001");
        assert_eq!(expand_runs(b"*!"), None);
        assert_eq!(expand_runs(b"0*"), None);
        assert_eq!(expand_runs(b"}**!").unwrap(), b"}*****");
        let long = [b"0".as_slice(), &b"*~".repeat(MAX_PACKET / 97)].concat();
        assert!(expand_runs(&long).unwrap().len() <= MAX_PACKET);
        assert_eq!(expand_runs(&[&long[..], b"*~*~"].concat()), None);
    }

    proptest! {
        #[test]
        fn frames_come_back(payload: Vec<u8>) {
            let payload = escape(&payload);
            prop_assert_eq!(decode(&frame(&payload)), [Event::Packet(payload)]);
        }

        #[test]
        fn escaping_is_undone(data: Vec<u8>) {
            prop_assert_eq!(unescape(&escape(&data)), Some(data));
        }

        #[test]
        fn as_much_is_escaped_as_there_is_room(data in prop::collection::vec(any::<u8>(), 0..80), room in 0usize..120) {
            let mut out = b"m".to_vec();
            let took = push_escaped(&mut out, &data, room);
            prop_assert!(out.len() <= 1 + room);
            prop_assert!(took == data.len() || out.len() + 2 > 1 + room, "there was room");
            prop_assert_eq!(unescape(&out[1..]), Some(data[..took].to_vec()));
            prop_assert!(!out[1..].iter().any(|b| matches!(b, b'#' | b'$' | b'*')));
        }

        #[test]
        fn numbers_are_read_as_they_were(n: u64) {
            let mut out = Vec::new();
            push_number(&mut out, n);
            prop_assert_eq!(&out, &std::format!("{n:x}").into_bytes());
            prop_assert_eq!(hex_number(&out), Some(n));
            prop_assert_eq!(hex_number(&out.to_ascii_uppercase()), Some(n));
        }

        #[test]
        fn hex_is_undone(data: Vec<u8>) {
            prop_assert_eq!(from_hex(to_hex(&data).as_bytes()), Some(data));
        }

        /// The events do not depend on how the bytes are split.
        #[test]
        fn pieces_do_not_matter(bytes in noise(), cut in 0usize..64) {
            let whole = decode(&bytes);
            let mut events = Vec::new();
            let mut decoder = Decoder::default();
            for piece in bytes.chunks(cut.max(1)) {
                decoder.feed(piece, |e| events.push(e));
            }
            prop_assert_eq!(events, whole);
        }

        /// After any garbage, an interrupt or a packet on a fresh line is still understood: no input wedges the decoder
        /// for good.
        #[test]
        fn garbage_does_not_stick(bytes in noise()) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes, |_| {});
            let mut last = None;
            // An unfinished packet swallows at most one packet.
            decoder.feed(b"$#00$#00$?#3f", |e| last = Some(e));
            prop_assert_eq!(last, Some(Event::Packet(b"?".into())));
        }
    }

    /// Bytes that resemble the protocol more often than random ones do.
    fn noise() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![3 => Just(b'$'), 3 => Just(b'#'), 1 => Just(b'}'), 1 => Just(b'*'), 1 => Just(3u8), 4 => any::<u8>(), 4 => prop::sample::select(b"0123456789abcdef".to_vec())];
        prop::collection::vec(byte, 0..256)
    }
}
