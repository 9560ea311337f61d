//! The slots by which a file's code reaches functions of other files (R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT). Slots of
//! functions that copy lead to a check of the arguments first (`stub/handlers/src/check/overlaps.rs`).

use alloc::vec::Vec;

use core::sync::atomic::Ordering::Relaxed;
use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::guard::maps::Snapshot;

use ulpf_stub_handlers::check::entries::{self, Function};
use ulpf_stub_handlers::check::{overlaps, thunks};
use ulpf_stub_handlers::stopped::Stopped;

use super::functions::{DT_STRTAB, Object, Pages, block, bytes, u64_of};
use super::text;

/// The functions, and what checks their arguments.
pub const COPIES: [(&[u8], Function); 14] = [
    (b"memcpy", Function::Memcpy),
    (b"__memcpy_chk", Function::Memcpy),
    (b"mempcpy", Function::Mempcpy),
    (b"__mempcpy_chk", Function::Mempcpy),
    (b"strcpy", Function::Strcpy),
    (b"__strcpy_chk", Function::Strcpy),
    (b"stpcpy", Function::Stpcpy),
    (b"__stpcpy_chk", Function::Stpcpy),
    (b"strcat", Function::Strcat),
    (b"__strcat_chk", Function::Strcat),
    (b"strncpy", Function::Strncpy),
    (b"__strncpy_chk", Function::Strncpy),
    (b"strncat", Function::Strncat),
    (b"__strncat_chk", Function::Strncat),
];
const LONGEST: usize = 16;

const DT_PLTRELSZ: u64 = 2;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_RELACOUNT: u64 = 0x6fff_fff9;
const ENTRY: u64 = 24;
/// Number of relocations that are read at once.
const SOME: u64 = 128;

/// The relocations of a file that name a symbol or call a resolver: address, kind and symbol, and addend.
pub fn relocations(object: &Object) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
    let tags = [DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_RELACOUNT];
    let [plt, plt_len, all, all_len, plain] = object.dynamic(tags);
    // The linker puts relocations first that only add the load address: half a million of them in a large library.
    let plain = plain.unwrap_or(0).min(all_len.unwrap_or(0) / ENTRY);
    let all = all.map(|at| at.wrapping_add(plain * ENTRY));
    let all_len = all_len.map(|len| len - plain * ENTRY);
    let tables = [(plt, plt_len), (all, all_len)].into_iter();
    let tables = tables.filter_map(|(at, len)| Some((object.loaded(at?), len? / ENTRY)));
    tables.flat_map(|(at, n)| {
        let readings = (0..n).step_by(SOME as usize);
        readings.flat_map(move |from| {
            let some = block(
                at.wrapping_add(from * ENTRY),
                ((n - from).min(SOME) * ENTRY) as usize,
            );
            let entries = some.chunks_exact(ENTRY as usize);
            let entries = entries.filter_map(|entry| {
                Some((u64_of(entry, 0)?, u64_of(entry, 8)?, u64_of(entry, 16)?))
            });
            entries.collect::<Vec<_>>()
        })
    })
}

/// The file's slots for functions whose names `known` knows: their addresses, and its results. Names have fewer than
/// `MOST` bytes.
pub fn named<const MOST: usize, T>(
    object: &Object,
    known: impl FnMut(&[u8]) -> Option<T>,
) -> Vec<(u64, T)> {
    named_of::<MOST, T>(object, &[GLOB_DAT, JUMP_SLOT], known)
}

const GLOB_DAT: u64 = 6;
const JUMP_SLOT: u64 = 7;

/// As [`named`], of slots of these kinds.
fn named_of<const MOST: usize, T>(
    object: &Object,
    kinds: &[u64],
    mut known: impl FnMut(&[u8]) -> Option<T>,
) -> Vec<(u64, T)> {
    let [texts, symbols] = object.dynamic([DT_STRTAB, DT_SYMTAB]);
    let (Some(texts), Some(symbols)) = (texts, symbols) else {
        return Vec::new();
    };
    let (texts, symbols) = (object.loaded(texts), object.loaded(symbols));
    let (mut found, mut pages) = (Vec::new(), Pages::default());
    for (offset, info, _) in relocations(object) {
        if !kinds.contains(&(info & 0xffff_ffff)) {
            continue;
        }
        let name = pages
            .bytes(symbols.wrapping_add((info >> 32) * 24))
            .and_then(|at| pages.bytes::<MOST>(texts.wrapping_add(u32::from_le_bytes(at).into())));
        let of = name.and_then(|name| {
            let end = name.iter().position(|byte| *byte == 0)?;
            known(name.get(..end)?)
        });
        found.extend(of.map(|of| (object.bias.wrapping_add(offset), of)));
    }
    found
}

/// The file's slots for functions that copy. In a program that we can leave, only slots for calls: from others it may
/// have taken the function's address, through which it would still reach us.
fn copies(object: &Object) -> Vec<(u64, (&'static [u8], Function))> {
    let kinds: &[u64] = match entries::PASSES.load(Relaxed) {
        true => &[JUMP_SLOT],
        false => &[GLOB_DAT, JUMP_SLOT],
    };
    named_of::<LONGEST, _>(object, kinds, |name| {
        COPIES.into_iter().find(|(known, _)| *known == name)
    })
}

/// The file's slots for such functions lead straight to them again.
pub fn restore(stopped: &mut Stopped, object: &Object) {
    for (slot, _) in copies(object) {
        let now = bytes::<8>(slot).map(u64::from_le_bytes);
        if let Some(n) = now.and_then(thunks::number) {
            let _ = text::write(stopped, slot, &thunks::leads_to(n).to_le_bytes());
        }
    }
}

/// Redirects the file's slots for such functions to a check of their arguments. `chosen` returns the address of the
/// function of that name that the C library has chosen. `false`: the file was not relocated yet.
pub fn look(
    stopped: &mut Stopped,
    object: &Object,
    maps: &Snapshot,
    chosen: impl Fn(&[u8]) -> Option<u64>,
) -> bool {
    let mut complete = true;
    let copies = copies(object);
    for (slot, (name, does)) in copies {
        let Some(now) = bytes::<8>(slot).map(u64::from_le_bytes) else {
            continue;
        };
        if let Some(n) = thunks::number(now) {
            complete &= !(object.start..object.end).contains(&thunks::leads_to(n));
            continue;
        }
        // Not relocated yet: an address in the file, at which an executable may have code of its own.
        let in_file = now.wrapping_add(object.bias);
        if object.bias != 0 && (object.start..object.end).contains(&in_file) {
            complete = false;
            continue;
        }
        let is_code = |at: u64| maps.at(at).is_some_and(|v| v.prot & PROT_EXEC != 0);
        if !is_code(now) {
            complete = false;
            continue;
        }
        // A slot that is bound at its first call leads back into its file until then. If its target is unknown, the
        // loader overwrites our thunk at that call. The next search places one again.
        let unbound = (object.start..object.end).contains(&now);
        let known = if unbound { chosen(name) } else { Some(now) };
        complete &= known.is_some();
        if let Some(thunk) = overlaps::add(does, known.unwrap_or(now)) {
            let _ = text::write(stopped, slot, &thunk.to_le_bytes());
        }
    }
    complete
}
