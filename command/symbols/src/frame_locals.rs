//! Locals of functions: their positions in each frame, from the function's first instruction to its return.
//!
//! ```text
//!   higher addresses   the caller's frame
//!                      ──────────────────── canonical frame address (CFA): the stack pointer before the call
//!                      return address
//!                      saved registers, locals        each at CFA + OFFSET, the same in every frame
//! ```
//! At a function's first instruction the CFA is eight bytes above the stack pointer (psABI x86-64, 3.2.2), whatever the
//! function does to its stack afterwards. Offsets here are relative to the CFA. Debug information counts them from the
//! frame base (DWARF 5, 3.3.5). The frame base is the CFA for gcc, and a register for clang and rustc; the unwind table
//! gives that register's distance to the CFA.

use crate::demangle::demangle;
use crate::dwarf::{Die, Dwarf, Entry, attr_str};
use crate::elf_symbols::{ElfSymbol, SymbolSort};
use crate::index::Index;
use crate::maps::{Module, Program};
use crate::meter::Work;
use crate::slice::Slice;
use gimli::{
    AttributeValue, BaseAddresses, CfaRule, EhFrame, Operation, Register, UnwindContext,
    UnwindSection, X86_64, constants as dw,
};
use std::ops::Range;
use std::rc::Rc;

/// A local in all frames of one function.
pub struct Local {
    pub module: Rc<Module>,
    /// Address of the function's first instruction at run time.
    pub function: u64,
    /// Entry that carries the type.
    pub die: Die,
    /// Offset from the canonical frame address.
    pub offset: i64,
    /// The frame holds a pointer to the local.
    pub pointer: bool,
    pub line: Option<u64>,
}

/// The result of a look-up.
#[derive(Default)]
pub struct Locals {
    pub found: Vec<Local>,
    /// Why other locals of that name cannot be watched.
    pub why: Option<&'static str>,
    /// The function exists and has debug information.
    pub known: bool,
    /// The compiler has inlined the function into some callers.
    pub inlined: bool,
}

const MOVES: &str = "the compiler keeps it in a register at least part of the time";
const IS_GONE: &str = "the compiler has replaced it by its value or optimised it out";
const ALIGNS: &str =
    "its function aligns the stack, so that it is elsewhere in the frame of each call";
const NOT_UNDERSTOOD: &str =
    "the debug information says where it is in a way that is not understood";
const GOROUTINE: &str = "the stacks of goroutines move while their functions run";

impl Program {
    /// The locals `name` of all functions `function`: overloads, template instances, nested blocks.
    pub fn locals(&self, function: &str, name: &str) -> Locals {
        let mut locals = Locals::default();
        for (module, linked) in self.functions(function) {
            let Some(info) = &module.object.debug().info else {
                continue;
            };
            let Some(index) = module.object.index() else {
                continue;
            };
            let _work = Work::through(info.size);
            for unit in 0..index.len() {
                let search = Search {
                    module: &module,
                    index,
                    unit,
                    linked,
                    name,
                };
                if search.has() {
                    // A broken unit ends its own walk only.
                    let _ = search.walk(&mut locals);
                }
            }
        }
        locals
    }

    /// The variable that `name` means at an instruction: that of the innermost block which has one.
    pub fn local_at(&self, pc: u64, name: &str) -> Option<(Rc<Module>, Die)> {
        let module = self.module_at(pc)?;
        let info = module.object.debug().info.as_ref()?;
        let index = module.object.index()?;
        let _work = Work::through(info.size);
        let linked = pc.wrapping_sub(module.bias);
        let found = (0..index.len()).find_map(|unit| {
            let search = Search {
                module,
                index,
                unit,
                linked,
                name,
            };
            // A broken unit ends its own walk only.
            search
                .has()
                .then(|| search.innermost().ok().flatten())
                .flatten()
        });
        Some((module.clone(), found?))
    }

