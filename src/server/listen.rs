//! Where the client comes from: TCP, a unix socket, or our own stdin and stdout.
#![forbid(unsafe_code)]

use crate::inject::sys;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

pub type Reader = Box<dyn AsyncRead + Unpin + Send>;
pub type Writer = Box<dyn AsyncWrite + Unpin + Send>;

#[derive(Debug)]
pub enum Listener {
    Stdio,
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Binds `COMM`. The error is text for the user, in gdbserver's words where it has some.
    pub async fn bind(comm: &OsStr) -> Result<Listener, String> {
        if comm == "-" || comm == "stdio" {
            return Ok(Listener::Stdio);
        }
        let text = comm.to_string_lossy();
        let tcp = ["tcp:", "tcp4:", "tcp6:"]
            .iter()
            .find_map(|p| text.strip_prefix(p));
        // A path may contain a colon, a host may not contain a slash.
        if tcp.is_none() && (comm.as_bytes().contains(&b'/') || !text.contains(':')) {
            return unix(Path::new(comm));
        }
        let (host, port) = tcp
            .unwrap_or(&text)
            .rsplit_once(':')
            .ok_or_else(|| format!("{text}: a port is missing; write HOST:PORT or :PORT."))?;
        let port: u16 = port
            .parse()
            .map_err(|_| format!("{text}: \"{port}\" is not a port number (0 to 65535)."))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        let addresses: Vec<_> = tokio::net::lookup_host((host, port))
            .await
            .map_err(|e| {
                format!(
                    "{text}: cannot resolve name: {}",
                    e.to_string().rsplit(": ").next().unwrap_or("unknown")
                )
            })?
            .collect();
        let listener = TcpListener::bind(&addresses[..])
            .await
            .map_err(cannot_bind)?;
        Ok(Listener::Tcp(listener))
    }

    /// What gdbserver says when it begins to wait.
    pub fn announcement(&self) -> Option<String> {
        match self {
            Listener::Stdio => None,
            Listener::Tcp(l) => Some(format!(
                "Listening on port {}",
                l.local_addr().map(|a| a.port()).unwrap_or(0)
            )),
            Listener::Unix(_, path) => Some(format!("Listening on {}", path.display())),
        }
    }

    /// One client, and what gdbserver says about it. Safe to cancel.
    pub async fn accept(&self) -> io::Result<(Reader, Writer, String)> {
        match self {
            Listener::Stdio => {
                let text = "Remote debugging using stdio".into();
                Ok((
                    Box::new(tokio::io::stdin()),
                    Box::new(tokio::io::stdout()),
                    text,
                ))
            }
            Listener::Tcp(l) => {
                let (stream, peer) = l.accept().await?;
                stream.set_nodelay(true)?;
                sys::keep_alive(&stream)?;
                let text = format!(
                    "Remote debugging from host {}, port {}",
                    peer.ip(),
                    peer.port()
                );
                let (r, w) = stream.into_split();
                Ok((Box::new(r), Box::new(w), text))
            }
            Listener::Unix(l, path) => {
                let (stream, _) = l.accept().await?;
                let (r, w) = stream.into_split();
                Ok((
                    Box::new(r),
                    Box::new(w),
                    format!("Remote debugging using {}", path.display()),
                ))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn cannot_bind(e: io::Error) -> String {
    format!(
        "Can't bind address: {}.",
        e.raw_os_error()
            .map_or_else(|| e.to_string(), crate::errno_text)
    )
}

/// A socket that only its owner may connect to.
fn unix(path: &Path) -> Result<Listener, String> {
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(format!(
                "{}: this file exists and is not a socket. Give the path of a new socket, HOST:PORT, or - for stdin and stdout.",
                path.display()
            ));
        }
        // Left behind by a server that was killed, or in use?
        match std::os::unix::net::UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(path);
            }
            _ => return Err("Can't bind address: Address already in use.".into()),
        }
    }
    let listener = sys::with_umask(0o177, || UnixListener::bind(path)).map_err(cannot_bind)?;
    Ok(Listener::Unix(listener, path.to_owned()))
}
