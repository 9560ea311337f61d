//! vFile: the debugger reads the program's files through us (the executable, its libraries).
//!
//! ```text
//!   vFile:open:HEXPATH,FLAGS,MODE → F fd        vFile:pread:FD,COUNT,OFFSET → F n;binary
//!   error → F-1,errno (the File-I/O protocol's own numbering)
//! ```
#![forbid(unsafe_code)]

use super::packets::PACKET_SIZE;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const MAX_OPEN: usize = 256;
/// Data bytes of one reply, escaped.
const MAX_REPLY: usize = PACKET_SIZE - 64;

/// Files that the connected debugger has open. They close with the connection.
#[derive(Default)]
pub struct HostIo {
    /// Whether files are served. Otherwise every request is unknown, and GDB uses the files of its own machine.
    served: bool,
    files: Vec<Option<File>>,
    /// Root directory for all paths, if the process is in another mount namespace. No link of that namespace leads out
    /// of it: its users may have no rights here, while the server may have all.
    root: Option<OwnedFd>,
}

impl HostIo {
    pub fn new(served: bool) -> HostIo {
        HostIo {
            served,
            ..HostIo::default()
        }
    }

    /// Resets the state for the next debugger.
    pub fn close_all(&mut self) {
        *self = HostIo::new(self.served);
    }

    /// Answers the packet after its `vFile:`. The answer to an unknown operation is empty.
    pub fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let (operation, args) = match request.iter().position(|&b| b == b':') {
            Some(at) => (&request[..at], &request[at + 1..]),
            None => return Vec::new(),
        };
        if !self.served {
            return Vec::new();
        }
        let result = match operation {
            b"setfs" => self.setfs(args),
            b"open" => self.open(args),
            b"close" => self.close(args),
            b"pread" => self.pread(args),
            b"pwrite" => self.pwrite(args),
            b"fstat" => self.fstat(args),
            b"stat" => self.stat(args, OFlags::PATH),
            b"lstat" => self.stat(args, OFlags::PATH | OFlags::NOFOLLOW),
            b"unlink" => self.unlink(args),
            b"readlink" => self.readlink(args),
            _ => return Vec::new(),
        };
        result.unwrap_or_else(|e| format!("F-1,{:x}", fileio_errno(&e)).into_bytes())
    }

    fn setfs(&mut self, args: &[u8]) -> io::Result<Vec<u8>> {
        let pid = ulpf_rsp::hex_number(args)
            .and_then(|n| i32::try_from(n).ok())
            .ok_or_else(invalid)?;
        let same = |p: &str| fs::read_link(p).ok();
        // Another mount namespace (a container) is reached through /proc/PID/root.
        let elsewhere =
            pid != 0 && same(&format!("/proc/{pid}/ns/mnt")) != same("/proc/self/ns/mnt");
        self.root = match elsewhere {
            true => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let root = rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty())?;
                Some(root)
            }
            false => None,
        };
        Ok(number(0))
    }

    /// Opens a path, below `root` if there is one.
    fn reach(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC;
        let fd = match &self.root {
            None => rustix::fs::open(path, flags, mode)?,
            Some(root) => {
                let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                rustix::fs::openat2(root, path, flags, mode, inside)?
            }
        };
        Ok(File::from(fd))
    }

    fn stat(&self, args: &[u8], flags: OFlags) -> io::Result<Vec<u8>> {
        let file = self.reach(&path(args)?, flags, Mode::empty())?;
        Ok(with_data(&stat(&file.metadata()?)))
    }

    fn readlink(&self, args: &[u8]) -> io::Result<Vec<u8>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let link = self.reach(&path(args)?, flags, Mode::empty())?;
        let target = rustix::fs::readlinkat(&link, "", Vec::new())?;
        Ok(with_data(target.as_bytes()))
    }

    fn unlink(&self, args: &[u8]) -> io::Result<Vec<u8>> {
        let path = path(args)?;
        let name = path.file_name().ok_or_else(invalid)?;
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let folder = self.reach(folder, flags, Mode::empty())?;
        rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
        Ok(number(0))
    }

    fn open(&mut self, args: &[u8]) -> io::Result<Vec<u8>> {
        let [path, flags, mode] = fields(args)?;
        let path = self::path(path)?;
        let asked = ulpf_rsp::hex_number(flags).ok_or_else(invalid)?;
        let mode = ulpf_rsp::hex_number(mode).ok_or_else(invalid)? as u32;
        // A file that a debugger creates must run with the rights of its caller: no set-user-ID.
        let mode = Mode::from_raw_mode(mode & 0o777);
        // Never block on a FIFO; no effect on regular files.
        let mut flags = OFlags::NONBLOCK;
        flags |= match asked & 3 {
            0 => OFlags::RDONLY,
            1 => OFlags::WRONLY,
            _ => OFlags::RDWR,
        };
        for (bit, flag) in [
            (0x8, OFlags::APPEND),
            (0x200, OFlags::CREATE),
            (0x400, OFlags::TRUNC),
            (0x800, OFlags::EXCL),
        ] {
            flags.set(flag, asked & bit != 0);
        }
        // O_EXCL has no meaning without O_CREAT.
        flags.set(OFlags::EXCL, flags.contains(OFlags::CREATE | OFlags::EXCL));
        let slot = match self.files.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.files.len() < MAX_OPEN => {
                self.files.push(None);
                self.files.len() - 1
            }
            None => return Err(io::Error::from_raw_os_error(libc::EMFILE)),
        };
        self.files[slot] = Some(self.reach(&path, flags, mode)?);
        Ok(number(slot as u64))
    }

    fn file(&self, fd: &[u8]) -> io::Result<&File> {
        let slot = ulpf_rsp::hex_number(fd).ok_or_else(invalid)?;
        self.files
            .get(slot as usize)
            .and_then(Option::as_ref)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn close(&mut self, args: &[u8]) -> io::Result<Vec<u8>> {
        self.file(args)?;
        self.files[ulpf_rsp::hex_number(args).ok_or_else(invalid)? as usize] = None;
        Ok(number(0))
    }

    fn pread(&self, args: &[u8]) -> io::Result<Vec<u8>> {
        let [fd, count, offset] = fields(args)?;
        let count = ulpf_rsp::hex_number(count)
            .ok_or_else(invalid)?
            .min(MAX_REPLY as u64);
        let offset = ulpf_rsp::hex_number(offset).ok_or_else(invalid)?;
        let mut buf = vec![0; count as usize];
        let n = self.file(fd)?.read_at(&mut buf, offset)?;
        Ok(with_data(&buf[..n]))
    }

    fn pwrite(&self, args: &[u8]) -> io::Result<Vec<u8>> {
        let [fd, offset, data] = fields(args)?;
        let offset = ulpf_rsp::hex_number(offset).ok_or_else(invalid)?;
        let data = ulpf_rsp::unescape(data).ok_or_else(invalid)?;
        let n = self.file(fd)?.write_at(&data, offset)?;
        Ok(number(n as u64))
    }

    fn fstat(&self, args: &[u8]) -> io::Result<Vec<u8>> {
        Ok(with_data(&stat(&self.file(args)?.metadata()?)))
    }
}