    /// Start addresses, as linked, of all functions of this name.
    fn functions(&self, name: &str) -> Vec<(Rc<Module>, u64)> {
        let mut found: Vec<(Rc<Module>, u64)> = Vec::new();
        for module in self.executable_first() {
            let here = module.functions_called(name).into_iter();
            found.extend(here.map(|range| (module.clone(), range.start)));
            // Functions of the executable hide those of libraries.
            if module.is_executable && !found.is_empty() {
                break;
            }
        }
        found
    }
}

impl Module {
    /// Ranges, as linked, of all functions of this name. The end of a path is sufficient, and template arguments may be
    /// omitted. The linker may have another name for it, as in Fortran; then the debug information has it. Of one that is
    /// inlined everywhere these are the copies.
    pub(crate) fn functions_called(self: &Rc<Self>, name: &str) -> Vec<Range<u64>> {
        let symbols = self.object.symbols();
        let _work = Work::through(symbols.iter().count() as u64);
        let range = |s: &ElfSymbol| {
            let len = match s.len {
                0 => symbols.extent_at(s.addr),
                len => len,
            };
            s.addr..s.addr.saturating_add(len)
        };
        let functions = |s: &&ElfSymbol| s.sort == SymbolSort::Function;
        let exact: Vec<_> = symbols.find(name);
        let mut found: Vec<Range<u64>> = exact.iter().filter(functions).map(range).collect();
        if found.is_empty() {
            let last = name.rsplit([':', '.']).next().unwrap_or(name);
            let last = last.split('<').next().unwrap_or(last);
            // Demangling is slow. The demangled name consists of letters of the mangled one, so search that first.
            let fits = |s: &&ElfSymbol| {
                s.name.contains(last)
                    && ![".cold", ".part."].iter().any(|part| s.name.contains(part))
                    && is_called(&demangle(s.name), name)
            };
            found = symbols
                .iter()
                .filter(functions)
                .filter(fits)
                .map(range)
                .collect();
        }
        if found.is_empty() {
            found = self.described_functions(name);
        }
        found.sort_by_key(|range| range.start);
        found.dedup();
        found
    }

    fn described_functions(self: &Rc<Self>, name: &str) -> Vec<Range<u64>> {
        let (mut found, mut inlined) = (Vec::new(), Vec::new());
        let Some(info) = &self.object.debug().info else {
            return found;
        };
        let Some(index) = self.object.index() else {
            return found;
        };
        let _work = Work::through(info.size);
        for unit in index.units_with_function(name) {
            let search = Search {
                module: self,
                index,
                unit,
                linked: 0,
                name,
            };
            // A broken unit ends its own walk only.
            let _ = search.functions(&mut found, &mut inlined);
        }
        match found.is_empty() {
            true => inlined,
            false => found,
        }
    }
}

/// Whether `name` refers to the function `full`, a demangled symbol.
fn is_called(full: &str, name: &str) -> bool {
    let ends = |path: &str, tail: &str| {
        let before = path.strip_suffix(tail);
        before.is_some_and(|before| before.is_empty() || before.ends_with("::"))
    };
    // A method of Go: `main.(*Counter).Set`, also as `Counter.Set`.
    if full.contains(".(*") {
        let plain = full.replace("(*", "").replace(')', "");
        let tail = format!(".{name}");
        return full == name || full.ends_with(&tail) || plain == name || plain.ends_with(&tail);
    }
    let path = path_of(full);
    // (The compiler may have specialised a copy for some arguments: `fill.constprop.0`.)
    let path = path.split_once('.').map_or(path, |(path, _)| path);
    ends(path, name) || path.contains('<') && ends(&without_arguments(path), name)
}

/// The path of a demangled name, without return type and arguments.
fn path_of(full: &str) -> &str {
    let (mut depth, mut from, mut before) = (0i32, 0, ' ');
    for (i, c) in full.char_indices() {
        match c {
            '(' if depth == 0
                && i > from
                && before != '.'
                && !full[i..].starts_with("(anonymous") =>
            {
                return &full[from..i];
            }
            '<' | '(' | '{' | '[' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | '}' | ']' => depth -= 1,
            ' ' if depth == 0 => from = i + 1,
            _ => {}
        }
        before = c;
    }
    &full[from..]
}

