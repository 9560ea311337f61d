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
            ) if bounds.indexed("", first) == format!("[{first}]")
                && !value.access_path.is_many() =>
            {
                (element.clone(), *count)
            }
            _ => {
                self.stay()?;
                return Ok(value);
            }
        };
        let stride = element.size;
        let (at, there) = (value.addr, value.access_path.complete);
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
        let (at, before) = (head.addr, head.access_path.clone());
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
        let to = node.access_path.complete.then_some(node.addr);
        let node = Lvalue {
            name,
            access_path: before,
            ..node
        };
        Ok(node.by(step, at, to))
    }

    /// The value that exists only while a flag is set.
    pub(super) fn if_flag(&self, value: Lvalue, flag: &str) -> Result<Lvalue, Problem> {
        let flag = self.member(&value, flag)?;
        let there = value.access_path.complete && self.number(&flag)? & 0xff != 0;
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
        let is_by_side = matches!(
            found.form,
            Form::Span { .. } | Form::Short { .. } | Form::Ring { .. } | Form::Deque { .. }
        );
        if is_by_side && !value.access_path.is_many() {
            let meant = self.meant(value, from, to)?;
            if let Some((begin, step, element)) = self.step_to(value, found, meant)? {
                let meant = (meant.0, to);
                return Ok(Some(self.all_of(value, &begin, step, element, meant)));
            }
        }
        match found.form {
            // (Two of them have no numbers.)
            Form::List { .. } | Form::Tree { .. } | Form::Table { .. } | Form::Btree { .. }
                if !value.access_path.is_many() && from.is_none() && to.is_none() =>
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
                    access_path: value.access_path.clone().by(through.step, through.at, to),
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

    /// The step to elements that lie side by side, in one or several runs: the member where it begins, and the type of
    /// the elements. `None` for other containers.
    pub(super) fn step_to(
        &self,
        value: &Lvalue,
        found: &Container,
        (from, to): (u64, u64),
    ) -> Result<Option<(Lvalue, Step, Rc<Type>)>, Problem> {
        let begin = match found.form {
            Form::Span { begin, .. } | Form::Short { begin, .. } | Form::Ring { begin, .. } => {
                self.member(value, begin)?
            }
            Form::Deque { start, .. } => self.member(value, start)?,
            _ => return Ok(None),
        };
        let element = match found.form {
            Form::Deque { .. } => {
                let current = self.member(&begin, "_M_cur")?;
                let element = self.target(&current).filter(|ty| ty.size > 0);
                element.ok_or_else(|| self.senseless(value))?
            }
            _ => self.element(value, found, &begin)?,
        };
        let stride = element.size;
        let there = |path: &str| {
            let member = self.member(value, path)?;
            Ok::<u64, Problem>(member.addr.wrapping_sub(begin.addr))
        };
        let step = match found.form {
            Form::Span { end, count, .. } => Step::Elements {
                until: match (end, count) {
                    (_, Some(count)) => {
                        let size = self.member(value, count)?.ty.map_or(8, |ty| ty.size);
                        Until::Count(there(count)?, size.clamp(1, 8))
                    }
                    (Some(end), None) => Until::Pointer(there(end)?),
                    (None, None) => return Err(self.senseless(value)),
                },
                stride,
                from,
                to,
            },
            Form::Short {
                flag,
                count,
                inside,
                ..
            } => Step::Short {
                flag: there(flag)?,
                count: there(count)?,
                inside: there(inside)?,
                stride,
                from,
                to,
            },
            Form::Ring {
                capacity,
                head,
                count,
                ..
            } => Step::Ring {
                capacity: there(capacity)?,
                head: there(head)?,
                count: there(count)?,
                stride,
                from,
                to,
            },
            Form::Deque { finish, map, .. } => Step::Chunks {
                finish: there(finish)?,
                map: there(map)?,
                stride,
                from,
                to,
            },
            _ => return Ok(None),
        };
        Ok(Some((begin, step, element)))
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
        let path = Path::new(at, vec![(step, 0)]).ok()?.with_most(1);
        let trace = value
            .access_path
            .complete
            .then(|| self.trace(&path, size))?;
        trace.runs.first().map(|run| run.range.start.0)
    }

    /// The present targets of a path, of `size` bytes each.
    pub(super) fn trace(&self, path: &Path, size: u64) -> Trace {
        path.trace(size, &Trace::default(), None, |at, size| {
            let mut bytes = [0; 8];
            let there = bytes.get_mut(..size as usize)?;
            let read = self.memory.read(at, there);
            read.then_some(u64::from_le_bytes(bytes))
        })
    }

    /// All targets of a step, as elements from one number up to, but not including, another.
    fn all_of(
        &self,
        value: &Lvalue,
        begin: &Lvalue,
        step: Step,
        element: Rc<Type>,
        (first, to): (u64, Option<i64>),
    ) -> Lvalue {
        let start = self.first_of(value, begin.addr, step, element.size);
        let access_path = value.access_path.clone().by(step, begin.addr, start);
        // The largest possible number: only the path knows how many there are now.
        let count = to.map_or(u64::from(u32::MAX), |to| (to as u64).abs_diff(first));
        let all = Lvalue {
            addr: start.unwrap_or(0),
            access_path,
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
            access_path: self.access_path.by(step, at, to),
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
