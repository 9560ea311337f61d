//! Source locations of instructions.

use crate::demangle::demangle;
use crate::dwarf_types::is_fortran;
use crate::location::{Chain, Location};
use crate::maps::{Module, Program};
use crate::meter::Work;
use addr2line::{LookupContinuation, LookupResult};
use std::path::PathBuf;
use std::rc::Rc;

impl Program {
    fn chain(&self, pc: u64) -> Chain {
        if let Some(known) = self.places.borrow().get(&pc) {
            return known.clone();
        }
        let chain = match self.module_at(pc) {
            Some(module) => locate_in(module, pc),
            None => Chain {
                innermost: Rc::new(Location {
                    pc,
                    ..Location::default()
                }),
                around: Rc::default(),
            },
        };
        self.places.borrow_mut().insert(pc, chain.clone());
        chain
    }

    /// The location of an instruction. Unknown code has its address only.
    pub fn locate(&self, pc: u64) -> Rc<Location> {
        self.chain(pc).innermost
    }

    /// The call sites of the functions inlined at an instruction ([`Location::inlined`]), innermost first. The last one
    /// is in the function that contains the instruction. Empty if no function is inlined there. `caller`: `pc` is a
    /// return address.
    pub fn around(&self, pc: u64, caller: bool) -> Vec<Location> {
        let around = self.chain(pc.wrapping_sub(u64::from(caller))).around;
        let of = |location: &Location| match caller {
            true => after_call(location, pc),
            false => location.clone(),
        };
        around.iter().map(of).collect()
    }

    /// The location of the call before a return address.
    pub fn locate_caller(&self, return_address: u64) -> Location {
        after_call(&self.locate(return_address.wrapping_sub(1)), return_address)
    }

    /// Size in bytes of the type `name`, if a module describes it. Names with namespaces are not searched.
    pub fn size_of(&self, name: &str) -> Option<u64> {
        if name.contains("::") {
            return None;
        }
        self.modules.iter().find_map(|module| {
            let die = module.object.index()?.complete_type(name)?;
            let size = module.types.get(die)?.size;
            (size > 0).then_some(size)
        })
    }

    /// Run-time address of a function, for breakpoints by name.
    pub fn function(&self, name: &str) -> Option<u64> {
        self.executable_first().find_map(|module| {
            let first = module.functions_called(name).into_iter().next()?;
            Some(first.start.wrapping_add(module.bias))
        })
    }

    /// All modules, the executable first.
    pub(crate) fn executable_first(&self) -> impl Iterator<Item = &Rc<Module>> {
        let executable = self.modules.iter().filter(|module| module.is_executable);
        let others = self.modules.iter().filter(|module| !module.is_executable);
        executable.chain(others)
    }
}

/// The location of the return address after a call.
fn after_call(call: &Location, return_address: u64) -> Location {
    Location {
        pc: return_address,
        offset: match call.function {
            Some(_) => call.offset + 1,
            None => 0,
        },
        ..call.clone()
    }
}

fn locate_in(module: &Module, pc: u64) -> Chain {
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
    let alone = |location| Chain {
        innermost: Rc::new(location),
        around: Rc::default(),
    };
    let info = module.object.debug().info.as_ref();
    let Some((info, lines)) = info.and_then(|info| Some((info, info.lines()?))) else {
        return alone(location);
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
        return alone(location);
    };
    let mut all = Vec::new();
    let mut fortran = false;
    while let Ok(Some(frame)) = frames.next() {
        let language = frame.function.as_ref().and_then(|f| f.language);
        fortran = language.is_some_and(is_fortran);
        let name = frame
            .function
            .as_ref()
            .and_then(|f| f.raw_name().ok().map(|n| demangle(&n)));
        let place = frame.location.map(|place| {
            let line = place.line.filter(|l| *l > 0);
            (place.file.map(str::to_string), line)
        });
        all.push((name, place.unwrap_or_default()));
        if all.len() > MOST_INLINED {
            break;
        }
    }
    let outermost = all.last().and_then(|(name, _)| name.clone());
    match (&location.function, &outermost) {
        (None, _) => {
            location.function.clone_from(&outermost);
            location.offset = 0;
        }
        // (Of `plain_` and `MAIN__`, the linker's names are another thing than the program's.)
        (Some(linked), Some(name)) if fortran && !linked.contains("::") => {
            location.function = Some(name.strip_suffix('_').unwrap_or(name).to_string());
        }
        (Some(linked), Some(name)) if is_nested(linked, name) => {
            location.function.clone_from(&outermost);
        }
        _ => {}
    }
    let last = all.len().saturating_sub(1);
    let mut chain = all
        .into_iter()
        .enumerate()
        .map(|(n, (name, (file, line)))| Location {
            inlined: name.filter(|name| n < last && Some(name) != outermost.as_ref()),
            file,
            line,
            ..location.clone()
        });
    let innermost = chain.next().unwrap_or_else(|| location.clone());
    Chain {
        innermost: Rc::new(innermost),
        around: chain.collect(),
    }
}

/// Whether the linker's name is that of a function within another one: `inner.0`.
fn is_nested(linked: &str, name: &str) -> bool {
    let number = linked
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('.'));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Limit of functions inlined in each other; debug information with more is not believed.
const MOST_INLINED: usize = 256;

/// An instruction in the terms of linkers and other tools.
#[derive(Clone, Debug)]
pub struct Spot {
    /// The symbol table's name; for C++ and Rust it is mangled.
    pub symbol: Option<&'static str>,
    /// The file that was loaded.
    pub object: PathBuf,
    /// The address in that file.
    pub linked: u64,
}

impl Program {
    /// The symbol and file of an instruction. `caller`: `pc` is a return address, which belongs to the calling
    /// function.
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
