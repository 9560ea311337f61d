//! Names of watches and places. The owner of a session knows what the user typed; for other watches (gdb's own), the
//! variable at the address is looked up.

use super::hit::entry::Named;
use super::hit::place;
use super::memory::LazyMemory;
use std::collections::HashMap;
use std::rc::Rc;
use ulpf_area::sessions::Elsewhere;
use ulpf_lib::WatchKind;
use ulpf_lib::ring::{Hit, hit_flags};
use ulpf_symbols::{Memory, Program, Spec, Watched};

/// The caches are emptied when they have this many entries.
const CACHE_LIMIT: usize = 1 << 15;

/// The names of one program's watches and places.
pub struct Names {
    pid: i32,
    /// The loaded modules.
    pub program: Program,
    memory: LazyMemory,
    /// By the stub's number, and the moment at which the watch was set.
    watches: HashMap<(u32, u64), Rc<Watched>>,
    /// By the watch's number, offset in it, length.
    parts: HashMap<(u32, u64, u32), Rc<Named>>,
    places: HashMap<u64, Place>,
    callers: HashMap<u64, Rc<place::Place>>,
}

/// The place of an instruction, in text for people.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// `add+0x12 at stray.c:16`
    pub text: Rc<str>,
    /// `add+0x12`
    pub function: Rc<str>,
    /// `stray.c:16`, or the object where no line is known
    pub line: Rc<str>,
    /// The structured form.
    pub full: Rc<place::Place>,
}

impl Names {
    /// Names for a program of this machine.
    pub(crate) fn of(pid: i32) -> Names {
        Names {
            pid,
            program: Program::of_process(pid).unwrap_or_default(),
            memory: LazyMemory::of(pid),
            watches: HashMap::new(),
            parts: HashMap::new(),
            places: HashMap::new(),
            callers: HashMap::new(),
        }
    }

    /// Names for a session's program, on this machine or another; process `by` watches it.
    pub(crate) fn of_session(pid: i32, elsewhere: Option<&Elsewhere>, by: i32) -> Names {
        match elsewhere {
            None => Names::of(pid),
            Some(elsewhere) => Names {
                program: Program::of_file(&elsewhere.file, elsewhere.bias, by),
                // Its memory cannot be read.
                pid: 0,
                memory: LazyMemory::of(0),
                ..Names::of(0)
            },
        }
    }

    /// Reads the modules again: libraries may have come or gone.
    pub(crate) fn refresh(&mut self) {
        if self.pid == 0 {
            return;
        }
        if matches!(self.program.refresh_from_process(self.pid), Ok(true)) {
            self.places.clear();
            self.callers.clear();
            self.parts.clear();
            self.watches.clear();
        }
    }

    pub(crate) fn knows_code(&self, pc: u64) -> bool {
        self.program.module_at(pc).is_some()
    }

    /// The watch with that number, over these bytes. `spec`: what the user typed, if it is known.
    pub(crate) fn watch(
        &mut self,
        (id, since): (u32, u64),
        (addr, len): (u64, u64),
        kind: WatchKind,
        spec: Option<&str>,
    ) -> Rc<Watched> {
        if let Some(known) = self.watches.get(&(id, since))
            && spec.is_none_or(|s| s == known.spec)
        {
            return known.clone();
        }
        if self.watches.len() >= CACHE_LIMIT {
            self.watches.clear();
        }
        let typed = spec.and_then(|s| {
            let spec = Spec::parse(s).ok()?;
            let found = self.program.resolve_path(&spec, &self.memory).ok()?;
            let same = |w: &Watched| match w.path {
                // Its pointers may have moved since: it was at `addr`.
                Some(_) => w.len == len,
                None => w.heap || (w.addr, w.len) == (addr, len),
            };
            let mut found = found.into_iter().find(same)?;
            if found.path.is_some() {
                found.addr = addr;
            }
            Some(found)
        });
        let found = typed
            .or_else(|| self.variable(addr, len))
            .unwrap_or_else(|| raw(addr, len, kind));
        let mut found = Watched { kind, ..found };
        if let Some(spec) = spec {
            found.spec = spec.to_string();
        }
        let found = Rc::new(found);
        self.parts.retain(|(w, ..), _| *w != id);
        self.watches.insert((id, since), found.clone());
        found
    }

