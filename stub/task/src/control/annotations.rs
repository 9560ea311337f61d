//! Descriptions of memory in the program's files: Valgrind's client requests in their code, and their references to
//! functions of AddressSanitizer that no file defines (weak ones, which are 0 then).
//!
//! ```text
//! code   rol $3,%rdi; … ; xchg %rbx,%rbx      becomes a jump      (check/requests.rs of the handlers)
//! slot   __asan_poison_memory_region: 0       leads to a function of ours, which makes such a request
//! ```
//! Memory outside the heap that these requests describe is watched.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::guard::maps::{Snapshot, Vma, VmaKind};
use ulpf_lib::guard::{PROT_EXEC, PROT_READ, PROT_WRITE};
use ulpf_lib::mapping::mappings;
use ulpf_lib::{PAGE_SIZE, TargetAddr, WatchId, place, sys};
use ulpf_stub_handlers::check::requests::{self, CODE, REQUEST, TABLE};
use ulpf_stub_handlers::check::{arena, client_blocks, client_list, regions, shadow};
use ulpf_stub_handlers::global::{g, machine, tables};
use ulpf_stub_tables::edit::Detour;

use super::allocator::Tables;
use super::check::memory;
use super::functions::{DT_STRTAB, Object};
use super::old_blocks::parts_of;
use super::slots;
use super::{Control, parked, ranges, text};
use crate::files::read_file;

/// Memory of up to this many bytes is watched as a whole. Of a larger mapping, only `AROUND` bytes on each side of the
/// described range are watched.
const WHOLE: u64 = 64 << 20;
const AROUND: u64 = 16 << 20;
/// A stack may grow by this many bytes.
const GROWS: u64 = 64 << 20;
const NOT_WATCHED: &str = "ulpf: the program tells of memory in which accesses cannot be looked at (a stack, memory that it \
                           shares, or one with a file behind it); what it says of such memory is left alone\n";
const TOO_MANY: &str =
    "ulpf: the program has too many places that tell of its memory; some are left alone\n";

/// Address of a slot, and offset of its function in the page of our functions.
type Slot = (u64, u64);

#[derive(Default)]
pub struct Annotations {
    /// Code that was searched, by its start addresses.
    searched: Vec<u64>,
    /// Files of which the relocations were read.
    read: Vec<u64>,
    /// Files that refer to functions of AddressSanitizer, with their slots.
    slots: Vec<((u64, u64), Vec<Slot>)>,
    /// Some file has these functions.
    defined: bool,
    /// The user knows that some of the memory cannot be watched.
    said: bool,
    /// Watched memory that the program has described.
    watched: Vec<((u64, u64), WatchId)>,
}

impl Annotations {
    /// Forgets code and files at addresses that are no longer mapped.
    pub(super) fn forget_files(&mut self, gone: impl Fn(&u64) -> bool) {
        self.searched.retain(|at| !gone(at));
        self.read.retain(|at| !gone(at));
        self.slots.retain(|((at, _), _)| !gone(at));
    }
}

/// Functions of AddressSanitizer, and where ours begin in the page that has them.
const FUNCTIONS: [(&[u8], u64); 4] = [
    (b"__asan_poison_memory_region", 0),
    (b"__asan_unpoison_memory_region", ROOM),
    (b"__asan_region_is_poisoned", 2 * ROOM),
    (b"__asan_address_is_poisoned", 3 * ROOM),
];
const ROOM: u64 = 128;
const LONGEST: usize = 32;

/// A function (address, bytes) that makes this request, and returns its result; or of one byte.
fn function(request: u32, one: bool) -> Vec<u8> {
    let mut code = Vec::new();
    code.extend([0x48, 0x83, 0xec, 0x38]); // sub $56, %rsp
    code.extend([0x48, 0xc7, 0x04, 0x24]); // movq $request, (%rsp)
    code.extend(request.to_le_bytes());
    code.extend([0x48, 0x89, 0x7c, 0x24, 0x08]); // mov %rdi, 8(%rsp)
    match one {
        true => code.extend([0x48, 0xc7, 0x44, 0x24, 0x10, 1, 0, 0, 0]), // movq $1, 16(%rsp)
        false => code.extend([0x48, 0x89, 0x74, 0x24, 0x10]),            // mov %rsi, 16(%rsp)
    }
    code.extend([0x48, 0x89, 0xe0]); // mov %rsp, %rax
    code.extend([0x31, 0xd2]); // xor %edx, %edx
    code.extend(REQUEST);
    code.extend([0x31, 0xc0]); // xor %eax, %eax
    match one {
        true => code.extend([0x48, 0x85, 0xd2, 0x0f, 0x95, 0xc0]), // test %rdx, %rdx; setne %al
        false => code.extend([0x48, 0x89, 0xd0]),                  // mov %rdx, %rax
    }
    code.extend([0x48, 0x83, 0xc4, 0x38, 0xc3]); // add $56, %rsp; ret
    code
}

