//! Working memory of one system call: copies of structures with pointers, copies of buffers that are not in one piece,
//! and old values of watched bytes.

use linux_raw_sys::errno::EFAULT;
use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr};

use crate::global::g;
use crate::locks::Writing;
use crate::runtime::memory;
use crate::runtime::thread::{Current, SCRATCH};

/// Old values of watched output buffers are kept in the second half of the thread's scratch area.
const OLD_ROOM: usize = SCRATCH / 2;
const ROOM: u64 = (SCRATCH - OLD_ROOM) as u64;
/// Longer buffers are not copied: the kernel gets the original. It moves no more in one call (MAX_RW_COUNT), and
/// refuses negative lengths (-1 of 32 bits), which would be longer.
const MOST_BOUNCED: u64 = 0x7fff_f000;

/// Old values of the watched parts of a call's output.
pub struct Kept {
    old: *const u8,
    used: usize,
    /// Address, length, and offset in `old`.
    parts: [(u64, u64, usize); 48],
    len: usize,
}

impl Kept {
    /// The old bytes of `[addr, addr + len)`, or the first ones of them.
    pub fn get(&self, addr: u64, len: u64) -> Option<&[u8]> {
        let (at, n, offset) = *self
            .parts
            .iter()
            .take(self.len)
            .filter(|p| addr >= p.0 && addr < p.0 + p.1)
            // Vectors may overlap: takes the part that reaches furthest.
            .max_by_key(|p| p.0 + p.1)?;
        let skip = addr - at;
        // SAFETY: recorded by `keep`, within the scratch area.
        Some(unsafe {
            core::slice::from_raw_parts(
                self.old.add(offset + skip as usize),
                len.min(n - skip) as usize,
            )
        })
    }

    pub fn parts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.parts.iter().take(self.len).map(|p| (p.0, p.1))
    }

    /// An empty list for one call.
    pub const fn nothing(old: *const u8) -> Kept {
        Kept {
            old,
            used: 0,
            parts: [(0, 0, 0); 48],
            len: 0,
        }
    }

    /// The size of a mapping for old values that outlive a call: the `Kept`, and the bytes behind it.
    pub const APART: usize = 1 << 16;

    /// Saves the watched bytes of `[at, at + len)`, as far as there is room.
    ///
    /// # Safety
    /// `mapping` has [`Kept::APART`] bytes, zeros before the first use, and has no other user.
    pub unsafe fn extend_apart(mapping: u64, at: u64, len: u64) {
        const HEAD: usize = size_of::<Kept>();
        // SAFETY: see above; zeros are a `Kept` without parts.
        let kept = unsafe { &mut *(mapping as *mut Kept) };
        kept.old = (mapping + HEAD as u64) as *const u8;
        kept.keep(at, len, Kept::APART - HEAD, &mut |_, _| {});
    }

    /// Saves the watched bytes of `[addr, addr + len)`. `room` is the number of bytes behind `old`; `f` is called for
    /// each part.
    fn keep(&mut self, addr: u64, len: u64, room: usize, f: &mut dyn FnMut(u64, u64)) {
        let end = addr.saturating_add(len);
        g().watchlist()
            .for_each_overlap(TargetAddr(addr), end - addr, &mut |_, range, _| {
                let (from, to) = (addr.max(range.start.0), end.min(range.end().0));
                let known = self.parts.iter().take(self.len);
                if known.clone().any(|p| from >= p.0 && to <= p.0 + p.1) {
                    return;
                }
                let n = ((to - from) as usize).min(room - self.used);
                let Some(slot) = self.parts.get_mut(self.len).filter(|_| n > 0) else {
                    return;
                };
                f(from, to - from);
                // SAFETY: within the room behind `old`, which nothing else uses now.
                let bytes = unsafe {
                    core::slice::from_raw_parts_mut(self.old.cast_mut().add(self.used), n)
                };
                if memory::read(from, bytes) == n {
                    *slot = (from, n as u64, self.used);
                    self.len += 1;
                    self.used += n;
                }
            });
    }
}

/// Lives for one attempt of one call.
pub struct Scratch {
    /// The free part: first of the thread's scratch area, then of mappings of our own.
    free: u64,
    end: u64,
    pub kept: Kept,
    /// Our own mappings, which are unmapped at the end.
    maps: [(u64, u64); 24],
    maps_len: usize,
    /// Buffers of which the kernel gets a copy: address, copy, length.
    bounced: [(u64, u64, u64); 16],
    bounced_len: usize,
    /// Copied msghdrs or mmsghdrs: address of the program's, address of ours.
    pub messages: (u64, u64),
    /// The socklen_t before the call.
    pub room_before: u64,
    /// The number of vectors in a copied array.
    pub vector_count: Option<u64>,
    /// Another call that does the same with a vector.
    pub instead: Option<u64>,
    /// Watched bytes that the kernel may be writing to.
    writing: Writing,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (at, len) in self.maps.iter().take(self.maps_len) {
            // SAFETY: our own mapping.
            ulpf_lib::arena::unmap_anonymous(*at as *mut u8, *len as usize);
        }
    }
}

impl Scratch {
    pub fn new(t: Current) -> Scratch {
        let base = t.scratch() as u64;
        Scratch {
            free: base,
            end: base + ROOM,
            kept: Kept::nothing((base + ROOM) as *const u8),
            maps: [(0, 0); 24],
            maps_len: 0,
            bounced: [(0, 0, 0); 16],
            bounced_len: 0,
            messages: (0, 0),
            room_before: 0,
            vector_count: None,
            instead: None,
            writing: Writing::NOTHING,
        }
    }