fn path(hex: &[u8]) -> io::Result<PathBuf> {
    let bytes = ulpf_rsp::from_hex(hex)
        .filter(|b| !b.contains(&0))
        .ok_or_else(invalid)?;
    Ok(OsStr::from_bytes(&bytes).into())
}

/// Splits into exactly `N` fields; the last one may contain commas.
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
    let mut escaped = ulpf_rsp::escape(data);
    while escaped.len() > MAX_REPLY {
        len = len * 3 / 4;
        escaped = ulpf_rsp::escape(&data[..len]);
    }
    let mut out = format!("F{len:x};").into_bytes();
    out.extend(escaped);
    out
}

/// `struct stat` of the File-I/O protocol: big endian, no padding.
fn stat(m: &Metadata) -> Vec<u8> {
    let mode = m.mode();
    // The protocol has three file types only: regular files, directories and character devices.
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
        // These numbers are the same as Linux's.
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
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"ab}#c").unwrap();
        let mut io = HostIo::new(true);
        let hex = ulpf_rsp::to_hex(file.as_os_str().as_bytes());
        assert_eq!(io.answer(format!("open:{hex},0,0").as_bytes()), b"F0");
        assert_eq!(io.answer(b"pread:0,100,1"), b"F4;b}]}\x03c");
        let stat = io.answer(b"fstat:0");
        assert!(stat.starts_with(b"F40;"));
        assert_eq!(ulpf_rsp::unescape(&stat[4..]).unwrap().len(), 64);
        assert_eq!(io.answer(b"close:0"), b"F0");
        assert_eq!(io.answer(b"close:0"), b"F-1,9");
        assert_eq!(io.answer(format!("unlink:{hex}").as_bytes()), b"F0");
        assert_eq!(io.answer(format!("open:{hex},0,0").as_bytes()), b"F-1,2");
    }

    #[test]
    fn nothing_made_here_has_somebodys_rights() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let open = format!(
            "open:{},201,dff",
            ulpf_rsp::to_hex(file.as_os_str().as_bytes())
        );
        assert_eq!(HostIo::new(true).answer(open.as_bytes()), b"F0");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7000, 0);
    }

    #[test]
    fn where_files_are_not_served_nothing_is_known() {
        let hex = ulpf_rsp::to_hex(b"/dev/null");
        for request in [
            format!("open:{hex},0,0"),
            format!("stat:{hex}"),
            "setfs:0".into(),
        ] {
            assert_eq!(
                HostIo::new(false).answer(request.as_bytes()),
                b"",
                "{request}"
            );
        }
    }

    proptest::proptest! {
        /// No request causes a panic.
        #[test]
        fn any_bytes_are_answered(op in "(setfs|open|close|pread|fstat|stat|readlink)", args in "[0-9a-f,:]{0,40}") {
            // Below a folder that does not exist ("/n/"), so that no file is created.
            let path = if op == "open" { "2f6e2f" } else { "" };
            HostIo::new(true).answer(format!("{op}:{path}{args}").as_bytes());
        }
    }
}
