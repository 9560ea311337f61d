//! Asks the kernel for one connection (sock_diag(7)). This takes 10 µs; /proc/net/tcp takes 4 ms, because it walks the
//! kernel's whole hash table.

use crate::peer::owner::Owner;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::net::{IpAddr, SocketAddr};

/// linux/sock_diag.h, linux/inet_diag.h, linux/netlink.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
/// Sizes of `nlmsghdr`, `inet_diag_sockid`, and `inet_diag_msg` after its header.
const HEADER: usize = 16;
const ID: usize = 48;
const MESSAGE: usize = 72;

/// The socket whose own address is `local` and whose peer is `remote`. `None` if the kernel has no such socket, or no
/// sock_diag (a sandbox, a kernel without `tcp_diag`).
pub(crate) fn owner(local: SocketAddr, remote: SocketAddr) -> Option<Owner> {
    let socket = net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    // An unconnected netlink socket sends to the kernel.
    net::send(&socket, &request(local, remote), SendFlags::empty()).ok()?;
    let mut answer = [0; 1024];
    // The kernel has answered before `send` returns.
    let (_, len) = net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    read(answer.get(..len)?, local, remote)
}

fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let len = HEADER + 8 + ID;
    let mut out = Vec::with_capacity(len);
    out.extend(u32::try_from(len).unwrap_or(0).to_ne_bytes());
    out.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend(NLM_F_REQUEST.to_ne_bytes());
    out.extend([0; 8]); // sequence, port
    let family = if local.ip().to_canonical().is_ipv4() {
        AF_INET
    } else {
        AF_INET6
    };
    out.extend([family, IPPROTO_TCP, 0, 0]);
    out.extend(u32::MAX.to_ne_bytes()); // any state
    out.extend(ends(family, local, remote));
    out.extend([0; 4]); // any interface
    out.extend([0xff; 8]); // any cookie
    out
}

/// Ports and addresses in the layout of `inet_diag_sockid`. An IPv6 socket has mapped IPv4 addresses.
fn ends(family: u8, local: SocketAddr, remote: SocketAddr) -> [u8; 36] {
    let mut out = [0; 36];
    out[..2].copy_from_slice(&local.port().to_be_bytes());
    out[2..4].copy_from_slice(&remote.port().to_be_bytes());
    for (ip, at) in [(local.ip(), 4), (remote.ip(), 20)] {
        match (ip.to_canonical(), family) {
            (IpAddr::V4(ip), AF_INET) => out[at..at + 4].copy_from_slice(&ip.octets()),
            (IpAddr::V4(ip), _) => {
                out[at..at + 16].copy_from_slice(&ip.to_ipv6_mapped().octets());
            }
            (IpAddr::V6(ip), _) => out[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    out
}

fn read(answer: &[u8], local: SocketAddr, remote: SocketAddr) -> Option<Owner> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let body = answer.get(HEADER..HEADER + MESSAGE)?;
    // After the connection has gone, the kernel returns a listener on the same port.
    let family = *body.first()?;
    if kind != SOCK_DIAG_BY_FAMILY || body.get(4..40)? != ends(family, local, remote) {
        return None;
    }
    let word = |at: usize| Some(u32::from_ne_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let (user, inode) = (word(64)?, word(68)?);
    Some(match inode {
        0 => Owner::Closed,
        _ => Owner::User(user),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    /// The kernel's answers for a connection to `on`, from the other end's side; `None` without sock_diag.
    fn of(on: &str) -> Option<(Option<Owner>, Option<Owner>)> {
        let listener = TcpListener::bind((on, 0)).ok()?;
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((if on == "::" { "127.0.0.1" } else { on }, port)).unwrap();
        let (here, from) = listener.accept().unwrap();
        let ours = here.local_addr().unwrap();
        let open = owner(from, ours);
        drop(client);
        // Another test's child may hold the descriptor until it calls exec.
        let mut closed = owner(from, ours);
        for _ in 0..500 {
            if closed != open {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            closed = owner(from, ours);
        }
        Some((open, closed))
    }

    #[test]
    fn a_connections_owner() {
        let me = std::fs::metadata("/proc/self").unwrap().uid();
        for on in ["127.0.0.1", "::1", "::"] {
            let Some((open, closed)) = of(on) else {
                eprintln!("skipped: this machine has no {on}");
                continue;
            };
            if open.is_none() {
                eprintln!("skipped: this kernel has no sock_diag");
                continue;
            }
            assert_eq!(open, Some(Owner::User(me)), "{on}");
            assert_ne!(closed, Some(Owner::User(me)), "{on}: after its end");
        }
    }

    #[test]
    fn none() {
        let (a, b) = (
            "127.0.0.1:1".parse().unwrap(),
            "127.0.0.1:2".parse().unwrap(),
        );
        assert_eq!(owner(a, b), None);
        assert_eq!(read(&[], a, b), None);
        assert_eq!(read(&[0; 88], a, b), None);
        // A listener's entry is not the connection's.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(owner(listener.local_addr().unwrap(), a), None);
    }
}
