//! One walk over a unit.
//!
//! Keeps statics (globals, class members, function statics) with their place, and of locals only what a refusal needs
//! to say.

use super::Index;
use super::finds::{Declared, Finds, Local, Outer, Scope, Variable};
use crate::dwarf::{Die, Entry, attr_str};
use crate::place::{Found, Place, place_of};
use gimli::{AttributeValue, constants as dw};
use std::collections::HashMap;

struct Walk<'a> {
    index: &'a Index,
    number: u32,
    finds: Finds,
    /// Variables whose name is at another entry.
    completed: Vec<(Variable, Die)>,
}

impl Walk<'_> {
    fn all(&mut self) -> gimli::Result<()> {
        let unit = self.index.unit(self.number);
        let mut entries = unit.entries();
        let mut depth = 0isize;
        // Scopes around the current entry, by depth.
        let mut around: Vec<(isize, u32)> = Vec::new();
        while let Some((delta, entry)) = entries.next_dfs()? {
            depth += delta;
            while around.last().is_some_and(|(d, _)| *d >= depth) {
                around.pop();
            }
            let outer = around.last().map(|(_, scope)| *scope);
            let within = outer.and_then(|scope| self.finds.scopes[scope as usize].function);
            let mut scope = Scope {
                outer: outer.map_or(Outer::Nothing, Outer::Scope),
                name: "",
                function: within,
            };
            match entry.tag() {
                // (A Fortran module.)
                dw::DW_TAG_namespace | dw::DW_TAG_module => {
                    scope.name = self.name(entry).unwrap_or("(anonymous namespace)");
                }
                dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                    scope.name = self.name(entry).unwrap_or("");
                    let declaration = entry.attr_value(dw::DW_AT_declaration)?.is_some();
                    if !scope.name.is_empty() && !declaration {
                        let die = self.die(entry);
                        self.finds.complete.get_mut().push((scope.name, die));
                    }
                }
                dw::DW_TAG_subprogram => {
                    scope.name = self
                        .index
                        .function_name(self.number, entry, 4)
                        .unwrap_or("");
                    scope.function = Some(scope.name);
                    // A method is declared in its class, and defined elsewhere.
                    let mut class = outer;
                    match self.index.declaration(self.number, entry)? {
                        Some(at) if at.unit != self.number => scope.outer = Outer::Declaration(at),
                        Some(at) => {
                            if let Some(declared) = self.finds.declared(at) {
                                class = declared.scope;
                                scope.outer = class.map_or(Outer::Nothing, Outer::Scope);
                            }
                        }
                        None => {}
                    }
                    self.declare(entry, scope.name, class);
                }
                dw::DW_TAG_variable | dw::DW_TAG_formal_parameter => {
                    self.variable(entry, outer, within)?;
                    continue;
                }
                // A static class member up to DWARF 4.
                dw::DW_TAG_member if entry.attr_value(dw::DW_AT_declaration)?.is_some() => {
                    if let Some(name) = self.name(entry) {
                        self.declare(entry, name, outer);
                    }
                    continue;
                }
                _ => continue,
            }
            around.push((depth, self.finds.scopes.len() as u32));
            self.finds.scopes.push(scope);
        }
        Ok(())
    }

    fn die(&self, entry: &Entry) -> Die {
        Die {
            unit: self.number,
            offset: entry.offset(),
        }
    }

    fn name(&self, entry: &Entry) -> Option<&'static str> {
        let home = self.index.home(self.number);
        attr_str(home, self.index.unit(self.number), entry, dw::DW_AT_name)
    }

    fn declare(&mut self, entry: &Entry, name: &'static str, scope: Option<u32>) {
        let declared = Declared { name, scope };
        self.finds.declared.insert(entry.offset(), declared);
    }

    fn variable(
        &mut self,
        entry: &Entry,
        outer: Option<u32>,
        within: Option<&'static str>,
    ) -> gimli::Result<()> {
        let (home, unit) = (self.index.home(self.number), self.index.unit(self.number));
        let name = self.name(entry);
        let parameter = entry.tag() == dw::DW_TAG_formal_parameter;
        let declaration = entry.attr_value(dw::DW_AT_declaration)?.is_some();
        let place = match entry.attr_value(dw::DW_AT_location)? {
            Some(AttributeValue::Exprloc(e)) => place_of(home, unit, e),
            Some(_) => Found::Local { register: true },
            None if entry.attr_value(dw::DW_AT_const_value)?.is_some() => {
                Found::Static(Place::Constant)
            }
            None if declaration => Found::Static(Place::Declared),
            None if parameter || within.is_some() => Found::Local { register: true },
            None => Found::Static(Place::OptimisedOut),
        };
        let place = match (place, name) {
            (Found::Local { register }, Some(name)) => {
                let function = within.unwrap_or("");
                let local = Local { function, register };
                self.finds.locals.get_mut().push((name, local));
                // Inlined copies of a function's static refer back to this entry.
                if !parameter {
                    self.declare(entry, name, outer);
                }
                return Ok(());
            }
            (Found::Local { .. }, None) => return Ok(()),
            (Found::Static(place), _) => place,
        };
        let external = matches!(
            entry.attr_value(dw::DW_AT_external)?,
            Some(AttributeValue::Flag(true))
        );
        let decl_file = match entry.attr_value(dw::DW_AT_decl_file)? {
            Some(AttributeValue::FileIndex(n)) => Some(n),
            _ => None,
        };
        let variable = Variable {
            name: name.unwrap_or(""),
            scope: outer.map(|scope| (self.number, scope)),
            place,
            external,
            die: self.die(entry),
            decl_file,
        };
        match (name, self.index.declaration(self.number, entry)?) {
            (Some(name), None) => {
                self.declare(entry, name, outer);
                self.keep(variable);
            }
            (Some(_), Some(_)) if entry.attr_value(dw::DW_AT_type)?.is_some() => {
                self.keep(variable)
            }
            (_, Some(specification)) => self.completed.push((variable, specification)),
            (None, None) => {}
        }
        Ok(())
    }

    fn keep(&mut self, variable: Variable) {
        if !variable.name.is_empty() {
            self.finds.variables.push(variable);
        }
    }
}

