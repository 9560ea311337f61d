//! The system calls behind the guards.
//!
//! They change the program's address space while the program uses it, so the borrow checker cannot prove them safe.
//!
//! **Contract** (that of [`super::Guards`]): every range handed to a function here lies in pages that the caller has
//! looked up in the program's mappings or has mapped itself. No program thread runs meanwhile. Under that contract the
//! functions are safe to call, because each leaves the bytes at every address as they were, or the caller puts them back.
#![allow(unsafe_code)]

use core::ffi::CStr;

use linux_raw_sys::general::*;

use super::flags;
use crate::kept;
use crate::place::{hint, not_dumped};
use crate::sys;
use crate::sys::Errno;

/// Content of a mapping in a forked child (madvise(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InChild {
    #[default]
    Copy,
    /// Zeros: MADV_WIPEONFORK, MAP_DROPPABLE.
    Zeros,
    /// Nothing: MADV_DONTFORK. `wiped`: zeros as soon as MADV_DOFORK reverts that.
    Nothing {
        /// MADV_WIPEONFORK, too.
        wiped: bool,
    },
}

const RW: u64 = (PROT_READ | PROT_WRITE) as u64;

/// One mapping, as far as the kernel tells without its name.
#[derive(Clone, Copy, Debug)]
pub struct MappingAt {
    pub start: u64,
    pub end: u64,
    /// `PROT_*` bits.
    pub prot: u8,
    pub shared: bool,
    /// 0: no file.
    pub inode: u64,
}

/// An open descriptor in the stub's own table.
pub struct File(i32);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours alone.
        let _ = unsafe { sys!(__NR_close, self.0) };
    }
}

/// Size of the memfd, sparse: any user address is an offset into it.
pub const FILE_SIZE: u64 = 1 << 47;

impl File {
    /// Owns a descriptor.
    pub fn of(fd: i32) -> File {
        File(fd)
    }

    pub fn open(path: &CStr) -> Result<File, Errno> {
        kept::open(path).map(File)
    }

