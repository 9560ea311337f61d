//! The variables of an object's debug information, by name.
//!
//! Each unit is walked once, when it is needed ([`walk`]). A small file is walked as a whole at the first query. In a
//! large one ([`LARGE`]) only units that mention the queried name are walked ([`mention`]), and only that name is kept.
//! After many different names, walking everything costs less and is done once.

#[cfg(test)]
mod compared_tests;
mod finds;
mod hints;
mod mention;
mod mentions;
mod openings;
mod recall;
mod walk;

use crate::dwarf::{Die, Dwarf, Traits, attr_str};
use crate::meter::{self, Work};
use crate::place::Place;
use crate::slice::Slice;
use crate::split::Split;
use finds::{File, Finds, LocalOf, Outer, ScopesOf, Searched};
pub use finds::{Local, Variable};
use gimli::{AttributeValue, Reader, UnitOffset, UnitSectionOffset, constants as dw};
pub use hints::Hints;
use mentions::{Mentions, Sought};
use openings::Tags;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Size in bytes from which units that do not mention a name are skipped. Smaller debug information is walked
/// completely in the time that a program takes to start. (Tests have small files.)
const LARGE: u64 = if cfg!(test) { 1 } else { 32 << 20 };
/// Number of names that are searched in a large file before all of its units are walked.
const MOST_SEARCHES: usize = 16;

pub struct Index {
    dwarf: Arc<Dwarf>,
    /// Units of the file itself, then of its supplementary file, then of each file of split units.
    units: Vec<Unit>,
    /// Files of split units.
    split: Vec<Arc<Dwarf>>,
    /// Type units by signature.
    signatures: HashMap<u64, (u32, UnitOffset)>,
    /// Size of all sections in bytes.
    size: u64,
    /// Units take names from other units.
    crosses: bool,
    /// Units may be walked one by one, for a name that they mention.
    selective: bool,
    /// Results by queried name. They are never freed, like the file's data.
    searched: RefCell<Vec<&'static Searched>>,
    /// Places of names found in earlier runs.
    hints: Option<Hints>,
    tables: OnceCell<Tables>,
    /// The index is incomplete because a limit was reached.
    cut: Cell<bool>,
    /// Replaces broken units.
    nothing: gimli::Unit<Slice>,
    /// Number of units whose contents are in `.dwo` files that do not exist.
    pub missing_units: usize,
}

struct Unit {
    header: gimli::UnitHeader<Slice>,
    file: File,
    /// The skeleton unit of a split unit, which has its addresses.
    skeleton: Option<u32>,
    unit: OnceCell<Option<gimli::Unit<Slice>>>,
    finds: OnceCell<Finds>,
}

/// Limit of nested scopes; real ones are about ten deep.
const MOST_SCOPES: usize = 100;

/// Lookup tables over all units.
#[derive(Default)]
struct Tables {
    by_name: HashMap<&'static str, Vec<Id>>,
    /// Variables whose name is in an entry of another unit.
    completed: Vec<Variable>,
    by_address: OnceCell<HashMap<u64, Id>>,
    locals: HashMap<&'static str, LocalOf>,
    /// Complete structures by name, for pointers to types that their own unit only declares.
    complete: HashMap<&'static str, Die>,
}

/// A variable in a unit's [`Finds`] or in [`Tables::completed`].
#[derive(Clone, Copy)]
enum Id {
    Of(u32, u32),
    Completed(u32),
}

