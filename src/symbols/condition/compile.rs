//! [`Node`]s to GDB agent bytecode.
//!
//! A value on the evaluator's stack has 64 bits; what has a smaller type is there extended as its type
//! says. An object is its address, until its value is needed.

use super::float;
use super::{Base, Binary, CastTo, Node, Unary, What, Wrong};
use crate::symbols::maps::Module;
use crate::symbols::types::{Bits, Shape, Type};
use std::cell::Cell;
use std::rc::Rc;
use ulpf_engine::agent::{op, variable};

/// What names mean; the resolver, or a test.
pub trait Names {
    fn variable(&self, object: Option<&str>, name: &str) -> Result<Found, String>;
    /// A structure by its name.
    fn structure(&self, name: &str) -> Option<(Rc<Type>, Option<Rc<Module>>)>;
}

pub struct Found {
    /// Of a thread-local variable: from the thread pointer.
    pub addr: u64,
    pub thread_local: bool,
    pub ty: Kind,
}

/// The watched value: what `$new` and `$old` are.
#[derive(Clone)]
pub struct Value {
    pub ty: Kind,
    pub bits: Option<Bits>,
}

#[derive(Clone)]
pub enum Kind {
    Int {
        size: u8,
        signed: bool,
    },
    /// Of 4 or 8 bytes.
    Float(u8),
    Pointer(Box<Kind>),
    /// As the debug information describes it, and where its types are.
    Described(Rc<Type>, Option<Rc<Module>>),
    Void,
    /// Without a type: only its address is known, and its size, if that is one of an integer.
    Bytes(u64),
}

pub struct Compiled {
    pub code: Vec<u8>,
}

const INT: Kind = Kind::Int {
    size: 4,
    signed: true,
};
const LONG: Kind = Kind::Int {
    size: 8,
    signed: true,
};
const ULONG: Kind = Kind::Int {
    size: 8,
    signed: false,
};

/// Jumps have 16 bits, and the monitor command has to fit into a packet.
const MOST_CODE: usize = 4096;

/// Nodes that are looked at. Some are looked at twice, and what is in them, too.
const MOST_LOOKS: u32 = 10_000;

pub fn compile(node: &Node, value: &Value, names: &dyn Names) -> Result<Compiled, Wrong> {
    let mut c = Compiler {
        code: Vec::new(),
        value,
        names,
        looks: &Cell::new(MOST_LOOKS),
    };
    c.truth(node)?;
    c.code.push(op::END);
    match c.code.len() > MOST_CODE {
        true => Err(Wrong::new(node.at, "the condition is too long")),
        false => Ok(Compiled { code: c.code }),
    }
}

/// What the code so far has left on the stack.
struct Operand {
    ty: Kind,
    /// Its address, not its value.
    place: bool,
    bits: Option<Bits>,
}

pub(super) struct Compiler<'a> {
    pub(super) code: Vec<u8>,
    value: &'a Value,
    names: &'a dyn Names,
    /// How many more there may be.
    looks: &'a Cell<u32>,
}

type Compiling<T> = Result<T, Wrong>;

impl Kind {
    /// Resolved as far as code is made for it.
    fn plain(self) -> Kind {
        let Kind::Described(ty, _) = &self else {
            return self;
        };
        let size = ty.size as u8;
        match &ty.shape {
            Shape::Int { signed } | Shape::Char { signed } if matches!(ty.size, 1 | 2 | 4 | 8) => {
                Kind::Int {
                    size,
                    signed: *signed,
                }
            }
            Shape::Bool if ty.size == 1 => Kind::Int {
                size,
                signed: false,
            },
            Shape::Enum { values } if matches!(ty.size, 1 | 2 | 4 | 8) => Kind::Int {
                size,
                signed: values.iter().any(|v| v.1 < 0),
            },
            Shape::Float if matches!(ty.size, 4 | 8) => Kind::Float(size),
            _ => self,
        }
    }

    fn size(&self) -> u64 {
        match self {
            Kind::Int { size, .. } | Kind::Float(size) => (*size).into(),
            Kind::Pointer(_) => 8,
            Kind::Described(ty, _) => ty.size,
            Kind::Void => 1,
            Kind::Bytes(size) => *size,
        }
    }

