//! A unix socket that only its owner may connect to.
#![forbid(unsafe_code)]

use crate::errno::error_text;
use crate::sys;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 64;

#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: the file at `path` may be a different one later.
    file: Option<(u64, u64)>,
}

impl Socket {
    /// The error is text for the user.
    pub fn bind(path: &Path) -> Result<Socket, String> {
        if let Ok(meta) = fs::symlink_metadata(path) {
            clear_away(path, &meta)?;
        }
        let listener = bind(path).map_err(cannot_bind)?;
        Ok(Socket {
            listener,
            path: path.to_owned(),
            file: fs::symlink_metadata(path).ok().map(|m| identity(&m)),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Safe to cancel.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let there = fs::symlink_metadata(&self.path).ok();
        if self.file.is_some() && there.map(|m| identity(&m)) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Removes the socket of a server that was killed; any other file stays and is an error.
fn clear_away(path: &Path, meta: &Metadata) -> Result<(), String> {
    if !meta.file_type().is_socket() {
        return Err(format!(
            "{}: this file exists and is not a socket. Give the path of a new socket, HOST:PORT, or - for stdin and stdout.",
            path.display()
        ));
    }
    // Connecting to another user's socket may block for ever.
    if meta.uid() != sys::user() {
        return Err(format!(
            "{}: this socket belongs to user {}. Give the path of a new socket, best in a folder that only you can write to.",
            path.display(),
            meta.uid()
        ));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            let _ = fs::remove_file(path);
            Ok(())
        }
        _ => Err("Can't bind address: Address already in use.".into()),
    }
}

/// Sets the mode before bind, so that the file is never open to other users. (A umask would do that, too, but it
/// belongs to the whole process, and other threads create files meanwhile.)
fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    let as_file = File::from(socket.as_fd().try_clone_to_owned()?);
    as_file.set_permissions(Permissions::from_mode(0o600))?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

/// In gdbserver's words.
pub fn cannot_bind(error: io::Error) -> String {
    format!("Can't bind address: {}.", error_text(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn its_file_is_the_owners_and_goes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = Socket::bind(&path).unwrap();
        let mode = fs::symlink_metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o177, 0, "{mode:o}");
        assert!(Socket::bind(&path).unwrap_err().contains("in use"));
        // The file belongs to another program by now.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        drop(socket);
        assert!(path.exists());
        assert!(Socket::bind(&path).unwrap_err().contains("not a socket"));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nonexistent/socket", &path).unwrap();
        assert!(Socket::bind(&path).unwrap_err().contains("not a socket"));
    }
}
