//! The program's mappings: /proc/self/maps (proc_pid_maps(5)), read whole.

use alloc::vec::Vec;

use super::flags;
use super::os::{self, File, InChild, MappingAt};
use super::page_map::PROT_EXEC;
use crate::mapping::Mapping;
use crate::place;
use crate::sys::Errno;

/// One mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// `PROT_*` bits.
    pub prot: u8,
    /// MAP_SHARED.
    pub shared: bool,
    /// What is mapped.
    pub kind: VmaKind,
    /// Device of the file, `major << 32 | minor`; 0: no file.
    pub dev: u64,
    /// Number of the file on it; 0: no file.
    pub inode: u64,
    /// As far as [`Snapshot::resolve`] has found it out.
    pub in_child: InChild,
    /// mlock(2); as far as [`Snapshot::resolve`] has found it out.
    pub locked: bool,
    /// The program has given the memory a protection key (pkey_mprotect(2)); as far as [`Snapshot::resolve`] has found it
    /// out.
    pub keyed: bool,
}

impl Vma {
    /// Memory of ours, or of an earlier stub in our place. Only memory files lie there, unless the program has run out of
    /// other addresses.
    pub fn is_ours(&self) -> bool {
        let file = matches!(self.kind, VmaKind::File | VmaKind::OddFile);
        place::has(self.start) || !file && place::all().contains(&self.start)
    }
}

/// Kind of a mapping, as far as guards must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmaKind {
    /// Memory without a file: heap, bss, thread stacks, `mmap(MAP_ANONYMOUS)`.
    Anonymous,
    /// Pages of a file or of shared memory.
    File,
    /// A file or object whose memory may not be plain (devices, huge pages): its flags will tell, see
    /// [`Snapshot::resolve`].
    Odd,
    /// As `Odd`, for a file on a file system without block device: btrfs, overlayfs, tmpfs, but hugetlbfs too.
    OddFile,
    /// Explicit huge pages (MAP_HUGETLB, hugetlbfs).
    HugePages,
    /// Not plain memory, or memory that cannot be mapped a second time.
    Device,
    /// The main thread's stack, which grows downwards.
    Stack,
    /// Pages that the kernel shares with every program: vdso, vvar, uprobes.
    Kernel,
    /// The page at a fixed address that old programs call.
    Vsyscall,
}

impl VmaKind {
    /// Whether [`Snapshot::resolve`] can tell more.
    pub fn is_odd(self) -> bool {
        matches!(self, VmaKind::Odd | VmaKind::OddFile)
    }
}

/// All mappings at one moment, ascending.
#[derive(Default)]
pub struct Snapshot {
    /// In the order of their addresses; they do not overlap.
    pub vmas: Vec<Vma>,
}

impl Snapshot {
    /// Reads the mappings as they are now.
    ///
    /// # Errors
    /// Those of open(2) and read(2): /proc may not be mounted.
    pub fn read() -> Result<Snapshot, Errno> {
        let file = File::open(c"/proc/self/maps")?;
        let mut vmas = Vec::new();
        lines(&file, |line| {
            vmas.extend(Mapping::parse(line).map(Vma::from))
        })?;
        Ok(Snapshot { vmas })
    }