    fn name(&self) -> String {
        match self {
            Kind::Int { size, signed } => {
                let sign = if *signed { "" } else { "unsigned " };
                format!("{sign}integer of {size} bytes")
            }
            Kind::Float(_) => "floating-point number".into(),
            Kind::Pointer(to) => format!("pointer to {}", to.name()),
            Kind::Described(ty, _) => ty.name.clone(),
            Kind::Void => "void".into(),
            Kind::Bytes(_) => "something of unknown type".into(),
        }
    }

    /// What a pointer points to, or an array consists of.
    fn target(&self) -> Option<Kind> {
        match self {
            Kind::Pointer(to) => Some((**to).clone()),
            Kind::Described(ty, module) => match &ty.shape {
                Shape::Pointer { to, .. } => {
                    let target = to
                        .as_ref()
                        .zip(module.as_ref())
                        .and_then(|(die, m)| m.types.get(*die));
                    Some(target.map_or(Kind::Void, |ty| Kind::Described(ty, module.clone())))
                }
                Shape::Array { element, .. } => {
                    Some(Kind::Described(element.clone(), module.clone()))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn is_array(&self) -> bool {
        matches!(self, Kind::Described(ty, _) if matches!(ty.shape, Shape::Array { .. }))
    }

    fn is_reference(&self) -> bool {
        let reference = |ty: &Type| {
            matches!(
                ty.shape,
                Shape::Pointer {
                    reference: true,
                    ..
                }
            )
        };
        matches!(self, Kind::Described(ty, _) if reference(ty))
    }
}

impl Compiler<'_> {
    pub(super) fn emit(&mut self, code: &[u8]) {
        self.code.extend_from_slice(code);
    }

    pub(super) fn constant(&mut self, value: u64) {
        match value {
            0..=0xff => self.emit(&[op::CONST8, value as u8]),
            0x100..=0xffff => {
                self.emit(&[op::CONST16]);
                self.emit(&(value as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.emit(&[op::CONST32]);
                self.emit(&(value as u32).to_be_bytes());
            }
            _ => {
                self.emit(&[op::CONST64]);
                self.emit(&value.to_be_bytes());
            }
        }
    }

    fn hit(&mut self, variable: u16) {
        self.emit(&[op::GETV]);
        self.emit(&variable.to_be_bytes());
    }

    /// Emits a jump; where its target is to be written.
    fn jump(&mut self, how: u8) -> usize {
        self.emit(&[how, 0, 0]);
        self.code.len() - 2
    }

    fn land(&mut self, jump: usize) {
        let here = (self.code.len().min(u16::MAX.into()) as u16).to_be_bytes();
        self.code[jump..jump + 2].copy_from_slice(&here);
    }

    /// 1 or 0.
    fn truth(&mut self, node: &Node) -> Compiling<()> {
        let of = self.value(node)?;
        if let Kind::Float(_) = of {
            return Err(Wrong::new(node.at, "compare the floating-point value"));
        }
        self.emit(&[op::LOG_NOT, op::LOG_NOT]);
        Ok(())
    }

    /// The value of `node`, with its type: an integer, a pointer, or the bits of a floating-point number.
    fn value(&mut self, node: &Node) -> Compiling<Kind> {
        let operand = self.operand(node)?;
        self.load(operand, node.at)
    }

    fn load(&mut self, operand: Operand, at: usize) -> Compiling<Kind> {
        let Operand { ty, place, bits } = operand;
        if ty.is_array() && place {
            // An array is its address.
            return Ok(Kind::Pointer(Box::new(ty.target().unwrap_or(Kind::Void))));
        }
        let ty = ty.plain();
        if let Some(bits) = bits {
            return self.bit_field(ty, place, bits, at);
        }
        let size = ty.size();
        let scalar = match &ty {
            Kind::Int { .. } | Kind::Float(_) | Kind::Pointer(_) => true,
            Kind::Described(t, _) => matches!(t.shape, Shape::Pointer { .. }),
            Kind::Bytes(size) => matches!(size, 1 | 2 | 4 | 8),
            Kind::Void => false,
        };
        if !scalar {
            let what = match &ty {
                Kind::Described(t, _) if matches!(t.shape, Shape::Struct { .. }) => {
                    format!("a {} has no value: name a field", t.name)
                }
                _ => format!("a {} has no value that could be used here", ty.name()),
            };
            return Err(Wrong::new(at, what));
        }
        if place {
            self.emit(&[match size {
                1 => op::REF8,
                2 => op::REF16,
                4 => op::REF32,
                _ => op::REF64,
            }]);
        }
        if let Kind::Int { size, signed: true } = ty {
            self.extend(size * 8, true);
        }
        Ok(match ty {
            Kind::Bytes(size) => Kind::Int {
                size: size as u8,
                signed: false,
            },
            ty => ty,
        })
    }

    fn bit_field(&mut self, ty: Kind, place: bool, bits: Bits, at: usize) -> Compiling<Kind> {
        let Kind::Int { signed, size } = ty else {
            return Err(Wrong::new(at, "a bit-field of this type cannot be used"));
        };
        if bits.first.saturating_add(bits.len) > 64 {
            return Err(Wrong::new(at, "the bit-field spans more than eight bytes"));
        }
        if place {
            self.emit(&[match bits.bytes() {
                1 => op::REF8,
                2 => op::REF16,
                3 | 4 => op::REF32,
                _ => op::REF64,
            }]);
        }
        if bits.first > 0 {
            self.constant(bits.first);
            self.emit(&[op::RSH_UNSIGNED]);
        }
        self.extend(bits.len as u8, signed);
        // One that fits into int becomes int, as in C.
        Ok(match bits.len < 32 {
            true => INT,
            false => Kind::Int { size, signed },
        })
    }

    fn extend(&mut self, bits: u8, signed: bool) {
        if bits < 64 {
            self.emit(&[if signed { op::EXT } else { op::ZERO_EXT }, bits]);
        }
    }

    fn operand(&mut self, node: &Node) -> Compiling<Operand> {
        let value = |ty| {
            Ok(Operand {
                ty,
                place: false,
                bits: None,
            })
        };
        let wrong = |why: String| Err(Wrong::new(node.at, why));
        match self.looks.get().checked_sub(1) {
            Some(left) => self.looks.set(left),
            None => return wrong("the condition is too long".into()),
        }
        match &node.what {
            What::Number {
                value: n,
                bits,
                signed,
            } => {
                self.constant(*n);
                value(Kind::Int {
                    size: bits / 8,
                    signed: *signed,
                })
            }
            What::Float(bits) => {
                self.constant(*bits);
                value(Kind::Float(8))
            }
            What::Word(word) => self.hit_word(word, node.at),
            What::Name(object, name) => {
                let found = self
                    .names
                    .variable(object.as_deref(), name)
                    .map_err(|why| Wrong::new(node.at, why))?;
                self.constant(found.addr);
                if found.thread_local {
                    self.hit(variable::THREAD_POINTER);
                    self.emit(&[op::ADD]);
                }
                self.dereferenced(Operand {
                    ty: found.ty,
                    place: true,
                    bits: None,
                })
            }
            What::Unary(Unary::Deref, of) => {
                let pointer = self.value(of)?;
                match pointer.target() {
                    Some(Kind::Void) => {
                        wrong("what a void pointer points to has no type: cast it".into())
                    }
                    Some(ty) => Ok(Operand {
                        ty,
                        place: true,
                        bits: None,
                    }),
                    None => wrong(format!("`*` takes a pointer, this is a {}", pointer.name())),
                }
            }
            What::Unary(Unary::Address, of) => {
                let operand = self.operand(of)?;
                match operand.place && operand.bits.is_none() {
                    true => value(Kind::Pointer(Box::new(operand.ty))),
                    false => wrong("`&` takes what has an address".into()),
                }
            }
            What::Unary(unary, of) => {
                let ty = self.value(of)?;
                let integer = matches!(ty, Kind::Int { .. });
                match unary {
                    Unary::Not if !matches!(ty, Kind::Float(_)) => {
                        self.emit(&[op::LOG_NOT]);
                        return value(INT);
                    }
                    _ if !integer => {
                        return wrong(format!("this takes an integer, not a {}", ty.name()));
                    }
                    Unary::Invert => self.emit(&[op::BIT_NOT]),
                    // 0 - n
                    Unary::Negate => {
                        self.constant(0);
                        self.emit(&[op::SWAP, op::SUB]);
                    }
                    _ => {}
                }
                let ty = promoted(&ty);
                self.narrow(ty);
                value(kind(ty))
            }
            What::And(left, right) | What::Or(left, right) => {
                self.truth(left)?;
                // The left one stays if it decides.
                self.emit(&[op::DUP]);
                if let What::And(..) = node.what {
                    self.emit(&[op::LOG_NOT]);
                }
                let end = self.jump(op::IF_GOTO);
                self.emit(&[op::POP]);
                self.truth(right)?;
                self.land(end);
                value(INT)
            }
            What::Binary(operator, left, right) => {
                let ty = self.binary(*operator, left, right, node.at)?;
                value(ty)
            }
            What::Field(of, field) => {
                let operand = self.operand(of)?;
                let pointer = operand.ty.target().is_some() && !operand.ty.is_array();
                // As in gdb: `p.x` for `p->x`.
                match pointer {
                    true => self.through(operand, field, of, node.at),
                    false => self.field(operand, field, node.at),
                }
            }
            What::Arrow(of, field) => {
                let operand = self.operand(of)?;
                self.through(operand, field, of, node.at)
            }
            What::Index(of, index) => {
                let ty = self.add(of, index, op::ADD, node.at)?;
                match ty.target() {
                    Some(Kind::Void) => wrong("the elements have no type: cast the pointer".into()),
                    Some(ty) => Ok(Operand {
                        ty,
                        place: true,
                        bits: None,
                    }),
                    None => wrong("this is neither array nor pointer".into()),
                }
            }
            What::Cast(to, of) => {
                let from = self.value(of)?;
                if let Kind::Float(_) = from {
                    return wrong("floating-point values cannot be cast".into());
                }
                let ty = self.cast_type(to, node.at)?;
                match &ty {
                    Kind::Int { .. } if to.base == Base::Bool => {
                        self.emit(&[op::LOG_NOT, op::LOG_NOT]);
                    }
                    Kind::Int { size, signed } => self.extend(size * 8, *signed),
                    _ => {}
                }
                value(ty)
            }
        }
    }

    fn cast_type(&mut self, to: &CastTo, at: usize) -> Compiling<Kind> {
        let mut ty = match &to.base {
            Base::Int { size, signed } => Kind::Int {
                size: *size,
                signed: *signed,
            },
            Base::Bool => Kind::Int {
                size: 1,
                signed: false,
            },
            Base::Void => Kind::Void,
            Base::Named(name) => match self.names.structure(name) {
                Some((ty, module)) => Kind::Described(ty, module),
                None => return Err(Wrong::new(at, format!("there is no structure `{name}`"))),
            },
        };
        for _ in 0..to.stars {
            ty = Kind::Pointer(Box::new(ty));
        }
        Ok(ty)
    }

    /// A C++ reference stands for what it refers to.
    fn dereferenced(&mut self, operand: Operand) -> Compiling<Operand> {
        if !operand.ty.is_reference() {
            return Ok(operand);
        }
        self.emit(&[op::REF64]);
        Ok(Operand {
            ty: operand.ty.target().unwrap_or(Kind::Void),
            place: true,
            bits: None,
        })
    }

    fn through(
        &mut self,
        operand: Operand,
        field: &str,
        of: &Node,
        at: usize,
    ) -> Compiling<Operand> {
        if matches!(&operand.ty, Kind::Described(t, _) if matches!(t.shape, Shape::Struct { .. })) {
            return Err(Wrong::new(
                at,
                "this is no pointer: use `.` instead of `->`",
            ));
        }
        let pointer = self.load(operand, of.at)?;
        match pointer.target() {
            Some(ty) => {
                let target = Operand {
                    ty,
                    place: true,
                    bits: None,
                };
                self.field(target, field, at)
            }
            None => Err(Wrong::new(
                at,
                format!("`->` takes a pointer, this is a {}", pointer.name()),
            )),
        }
    }

    fn field(&mut self, of: Operand, field: &str, at: usize) -> Compiling<Operand> {
        let Kind::Described(ty, module) = &of.ty else {
            let why = format!("a {} has no fields", of.ty.name());
            return Err(Wrong::new(at, why));
        };
        let Some(member) = ty.member(field) else {
            let names = ty.member_names();
            let why = match names.is_empty() {
                true => format!("a {} has no fields", ty.name),
                false => format!(
                    "{} has no field `{field}`: it has {}",
                    ty.name,
                    names.join(", ")
                ),
            };
            return Err(Wrong::new(at, why));
        };
        if !of.place {
            return Err(Wrong::new(
                at,
                "only the fields of something in memory can be used",
            ));
        }
        if member.offset != 0 {
            self.constant(member.offset);
            self.emit(&[op::ADD]);
        }
        self.dereferenced(Operand {
            ty: Kind::Described(member.ty, module.clone()),
            place: true,
            bits: member.bits,
        })
    }

    fn hit_word(&mut self, word: &str, at: usize) -> Compiling<Operand> {
        let (number, ty) = match word {
            "new" | "old" => {
                self.hit(match word {
                    "new" => variable::NEW,
                    _ => variable::OLD,
                });
                return Ok(Operand {
                    ty: self.value.ty.clone(),
                    place: false,
                    bits: self.value.bits,
                });
            }
            "addr" => (variable::ADDR, ULONG),
            "len" => (variable::LEN, LONG),
            "tid" => (variable::TID, INT),
            "pid" => (variable::PID, INT),
            "hits" => (variable::HITS, LONG),
            "pc" => (variable::PC, ULONG),
            "reads" | "writes" => {
                self.hit(variable::KIND);
                self.constant(if word == "reads" { 1 } else { 2 });
                self.emit(&[op::BIT_AND, op::LOG_NOT, op::LOG_NOT]);
                return Ok(Operand {
                    ty: INT,
                    place: false,
                    bits: None,
                });
            }
            _ => {
                const NAMES: [&str; 18] = [
                    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10",
                    "r11", "r12", "r13", "r14", "r15", "rip", "eflags",
                ];
                let name = match word {
                    "sp" => "rsp",
                    "fp" => "rbp",
                    word => word,
                };
                let Some(n) = NAMES.iter().position(|n| *n == name) else {
                    let why = format!(
                        "there is no `${word}`: it is one of $new, $old, $addr, $len, $tid, $pid, $hits, $reads, $writes, $pc or a register ($rax)"
                    );
                    return Err(Wrong::new(at, why));
                };
                self.emit(&[op::REG, 0, n as u8]);
                return Ok(Operand {
                    ty: if (6..8).contains(&n) || n == 16 {
                        ULONG
                    } else {
                        LONG
                    },
                    place: false,
                    bits: None,
                });
            }
        };
        self.hit(number);
        Ok(Operand {
            ty,
            place: false,
            bits: None,
        })
    }

    fn binary(
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
            self.emit(&[match (operator, l.1) {
                (Left, _) => op::LSH,
                (_, true) => op::RSH_SIGNED,
                (_, false) => op::RSH_UNSIGNED,
            }]);
            self.narrow(l);
            return Ok(kind(l));
        }
        let common = self.convert(l, r);
        self.emit(&[match (operator, common.1) {
            (Multiply, _) => op::MUL,
            (Divide, true) => op::DIV_SIGNED,
            (Divide, false) => op::DIV_UNSIGNED,
            (Remainder, true) => op::REM_SIGNED,
            (Remainder, false) => op::REM_UNSIGNED,
            (And, _) => op::BIT_AND,
            (Xor, _) => op::BIT_XOR,
            _ => op::BIT_OR,
        }]);
        self.narrow(common);
        Ok(kind(common))
    }

    /// The promoted type of an integer.
    fn integer(&self, ty: &Kind, at: usize) -> Compiling<(u8, bool)> {
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

    /// Brings both operands to their common type.
    fn convert(&mut self, left: (u8, bool), right: (u8, bool)) -> (u8, bool) {
        let size = left.0.max(right.0);
        let signed = [left, right].iter().all(|t| t.1 || t.0 < size);
        // Only int to unsigned changes the 64 bits.
        if size == 4 && !signed {
            if right.1 {
                self.extend(32, false);
            }
            if left.1 {
                self.emit(&[op::SWAP, op::ZERO_EXT, 32, op::SWAP]);
            }
        }
        (size, signed)
    }

    /// After arithmetic: what does not fit is cut off.
    fn narrow(&mut self, (size, signed): (u8, bool)) {
        self.extend(size * 8, signed);
    }

    fn add(&mut self, left: &Node, right: &Node, how: u8, at: usize) -> Compiling<Kind> {
        let l = self.value(left)?;
        let scale = |ty: &Kind| ty.target().map(|t| t.size().max(1));
        let r = self.value(right)?;
        match (scale(&l), scale(&r)) {
            (Some(size), Some(_)) if how == op::SUB => {
                self.emit(&[op::SUB]);
                self.constant(size);
                self.emit(&[op::DIV_SIGNED]);
                Ok(LONG)
            }
            (Some(size), None) => {
                self.integer(&r, right.at)?;
                self.constant(size);
                self.emit(&[op::MUL, how]);
                Ok(l)
            }
            (None, Some(size)) if how == op::ADD => {
                self.integer(&l, left.at)?;
                self.emit(&[op::SWAP]);
                self.constant(size);
                self.emit(&[op::MUL, op::ADD]);
                Ok(r)
            }
            (Some(_), Some(_)) | (None, Some(_)) => Err(Wrong::new(
                at,
                "pointers cannot be added or subtracted like that",
            )),
            (None, None) => {
                let l = self.integer(&l, left.at)?;
                let r = self.integer(&r, right.at)?;
                let common = self.convert(l, r);
                self.emit(&[how]);
                self.narrow(common);
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
        // A number is on the right.
        if self.number(left).is_some() && self.number(right).is_none() {
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
        if let Some(()) = float::compare(self, operator, &l, right)? {
            return Ok(INT);
        }
        let r = match self.enumerator(right, left) {
            Some(value) => self.enumerator_value(value),
            None => self.value(right)?,
        };
        if let (Kind::Float(l), Kind::Float(r)) = (&l, &r) {
            return match l == r {
                true => {
                    float::compare_values(self, operator, *l);
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
        let (_, signed) = self.convert(ty(&l), ty(&r));
        let less = if signed {
            op::LESS_SIGNED
        } else {
            op::LESS_UNSIGNED
        };
        match operator {
            Binary::Less => self.emit(&[less]),
            Binary::Greater => self.emit(&[op::SWAP, less]),
            Binary::LessEqual => self.emit(&[op::SWAP, less, op::LOG_NOT]),
            Binary::GreaterEqual => self.emit(&[less, op::LOG_NOT]),
            Binary::Equal => self.emit(&[op::EQUAL]),
            _ => self.emit(&[op::EQUAL, op::LOG_NOT]),
        }
        Ok(INT)
    }

    /// `colour == GREEN`: the name of a value of the other side's enumeration.
    fn enumerator(&self, node: &Node, other: &Node) -> Option<i128> {
        let What::Name(None, name) = &node.what else {
            return None;
        };
        let mut probe = Compiler {
            code: Vec::new(),
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
        self.constant(value as u64);
        match i32::try_from(value) {
            Ok(_) => INT,
            Err(_) => LONG,
        }
    }

    /// A number as the program's own bits, for [`float`].
    pub(super) fn number(&self, node: &Node) -> Option<f64> {
        match &node.what {
            What::Float(bits) => Some(f64::from_bits(*bits)),
            What::Number { value, .. } => Some(*value as f64),
            What::Unary(Unary::Negate, of) => Some(-self.number(of)?),
            _ => None,
        }
    }
}

/// Size and sign after C's integer promotions.
fn promoted(ty: &Kind) -> (u8, bool) {
    match ty {
        Kind::Int { size, .. } if *size < 4 => (4, true),
        Kind::Int { size, signed } => (*size, *signed),
        _ => (8, false),
    }
}

fn kind((size, signed): (u8, bool)) -> Kind {
    Kind::Int { size, signed }
}
