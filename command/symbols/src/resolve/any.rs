//! Any of many places, where a watch follows: the path leads to all of them, and what stands behind is found once, for
//! one that stands for the others.

use super::{Lvalue, Resolver};
use crate::containers::{Container, Form, find};
use crate::problem::Problem;
use crate::types::{Shape, Type};
use std::rc::Rc;
use ulpf_lib::command::{Step, Until};

impl Resolver<'_> {
    /// Of the elements of a slice any, which the path leads to.
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

    /// Any node of a list that is followed.
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
        };
        let to = node.way.whole.then_some(node.addr);
        let node = Lvalue {
            name,
            way: before,
            ..node
        };
        Ok(node.by(step, at, to))
    }

    /// What is there only while a flag is set.
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

    /// Of a container that is followed, any element, or all of those side by side. `None`: what it has is found without
    /// a step of its own.
    pub(super) fn any_element(
        &self,
        value: &Lvalue,
        found: &Container,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Option<Lvalue>, Problem> {
        match found.form {
            Form::Span { .. } | Form::List { .. } if value.way.is_many() => {}
            Form::Span { begin, end, count } => {
                let until = (end.as_deref(), count.as_deref());
                return self
                    .any_of_span(value, found, begin, until, (from, to))
                    .map(Some);
            }
            Form::List {
                first,
                next,
                header,
                after,
            } if !found.keyed && from.is_none() && to.is_none() => {
                let element = found.element.and_then(|which| self.argument(value, which));
                let element = element.ok_or_else(|| self.senseless(value))?;
                let first = self.member(value, first)?;
                let header = match header {
                    Some(header) => Some(self.member(value, header)?.addr),
                    None => None,
                };
                let node = self.target(&first).ok_or_else(|| self.senseless(value))?;
                let next = find(&node, next).ok_or_else(|| self.senseless(value))?;
                let step = Step::List {
                    link: next.offset,
                    pointer: true,
                    end: header.map(|header| header.wrapping_sub(first.addr)),
                };
                let to = self.points_to(value, &first);
                let to = to.filter(|to| Some(*to) != header);
                let offset = after.next_multiple_of(element.align());
                return Ok(Some(Lvalue {
                    addr: to.unwrap_or(0).wrapping_add(offset),
                    ty: Some(element),
                    name: format!("{}[*]", value.name),
                    way: value.way.clone().by(step, first.addr, to),
                    slice: None,
                    bits: None,
                    untyped: false,
                    ..value.clone()
                }));
            }
            // What these hold is found by pointers and flags; a `std::array` has all in itself.
            Form::One { .. } | Form::Inline { .. } | Form::Array { .. } | Form::Same { .. } => {
                return Ok(None);
            }
            _ => {}
        }
        self.stay()?;
        Ok(None)
    }

    /// Where a pointer leads, if all before it leads somewhere.
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
        let at = |member: &Lvalue| member.addr.wrapping_sub(begin.addr);
        let (first, behind) = (from.unwrap_or(0), to.unwrap_or(i64::MAX));
        if first < 0 || behind <= first {
            return Err(self.problem(
                format!("the range {first}..{behind} of `{}` is empty", value.name),
                "`..` excludes its end, `..=` includes it; the first element is 0",
            ));
        }
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
            from: first as u64,
            to: to.map_or(u64::MAX, |to| to as u64),
        };
        let start = self.points_to(value, &begin).and_then(|start| {
            let count = match until {
                Until::Count(..) => self.number(&says).ok()?,
                Until::Pointer(_) => self.pointer(&says).ok()?.checked_sub(start)? / element.size,
            };
            let first = (first as u64).checked_mul(element.size)?;
            (count > from.unwrap_or(0) as u64).then(|| start.wrapping_add(first))
        });
        let way = value.way.clone().by(step, begin.addr, start);
        // As many as there may be: of those that there are now only the path knows.
        let count = to.map_or(u64::from(u32::MAX), |_| behind.abs_diff(first));
        let all = Lvalue {
            addr: start.unwrap_or(0),
            way,
            untyped: false,
            ..value.clone()
        };
        Ok(Lvalue {
            walked: true,
            ..all.some(element, count, first)
        })
    }
}

impl Lvalue {
    /// What one more step comes to, made at `at`. Where that is nowhere now (`None`), its address counts from zero, as the
    /// way does: what is before the step is in the way already.
    fn by(self, step: Step, at: u64, to: Option<u64>) -> Lvalue {
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

    /// Of all that a path leads to, the first.
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
