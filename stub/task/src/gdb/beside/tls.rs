//! `qGetTLSAddr`: where a thread has its thread-local variables (Drepper, "ELF Handling For Thread-Local Storage",
//! variant II).
//!
//! ```text
//! fs base ─▶ thread control block ─ +8 ─▶ DTV: an entry for each module with thread-locals ─▶ its block
//! ```
//! The C library decides which entry belongs to a module. glibc publishes it to debuggers as numbers in its dynamic
//! symbols, `_thread_db_*` (nptl_db/structs.def, which libthread_db reads). In musl, a module with
//! thread-locals has its number from the order of the list. The program itself is the first module. Its block ends at the thread control
//! block.

use super::image::{self, Headers, PT_TLS, word, words};
use super::libraries;
use crate::inferior::{Inferior, Tid};
use ulpf_lib::addr::USER_END;

/// Why there is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAddress {
    NoThreadLocals,
    NotMadeYet,
    UnknownLibrary,
}

impl NoAddress {
    pub fn why(self) -> &'static str {
        match self {
            NoAddress::NoThreadLocals => "this module has no thread-local variables",
            NoAddress::NotMadeYet => {
                "the thread has not used the thread-local variables of this library yet, so it has none of them"
            }
            NoAddress::UnknownLibrary => {
                "thread-local variables are found with glibc and musl only, once they have started the thread"
            }
        }
    }
}

/// The address of the byte at `offset` in the thread-locals of the module whose `link_map` is at `map`; 0: the
/// program itself.
pub fn address(inf: &mut dyn Inferior, tid: Tid, offset: u64, map: u64) -> Result<u64, NoAddress> {
    let unknown = NoAddress::UnknownLibrary;
    let (fs, _) = inf.fs_gs_base(tid).ok_or(unknown)?;
    // The thread control block begins with its own address.
    if fs == 0 || word(inf, fs) != Some(fs) {
        return Err(unknown);
    }
    let maps = libraries::link_maps(inf);
    let block = match maps.first() {
        Some(program) if map != 0 && map != program.at => match glibc(inf, &maps) {
            Some(library) => library.block(inf, fs, map),
            None => musl_block(inf, fs, &maps, map),
        }?,
        _ => programs_block(inf, fs)?,
    };
    Ok(block.wrapping_add(offset))
}

/// As the linker has laid it out: `tlsoffset` of the first module.
fn programs_block(inf: &mut dyn Inferior, fs: u64) -> Result<u64, NoAddress> {
    let headers = Headers::of_program(inf).ok_or(NoAddress::UnknownLibrary)?;
    let tls = headers.find(PT_TLS).ok_or(NoAddress::NoThreadLocals)?;
    let mask = tls.align.max(1).wrapping_sub(1);
    // The smallest distance of at least its size that puts the first byte where its alignment wants it.
    let gap = tls.memsz.wrapping_add(tls.vaddr).wrapping_neg() & mask;
    Ok(fs.wrapping_sub(tls.memsz.wrapping_add(gap)))
}

/// Layout that glibc publishes about itself.
struct Glibc {
    /// Offsets within `link_map`.
    number: u64,
    offset: u64,
    /// Address of the list of all modules (`dtv_slotinfo_list`).
    modules: Option<u64>,
}

/// `Some`: it is glibc.
fn glibc(inf: &mut dyn Inferior, maps: &[libraries::LinkMap]) -> Option<Glibc> {
    let mut field = |name: &[u8]| {
        let at = maps
            .iter()
            .find_map(|m| image::symbol(inf, m.base, m.dynamic, name))?;
        // Bits, elements, offset: three times 32 bits.
        image::half(inf, at.checked_add(8)?).map(u64::from)
    };
    let number = field(b"_thread_db_link_map_l_tls_modid")?;
    let offset = field(b"_thread_db_link_map_l_tls_offset")?;
    let list = field(b"_thread_db_rtld_global__dl_tls_dtv_slotinfo_list");
    let modules = list.and_then(|offset| {
        let global = maps
            .iter()
            .find_map(|m| image::symbol(inf, m.base, m.dynamic, b"_rtld_global"))?;
        word(inf, global.checked_add(offset)?)
    });
    Some(Glibc {
        number,
        offset,
        modules,
    })
}

impl Glibc {
    fn block(&self, inf: &mut dyn Inferior, fs: u64, map: u64) -> Result<u64, NoAddress> {
        let unknown = NoAddress::UnknownLibrary;
        let at = |offset: u64| map.checked_add(offset).ok_or(unknown);
        let number = word(inf, at(self.number)?).ok_or(unknown)?;
        if number == 0 {
            return Err(NoAddress::NoThreadLocals);
        }
        // Beside the program's own (static TLS): every thread has it from its start.
        let offset = word(inf, at(self.offset)?).ok_or(unknown)?;
        if (1..USER_END).contains(&offset) {
            return Ok(fs.wrapping_sub(offset));
        }
        // dtv[-1]: how many entries; dtv[0]: the generation of modules that the thread knows.
        let dtv = word(inf, fs + 8).ok_or(unknown)?;
        let [entries, _, generation] = words(inf, dtv.wrapping_sub(16)).ok_or(unknown)?;
        if number > entries || self.generation(inf, number).is_some_and(|g| g > generation) {
            return Err(NoAddress::NotMadeYet);
        }
        match word(inf, dtv.wrapping_add(number.wrapping_mul(16))).ok_or(unknown)? {
            0 | u64::MAX => Err(NoAddress::NotMadeYet),
            block => Ok(block),
        }
    }

    /// Since when a module has had this number: an entry of a thread that has not noticed yet is another module's.
    fn generation(&self, inf: &mut dyn Inferior, number: u64) -> Option<u64> {
        const MAX_PARTS: usize = 1000;
        let mut at = self.modules?;
        let mut before = 0;
        for _ in 0..MAX_PARTS {
            let [len, next] = words(inf, at)?;
            if number - before < len {
                return word(inf, at.checked_add(16 + 16 * (number - before))?);
            }
            before += len;
            at = next;
        }
        None
    }
}

fn musl_block(
    inf: &mut dyn Inferior,
    fs: u64,
    maps: &[libraries::LinkMap],
    map: u64,
) -> Result<u64, NoAddress> {
    let unknown = NoAddress::UnknownLibrary;
    let mut number = 0;
    for (n, m) in maps.iter().enumerate() {
        let headers = match n {
            0 => Headers::of_program(inf),
            _ => Headers::of_library(inf, m.base),
        };
        let has = headers.is_some_and(|h| h.find(PT_TLS).is_some());
        number += u64::from(has);
        if m.at == map {
            let dtv = word(inf, fs + 8).ok_or(unknown)?;
            // The first element says how many there are.
            let count = word(inf, dtv).ok_or(unknown)?;
            return match (has, number <= count) {
                (false, _) => Err(NoAddress::NoThreadLocals),
                (true, false) => Err(NoAddress::NotMadeYet),
                (true, true) => word(inf, dtv.wrapping_add(8 * number)).ok_or(unknown),
            };
        }
    }
    Err(unknown)
}
