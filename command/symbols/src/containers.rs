//! Layouts of containers in memory, as described by `containers.json`.

use crate::types::{Member, Shape, Type};
use serde::Deserialize;
use std::rc::Rc;
use std::sync::OnceLock;

const TABLE: &str = include_str!("containers.json");

#[derive(Deserialize)]
struct Table {
    containers: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    class: String,
    /// The number of a template argument; after a member and a colon, an argument of that member's type.
    element: Option<String>,
    /// Path of the key in an element. Such elements have no numbers.
    key: Option<String>,
    /// Path of the wanted part of each element.
    item: Option<String>,
    #[serde(flatten)]
    form: Form,
}

/// How to find the elements. Strings are paths of members.
#[derive(Deserialize)]
#[serde(tag = "shape", rename_all = "lowercase")]
pub enum Form {
    Span {
        begin: String,
        end: Option<String>,
        count: Option<String>,
    },
    Array {
        at: String,
    },
    One {
        pointer: String,
        at: Option<String>,
    },
    Inline {
        flag: Option<String>,
        at: String,
    },
    List {
        first: String,
        next: String,
        header: Option<String>,
        count: Option<String>,
        #[serde(flatten)]
        place: InNode,
    },
    Tree {
        root: String,
        left: String,
        right: String,
        count: String,
        #[serde(flatten)]
        place: InNode,
    },
    Deque {
        start: String,
        finish: String,
        map: String,
    },
    Blocks {
        begin: String,
        head: String,
        count: String,
    },
    Ring {
        begin: String,
        capacity: String,
        head: String,
        count: String,
    },
    Table {
        control: String,
        mask: String,
        slots: Option<String>,
    },
    Btree {
        root: String,
        height: String,
        values: String,
        keys: String,
    },
    Directory {
        tables: String,
        length: String,
        groups: String,
        mask: String,
        control: String,
        slots: String,
    },
    Short {
        flag: String,
        begin: String,
        count: String,
        inside: String,
    },
    Fields {
        at: String,
    },
    Alternatives {
        at: String,
        rest: String,
        first: String,
        index: String,
    },
    Same {
        #[serde(rename = "as")]
        member: String,
    },
}

/// The position of the value in a node.
#[derive(Deserialize)]
pub struct InNode {
    /// After so many bytes, aligned for the value's type.
    after: Option<u64>,
    /// In this member.
    value: Option<String>,
}

impl InNode {
    /// The offset of the value in a node, or `None` if the node lacks the member.
    pub fn offset(&self, node: &Type, value: &Type) -> Option<u64> {
        match (&self.value, self.after) {
            (Some(path), _) => find(node, path).map(|member| member.offset),
            (None, after) => Some(after?.next_multiple_of(value.align())),
        }
    }
}

impl Form {
    fn paths(&self) -> Vec<&str> {
        let all: Vec<Option<&String>> = match self {
            Form::Span { begin, end, count } => vec![Some(begin), end.as_ref(), count.as_ref()],
            Form::Array { at } => vec![Some(at)],
            Form::Inline { at, flag } => vec![Some(at), flag.as_ref()],
            // (`at` is a member of the pointer's target.)
            Form::One { pointer, .. } => vec![Some(pointer)],
            Form::List {
                first,
                header,
                count,
                ..
            } => vec![Some(first), header.as_ref(), count.as_ref()],
            Form::Tree { root, count, .. } => vec![Some(root), Some(count)],
            Form::Deque { start, finish, map } => vec![Some(start), Some(finish), Some(map)],
            Form::Blocks { begin, head, count } => vec![Some(begin), Some(head), Some(count)],
            Form::Ring {
                begin,
                capacity,
                head,
                count,
            } => vec![Some(begin), Some(capacity), Some(head), Some(count)],
            Form::Table {
                control,
                mask,
                slots,
            } => vec![Some(control), Some(mask), slots.as_ref()],
            // (The other paths are members of its tables and their groups.)
            Form::Directory { tables, length, .. } => vec![Some(tables), Some(length)],
            // (Values and keys are members of its nodes.)
            Form::Btree { root, height, .. } => vec![Some(root), Some(height)],
            Form::Short {
                flag,
                begin,
                count,
                inside,
            } => vec![Some(flag), Some(begin), Some(count), Some(inside)],
            // (`at` is a pattern.)
            Form::Fields { .. } => vec![],
            Form::Alternatives { at, index, .. } => vec![Some(at), Some(index)],
            Form::Same { member } => vec![Some(member)],
        };
        all.into_iter().flatten().map(String::as_str).collect()
    }
}