    /// Of /proc/self/maps: the mapping that holds `addr`. `None`: no mapping does, or the kernel is older than Linux
    /// 6.11, which gives no answer.
    pub fn mapping_at(&self, addr: u64) -> Option<MappingAt> {
        /// _IOWR('f', 17, struct procmap_query) (linux/fs.h)
        const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<procmap_query>() as u64) << 16 | 0x6611;
        // SAFETY: asks for what fits in `query`.
        unsafe {
            let mut query: procmap_query = core::mem::zeroed();
            query.size = size_of_val(&query) as u64;
            query.query_addr = addr;
            sys!(__NR_ioctl, self.0, PROCMAP_QUERY, &raw mut query).ok()?;
            // Readable, writable and executable have the bits of PROT_READ and so on.
            Some(MappingAt {
                start: query.vma_start,
                end: query.vma_end,
                prot: query.vma_flags as u8 & 7,
                shared: query.vma_flags & procmap_query_flags::PROCMAP_QUERY_VMA_SHARED as u64 != 0,
                inode: query.inode,
            })
        }
    }

    /// A new, empty memfd of `len` bytes. It cannot be executed as a program, whatever sysctl vm.memfd_noexec says, nor
    /// change its size. Its pages may still be mapped executable.
    pub fn memfd(name: &CStr, len: u64) -> Result<File, Errno> {
        let create = |flags| {
            // SAFETY: as for `open`.
            unsafe { sys!(__NR_memfd_create, name.as_ptr(), MFD_CLOEXEC | flags) }
        };
        let fd = match create(MFD_NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag, and have no such setting.
            Err(Errno(e)) if e as u32 == linux_raw_sys::errno::EINVAL => create(MFD_ALLOW_SEALING),
            made => made,
        }?;
        let file = File(fd as i32);
        let seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
        // SAFETY: both calls change the file only, which is not mapped yet.
        unsafe {
            sys!(__NR_ftruncate, file.0, len)?;
            sys!(__NR_fcntl, file.0, F_ADD_SEALS, seals)?;
        }
        Ok(file)
    }

    pub fn read(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the kernel writes at most `buf.len()` bytes.
        unsafe { sys!(__NR_read, self.0, buf.as_mut_ptr(), buf.len()) }.map(|n| n as usize)
    }

    /// Whole words at a byte offset; returns how many.
    pub fn read_words(&self, words: &mut [u64], at: u64) -> Result<usize, Errno> {
        // SAFETY: the kernel writes at most the slice; any bits make a u64.
        unsafe {
            sys!(
                __NR_pread64,
                self.0,
                words.as_mut_ptr(),
                words.len() * 8,
                at
            )
        }
        .map(|n| n as usize / 8)
    }

    /// Copies `[addr, addr + len)` into the file at `offset`. A page that cannot be read ends the copy;
    /// returns the number of bytes copied, EFAULT if the first cannot be read.
    pub fn fill(&self, offset: u64, addr: u64, len: u64) -> Result<u64, Errno> {
        // SAFETY: the kernel checks every page it reads.
        unsafe { sys!(__NR_pwrite64, self.0, addr, len, offset) }
    }

    /// Copies `[offset, offset + len)` of the file to `addr`; returns the number of bytes copied.
    pub fn fetch(&self, offset: u64, addr: u64, len: u64) -> usize {
        // SAFETY: the kernel checks every page; the bytes there are the caller's (head of the module).
        unsafe { sys!(__NR_pread64, self.0, addr, len, offset) }.unwrap_or(0) as usize
    }

    fn stat(&self) -> Result<stat, Errno> {
        let mut stat = core::mem::MaybeUninit::<stat>::zeroed();
        // SAFETY: the kernel fills the struct; zeroes are a valid one.
        unsafe {
            sys!(__NR_fstat, self.0, stat.as_mut_ptr())?;
            Ok(stat.assume_init())
        }
    }

    #[cfg(test)]
    pub fn number(&self) -> i32 {
        self.0
    }

    /// Pages of memory behind the file.
    #[cfg(test)]
    pub fn pages(&self) -> u64 {
        self.stat().map_or(0, |s| s.st_blocks as u64 * 512 / 4096)
    }

    /// (device, inode), the device as `Vma::dev` has it.
    pub fn identity(&self) -> Result<(u64, u64), Errno> {
        let stat = self.stat()?;
        // Linux: major in bits 8 to 19, minor in bits 0 to 7 and 20 to 31 (new_encode_dev).
        let (major, minor) = (
            stat.st_dev >> 8 & 0xfff,
            stat.st_dev & 0xff | stat.st_dev >> 12 & 0xfff00,
        );
        Ok((major << 32 | minor, stat.st_ino))
    }

    /// Allocates `[start, end)` without changing content or size.
    pub fn allocate(&self, start: u64, end: u64) -> Result<(), Errno> {
        // SAFETY: adds zero pages where reads gave zeros already.
        unsafe {
            sys!(
                __NR_fallocate,
                self.0,
                FALLOC_FL_KEEP_SIZE,
                start,
                end - start
            )
        }
        .map(drop)
    }

    /// Makes `[start, end)` read as zeros, in every mapping, and frees its memory.
    pub fn punch(&self, start: u64, end: u64) {
        // SAFETY: the caller wants the bytes gone.
        let _ = unsafe {
            sys!(
                __NR_fallocate,
                self.0,
                FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                start,
                end - start
            )
        };
    }

    /// The first stretch at or after `start` that has memory behind it, cut to `end`.
    pub fn next_data(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        // SAFETY: moves the file position, on which no code relies.
        let data = unsafe { sys!(__NR_lseek, self.0, start, SEEK_DATA) }.ok()?;
        if data >= end {
            return None;
        }
        // SAFETY: as above.
        let hole = unsafe { sys!(__NR_lseek, self.0, data, SEEK_HOLE) }.unwrap_or(end);
        Some((data, hole.min(end)))
    }

    /// A second mapping of `[offset, offset + len)`, readable and writable.
    pub fn map_window(&self, offset: u64, len: u64) -> Result<u64, Errno> {
        // SAFETY: without MAP_FIXED no existing mapping is replaced.
        let at = unsafe {
            sys!(
                __NR_mmap,
                hint(len),
                len,
                PROT_NONE,
                MAP_SHARED | MAP_NORESERVE,
                self.0,
                offset
            )
        }?;
        set_apart(at, len);
        protect(at, len, RW as u8).inspect_err(|_| unmap(at, len))?;
        Ok(at)
    }

    /// Puts `[offset, …)` of the file in the place of the pages at `addr`, whose content the file already holds.
    pub fn map_over(&self, addr: u64, len: u64, prot: u8, offset: u64) -> Result<(), Errno> {
        map_over(self.0, addr, len, prot, offset)
    }
}

/// As [`File::map_over`], for any descriptor.
pub fn map_over(fd: i32, addr: u64, len: u64, prot: u8, offset: u64) -> Result<(), Errno> {
    let flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
    // SAFETY: see the head of the module.
    unsafe { sys!(__NR_mmap, addr, len, prot, flags, fd, offset) }.map(drop)
}

