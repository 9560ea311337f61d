//! Every variable of an object's debug information, by name: one walk over all units, then look-ups.
//!
//! Keeps statics (globals, class members, function statics) with their place, and of locals only
//! what a refusal needs to say.

use crate::dwarf::{Die, Dwarf, Entry, attr_str};
use crate::meter::{self, Slice, Work};
use crate::place::{Found, Place, place_of};
use crate::split::Split;
use gimli::{AttributeValue, Reader, UnitOffset, UnitSectionOffset, constants as dw};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

pub struct Index {
    /// Units of the file itself, those of its supplementary file, then those of each file of split units.
    pub units: Vec<Unit>,
    /// Files of split units.
    split: Vec<Arc<Dwarf>>,
    /// Type units by signature.
    signatures: HashMap<u64, (u32, UnitOffset)>,
    /// Scopes around variables; one comes before those within it.
    scopes: Vec<Scope>,
    variables: Vec<Variable>,
    by_name: HashMap<&'static str, Vec<u32>>,
    by_address: OnceCell<HashMap<u64, u32>>,
    locals: HashMap<&'static str, Local>,
    /// Complete structures by name, for pointers to types that their own unit only declares.
    complete: HashMap<&'static str, Die>,
    /// Units whose contents are in `.dwo` files that are not there.
    pub missing_units: usize,
}

pub struct Unit {
    pub unit: gimli::Unit<Slice>,
    file: File,
}

/// Which file has a unit, in the order of [`Index::units`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum File {
    Own,
    Supplementary,
    /// By its number in [`Index::split`].
    Split(u32),
}

/// A namespace, class or function. Paths are put together when they are asked for: those of nested scopes repeat
/// one another, and would take room for the square of their number.
#[derive(Clone, Copy, Debug)]
struct Scope {
    outer: Option<u32>,
    /// Empty: it adds nothing to a path.
    name: &'static str,
    /// The innermost function.
    function: Option<&'static str>,
}

/// Scopes in one another; real ones are some ten deep.
const MOST_SCOPES: usize = 100;

#[derive(Clone, Debug)]
pub struct Variable {
    pub name: &'static str,
    scope: Option<u32>,
    pub place: Place,
    /// Visible outside its file.
    pub external: bool,
    /// Entry that carries the type, and for the source file.
    pub die: Die,
    /// Entry that says in which file it is declared.
    pub decl_file: Option<u64>,
}

/// A variable that lives only while its function runs.
#[derive(Clone, Debug)]
pub struct Local {
    pub function: &'static str,
    /// In a register at least part of the time.
    pub register: bool,
}

