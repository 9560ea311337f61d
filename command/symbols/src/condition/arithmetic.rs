//! Operators of C: arithmetic, with its promotions and conversions, and comparisons.

use super::code::Code;
use super::compile::{Compiler, Compiling};
use super::float;
use super::kind::{INT, Kind, LONG, kind, promoted};
use super::tree::{Binary, Node, What, Wrong};
use crate::types::Shape;
use ulpf_engine::agent::op;

impl Compiler<'_> {
    pub(super) fn binary(
        &mut self,
        operator: Binary,
        left: &Node,
        right: &Node,
        at: usize,
    ) -> Compiling<Kind> {
        use Binary::*;
        let compares = matches!(
            operator,
            Less | Greater | LessEqual | GreaterEqual | Equal | NotEqual
        );
        if compares {
            return self.comparison(operator, left, right, at);
        }
        if matches!(operator, Add | Subtract) {
            let how = if operator == Add { op::ADD } else { op::SUB };
            return self.add(left, right, how, at);
        }
        let (l, r) = (self.value(left)?, self.value(right)?);
        let (l, r) = (self.integer(&l, left.at)?, self.integer(&r, right.at)?);
        if matches!(operator, Left | Right) {
            self.code.emit(&[match (operator, l.1) {
                (Left, _) => op::LSH,
                (_, true) => op::RSH_SIGNED,
                (_, false) => op::RSH_UNSIGNED,
            }]);
            self.code.narrow(l);
            return Ok(kind(l));
        }
        let common = self.code.convert(l, r);
        self.code.emit(&[match (operator, common.1) {
            (Multiply, _) => op::MUL,
            (Divide, true) => op::DIV_SIGNED,
            (Divide, false) => op::DIV_UNSIGNED,
            (Remainder, true) => op::REM_SIGNED,
            (Remainder, false) => op::REM_UNSIGNED,
            (And, _) => op::BIT_AND,
            (Xor, _) => op::BIT_XOR,
            _ => op::BIT_OR,
        }]);
        self.code.narrow(common);
        Ok(kind(common))
    }

    /// The promoted type of an integer.
    pub(super) fn integer(&self, ty: &Kind, at: usize) -> Compiling<(u8, bool)> {
        match ty {
            Kind::Int { .. } => Ok(promoted(ty)),
            Kind::Float(_) => Err(Wrong::new(
                at,
                "floating-point values can only be compared, with each other and with numbers",
            )),
            _ => Err(Wrong::new(
                at,
                format!("this takes an integer, not a {}", ty.name()),
            )),
        }
    }

    pub(super) fn add(&mut self, left: &Node, right: &Node, how: u8, at: usize) -> Compiling<Kind> {
        let l = self.value(left)?;
        let scale = |ty: &Kind| ty.target().map(|t| t.size().max(1));
        let r = self.value(right)?;
        match (scale(&l), scale(&r)) {
            (Some(size), Some(_)) if how == op::SUB => {
                self.code.emit(&[op::SUB]);
                self.code.constant(size);
                self.code.emit(&[op::DIV_SIGNED]);
                Ok(LONG)
            }
            (Some(size), None) => {
                self.integer(&r, right.at)?;
                self.code.constant(size);
                self.code.emit(&[op::MUL, how]);
                Ok(l)
            }
            (None, Some(size)) if how == op::ADD => {
                self.integer(&l, left.at)?;
                self.code.emit(&[op::SWAP]);
                self.code.constant(size);
                self.code.emit(&[op::MUL, op::ADD]);
                Ok(r)
            }
            (Some(_), Some(_)) | (None, Some(_)) => Err(Wrong::new(
                at,
                "pointers cannot be added or subtracted like that",
            )),
            (None, None) => {
                let l = self.integer(&l, left.at)?;
                let r = self.integer(&r, right.at)?;
                let common = self.code.convert(l, r);
                self.code.emit(&[how]);
                self.code.narrow(common);
                Ok(kind(common))
            }
        }
    }

    fn comparison(
        &mut self,
        operator: Binary,
        left: &Node,
        right: &Node,
        at: usize,
    ) -> Compiling<Kind> {
        // Swap the operands so that a number is on the right.
        if left.number().is_some() && right.number().is_none() {
            let mirrored = match operator {
                Binary::Less => Binary::Greater,
                Binary::Greater => Binary::Less,
                Binary::LessEqual => Binary::GreaterEqual,
                Binary::GreaterEqual => Binary::LessEqual,
                same => same,
            };
            return self.comparison(mirrored, right, left, at);
        }
        let l = match self.enumerator(left, right) {
            Some(value) => self.enumerator_value(value),
            None => self.value(left)?,
        };
        if let (Kind::Float(size), Some(number)) = (&l, right.number()) {
            float::compare_number(&mut self.code, operator, *size, number, right.at)?;
            return Ok(INT);
        }
        let r = match self.enumerator(right, left) {
            Some(value) => self.enumerator_value(value),
            None => self.value(right)?,
        };
        if let (Kind::Float(l), Kind::Float(r)) = (&l, &r) {
            return match l == r {
                true => {
                    float::compare_values(&mut self.code, operator, *l);
                    Ok(INT)
                }
                false => Err(Wrong::new(at, "a float is not compared with a double")),
            };
        }
        if matches!(l, Kind::Float(_)) || matches!(r, Kind::Float(_)) {
            return Err(Wrong::new(
                at,
                "an integer is not compared with a floating-point value, except for a number like 3",
            ));
        }
        let ty = |k: &Kind| match k {
            Kind::Int { .. } => promoted(k),
            _ => (8, false),
        };
        let (_, signed) = self.code.convert(ty(&l), ty(&r));
        let less = if signed {
            op::LESS_SIGNED
        } else {
            op::LESS_UNSIGNED
        };
        match operator {
            Binary::Less => self.code.emit(&[less]),
            Binary::Greater => self.code.emit(&[op::SWAP, less]),
            Binary::LessEqual => self.code.emit(&[op::SWAP, less, op::LOG_NOT]),
            Binary::GreaterEqual => self.code.emit(&[less, op::LOG_NOT]),
            Binary::Equal => self.code.emit(&[op::EQUAL]),
            _ => self.code.emit(&[op::EQUAL, op::LOG_NOT]),
        }
        Ok(INT)
    }

    /// `colour == GREEN`: the value of an enumerator of the other side's enumeration.
    fn enumerator(&self, node: &Node, other: &Node) -> Option<i128> {
        let What::Name(None, name) = &node.what else {
            return None;
        };
        let mut probe = Compiler {
            code: Code::default(),
            value: self.value,
            names: self.names,
            looks: self.looks,
        };
        let Kind::Described(ty, _) = probe.operand(other).ok()?.ty else {
            return None;
        };
        let Shape::Enum { values } = &ty.shape else {
            return None;
        };
        let last = name.rsplit("::").next();
        let found = values.iter().find(|v| Some(v.0.as_str()) == last)?;
        Some(found.1)
    }

    fn enumerator_value(&mut self, value: i128) -> Kind {
        self.code.constant(value as u64);
        match i32::try_from(value) {
            Ok(_) => INT,
            Err(_) => LONG,
        }
    }
}
