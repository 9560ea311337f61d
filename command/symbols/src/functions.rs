//! Functions of a module by name with their ranges, for code that replaces some of them.

use crate::elf_symbols::SymbolSort;
use crate::maps::{Module, Program};
use crate::meter::Work;
use crate::slice::Slice;
use gimli::{BaseAddresses, EhFrame, UnwindSection};
use std::ops::Range;
use std::rc::Rc;

impl Module {
    /// The names of all functions, as linked, and their ranges in memory.
    pub fn functions(&self) -> impl Iterator<Item = (&'static str, Range<u64>)> + '_ {
        let symbols = self.object.symbols();
        let _work = Work::through(symbols.iter().count() as u64);
        let functions = symbols
            .iter()
            .filter(|s| s.sort == SymbolSort::Function && !s.name.ends_with("@plt"));
        functions.map(|s| {
            let name = s.name.split('@').next().unwrap_or(s.name);
            let len = match s.len {
                0 => symbols.extent_at(s.addr),
                len => len,
            };
            let start = s.addr.wrapping_add(self.bias);
            (name, start..start.saturating_add(len))
        })
    }

    /// The range in memory of the function at this address of the file, by its name or without. `None` if no function
    /// is known to start there.
    pub fn function_from(&self, linked: u64) -> Option<Range<u64>> {
        let start = linked.wrapping_add(self.bias);
        if let Some((_, range)) = self.functions().find(|(_, r)| r.start == start) {
            return Some(range);
        }
        let (data, address) = self.object.unwind_table()?;
        let table = EhFrame::from(Slice::new(data));
        let bases = BaseAddresses::default().set_eh_frame(address);
        let described = table
            .fde_for_address(&bases, linked, EhFrame::cie_from_offset)
            .ok()?;
        (described.initial_address() == linked)
            .then(|| start..start.saturating_add(described.len()))
    }
}

impl Program {
    /// The program's own file if it is statically linked: it requests no dynamic loader and is not one itself.
    pub fn static_executable(&self) -> Option<&Rc<Module>> {
        let own = self.executable()?;
        let is_loader = ulpf_lib::runtime_library::is_runtime(own.object.name().as_bytes());
        (!is_loader && !own.object.needs_loader).then_some(own)
    }
}
