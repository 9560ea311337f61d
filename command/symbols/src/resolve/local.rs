//! `function::local`: a watch on a local in the frames of a function.

use super::{AccessPath, Lvalue, Resolver};
use crate::closest::list;
use crate::frame_locals::Local;
use crate::problem::Problem;
use crate::spec::Scope;
use std::collections::BTreeSet;
use ulpf_lib::command::Step;

/// Advice for a local that is not always in memory.
const ANOTHER_WAY: &str = "build the program with -O0 or -Og, make it volatile, or watch it from a debugger: `ulpf gdb`, break in the function, `watch`";

impl Resolver<'_> {
    /// A variable, or the locals of a function with that name: one for each block and each overload that has it.
    pub(super) fn named(&self, name: &str) -> Result<Vec<Lvalue>, Problem> {
        match self.variable(name) {
            Ok(found) => Ok(vec![found]),
            Err(problem) => self.local(name).unwrap_or(Err(problem)),
        }
    }

    /// Returns `None` if no known function has such a local.
    fn local(&self, name: &str) -> Option<Result<Vec<Lvalue>, Problem>> {
        let (function, local) = name.rsplit_once("::")?;
        if matches!(self.spec.scope, Some(Scope::File(_))) {
            return None;
        }
        let mut all = self.program.locals(function, local);
        if let Some(Scope::Object(object)) = &self.spec.scope {
            let named: Vec<_> = self.program.modules_named(object).collect();
            let is_named = |l: &Local| named.iter().any(|m| std::rc::Rc::ptr_eq(m, &l.module));
            all.found.retain(is_named);
        }
        if all.found.is_empty() {
            let why = all.why?;
            return Some(Err(self.problem(
                format!("{why} (`{local}` is a local variable of {function}())"),
                ANOTHER_WAY,
            )));
        }
        if !self.follows() {
            return Some(Err(self.problem(
                format!("`{local}` is a local variable of {function}(), which is somewhere else in each call, and what is named behind it has many places"),
                "name one element or all of an array as one ([..] at the end), and leave `snapshot` out",
            )));
        }
        let mut notes = Vec::new();
        if all.why.is_some() || all.inlined {
            notes.push(format!(
                "{function}() has copies (inlined in other functions, or optimised) whose `{local}` is not watched"
            ));
        }
        let lines: BTreeSet<u64> = all.found.iter().filter_map(|l| l.line).collect();
        if all.found.len() > 1 && lines.len() > 1 {
            let lines = list(lines.iter().map(u64::to_string), 8);
            notes.push(format!(
                "{function}() has several variables `{local}` (lines {lines}): all of them are watched"
            ));
        }
        let mut note = Some(notes.join("; ")).filter(|note| !note.is_empty());
        let locals = all.found.into_iter();
        Some(Ok(locals
            .map(|l| self.in_frames(l, name, note.take()))
            .collect()))
    }

    fn in_frames(&self, local: Local, name: &str, note: Option<String>) -> Lvalue {
        let at = local.offset as u64;
        // There is no frame yet, so addresses are relative to a frame.
        let access_path = AccessPath::default().by(Step::Frames, local.function, None);
        let (access_path, addr) = match local.pointer {
            true => (access_path.through(at, None), 0),
            false => (access_path, at),
        };
        let ty = local.module.types.of_variable(local.die);
        Lvalue {
            addr,
            untyped: ty.is_none(),
            ty,
            module: Some(local.module),
            size: 0,
            name: name.to_string(),
            slice: None,
            walked: false,
            first: 0,
            bits: None,
            note,
            access_path,
            thread_local: false,
        }
    }
}
