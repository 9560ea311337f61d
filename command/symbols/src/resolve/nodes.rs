//! Values in the nodes of lists and trees, and in hash tables. The stub's walk finds them (`ulpf_lib::command::Path`).

use super::{Lvalue, Resolver};
use crate::containers::{Container, Form, InNode, find};
use crate::problem::Problem;
use crate::types::{Shape, Type};
use std::rc::Rc;
use ulpf_lib::command::Step;

/// Longest text of a key, in bytes.
const LONGEST_KEY: u64 = 64;

/// A node's value, and its key if the key is outside the value.
struct Found {
    value: u64,
    key: Option<u64>,
}

/// The way from a container to its elements: make `step` at `at`, then add `offset`.
pub(super) struct Through {
    pub at: u64,
    pub step: Step,
    pub offset: u64,
    /// The keys, if they are outside the elements: another step and offset from `at`, and their type.
    keys: Option<(Step, u64, Rc<Type>)>,
    /// The wanted part of each element.
    pub item: Option<(u64, Rc<Type>)>,
    pub element: Rc<Type>,
}

impl Resolver<'_> {
    /// The values in the nodes of lists and trees.
    pub(super) fn nodes(
        &self,
        value: &Lvalue,
        found: &Container,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let through = self.through(value, found)?;
        let places = |step, size| {
            let runs = self.traced(value, through.at, step, size)?.into_iter();
            let each = runs.flat_map(move |run| (0..run.count).map(move |n| run.addr + n * size));
            Ok::<Vec<u64>, Problem>(each.collect())
        };
        let nodes = places((through.step, through.offset), through.element.size)?;
        let keys = match &through.keys {
            Some((step, offset, ty)) => places((*step, *offset), ty.size.max(1))?,
            None => Vec::new(),
        };
        let keys = keys.into_iter().map(Some).chain(std::iter::repeat(None));
        let all: Vec<Found> = nodes
            .into_iter()
            .zip(keys)
            .map(|(value, key)| Found { value, key })
            .collect();
        let (from, to) = self.within(value, all.len() as u64, from, to)?;
        let numbered = all.iter().zip(0u64..);
        let values = numbered
            .filter(|(_, n)| (from..to).contains(n))
            .map(|(one, n)| {
                let mut held = Lvalue {
                    addr: one.value,
                    ty: Some(through.element.clone()),
                    slice: None,
                    bits: None,
                    untyped: false,
                    ..value.clone()
                };
                let key = match (&through.keys, one.key) {
                    (Some((.., ty)), Some(addr)) => {
                        let ty = Some(ty.clone());
                        self.text_of(Lvalue {
                            addr,
                            ty,
                            ..held.clone()
                        })
                    }
                    _ => found
                        .key
                        .and_then(|path| self.text_of(self.member(&held, path).ok()?)),
                };
                if let Some((offset, ty)) = &through.item {
                    held.addr = held.addr.wrapping_add(*offset);
                    held.ty = Some(ty.clone());
                }
                held.name = format!("{}[{}]", value.name, key.unwrap_or(n.to_string()));
                held
            });
        Ok(values.collect())
    }

    /// The way to the elements of a container with nodes or a table.
    pub(super) fn through(&self, value: &Lvalue, found: &Container) -> Result<Through, Problem> {
        let senseless = || self.senseless(value);
        let element = match found.form {
            Form::Table {
                slots: Some(slots), ..
            } => self.target(&self.member(value, slots)?),
            _ => found.element.and_then(|which| self.argument(value, which)),
        };
        let element = element.ok_or_else(senseless)?;
        let from = |start: &Lvalue, path: &str| {
            let member = self.member(value, path)?;
            Ok::<u64, Problem>(member.addr.wrapping_sub(start.addr))
        };
        let offset_in = |node: &Type, path: &str| {
            let member = find(node, path).ok_or_else(senseless)?;
            Ok::<u64, Problem>(member.offset)
        };
        let in_node =
            |place: &InNode, node: &Type| place.offset(node, &element).ok_or_else(senseless);
        let mut keys = None;
        let (start, step, offset) = match found.form {
            Form::List {
                first,
                next,
                header,
                count,
                place,
            } => {
                let first = self.member(value, first)?;
                // All links are alike: the position of one in its node is that of the others.
                let node = self.target(&first).ok_or_else(senseless)?;
                let step = Step::List {
                    link: offset_in(&node, next)?,
                    pointer: true,
                    end: header.as_ref().map(|at| from(&first, at)).transpose()?,
                    count: count.as_ref().map(|at| from(&first, at)).transpose()?,
                };
                let offset = in_node(place, &node)?;
                (first, step, offset)
            }
            Form::Tree {
                root,
                left,
                right,
                count,
                place,
            } => {
                let root = self.member(value, root)?;
                let node = self.target(&root).ok_or_else(senseless)?;
                let step = Step::Tree {
                    left: offset_in(&node, left)?,
                    right: offset_in(&node, right)?,
                    count: from(&root, count)?,
                };
                let offset = in_node(place, &node)?;
                (root, step, offset)
            }
            Form::Table {
                control,
                mask,
                slots,
            } => {
                let control = self.member(value, control)?;
                let slots = slots.as_ref().map(|path| from(&control, path));
                let step = Step::Table {
                    mask: from(&control, mask)?,
                    slots: slots.transpose()?,
                    stride: element.size,
                };
                (control, step, 0)
            }
            Form::Btree {
                root,
                height,
                values,
                keys: of_keys,
            } => {
                let root = self.member(value, root)?;
                let leaf = self.target(&root).ok_or_else(senseless)?;
                // Nodes above the leaves begin like leaves. Only the type of the parent pointer describes such a node.
                let parent = find(&leaf, "parent.Some.__0.pointer").ok_or_else(senseless)?;
                let parent = Lvalue {
                    ty: Some(parent.ty),
                    ..root.clone()
                };
                let above = self.target(&parent).ok_or_else(senseless)?;
                if offset_in(&above, "data")? != 0 {
                    return Err(senseless());
                }
                let room = |path: &str| {
                    let array = find(&leaf, path).ok_or_else(senseless)?;
                    match &array.ty.shape {
                        Shape::Array {
                            element,
                            count: Some(count),
                            ..
                        } => Ok((array.offset, *count, element.clone())),
                        _ => Err(senseless()),
                    }
                };
                let (height, len) = (from(&root, height)?, offset_in(&leaf, "len")?);
                let edges = offset_in(&above, "edges")?;
                let (offset, room_of_node, slot) = room(values)?;
                let step = |slot: &Type| Step::Btree {
                    height,
                    len,
                    edges,
                    room: room_of_node,
                    stride: slot.size,
                };
                let (key_offset, _, key_slot) = room(of_keys)?;
                let key = self.argument(value, "0").ok_or_else(senseless)?;
                keys = Some((step(&key_slot), key_offset, key));
                (root, step(&slot), offset)
            }
            _ => return Err(senseless()),
        };
        let item = match found.item {
            Some(path) => {
                let item = find(&element, path).ok_or_else(senseless)?;
                Some((item.offset, item.ty))
            }
            None => None,
        };
        if element.size == 0 || item.as_ref().is_some_and(|(_, ty)| ty.size == 0) {
            return Err(self.problem(
                format!("the elements of `{}` have no bytes", value.name),
                "watch the container itself",
            ));
        }
        Ok(Through {
            at: start.addr,
            step,
            offset,
            keys,
            item,
            element,
        })
    }

    /// A key as text: a number, or characters.
    pub(super) fn text_of(&self, first: Lvalue) -> Option<String> {
        let ty = first.ty.clone()?;
        let text = |held: &Lvalue| {
            let mut bytes = vec![0; held.ty.as_ref()?.size.min(LONGEST_KEY) as usize];
            let whole = held.ty.as_ref()?.size == bytes.len() as u64;
            (whole && self.memory.read(held.addr, &mut bytes)).then_some(bytes)
        };
        let mut said = String::new();
        match &ty.shape {
            Shape::Int { .. } | Shape::Bool | Shape::Enum { .. } | Shape::Pointer { .. } => {
                crate::value::render_scalar(&ty, &text(&first)?, &mut said);
            }
            // Strings; other containers are not text.
            Shape::Struct { .. } => {
                let mut form = self.container(&first)?.form;
                if let Form::Same { member } = form {
                    form = self.container(&self.member(&first, member).ok()?)?.form;
                }
                if !matches!(form, Form::Span { .. } | Form::Short { .. }) {
                    return None;
                }
                let now = Resolver {
                    stays: &std::cell::Cell::new(true),
                    ..*self
                };
                let characters = now.contents(first.clone(), None, None).ok()?.pop()?;
                let Shape::Array { element, .. } = &characters.ty.as_ref()?.shape else {
                    return None;
                };
                // (Rust's strings consist of bytes.)
                let class = &first.ty.as_ref()?.name;
                let is_text = matches!(element.shape, Shape::Char { .. })
                    || class.ends_with("String")
                    || class.ends_with("&str")
                    || class.ends_with("struct string")
                    || class == "string";
                if !is_text || element.size != 1 {
                    return None;
                }
                said = format!("{:?}", String::from_utf8(text(&characters)?).ok()?);
            }
            _ => return None,
        }
        Some(said)
    }
}
