//! Any of several places, for a watch that follows pointers. The path leads to all of them, and the rest of the
//! expression is resolved once, for a representative.

use super::{Lvalue, Resolver};
use crate::containers::{Container, Form};
use crate::problem::Problem;
use crate::types::{Shape, Type};
use std::rc::Rc;
use ulpf_lib::command::{Path, Step, Trace, Until};

impl Resolver<'_> {
    /// Any element of a slice that the path leads to.
    pub(super) fn any_of(&self, value: Lvalue) -> Result<Lvalue, Problem> {
        if value.slice.is_none() {
            return Ok(value);
        }
        if value.walked {
            return Ok(value.element_of_walk());
        }
        let array = value.ty.as_deref().map(|ty| &ty.shape);
        let (element, count) = match (value.slice, array) {
            (
                Some(first),
                Some(Shape::Array {
                    element,
                    count: Some(count),
                    bounds,
                }),
            ) if bounds.indexed("", first) == format!("[{first}]") && !value.way.is_many() => {
                (element.clone(), *count)
            }
            _ => {
                self.stay()?;
                return Ok(value);
            }
        };
        let stride = element.size;
        let (at, there) = (value.addr, value.way.whole);
        let any = value.by(Step::Times { count, stride }, at, there.then_some(at));
        Ok(Lvalue {
            first: any.slice.unwrap_or(0),
            ..any.element_of(element)
        })
    }

    /// Any node of a list that the watch follows.
    pub(super) fn any_node(&self, head: Lvalue, link: &str) -> Result<Lvalue, Problem> {
        let name = format!("{}->*{link}[*]", head.name);
        let pointer = !matches!(
            head.ty.as_deref().map(|ty| &ty.shape),
            Some(Shape::Struct { .. })
        );
        let (at, before) = (head.addr, head.way.clone());
        let node = match pointer {
            true => self.deref(head)?,
            false => head,
        };
        let next = self.field(node.clone(), link)?;
        if !matches!(
            next.ty.as_deref().map(|ty| &ty.shape),
            Some(Shape::Pointer { .. })
        ) {
            return Err(self.not_a_pointer(&next));
        }
        let step = Step::List {
            link: next.addr.wrapping_sub(node.addr),
            pointer,
            end: None,
            count: None,
        };
        let to = node.way.whole.then_some(node.addr);
        let node = Lvalue {
            name,
            way: before,
            ..node
        };
        Ok(node.by(step, at, to))
    }

    /// The value that exists only while a flag is set.
    pub(super) fn if_flag(&self, value: Lvalue, flag: &str) -> Result<Lvalue, Problem> {
        let flag = self.member(&value, flag)?;
        let there = value.way.whole && self.number(&flag)? & 0xff != 0;
        let step = Step::If {
            at: flag.addr.wrapping_sub(value.addr),
            size: 1,
        };
        let at = value.addr;
        Ok(value.by(step, at, there.then_some(at)))
    }

    /// Any element of a container that the watch follows, or all of its adjacent elements. `None` if its contents are
    /// found without a step of their own.
    pub(super) fn any_element(
        &self,
        value: &Lvalue,
        found: &Container,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Option<Lvalue>, Problem> {
        match found.form {
            // (Two of them have no numbers.)
            Form::Span { .. }
            | Form::Short { .. }
            | Form::Ring { .. }
            | Form::Deque { .. }
            | Form::List { .. }
            | Form::Tree { .. }
            | Form::Table { .. }
            | Form::Btree { .. }
                if value.way.is_many() => {}
            Form::Span { begin, end, count } => {
                let until = (end.as_deref(), count.as_deref());
                return self
                    .any_of_span(value, found, begin, until, (from, to))
                    .map(Some);
            }
            Form::Short {
                flag,
                begin,
                count,
                inside,
            } => {
                let begin = self.member(value, begin)?;
                let element = self.element(value, found, &begin)?;
                let from_there = |path: &str| self.offset_from(&begin, value, path);
                let (first, behind) = self.meant(value, from, to)?;
                let step = Step::Short {
                    flag: from_there(flag)?,
                    count: from_there(count)?,
                    inside: from_there(inside)?,
                    stride: element.size,
                    from: first,
                    to: behind,
                };
                return Ok(Some(self.all_of(value, &begin, step, element, (first, to))));
            }
            Form::Ring {
                begin,
                capacity,
                head,
                count,
            } => {
                let begin = self.member(value, begin)?;
                let element = self.element(value, found, &begin)?;
                let from_there = |path: &str| self.offset_from(&begin, value, path);
                let (first, behind) = self.meant(value, from, to)?;
                let step = Step::Ring {
                    capacity: from_there(capacity)?,
                    head: from_there(head)?,
                    count: from_there(count)?,
                    stride: element.size,
                    from: first,
                    to: behind,
                };
                return Ok(Some(self.all_of(value, &begin, step, element, (first, to))));
            }
            Form::Deque { start, finish, map } => {
                let start = self.member(value, start)?;
                let current = self.member(&start, "_M_cur")?;
                let element = self.target(&current).filter(|ty| ty.size > 0);
                let element = element.ok_or_else(|| self.senseless(value))?;
                let from_there = |path: &str| self.offset_from(&start, value, path);
                let (first, behind) = self.meant(value, from, to)?;
                let step = Step::Chunks {
                    finish: from_there(finish)?,
                    map: from_there(map)?,
                    stride: element.size,
                    from: first,
                    to: behind,
                };
                return Ok(Some(self.all_of(value, &start, step, element, (first, to))));
            }
            Form::List { .. } | Form::Tree { .. } | Form::Table { .. } | Form::Btree { .. }
                if from.is_none() && to.is_none() =>
            {
                let through = self.through(value, found)?;
                let to = self.first_of(value, through.at, through.step, through.element.size);
                let (more, ty) = through.item.unwrap_or((0, through.element));
                let mark = if found.keyed() { "[#*]" } else { "[*]" };
                let offset = through.offset.wrapping_add(more);
                return Ok(Some(Lvalue {
                    addr: to.unwrap_or(0).wrapping_add(offset),
                    ty: Some(ty),
                    name: format!("{}{mark}", value.name),
                    way: value.way.clone().by(through.step, through.at, to),
                    slice: None,
                    bits: None,
                    untyped: false,
                    ..value.clone()
                }));
            }
            // Pointers and flags lead to the contents of these; a `std::array` contains them itself.
            Form::One { .. }
            | Form::Inline { .. }
            | Form::Array { .. }
            | Form::Fields { .. }
            | Form::Alternatives { .. }
            | Form::Same { .. } => {
                return Ok(None);
            }
            _ => {}
        }
        self.stay()?;
        Ok(None)
    }

    /// The offset of a member from another one, as used in steps.
    fn offset_from(&self, begin: &Lvalue, value: &Lvalue, path: &str) -> Result<u64, Problem> {
        let member = self.member(value, path)?;
        Ok(member.addr.wrapping_sub(begin.addr))
    }

    /// The pointer's target, if the path up to it is valid now.
    fn points_to(&self, value: &Lvalue, pointer: &Lvalue) -> Option<u64> {
        let there = value
            .way
            .whole
            .then(|| self.pointer(pointer).ok())
            .flatten();
        there.filter(|to| *to >= 0x1000)
    }

    fn any_of_span(
        &self,
        value: &Lvalue,
        found: &Container,
        begin: &str,
        (end, count): (Option<&str>, Option<&str>),
        (from, to): (Option<i64>, Option<i64>),
    ) -> Result<Lvalue, Problem> {
        let begin = self.member(value, begin)?;
        let element = self.element(value, found, &begin)?;
        let (first, behind) = self.meant(value, from, to)?;
        let at = |member: &Lvalue| member.addr.wrapping_sub(begin.addr);
        let (until, says) = match (end, count) {
            (_, Some(count)) => {
                let count = self.member(value, count)?;
                let size = count.ty.as_ref().map_or(8, |ty| ty.size).clamp(1, 8);
                (Until::Count(at(&count), size), count)
            }
            (Some(end), None) => {
                let end = self.member(value, end)?;
                (Until::Pointer(at(&end)), end)
            }
            (None, None) => return Err(self.senseless(value)),
        };
        let step = Step::Elements {
            until,
            stride: element.size,
            from: first,
            to: behind,
        };
        let start = self.points_to(value, &begin).and_then(|start| {
            let count = match until {
                Until::Count(..) => self.number(&says).ok()?,
                Until::Pointer(_) => self.pointer(&says).ok()?.checked_sub(start)? / element.size,
            };
            let offset = first.checked_mul(element.size)?;
            (count > first).then(|| start.wrapping_add(offset))
        });
        Ok(self.all_that(value, &begin, step, start, element, (first, to)))
    }

    /// The selected range of numbers.
    fn meant(
        &self,
        value: &Lvalue,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<(u64, u64), Problem> {
        let (first, behind) = (from.unwrap_or(0), to.unwrap_or(i64::MAX));
        if first < 0 || behind <= first {
            return Err(self.problem(
                format!("the range {first}..{behind} of `{}` is empty", value.name),
                "`..` excludes its end, `..=` includes it; the first element is 0",
            ));
        }
        Ok((first as u64, to.map_or(u64::MAX, |to| to as u64)))
    }

    /// The first target of a step, if the path up to it is valid now.
    fn first_of(&self, value: &Lvalue, at: u64, step: Step, size: u64) -> Option<u64> {
        let path = Path::new(at, vec![(step, 0)]).ok()?;
        let read = |at: u64, size: u64| {
            let mut bytes = [0; 8];
            let there = bytes.get_mut(..size as usize)?;
            let read = self.memory.read(at, there);
            read.then_some(u64::from_le_bytes(bytes))
        };
        let trace = match value.way.whole {
            true => path.with_most(1).trace(size, &Trace::default(), None, read),
            false => return None,
        };
        trace.runs.first().map(|run| run.range.start.0)
    }

    fn all_of(
        &self,
        value: &Lvalue,
        begin: &Lvalue,
        step: Step,
        element: Rc<Type>,
        meant: (u64, Option<i64>),
    ) -> Lvalue {
        let start = self.first_of(value, begin.addr, step, element.size);
        self.all_that(value, begin, step, start, element, meant)
    }

    /// All targets of a step, as elements from one number up to, but not including, another.
    fn all_that(
        &self,
        value: &Lvalue,
        begin: &Lvalue,
        step: Step,
        start: Option<u64>,
        element: Rc<Type>,
        (first, to): (u64, Option<i64>),
    ) -> Lvalue {
        let way = value.way.clone().by(step, begin.addr, start);
        // The largest possible number: only the path knows how many there are now.
        let count = to.map_or(u64::from(u32::MAX), |to| (to as u64).abs_diff(first));
        let all = Lvalue {
            addr: start.unwrap_or(0),
            way,
            untyped: false,
            ..value.clone()
        };
        Lvalue {
            walked: true,
            ..all.some(element, count, first as i64)
        }
    }
}

impl Lvalue {
    /// The result of one more step, made at `at`. If it leads nowhere now (`None`), the address counts from zero, as
    /// the path does: the path already includes the steps before.
    pub(super) fn by(self, step: Step, at: u64, to: Option<u64>) -> Lvalue {
        Lvalue {
            addr: to.unwrap_or(0),
            way: self.way.by(step, at, to),
            ..self
        }
    }

    /// One of its elements.
    fn element_of(self, element: Rc<Type>) -> Lvalue {
        Lvalue {
            ty: Some(element),
            name: format!("{}[*]", self.name),
            slice: None,
            walked: false,
            ..self
        }
    }

    /// The first of all places that a path leads to.
    pub(super) fn element_of_walk(self) -> Lvalue {
        let first = self.slice.unwrap_or(0);
        let of = Lvalue { first, ..self };
        match of.ty.as_deref().map(|ty| &ty.shape) {
            Some(Shape::Array { element, .. }) => {
                let element = element.clone();
                of.element_of(element)
            }
            _ => of,
        }
    }
}
