//! `qXfer`: whole objects in pieces, and the text of XML in them.

use crate::{hex_number, push_escaped, unescape};
use alloc::string::String;
use alloc::vec::Vec;

/// `qXfer:OBJECT:read:ANNEX:OFFSET,LENGTH` or `qXfer:OBJECT:write:ANNEX:OFFSET:DATA`.
#[derive(Debug, PartialEq, Eq)]
pub struct Xfer<'a> {
    pub object: &'a [u8],
    pub annex: &'a [u8],
    pub offset: u64,
    pub body: XferBody,
}

#[derive(Debug, PartialEq, Eq)]
pub enum XferBody {
    Read { len: u64 },
    Write { data: Vec<u8> },
}

/// Splits at the first `sep`.
pub fn split_once(s: &[u8], sep: u8) -> Option<(&[u8], &[u8])> {
    let at = s.iter().position(|b| *b == sep)?;
    Some((&s[..at], &s[at + 1..]))
}

impl Xfer<'_> {
    /// `None` for any other packet, and for a malformed one.
    pub fn parse(packet: &[u8]) -> Option<Xfer<'_>> {
        let rest = packet.strip_prefix(b"qXfer:")?;
        let (object, rest) = split_once(rest, b':')?;
        let (verb, rest) = split_once(rest, b':')?;
        let (annex, rest) = split_once(rest, b':')?;
        let (offset, body) = match verb {
            b"read" => {
                let (offset, len) = split_once(rest, b',')?;
                let len = hex_number(len)?;
                (offset, XferBody::Read { len })
            }
            b"write" => {
                let (offset, data) = split_once(rest, b':')?;
                let data = unescape(data)?;
                (offset, XferBody::Write { data })
            }
            _ => return None,
        };
        Some(Xfer {
            object,
            annex,
            offset: hex_number(offset)?,
            body,
        })
    }

    /// The reply to a read: `m` and a piece of `data`, or `l` and the last piece, in at most `room` bytes.
    pub fn piece(&self, data: &[u8], room: usize) -> Option<Vec<u8>> {
        let XferBody::Read { len } = self.body else {
            return None;
        };
        let offset = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let rest = data.get(offset..).unwrap_or_default();
        let want = usize::try_from(len).unwrap_or(rest.len()).min(rest.len());
        let mut reply = b"m".to_vec();
        let took = push_escaped(&mut reply, &rest[..want], room - 1);
        if took == rest.len() {
            reply[0] = b'l';
        }
        Some(reply)
    }
}

/// Text for an attribute; what XML cannot hold becomes `?`.
pub fn xml_text(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c if c < ' ' => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::vec;

    const ROOM: usize = 0x10000;

    fn piece(data: &[u8], offset: u64, len: u64) -> Vec<u8> {
        let xfer = Xfer {
            object: b"threads",
            annex: b"",
            offset,
            body: XferBody::Read { len },
        };
        xfer.piece(data, ROOM).unwrap()
    }

    proptest! {
        #[test]
        fn pieces_make_up_the_whole(data in vec(any::<u8>(), 0..300), len in 1u64..100) {
            let mut got = Vec::<u8>::new();
            loop {
                let part = piece(&data, got.len() as u64, len);
                let (lead, rest) = part.split_first().unwrap();
                let bytes = unescape(rest).unwrap();
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
        let data = vec![b'}'; ROOM];
        let part = piece(&data, 0, u64::MAX);
        assert!(part.len() <= ROOM && part[0] == b'm');
        assert_eq!(piece(b"abc", 3, 9), b"l");
        assert_eq!(piece(b"abc", u64::MAX, 9), b"l");
        assert_eq!(piece(b"abc", 1, u64::MAX), b"lbc");
    }

    #[test]
    fn an_object_is_read_or_written_in_pieces() {
        let read = Xfer::parse(b"qXfer:features:read:target.xml:1f,ffb").unwrap();
        assert_eq!(
            (read.object, read.annex, read.offset),
            (&b"features"[..], &b"target.xml"[..], 31)
        );
        assert_eq!(read.body, XferBody::Read { len: 0xffb });
        let write = Xfer::parse(b"qXfer:siginfo:write::2:a}]:c").unwrap();
        assert_eq!((write.annex, write.offset), (&b""[..], 2));
        let data = b"a}:c".to_vec();
        assert_eq!(write.body, XferBody::Write { data });
        for bad in [
            &b"qXfer:"[..],
            b"qXfer:features:read:target.xml",
            b"qXfer:a:read",
            b"qXfer:a:read:b:1",
            b"qXfer:a:erase:b:1,2",
            b"qXfer:a:write:b:1",
        ] {
            assert_eq!(Xfer::parse(bad), None);
        }
    }

    #[test]
    fn an_attribute_holds_any_text() {
        assert_eq!(
            xml_text("<a b='\"'>&\n\u{e9}"),
            "&lt;a b=&apos;&quot;&apos;&gt;&amp;?\u{e9}"
        );
    }
}