/// Makes memory of ours executable.
fn executable(at: u64, len: u64) -> bool {
    // SAFETY: what is written there comes by another way (`text::write_raw`).
    unsafe { sys!(k::__NR_mprotect, at, len, PROT_READ | PROT_EXEC) }.is_ok()
}

/// Returns whether these bytes of a file contain a request, where none is a jump yet. (Uses the search of Boyer, Moore
/// and Horspool.)
fn has_request(code: &[u8]) -> bool {
    let last = REQUEST.len() - 1;
    let mut at = last;
    while let Some(byte) = code.get(at) {
        if *byte == 0xdb && code.get(at - last..=at) == Some(&REQUEST) {
            return true;
        }
        // Distance of this byte from the end of a request.
        at += match byte {
            0x87 => 1,
            0x48 => 2,
            0x33 => 3,
            0xc7 => 4,
            0xc1 => 5,
            0x3d => 7,
            0x0d => 11,
            0x03 => 15,
            _ => REQUEST.len(),
        };
    }
    false
}

/// Addresses of the requests in this code, from `from` on.
fn requests_in(from: u64, code: &[u8]) -> Vec<u64> {
    let last = REQUEST.len() - 1;
    let mut found = Vec::new();
    let mut at = last;
    // Its last three bytes are found by steps, as Boyer, Moore and Horspool do.
    while let Some(byte) = code.get(at) {
        at += match byte {
            0xdb => {
                let start = at - last;
                if code.get(start..=at).is_some_and(requests::is_at) {
                    found.push(from + start as u64);
                }
                1
            }
            0x87 => 1,
            0x48 => 2,
            _ => 3,
        };
    }
    found
}

/// Returns whether this code contains a request in its file. The file itself is read, which leaves the program's memory
/// as it is. `None`: the file cannot be read.
fn in_file(vma: &Vma) -> Option<bool> {
    let text = read_file("/proc/self/maps\0")?;
    let mapping = mappings(&text).find(|m| m.start == vma.start)?;
    let (at, len) = (mapping.offset, vma.end - vma.start);
    let end = at.checked_add(len)?;
    let mut path = mapping.path().to_vec();
    path.push(0);
    let flags = k::O_RDONLY | k::O_CLOEXEC | k::O_NONBLOCK;
    // SAFETY: a NUL-terminated path; a descriptor of the stub's own table.
    let fd = unsafe { sys!(k::__NR_openat, k::AT_FDCWD, path.as_ptr(), flags, 0) }.ok()?;
    let found = requests_of(fd, vma.inode, at, end);
    // SAFETY: opened above.
    let _ = unsafe { sys!(k::__NR_close, fd) };
    found
}

/// Returns whether this file, if it has that inode, contains a request in these bytes.
fn requests_of(fd: u64, inode: u64, mut at: u64, end: u64) -> Option<bool> {
    const PIECE: usize = 256 << 10;
    let mut stat = core::mem::MaybeUninit::<k::stat>::uninit();
    // SAFETY: fills all of `stat`, of which any pattern is valid.
    let stat = unsafe {
        sys!(k::__NR_fstat, fd, stat.as_mut_ptr()).ok()?;
        stat.assume_init()
    };
    if stat.st_ino != inode {
        return None;
    }
    let mut piece = alloc::vec![0; PIECE];
    while at < end {
        // SAFETY: fills the piece at most.
        let read = unsafe {
            let to = piece.as_mut_ptr();
            sys!(k::__NR_pread64, fd, to, PIECE, at)
        };
        let read = read.ok()? as usize;
        if has_request(piece.get(..read)?) {
            return Some(true);
        }
        if read < REQUEST.len() {
            break;
        }
        at += (read - REQUEST.len() + 1) as u64;
    }
    Some(false)
}

