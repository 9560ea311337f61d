//! Names to addresses, addresses to names, bytes to values.
//!
//! ```text
//!     "tab[2].next->x:rw" ── spec ──> Spec ── resolve ──> Watched { address, length, kind, type }, one for each place
//!                                                │ containers   what `v[*]` and `*owner` mean: containers.json
//!                     maps ── Program, Module ───┤ index        variables of the debug information, by name
//!                            (what is loaded)    ├ dwarf_types  sizes, members, elements
//!                                                └ object       ELF file: elf_symbols, debug (source, split, fetch)
//!     "if $new > 3 from f" ── filter, condition ──> words and bytecode for the stub
//!     PC      ── pc ──> Location { function + offset, file:line, object }
//!     FUNCTION, FILE:LINE ── lines ──> PCs
//!     bytes   ── value ──> "tab[2].x", "41"
//!     Watched ── stored ─> what a file keeps, to name and show without the program
//! ```
//!
//! Files may be hostile. `image` limits how much of them is read, `meter` limits the work, and `demangle` limits the
//! length of names. Files may be large: `slice` is a section as all readers see it, and `stored_section` keeps the
//! parts that were read.
//!
//! This crate reads the program only through [`Memory`], and contains no unsafe code.
#![forbid(unsafe_code)]

mod brackets;
mod closest;
mod condition;
mod containers;
mod debug;
pub mod demangle;
mod described;
mod descriptor;
mod dwarf;
mod dwarf_types;
mod elf;
mod elf_symbols;
mod fetch;
mod filter;
mod frame_locals;
mod functions;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod image;
mod index;
mod largest;
mod linespec;
mod location;
mod maps;
mod memory;
mod meter;
mod object;
mod parsed_watch;
mod pc;
mod place;
mod problem;
mod resolve;
mod slice;
mod source;
mod spec;
mod split;
pub mod stored;
mod stored_section;
mod types;
mod value;

pub use demangle::demangle;
pub use described::Described;
pub use filter::PLAIN;
pub use head::{HEAD, Head, Located};
pub use largest::Global;
pub use location::Location;
pub use maps::{Loaded, Module, Program};
pub use memory::Memory;
pub use parsed_watch::ParsedWatch;
pub use pc::Spot;
pub use problem::Problem;
pub use resolve::Watched;
pub use spec::{Scope, Spec};
pub use types::Bits;
pub use value::{Part, Value};

#[cfg(test)]
mod tests;