fn without_arguments(path: &str) -> String {
    let mut depth = 0i32;
    let outside = |c: &char| {
        depth += i32::from(*c == '<');
        let out = depth == 0;
        depth -= i32::from(*c == '>');
        out
    };
    path.chars().filter(outside).collect()
}

struct Search<'a> {
    module: &'a Rc<Module>,
    index: &'a Index,
    unit: u32,
    /// Address of the function's first instruction, as linked.
    linked: u64,
    name: &'a str,
}

/// The origin of frame offsets.
#[derive(Clone, Copy)]
enum Base {
    Cfa,
    Register(Register, i64),
}

impl Search<'_> {
    fn unit(&self) -> &gimli::Unit<Slice> {
        self.index.unit(self.unit)
    }

    fn home(&self) -> &Dwarf {
        self.index.home(self.unit)
    }

    /// Whether the unit may contain the function. (The ranges of split units are in their skeletons.)
    fn has(&self) -> bool {
        let unit = self.unit();
        if unit.dwo_id.is_some() {
            return true;
        }
        let Ok(mut ranges) = self.home().unit_ranges(unit) else {
            return true;
        };
        while let Ok(Some(range)) = ranges.next() {
            if (range.begin..range.end).contains(&self.linked) {
                return true;
            }
        }
        false
    }

    fn address(&self, entry: &Entry, at: gimli::DwAt) -> Option<u64> {
        let value = entry.attr_value(at).ok()??;
        self.home().attr_address(self.unit(), value).ok()?
    }

    fn walk(&self, locals: &mut Locals) -> gimli::Result<()> {
        let mut entries = self.unit().entries();
        while let Some((_, entry)) = entries.next_dfs()? {
            let is = entry.tag() == dw::DW_TAG_subprogram
                && self.address(entry, dw::DW_AT_low_pc) == Some(self.linked);
            if is {
                locals.known = true;
                let base = self.base(entry);
                let origin = self.origin(entry);
                self.walk_function(&mut entries, base, locals)?;
                locals.inlined |= origin.is_some_and(|origin| self.is_inlined(origin));
                return Ok(());
            }
        }
        Ok(())
    }

    /// The entry of the name in the innermost block around the instruction.
    fn innermost(&self) -> gimli::Result<Option<Die>> {
        let mut entries = self.unit().entries();
        let (mut depth, mut found) = (0isize, None);
        // Entries deeper than this are in a block elsewhere.
        let mut elsewhere: Option<isize> = None;
        while let Some((delta, entry)) = entries.next_dfs()? {
            depth += delta;
            elsewhere = elsewhere.filter(|block| depth > *block);
            match entry.tag() {
                _ if elsewhere.is_some() => {}
                dw::DW_TAG_subprogram
                | dw::DW_TAG_inlined_subroutine
                | dw::DW_TAG_lexical_block
                    if !self.is_around(entry) =>
                {
                    elsewhere = Some(depth);
                }
                dw::DW_TAG_variable | dw::DW_TAG_formal_parameter
                    if found.is_none_or(|(outer, _)| outer <= depth)
                        && self.name_of(entry, 4) == Some(self.name) =>
                {
                    let offset = entry.offset();
                    found = Some((
                        depth,
                        Die {
                            unit: self.unit,
                            offset,
                        },
                    ));
                }
                _ => {}
            }
        }
        Ok(found.map(|(_, die)| die))
    }

    /// Functions of the name, and where they are inlined.
    fn functions(
        &self,
        found: &mut Vec<Range<u64>>,
        inlined: &mut Vec<Range<u64>>,
    ) -> gimli::Result<()> {
        let mut entries = self.unit().entries();
        while let Some((_, entry)) = entries.next_dfs()? {
            let to = match entry.tag() {
                dw::DW_TAG_subprogram | dw::DW_TAG_entry_point => &mut *found,
                dw::DW_TAG_inlined_subroutine => &mut *inlined,
                _ => continue,
            };
            if self.name_of(entry, 4) != Some(self.name) {
                continue;
            }
            let mut ranges = self.home().die_ranges(self.unit(), entry)?;
            // (The first one begins with the function.)
            if let Some(range) = ranges.next()?.filter(|range| range.begin < range.end) {
                to.push(range.begin..range.end);
            }
        }
        Ok(())
    }

    /// Whether the block contains the instruction.
    fn is_around(&self, block: &Entry) -> bool {
        let Ok(mut ranges) = self.home().die_ranges(self.unit(), block) else {
            return false;
        };
        while let Ok(Some(range)) = ranges.next() {
            if (range.begin..range.end).contains(&self.linked) {
                return true;
            }
        }
        false
    }

    /// Walks the rest of the function's entries.
    fn walk_function(
        &self,
        entries: &mut gimli::EntriesCursor<Slice>,
        base: Result<Base, &'static str>,
        locals: &mut Locals,
    ) -> gimli::Result<()> {
        let mut depth = 0isize;
        // Entries deeper than this belong to another function.
        let mut other: Option<isize> = None;
        while let Some((delta, entry)) = entries.next_dfs()? {
            depth += delta;
            if depth <= 0 {
                break;
            }
            other = other.filter(|within| depth > *within);
            match entry.tag() {
                _ if other.is_some() => {}
                dw::DW_TAG_subprogram | dw::DW_TAG_inlined_subroutine => other = Some(depth),
                dw::DW_TAG_variable | dw::DW_TAG_formal_parameter
                    if self.name_of(entry, 4) == Some(self.name) =>
                {
                    match base.and_then(|base| self.place(entry, base)) {
                        Ok(Some((offset, pointer))) => locals.found.push(Local {
                            module: self.module.clone(),
                            function: self.linked.wrapping_add(self.module.bias),
                            die: Die {
                                unit: self.unit,
                                offset: entry.offset(),
                            },
                            offset,
                            pointer,
                            line: self.line_of(entry),
                        }),
                        // A static variable, which was searched before.
                        Ok(None) => {}
                        Err(why) => locals.why = Some(why),
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn origin(&self, entry: &Entry) -> Option<Die> {
        let value = entry.attr_value(dw::DW_AT_abstract_origin).ok()??;
        self.index.reference(self.unit, value)
    }

    /// The name of a concrete function or variable, which its abstract entry may hold.
    fn name_of(&self, entry: &Entry, hops: u32) -> Option<&'static str> {
        self.of_entry(entry, hops, &|search, entry| {
            attr_str(search.home(), search.unit(), entry, dw::DW_AT_name)
        })
    }

    fn line_of(&self, entry: &Entry) -> Option<u64> {
        self.of_entry(entry, 4, &|_, entry| {
            entry.attr_value(dw::DW_AT_decl_line).ok()??.udata_value()
        })
    }

    /// An attribute of an entry, or of the entry that it completes.
    fn of_entry<T>(
        &self,
        entry: &Entry,
        hops: u32,
        look: &dyn Fn(&Search, &Entry) -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = look(self, entry) {
            return Some(found);
        }
        let die = self.origin(entry).filter(|_| hops > 0)?;
        let search = Search {
            unit: die.unit,
            ..*self
        };
        let entry = search.unit().entry(die.offset).ok()?;
        search.of_entry(&entry, hops - 1, look)
    }

    /// Whether the unit contains inlined copies of the function.
    fn is_inlined(&self, origin: Die) -> bool {
        let mut entries = self.unit().entries();
        while let Ok(Some((_, entry))) = entries.next_dfs() {
            if entry.tag() == dw::DW_TAG_inlined_subroutine && self.origin(entry) == Some(origin) {
                return true;
            }
        }
        false
    }

    /// The origin of the function's frame offsets.
    fn base(&self, function: &Entry) -> Result<Base, &'static str> {
        let mut root = self.unit().entries();
        if let Ok(Some((_, root))) = root.next_dfs()
            && let Ok(Some(AttributeValue::Language(dw::DW_LANG_Go))) =
                root.attr_value(dw::DW_AT_language)
        {
            return Err(GOROUTINE);
        }
        let expression = match function.attr_value(dw::DW_AT_frame_base) {
            Ok(Some(AttributeValue::Exprloc(expression))) => expression,
            // gcc writes a location list in DWARF 2.
            Ok(Some(value)) => return self.base_of_list(value).ok_or(NOT_UNDERSTOOD),
            _ => return Err(NOT_UNDERSTOOD),
        };
        let mut operations = expression.operations(self.unit().encoding());
        let first = operations.next().map_err(|_| NOT_UNDERSTOOD)?;
        if !matches!(operations.next(), Ok(None)) {
            return Err(NOT_UNDERSTOOD);
        }
        let end = match function.attr_value(dw::DW_AT_high_pc) {
            Ok(Some(AttributeValue::Udata(len))) => self.linked.saturating_add(len),
            _ => self
                .address(function, dw::DW_AT_high_pc)
                .unwrap_or(self.linked),
        };
        match first {
            Some(Operation::CallFrameCFA) => {
                // Only its existence matters.
                self.distance_to_cfa(None, self.linked).map(|_| Base::Cfa)
            }
            Some(Operation::Register { register }) => Ok(self.base_register(register, 0, end)?),
            Some(Operation::RegisterOffset {
                register, offset, ..
            }) => Ok(self.base_register(register, offset, end)?),
            _ => Err(NOT_UNDERSTOOD),
        }
    }

    /// The base is the CFA if the list's value at the first instruction is eight bytes above the stack pointer.
    fn base_of_list(&self, value: AttributeValue<Slice>) -> Option<Base> {
        let mut entries = self.home().attr_locations(self.unit(), value).ok()??;
        while let Ok(Some(entry)) = entries.next() {
            if !(entry.range.begin..entry.range.end).contains(&self.linked) {
                continue;
            }
            let mut operations = entry.data.operations(self.unit().encoding());
            let is_cfa = matches!(
                operations.next(),
                Ok(Some(Operation::RegisterOffset {
                    register: X86_64::RSP,
                    offset: 8,
                    ..
                }))
            );
            self.distance_to_cfa(None, self.linked).ok()?;
            return (is_cfa && matches!(operations.next(), Ok(None))).then_some(Base::Cfa);
        }
        None
    }

    fn base_register(
        &self,
        register: Register,
        offset: i64,
        end: u64,
    ) -> Result<Base, &'static str> {
        let behind = self.prologue_end(end).ok_or(NOT_UNDERSTOOD)?;
        let from = self.distance_to_cfa(Some(register), behind)?;
        Ok(Base::Register(register, from + offset))
    }

    /// The end of the prologue, according to the compiler.
    fn prologue_end(&self, end: u64) -> Option<u64> {
        let mut rows = self.unit().line_program.clone()?.rows();
        while let Ok(Some((_, row))) = rows.next_row() {
            if row.prologue_end() && (self.linked..end).contains(&row.address()) {
                return Some(row.address());
            }
        }
        None
    }

    /// The value of a register at an instruction, relative to the CFA. Fails if the CFA is not a register plus an
    /// offset throughout the function: then the stack has been aligned.
    fn distance_to_cfa(&self, register: Option<Register>, at: u64) -> Result<i64, &'static str> {
        let (data, address) = self.module.object.unwind_table().ok_or(NOT_UNDERSTOOD)?;
        let table = EhFrame::from(Slice::new(data));
        let bases = BaseAddresses::default().set_eh_frame(address);
        let fde = table.fde_for_address(&bases, self.linked, EhFrame::cie_from_offset);
        let fde = fde.map_err(|_| NOT_UNDERSTOOD)?;
        let mut context = UnwindContext::new();
        let mut rows = fde
            .rows(&table, &bases, &mut context)
            .map_err(|_| NOT_UNDERSTOOD)?;
        let mut found = None;
        while let Some(row) = rows.next_row().map_err(|_| NOT_UNDERSTOOD)? {
            let CfaRule::RegisterAndOffset {
                register: of,
                offset,
            } = *row.cfa()
            else {
                return Err(ALIGNS);
            };
            if !matches!(of, X86_64::RSP | X86_64::RBP) {
                return Err(ALIGNS);
            }
            if (row.start_address()..row.end_address()).contains(&at) {
                found = Some((of, offset));
            }
        }
        match (found, register) {
            (Some((of, offset)), Some(register)) if of == register => Ok(-offset),
            (Some(_), None) => Ok(0),
            _ => Err(ALIGNS),
        }
    }

    /// The offset of a local from the CFA, and whether the frame holds only a pointer to it. `None` if it is in no
    /// frame.
    fn place(&self, entry: &Entry, base: Base) -> Result<Option<(i64, bool)>, &'static str> {
        let expression = match entry.attr_value(dw::DW_AT_location) {
            Ok(Some(AttributeValue::Exprloc(expression))) => expression,
            Ok(Some(_)) => return Err(MOVES),
            _ => return Err(IS_GONE),
        };
        // Each value, and whether it is relative to the CFA.
        let mut stack: Vec<(i64, bool)> = Vec::new();
        let mut pointer = false;
        let mut operations = expression.operations(self.unit().encoding());
        while let Some(operation) = operations.next().map_err(|_| NOT_UNDERSTOOD)? {
            if pointer {
                return Err(NOT_UNDERSTOOD);
            }
            match operation {
                Operation::FrameOffset { offset } => {
                    let from = match base {
                        Base::Cfa => 0,
                        Base::Register(_, from) => from,
                    };
                    stack.push((from.wrapping_add(offset), true));
                }
                Operation::CallFrameCFA => stack.push((0, true)),
                Operation::RegisterOffset {
                    register, offset, ..
                } => match base {
                    Base::Register(of, from) if of == register => {
                        stack.push((from.wrapping_add(offset), true));
                    }
                    _ => return Err(ALIGNS),
                },
                Operation::SignedConstant { value } => stack.push((value, false)),
                Operation::UnsignedConstant { value } => stack.push((value as i64, false)),
                Operation::PlusConstant { value } => {
                    let top = stack.last_mut().ok_or(NOT_UNDERSTOOD)?;
                    top.0 = top.0.wrapping_add(value as i64);
                }
                Operation::Plus => match (stack.pop(), stack.last_mut()) {
                    (Some(a), Some(b)) if !(a.1 && b.1) => {
                        *b = (a.0.wrapping_add(b.0), a.1 || b.1);
                    }
                    _ => return Err(NOT_UNDERSTOOD),
                },
                Operation::Deref { space: false, .. } => pointer = true,
                Operation::Nop => {}
                Operation::Register { .. }
                | Operation::EntryValue { .. }
                | Operation::Piece { .. } => return Err(MOVES),
                Operation::ImplicitValue { .. }
                | Operation::StackValue
                | Operation::ImplicitPointer { .. } => return Err(IS_GONE),
                Operation::Address { .. } | Operation::AddressIndex { .. } | Operation::TLS => {
                    return Ok(None);
                }
                _ => return Err(NOT_UNDERSTOOD),
            }
        }
        match stack[..] {
            [(offset, true)] => Ok(Some((offset, pointer))),
            _ => Err(NOT_UNDERSTOOD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_by_name() {
        for (full, name) in [
            ("fact", "fact"),
            ("fill.constprop.0", "fill"),
            ("ns::Pool::take(unsigned long) const", "take"),
            ("ns::Pool::take(unsigned long) const", "Pool::take"),
            (
                "void swap<std::pair<int, long> >(std::pair<int, long>&)",
                "swap",
            ),
            ("std::vector<int> ns::make<int>(int)", "ns::make<int>"),
            ("(anonymous namespace)::walk(node*)", "walk"),
            ("app::tree::Node<T>::insert", "Node::insert"),
            ("main.(*Counter).Set", "main.(*Counter).Set"),
            ("main.(*Counter).Set", "(*Counter).Set"),
            ("main.(*Counter).Set", "Counter.Set"),
            ("main.(*Counter).Set", "Set"),
        ] {
            assert!(is_called(full, name), "{full}: {name}");
        }
        for (full, name) in [
            ("refill", "fill"),
            ("main.(*Counter).Reset", "Set"),
            ("ns::fill(int)", "s::fill"),
            ("fill", "ns::fill"),
        ] {
            assert!(!is_called(full, name), "{full}: {name}");
        }
    }
}
