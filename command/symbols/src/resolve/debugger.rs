//! Watches that begin with a variable or expression that a debugger has evaluated: it knows names, frames and registers,
//! and gives an address or a value with a type. The way from there is this crate's.

use super::{AccessPath, Lvalue, Memory, Resolver, Watched};
use crate::head::{DebuggerPlace, Head, Located, Named};
use crate::maps::{Module, Program};
use crate::place::Place;
use crate::problem::Problem;
use crate::spec::Spec;
use crate::types::Type;
use std::cell::Cell;
use std::rc::Rc;
use ulpf_lib::addr::USER_END;

/// Address of a head that is a value. No program has memory there.
const VALUE: u64 = USER_END + (1 << 32);

/// The program's memory, and the value of the head.
struct WithValue<'a> {
    memory: &'a dyn Memory,
    value: Option<u64>,
}

impl Memory for WithValue<'_> {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        let value = self.value.map(u64::to_le_bytes);
        match value.filter(|_| addr == VALUE && buf.len() == 8) {
            Some(value) => {
                buf.copy_from_slice(&value);
                true
            }
            None => self.memory.read(addr, buf),
        }
    }

    fn thread_pointer(&self) -> Option<u64> {
        self.memory.thread_pointer()
    }
}

impl Program {
    /// The places of `spec`, which begins with [`crate::HEAD`] if there is a head. It follows its pointers, unless it says
    /// `snapshot`, or the head has no address.
    pub fn locate_watch(&self, spec: &Spec, head: Option<&Head>, memory: &dyn Memory) -> Located {
        let decided = Cell::new(false);
        let value = head.and_then(|head| head.value);
        let memory = WithValue { memory, value };
        let stays = Cell::new(spec.filter.snapshot || value.is_some());
        let resolver = |stays| Resolver {
            program: self,
            spec,
            memory: &memory,
            stays,
            head,
            decided: &decided,
        };
        let follows = !stays.get();
        let mut found = resolver(&stays).resolve();
        if follows && stays.get() {
            found = resolver(&stays).resolve();
        }
        let places = found.map(|found| {
            let found = found.into_iter();
            found
                .map(|(watched, module)| debugger_place(watched, module.as_deref()))
                .collect()
        });
        Located {
            places,
            decided: decided.get(),
        }
    }
}

fn debugger_place(watched: Watched, module: Option<&Module>) -> DebuggerPlace {
    let ty = watched
        .ty
        .as_ref()
        .filter(|ty| watched.bits.is_some() || ty.size == watched.len);
    DebuggerPlace {
        ty: ty.and_then(|ty| Named::of(ty, module?, 8)),
        mask: watched.bits.map(|bits| {
            let ones = u64::MAX >> (64 - bits.len.clamp(1, 64));
            ones << bits.first
        }),
        name: watched.name,
        at: watched.addr,
        len: watched.len,
        path: watched.path.map(|path| path.to_string()),
        first: watched.slice,
        many: watched.each.map(|each| each.first),
    }
}

impl Resolver<'_> {
    /// The head as an object.
    pub(super) fn head(&self, head: &Head) -> Result<Lvalue, Problem> {
        let known = self.type_of_variable(head).or_else(|| {
            let modules = self.program.modules.iter();
            let mut described =
                modules.filter_map(|m| Some((m.clone(), head.ty.of_variable(&m.types)?)));
            described.next()
        });
        let Some((module, ty)) = known else {
            return Err(self.problem(
                format!("what a {} is made of is not known here", head.ty.name),
                "debug information of the file that it is in is needed beside that file, or by its build ID",
            ));
        };
        Ok(Lvalue {
            addr: head.at.unwrap_or(VALUE),
            ty: Some(ty),
            module: Some(module),
            size: 0,
            name: head.text.clone(),
            slice: None,
            walked: false,
            first: 0,
            bits: None,
            note: None,
            access_path: AccessPath::default(),
            untyped: false,
            thread_local: false,
        })
    }

    /// The type of the variable that the head is, and its module.
    fn type_of_variable(&self, head: &Head) -> Option<(Rc<Module>, Rc<Type>)> {
        let at = head.at?;
        // (One variable can be a part of another that begins at the same address.)
        if head.ty.of_value().is_strided() {
            return None;
        }
        let fits = |ty: &Rc<Type>| ty.size == head.ty.size;
        let static_ = || {
            let module = self.program.module_of_data(at)?;
            let linked = at.wrapping_sub(module.bias);
            let index = module.object.index()?;
            let is_here = |place: Place| matches!(place, Place::Address(a) if a == linked);
            let by_name = head.name.as_deref().and_then(|name| {
                let all = index.find(name);
                let here = all.iter().find(|v| is_here(v.place));
                here.copied()
                    .or(all.first().copied().filter(|v| v.place == Place::Declared))
            });
            let variable = by_name.or_else(|| index.at(linked))?;
            Some((module.clone(), module.types.of_variable(variable.die)?))
        };
        let of_thread = || {
            let name = head.name.as_deref()?;
            self.program.executable().into_iter().find_map(|module| {
                let all = module.object.index()?.find(name);
                let local = all
                    .iter()
                    .find(|v| matches!(v.place, Place::ThreadLocal(_)))?;
                Some((module.clone(), module.types.of_variable(local.die)?))
            })
        };
        let of_frame = || {
            let (module, die) = self.program.local_at(head.pc?, head.name.as_deref()?)?;
            let ty = module.types.of_variable(die)?;
            Some((module, ty))
        };
        let fits = |found: &(Rc<Module>, Rc<Type>)| fits(&found.1);
        static_()
            .filter(fits)
            .or_else(|| of_frame().filter(fits))
            .or_else(|| of_thread().filter(fits))
    }
}
