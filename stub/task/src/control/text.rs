//! Bytes of the program that the debugger sees and changes. /proc/self/mem bypasses guards, breakpoints, patches and
//! page protections, because it accesses the address space, not the page tables. A program that has changed its user
//! cannot open it ([`keep`]).

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};

use linux_raw_sys::errno::EFAULT;
use linux_raw_sys::general as k;
use ulpf_lib::guard::maps::{self, Snapshot, Vma, VmaKind};
use ulpf_lib::guard::{PROT_EXEC, PROT_READ, PROT_WRITE};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;

use ulpf_stub_handlers::check::entries;
use ulpf_stub_handlers::child;
use ulpf_stub_handlers::global::{g, tables};
use ulpf_stub_handlers::runtime::{library_link, memory};
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::breakpoints::INT3;

/// /proc/self/mem, or -1.
static MEM: AtomicI32 = AtomicI32::new(-1);

/// Opened at the start: later this task may lack the permission. A program that has changed its user or group lacks it
/// from the start, because the file belongs to root then (proc(5), PR_SET_DUMPABLE); so does its forked child.
pub fn keep() {
    if let Ok(fd) = child::open_mem() {
        MEM.store(fd as i32, Relaxed);
    }
}

/// Copies `n` bytes between `ours` and the program's memory at `theirs`; returns how many. `file` is the call for
/// /proc/self/mem. Where that file is not open, `vector` copies: a call that needs no permission, because this task
/// shares the memory, but heeds page protections.
fn copy(file: u32, vector: u32, ours: u64, theirs: u64, n: usize) -> Result<usize, Errno> {
    let fd = MEM.load(Relaxed);
    if fd >= 0 {
        // SAFETY: callers own `n` bytes at `ours`; what is written is what the debugger or we want there.
        return unsafe { sys!(file, fd, ours, n, theirs) }.map(|n| n as usize);
    }
    match n - memory::by_kernel(vector, ours, theirs, n) {
        0 if n != 0 => Err(Errno(EFAULT as i32)),
        copied => Ok(copied),
    }
}

/// Offset in the file of the byte at `addr`. Even the alias is not touched directly: a file behind it may have become
/// too short, or be open for reading only, and a signal would end this task.
fn at(addr: u64) -> u64 {
    let alias = g().alias_of(addr).or_else(|| library_link::alias(addr));
    alias.map_or(addr, |a| a.0)
}

/// Callers stay within a page, or where nothing has an alias.
pub(super) fn read_raw(addr: u64, buf: &mut [u8]) -> usize {
    let (to, n) = (buf.as_mut_ptr() as u64, buf.len());
    copy(k::__NR_pread64, k::__NR_process_vm_readv, to, at(addr), n).unwrap_or(0)
}

/// Returns whether any part of this code matches `has`, for patterns of at most `longest` bytes. It is read piece by
/// piece.
pub(super) fn any(vma: &Vma, longest: usize, has: impl Fn(&[u8]) -> bool) -> bool {
    let mut found = false;
    each_piece(vma, longest, |_, piece| {
        found = has(piece);
        found
    });
    found
}

/// Reads this code piece by piece, until `stop` returns true; it gets each piece's address and bytes. Any pattern of up
/// to `longest` bytes is complete in one of the pieces.
pub(super) fn each_piece(vma: &Vma, longest: usize, mut stop: impl FnMut(u64, &[u8]) -> bool) {
    let mut buf = alloc::vec![0u8; 1 << 16];
    let mut at = vma.start;
    while at < vma.end {
        let n = ((vma.end - at) as usize).min(buf.len());
        let got = buf.get_mut(..n).map_or(0, |part| read_raw(at, part));
        if buf.get(..got).is_some_and(|piece| stop(at, piece)) {
            return;
        }
        // A pattern that crosses two pieces is found in the next one.
        if got < longest {
            return;
        }
        at += (got - longest + 1) as u64;
    }
}

/// Writes all of it, or nothing. Callers stay within a page, or where no page has an alias.
pub(super) fn write_raw(addr: u64, data: &[u8]) -> Result<(), Errno> {
    let (from, to) = (data.as_ptr() as u64, at(addr));
    let write = || match copy(
        k::__NR_pwrite64,
        k::__NR_process_vm_writev,
        from,
        to,
        data.len(),
    )? {
        n if n == data.len() => Ok(()),
        _ => Err(Errno(EFAULT as i32)),
    };
    let done =
        write().or_else(|error| with_permission(to, data.len(), write).unwrap_or(Err(error)));
    CHANGED.fetch_or(done.is_ok(), Relaxed);
    done
}

/// Memory was written that may be code, and that processors may have fetched.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Call it before stopped threads go on: no processor then executes code that it fetched before the last [`write_raw`].
///
/// Cross-modifying code requires a serializing instruction on the other processor (Intel SDM, volume 3, section 9.1.3).
/// A parked thread returns through rt_sigreturn(2), usually by IRET, which is serializing. SYSRET is not, and the
/// kernel uses it for a thread whose rcx and r11 are as a system call leaves them.
pub fn serialize() {
    const REGISTER: u32 =
        k::membarrier_cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32;
    const SYNC_CORE: u32 = k::membarrier_cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32;
    if !CHANGED.swap(false, Relaxed) {
        return;
    }
    // SAFETY: touches no memory.
    let ask = |what: u32| unsafe { sys!(k::__NR_membarrier, what, 0, 0) };
    // (A process that has not registered is refused. Linux before 4.16 knows neither call.)
    if ask(SYNC_CORE).is_err() && ask(REGISTER).is_ok() {
        let _ = ask(SYNC_CORE);
    }
}

