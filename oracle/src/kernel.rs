//! The system calls that generated programs make, as Linux does them: what they read and write, and
//! with which values.

use crate::hits::Access;
use crate::seccomp::{Call, Filters};
use ulpf_lib::AccessKind;
use ulpf_lib::sys::failure::{EAGAIN, EBADF, ECHILD, EFAULT, EINVAL};

/// How a run ended.
pub enum Verdict {
    Exit,
    /// The instruction limit is reached.
    Stuck,
    /// It touches what belongs to others, at this instruction.
    Stray(u64),
    Fault(String),
    /// Goes on as the child, which shares the memory or has its own, on this stack if it is not 0; then as the parent.
    Child {
        shares: bool,
        stack: u64,
    },
}

/// The program's memory that calls may name.
pub trait Memory {
    fn bytes(&mut self, addr: u64, len: usize) -> Option<&mut [u8]>;
}

#[derive(Default)]
pub struct Done {
    pub result: i64,
    pub accesses: Vec<Access>,
    pub verdict: Option<Verdict>,
}

/// Descriptor 100 is a memory file, 101 and 102 are the ends of a pipe; the threads of such a program have
/// three each.
#[derive(Default)]
pub struct Kernel {
    /// Added to the three numbers.
    first: u64,
    file: Vec<u8>,
    pipe: std::collections::VecDeque<u8>,
    /// Those of the thread that calls.
    pub filters: Filters,
    /// Children that have ended and were not waited for.
    ended: u64,
}

/// Placeholder for the number of a process.
pub const SOME_PROCESS: i64 = 77_777;

pub const FILE: u64 = 100;
pub const PIPE_READ: u64 = 101;
pub const PIPE_WRITE: u64 = 102;

impl Kernel {
    /// As the programs have made it before their first marker.
    pub fn with_file(first: u64, file: Vec<u8>) -> Kernel {
        Kernel {
            first,
            file,
            ..Kernel::default()
        }
    }

    pub fn call(&mut self, call: &Call, m: &mut impl Memory) -> Done {
        let (nr, a) = (call.nr, call.args);
        let mut d = Done::default();
        match self.filters.decide(call) {
            Ok(None) => {}
            Ok(Some(result)) => {
                d.result = result;
                return d;
            }
            Err(why) => {
                d.verdict = Some(Verdict::Fault(why));
                return d;
            }
        }
        let one = &[(a[1], a[2])];
        d.result = match nr as i64 {
            libc::SYS_read => self.read(a[0], one, None, m, &mut d),
            libc::SYS_pread64 => self.read(a[0], one, Some(a[3]), m, &mut d),
            libc::SYS_write => self.write(a[0], one, None, m, &mut d),
            libc::SYS_pwrite64 => self.write(a[0], one, Some(a[3]), m, &mut d),
            call @ (libc::SYS_readv | libc::SYS_preadv | libc::SYS_writev | libc::SYS_pwritev) => {
                let Some(iov) = vectors(a[1], a[2], m) else {
                    d.result = EFAULT;
                    return d;
                };
                let at = matches!(call, libc::SYS_preadv | libc::SYS_pwritev).then_some(a[3]);
                match call {
                    libc::SYS_readv | libc::SYS_preadv => self.read(a[0], &iov, at, m, &mut d),
                    _ => self.write(a[0], &iov, at, m, &mut d),
                }
            }
            // The arenas, which are there already.
            libc::SYS_mmap => a[0] as i64,
            libc::SYS_close
            | libc::SYS_dup2
            | libc::SYS_memfd_create
            | libc::SYS_ftruncate
            | libc::SYS_pipe
            | libc::SYS_pipe2 => 0,
            libc::SYS_sched_yield | libc::SYS_arch_prctl => 0,
            libc::SYS_prctl => match a[0] as i32 {
                libc::PR_SET_NO_NEW_PRIVS => 0,
                libc::PR_SET_SECCOMP => self.filters.install(a[2], m),
                _ => EINVAL,
            },
            libc::SYS_seccomp => self.filters.install(a[2], m),
            libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone => {
                let vm = libc::CLONE_VM as u64;
                let shares =
                    nr as i64 == libc::SYS_vfork || nr as i64 == libc::SYS_clone && a[0] & vm != 0;
                let stack = if nr as i64 == libc::SYS_clone {
                    a[1]
                } else {
                    0
                };
                d.verdict = Some(Verdict::Child { shares, stack });
                self.ended += 1;
                SOME_PROCESS
            }
            libc::SYS_wait4 => self.wait(a[1], m, &mut d),
            // An executed program is not judged here.
            libc::SYS_exit | libc::SYS_exit_group | libc::SYS_execve => {
                d.verdict = Some(Verdict::Exit);
                0
            }
            _ => {
                d.verdict = Some(Verdict::Fault(format!("system call {nr} is not modelled")));
                0
            }
        };
        d
    }

