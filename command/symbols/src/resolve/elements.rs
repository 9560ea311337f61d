//! The elements of containers, as `containers.json` describes them.

use super::{Lvalue, Resolver};
use crate::containers::{Container, Form, container, find, type_at};
use crate::problem::Problem;
use crate::types::{Shape, Type};
use std::collections::HashSet;
use std::rc::Rc;

/// Of a list's or tree's nodes, and of the text of a key.
const LONGEST_KEY: u64 = 64;

/// Pointers and cells in one another.
const MOST_HELD: usize = 8;

/// Elements side by side: the number of the first, where it is, and how many they are.
struct Run {
    first: u64,
    addr: u64,
    count: u64,
}

impl Resolver<'_> {
    /// The container that a value is.
    pub(super) fn container(&self, value: &Lvalue) -> Option<Container> {
        container(value.ty.as_ref()?)
    }

    /// What smart pointers and cells hold: `*p`, `p->x`. `None` where the value is nothing of the kind.
    pub(super) fn held(&self, value: &Lvalue) -> Result<Option<Lvalue>, Problem> {
        match self.container(value).map(|c| c.form) {
            Some(Form::One { .. } | Form::Inline { .. }) => {}
            _ => return Ok(None),
        }
        match self.contents(value.clone(), None, None)?.pop() {
            Some(held) => Ok(Some(held)),
            None => Err(self.problem(
                format!("`{}` holds nothing now", value.name),
                "set the watch later (--at FUNCTION, ulpf attach, ulpf top), or watch the variable itself",
            )),
        }
    }

    /// The elements from `from` to the one before `to`, or all: neighbours together. Fewer than are asked for is
    /// an error; none at all is none.
    pub(super) fn contents(
        &self,
        value: Lvalue,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let Some(found) = self.container(&value) else {
            return Ok(Vec::new());
        };
        if let Form::Same { member } = found.form {
            let name = value.name.clone();
            let inner = self.member(&value, member)?;
            return self.contents(Lvalue { name, ..inner }, from, to);
        }
        if found.keyed && (from.is_some() || to.is_some()) {
            return Err(self.problem(
                format!("`{}` has keys, and no numbers", value.name),
                format!("for all of its elements write {}[*]", value.name),
            ));
        }
        if self.follows()
            && let Some(any) = self.any_element(&value, &found, from, to)?
        {
            return Ok(vec![any]);
        }
        match found.form {
            // `unique_ptr<T[]>`: the pointer is one to elements.
            Form::One { pointer, at: None }
                if (from.is_some() || to.is_some()) && self.of_elements(&value) =>
            {
                let pointer = self.member(&value, pointer)?;
                let name = value.name.clone();
                Ok(vec![self.slice(Lvalue { name, ..pointer }, from, to)?])
            }
            Form::One { .. } | Form::Inline { .. } if from.is_some() || to.is_some() => {
                // (Debug information may say that something holds itself.)
                let mut held = value.clone();
                for _ in 0..MOST_HELD {
                    match self.held(&held)? {
                        Some(inner) => held = inner,
                        None => break,
                    }
                }
                match self.container(&held).map(|c| c.form) {
                    Some(Form::One { .. } | Form::Inline { .. }) => Err(self.senseless(&value)),
                    Some(_) => self.contents(held, from, to),
                    None => Ok(vec![self.slice(held, from, to)?]),
                }
            }
            Form::One { pointer, at } => {
                let pointer = self.member(&value, pointer)?;
                let held = match self.follows() {
                    true => Some(self.deref(pointer)?),
                    false => self.deref_unless_null(pointer)?,
                };
                let Some(held) = held else {
                    return Ok(Vec::new());
                };
                let held = match at {
                    Some(at) => self.member(&held, at)?,
                    None => held,
                };
                let name = format!("*{}", value.name);
                Ok(vec![Lvalue { name, ..held }])
            }
            Form::Inline { flag, at } => {
                let mut value = value;
                if let Some(flag) = flag
                    && self.follows()
                {
                    value = self.if_flag(value, flag)?;
                } else if let Some(flag) = flag
                    && self.number(&self.member(&value, flag)?)? & 0xff == 0
                {
                    return Ok(Vec::new());
                }
                let name = format!("*{}", value.name);
                let held = self.member(&value, at)?;
                Ok(vec![Lvalue { name, ..held }])
            }
            Form::List { .. } | Form::Tree { .. } => self.nodes(&value, &found, from, to),
            _ => {
                let (element, runs) = self.runs(&value, &found)?;
                self.cut(&value, &element, &runs, from, to)
            }
        }
    }

    /// Is it a template of an array type?
    fn of_elements(&self, value: &Lvalue) -> bool {
        let argument = self.argument(value, "0");
        argument.is_some_and(|ty| matches!(ty.shape, Shape::Array { .. }))
    }

    /// Of runs of elements, those that are asked for.
    fn cut(
        &self,
        value: &Lvalue,
        element: &Rc<Type>,
        runs: &[Run],
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let size = runs.iter().map(|run| run.count).sum::<u64>();
        let (from, to) = self.within(value, size, from, to)?;
        let pieces = runs.iter().filter_map(|run| {
            let first = run.first.max(from);
            let behind = (run.first + run.count).min(to);
            let count = behind.checked_sub(first).filter(|n| *n > 0)?;
            let addr = run
                .addr
                .wrapping_add((first - run.first).wrapping_mul(element.size));
            let piece = Lvalue {
                addr,
                untyped: false,
                ..value.clone()
            };
            Some(piece.some(element.clone(), count, first as i64))
        });
        Ok(pieces.collect())
    }

    fn within(
        &self,
        value: &Lvalue,
        size: u64,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<(u64, u64), Problem> {
        let (first, behind) = (from.unwrap_or(0), to.unwrap_or(size as i64));
        if first < 0 || behind < first || behind as u64 > size {
            return Err(self.problem(
                format!(
                    "`{}` has {size} elements now, {} is none of them",
                    value.name,
                    if first < 0 { first } else { behind.max(first.saturating_add(1)) - 1 }
                ),
                "for all that there are now write [*]; set the watch later (--at FUNCTION, ulpf attach, ulpf top) if it is to grow first",
            ));
        }
        Ok((first as u64, behind as u64))
    }

    /// The elements of what keeps them side by side.
    fn runs(&self, value: &Lvalue, found: &Container) -> Result<(Rc<Type>, Vec<Run>), Problem> {
        let one = |addr, count| {
            vec![Run {
                first: 0,
                addr,
                count,
            }]
        };
        match found.form {
            Form::Array { at } => {
                let array = self.member(value, at)?;
                match array.ty.as_deref().map(|ty| &ty.shape) {
                    Some(Shape::Array {
                        element,
                        count: Some(count),
                        ..
                    }) => Ok((element.clone(), one(array.addr, *count))),
                    _ => Err(self.senseless(value)),
                }
            }
            Form::Span { begin, end, count } => {
                let begin = self.member(value, begin)?;
                let element = self.element(value, found, &begin)?;
                let addr = self.pointer(&begin)?;
                let count = match (end, count) {
                    (_, Some(count)) => self.number(&self.member(value, count)?)?,
                    (Some(end), None) => {
                        let end = self.pointer(&self.member(value, end)?)?;
                        let bytes = end.checked_sub(addr);
                        let bytes = bytes.ok_or_else(|| self.senseless(value))?;
                        bytes / element.size
                    }
                    (None, None) => 0,
                };
                self.sensible(value, count, element.size)?;
                Ok((element, one(addr, count)))
            }
            Form::Ring {
                begin,
                capacity,
                head,
                count,
            } => {
                let begin = self.member(value, begin)?;
                let element = self.element(value, found, &begin)?;
                let addr = self.pointer(&begin)?;
                let number = |path| self.number(&self.member(value, path)?);
                let (capacity, head, count) = (number(capacity)?, number(head)?, number(count)?);
                self.sensible(value, capacity, element.size)?;
                if count > capacity || head > capacity {
                    return Err(self.senseless(value));
                }
                let straight = count.min(capacity - head);
                let mut runs = one(addr.wrapping_add(head * element.size), straight);
                if straight < count {
                    runs.push(Run {
                        first: straight,
                        addr,
                        count: count - straight,
                    });
                }
                Ok((element, runs))
            }
            Form::Deque { start, finish } => self.chunks(value, start, finish),
            _ => Err(self.senseless(value)),
        }
    }

    /// libstdc++'s deque: a map of pointers to chunks; iterators know the current element and the chunk.
    fn chunks(
        &self,
        value: &Lvalue,
        start: &str,
        finish: &str,
    ) -> Result<(Rc<Type>, Vec<Run>), Problem> {
        let at = |iterator: &str, part: &str| {
            let member = self.member(value, &format!("{iterator}.{part}"))?;
            Ok::<_, Problem>((self.pointer(&member)?, member))
        };
        let (mut at_element, cur) = at(start, "_M_cur")?;
        let element = self
            .target(&cur)
            .filter(|ty| ty.size > 0)
            .ok_or_else(|| self.senseless(value))?;
        let ((first, _), (mut last, _), (mut node, _)) = (
            at(start, "_M_first")?,
            at(start, "_M_last")?,
            at(start, "_M_node")?,
        );
        let ((end, _), (last_node, _)) = (at(finish, "_M_cur")?, at(finish, "_M_node")?);
        let chunk = last.wrapping_sub(first);
        self.sensible(value, chunk, 1)?;
        let (mut runs, mut number) = (Vec::new(), 0);
        loop {
            let behind = if node == last_node { end } else { last };
            let bytes = behind.checked_sub(at_element).filter(|n| *n <= chunk);
            let bytes = bytes.ok_or_else(|| self.senseless(value))?;
            let count = bytes / element.size;
            if count > 0 {
                runs.push(Run {
                    first: number,
                    addr: at_element,
                    count,
                });
                number += count;
            }
            if node == last_node {
                return Ok((element, runs));
            }
            self.few(runs.len() as u64)?;
            node = node.wrapping_add(8);
            at_element = self.word(value, node)?;
            last = at_element.wrapping_add(chunk);
            if node > last_node {
                return Err(self.senseless(value));
            }
        }
    }

    /// The values in the nodes of lists and trees.
    fn nodes(
        &self,
        value: &Lvalue,
        found: &Container,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let element = found.element.and_then(|which| self.argument(value, which));
        let element = element.ok_or_else(|| self.senseless(value))?;
        let (nodes, after) = match found.form {
            Form::List {
                first,
                next,
                header,
                after,
            } => {
                let end = match header {
                    Some(header) => self.member(value, header)?.addr,
                    None => 0,
                };
                let link = self.member(value, first)?;
                // The links are alike: where one is in its node tells where the others are.
                let node = self.target(&link).ok_or_else(|| self.senseless(value))?;
                let next = find(&node, next)
                    .ok_or_else(|| self.senseless(value))?
                    .offset;
                let (mut nodes, mut seen) = (Vec::new(), HashSet::new());
                let mut node = self.pointer(&link)?;
                while node != 0 && node != end && seen.insert(node) {
                    nodes.push(node);
                    self.few(nodes.len() as u64)?;
                    node = self.word(value, node.wrapping_add(next))?;
                }
                (nodes, *after)
            }
            Form::Tree { header, after } => (self.tree(value, header)?, *after),
            _ => return Err(self.senseless(value)),
        };
        let (from, to) = self.within(value, nodes.len() as u64, from, to)?;
        let offset = after.next_multiple_of(element.align());
        let numbered = nodes.iter().zip(0u64..);
        let values = numbered
            .filter(|(_, n)| (from..to).contains(n))
            .map(|(node, n)| {
                let mut held = Lvalue {
                    addr: node.wrapping_add(offset),
                    ty: Some(element.clone()),
                    slice: None,
                    bits: None,
                    untyped: false,
                    ..value.clone()
                };
                let key = found.keyed.then(|| self.key(&held)).flatten();
                held.name = format!("{}[{}]", value.name, key.unwrap_or(n.to_string()));
                held
            });
        Ok(values.collect())
    }

    /// The nodes of libstdc++'s red-black tree, in order.
    fn tree(&self, value: &Lvalue, header: &str) -> Result<Vec<u64>, Problem> {
        let header = self.member(value, header)?;
        let base = header.ty.clone().ok_or_else(|| self.senseless(value))?;
        let part = |name| {
            find(&base, name)
                .map(|m| m.offset)
                .ok_or_else(|| self.senseless(value))
        };
        let (left, right) = (part("_M_left")?, part("_M_right")?);
        let root = self.word(value, header.addr.wrapping_add(part("_M_parent")?))?;
        let (mut nodes, mut above, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let mut node = root;
        loop {
            while node != 0 {
                if !seen.insert(node) {
                    return Err(self.senseless(value));
                }
                self.few(seen.len() as u64)?;
                above.push(node);
                node = self.word(value, node.wrapping_add(left))?;
            }
            let Some(next) = above.pop() else {
                return Ok(nodes);
            };
            nodes.push(next);
            node = self.word(value, next.wrapping_add(right))?;
        }
    }

    /// The key of a pair, as a text: of a number, or of characters.
    fn key(&self, pair: &Lvalue) -> Option<String> {
        let first = self.member(pair, "first").ok()?;
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
            // Of strings; what else contains something is no text.
            Shape::Struct { .. } => {
                let form = self.container(&first)?.form;
                if !matches!(form, Form::Span { .. }) {
                    return None;
                }
                let characters = self.contents(first, None, None).ok()?.pop()?;
                let Shape::Array { element, .. } = &characters.ty.as_ref()?.shape else {
                    return None;
                };
                if !matches!(element.shape, Shape::Char { .. }) || element.size != 1 {
                    return None;
                }
                said = format!("{:?}", String::from_utf8(text(&characters)?).ok()?);
            }
            _ => return None,
        }
        Some(said)
    }

    /// A member of members, as an object of its own.
    pub(super) fn member(&self, value: &Lvalue, path: &str) -> Result<Lvalue, Problem> {
        let found = value.ty.as_deref().and_then(|ty| find(ty, path));
        let found = found.ok_or_else(|| self.senseless(value))?;
        Ok(Lvalue {
            addr: value.addr.wrapping_add(found.offset),
            ty: Some(found.ty),
            slice: None,
            bits: None,
            ..value.clone()
        })
    }

    /// What the elements behind `begin` are.
    pub(super) fn element(
        &self,
        value: &Lvalue,
        found: &Container,
        begin: &Lvalue,
    ) -> Result<Rc<Type>, Problem> {
        let ty = match found.element {
            Some(which) => self.argument(value, which),
            None => self.target(begin),
        };
        ty.filter(|ty| ty.size > 0).ok_or_else(|| {
            self.problem(
                format!("what the elements of `{}` are is not known", value.name),
                super::explain::BUILD_WITH_G,
            )
        })
    }

    /// `N`: a template argument of the value's class; `MEMBER:N`: of that member's.
    pub(super) fn argument(&self, value: &Lvalue, which: &str) -> Option<Rc<Type>> {
        let (path, number) = which.rsplit_once(':').unwrap_or(("", which));
        let class = type_at(value.ty.as_ref()?, path)?;
        let Shape::Struct { class, .. } = &class.shape else {
            return None;
        };
        let argument = class.arguments.get(number.parse::<usize>().ok()?)?;
        value.module.as_ref()?.types.get(*argument)
    }

    /// What a pointer points to, as a type.
    pub(super) fn target(&self, pointer: &Lvalue) -> Option<Rc<Type>> {
        match pointer.ty.as_deref()?.shape {
            Shape::Pointer { to: Some(to), .. } => pointer.module.as_ref()?.types.get(to),
            _ => None,
        }
    }

    /// A number of up to eight bytes.
    pub(super) fn number(&self, value: &Lvalue) -> Result<u64, Problem> {
        let size = value.ty.as_ref().map_or(8, |ty| ty.size).clamp(1, 8) as usize;
        let mut bytes = [0; 8];
        match self.memory.read(value.addr, &mut bytes[..size]) {
            true => Ok(u64::from_le_bytes(bytes)),
            false => Err(self.senseless(value)),
        }
    }

    fn word(&self, value: &Lvalue, addr: u64) -> Result<u64, Problem> {
        let mut bytes = [0; 8];
        match self.memory.read(addr, &mut bytes) {
            true => Ok(u64::from_le_bytes(bytes)),
            false => Err(self.senseless(value)),
        }
    }

    fn sensible(&self, value: &Lvalue, count: u64, size: u64) -> Result<(), Problem> {
        // No program has so much memory.
        match count.checked_mul(size) {
            Some(0..=0x7fff_ffff_ffff) => Ok(()),
            _ => Err(self.senseless(value)),
        }
    }

    pub(super) fn senseless(&self, value: &Lvalue) -> Problem {
        self.problem(
            format!("what is in `{}` makes no sense as a container", value.name),
            "set the watch when it has been constructed (--at FUNCTION, ulpf attach, ulpf top)",
        )
    }
}
