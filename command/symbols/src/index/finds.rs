//! What is known of units.

use crate::dwarf::Die;
use crate::place::Place;
use gimli::UnitOffset;
use std::cell::RefCell;
use std::collections::HashMap;

/// What there is in a unit.
#[derive(Default)]
pub struct Finds {
    /// Around variables; one comes before those within it.
    pub scopes: Vec<Scope>,
    pub variables: Vec<Variable>,
    pub locals: RefCell<Vec<(&'static str, Local)>>,
    /// Structures that are more than declared.
    pub complete: RefCell<Vec<(&'static str, Die)>>,
    /// Variables whose name is at an entry of another unit.
    pub elsewhere: RefCell<Vec<(Variable, Die)>>,
    /// Entries that others refer to for a name; empty, if no other unit does.
    pub declared: HashMap<UnitOffset, Declared>,
}

/// A namespace, class or function. Paths are put together when they are asked for: those of nested scopes repeat
/// one another, and would take room for the square of their number.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    pub outer: Outer,
    /// Empty: it adds nothing to a path.
    pub name: &'static str,
    /// The innermost function.
    pub function: Option<&'static str>,
}

/// What is around a scope.
#[derive(Clone, Copy, Debug)]
pub enum Outer {
    Nothing,
    /// By its number in the same unit.
    Scope(u32),
    /// What is around its declaration, in another unit.
    Declaration(Die),
}

/// What an entry says for those that refer to it.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    pub name: &'static str,
    pub scope: Option<u32>,
}

impl Finds {
    pub fn declared(&self, die: Die) -> Option<Declared> {
        self.declared.get(&die.offset).copied()
    }
}

#[derive(Clone, Debug)]
pub struct Variable {
    pub name: &'static str,
    /// By its unit and its number there.
    pub(super) scope: Option<(u32, u32)>,
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