    /// All children exit with 0.
    fn wait(&mut self, status: u64, m: &mut impl Memory, d: &mut Done) -> i64 {
        let (true, Some(to)) = (self.ended > 0, m.bytes(status, 4)) else {
            return ECHILD;
        };
        self.ended -= 1;
        d.accesses.push(Access {
            addr: status,
            kind: AccessKind::Write,
            old: to.to_vec(),
            new: vec![0; 4],
        });
        to.fill(0);
        SOME_PROCESS
    }

    fn read(
        &mut self,
        fd: u64,
        iov: &[(u64, u64)],
        at: Option<u64>,
        m: &mut impl Memory,
        d: &mut Done,
    ) -> i64 {
        let total: u64 = iov.iter().map(|v| v.1).sum();
        let data: Vec<u8> = match (fd.wrapping_sub(self.first), at) {
            (FILE, Some(at)) => {
                let from = (at as usize).min(self.file.len());
                self.file[from..(from + total as usize).min(self.file.len())].to_vec()
            }
            (PIPE_READ, None) => {
                if self.pipe.is_empty() && total > 0 {
                    return EAGAIN;
                }
                let n = self.pipe.len().min(total as usize);
                self.pipe.drain(..n).collect()
            }
            _ => return EBADF,
        };
        let mut left = &data[..];
        for &(addr, len) in iov {
            let (now, rest) = left.split_at(left.len().min(len as usize));
            left = rest;
            if now.is_empty() {
                continue;
            }
            let Some(to) = m.bytes(addr, now.len()) else {
                return EFAULT;
            };
            d.accesses.push(Access {
                addr,
                kind: AccessKind::Write,
                old: to.to_vec(),
                new: vec![],
            });
        }
        // Old and new values are those before and after the call, also where vectors overlap.
        let mut left = &data[..];
        for a in &d.accesses {
            let (now, rest) = left.split_at(a.old.len());
            left = rest;
            if let Some(to) = m.bytes(a.addr, now.len()) {
                to.copy_from_slice(now);
            }
        }
        for a in &mut d.accesses {
            a.new = m.bytes(a.addr, a.old.len()).map_or(vec![], |b| b.to_vec());
        }
        data.len() as i64
    }

    fn write(
        &mut self,
        fd: u64,
        iov: &[(u64, u64)],
        at: Option<u64>,
        m: &mut impl Memory,
        d: &mut Done,
    ) -> i64 {
        let mut data = Vec::new();
        for &(addr, len) in iov {
            if len == 0 {
                continue;
            }
            let Some(bytes) = m.bytes(addr, len as usize) else {
                return EFAULT;
            };
            data.extend_from_slice(bytes);
            d.accesses.push(Access {
                addr,
                kind: AccessKind::Read,
                old: bytes.to_vec(),
                new: bytes.to_vec(),
            });
        }
        match (fd.wrapping_sub(self.first), at) {
            // Nothing written, nothing extended.
            (FILE, Some(_)) if data.is_empty() => {}
            (FILE, Some(at)) => {
                let at = at as usize;
                if self.file.len() < at + data.len() {
                    self.file.resize(at + data.len(), 0);
                }
                self.file[at..at + data.len()].copy_from_slice(&data);
            }
            (PIPE_WRITE, None) => self.pipe.extend(&data),
            _ => return EBADF,
        }
        data.len() as i64
    }
}

fn vectors(at: u64, count: u64, m: &mut impl Memory) -> Option<Vec<(u64, u64)>> {
    let bytes = m.bytes(at, count as usize * 16)?;
    let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("8 bytes"));
    Some(
        (0..count as usize)
            .map(|i| (word(2 * i), word(2 * i + 1)))
            .collect(),
    )
}
