//! `qXfer:libraries-svr4`: the dynamic linker's list of shared objects (`<link.h>`, as gdbserver's
//! linux-low.cc walks it).
//!
//! ```text
//! auxv: AT_PHDR ─▶ program headers ─ PT_DYNAMIC ─▶ DT_DEBUG ─▶ r_debug ─ r_map ─▶ link_map ─ l_next ─▶ …
//!                                                               └ r_next (one per dlmopen namespace)
//! ```

use super::image::{self, Headers, PT_DYNAMIC, word, words};
use crate::inferior::Inferior;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use ulpf_lib::TargetAddr;
use ulpf_rsp::hex_number;
use ulpf_rsp::xfer::xml_text;

/// Bounds against lists that the program has scribbled over.
const MAX_LIBRARIES: usize = 10_000;
const MAX_NAMESPACES: usize = 64;
const MAX_NAME: usize = 4096;

/// The list as XML. `annex`: empty, or `start=LM;prev=LM[;lmid=DEBUG]` to continue from a known entry. `None`: the
/// program that the kernel has started has no DT_DEBUG, as with the dynamic linker itself (`ld.so PROGRAM`). GDB then
/// finds the list by symbols.
pub fn list(inf: &mut dyn Inferior, annex: &[u8]) -> Option<Vec<u8>> {
    let mut x = String::from("<library-list-svr4 version=\"1.0\"");
    let mut entries = String::new();
    match start_of(annex) {
        Some(from) => {
            walk(inf, from, &mut entries);
        }
        None => {
            let at = r_debug_location(inf)?;
            let mut debug = word(inf, at);
            for namespace in 0..MAX_NAMESPACES {
                let Some(at) = debug.filter(|at| *at != 0) else {
                    break;
                };
                let Some([version, map]) = words(inf, at) else {
                    break;
                };
                let first = Link {
                    at: map,
                    prev: 0,
                    lmid: at,
                };
                if namespace == 0 && map != 0 {
                    // The program itself; its name is empty and GDB knows it already.
                    let _ = write!(x, " main-lm=\"{map:#x}\"");
                    let next = word(inf, map + L_NEXT).unwrap_or(0);
                    walk(
                        inf,
                        Link {
                            at: next,
                            prev: map,
                            lmid: at,
                        },
                        &mut entries,
                    );
                } else {
                    walk(inf, first, &mut entries);
                }
                // r_next exists from version 2 on (r_version is an int).
                debug = if version as u32 >= 2 {
                    word(inf, at + R_NEXT)
                } else {
                    None
                };
            }
        }
    }
    x.push('>');
    x.push_str(&entries);
    x.push_str("</library-list-svr4>");
    Some(x.into_bytes())
}

struct Link {
    at: u64,
    prev: u64,
    /// Address of the namespace's `r_debug`.
    lmid: u64,
}

fn start_of(annex: &[u8]) -> Option<Link> {
    let field = |name: &[u8]| {
        annex
            .split(|b| *b == b';')
            .find_map(|f| hex_number(f.strip_prefix(name)?))
    };
    let at = field(b"start=").filter(|at| *at != 0)?;
    Some(Link {
        at,
        prev: field(b"prev=").unwrap_or(0),
        lmid: field(b"lmid=").unwrap_or(0),
    })
}

// struct link_map
const L_NEXT: u64 = 24;
// struct r_debug_extended
const R_NEXT: u64 = 40;

fn walk(inf: &mut dyn Inferior, from: Link, x: &mut String) {
    let Link {
        mut at,
        mut prev,
        lmid,
    } = from;
    for _ in 0..MAX_LIBRARIES {
        if at == 0 {
            break;
        }
        let Some([addr, name, ld, next, back]) = words(inf, at) else {
            break;
        };
        if back != prev {
            break; // the list is being changed, or is none
        }
        let name = string(inf, name);
        if !name.is_empty() {
            let _ = write!(
                x,
                "<library name=\"{}\" lm=\"{at:#x}\" l_addr=\"{addr:#x}\" l_ld=\"{ld:#x}\"",
                xml_text(&name)
            );
            if lmid != 0 {
                let _ = write!(x, " lmid=\"{lmid:#x}\"");
            }
            x.push_str("/>");
        }
        prev = at;
        at = next;
    }
}

fn string(inf: &mut dyn Inferior, at: u64) -> String {
    let mut name = Vec::new();
    let mut chunk = [0; 64];
    while name.len() < MAX_NAME {
        let got = inf.read_memory(TargetAddr(at + name.len() as u64), &mut chunk);
        match chunk[..got].iter().position(|b| *b == 0) {
            Some(end) => {
                name.extend_from_slice(&chunk[..end]);
                break;
            }
            None if got == chunk.len() => name.extend_from_slice(&chunk),
            None => break,
        }
    }
    String::from_utf8_lossy(&name).into_owned()
}

/// Value of DT_DEBUG in the program's dynamic section; 0 before the dynamic linker has run.
fn r_debug(inf: &mut dyn Inferior) -> Option<u64> {
    let at = r_debug_location(inf)?;
    word(inf, at)
}

/// Where the program's dynamic section keeps the value of DT_DEBUG (LLDB's "shared library info").
pub fn r_debug_location(inf: &mut dyn Inferior) -> Option<u64> {
    const DT_DEBUG: u64 = 21;
    let headers = Headers::of_program(inf)?;
    let at = headers.base.wrapping_add(headers.find(PT_DYNAMIC)?.vaddr);
    image::dynamic(inf, at)
        .into_iter()
        .find_map(|(value_at, tag, _)| (tag == DT_DEBUG).then_some(value_at))
}

/// A `link_map`: the program itself or a shared object.
pub struct LinkMap {
    pub at: u64,
    /// Load bias, which is added to its addresses.
    pub base: u64,
    /// Its dynamic section.
    pub dynamic: u64,
}

/// The link maps of the first namespace, the program first. Empty for a static program, or before the dynamic linker
/// has run.
pub fn link_maps(inf: &mut dyn Inferior) -> Vec<LinkMap> {
    let mut all = Vec::new();
    let debug = r_debug(inf).filter(|at| *at != 0);
    let Some([_, mut at]) = debug.and_then(|debug| words(inf, debug)) else {
        return all;
    };
    while at != 0 && all.len() < MAX_LIBRARIES {
        let Some([base, _, dynamic, next]) = words(inf, at) else {
            break;
        };
        all.push(LinkMap { at, base, dynamic });
        at = next;
    }
    all
}
