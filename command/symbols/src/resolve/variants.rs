//! Variants of Rust's enums, and other types with alternatives. Each alternative exists only while a number selects it.

use super::elements::MOST_HELD;
use super::{Lvalue, Resolver};
use crate::closest::list;
use crate::problem::Problem;
use crate::types::{Member, Shape, Variant};
use ulpf_lib::command::Step;

impl Resolver<'_> {
    /// `x.field`.
    pub(super) fn dot(&self, value: Lvalue, field: &str) -> Result<Lvalue, Problem> {
        let shown = field
            .strip_prefix("__")
            .filter(|f| f.parse::<u32>().is_ok())
            .unwrap_or(field);
        let name = format!("{}.{shown}", value.name);
        // As in Rust, `rc.x` is a field of the held value, and `option.x` of the contained one.
        let (mut target, mut through) = (value, true);
        for _ in 0..MOST_HELD {
            let next = match target.ty.as_ref().map(|t| &t.shape) {
                Some(Shape::Pointer { .. }) if through => {
                    through = false;
                    target = self.deref(target)?;
                    continue;
                }
                Some(Shape::Struct { .. }) if !target.has(field) => {
                    match self.in_variant(&target, field)? {
                        Some(variant) => Some(variant),
                        None => self.held(&target)?,
                    }
                }
                _ => None,
            };
            match next {
                Some(inner) => (target, through) = (inner, true),
                None => break,
            }
        }
        Ok(Lvalue {
            name,
            ..self.field(target, field)?
        })
    }

    /// The variant of a Rust enum with such a field: the only one that has it, or the active one.
    pub(super) fn in_variant(
        &self,
        value: &Lvalue,
        field: &str,
    ) -> Result<Option<Lvalue>, Problem> {
        let variants = value
            .ty
            .as_ref()
            .map(|ty| ty.variants())
            .unwrap_or_default();
        let with: Vec<_> = variants
            .iter()
            .filter(|variant| variant.ty.member(field).is_some())
            .collect();
        let named = |variant: &Member| {
            let name = variant.name.unwrap_or_default();
            self.field(value.clone(), name).map(Some)
        };
        match with.as_slice() {
            [] => Ok(None),
            [only] => named(only),
            several => {
                let now = several.iter().find(|m| self.is_active(value, m));
                match now {
                    Some(variant) => named(variant),
                    None => Err(self.problem(
                        format!("several variants of `{}` have such a field", value.name),
                        format!(
                            "name one of them: {}",
                            list(several.iter().filter_map(|m| m.name).map(String::from), 8)
                        ),
                    )),
                }
            }
        }
    }

    fn is_active(&self, value: &Lvalue, member: &Member) -> bool {
        member.variant.is_some_and(|variant| {
            let mut bytes = [0; 8];
            let number = bytes.get_mut(..variant.size as usize);
            let at = value.addr.wrapping_add(variant.at);
            value.access_path.complete
                && number.is_some_and(|number| self.memory.read(at, number))
                && variant.is_active(u64::from_le_bytes(bytes))
        })
    }

    pub(super) fn not_active(&self, value: &Lvalue, field: &str) -> Problem {
        let variants = value
            .ty
            .as_ref()
            .map(|ty| ty.variants())
            .unwrap_or_default();
        let now = variants.iter().find(|m| self.is_active(value, m));
        let now = now.and_then(|m| m.name).unwrap_or("another variant");
        self.problem(
            format!("`{}` is {now} now, and not {field}", value.name),
            self.later("when it is") + ", or without `snapshot`",
        )
    }

    /// The value of a variant that a number selects. `None` if it is not active now; the watch then stays where it is.
    pub(super) fn if_variant(
        &self,
        value: Lvalue,
        variant: Variant,
    ) -> Result<Option<Lvalue>, Problem> {
        self.decided.set(true);
        // A pointer that must not be null, in `Option<Box<T>>`: the pointer's own step checks it.
        let pointer = (variant.first, variant.count, variant.inside) == (0, 1, false)
            && value.ty.as_ref().is_some_and(|ty| ty.size == variant.size);
        if self.follows() && pointer {
            return Ok(Some(value));
        }
        let mut bytes = [0; 8];
        let Some(number) = bytes.get_mut(..variant.size as usize) else {
            return Err(self.senseless(&value));
        };
        let at = value.addr.wrapping_add(variant.at);
        let active = value.access_path.complete && self.memory.read(at, number);
        let active = active && variant.is_active(u64::from_le_bytes(bytes));
        if !self.follows() {
            return Ok(active.then_some(value));
        }
        let Variant {
            at,
            size,
            first,
            count,
            inside,
        } = variant;
        let step = Step::Is {
            at,
            size,
            first,
            count,
            inside,
        };
        let at = value.addr;
        Ok(Some(value.by(step, at, active.then_some(at))))
    }
}
