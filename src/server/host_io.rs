//! vFile: the debugger reads the program's files through us (the executable, its libraries).
//!
//! ```text
//!   vFile:open:HEXPATH,FLAGS,MODE → F fd        vFile:pread:FD,COUNT,OFFSET → F n;binary
//!   error → F-1,errno (the File-I/O protocol's own numbering)
//! ```
#![forbid(unsafe_code)]

use crate::rsp;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAX_OPEN: usize = 256;
/// Data bytes of one reply, escaped.
const MAX_REPLY: usize = super::PACKET_SIZE - 64;

/// Files that the connected debugger has open. They close with the connection.
#[derive(Default)]
pub struct HostIo {
    files: Vec<Option<File>>,
    /// Paths are meant in the mount namespace of this process; 0: our own.
    fs_of: i32,
}

impl HostIo {
    /// Answers the packet after its `vFile:`; an empty answer for an unknown operation.
    pub fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let (operation, args) = match request.iter().position(|&b| b == b':') {
            Some(at) => (&request[..at], &request[at + 1..]),
            None => return Vec::new(),
        };
        let result = match operation {
            b"setfs" => self.setfs(args),
            b"open" => self.open(args),
            b"close" => self.close(args),
            b"pread" => self.pread(args),
            b"pwrite" => self.pwrite(args),
            b"fstat" => self.fstat(args),
            b"stat" => self
                .path(args)
                .and_then(fs::metadata)
                .map(|m| with_data(&stat(&m))),
            b"lstat" => self
                .path(args)
                .and_then(fs::symlink_metadata)
                .map(|m| with_data(&stat(&m))),
            b"unlink" => self
                .path(args)
                .and_then(fs::remove_file)
                .map(|()| number(0)),
            b"readlink" => self
                .path(args)
                .and_then(fs::read_link)
                .map(|target| with_data(target.as_os_str().as_bytes())),
            _ => return Vec::new(),
        };
        result.unwrap_or_else(|e| format!("F-1,{:x}", fileio_errno(&e)).into_bytes())
    }

    fn setfs(&mut self, args: &[u8]) -> io::Result<Vec<u8>> {
        let pid = rsp::hex_number(args)
            .and_then(|n| i32::try_from(n).ok())
            .ok_or_else(invalid)?;
        let same = |p: &str| fs::read_link(p).ok();
        // Another mount namespace (a container) is reached through /proc/PID/root.
        let elsewhere =
            pid != 0 && same(&format!("/proc/{pid}/ns/mnt")) != same("/proc/self/ns/mnt");
        self.fs_of = if elsewhere { pid } else { 0 };
        Ok(number(0))
    }

    fn path(&self, hex: &[u8]) -> io::Result<PathBuf> {
        let bytes = rsp::from_hex(hex)
            .filter(|b| !b.contains(&0))
            .ok_or_else(invalid)?;
        let path = Path::new(OsStr::from_bytes(&bytes));
        Ok(match (self.fs_of, path.strip_prefix("/")) {
            (0, _) | (_, Err(_)) => path.to_owned(),
            (pid, Ok(below)) => Path::new(&format!("/proc/{pid}/root")).join(below),
        })
    }

    fn open(&mut self, args: &[u8]) -> io::Result<Vec<u8>> {
        let [path, flags, mode] = fields(args)?;
        let path = self.path(path)?;
        let flags = rsp::hex_number(flags).ok_or_else(invalid)?;
        let mode = rsp::hex_number(mode).ok_or_else(invalid)? as u32;
        let mut options = OpenOptions::new();
        match flags & 3 {
            0 => options.read(true),
            1 => options.write(true),
            _ => options.read(true).write(true),
        };
        // Never wait for the other side of a FIFO; has no effect on regular files.
        options.mode(mode & 0o7777).custom_flags(libc::O_NONBLOCK);
        if flags & 0x8 != 0 {
            options.append(true);
        }
        match (flags & 0x200 != 0, flags & 0x800 != 0) {
            (true, true) => options.create_new(true),
            (create, _) => options.create(create),
        };
        options.truncate(flags & 0x400 != 0);
        let slot = match self.files.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.files.len() < MAX_OPEN => {
                self.files.push(None);
                self.files.len() - 1
            }
            None => return Err(io::Error::from_raw_os_error(libc::EMFILE)),
        };
        self.files[slot] = Some(options.open(path)?);
        Ok(number(slot as u64))
    }

    fn file(&self, fd: &[u8]) -> io::Result<&File> {
        let slot = rsp::hex_number(fd).ok_or_else(invalid)?;
        self.files
            .get(slot as usize)
            .and_then(Option::as_ref)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn close(&mut self, args: &[u8]) -> io::Result<Vec<u8>> {
        self.file(args)?;
        self.files[rsp::hex_number(args).ok_or_else(invalid)? as usize] = None;
        Ok(number(0))
    }

    fn pread(&self, args: &[u8]) -> io::Result<Vec<u8>> {
        let [fd, count, offset] = fields(args)?;
        let count = rsp::hex_number(count)
            .ok_or_else(invalid)?
            .min(MAX_REPLY as u64);
        let offset = rsp::hex_number(offset).ok_or_else(invalid)?;
        let mut buf = vec![0; count as usize];
        let n = self.file(fd)?.read_at(&mut buf, offset)?;
        Ok(with_data(&buf[..n]))
    }

    fn pwrite(&self, args: &[u8]) -> io::Result<Vec<u8>> {
        let [fd, offset, data] = fields(args)?;
        let offset = rsp::hex_number(offset).ok_or_else(invalid)?;
        let n = self.file(fd)?.write_at(&rsp::unescape(data), offset)?;
        Ok(number(n as u64))
    }

    fn fstat(&self, args: &[u8]) -> io::Result<Vec<u8>> {
        Ok(with_data(&stat(&self.file(args)?.metadata()?)))
    }
}