/// What the walks through the units find.
#[derive(Default)]
struct Finds {
    scopes: Vec<Scope>,
    variables: Vec<(&'static str, Variable)>,
    locals: Vec<(&'static str, Local)>,
    complete: Vec<(&'static str, Die)>,
    /// Entries that others refer to for a name, with it and the scope around it.
    declared: HashMap<Die, (&'static str, Option<u32>)>,
    /// Variables whose name is at another entry.
    completed: Vec<(Variable, Die)>,
}

impl Index {
    pub fn build(dwarf: &Dwarf, split: &Split) -> Index {
        let mut index = Index {
            units: Vec::new(),
            split: Vec::new(),
            signatures: HashMap::new(),
            scopes: Vec::new(),
            variables: Vec::new(),
            by_name: HashMap::new(),
            by_address: OnceCell::new(),
            locals: HashMap::new(),
            complete: HashMap::new(),
            missing_units: 0,
        };
        index.add_units(dwarf, File::Own, None);
        if let Some(sup) = dwarf.sup() {
            index.add_units(sup, File::Supplementary, None);
        }
        index.add_split(dwarf, split);
        let mut finds = Finds::default();
        for unit in 0..index.units.len() {
            // A broken unit ends its own walk; the others still count.
            let _ = index.walk(dwarf, unit as u32, &mut finds);
        }
        index.scopes = finds.scopes;
        for (name, variable) in finds.variables {
            index.add(name, variable);
        }
        for (name, local) in finds.locals {
            index.locals.entry(name).or_insert(local);
        }
        for (name, die) in finds.complete {
            index.complete.entry(name).or_insert(die);
        }
        for (mut variable, die) in finds.completed {
            if let Some(&(name, scope)) = finds.declared.get(&die) {
                (variable.name, variable.scope, variable.die) = (name, scope, die);
                index.add(name, variable);
            }
        }
        index
    }

    /// What the skeleton units stand for.
    fn add_split(&mut self, dwarf: &Dwarf, split: &Split) {
        let skeletons: Vec<usize> = (0..self.units.len())
            .filter(|n| self.units[*n].unit.dwo_id.is_some())
            .collect();
        for number in &skeletons {
            let found = split.of_unit(dwarf, &self.units[*number].unit);
            match found {
                Some(found) => self.add_file(found, Some(*number)),
                None => self.missing_units += 1,
            }
        }
        if !skeletons.is_empty() {
            for types in split.types(dwarf) {
                self.add_file(types, None);
            }
        }
    }

    fn add_file(&mut self, dwarf: Arc<Dwarf>, skeleton: Option<usize>) {
        let file = File::Split(self.split.len() as u32);
        self.add_units(&dwarf, file, skeleton);
        self.split.push(dwarf);
    }

    /// `skeleton` has what split units leave in the program: where their addresses are.
    fn add_units(&mut self, dwarf: &Dwarf, file: File, skeleton: Option<usize>) {
        let mut headers = Vec::new();
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            headers.push(header);
        }
        let mut units = dwarf.type_units();
        while let Ok(Some(header)) = units.next() {
            headers.push(header);
        }
        for header in headers {
            let number = self.units.len() as u32;
            if let gimli::UnitType::Type {
                type_signature,
                type_offset,
            }
            | gimli::UnitType::SplitType {
                type_signature,
                type_offset,
            } = header.type_()
            {
                self.signatures
                    .insert(type_signature.0, (number, type_offset));
            }
            if let Ok(mut unit) = dwarf.unit(header) {
                if let Some(skeleton) = skeleton.map(|n| &self.units[n].unit) {
                    unit.copy_relocated_attributes(skeleton);
                    // Its source files are in the table of the program.
                    unit.line_program.clone_from(&skeleton.line_program);
                }
                self.units.push(Unit { unit, file });
            }
        }
    }

    fn add(&mut self, name: &'static str, variable: Variable) {
        if name.is_empty() {
            return;
        }
        self.by_name
            .entry(name)
            .or_default()
            .push(self.variables.len() as u32);
        self.variables.push(variable);
    }

    fn walk(&self, dwarf: &Dwarf, number: u32, finds: &mut Finds) -> gimli::Result<()> {
        let this = &self.units[number as usize];
        let (unit, home) = (&this.unit, self.dwarf_of(dwarf, number));
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
            let within = outer.and_then(|scope| finds.scopes[scope as usize].function);
            let mut enter = |name, function| {
                let scope = Scope {
                    outer,
                    name,
                    function,
                };
                around.push((depth, finds.scopes.len() as u32));
                finds.scopes.push(scope);
            };
            let die = Die {
                unit: number,
                offset: entry.offset(),
            };
            match entry.tag() {
                // (A Fortran module.)
                dw::DW_TAG_namespace | dw::DW_TAG_module => {
                    let name = attr_str(home, unit, entry, dw::DW_AT_name)
                        .unwrap_or("(anonymous namespace)");
                    enter(name, within);
                }
                dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                    let name = attr_str(home, unit, entry, dw::DW_AT_name).unwrap_or("");
                    enter(name, within);
                    if !name.is_empty() && entry.attr_value(dw::DW_AT_declaration)?.is_none() {
                        finds.complete.push((name, die));
                    }
                }
                dw::DW_TAG_subprogram => {
                    let name = self.function_name(dwarf, number, entry, 4).unwrap_or("");
                    // A method is declared in its class, and defined elsewhere.
                    let declaration = self.declaration(number, entry)?;
                    let known = declaration.and_then(|at| finds.declared.get(&at));
                    let class = known.map_or(outer, |(_, class)| *class);
                    finds.declared.insert(die, (name, class));
                    around.push((depth, finds.scopes.len() as u32));
                    finds.scopes.push(Scope {
                        outer: class,
                        name,
                        function: Some(name),
                    });
                }
                dw::DW_TAG_variable | dw::DW_TAG_formal_parameter => {
                    let name = attr_str(home, unit, entry, dw::DW_AT_name);
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
                    let specification = self.declaration(number, entry)?;
                    let external = matches!(
                        entry.attr_value(dw::DW_AT_external)?,
                        Some(AttributeValue::Flag(true))
                    );
                    let decl_file = match entry.attr_value(dw::DW_AT_decl_file)? {
                        Some(AttributeValue::FileIndex(n)) => Some(n),
                        _ => None,
                    };
                    match (place, name) {
                        (Found::Local { register }, Some(name)) => {
                            let function = within.unwrap_or("");
                            finds.locals.push((name, Local { function, register }));
                            // Inlined copies of a function's static refer back to this entry.
                            if !parameter {
                                finds.declared.insert(die, (name, outer));
                            }
                        }
                        (Found::Local { .. }, None) => {}
                        (Found::Static(place), name) => {
                            let variable = Variable {
                                name: name.unwrap_or(""),
                                scope: outer,
                                place,
                                external,
                                die,
                                decl_file,
                            };
                            match (name, specification) {
                                (Some(name), None) => {
                                    finds.declared.insert(die, (name, outer));
                                    finds.variables.push((name, variable));
                                }
                                (Some(name), Some(_))
                                    if entry.attr_value(dw::DW_AT_type)?.is_some() =>
                                {
                                    finds.variables.push((name, variable))
                                }
                                (_, Some(specification)) => {
                                    finds.completed.push((variable, specification))
                                }
                                (None, None) => {}
                            }
                        }
                    }
                }
                // A static class member up to DWARF 4.
                dw::DW_TAG_member if entry.attr_value(dw::DW_AT_declaration)?.is_some() => {
                    if let Some(name) = attr_str(home, unit, entry, dw::DW_AT_name) {
                        finds.declared.insert(die, (name, outer));
                    }
                }
                _ => {}
            }
        }
        Ok(())
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
    fn function_name(
        &self,
        dwarf: &Dwarf,
        unit: u32,
        entry: &Entry,
        hops: u32,
    ) -> Option<&'static str> {
        let home = self.dwarf_of(dwarf, unit);
        if let Some(name) = attr_str(home, &self.units[unit as usize].unit, entry, dw::DW_AT_name) {
            return Some(name);
        }
        for at in [dw::DW_AT_specification, dw::DW_AT_abstract_origin] {
            if let (Ok(Some(value)), 1..) = (entry.attr_value(at), hops) {
                let die = self.reference(unit, value)?;
                let entry = self.units[die.unit as usize].unit.entry(die.offset).ok()?;
                return self.function_name(dwarf, die.unit, &entry, hops - 1);
            }
        }
        None
    }

    /// The file that holds a unit.
    pub fn dwarf_of<'d>(&'d self, dwarf: &'d Dwarf, unit: u32) -> &'d Dwarf {
        match (self.units[unit as usize].file, dwarf.sup()) {
            (File::Supplementary, Some(sup)) => sup,
            (File::Split(n), _) => &self.split[n as usize],
            _ => dwarf,
        }
    }

    /// Follows a reference attribute of an entry in `unit`.
    pub fn reference(&self, unit: u32, value: AttributeValue<Slice>) -> Option<Die> {
        match value {
            AttributeValue::UnitRef(offset) => Some(Die { unit, offset }),
            AttributeValue::DebugInfoRef(offset) => {
                self.at_offset(offset, self.units[unit as usize].file)
            }
            AttributeValue::DebugInfoRefSup(offset) => self.at_offset(offset, File::Supplementary),
            AttributeValue::DebugTypesRef(signature) => {
                self.signatures.get(&signature.0).map(|(unit, offset)| Die {
                    unit: *unit,
                    offset: *offset,
                })
            }
            _ => None,
        }
    }

    fn at_offset(&self, offset: gimli::DebugInfoOffset, file: File) -> Option<Die> {
        // Units lie in order within each file: its .debug_info, its .debug_types.
        let key = |u: &Unit| match u.unit.header.offset() {
            UnitSectionOffset::DebugInfoOffset(start) => (u.file, false, start.0),
            UnitSectionOffset::DebugTypesOffset(start) => (u.file, true, start.0),
        };
        let number = self
            .units
            .partition_point(|u| key(u) <= (file, false, offset.0))
            .checked_sub(1)?;
        let unit = &self.units[number];
        if key(unit).0 != file || key(unit).1 {
            return None;
        }
        Some(Die {
            unit: number as u32,
            offset: offset.to_unit_offset(&unit.unit.header)?,
        })
    }

    pub fn die_name(&self, dwarf: &Dwarf, die: Die) -> Option<&'static str> {
        let unit = &self.units[die.unit as usize].unit;
        let entry = unit.entry(die.offset).ok()?;
        attr_str(self.dwarf_of(dwarf, die.unit), unit, &entry, dw::DW_AT_name)
    }