    fn map(&mut self, len: u64) -> Option<u64> {
        let slot = self.maps.get_mut(self.maps_len)?;
        let at = ulpf_lib::arena::map_anonymous(len as usize) as u64;
        if at == 0 {
            return None;
        }
        *slot = (at, len);
        self.maps_len += 1;
        Some(at)
    }

    /// Room for `n` bytes.
    pub fn allocate(&mut self, n: u64) -> Option<u64> {
        const CHUNK: u64 = 256 << 10;
        let n = n.next_multiple_of(16);
        if self.end - self.free < n {
            let len = n.next_multiple_of(CHUNK << self.maps_len.min(8));
            self.free = self.map(len)?;
            self.end = self.free + len;
        }
        self.free += n;
        Some(self.free - n)
    }

    /// A copy of `n` bytes of the program; `None` if not all are readable.
    pub fn copy(&mut self, addr: u64, n: u64) -> Option<u64> {
        let to = self.allocate(n)?;
        // SAFETY: room for `n` bytes.
        let bytes = unsafe { core::slice::from_raw_parts_mut(to as *mut u8, n as usize) };
        (memory::read(addr, bytes) == bytes.len()).then_some(to)
    }

    /// The address by which the kernel may access `[addr, addr + len)` in the program's stead: the same one, the alias,
    /// or a copy if only a part of the buffer has moved. `all`: the kernel writes all of it.
    pub fn place(&mut self, addr: u64, len: u64, access: AccessKind, all: bool) -> u64 {
        if addr == 0 || len == 0 {
            return addr;
        }
        let Some(end) = addr.checked_add(len) else {
            return addr;
        };
        if !g().touches(addr, end) || !g().guards().in_the_way(TargetAddr(addr), end, access) {
            return addr;
        }
        match g().page_map.open(TargetAddr(addr), len, access.writes()) {
            Some(alias) => alias.0,
            None => self
                .bounce(addr, len, access, all || access.reads())
                .unwrap_or(addr),
        }
    }

    /// A copy of a buffer that is not in one piece, page for page. A page of the copy is accessible only if the
    /// program's page is, so that the kernel stops at the same byte.
    fn bounce(&mut self, addr: u64, len: u64, access: AccessKind, fill: bool) -> Option<u64> {
        if self.bounced_len == self.bounced.len() || len > MOST_BOUNCED {
            return None;
        }
        let first = addr & !(PAGE_SIZE - 1);
        let total = (addr + len).next_multiple_of(PAGE_SIZE) - first;
        let copy = self.map(total)?;
        let mut at = addr;
        while at < addr + len {
            let end = (at + 1).next_multiple_of(PAGE_SIZE).min(addr + len);
            let entry = g().page_map.entry(TargetAddr(at));
            let n = if fill { (end - at) as usize } else { 1 };
            // SAFETY: within the copy.
            let to =
                unsafe { core::slice::from_raw_parts_mut((copy + (at - first)) as *mut u8, n) };
            let readable = memory::read(at, to) == n;
            let permitted = if entry.moved() {
                entry.permits(access)
            } else {
                !access.writes() || writable(at & !(PAGE_SIZE - 1))
            };
            if !readable || !permitted {
                let page = copy + (at & !(PAGE_SIZE - 1)) - first;
                let prot = if readable { 1 } else { 0 };
                // SAFETY: a page of our own mapping.
                let _ = unsafe { sys!(k::__NR_mprotect, page, PAGE_SIZE, prot) };
            }
            at = end;
        }
        let slot = self.bounced.get_mut(self.bounced_len)?;
        *slot = (addr, copy + (addr - first), len);
        self.bounced_len += 1;
        Some(copy + (addr - first))
    }

    /// The kernel has written `[addr, addr + len)`: copies results from copies of ours to the program.
    pub fn written(&self, addr: u64, len: u64) {
        for (from, copy, size) in self.bounced.iter().take(self.bounced_len) {
            let (start, end) = (addr.max(*from), addr.saturating_add(len).min(from + size));
            if start < end {
                // SAFETY: within the copy.
                let bytes = unsafe {
                    core::slice::from_raw_parts(
                        (copy + (start - from)) as *const u8,
                        (end - start) as usize,
                    )
                };
                memory::write(start, bytes);
            }
        }
    }

    /// Saves the watched bytes of `[addr, addr + len)`.
    pub fn keep(&mut self, addr: u64, len: u64) {
        if addr == 0 || len == 0 || !g().has_watches() {
            return;
        }
        let writing = &mut self.writing;
        self.kept
            .keep(addr, len, OLD_ROOM, &mut |from, n| writing.add(from, n));
    }
}

/// True if the program may write to this page, which is not ours. The kernel tries, with a futex operation that adds
/// zero to the page's first word and compares it with a different value.
pub fn writable(page: u64) -> bool {
    const ADD: u64 = (k::FUTEX_OP_ADD as u64) << 28;
    let nobody = 0u32;
    let other = u64::from(memory::get::<u32>(page) == Some(0));
    // SAFETY: the word keeps its value, and no thread waits on `nobody`.
    let result = unsafe {
        sys!(
            k::__NR_futex,
            &raw const nobody,
            k::FUTEX_WAKE_OP_PRIVATE,
            0,
            0,
            page,
            ADD | other
        )
    };
    result != Err(sys::Errno(EFAULT as i32))
}
