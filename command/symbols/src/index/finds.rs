//! Results of walking units.

use crate::dwarf::Die;
use crate::place::Place;
use gimli::{DebugStrOffset, UnitOffset};
use std::cell::RefCell;

/// The file of a unit, in the order of `Index::units`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum File {
    Own,
    Supplementary,
    /// A split file, by its number in `Index::split`.
    Split(u32),
}

/// The contents of a unit.
#[derive(Default)]
pub struct Finds {
    /// Scopes of variables; an outer scope precedes its inner ones.
    pub scopes: Vec<Scope>,
    pub variables: Vec<Variable>,
    pub locals: RefCell<Vec<(&'static str, LocalOf)>>,
    /// Structures with a definition.
    pub complete: RefCell<Vec<(&'static str, Die)>>,
    /// Variables whose name is in an entry of another unit.
    pub elsewhere: RefCell<Vec<(Variable, Die)>>,
    /// Entries that supply names to other units, in order; empty if no other unit refers to any.
    pub declared: Vec<(UnitOffset, Declared)>,
}

/// The entries of one name in all units.
#[derive(Default)]
pub struct Searched {
    /// The name, or a path that ends with it.
    pub path: String,
    pub name: String,
    /// Scopes of the variables, of all units together.
    pub scopes: Vec<Scope>,
    pub variables: Vec<Variable>,
    pub locals: Vec<(&'static str, LocalOf)>,
    pub complete: Vec<(&'static str, Die)>,
}

/// The name of an entry. Most names are never read, and they are scattered over a large table.
#[derive(Clone, Copy, Debug)]
pub enum Text {
    Known(&'static str),
    /// Offset in the string table of the unit's file.
    At(DebugStrOffset),
}

/// A namespace, class or function. Paths are composed on demand: paths of nested scopes repeat each other, and all
/// together would need space quadratic in their number.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    pub outer: Outer,
    /// Empty if the scope adds nothing to a path.
    pub name: Text,
    /// The innermost function around it.
    pub function: Option<Text>,
    /// An inline namespace: a path may leave it out.
    pub inline: bool,
}

/// The parent of a scope.
#[derive(Clone, Copy, Debug)]
pub enum Outer {
    Nothing,
    /// A scope, by its number in the same unit or the same search.
    Scope(u32),
    /// The parent of its declaration, in another unit.
    Declaration(Die),
}

/// The list that contains a variable's scopes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScopesOf {
    /// [`Finds`], by the unit's number.
    Unit(u32),
    /// [`Searched`], by the number of the search.
    Search(u32),
}

/// Name and scope of an entry, for entries that refer to it.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    pub name: Text,
    pub scope: Option<u32>,
}

impl Finds {
    pub fn declared(&self, die: Die) -> Option<Declared> {
        let found = self
            .declared
            .binary_search_by_key(&die.offset, |(at, _)| *at);
        found.ok().map(|n| self.declared[n].1)
    }
}

#[derive(Clone, Debug)]
pub struct Variable {
    pub name: &'static str,
    /// The list of its scope, and the scope's number there.
    pub(super) scope: Option<(ScopesOf, u32)>,
    pub place: Place,
    /// Visible outside its file.
    pub external: bool,
    /// The entry with its type and source file.
    pub die: Die,
    /// Number of the file in which it is declared.
    pub decl_file: Option<u64>,
}

/// A variable that exists only while its function runs.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    pub function: &'static str,
    /// It is in a register at least part of the time.
    pub register: bool,
}

/// A [`Local`] in the form of its unit.
#[derive(Clone, Copy, Debug)]
pub struct LocalOf {
    pub unit: u32,
    pub function: Option<Text>,
    pub register: bool,
}