impl Index {
    pub fn build(
        dwarf: &Arc<Dwarf>,
        split: &Split,
        traits: Traits,
        size: u64,
        hints: Hints,
    ) -> Option<Index> {
        let mut index = Index {
            dwarf: dwarf.clone(),
            units: Vec::new(),
            split: Vec::new(),
            signatures: HashMap::new(),
            size,
            crosses: traits.crosses,
            selective: false,
            searched: RefCell::default(),
            hints: None,
            tables: OnceCell::new(),
            cut: Cell::new(false),
            nothing: nothing()?,
            missing_units: 0,
        };
        let work = index.work();
        index.add_units(dwarf, File::Own, None);
        if let Some(sup) = dwarf.sup() {
            index.add_units(sup, File::Supplementary, None);
        }
        if traits.skeletons {
            index.add_split(split);
        }
        index.selective = !traits.crosses && size.saturating_add(split.size()) >= LARGE;
        // (Hints describe a single file.)
        index.hints = Some(hints).filter(|_| dwarf.sup().is_none() && index.split.is_empty());
        index.cut.set(work.is_over());
        drop(work);
        Some(index)
    }

    /// Files of split units are not read yet; each is limited in size ([`crate::image`]).
    fn work(&self) -> Work {
        Work::through(self.size.saturating_mul(64))
    }

    /// Whether a limit was reached.
    pub fn is_cut(&self) -> bool {
        self.cut.get()
    }

    /// Adds the units that belong to skeleton units.
    fn add_split(&mut self, split: &Split) {
        let dwarf = self.dwarf.clone();
        let skeletons: Vec<u32> = (0..self.len())
            .filter(|n| self.unit(*n).dwo_id.is_some())
            .collect();
        for number in &skeletons {
            match split.of_unit(&dwarf, self.unit(*number)) {
                Some(found) => self.add_file(found, Some(*number)),
                None => self.missing_units += 1,
            }
        }
        if !skeletons.is_empty() {
            for types in split.types(&dwarf) {
                self.add_file(types, None);
            }
        }
    }

    fn add_file(&mut self, dwarf: Arc<Dwarf>, skeleton: Option<u32>) {
        let file = File::Split(self.split.len() as u32);
        self.add_units(&dwarf, file, skeleton);
        self.split.push(dwarf);
    }

