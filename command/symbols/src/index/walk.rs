//! One walk over a unit.
//!
//! A walk keeps static variables (globals, class members, function statics) with their places, either all of them or
//! those of one name. Of locals it keeps only what a refusal needs. Names are compared by their places, without reading
//! the string table.

use super::Index;
use super::finds::{
    Declared, File, Finds, LocalOf, Outer, Scope, ScopesOf, Searched, Text, Variable,
};
use super::mentions::Sought;
use crate::dwarf::Die;
use crate::place::{Found, Place, place_of};
use crate::slice::Slice;
use gimli::{Abbreviation, AttributeValue, DwTag, EntriesRaw, UnitOffset, constants as dw};

struct Walk<'a> {
    index: &'a Index,
    number: u32,
    file: File,
    /// `None`: every name.
    sought: Option<Sought<'a>>,
    finds: Finds,
    /// Variables whose name is in another entry.
    completed: Vec<(Variable, Die)>,
    /// Such variables that are read only if the other entry's name matches.
    perhaps: Vec<(UnitOffset, Around, Die)>,
}

/// The surroundings of an entry.
#[derive(Clone, Copy)]
struct Around {
    /// The innermost scope.
    scope: Option<u32>,
    /// The innermost function.
    function: Option<Text>,
}

/// The attributes of an entry that a walk uses.
#[derive(Default)]
struct Attributes {
    name: Option<Text>,
    declaration: bool,
    location: Option<AttributeValue<Slice>>,
    constant: bool,
    typed: bool,
    external: bool,
    exported: bool,
    decl_file: Option<u64>,
    /// The entry that it completes.
    completes: Option<Die>,
}

type Raw<'a> = EntriesRaw<'a, 'a, Slice>;