impl Control {
    /// Serves the client requests of code and files that were mapped since the last call.
    pub(super) fn serve_annotations(&mut self, maps: &Snapshot) {
        let image = machine().image;
        for vma in &maps.vmas {
            let ours = (image.0..image.1).contains(&vma.start) || place::has(vma.start);
            let searched = &mut self.annotations.searched;
            if ours || !text::may_patch(vma) || searched.contains(&vma.start) {
                continue;
            }
            searched.push(vma.start);
            if in_file(vma) == Some(false) {
                continue;
            }
            let mut found = Vec::new();
            text::each_piece(vma, REQUEST.len(), |at, piece| {
                found.extend(requests_in(at, piece));
                false
            });
            if !found.is_empty() && !self.begin_annotations() {
                return;
            }
            for at in found {
                if !self.serve_request(at) {
                    self.warn(TOO_MANY);
                    break;
                }
            }
        }
        self.fill_slots(maps);
    }

    /// Maps the code and table for client requests. Returns `false` if there is no memory for them.
    fn begin_annotations(&mut self) -> bool {
        if requests::has_begun() {
            return true;
        }
        let len = CODE + PAGE_SIZE;
        let (Ok(code), Ok(table)) = (memory(len), memory(TABLE)) else {
            return false;
        };
        if !executable(code, CODE) {
            return false;
        }
        if client_list::place() == 0
            && let Ok(list) = memory(client_list::LEN)
        {
            client_list::begin(list);
        }
        let guards = self.world.stopped().guards();
        for (at, len) in [
            (code, len),
            (table, TABLE),
            (client_list::place(), client_list::LEN),
        ] {
            guards.exclude(TargetAddr(at), len);
        }
        requests::begin(code, table);
        self.annotations.searched.push(code);
        true
    }

    /// Serves the request at `at` from now on. `false`: there are too many.
    fn serve_request(&mut self, at: u64) -> bool {
        let stopped = self.world.stopped();
        let end = at + REQUEST.len() as u64;
        self.edits.restore(stopped, at, end);
        let Some((number, place, thunk)) = requests::add(at) else {
            return false;
        };
        if text::write_raw(place, &thunk).is_err() {
            requests::remove(number);
            return true;
        }
        for t in g().threads.iter() {
            if let Some(context) = parked::frame(t, stopped)
                && let Some(turned) = requests::begun(context.gprs.rip.wrapping_sub(at))
            {
                context.gprs.rdi = context.gprs.rdi.rotate_right(turned);
                context.gprs.rip = at;
            }
        }
        let jump = requests::jump(number);
        let [original @ .., _, _, _, _, _] = REQUEST;
        stopped.tables_mut().edits.requests.insert(Detour {
            at,
            number,
            original,
            jump,
        });
        let _ = text::write(stopped, at, &jump);
        true
    }

    /// Forgets `[start, end)`, which is no longer mapped.
    pub(super) fn forget_annotations(&mut self, start: u64, end: u64) {
        if start >= end || arena::has(start) {
            return;
        }
        let all = &mut self.annotations;
        client_blocks::forget_all(start, end);
        regions::remove_requested(start, end);
        let staged = &mut self.staged;
        let mut any = false;
        all.watched.retain(|((from, to), id)| {
            let whole = start <= *from && *to <= end;
            if whole {
                staged.remove_id(*id);
                any = true;
            }
            !whole
        });
        if any {
            self.commit_watches();
        }
    }

    // ---- functions of AddressSanitizer -----------------------------------------------------------