/// Zeroed memory for the page map, never given back.
pub fn map_tables(len: u64) -> Result<u64, Errno> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: without MAP_FIXED no existing mapping is replaced.
    let at = unsafe { sys!(__NR_mmap, hint(len), len, PROT_NONE, flags, -1i64, 0) }?;
    set_apart(at, len);
    protect(at, len, RW as u8).inspect_err(|_| unmap(at, len))?;
    Ok(at)
}

/// Keeps our sparse mappings from being filled by mlockall(MCL_FUTURE) of the program or by a core dump. While they are
/// inaccessible mlockall cannot fill them; munlock(2) prevents it later.
fn set_apart(at: u64, len: u64) {
    // SAFETY: changes no memory.
    let _ = unsafe { sys!(__NR_munlock, at, len) };
    not_dumped(at, len);
}

/// Whether `len` bytes of private memory can be mapped (overcommit, RLIMIT_AS, RLIMIT_DATA).
pub fn could_map_private(len: u64) -> Result<(), Errno> {
    // SAFETY: maps and unmaps fresh memory.
    unsafe {
        let at = sys!(
            __NR_mmap,
            hint(len),
            len,
            RW,
            MAP_PRIVATE | MAP_ANONYMOUS,
            -1i64,
            0
        )?;
        sys!(__NR_munmap, at, len).map(drop)
    }
}

/// Private memory, also of a size beyond this machine's memory: programs reserve what they never fill (MAP_NORESERVE).
fn map_private_at(addr: u64, len: u64, how: u32) -> Result<u64, Errno> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | how;
    // SAFETY: the callers say why.
    let map = |flags: u32| unsafe { sys!(__NR_mmap, addr, len, RW, flags, -1i64, 0) };
    map(flags).or_else(|_| map(flags | MAP_NORESERVE))
}

/// Puts zeroed private memory in the place of the pages at `addr`; the caller copies the content back (see the head of
/// the module).
pub fn map_private_over(addr: u64, len: u64) -> Result<(), Errno> {
    map_private_at(addr, len, MAP_FIXED).map(drop)
}

/// Zeroed private memory of ours, to be filled and then put in its place with [`place_over`].
pub fn map_private(len: u64) -> Result<u64, Errno> {
    // Without MAP_FIXED no existing mapping is replaced.
    map_private_at(hint(len), len, 0)
}

/// Takes the mapping at `from` to `addr`, in the place of what is there, in one go.
pub fn place_over(addr: u64, from: u64, len: u64) -> Result<(), Errno> {
    let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    // SAFETY: see the head of the module; what moves is ours and holds the same bytes.
    unsafe { sys!(__NR_mremap, from, len, len, flags, addr) }.map(drop)
}

/// Repeats the program's advice about what a forked child gets of private memory.
pub fn advise_of_fork(addr: u64, len: u64, in_child: InChild) {
    let (zeros, nothing) = match in_child {
        InChild::Copy => (false, false),
        InChild::Zeros => (true, false),
        InChild::Nothing { wiped } => (wiped, true),
    };
    for (wanted, advice) in [(zeros, MADV_WIPEONFORK), (nothing, MADV_DONTFORK)] {
        if wanted {
            // SAFETY: changes no memory.
            let _ = unsafe { sys!(__NR_madvise, addr, len, advice) };
        }
    }
}

/// mlock(2), which fills the memory, or munlock(2). Failure is ignored: a device's memory cannot be locked.
pub fn lock(addr: u64, len: u64, locked: bool) {
    let call = if locked { __NR_mlock } else { __NR_munlock };
    // SAFETY: changes no memory.
    let _ = unsafe { sys!(call, addr, len) };
}

/// Locks replaced memory again if it was locked, and unlocks it otherwise: mlockall(MCL_FUTURE) locks every new mapping.
/// Untouched pages stay untouched.
pub fn lock_as(addr: u64, len: u64, locked: bool) {
    if !flags::any() {
        return;
    }
    // SAFETY: neither call changes what memory holds. If the program's limit has become lower since, the memory is not
    // locked again: a lock is no promise then.
    let _ = unsafe {
        match locked {
            true => sys!(__NR_mlock2, addr, len, MLOCK_ONFAULT),
            false => sys!(__NR_munlock, addr, len),
        }
    };
}

pub fn protect(addr: u64, len: u64, prot: u8) -> Result<(), Errno> {
    // SAFETY: see the head of the module.
    unsafe { sys!(__NR_mprotect, addr, len, prot) }.map(drop)
}