/// The container form of a type.
#[derive(Clone, Copy)]
pub struct Container {
    pub form: &'static Form,
    pub element: Option<&'static str>,
    pub key: Option<&'static str>,
    pub item: Option<&'static str>,
}

impl Container {
    /// Whether elements have keys instead of numbers.
    pub fn keyed(&self) -> bool {
        self.key.is_some()
            || matches!(
                self.form,
                Form::Btree { .. } | Form::Table { .. } | Form::Directory { .. }
            )
    }
}

fn table() -> &'static Table {
    static TABLE_READ: OnceLock<Table> = OnceLock::new();
    // (A test parses the file, so a broken one cannot reach this point.)
    TABLE_READ.get_or_init(|| serde_json::from_str(TABLE).expect("containers.json is what it says"))
}

/// The container form of a type, or `None` if the type is not a known container.
pub fn container(ty: &Type) -> Option<Container> {
    let Shape::Struct { class, .. } = &ty.shape else {
        return None;
    };
    // Some names of rustc's begin with their modules.
    let head = class.name.split('<').next().unwrap_or("");
    let base = head.rsplit("::").next().unwrap_or("");
    let name = &class.name[head.len() - base.len()..];
    // (Types of different libraries may share a name, such as `span`. Their members distinguish them.)
    let pointer =
        |path: &str| find(ty, path).is_some_and(|m| matches!(m.ty.shape, Shape::Pointer { .. }));
    let fits = |entry: &&Entry| {
        let named = match entry.class.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => entry.class == base,
        };
        let right = || match &entry.form {
            Form::Span { begin, .. } | Form::Ring { begin, .. } | Form::Short { begin, .. } => {
                pointer(begin)
            }
            Form::One { pointer: path, .. }
            | Form::Tree { root: path, .. }
            | Form::Btree { root: path, .. }
            | Form::Blocks { begin: path, .. }
            | Form::Table { control: path, .. } => pointer(path),
            Form::Fields { at } => find(ty, &at.replace("{}", "0")).is_some(),
            _ => true,
        };
        named
            && entry
                .form
                .paths()
                .iter()
                .all(|path| find(ty, path).is_some())
            && right()
    };
    let entry = table().containers.iter().find(fits)?;
    Some(Container {
        form: &entry.form,
        element: entry.element.as_deref(),
        key: entry.key.as_deref(),
        item: entry.item.as_deref(),
    })
}

/// A member of nested members, with its offset from the start of `ty`.
pub fn find(ty: &Type, path: &str) -> Option<Member> {
    let mut found: Option<Member> = None;
    for name in path.split('.') {
        let inner = match &found {
            None => ty.matching(name)?,
            Some(outer) => {
                let inner = outer.ty.matching(name)?;
                let offset = outer.offset.checked_add(inner.offset)?;
                Member { offset, ..inner }
            }
        };
        found = Some(inner);
    }
    found
}

/// The type of the member at this path, or `ty` itself if the path is empty.
pub fn type_at(ty: &Rc<Type>, path: &str) -> Option<Rc<Type>> {
    match path {
        "" => Some(ty.clone()),
        path => find(ty, path).map(|member| member.ty),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        assert!(table().containers.len() > 30);
        for entry in &table().containers {
            let needs = matches!(
                entry.form,
                Form::List { .. }
                    | Form::Tree { .. }
                    | Form::Ring { .. }
                    | Form::Table { slots: None, .. }
                    | Form::Btree { .. }
            );
            assert!(!needs || entry.element.is_some(), "{}", entry.class);
            assert!(
                entry.form.paths().iter().all(|p| !p.is_empty()),
                "{}",
                entry.class
            );
        }
    }
}
