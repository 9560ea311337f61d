//! The elements of containers, as described by `containers.json`.

use super::{Lvalue, Resolver};
use crate::containers::{Container, Form, container, find, type_at};
use crate::problem::Problem;
use crate::types::{Shape, Type, Variant};
use std::rc::Rc;
use ulpf_lib::command::{self, Path, Step};

/// Limit of nested pointers and cells.
pub(super) const MOST_HELD: usize = 8;

/// Adjacent elements: the number of the first, its address, and their count.
pub(super) struct Run {
    first: u64,
    pub addr: u64,
    pub count: u64,
}

impl Resolver<'_> {
    /// The container form of a value.
    pub(super) fn container(&self, value: &Lvalue) -> Option<Container> {
        container(value.ty.as_ref()?)
    }

    /// The value held by a smart pointer or cell: `*p`, `p->x`. `None` if the value is neither.
    pub(super) fn held(&self, value: &Lvalue) -> Result<Option<Lvalue>, Problem> {
        match self.container(value).map(|c| c.form) {
            Some(Form::One { .. } | Form::Inline { .. }) => {}
            _ => return Ok(None),
        }
        match self.contents(value.clone(), None, None)?.pop() {
            Some(held) => Ok(Some(held)),
            None => Err(self.problem(
                format!("`{}` holds nothing now", value.name),
                self.later("later") + ", or watch the variable itself",
            )),
        }
    }

    /// The elements from `from` up to, but not including, `to`, or all; neighbours are merged. Too few elements are an
    /// error; an empty container is not.
    pub(super) fn contents(
        &self,
        value: Lvalue,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let Some(found) = self.container(&value) else {
            return Ok(Vec::new());
        };
        self.decided.set(true);
        if let Form::Same { member } = found.form {
            let name = value.name.clone();
            let inner = self.member(&value, member)?;
            return self.contents(Lvalue { name, ..inner }, from, to);
        }
        if found.keyed() && (from.is_some() || to.is_some()) {
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
            Form::Fields { at } => self.one_field(&value, at, from, to),
            Form::Alternatives { .. } => self.alternative(value, found.form, from, to),
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
                let held = self.if_active(value, at)?;
                Ok(held
                    .into_iter()
                    .map(|held| Lvalue {
                        name: name.clone(),
                        ..held
                    })
                    .collect())
            }
            Form::Directory { .. } => self.directory(&value, &found),
            Form::List { .. } | Form::Tree { .. } | Form::Table { .. } | Form::Btree { .. } => {
                self.nodes(&value, &found, from, to)
            }
            _ => {
                let (element, runs) = self.runs(&value, &found)?;
                self.cut(&value, &element, &runs, from, to)
            }
        }
    }

    /// The elements of a container, which smart pointers and cells may hold. If they hold another type, its value.
    pub(super) fn contained(
        &self,
        value: Lvalue,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let name = value.name.clone();
        let mut held = value;
        // (Debug information may say that a type holds itself.)
        for _ in 0..MOST_HELD {
            match self.container(&held).map(|c| c.form) {
                // `unique_ptr<T[]>`: its pointer leads to elements.
                Some(Form::One { pointer, at: None })
                    if (from.is_some() || to.is_some()) && self.of_elements(&held) =>
                {
                    let pointer = self.member(&held, pointer)?;
                    return Ok(vec![self.slice(Lvalue { name, ..pointer }, from, to)?]);
                }
                Some(Form::One { .. } | Form::Inline { .. }) => match self.held(&held)? {
                    Some(inner) => held = inner,
                    None => break,
                },
                Some(_) => return self.contents(Lvalue { name, ..held }, from, to),
                None => break,
            }
        }
        let array = matches!(
            held.ty.as_deref().map(|ty| &ty.shape),
            Some(Shape::Array { .. })
        );
        match array || from.is_some() || to.is_some() {
            true => Ok(vec![self.slice(Lvalue { name, ..held }, from, to)?]),
            false => Ok(vec![held]),
        }
    }

    /// A member at a path that may contain enum variants. `None` if another variant is active now; the watch then stays
    /// where it is.
    fn if_active(&self, value: Lvalue, path: &str) -> Result<Option<Lvalue>, Problem> {
        let mut at = value;
        for name in path.split('.') {
            let member = at.ty.as_deref().and_then(|ty| ty.matching(name));
            let member = member.ok_or_else(|| self.senseless(&at))?;
            if let Some(variant) = member.variant {
                match self.if_variant(at, variant)? {
                    Some(there) => at = there,
                    None => return Ok(None),
                }
            }
            at = Lvalue {
                addr: at.addr.wrapping_add(member.offset),
                ty: Some(member.ty),
                slice: None,
                bits: None,
                ..at
            };
        }
        Ok(Some(at))
    }

    /// The element of a tuple with the given number.
    fn one_field(
        &self,
        value: &Lvalue,
        at: &str,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let number = self.one_number(value, from, to)?;
        let path = at.replace("{}", &number.to_string());
        match value.ty.as_deref().and_then(|ty| find(ty, &path)) {
            Some(_) => Ok(vec![self.member(value, &path)?]),
            None => Err(self.problem(
                format!(
                    "`{}` has no element {number}, or one without bytes",
                    value.name
                ),
                "count its elements from 0",
            )),
        }
    }

    /// The alternative of a variant with the given number, while it is the active one.
    fn alternative(
        &self,
        value: Lvalue,
        form: &Form,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let Form::Alternatives {
            at,
            rest,
            first,
            index,
        } = form
        else {
            return Err(self.senseless(&value));
        };
        let number = self.one_number(&value, from, to)?;
        let Some(ty) = self.argument(&value, &number.to_string()) else {
            return Err(self.problem(
                format!("`{}` has no alternative {number}", value.name),
                "count its alternatives from 0",
            ));
        };
        let says = self.member(&value, index)?;
        let size = says.ty.as_ref().map_or(1, |ty| ty.size).clamp(1, 8);
        let variant = Variant {
            at: says.addr.wrapping_sub(value.addr),
            size,
            first: number,
            count: 1,
            inside: true,
        };
        let there = self.if_variant(value.clone(), variant)?;
        let Some(there) = there else {
            let now = self.number(&says)?;
            return Err(self.problem(
                format!("`{}` has its alternative {now} now", value.name),
                self.later("when it has that one") + ", or without `snapshot`",
            ));
        };
        let mut path = at.clone();
        for _ in 0..number {
            path = format!("{path}.{rest}");
        }
        let found = self.member(&there, &format!("{path}.{first}"))?;
        Ok(vec![Lvalue {
            ty: Some(ty),
            ..found
        }])
    }

    /// The number in a range of length one.
    fn one_number(
        &self,
        value: &Lvalue,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<u64, Problem> {
        match (from, to) {
            (Some(from @ 0..=64), Some(to)) if to == from + 1 => Ok(from as u64),
            _ => Err(self.problem(
                format!("the elements of `{}` are of several types", value.name),
                format!("watch one of them: {}[0]", value.name),
            )),
        }
    }

    /// Whether the value is a template of an array type.
    fn of_elements(&self, value: &Lvalue) -> bool {
        let argument = self.argument(value, "0");
        argument.is_some_and(|ty| matches!(ty.shape, Shape::Array { .. }))
    }

    /// Selects the requested elements from runs.
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

    pub(super) fn within(
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
                    "`{}` has {size} elements now, and {} is not among them",
                    value.name,
                    if first < 0 {
                        first
                    } else {
                        behind.max(first.saturating_add(1)) - 1
                    }
                ),
                format!(
                    "for all that there are now write [*]; {} if it is to grow first",
                    self.later("later")
                ),
            ));
        }
        Ok((first as u64, behind as u64))
    }

    /// The elements of a container that stores them side by side.
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
            Form::Blocks { begin, head, count } => {
                let begin = self.member(value, begin)?;
                let element = self.element(value, found, &begin)?;
                let number = |path| self.number(&self.member(value, path)?);
                let (head, count) = (number(head)?, number(count)?);
                self.sensible(value, head.saturating_add(count), element.size)?;
                let room = match element.size {
                    1..256 => 4096 / element.size,
                    _ => 16,
                };
                let blocks = self.pointer(&begin)?;
                let (mut runs, mut first) = (Vec::new(), 0);
                while first < count {
                    let (block, inside) = ((head + first) / room, (head + first) % room);
                    let start = self.word(value, blocks.wrapping_add(block * 8))?;
                    let here = (room - inside).min(count - first);
                    runs.push(Run {
                        first,
                        addr: start.wrapping_add(inside * element.size),
                        count: here,
                    });
                    first += here;
                    self.few(runs.len() as u64)?;
                }
                Ok((element, runs))
            }
            _ => {
                let to = self.step_to(value, found, (0, u64::MAX))?;
                let (begin, step, element) = to.ok_or_else(|| self.senseless(value))?;
                let runs = self.traced(value, begin.addr, (step, 0), element.size)?;
                Ok((element, runs))
            }
        }
    }

    /// The present targets of a step, of `size` bytes each, in its order.
    pub(super) fn traced(
        &self,
        value: &Lvalue,
        at: u64,
        step: (Step, u64),
        size: u64,
    ) -> Result<Vec<Run>, Problem> {
        let most = self.spec.filter.most.unwrap_or(super::walk::MOST_PLACES);
        let path = Path::new(at, vec![step]);
        let path = path.map_err(|why| self.problem(why, "watch the container itself"))?;
        let trace = self.trace(&path.with_most(most), size);
        self.few(most + u64::from(trace.more))?;
        if trace.words.iter().any(|word| word.value.is_none()) {
            return Err(self.senseless(value));
        }
        let run = |run: &command::Run| Run {
            first: run.first,
            addr: run.range.start.0,
            count: run.range.len / size,
        };
        Ok(trace.runs.iter().map(run).collect())
    }

    /// A member of nested members, as an object of its own.
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

    /// The type of the elements at `begin`.
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

    /// `N`: a template argument of the value's class; `MEMBER:N`: an argument of that member's class.
    pub(super) fn argument(&self, value: &Lvalue, which: &str) -> Option<Rc<Type>> {
        let (path, number) = which.rsplit_once(':').unwrap_or(("", which));
        let class = type_at(value.ty.as_ref()?, path)?;
        let Shape::Struct { class, .. } = &class.shape else {
            return None;
        };
        let argument = class.arguments.get(number.parse::<usize>().ok()?)?;
        value.module.as_ref()?.types.get(*argument)
    }

    /// The type that a pointer points to.
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

    pub(super) fn word(&self, value: &Lvalue, addr: u64) -> Result<u64, Problem> {
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
            self.later("when it has been constructed"),
        )
    }
}