/// Newer kernels can be built or configured (proc_mem.force_override=) to keep /proc/self/mem from changing read-only
/// memory, and process_vm_writev(2) never does: its pages are made writable for the moment. (The program is stopped.)
/// `None`: the protection is not the reason.
fn with_permission<R>(addr: u64, len: usize, write: impl FnOnce() -> R) -> Option<R> {
    let protect = |page: u64, prot: u8| {
        // SAFETY: the code stays readable, and executable if it was.
        unsafe { sys!(k::__NR_mprotect, page, 4096, u64::from(prot)) }
    };
    let mut opened = Vec::new();
    let mut open = |page| {
        let prot = protection(page)?;
        if prot & PROT_WRITE == 0 {
            protect(page, prot | PROT_WRITE).ok()?;
            opened.push((page, prot));
        }
        Some(())
    };
    let mut pages = (addr & !4095..addr + len as u64).step_by(4096);
    let all = pages.all(|page| open(page).is_some());
    let result = (all && !opened.is_empty()).then(write);
    for (page, prot) in opened {
        let _ = protect(page, prot);
    }
    result
}

/// Protection of the memory at `addr`: from a query of that mapping alone (Linux 6.11), or from all mappings.
fn protection(addr: u64) -> Option<u8> {
    let alone = maps::mapping_at(addr).map(|m| m.prot);
    alone.or_else(|| Snapshot::read().ok()?.at(addr).map(|vma| vma.prot))
}

/// Returns whether this is code that may be patched: never memory that other processes see, or that the program may
/// write meanwhile.
pub fn may_patch(vma: &Vma) -> bool {
    let kept = !vma.shared && vma.prot & PROT_WRITE == 0 && vma.prot & PROT_EXEC != 0;
    kept && match vma.kind {
        VmaKind::File => true,
        VmaKind::OddFile => is_plain(vma),
        _ => false,
    }
}

/// Returns whether this is the code that the kernel gives every program. When written to, it becomes the program's own.
pub fn is_vdso(vma: &Vma) -> bool {
    const CODE: u8 = PROT_READ | PROT_EXEC;
    vma.kind == VmaKind::Kernel && !vma.shared && vma.prot == CODE
}

/// Returns whether this file does not consist of huge pages. The query takes a while, so answers are kept: below, a one
/// says yes.
fn is_plain(vma: &Vma) -> bool {
    static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
    let file = (vma.dev << 40 ^ vma.inode) << 1;
    let place = KNOWN.get((vma.inode % 64) as usize);
    if let Some(known) = place.map(|k| k.load(Relaxed)).filter(|k| k | 1 == file | 1) {
        return known & 1 != 0;
    }
    let Ok(mut maps) = Snapshot::read() else {
        return false;
    };
    maps.resolve();
    let plain = maps.at(vma.start).is_some_and(|v| v.kind == VmaKind::File);
    if let Some(known) = place {
        known.store(file | u64::from(plain), Relaxed);
    }
    plain
}

fn pages(addr: u64, len: usize, mut f: impl FnMut(u64, core::ops::Range<usize>) -> bool) {
    let mut done = 0;
    while done < len {
        let at = addr.wrapping_add(done as u64);
        let n = ((4096 - at % 4096) as usize).min(len - done);
        if !f(at, done..done + n) {
            return;
        }
        done += n;
    }
}

/// Reads with breakpoints and patches hidden; returns the number of readable bytes.
pub fn read(addr: u64, buf: &mut [u8]) -> usize {
    let mut total = 0;
    pages(addr, buf.len(), |at, r| {
        let want = r.len();
        let got = buf.get_mut(r).map_or(0, |b| read_raw(at, b));
        total += got;
        got == want
    });
    if let Some(got) = buf.get_mut(..total) {
        tables().edits.hide(addr, got);
    }
    total
}

/// A word, if it can be read.
pub fn word(addr: u64) -> Option<u64> {
    let mut word = [0; 8];
    (read(addr, &mut word) == word.len()).then(|| u64::from_le_bytes(word))
}

/// Writes; bytes under breakpoints become their new originals.
pub fn write(stopped: &mut Stopped, addr: u64, data: &[u8]) -> Result<(), Errno> {
    let mut result = Ok(());
    let end = addr.saturating_add(data.len() as u64);
    let breakpoints = &mut stopped.tables_mut().edits.breakpoints;
    for b in breakpoints.within_mut(addr..end) {
        b.there = b.there && is_planted(b.addr);
    }
    pages(addr, data.len(), |at, r| {
        if let Some(d) = data.get(r) {
            result = write_raw(at, d);
        }
        result.is_ok()
    });
    result?;
    let breakpoints = &mut stopped.tables_mut().edits.breakpoints;
    for b in breakpoints.within_mut(addr..end) {
        b.there = b.there && entries::around(b.addr).is_none();
        if !b.there {
            continue;
        }
        if let Some(v) = data.get((b.addr - addr) as usize) {
            b.original = *v;
        }
        write_raw(b.addr, &[INT3])?;
    }
    Ok(())
}

pub(super) fn is_planted(addr: u64) -> bool {
    let mut byte = [0u8];
    read_raw(addr, &mut byte) == 1 && byte == [INT3]
}