    /// Fills slots that lead nowhere, or back into their file, of files that have such slots.
    fn fill_slots(&mut self, maps: &Snapshot) {
        for start in self.check.looked.clone() {
            if self.annotations.read.contains(&start) {
                continue;
            }
            let object = Object::at(maps.index(start), maps).filter(|o| o.start == start);
            let Some(object) = object else { continue };
            let all = &mut self.annotations;
            all.read.push(start);
            // A file defines these functions: the program is built with AddressSanitizer.
            let tables = Tables::of(&object);
            all.defined |= tables.is_some_and(|t| t.find(FUNCTIONS[0].0).is_some());
            let slots = asan_slots(&object);
            if !slots.is_empty() {
                all.slots.push(((object.start, object.end), slots));
            }
        }
        let all = &self.annotations;
        if all.slots.is_empty() || all.defined {
            return;
        }
        let mut empty = Vec::new();
        for ((start, end), slots) in &all.slots {
            let unbound = |now: u64| now == 0 || (*start..*end).contains(&now);
            empty.extend(
                slots
                    .iter()
                    .filter(|s| text::word(s.0).is_some_and(unbound)),
            );
        }
        if empty.is_empty() {
            return;
        }
        let Some(page) = self.functions() else { return };
        for (slot, offset) in empty {
            let _ = text::write(self.world.stopped(), slot, &(page + offset).to_le_bytes());
        }
    }

    /// Address of our own functions.
    fn functions(&mut self) -> Option<u64> {
        let known = requests::FUNCTIONS.load(Relaxed);
        if !self.begin_annotations() {
            return None;
        }
        let page = match known {
            0 => memory(PAGE_SIZE)
                .ok()
                .filter(|page| executable(*page, PAGE_SIZE))?,
            page if tables().edits.requests.touches(page, page + PAGE_SIZE) => return Some(page),
            page => page,
        };
        if known != 0 {
            place::add(page, PAGE_SIZE);
        }
        self.world
            .stopped()
            .guards()
            .exclude(TargetAddr(page), PAGE_SIZE);
        let all = [
            function(0x4d43_0000, false),
            function(0x4d43_0001, false),
            function(0x554c_0000, false),
            function(0x554c_0000, true),
        ];
        for (code, (_, offset)) in all.iter().zip(FUNCTIONS) {
            text::write_raw(page + offset, code).ok()?;
            for at in requests_in(page + offset, code) {
                self.serve_request(at);
            }
        }
        requests::FUNCTIONS.store(page, Relaxed);
        Some(page)
    }

    // ---- memory outside the heap -----------------------------------------------------------------

    /// The program poisons part of `[start, end)`. Watches that memory as far as possible.
    pub(super) fn watch_poisoned(&mut self, start: u64, end: u64) {
        let Ok(maps) = Snapshot::read() else { return };
        let mut refused = Vec::new();
        for vma in maps.vmas.iter().filter(|v| v.start < end && start < v.end) {
            let mut part = (vma.start, vma.end);
            if vma.end - vma.start > WHOLE {
                let from = start.max(vma.start).saturating_sub(AROUND) & !(AROUND - 1);
                let to = end.min(vma.end).saturating_add(AROUND) & !(AROUND - 1);
                part = (from.max(vma.start), to.min(vma.end));
            }
            let mut taken = self.taken(vma);
            taken.extend(edges(vma, &maps));
            taken.sort_unstable();
            for free in ranges::outside(&unwatched(part), &taken) {
                if !may_be_watched(vma) || !self.watch_poisoned_part(free) {
                    refused.push(free);
                }
            }
            if vma.kind == VmaKind::Stack {
                refused.push((vma.start.saturating_sub(GROWS), vma.start));
            }
            let within = |(from, to): (u64, u64)| (from.max(part.0), to.min(part.1));
            refused.extend(taken.into_iter().map(within).filter(|r| r.0 < r.1));
        }
        let said = &mut self.annotations.said;
        if !*said && refused.iter().any(|r| r.0 < end && start < r.1) {
            *said = true;
            self.warn(NOT_WATCHED);
        }
        refused.into_iter().for_each(regions::refuse);
        // (Memory that is not mapped now may be mapped later.)
        let mut at = start;
        while let Some((from, to)) = regions::unknown(at, end) {
            let next = maps.vmas.iter().find(|v| v.start > from);
            let gap = next.map_or(to, |v| v.start).min(to).max(from + 1);
            regions::refuse((from, gap));
            at = gap;
        }
    }