/// Exactly `N` fields; the last one may contain commas.
fn fields<const N: usize>(args: &[u8]) -> io::Result<[&[u8]; N]> {
    args.splitn(N, |&b| b == b',')
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| invalid())
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

fn number(n: u64) -> Vec<u8> {
    format!("F{n:x}").into_bytes()
}

/// `F n;data`, with as much data as fits into a packet.
fn with_data(data: &[u8]) -> Vec<u8> {
    let mut len = data.len();
    let mut escaped = rsp::escape(data);
    while escaped.len() > MAX_REPLY {
        len = len * 3 / 4;
        escaped = rsp::escape(&data[..len]);
    }
    let mut out = format!("F{len:x};").into_bytes();
    out.extend(escaped);
    out
}

/// `struct stat` of the File-I/O protocol: big endian, no padding.
fn stat(m: &Metadata) -> Vec<u8> {
    let mode = m.mode();
    // Of the file types, the protocol knows regular files, directories and character devices.
    let kind = match mode & libc::S_IFMT {
        k @ (libc::S_IFREG | libc::S_IFDIR | libc::S_IFCHR) => k,
        _ => 0,
    };
    let mut out = Vec::with_capacity(64);
    for word in [
        m.dev() as u32,
        m.ino() as u32,
        kind | mode & 0o777,
        m.nlink() as u32,
        m.uid(),
        m.gid(),
        m.rdev() as u32,
    ] {
        out.extend(word.to_be_bytes());
    }
    for double in [m.size(), m.blksize(), m.blocks()] {
        out.extend(double.to_be_bytes());
    }
    for time in [m.atime(), m.mtime(), m.ctime()] {
        out.extend((time as u32).to_be_bytes());
    }
    out
}

fn fileio_errno(e: &io::Error) -> i32 {
    match e.raw_os_error().unwrap_or(libc::EINVAL) {
        // The same numbers as Linux.
        n @ (libc::EPERM
        | libc::ENOENT
        | libc::EINTR
        | libc::EBADF
        | libc::EACCES
        | libc::EFAULT
        | libc::EBUSY
        | libc::EEXIST
        | libc::ENODEV
        | libc::ENOTDIR
        | libc::EISDIR
        | libc::EINVAL
        | libc::ENFILE
        | libc::EMFILE
        | libc::EFBIG
        | libc::ENOSPC
        | libc::ESPIPE
        | libc::EROFS) => n,
        libc::ENAMETOOLONG => 91,
        _ => 9999,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_read_and_closed() {
        let dir = std::env::temp_dir().join(format!("ulpf-hostio-{}", std::process::id()));
        fs::write(&dir, b"ab}#c").unwrap();
        let mut io = HostIo::default();
        let hex = rsp::to_hex(dir.as_os_str().as_bytes());
        assert_eq!(io.answer(format!("open:{hex},0,0").as_bytes()), b"F0");
        assert_eq!(io.answer(b"pread:0,100,1"), b"F4;b}]}\x03c");
        let stat = io.answer(b"fstat:0");
        assert!(stat.starts_with(b"F40;"));
        assert_eq!(rsp::unescape(&stat[4..]).len(), 64);
        assert_eq!(io.answer(b"close:0"), b"F0");
        assert_eq!(io.answer(b"close:0"), b"F-1,9");
        assert_eq!(io.answer(format!("unlink:{hex}").as_bytes()), b"F0");
        assert_eq!(io.answer(format!("open:{hex},0,0").as_bytes()), b"F-1,2");
    }

    proptest::proptest! {
        /// No request makes it panic.
        #[test]
        fn any_bytes_are_answered(op in "(setfs|open|close|pread|fstat|stat|readlink)", args in "[0-9a-f,:]{0,40}") {
            // Below a folder that does not exist ("/n/"), so that nothing is ever created.
            let path = if op == "open" { "2f6e2f" } else { "" };
            HostIo::default().answer(format!("{op}:{path}{args}").as_bytes());
        }
    }
}