    fn add_units(&mut self, dwarf: &Dwarf, file: File, skeleton: Option<u32>) {
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
                    .insert(type_signature.0, (self.len(), type_offset));
            }
            self.units.push(Unit {
                header,
                file,
                skeleton,
                unit: OnceCell::new(),
                finds: OnceCell::new(),
            });
        }
    }

    /// The number of units. They are numbered from 0.
    pub fn len(&self) -> u32 {
        self.units.len() as u32
    }

    /// A unit. A broken one is empty.
    pub fn unit(&self, number: u32) -> &gimli::Unit<Slice> {
        let this = &self.units[number as usize];
        let unit = this.unit.get_or_init(|| {
            let home = self.home(number);
            let mut unit = home.unit(this.header).ok()?;
            if let Some(skeleton) = this.skeleton.map(|n| self.unit(n)) {
                unit.copy_relocated_attributes(skeleton);
                // Its source files are in the program's table.
                unit.line_program.clone_from(&skeleton.line_program);
            }
            Some(unit)
        });
        unit.as_ref().unwrap_or(&self.nothing)
    }

    fn finds(&self, number: u32) -> &Finds {
        let unit = &self.units[number as usize];
        unit.finds.get_or_init(|| self.walk(number, None))
    }

    /// Walks all units.
    fn tables(&self) -> &Tables {
        self.tables.get_or_init(|| {
            let work = self.work();
            let mut tables = Tables::default();
            for number in 0..self.len() {
                let finds = self.finds(number);
                for (name, local) in finds.locals.take() {
                    tables.locals.entry(name).or_insert(local);
                }
                for (name, die) in finds.complete.take() {
                    tables.complete.entry(name).or_insert(die);
                }
                for (n, variable) in finds.variables.iter().enumerate() {
                    let all = tables.by_name.entry(variable.name).or_default();
                    all.push(Id::Of(number, n as u32));
                }
            }
            for number in 0..self.len() {
                for (variable, die) in self.finds(number).elsewhere.take() {
                    let Some(declared) = self.finds(die.unit).declared(die) else {
                        continue;
                    };
                    let name = self.text(die.unit, declared.name);
                    let id = Id::Completed(tables.completed.len() as u32);
                    tables.by_name.entry(name).or_default().push(id);
                    tables.completed.push(Variable {
                        name,
                        scope: declared.scope.map(|n| (ScopesOf::Unit(die.unit), n)),
                        die,
                        ..variable
                    });
                }
            }
            self.cut.set(self.cut.get() || work.is_over());
            tables
        })
    }

    /// Whether only units that mention a name are walked, as far as possible.
    pub fn is_selective(&self) -> bool {
        self.selective && self.tables.get().is_none()
    }

    /// The entries of a name, from units that mention it and the plain names around it in the path. `None` if all units
    /// must be walked.
    fn mentioned(&self, path: &str, name: &str) -> Option<&'static Searched> {
        if !self.is_selective() {
            return None;
        }
        let number = {
            let searched = self.searched.borrow();
            let known = searched
                .iter()
                .find(|known| known.path == path && known.name == name);
            if known.is_some() || searched.len() == MOST_SEARCHES {
                return known.copied();
            }
            searched.len() as u32
        };
        let work = self.work();
        if let Some(hint) = self.hint(path, name) {
            let found = self.walked(number, path, name, &hint);
            if self.leads_to(path, found) {
                return Some(found);
            }
            self.searched.borrow_mut().pop();
        }
        let began = Instant::now();
        let mentions = self.search_path(path, name);
        let took = began.elapsed();
        let found = self.walked(number, path, name, &mentions);
        let is_over = work.is_over();
        self.cut.set(self.cut.get() || is_over);
        if took >= hints::LONG && !is_over && self.leads_to(path, found) {
            self.keep(path, name, &mentions);
        }
        Some(found)
    }

    /// Whether there is a variable with this path. (After a local variable or a type, the search is not complete.)
    fn leads_to(&self, path: &str, found: &Searched) -> bool {
        let (work, tail) = (Work::look_up(0), without_blanks(path));
        let mut all = found.variables.iter().take_while(|_| !work.is_over());
        all.any(|v| self.is_at(v, &tail))
    }

    /// The entries of a name in units that mention it.
    fn walked(
        &self,
        number: u32,
        path: &str,
        name: &str,
        mentions: &Mentions,
    ) -> &'static Searched {
        let mut searched = Searched {
            path: path.to_string(),
            name: name.to_string(),
            ..Searched::default()
        };
        for unit in &mentions.units {
            let finds = self.walk(*unit, Some(Sought { name, mentions }));
            searched.add(self, *unit, number, finds);
        }
        let searched: &'static Searched = Box::leak(Box::new(searched));
        self.searched.borrow_mut().push(searched);
        searched
    }

    /// Units that may mention a name and the plain names around it in its path. All of these are in the same unit.
    fn search_path(&self, path: &str, name: &str) -> Mentions {
        let mut named = self.search(name, Tags::Things);
        let mut found = named.units.clone();
        let around = path.strip_suffix(name).unwrap_or("");
        for outer in around.split("::").filter(|outer| is_plain(outer)) {
            if found.len() > 1 && outer != name {
                let around = self.search(outer, Tags::Scopes).units;
                found.retain(|unit| around.binary_search(unit).is_ok());
            }
        }
        // The user's text may not be a path of names.
        if !found.is_empty() {
            named.units = found;
        }
        named
    }

    fn variable(&self, id: Id) -> Option<&Variable> {
        match id {
            Id::Of(unit, n) => self.finds(unit).variables.get(n as usize),
            Id::Completed(n) => self.tables.get()?.completed.get(n as usize),
        }
    }

    /// Variables with the path's last name. Variables with other paths may be missing.
    fn named(&self, path: &str) -> Vec<&Variable> {
        let name = last_component(path);
        if name.is_empty() {
            return Vec::new();
        }
        match self.mentioned(path, name) {
            Some(found) => found.variables.iter().collect(),
            None => {
                let all = self.tables().by_name.get(name).into_iter().flatten();
                all.filter_map(|id| self.variable(*id)).collect()
            }
        }
    }

    /// Units that may have a function of this name.
    pub fn units_with_function(&self, name: &str) -> Vec<u32> {
        match self.selective {
            true => self.search(name, Tags::Scopes).units,
            false => (0..self.len()).collect(),
        }
    }

    /// The file that contains a unit.
    pub fn home(&self, unit: u32) -> &Dwarf {
        match (self.units[unit as usize].file, self.dwarf.sup()) {
            (File::Supplementary, Some(sup)) => sup,
            (File::Split(n), _) => &self.split[n as usize],
            _ => &self.dwarf,
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
        let unit = self.unit_around(file, false, offset.0)?;
        Some(Die {
            unit,
            offset: offset.to_unit_offset(&self.units[unit as usize].header)?,
        })
    }

    /// The unit at or before an offset in a file's .debug_info or .debug_types.
    fn unit_around(&self, file: File, types: bool, offset: usize) -> Option<u32> {
        // Units are sorted within each file: first its .debug_info, then its .debug_types.
        let key = |u: &Unit| match u.header.offset() {
            UnitSectionOffset::DebugInfoOffset(start) => (u.file, false, start.0),
            UnitSectionOffset::DebugTypesOffset(start) => (u.file, true, start.0),
        };
        let before = self
            .units
            .partition_point(|u| key(u) <= (file, types, offset));
        let number = before.checked_sub(1)?;
        let (of, in_types, _) = key(&self.units[number]);
        (of == file && in_types == types).then_some(number as u32)
    }

    /// The name with its namespaces, classes and functions: `ns::Class::total`, `main::calls`.
    pub fn path(&self, variable: &Variable) -> String {
        self.path_with(variable, true).0
    }

    /// The path with inline namespaces or without, and whether there are any.
    fn path_with(&self, variable: &Variable, inline: bool) -> (String, bool) {
        let mut any = false;
        let mut parts = vec![variable.name];
        let mut scope = variable.scope;
        while let Some((of, n)) = scope {
            let (this, name) = match of {
                ScopesOf::Unit(unit) => {
                    let this = self.finds(unit).scopes.get(n as usize);
                    (this, this.map_or("", |this| self.text(unit, this.name)))
                }
                ScopesOf::Search(search) => {
                    let search = self.searched.borrow()[search as usize];
                    let this = search.scopes.get(n as usize);
                    (this, this.map_or("", |this| self.text(0, this.name)))
                }
            };
            let Some(this) = this else { break };
            if parts.len() > MOST_SCOPES {
                parts.push("…");
                break;
            }
            any |= this.inline;
            if !name.is_empty() && (inline || !this.inline) {
                parts.push(name);
            }
            scope = match this.outer {
                Outer::Nothing => None,
                Outer::Scope(n) => Some((of, n)),
                Outer::Declaration(die) => {
                    let declared = self.finds(die.unit).declared(die);
                    declared.and_then(|d| Some((ScopesOf::Unit(die.unit), d.scope?)))
                }
            };
        }
        parts.reverse();
        let path = parts.join("::");
        meter::step(path.len() as u64);
        (path, any)
    }

    /// Whether a variable's path ends with `tail`, which has no blanks.
    fn is_at(&self, variable: &Variable, tail: &str) -> bool {
        let (path, inline) = self.path_with(variable, true);
        let fits = |path: &str| path_ends_with(&without_blanks(path), tail);
        fits(&path) || inline && fits(&self.path_with(variable, false).0)
    }

    /// Variables whose path is `path` or ends with `::path`.
    pub fn find(&self, path: &str) -> Vec<&Variable> {
        let all = self.named(path);
        let work = Work::look_up(0);
        let tail = without_blanks(path);
        all.into_iter()
            .take_while(|_| !work.is_over())
            .filter(|v| self.is_at(v, &tail))
            .collect()
    }

    /// The first local variable with this name.
    pub fn local(&self, name: &str) -> Option<Local> {
        let found = match self.mentioned(name, name) {
            Some(found) => first(&found.locals, name),
            None => self.tables().locals.get(name).copied(),
        };
        found.map(|local| Local {
            function: local.function.map_or("", |f| self.text(local.unit, f)),
            register: local.register,
        })
    }

    pub fn complete_type(&self, name: &str) -> Option<Die> {
        match self.mentioned(name, name) {
            Some(found) => first(&found.complete, name),
            None => self.tables().complete.get(name).copied(),
        }
    }

    /// As [`Index::complete_type`], for a name as a debugger writes it.
    pub fn complete_like(&self, name: &str) -> Option<Die> {
        let like = |known: &str| known.contains('<') && written_alike(known) == written_alike(name);
        self.complete_type(name).or_else(|| {
            let templated = name.contains('<');
            let mut all = self.tables().complete.iter().filter(|_| templated);
            all.find(|(known, _)| like(known)).map(|(_, die)| *die)
        })
    }

    /// The name of an entry with its namespaces and classes, without functions; `None` for an entry without a name.
    pub fn path_of(&self, die: Die) -> Option<String> {
        let unit = self.unit(die.unit);
        let mut entries = unit.entries();
        let mut around: Vec<&'static str> = Vec::new();
        let mut depth = 0isize;
        let _work = self.work();
        while let Ok(Some((delta, entry))) = entries.next_dfs() {
            depth += delta;
            around.truncate(usize::try_from(depth - 1).unwrap_or(0));
            let name = attr_str(self.home(die.unit), unit, entry, dw::DW_AT_name);
            if entry.offset() == die.offset {
                around.retain(|name| !name.is_empty());
                around.push(name?);
                return Some(around.join("::"));
            }
            let scope = match entry.tag() {
                dw::DW_TAG_namespace
                | dw::DW_TAG_module
                | dw::DW_TAG_structure_type
                | dw::DW_TAG_class_type
                | dw::DW_TAG_union_type => name.unwrap_or("(anonymous namespace)"),
                _ => "",
            };
            if depth > 0 {
                around.push(scope);
            }
        }
        None
    }

    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        let completed = &self.tables().completed;
        let units = (0..self.len()).flat_map(|unit| &self.finds(unit).variables);
        units.chain(completed)
    }

    /// The variable at an address as linked.
    pub fn at(&self, addr: u64) -> Option<&Variable> {
        let tables = self.tables();
        let by_address = tables.by_address.get_or_init(|| {
            let mut map = HashMap::new();
            let own = (0..self.len()).flat_map(|unit| {
                let numbers = 0..self.finds(unit).variables.len() as u32;
                numbers.map(move |n| Id::Of(unit, n))
            });
            let completed = (0..tables.completed.len() as u32).map(Id::Completed);
            for id in own.chain(completed) {
                let place = self.variable(id).map(|v| v.place);
                if let Some(Place::Address(addr)) = place {
                    map.entry(addr).or_insert(id);
                }
            }
            map
        });
        self.variable(*by_address.get(&addr)?)
    }

    /// Whether the variable comes from this source file. Paths are compared from the end.
    pub fn declared_in(&self, variable: &Variable, file: &str) -> bool {
        self.source_files(variable)
            .iter()
            .any(|path| file_ends_with(path, file))
    }

    /// The files of a variable: the file of its declaration, and its unit's main file.
    pub fn source_files(&self, variable: &Variable) -> Vec<String> {
        let number = variable.die.unit;
        let unit = self.unit(number);
        let home = match self.units[number as usize].file {
            File::Split(_) => &self.dwarf,
            _ => self.home(number),
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

fn first<T: Copy>(all: &[(&'static str, T)], name: &str) -> Option<T> {
    let found = all.iter().find(|(known, _)| *known == name);
    found.map(|(_, what)| *what)
}

/// An empty unit.
fn nothing() -> Option<gimli::Unit<Slice>> {
    // Length, version 4, abbreviations at 0, addresses of 8 bytes; an entry of the first kind.
    const INFO: &[u8] = &[8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1];
    // The first kind: a DW_TAG_compile_unit without children and attributes.
    const KINDS: &[u8] = &[1, dw::DW_TAG_compile_unit.0 as u8, 0, 0, 0, 0];
    let load = |id| {
        Ok::<_, gimli::Error>(Slice::new(match id {
            gimli::SectionId::DebugInfo => INFO,
            gimli::SectionId::DebugAbbrev => KINDS,
            _ => &[],
        }))
    };
    let _work = Work::look_up(0);
    let dwarf = Dwarf::load(load).ok()?;
    dwarf.unit(dwarf.units().next().ok()??).ok()
}

fn lossy(text: &Slice) -> Option<String> {
    Some(text.to_string_lossy().ok()?.into_owned())
}

/// The part after the last `::` outside template arguments.
pub fn last_component(path: &str) -> &str {
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

/// Whether a name appears unchanged in debug information and in symbols, whatever surrounds it.
pub fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Removes blanks between template arguments, which compilers and people place differently.
fn without_blanks(path: &str) -> Cow<'_, str> {
    if !path.contains('<') {
        return path.into();
    }
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut plain = String::with_capacity(path.len());
    let mut rest = path.chars().peekable();
    while let Some(c) = rest.next() {
        // (The blank in `unsigned int` stays.)
        if c != ' ' || word(plain.chars().next_back()) && word(rest.peek().copied()) {
            plain.push(c);
        }
    }
    plain.into()
}

/// A type's name, with blanks and integer types written in one way: `unsigned long` for `long unsigned int`.
fn written_alike(name: &str) -> String {
    let (mut out, mut words) = (String::new(), Vec::new());
    let flush = |words: &mut Vec<&str>, out: &mut String| {
        let integer = [
            "const", "unsigned", "signed", "short", "long", "int", "char",
        ];
        if words.len() > 1 && words.iter().any(|word| integer[1..5].contains(word)) {
            words.retain(|word| *word != "int");
        }
        // (Its words may be in any order.)
        words.sort_by_key(|word| integer.iter().position(|known| known == word));
        out.push_str(&words.join(" "));
        words.clear();
    };
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        match word.unwrap_or(rest.len()) {
            0 => {
                if c != ' ' {
                    flush(&mut words, &mut out);
                    out.push(c);
                }
                rest = &rest[c.len_utf8()..];
            }
            end => {
                words.push(&rest[..end]);
                rest = &rest[end..];
            }
        }
    }
    flush(&mut words, &mut out);
    out
}

fn path_ends_with(path: &str, tail: &str) -> bool {
    path.strip_suffix(tail).is_some_and(|before| before.is_empty() || before.ends_with("::"))
        // Users omit anonymous namespaces.
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
        let pairs = [
            (
                "vector<long unsigned int, A<long unsigned int> >",
                "vector<unsigned long, A<unsigned long> >",
            ),
            ("map<int, long int>", "map<int,long>"),
            ("pair<long int const, short int>", "pair<const long, short>"),
        ];
        for (compiler, debugger) in pairs {
            assert_eq!(written_alike(compiler), written_alike(debugger));
        }
        assert_ne!(written_alike("A<int>"), written_alike("A<unsigned int>"));
        assert!(file_ends_with("/src/dir/loop.c", "loop.c"));
        assert!(file_ends_with("/src/dir/loop.c", "dir/loop.c"));
        assert!(!file_ends_with("/src/dir/myloop.c", "loop.c"));
    }
}