    /// Reads /proc/self/smaps to classify odd mappings and to learn what a forked child gets, what is locked and what has
    /// a protection key. This is slow, because the kernel walks all page tables. It is needed when an odd mapping is to
    /// be watched, or when locks, keys or advice exist at unknown addresses. Returns `false` if smaps cannot be read.
    pub fn resolve(&mut self) -> bool {
        let mut flagged = false;
        let mut at = 0;
        let resolved = File::open(c"/proc/self/smaps").and_then(|file| {
            lines(&file, |line| {
                if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
                    let index = self.index(at);
                    // The kernel gives memory that may only be executed a key by itself.
                    if let Some(vma) = self.vmas.get_mut(index)
                        && vma.start == at
                        && vma.prot != PROT_EXEC
                    {
                        vma.keyed = key.trim_ascii() != b"0";
                        flagged |= vma.keyed;
                    }
                } else if let Some(codes) = line.strip_prefix(b"VmFlags:") {
                    let index = self.index(at);
                    if let Some(vma) = self.vmas.get_mut(index).filter(|v| v.start == at) {
                        if vma.kind.is_odd() {
                            vma.kind = kind_by_flags(codes, vma.shared);
                        }
                        vma.in_child = in_child_by_flags(codes);
                        vma.locked = has(codes, b"lo");
                        let plain = vma.in_child == InChild::Copy && !vma.locked;
                        // Our own memory is never watched, and children get little of it.
                        flagged |= !plain && !place::has(vma.start);
                    }
                } else if let Some(mapping) = Mapping::parse(line) {
                    at = mapping.start;
                }
            })
        });
        if flagged {
            flags::found();
        }
        if resolved.is_err() {
            for vma in self.vmas.iter_mut().filter(|v| v.kind.is_odd()) {
                vma.kind = VmaKind::File; // replacing its pages will fail if it is not
            }
        }
        resolved.is_ok()
    }

    /// Index of the mapping that holds `at`, or of the next one above.
    pub fn index(&self, at: u64) -> usize {
        self.vmas.partition_point(|v| v.end <= at)
    }
    /// The mapping that holds this address.
    pub fn at(&self, at: u64) -> Option<&Vma> {
        self.vmas.get(self.index(at)).filter(|v| v.start <= at)
    }
}

/// The mapping that holds `addr`. `None`: no mapping does, or the kernel is older than Linux 6.11, which gives no answer.
pub fn mapping_at(addr: u64) -> Option<MappingAt> {
    File::open(c"/proc/self/maps").ok()?.mapping_at(addr)
}

/// Calls `f` for each line of a file, of any length, without its newline.
///
/// # Errors
/// That of read(2); `f` has seen the lines before.
pub fn lines(file: &File, mut f: impl FnMut(&[u8])) -> Result<(), Errno> {
    let mut buf = alloc::vec![0u8; 1 << 16];
    let mut filled = 0;
    loop {
        if filled == buf.len() {
            buf.resize(buf.len() * 2, 0);
        }
        let got = file.read(&mut buf[filled..])?;
        filled += got;
        let mut done = 0;
        while let Some(n) = buf[done..filled].iter().position(|&b| b == b'\n') {
            f(&buf[done..done + n]);
            done += n + 1;
        }
        if got == 0 {
            if done < filled {
                f(&buf[done..filled]);
            }
            return Ok(());
        }
        buf.copy_within(done..filled, 0);
        filled -= done;
    }
}

impl From<Mapping<'_>> for Vma {
    fn from(m: Mapping<'_>) -> Vma {
        let kind = match m.name {
            b"" | b"[heap]" => VmaKind::Anonymous,
            b"[stack]" => VmaKind::Stack,
            b"[vsyscall]" => VmaKind::Vsyscall,
            // prctl(PR_SET_VMA_ANON_NAME); the shared sort has an inode.
            name if name.starts_with(b"[anon:") => VmaKind::Anonymous,
            name if name.starts_with(b"[anon_shmem:") => VmaKind::File,
            name if name.starts_with(b"[") && m.inode == 0 => VmaKind::Kernel,
            name if name.starts_with(b"/dev/zero") || name.starts_with(b"/dev/shm/") => {
                VmaKind::File
            }
            // Huge pages show up under these names; so do harmless memfds and System V segments.
            name if name.starts_with(b"/anon_hugepage")
                || name.starts_with(b"/memfd:")
                || name.starts_with(b"/SYSV") =>
            {
                VmaKind::Odd
            }
            name if name.starts_with(b"/dev/")
                || name.starts_with(b"anon_inode:")
                || name.starts_with(b"socket:") =>
            {
                VmaKind::Odd
            }
            _ if m.device.0 == 0 => VmaKind::OddFile,
            _ => VmaKind::File,
        };
        Vma {
            start: m.start,
            end: m.end,
            prot: m.prot,
            shared: m.shared,
            kind,
            dev: u64::from(m.device.0) << 32 | u64::from(m.device.1),
            inode: m.inode,
            in_child: InChild::Copy,
            locked: false,
            keyed: false,
        }
    }
}

