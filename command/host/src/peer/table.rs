//! Parses the text of `/proc/net/tcp`.

use crate::peer::owner::Owner;
use std::net::{IpAddr, SocketAddr};

/// The owner of the other end of a TCP connection of this machine, in the text of `/proc/net/tcp` or `/proc/net/tcp6`.
/// `ours` and `theirs` are the addresses as our end has them. `None` if the connection is not listed.
pub(crate) fn owner(table: &str, ours: SocketAddr, theirs: SocketAddr) -> Option<Owner> {
    let (ours, theirs) = (plain(ours), plain(theirs));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        // The entry of the other end.
        let mut next = || address(fields.next()?).map(|(ip, port)| (ip.to_canonical(), port));
        let (local, remote) = (next()?, next()?);
        if (local, remote) != (theirs, ours) {
            return None;
        }
        // State, queues, timer and retransmissions come first; a timeout is between user and inode.
        let user = fields.nth(4)?.parse().ok()?;
        let inode = fields.nth(1)?;
        Some(match inode {
            "0" => Owner::Closed,
            _ => Owner::User(user),
        })
    })
}

/// Reduces a mapped IPv4 address of an IPv6 socket to IPv4.
fn plain(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// `0100007F:1F90`: words in the machine's byte order, and the port.
pub fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = host.get(8 * at..8 * at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let host = match host.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            IpAddr::from(bytes)
        }
        _ => return None,
    };
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const V4: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0929 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11111 1 0000000000000000 100 0 0 10 0
   1: 0100007F:A1B2 0100007F:0929 01 00000000:00000000 00:00000000 00000000  1000        0 22222 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:0929 0100007F:A1B2 01 00000000:00000000 00:00000000 00000000     0        0 33333 1 0000000000000000 20 4 30 10 -1
   3: 0100007F:A1B3 0100007F:0929 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0000000000000000 20 4 30 10 -1
";
    const V6: &str = "\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0000000000000000FFFF00000100007F:A1B4 0000000000000000FFFF00000100007F:0929 01 00000000:00000000 00:00000000 00000000  1001        0 44444 1 0000000000000000 20 4 30 10 -1
   1: 00000000000000000000000001000000:A1B5 00000000000000000000000001000000:0929 01 00000000:00000000 00:00000000 00000000  1002        0 55555 1 0000000000000000 20 4 30 10 -1
";

    #[test]
    fn owners() {
        let find = |table, ours: &str, theirs: &str| {
            owner(table, ours.parse().unwrap(), theirs.parse().unwrap())
        };
        let ours = "127.0.0.1:2345";
        assert_eq!(find(V4, ours, "127.0.0.1:41394"), Some(Owner::User(1000)));
        // The owner of an orphan is unknown: the table says root.
        assert_eq!(find(V4, ours, "127.0.0.1:41395"), Some(Owner::Closed));
        assert_eq!(find(V4, ours, "127.0.0.1:41399"), None);
        assert_eq!(find(V6, ours, "127.0.0.1:41396"), Some(Owner::User(1001)));
        let mapped = "[::ffff:127.0.0.1]:2345";
        assert_eq!(
            find(V6, mapped, "[::ffff:127.0.0.1]:41396"),
            Some(Owner::User(1001))
        );
        assert_eq!(
            find(V6, "[::1]:2345", "[::1]:41397"),
            Some(Owner::User(1002))
        );
    }

    #[test]
    fn addresses() {
        let at = address("0100007F:0016").unwrap();
        assert_eq!((at.0.to_string(), at.1), ("127.0.0.1".into(), 22));
        let at = address("00000000000000000000000001000000:0050").unwrap();
        assert_eq!((at.0.to_string(), at.1), ("::1".into(), 80));
    }

    proptest! {
        #[test]
        fn any_table(text: String) {
            let here = "127.0.0.1:1".parse().unwrap();
            owner(&text, here, here);
        }
    }
}