    /// With namespaces, classes and functions around it: `ns::Class::total`, `main::calls`.
    pub fn path(&self, variable: &Variable) -> String {
        let mut parts = vec![variable.name];
        let mut scope = variable.scope;
        while let Some(this) = scope.map(|s| self.scopes[s as usize]) {
            if parts.len() > MOST_SCOPES {
                parts.push("…");
                break;
            }
            if !this.name.is_empty() {
                parts.push(this.name);
            }
            scope = this.outer;
        }
        parts.reverse();
        let path = parts.join("::");
        meter::step(path.len() as u64);
        path
    }

    /// Variables whose path is `path` or ends with `::path`.
    pub fn find(&self, path: &str) -> Vec<&Variable> {
        let work = Work::look_up(0);
        let all = self.by_name.get(last_component(path)).into_iter().flatten();
        let all = all.map(|i| &self.variables[*i as usize]);
        let tail = without_blanks(path);
        all.take_while(|_| !work.is_over())
            .filter(|v| path_ends_with(&without_blanks(&self.path(v)), &tail))
            .collect()
    }

    pub fn local(&self, name: &str) -> Option<&Local> {
        self.locals.get(name)
    }

    pub fn complete_type(&self, name: &str) -> Option<Die> {
        self.complete.get(name).copied()
    }

    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.variables.iter()
    }

    /// The variable at an address as linked.
    pub fn at(&self, addr: u64) -> Option<&Variable> {
        let by_address = self.by_address.get_or_init(|| {
            let mut map = HashMap::new();
            for (i, variable) in self.variables.iter().enumerate() {
                if let Place::Address(addr) = variable.place {
                    map.entry(addr).or_insert(i as u32);
                }
            }
            map
        });
        by_address.get(&addr).map(|i| &self.variables[*i as usize])
    }

    /// Does the variable come from this source file? Compared from the end of the path.
    pub fn declared_in(&self, dwarf: &Dwarf, variable: &Variable, file: &str) -> bool {
        self.source_files(dwarf, variable)
            .iter()
            .any(|path| file_ends_with(path, file))
    }

    /// Files that a variable belongs to: where it is declared, and its unit's main file.
    pub fn source_files(&self, dwarf: &Dwarf, variable: &Variable) -> Vec<String> {
        let number = variable.die.unit;
        let unit = &self.units[number as usize].unit;
        let home = match self.units[number as usize].file {
            File::Split(_) => dwarf,
            _ => self.dwarf_of(dwarf, number),
        };
        let mut files = Vec::new();
        if let (Some(program), Some(number)) = (&unit.line_program, variable.decl_file)
            && let Some(file) = program.header().file(number)
        {
            let mut path = String::new();
            let directory = file
                .directory(program.header())
                .and_then(|d| home.attr_string(unit, d).ok());
            let directory = directory.as_ref().and_then(lossy);
            if let (Some(directory), 1..) = (directory, file.directory_index()) {
                path = directory + "/";
            }
            let name = home.attr_string(unit, file.path_name()).ok();
            files.extend(name.as_ref().and_then(lossy).map(|name| path + &name));
        }
        files.extend(unit.name.as_ref().and_then(lossy));
        files
    }
}

