//! The elements of Go's maps (from Go 1.24 on; `internal/runtime/maps` defines the layout).

use super::{Lvalue, Resolver};
use crate::containers::{Container, Form, find};
use crate::problem::Problem;
use crate::types::{Shape, Type};
use std::rc::Rc;

/// Slots of a group. Each slot has a control byte, whose highest bit means that the slot is free.
const SLOTS: u64 = 8;
const FREE: u64 = 0x80;
/// Size in bytes above which elements are not stored in their slots.
const LARGEST: u64 = 128;

impl Resolver<'_> {
    /// A Go map variable is a pointer to the map structure. A watch on its elements is fixed to the present ones.
    pub(super) fn map_behind(&self, value: Lvalue) -> Result<Lvalue, Problem> {
        let target = self.target(&value).map(|ty| Lvalue {
            ty: Some(ty),
            ..value.clone()
        });
        let form = target
            .and_then(|target| self.container(&target))
            .map(|c| c.form);
        if !matches!(form, Some(Form::Directory { .. })) {
            return Ok(value);
        }
        self.decided.set(true);
        self.stay()?;
        let name = value.name.clone();
        match self.deref_unless_null(value)? {
            Some(map) => Ok(Lvalue { name, ..map }),
            None => Err(self.empty()),
        }
    }

    /// The elements of a Go map.
    pub(super) fn directory(
        &self,
        value: &Lvalue,
        found: &Container,
    ) -> Result<Vec<Lvalue>, Problem> {
        let Form::Directory {
            tables,
            length,
            groups,
            mask,
            control,
            slots,
        } = found.form
        else {
            return Err(self.senseless(value));
        };
        let senseless = || self.senseless(value);
        let directory = self.member(value, tables)?;
        let table = self.behind(&self.behind(&directory).ok_or_else(senseless)?);
        let table = table.ok_or_else(senseless)?;
        let group = self
            .behind(&self.member(&table, groups)?)
            .ok_or_else(senseless)?;
        let group_type = group.ty.clone().ok_or_else(senseless)?;
        let slots = find(&group_type, slots).ok_or_else(senseless)?;
        let control = find(&group_type, control).ok_or_else(senseless)?.offset;
        let Shape::Array { element: slot, .. } = &slots.ty.shape else {
            return Err(senseless());
        };
        let part = |path: Option<&str>| find(slot, path?);
        let (key, item) = (part(found.key), part(found.item));
        let (key, item) = (key.ok_or_else(senseless)?, item.ok_or_else(senseless)?);
        let pointed = Lvalue {
            ty: Some(item.ty.clone()),
            ..value.clone()
        };
        // Large elements are behind pointers, which look like pointers of the program.
        if self.target(&pointed).is_some_and(|ty| ty.size > LARGEST) {
            return Err(self.problem(
                format!(
                    "the elements of `{}` may be elsewhere in memory",
                    value.name
                ),
                "watch one of them by its address",
            ));
        }
        let first = self.pointer(&directory)?;
        let mut all: Vec<(u64, u64)> = Vec::new();
        match self.number(&self.member(value, length)?)? {
            0 if first == 0 => {}
            0 => all.push((first, 1)),
            length => {
                self.few(length)?;
                let mut before = 0;
                for n in 0..length {
                    let at = self.word(value, first.wrapping_add(n * 8))?;
                    // (A table that has not been split appears several times.)
                    if at == std::mem::replace(&mut before, at) {
                        continue;
                    }
                    let table = Lvalue {
                        addr: at,
                        ..table.clone()
                    };
                    let mask = self.number(&self.member(&table, mask)?)?;
                    self.few(mask)?;
                    all.push((self.pointer(&self.member(&table, groups)?)?, mask + 1));
                }
            }
        }
        let mut elements = Vec::new();
        for (first, count) in all {
            for n in 0..count {
                let group = first.wrapping_add(n * group_type.size);
                let free = self.word(value, group.wrapping_add(control))?;
                for slot_number in (0..SLOTS).filter(|n| free >> (8 * n) & FREE == 0) {
                    let slot = group.wrapping_add(slots.offset + slot_number * slot.size);
                    let object = |addr: u64, ty: &Rc<Type>| Lvalue {
                        addr,
                        ty: Some(ty.clone()),
                        slice: None,
                        bits: None,
                        untyped: false,
                        ..value.clone()
                    };
                    let key = self.text_of(object(slot.wrapping_add(key.offset), &key.ty));
                    let element = object(slot.wrapping_add(item.offset), &item.ty);
                    let number = key.unwrap_or(elements.len().to_string());
                    elements.push(Lvalue {
                        name: format!("{}[{number}]", value.name),
                        ..element
                    });
                    self.few(elements.len() as u64)?;
                }
            }
        }
        Ok(elements)
    }

    /// The pointer's target, whatever its address.
    fn behind(&self, pointer: &Lvalue) -> Option<Lvalue> {
        let ty = Some(self.target(pointer)?);
        Some(Lvalue {
            ty,
            ..pointer.clone()
        })
    }
}