/// As [`protect`], and the pages get this protection key.
pub fn protect_by_key(addr: u64, len: u64, prot: u8, key: u32) -> Result<(), Errno> {
    // SAFETY: as for `protect`.
    unsafe { sys!(__NR_pkey_mprotect, addr, len, prot, key) }.map(drop)
}

/// madvise(MADV_DONTNEED): what follows reads as zeros, or as the file.
pub fn dont_need(addr: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: in the place of the same call of the program.
    unsafe { sys!(__NR_madvise, addr, len, MADV_DONTNEED) }.map(drop)
}

pub fn unmap(addr: u64, len: u64) {
    let _ = try_unmap(addr, len);
}

/// As [`unmap`].
///
/// # Errors
/// munmap(2)'s: the mappings that would remain are too many.
pub fn try_unmap(addr: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: no references point into an alias window, into memory that a forked child is not to have, or into what the
    // program unmaps.
    unsafe { sys!(__NR_munmap, addr, len) }.map(|_| ())
}

/// A second mapping of the shared pages `[addr, addr + len)` (mremap(2): "if old_size is zero"). Returns its address and
/// whether it could be made writable.
pub fn duplicate(addr: u64, len: u64) -> Result<(u64, bool), Errno> {
    // SAFETY: the first call reserves a free place, the second replaces just that.
    unsafe {
        let place = sys!(
            __NR_mmap,
            hint(len),
            len,
            PROT_NONE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
            -1i64,
            0
        )?;
        let dup = sys!(
            __NR_mremap,
            addr,
            0,
            len,
            MREMAP_MAYMOVE | MREMAP_FIXED,
            place
        );
        if let Err(e) = dup {
            unmap(place, len);
            return Err(e);
        }
        set_apart(place, len);
        match protect(place, len, (PROT_READ | PROT_WRITE) as u8) {
            Ok(()) => Ok((place, true)),
            // A file that was opened for reading only.
            Err(_) => match protect(place, len, PROT_READ as u8) {
                Ok(()) => Ok((place, false)),
                Err(e) => {
                    unmap(place, len);
                    Err(e)
                }
            },
        }
    }
}

/// As [`copy`], with the kernel's error, and only by the kernel: memory that cannot be read is safe in any case.
pub fn try_copy(to: u64, from: u64, len: u64) -> Result<usize, Errno> {
    let (local, remote) = (iovec_of(to, len), iovec_of(from, len));
    // SAFETY: the kernel checks every page; what `to` holds may change (head of the module).
    unsafe {
        let pid = sys!(__NR_getpid).unwrap_or(0);
        sys!(
            __NR_process_vm_readv,
            pid,
            &local as *const iovec,
            1,
            &remote as *const iovec,
            1,
            0
        )
    }
    .map(|n| n as usize)
}

/// Copies within this address space; a page that cannot be read or written ends the copy instead
/// of the process. Returns the number of bytes copied.
pub fn copy(to: u64, from: u64, len: u64) -> usize {
    match try_copy(to, from, len) {
        Ok(n) => n,
        Err(Errno(e)) if e as u32 == linux_raw_sys::errno::EFAULT => 0,
        // Not in this kernel, or a seccomp filter of the program.
        Err(_) => {
            copy_plain(to, from, len);
            len as usize
        }
    }
}

/// Copies between mappings that are known to be there, without a system call.
pub fn copy_plain(to: u64, from: u64, len: u64) {
    // SAFETY: the mappings of both ranges permit it (head of the module).
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len as usize) };
}

fn iovec_of(base: u64, len: u64) -> iovec {
    iovec {
        iov_base: base as *mut _,
        iov_len: len as _,
    }
}

/// Reads one byte, so that the kernel grows the stack down to it.
pub fn touch(addr: u64) {
    // SAFETY: the caller has made sure that the stack may grow this far.
    unsafe { core::ptr::read_volatile(addr as *const u8) };
}

/// (soft, hard) limit of the stub's own task.
pub fn limit(resource: u32) -> Option<(u64, u64)> {
    let mut old = rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel fills the struct.
    unsafe { sys!(__NR_prlimit64, 0, resource, 0, &mut old as *mut rlimit64) }.ok()?;
    Some((old.rlim_cur, old.rlim_max))
}

pub fn set_soft_limit(resource: u32, soft: u64, hard: u64) -> Result<(), Errno> {
    let new = rlimit64 {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: the kernel reads the struct.
    unsafe { sys!(__NR_prlimit64, 0, resource, &new as *const rlimit64, 0) }.map(drop)
}