impl Walk<'_> {
    fn all(&mut self) -> gimli::Result<()> {
        let unit = self.index.unit(self.number);
        let mut entries = unit.entries_raw(None)?;
        // Scopes around the current entry, by depth.
        let mut around: Vec<(isize, u32)> = Vec::new();
        while !entries.is_empty() {
            let (offset, depth) = (entries.next_offset(), entries.next_depth());
            let Some(kind) = entries.read_abbreviation()? else {
                continue;
            };
            while around.last().is_some_and(|(d, _)| *d >= depth) {
                around.pop();
            }
            let outer = around.last().map(|(_, scope)| *scope);
            let here = Around {
                scope: outer,
                function: outer.and_then(|scope| self.finds.scopes[scope as usize].function),
            };
            let scope = self.entry(&mut entries, kind, offset, here)?;
            if let Some(scope) = scope {
                around.push((depth, self.finds.scopes.len() as u32));
                self.finds.scopes.push(scope);
            }
        }
        for (offset, around, die) in std::mem::take(&mut self.perhaps) {
            if self.finds.declared(die).is_some() {
                let mut entries = unit.entries_raw(Some(offset))?;
                if let Some(kind) = entries.read_abbreviation()? {
                    let attributes = self.attributes(&mut entries, kind)?;
                    self.variable(offset, kind.tag(), &attributes, around);
                }
            }
        }
        Ok(())
    }

    /// Reads one entry. Returns the scope for the entries within it.
    fn entry(
        &mut self,
        entries: &mut Raw,
        kind: &Abbreviation,
        offset: UnitOffset,
        around: Around,
    ) -> gimli::Result<Option<Scope>> {
        let mut scope = Scope {
            outer: around.scope.map_or(Outer::Nothing, Outer::Scope),
            name: Text::Known(""),
            function: around.function,
            inline: false,
        };
        match kind.tag() {
            // (A Fortran module.)
            dw::DW_TAG_namespace | dw::DW_TAG_module => {
                let known = self.attributes(entries, kind)?;
                scope.name = known.name.unwrap_or(Text::Known("(anonymous namespace)"));
                scope.inline = known.exported && known.name.is_some();
            }
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                let known = self.attributes(entries, kind)?;
                if let Some(name) = known.name {
                    scope.name = name;
                    let name = self.wanted(name).filter(|_| !known.declaration);
                    let die = self.die(offset);
                    let complete = name.map(|name| (name, die));
                    self.finds.complete.get_mut().extend(complete);
                }
            }
            dw::DW_TAG_subprogram => {
                let known = self.attributes(entries, kind)?;
                let at = known.completes;
                let name = known.name.or_else(|| self.function_name(at?));
                scope.name = name.unwrap_or(Text::Known(""));
                scope.function = Some(scope.name);
                // A method is declared in its class and defined elsewhere.
                let mut class = around.scope;
                match at {
                    Some(at) if at.unit != self.number => scope.outer = Outer::Declaration(at),
                    Some(at) => {
                        if let Some(declared) = self.finds.declared(at) {
                            class = declared.scope;
                            scope.outer = class.map_or(Outer::Nothing, Outer::Scope);
                        }
                    }
                    None => {}
                }
                self.declare(offset, scope.name, class);
            }
            tag @ (dw::DW_TAG_variable | dw::DW_TAG_formal_parameter) => {
                let known = self.attributes(entries, kind)?;
                match (self.sought, known.name, known.completes) {
                    (Some(_), None, Some(die)) => self.perhaps.push((offset, around, die)),
                    _ => self.variable(offset, tag, &known, around),
                }
                return Ok(None);
            }
            // A static class member up to DWARF 4.
            dw::DW_TAG_member => {
                let known = self.attributes(entries, kind)?;
                if let Some(name) = known.name.filter(|_| known.declaration)
                    && self.wanted(name).is_some()
                {
                    self.declare(offset, name, around.scope);
                }
                return Ok(None);
            }
            _ => {
                entries.skip_attributes(kind.attributes())?;
                return Ok(None);
            }
        }
        Ok(Some(scope))
    }

    /// Reads the attributes of an entry, once.
    fn attributes(&self, entries: &mut Raw, kind: &Abbreviation) -> gimli::Result<Attributes> {
        let mut known = Attributes::default();
        let mut specification = None;
        let attributes = kind.attributes();
        // The first attribute that was not read.
        let mut first = 0;
        for (n, attribute) in attributes.iter().enumerate() {
            match attribute.name() {
                dw::DW_AT_declaration => known.declaration = true,
                dw::DW_AT_const_value => known.constant = true,
                dw::DW_AT_type => known.typed = true,
                dw::DW_AT_export_symbols => known.exported = true,
                dw::DW_AT_name
                | dw::DW_AT_location
                | dw::DW_AT_external
                | dw::DW_AT_decl_file
                | dw::DW_AT_specification
                | dw::DW_AT_abstract_origin => {
                    entries.skip_attributes(&attributes[first..n])?;
                    let value = entries.read_attribute(*attribute)?.value();
                    first = n + 1;
                    match (attribute.name(), value) {
                        (dw::DW_AT_name, value) => {
                            known.name = self.index.text_of(self.number, value);
                        }
                        (dw::DW_AT_location, value) => known.location = Some(value),
                        (dw::DW_AT_external, AttributeValue::Flag(yes)) => known.external = yes,
                        (dw::DW_AT_decl_file, AttributeValue::FileIndex(file)) => {
                            known.decl_file = Some(file);
                        }
                        (dw::DW_AT_specification, value) => specification = Some(value),
                        (dw::DW_AT_abstract_origin, value) => {
                            known.completes = self.index.reference(self.number, value);
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        entries.skip_attributes(&attributes[first..])?;
        if let Some(value) = specification {
            known.completes = self.index.reference(self.number, value);
        }
        Ok(known)
    }

    /// The name of a function that another entry completes.
    fn function_name(&self, die: Die) -> Option<Text> {
        if die.unit == self.number
            && let Some(declared) = self.finds.declared(die)
        {
            return Some(declared.name);
        }
        let name = self.index.function_name(die, 4)?;
        // Another file has another string table.
        match self.index.units[die.unit as usize].file == self.file {
            true => Some(name),
            false => Some(Text::Known(self.index.text(die.unit, name))),
        }
    }

    fn die(&self, offset: UnitOffset) -> Die {
        Die {
            unit: self.number,
            offset,
        }
    }

    /// The name, if the walk looks for it.
    fn wanted(&self, name: Text) -> Option<&'static str> {
        let Some(sought) = self.sought else {
            return Some(self.index.text(self.number, name)).filter(|name| !name.is_empty());
        };
        if let Text::At(place) = name
            && !sought.mentions.may_be(self.file, place.0)
        {
            return None;
        }
        Some(self.index.text(self.number, name)).filter(|name| *name == sought.name)
    }

    fn declare(&mut self, offset: UnitOffset, name: Text, scope: Option<u32>) {
        let declared = Declared { name, scope };
        self.finds.declared.push((offset, declared));
    }

    fn variable(&mut self, offset: UnitOffset, tag: DwTag, known: &Attributes, around: Around) {
        let (home, unit) = (self.index.home(self.number), self.index.unit(self.number));
        let name = match known.name {
            Some(name) => match self.wanted(name) {
                Some(wanted) => Some((wanted, name)),
                None => return,
            },
            None => None,
        };
        let parameter = tag == dw::DW_TAG_formal_parameter;
        let place = match known.location {
            Some(AttributeValue::Exprloc(e)) => place_of(home, unit, e),
            Some(_) => Found::Local { register: true },
            None if known.constant => Found::Static(Place::Constant),
            None if known.declaration => Found::Static(Place::Declared),
            None if parameter || around.function.is_some() => Found::Local { register: true },
            None => Found::Static(Place::OptimisedOut),
        };
        let place = match (place, name) {
            (Found::Local { register }, Some((name, text))) => {
                let local = LocalOf {
                    unit: self.number,
                    function: around.function,
                    register,
                };
                self.finds.locals.get_mut().push((name, local));
                // Inlined copies of a function's static refer to this entry.
                if !parameter {
                    self.declare(offset, text, around.scope);
                }
                return;
            }
            (Found::Local { .. }, None) => return,
            (Found::Static(place), _) => place,
        };
        let variable = Variable {
            name: name.map_or("", |(name, _)| name),
            scope: around.scope.map(|n| (ScopesOf::Unit(self.number), n)),
            place,
            external: known.external,
            die: self.die(offset),
            decl_file: known.decl_file,
        };
        match (name, known.completes) {
            (Some((_, text)), None) => {
                self.declare(offset, text, around.scope);
                self.finds.variables.push(variable);
            }
            (Some(_), Some(_)) if known.typed => self.finds.variables.push(variable),
            (_, Some(completes)) => self.completed.push((variable, completes)),
            (None, None) => {}
        }
    }
}

impl Index {
    /// Walks one unit, for one name or for all. A broken unit ends its own walk; the results before the error count.
    pub(super) fn walk(&self, number: u32, sought: Option<Sought>) -> Finds {
        let mut walk = Walk {
            index: self,
            number,
            file: self.units[number as usize].file,
            sought,
            finds: Finds::default(),
            completed: Vec::new(),
            perhaps: Vec::new(),
        };
        let _ = walk.all();
        for (mut variable, die) in std::mem::take(&mut walk.completed) {
            if die.unit != number {
                walk.finds.elsewhere.get_mut().push((variable, die));
            } else if let Some(declared) = walk.finds.declared(die)
                && let Some(name) = walk.wanted(declared.name)
            {
                variable.name = name;
                variable.scope = declared.scope.map(|n| (ScopesOf::Unit(number), n));
                variable.die = die;
                walk.finds.variables.push(variable);
            }
        }
        let mut finds = walk.finds;
        if !self.crosses {
            finds.declared = Vec::new();
        }
        finds.scopes.shrink_to_fit();
        finds.variables.shrink_to_fit();
        finds
    }

    /// The name of a function, which its entry may take from another one.
    fn function_name(&self, die: Die, hops: u32) -> Option<Text> {
        let entry = self.unit(die.unit).entry(die.offset).ok()?;
        if let Ok(Some(name)) = entry.attr_value(dw::DW_AT_name) {
            return self.text_of(die.unit, name);
        }
        for at in [dw::DW_AT_specification, dw::DW_AT_abstract_origin] {
            if let (Ok(Some(value)), 2..) = (entry.attr_value(at), hops) {
                let next = self.reference(die.unit, value)?;
                let file = |die: Die| self.units[die.unit as usize].file;
                let name = self.function_name(next, hops - 1)?;
                return match file(next) == file(die) {
                    true => Some(name),
                    false => Some(Text::Known(self.text(next.unit, name))),
                };
            }
        }
        None
    }

    /// A name in the form in which an entry has it.
    fn text_of(&self, unit: u32, value: AttributeValue<Slice>) -> Option<Text> {
        let (home, of) = (self.home(unit), self.unit(unit));
        match value {
            AttributeValue::DebugStrRef(place) => Some(Text::At(place)),
            AttributeValue::DebugStrOffsetsIndex(number) => {
                home.string_offset(of, number).ok().map(Text::At)
            }
            value => {
                let slice = home.attr_string(of, value).ok()?;
                std::str::from_utf8(slice.bytes()).ok().map(Text::Known)
            }
        }
    }

    /// Reads a name of a unit. A broken name is empty.
    pub(super) fn text(&self, unit: u32, name: Text) -> &'static str {
        match name {
            Text::Known(name) => name,
            Text::At(place) => {
                let slice = self.home(unit).string(place).ok();
                let text = slice.and_then(|slice| std::str::from_utf8(slice.bytes()).ok());
                text.unwrap_or("")
            }
        }
    }
}

impl Searched {
    /// Adds the results of a unit, with those of its scopes that are needed.
    pub(super) fn add(&mut self, index: &Index, unit: u32, search: u32, finds: Finds) {
        // An outer scope precedes its inner ones, and its new number is lower, too.
        let mut needed = vec![false; finds.scopes.len()];
        for variable in &finds.variables {
            if let Some((_, n)) = variable.scope {
                needed[n as usize] = true;
            }
        }
        for n in (0..needed.len()).rev() {
            if let (true, Outer::Scope(outer)) = (needed[n], finds.scopes[n].outer) {
                needed[outer as usize] = true;
            }
        }
        let mut numbers = vec![0; needed.len()];
        for (n, scope) in finds.scopes.iter().enumerate().filter(|(n, _)| needed[*n]) {
            numbers[n] = self.scopes.len() as u32;
            let outer = match scope.outer {
                Outer::Scope(outer) => Outer::Scope(numbers[outer as usize]),
                other => other,
            };
            let name = Text::Known(index.text(unit, scope.name));
            self.scopes.push(Scope {
                outer,
                name,
                function: None,
                inline: scope.inline,
            });
        }
        self.variables.extend(finds.variables.into_iter().map(|v| {
            Variable {
                scope: v
                    .scope
                    .map(|(_, n)| (ScopesOf::Search(search), numbers[n as usize])),
                ..v
            }
        }));
        self.locals.extend(finds.locals.into_inner());
        self.complete.extend(finds.complete.into_inner());
    }
}