/// Whether this two-letter code is in `VmFlags`.
fn has(codes: &[u8], code: &[u8]) -> bool {
    codes.split(|&b| b == b' ').any(|c| c == code)
}

fn in_child_by_flags(codes: &[u8]) -> InChild {
    if has(codes, b"dc") {
        InChild::Nothing {
            wiped: has(codes, b"wf"),
        }
    } else if has(codes, b"wf") {
        InChild::Zeros
    } else {
        InChild::Copy
    }
}

fn kind_by_flags(codes: &[u8], shared: bool) -> VmaKind {
    if has(codes, b"ht") {
        VmaKind::HugePages
    } else if has(codes, b"io") || has(codes, b"pf") || shared && has(codes, b"de") {
        // "de", may not grow: mremap(2) does not duplicate it.
        VmaKind::Device
    } else {
        VmaKind::File
    }
}

/// A decimal number in a file such as /proc/sys/vm/max_map_count.
pub fn read_number(path: &core::ffi::CStr) -> Option<u64> {
    let mut buf = [0u8; 32];
    let n = os::File::open(path).ok()?.read(&mut buf).ok()?;
    core::str::from_utf8(&buf[..n]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::page_map::{PROT_READ, PROT_WRITE};
    use super::*;

    #[test]
    fn kinds() {
        let line =
            "55d0c0a01000-55d0c0a02000 rw-p 00001000 fe:01 1234                       /usr/bin/a b";
        let vma = Vma::from(Mapping::parse(line.as_bytes()).unwrap());
        assert_eq!(
            (vma.start, vma.end, vma.prot),
            (0x55d0c0a01000, 0x55d0c0a02000, PROT_READ | PROT_WRITE)
        );
        assert_eq!(
            (vma.shared, vma.kind, vma.dev, vma.inode),
            (false, VmaKind::File, 0xfe << 32 | 1, 1234)
        );
        let kind = |l: &str| Vma::from(Mapping::parse(l.as_bytes()).unwrap()).kind;
        assert_eq!(
            kind("7ffc0-7ffc1 rw-p 00000000 00:00 0 "),
            VmaKind::Anonymous
        );
        assert_eq!(
            kind("7ffc0-7ffc1 rw-p 00000000 00:00 0      [stack]"),
            VmaKind::Stack
        );
        assert_eq!(
            kind("7ffc0-7ffc1 r-xp 00000000 00:00 0      [vdso]"),
            VmaKind::Kernel
        );
        assert_eq!(
            kind("7ffc0-7ffc1 r--p 00000000 00:00 0      [vvar_vclock]"),
            VmaKind::Kernel
        );
        assert_eq!(
            kind("7ffc0-7ffc1 rw-p 00000000 00:00 0      [anon: glibc: malloc]"),
            VmaKind::Anonymous
        );
        assert_eq!(
            kind("7ffc0-7ffc1 rw-s 00000000 00:01 77     /dev/zero (deleted)"),
            VmaKind::File
        );
        assert_eq!(
            kind("7ffc0-7ffc1 rw-s 00000000 00:0f 77     /anon_hugepage (deleted)"),
            VmaKind::Odd
        );
        assert_eq!(
            kind(
                "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]"
            ),
            VmaKind::Vsyscall
        );
    }

    #[test]
    fn what_a_child_gets_is_understood() {
        assert_eq!(in_child_by_flags(b" rd wr mr mw me ac sd"), InChild::Copy);
        assert_eq!(
            in_child_by_flags(b" rd wr mr mw me dc ac"),
            InChild::Nothing { wiped: false }
        );
        assert_eq!(in_child_by_flags(b" rd wr mr mw me ac wf"), InChild::Zeros);
    }

    #[test]
    fn our_own_mappings_are_read_whole() {
        let snapshot = Snapshot::read().unwrap();
        let here = &snapshot as *const _ as u64;
        assert!(snapshot.at(here).is_some_and(|v| v.prot & PROT_WRITE != 0));
        let count = std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .count();
        assert!(snapshot.vmas.len().abs_diff(count) < 20);
        assert!(snapshot.vmas.windows(2).all(|w| w[0].end <= w[1].start));
    }
}
