//! Where in the source an instruction lies.

use crate::demangle::demangle;
use crate::location::Location;
use crate::maps::{Module, Program};
use crate::meter::Work;
use addr2line::{LookupContinuation, LookupResult};
use std::path::PathBuf;
use std::rc::Rc;

impl Program {
    /// Where an instruction lies; what is nowhere has its address only.
    pub fn locate(&self, pc: u64) -> Rc<Location> {
        if let Some(known) = self.places.borrow().get(&pc) {
            return known.clone();
        }
        let location = Rc::new(match self.module_at(pc) {
            Some(module) => locate_in(module, pc),
            None => Location {
                pc,
                ..Location::default()
            },
        });
        self.places.borrow_mut().insert(pc, location.clone());
        location
    }

    /// A return address: the place is that of the call before it.
    pub fn locate_caller(&self, return_address: u64) -> Location {
        let call = self.locate(return_address.wrapping_sub(1));
        let offset = if call.function.is_some() {
            call.offset + 1
        } else {
            0
        };
        Location {
            pc: return_address,
            offset,
            ..Location::clone(&call)
        }
    }

    /// Run-time address of a function, for breakpoints by name.
    pub fn function(&self, name: &str) -> Option<u64> {
        use crate::elf_symbols::SymbolSort::Function;
        self.modules.iter().find_map(|module| {
            let symbols = module.object.symbols();
            let _work = Work::through(symbols.iter().count() as u64);
            let by_name = symbols.find(name).into_iter().find(|s| s.sort == Function);
            let symbol = by_name.or_else(|| {
                // C++ and Rust: without arguments, or the end of the path.
                let fits = |full: &str| {
                    full.split('(')
                        .next()
                        .is_some_and(|path| path == name || path.ends_with(&format!("::{name}")))
                };
                symbols
                    .iter()
                    .find(|s| {
                        s.sort == Function && s.name.starts_with("_") && fits(&demangle(s.name))
                    })
                    .copied()
            })?;
            Some(symbol.addr.wrapping_add(module.bias))
        })
    }
}

fn locate_in(module: &Module, pc: u64) -> Location {
    let linked = pc.wrapping_sub(module.bias);
    let mut location = Location {
        pc,
        object: Some(module.object.name().to_string()),
        ..Location::default()
    };
    if let Some(symbol) = module.object.symbols().function_at(linked) {
        location.function = Some(demangle(symbol.name));
        location.offset = linked - symbol.addr;
    }
    let info = module.object.debug().info.as_ref();
    let Some((info, lines)) = info.and_then(|info| Some((info, info.lines()?))) else {
        return location;
    };
    let _work = Work::look_up(info.size);
    let mut found = lines.find_frames(linked);
    let found = loop {
        found = match found {
            LookupResult::Output(found) => break found,
            LookupResult::Load { load, continuation } => {
                let file = info
                    .split
                    .find(&load.parent, load.dwo_id, load.comp_dir, load.path);
                continuation.resume(file)
            }
        };
    };
    let Ok(mut frames) = found else {
        return location;
    };
    let (mut innermost, mut outermost) = (None, None);
    while let Ok(Some(frame)) = frames.next() {
        let name = frame
            .function
            .as_ref()
            .and_then(|f| f.raw_name().ok().map(|n| demangle(&n)));
        if innermost.is_none() {
            if let Some(place) = frame.location {
                location.file = place.file.map(str::to_string);
                location.line = place.line.filter(|l| *l > 0);
            }
            innermost = Some(name.clone());
        }
        outermost = name;
    }
    location.inlined = innermost
        .flatten()
        .filter(|name| Some(name) != outermost.as_ref());
    if location.function.is_none() {
        location.function = outermost;
        location.offset = 0;
    }
    location
}

/// An instruction as linkers and other tools know it.
#[derive(Clone, Debug)]
pub struct Spot {
    /// As the symbol table has it, in C++ and Rust mangled.
    pub symbol: Option<&'static str>,
    /// The file that was loaded.
    pub object: PathBuf,
    /// The address in that file.
    pub linked: u64,
}

impl Program {
    /// An instruction, or (`caller`) a return address, which belongs to the function that makes the call.
    pub fn spot(&self, pc: u64, caller: bool) -> Option<Spot> {
        let within = pc.wrapping_sub(u64::from(caller));
        let module = self.module_at(within)?;
        let symbols = module.object.symbols();
        let symbol = symbols.function_at(within.wrapping_sub(module.bias));
        Some(Spot {
            symbol: symbol.map(|s| s.name),
            object: module.object.path.clone(),
            linked: pc.wrapping_sub(module.bias),
        })
    }
}