    /// Ranges of a mapping that belong to ulpf or to a stack, ascending. (Adjacent mappings count as one.)
    fn taken(&mut self, vma: &Vma) -> Vec<(u64, u64)> {
        let mut taken: Vec<(u64, u64)> = place::each().map(|(at, len)| (at, at + len)).collect();
        taken.push(machine().image);
        for t in g().threads.iter() {
            // The thread's own data, which the C library keeps behind its stack.
            const BEHIND: u64 = 2 * PAGE_SIZE;
            let fs = t.fs_base.load(Relaxed);
            let frame = parked::frame(t, self.world.stopped());
            if let Some(sp) = frame.map(|c| c.gprs.rsp)
                && (vma.start..vma.end).contains(&sp)
            {
                let top = if (sp..vma.end).contains(&fs) {
                    fs
                } else {
                    vma.end
                };
                taken.push((
                    vma.start,
                    top.next_multiple_of(PAGE_SIZE).saturating_add(BEHIND),
                ));
            }
        }
        taken.retain(|r| r.0 < vma.end && vma.start < r.1);
        taken.sort_unstable();
        taken
    }

    fn watch_poisoned_part(&mut self, (start, end): (u64, u64)) -> bool {
        let Some(id) = self.watch_checked(start, end - start) else {
            return false;
        };
        let parts = parts_of((start, end));
        let fits = |parts: &[(u64, u64, u64)]| {
            !parts.is_empty() && regions::regions().count() + parts.len() <= regions::MOST_REGIONS
        };
        if !fits(&parts) {
            self.staged.remove_id(id);
            self.commit_watches();
            return false;
        }
        // (Pages to which the kernel writes without a call stay as they are: of restartable sequences.)
        let watched: Vec<_> = parts.iter().map(|p| (p.0, p.1)).collect();
        let holes = ranges::outside(&[(start, end)], &watched);
        holes.into_iter().for_each(regions::refuse);
        for (from, to, distance) in &parts {
            regions::add_region((*from, *to), *distance, true);
            shadow::unpoison(*from, to - from);
        }
        for (from, to, _) in parts {
            let stopped = self.world.stopped();
            self.edits
                .accesses
                .classes
                .classify_checked(stopped, from, to);
        }
        self.annotations.watched.push(((start, end), id));
        true
    }
}

/// Pages of an anonymous mapping that touch a read-only file mapping. Memory beside watched memory may be moved with
/// it, and a moved page would no longer belong to its file. (A later attach looks for the starts of files.)
fn edges(vma: &Vma, maps: &Snapshot) -> Vec<(u64, u64)> {
    let is_fixed = |v: &&Vma| v.kind == VmaKind::File && v.prot & PROT_WRITE == 0;
    let mut edges = Vec::new();
    for next in maps.vmas.iter().filter(is_fixed) {
        if vma.kind == VmaKind::Anonymous && next.start == vma.end {
            edges.push((vma.end - PAGE_SIZE, vma.end));
        }
        if vma.kind == VmaKind::Anonymous && next.end == vma.start {
            edges.push((vma.start, vma.start + PAGE_SIZE));
        }
    }
    edges
}

fn may_be_watched(vma: &Vma) -> bool {
    let data = PROT_READ | PROT_WRITE;
    let memory = matches!(vma.kind, VmaKind::Anonymous | VmaKind::File);
    memory && !vma.shared && vma.prot & data == data
}

/// The parts of a range that are not watched yet.
fn unwatched(part: (u64, u64)) -> Vec<(u64, u64)> {
    match arena::has(part.0) {
        true => Vec::new(),
        false => ranges::outside(&[part], &regions::regions().collect::<Vec<_>>()),
    }
}

/// Returns whether the file's names contain the beginning of such names.
fn has_text(at: u64, len: u64) -> bool {
    const BEGIN: &[u8] = b"__asan_";
    const MOST: u64 = 64 << 20;
    let mut texts = alloc::vec![0; len.min(MOST) as usize];
    let read = text::read(at, &mut texts);
    let texts = texts.get(..read).unwrap_or_default();
    texts
        .split(|byte| *byte == 0)
        .any(|text| text.starts_with(BEGIN))
}

/// The slots of such functions.
fn asan_slots(object: &Object) -> Vec<Slot> {
    const DT_STRSZ: u64 = 10;
    let [texts, len] = object.dynamic([DT_STRTAB, DT_STRSZ]);
    let (Some(texts), Some(len)) = (texts, len) else {
        return Vec::new();
    };
    // (There may be very many relocations.)
    if !has_text(object.loaded(texts), len) {
        return Vec::new();
    }
    slots::named::<LONGEST, _>(object, |name| {
        let known = FUNCTIONS.into_iter().find(|(known, _)| *known == name);
        known.map(|(_, of)| of)
    })
}