    /// The variable at the address or around it, or its watched part.
    fn variable(&self, addr: u64, len: u64) -> Option<Watched> {
        let module = self.program.module_of_data(addr)?;
        let linked = addr.wrapping_sub(module.bias);
        let symbol = module.object.symbols().data_at(linked);
        let at = symbol.map_or(linked, |s| s.addr);
        let index = module.object.index();
        let by_debug = index.and_then(|i| Some(i.path(i.at(at)?)));
        let name = match (by_debug, symbol) {
            (Some(path), _) => path,
            (None, Some(symbol)) => ulpf_symbols::demangle(symbol.name),
            (None, None) => return None,
        };
        let whole = Spec::parse(&name)
            .ok()
            .and_then(|spec| self.program.resolve(&spec, &self.memory).ok()?.pop())
            .filter(|w| w.addr == at.wrapping_add(module.bias));
        let from = addr.wrapping_sub(at.wrapping_add(module.bias));
        match whole {
            Some(whole) if from.checked_add(len).is_some_and(|end| end <= whole.len) => {
                let (name, part) = whole.part(from, len);
                let fits = part.inside == 0 && part.repeat.is_none() && part.ty.size == len;
                Some(Watched {
                    name,
                    addr,
                    len,
                    ty: fits.then_some(part.ty),
                    slice: None,
                    ..whole
                })
            }
            _ => Some(Watched {
                name: if from == 0 {
                    name
                } else {
                    format!("{name}+{from}")
                },
                ..raw(addr, len, WatchKind::Write)
            }),
        }
    }

    /// Name and value before and after.
    pub(crate) fn hit(&mut self, watch: &Watched, hit: &Hit) -> (Rc<Named>, String) {
        let offset = watch.offset(hit);
        let named = self.part(watch, hit.watch, offset, hit.len);
        let used = hit.used();
        let render = |bytes: &[u8]| {
            let mut out = String::new();
            let part = &named.part;
            part.render(&bytes[..used], hit.len.into(), &mut out);
            out
        };
        let flag = |bit| hit.flags & bit != 0;
        let change = match () {
            _ if flag(hit_flags::UNKNOWN) => "?".to_string(),
            _ if hit.kind == 1 => render(&hit.new),
            _ if flag(hit_flags::SILENT) => format!("{} (same)", render(&hit.new)),
            _ => format!("{} → {}", render(&hit.old), render(&hit.new)),
        };
        (named, change)
    }

    /// The value after a hit.
    pub(crate) fn value(&mut self, watch: &Watched, hit: &Hit) -> String {
        let offset = watch.offset(hit);
        let named = self.part(watch, hit.watch, offset, hit.len);
        let mut out = match named.name.strip_prefix(watch.name.as_str()) {
            // The element.
            Some(path) if !path.is_empty() && hit.len as u64 != watch.len => format!("{path}="),
            _ => String::new(),
        };
        let part = &named.part;
        part.render(&hit.new[..hit.used()], hit.len.into(), &mut out);
        out
    }

    /// The value in memory, if it can be read.
    pub(crate) fn memory(&self, watch: &Watched) -> String {
        let mut bytes = vec![0; (watch.len as usize).min(32)];
        let mut out = String::new();
        if !watch.heap && !bytes.is_empty() && self.memory.read(watch.addr, &mut bytes) {
            let (_, part) = watch.part(0, watch.len);
            part.render(&bytes, watch.len, &mut out);
        }
        out
    }

    /// Reads code; false if it cannot be read.
    pub fn code(&self, addr: u64, bytes: &mut [u8]) -> bool {
        self.memory.read(addr, bytes)
    }

    fn part(&mut self, watch: &Watched, id: u32, offset: u64, len: u32) -> Rc<Named> {
        if self.parts.len() >= CACHE_LIMIT {
            self.parts.clear();
        }
        let new = || Rc::new(Named::new(watch.part(offset, len.into()), len));
        self.parts
            .entry((id, offset, len))
            .or_insert_with(new)
            .clone()
    }

    /// The place of the instruction at `pc`.
    pub fn place(&mut self, pc: u64) -> Place {
        if let Some(known) = self.places.get(&pc) {
            return known.clone();
        }
        if self.places.len() >= CACHE_LIMIT {
            self.places.clear();
        }
        let l = self.program.locate(pc);
        let line = match (l.short_file(), l.line, &l.object) {
            (Some(file), Some(line), _) => format!("{file}:{line}"),
            (_, _, Some(object)) => object.clone(),
            _ => String::new(),
        };
        let text = l.to_string();
        let function = text.split(" at ").next().unwrap_or("");
        let function = function.split(" in ").next().unwrap_or("");
        let place = Place {
            function: function.into(),
            line: line.into(),
            text: text.as_str().into(),
            full: Rc::new(place::Place::of(&l)),
        };
        self.places.insert(pc, place.clone());
        place
    }

    /// The calls before these return addresses.
    pub(crate) fn callers(&mut self, frames: &[u64]) -> Vec<Rc<place::Place>> {
        if self.callers.len() >= CACHE_LIMIT {
            self.callers.clear();
        }
        let program = &self.program;
        let of = |at: &u64| {
            let new = || Rc::new(place::Place::at(program, *at, true));
            self.callers.entry(*at).or_insert_with(new).clone()
        };
        frames.iter().map(of).collect()
    }
}

fn raw(addr: u64, len: u64, kind: WatchKind) -> Watched {
    Watched {
        freeze: false,
        spec: format!("{addr:#x}:{len}"),
        name: format!("{addr:#x}"),
        addr,
        len,
        heap: false,
        kind,
        ty: None,
        slice: None,
        each: None,
        bits: None,
        path: None,
        note: None,
        filter: Default::default(),
    }
}
