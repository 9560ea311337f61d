//! What is known of units.

use crate::dwarf::Die;
use crate::place::Place;
use gimli::{DebugStrOffset, UnitOffset};
use std::cell::RefCell;

/// Which file has a unit, in the order of `Index::units`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum File {
    Own,
    Supplementary,
    /// By its number in `Index::split`.
    Split(u32),
}

/// What there is in a unit.
#[derive(Default)]
pub struct Finds {
    /// Around variables; one comes before those within it.
    pub scopes: Vec<Scope>,
    pub variables: Vec<Variable>,
    pub locals: RefCell<Vec<(&'static str, LocalOf)>>,
    /// Structures that are more than declared.
    pub complete: RefCell<Vec<(&'static str, Die)>>,
    /// Variables whose name is at an entry of another unit.
    pub elsewhere: RefCell<Vec<(Variable, Die)>>,
    /// Entries that others refer to for a name, in order; empty, if no other unit does.
    pub declared: Vec<(UnitOffset, Declared)>,
}

/// What all units have of one name.
#[derive(Default)]
pub struct Searched {
    /// The name, or a path that ends with it.
    pub path: String,
    pub name: String,
    /// Around the variables, of all units together.
    pub scopes: Vec<Scope>,
    pub variables: Vec<Variable>,
    pub locals: Vec<(&'static str, LocalOf)>,
    pub complete: Vec<(&'static str, Die)>,
}

/// A name, as an entry has it: most of them nobody wants to know, and they are all over a large table.
#[derive(Clone, Copy, Debug)]
pub enum Text {
    Known(&'static str),
    /// In the table of the unit's file.
    At(DebugStrOffset),
}

/// A namespace, class or function. Paths are put together when they are asked for: those of nested scopes repeat
/// one another, and would take room for the square of their number.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    pub outer: Outer,
    /// Empty: it adds nothing to a path.
    pub name: Text,
    /// The innermost function.
    pub function: Option<Text>,
}

/// What is around a scope.
#[derive(Clone, Copy, Debug)]
pub enum Outer {
    Nothing,
    /// By its number in the same unit, or in the same search.
    Scope(u32),
    /// What is around its declaration, in another unit.
    Declaration(Die),
}

/// Where the scopes of a variable are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScopesOf {
    /// [`Finds`], by the unit's number.
    Unit(u32),
    /// [`Searched`], by the number of the search.
    Search(u32),
}

/// What an entry says for those that refer to it.
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
    /// By its number there.
    pub(super) scope: Option<(ScopesOf, u32)>,
    pub place: Place,
    /// Visible outside its file.
    pub external: bool,
    /// Entry that carries the type, and for the source file.
    pub die: Die,
    /// Entry that says in which file it is declared.
    pub decl_file: Option<u64>,
}

/// A variable that lives only while its function runs.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    pub function: &'static str,
    /// In a register at least part of the time.
    pub register: bool,
}

/// The same, as its unit has it.
#[derive(Clone, Copy, Debug)]
pub struct LocalOf {
    pub unit: u32,
    pub function: Option<Text>,
    pub register: bool,
}