fn lossy(text: &Slice) -> Option<String> {
    Some(text.to_string_lossy().ok()?.into_owned())
}

/// The part after the last `::` outside template arguments.
fn last_component(path: &str) -> &str {
    let (mut depth, mut start) = (0i32, 0);
    let bytes = path.as_bytes();
    for i in 0..bytes.len() {
        match bytes[i] {
            b'<' | b'{' => depth += 1,
            b'>' | b'}' => depth -= 1,
            b':' if depth == 0 && i > 0 && bytes[i - 1] == b':' => start = i + 1,
            _ => {}
        }
    }
    &path[start..]
}

/// Compilers and people put blanks between template arguments as they like.
fn without_blanks(path: &str) -> Cow<'_, str> {
    if !path.contains('<') {
        return path.into();
    }
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut plain = String::with_capacity(path.len());
    let mut rest = path.chars().peekable();
    while let Some(c) = rest.next() {
        // (One of `unsigned int` stays.)
        if c != ' ' || word(plain.chars().next_back()) && word(rest.peek().copied()) {
            plain.push(c);
        }
    }
    plain.into()
}

fn path_ends_with(path: &str, tail: &str) -> bool {
    path.strip_suffix(tail).is_some_and(|before| before.is_empty() || before.ends_with("::"))
        // Anonymous namespaces are left out by those who write names.
        || path.contains("(anonymous namespace)::") && path_ends_with(&path.replace("(anonymous namespace)::", ""), tail)
}

pub fn file_ends_with(path: &str, tail: &str) -> bool {
    path.strip_suffix(tail)
        .is_some_and(|before| before.is_empty() || before.ends_with('/') || tail.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_from_the_end_at_boundaries() {
        assert!(path_ends_with("ns::Class::total", "total"));
        assert!(path_ends_with("ns::Class::total", "Class::total"));
        assert!(!path_ends_with("ns::subtotal", "total"));
        assert!(path_ends_with("(anonymous namespace)::hidden", "hidden"));
        assert!(path_ends_with(
            "a::(anonymous namespace)::hidden",
            "a::hidden"
        ));
        assert_eq!(last_component("Pool<a::b>::live"), "live");
        assert_eq!(
            without_blanks("P<A<unsigned int>, 4 >"),
            "P<A<unsigned int>,4>"
        );
        assert!(file_ends_with("/src/dir/loop.c", "loop.c"));
        assert!(file_ends_with("/src/dir/loop.c", "dir/loop.c"));
        assert!(!file_ends_with("/src/dir/myloop.c", "loop.c"));
    }
}
