//! Numbers of variables for the client, valid until the program runs again.
#![forbid(unsafe_code)]

use super::sources::Sources;

/// The object of a `variablesReference`.
#[derive(Clone)]
pub enum Container {
    Scope((i64, i64), Kind),
    /// A variable object, and the frame in which it was made.
    Object(String, (i64, i64)),
    /// The last writer of a variable object, which the client fetches when the user asks.
    Writer(String, (i64, i64)),
}

#[derive(Clone)]
pub enum Kind {
    Named(Vec<String>),
    Globals,
    Registers,
}

#[derive(Default)]
pub struct Variables {
    list: Vec<Container>,
    first: i64,
    /// Root objects created since the program stopped.
    pub roots: Vec<String>,
    /// Objects to delete at the next opportunity.
    pub old: Vec<String>,
    pub made: u64,
    pub sources: Sources,
}

impl Variables {
    /// Invalidates all references.
    pub fn forget(&mut self) {
        self.first += self.list.len() as i64;
        self.list.clear();
        self.old.append(&mut self.roots);
    }

    pub fn add(&mut self, container: Container) -> i64 {
        self.list.push(container);
        self.first + self.list.len() as i64
    }

    pub fn scope(&mut self, frame: (i64, i64), kind: Kind) -> i64 {
        self.add(Container::Scope(frame, kind))
    }

    pub fn get(&self, reference: i64) -> Result<Container, String> {
        let at = reference.checked_sub(self.first + 1);
        let found = at.and_then(|at| self.list.get(usize::try_from(at).ok()?));
        found
            .cloned()
            .ok_or("That variable is gone: the program has run since.".into())
    }
}