impl Index {
    /// Walks one unit. A broken one ends its own walk; what was found counts.
    pub(super) fn walk(&self, number: u32) -> Finds {
        let mut walk = Walk {
            index: self,
            number,
            finds: Finds::default(),
            completed: Vec::new(),
        };
        let _ = walk.all();
        let Walk {
            mut finds,
            completed,
            ..
        } = walk;
        for (mut variable, die) in completed {
            if die.unit != number {
                finds.elsewhere.get_mut().push((variable, die));
            } else if let Some(declared) = finds.declared(die).filter(|d| !d.name.is_empty()) {
                variable.name = declared.name;
                variable.scope = declared.scope.map(|scope| (number, scope));
                variable.die = die;
                finds.variables.push(variable);
            }
        }
        if !self.crosses {
            finds.declared = HashMap::new();
        }
        finds.scopes.shrink_to_fit();
        finds.variables.shrink_to_fit();
        finds
    }

    /// The entry that an entry completes.
    fn declaration(&self, unit: u32, entry: &Entry) -> gimli::Result<Option<Die>> {
        for at in [dw::DW_AT_specification, dw::DW_AT_abstract_origin] {
            if let Some(value) = entry.attr_value(at)? {
                return Ok(self.reference(unit, value));
            }
        }
        Ok(None)
    }

    /// Name of a function whose entry may refer to another one for it.
    fn function_name(&self, unit: u32, entry: &Entry, hops: u32) -> Option<&'static str> {
        let home = self.home(unit);
        if let Some(name) = attr_str(home, self.unit(unit), entry, dw::DW_AT_name) {
            return Some(name);
        }
        for at in [dw::DW_AT_specification, dw::DW_AT_abstract_origin] {
            if let (Ok(Some(value)), 1..) = (entry.attr_value(at), hops) {
                let die = self.reference(unit, value)?;
                let entry = self.unit(die.unit).entry(die.offset).ok()?;
                return self.function_name(die.unit, &entry, hops - 1);
            }
        }
        None
    }
}
