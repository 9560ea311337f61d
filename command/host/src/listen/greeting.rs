//! Identifies a client by the first bytes of a connection.
//!
//! A web page can make its reader's browser connect to a port of this machine. The page then chooses what is sent after
//! a request line and headers that it controls only in part. (With "DNS rebinding", a name that resolves to this
//! machine, it also chooses method, path and fields.) A protocol that skips unknown bytes would find its packets in
//! there. So a client is accepted only if its first bytes are possible in its protocol and impossible in HTTP. No byte
//! is interpreted before that:
//!
//! ```text
//!     HTTP     METHOD SP TARGET SP HTTP/1.1 CR LF …   METHOD: one or more of ! # $ % & ' * + - . ^ _ ` | ~ 0-9 A-Z a-z
//!     Remote   acks, then a whole packet without blanks, then packets and acks only
//!     Adapter  Content-Length:                         a method has no colon
//! ```
//! A METHOD may contain the `$`, `#` and letters of a remote packet, but a debugger's first packet contains no blank,
//! and a blank follows the METHOD. A browser sends the head of a request at once, so the check for blanks also covers
//! all bytes that arrive with the first packet.
#![forbid(unsafe_code)]

/// Limit of the first words: every debugger waits for an answer much earlier.
pub const LONGEST: usize = 16 << 10;

/// Protocol of a listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The remote serial protocol.
    Remote,
    /// The Debug Adapter Protocol.
    Adapter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A client of the expected protocol.
    Ours,
    /// More bytes are needed.
    More,
    /// Another protocol, by name.
    Foreign(&'static str),
}

impl Protocol {
    /// Judges all bytes that a connection has sent so far.
    pub fn judge(self, said: &[u8]) -> Verdict {
        let verdict = match self {
            Protocol::Remote => ulpf_rsp::greeting::is_debugger(said),
            Protocol::Adapter => adapter(said),
        };
        match verdict {
            Some(true) if said.len() < LONGEST => Verdict::Ours,
            None if said.len() < LONGEST => Verdict::More,
            _ => Verdict::Foreign(language(said)),
        }
    }

    pub fn client(self) -> &'static str {
        match self {
            Protocol::Remote => "a debugger",
            Protocol::Adapter => "an IDE",
        }
    }
}

/// Name of the foreign protocol, for the user.
fn language(said: &[u8]) -> &'static str {
    const METHODS: &[&[u8]] = &[
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"CONNECT ",
        b"TRACE ",
        b"PRI ",
    ];
    let line = said.split(|&b| b == b'\n').next().unwrap_or_default();
    let http = line.windows(6).any(|w| w == b" HTTP/");
    if http || METHODS.iter().any(|m| said.starts_with(m)) {
        "HTTP, as a web page in a browser would"
    } else if said.starts_with(&[0x16, 3]) {
        "TLS, as a browser at an https address would"
    } else if said.starts_with(b"SSH-") {
        "SSH"
    } else {
        "something else"
    }
}

fn adapter(said: &[u8]) -> Option<bool> {
    const HEADERS: [&[u8]; 2] = [b"content-length:", b"content-type:"];
    let (mut whole, mut possible) = (false, false);
    for header in HEADERS {
        let n = said.len().min(header.len());
        let alike = said[..n].eq_ignore_ascii_case(&header[..n]);
        possible |= alike;
        whole |= alike && n == header.len();
    }
    match (whole, possible) {
        (true, _) => Some(true),
        (false, true) => None,
        (false, false) => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Protocol; 2] = [Protocol::Remote, Protocol::Adapter];

    #[test]
    fn debuggers() {
        for said in [
            &b"+$qSupported:multiprocess+;swbreak+#c6"[..],
            b"+$QStartNoAckMode#b0",
            b"$?#00",
            b"-$?#zz",
            b"\x03",
            b"+\x03GET / HTTP/1.1",
            b"$?#3f\n",
            b"$?#3f$X10,3:\r\n\x01#00",
        ] {
            assert_eq!(Protocol::Remote.judge(said), Verdict::Ours, "{said:?}");
        }
        for said in [&b""[..], b"+", b"+-+", b"$", b"$?", b"$?#", b"$?#3"] {
            assert_eq!(Protocol::Remote.judge(said), Verdict::More, "{said:?}");
        }
        let ours = b"content-LENGTH: 5\r\n";
        assert_eq!(Protocol::Adapter.judge(ours), Verdict::Ours);
        assert_eq!(Protocol::Adapter.judge(b"Content-"), Verdict::More);
    }

    #[test]
    fn browsers() {
        let http = Verdict::Foreign("HTTP, as a web page in a browser would");
        for said in [
            "POST / HTTP/1.1\r\nHost: 127.0.0.1:2345\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n\r\n$k#6b",
            "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "OPTIONS / HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            // A page behind a name that resolves to this machine chooses its method.
            "$k#6b / HTTP/1.1\r\nHost: rebound.example\r\n\r\n",
            "+$k#6b+ / HTTP/1.1\r\n",
            "$k#6b$m / HTTP/1.1\r\n\r\n#00",
            "$qRcmd /,6b HTTP/1.1\r\nX: #00$k#6b",
            "$k#6 HTTP/1.1\r\n",
            "Content-Length / HTTP/1.1\r\n\r\n",
            "content-length /: HTTP/1.1\r\n\r\n",
        ] {
            for protocol in ALL {
                assert_eq!(
                    protocol.judge(said.as_bytes()),
                    http,
                    "{protocol:?}: {said}"
                );
            }
        }
        for protocol in ALL {
            let tls = protocol.judge(b"\x16\x03\x01\x02\x00\x01");
            assert!(matches!(tls, Verdict::Foreign(what) if what.starts_with("TLS")));
        }
        // A method that fills the whole limit.
        let long = "$g#67".repeat(LONGEST);
        assert!(matches!(
            Protocol::Remote.judge(long.as_bytes()),
            Verdict::Foreign(_)
        ));
    }

    proptest! {
        /// No HTTP request is accepted, whatever a page may choose and however much of it has arrived.
        #[test]
        fn no_request_is_ours(
            method in "([+]|[$]k#6b|[!#$%&'*+.^_`|~0-9A-Za-z-]){1,20}",
            target in "[/][!$&'()*+,;=:@/?a-z0-9%-]{0,40}",
            body in "[ -~\r\n]{0,60}",
        ) {
            let request = format!("{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n{body}");
            for protocol in ALL {
                prop_assert!(matches!(protocol.judge(request.as_bytes()), Verdict::Foreign(_)));
            }
        }

        /// More bytes never turn a foreign verdict around.
        #[test]
        fn foreign_remains_foreign(said: Vec<u8>, at: usize) {
            for protocol in ALL {
                let start = &said[..at % (said.len() + 1)];
                if let Verdict::Foreign(_) = protocol.judge(start) {
                    prop_assert!(matches!(protocol.judge(&said), Verdict::Foreign(_)));
                }
            }
        }
    }
}
