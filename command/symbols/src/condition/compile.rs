//! Compiles [`Node`]s to GDB agent bytecode.
//!
//! A value on the evaluator's stack has 64 bits; a smaller value is extended according to its type. An object is
//! represented by its address until its value is needed.

use super::code::Code;
use super::kind::{INT, Kind, LONG, ULONG, kind, promoted};
use super::tree::{Base, CastTo, Node, Unary, What, Wrong};
use crate::maps::Module;
use crate::types::{Bits, Shape, Type};
use std::cell::Cell;
use std::rc::Rc;
use ulpf_engine::agent::{op, variable};

/// Resolution of names, by the resolver or by a test.
pub trait Names {
    fn variable(&self, object: Option<&str>, name: &str) -> Result<Found, String>;
    /// Finds a structure by its name.
    fn structure(&self, name: &str) -> Option<(Rc<Type>, Option<Rc<Module>>)>;
}

pub struct Found {
    /// The address; for a thread-local variable, the offset from the thread pointer.
    pub addr: u64,
    pub thread_local: bool,
    pub ty: Kind,
}

/// The watched value, which `$new` and `$old` refer to.
#[derive(Clone)]
pub struct Value {
    pub ty: Kind,
    pub bits: Option<Bits>,
}

pub struct Compiled {
    pub code: Vec<u8>,
}

/// Limit of the code in bytes: jumps have 16 bits, and the monitor command has to fit into a packet.
const MOST_CODE: usize = 4096;

/// Limit of visited nodes. Some nodes are visited twice, and so are their operands.
const MOST_LOOKS: u32 = 10_000;

pub fn compile(node: &Node, value: &Value, names: &dyn Names) -> Result<Compiled, Wrong> {
    let mut c = Compiler {
        code: Code::default(),
        value,
        names,
        looks: &Cell::new(MOST_LOOKS),
    };
    c.truth(node)?;
    c.code.emit(&[op::END]);
    match c.code.len() > MOST_CODE {
        true => Err(Wrong::new(node.at, "the condition is too long")),
        false => Ok(Compiled {
            code: c.code.into_bytes(),
        }),
    }
}

/// The operand that the code so far has left on the stack.
pub(super) struct Operand {
    pub(super) ty: Kind,
    /// The stack holds its address instead of its value.
    place: bool,
    bits: Option<Bits>,
}

pub(super) struct Compiler<'a> {
    pub(super) code: Code,
    pub(super) value: &'a Value,
    pub(super) names: &'a dyn Names,
    /// Number of node visits left.
    pub(super) looks: &'a Cell<u32>,
}

pub(super) type Compiling<T> = Result<T, Wrong>;

impl Compiler<'_> {
    /// Leaves 1 or 0 on the stack.
    fn truth(&mut self, node: &Node) -> Compiling<()> {
        let of = self.value(node)?;
        if let Kind::Float(_) = of {
            return Err(Wrong::new(node.at, "compare the floating-point value"));
        }
        self.code.emit(&[op::LOG_NOT, op::LOG_NOT]);
        Ok(())
    }

    /// The value of `node`, with its type: an integer, a pointer, or the bits of a floating-point number.
    pub(super) fn value(&mut self, node: &Node) -> Compiling<Kind> {
        let operand = self.operand(node)?;
        self.load(operand, node.at)
    }

    fn load(&mut self, operand: Operand, at: usize) -> Compiling<Kind> {
        let Operand { ty, place, bits } = operand;
        if ty.is_array() && place {
            // An array decays to its address.
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
                Kind::Described(t, _) if matches!(t.shape, Shape::Int { .. }) => format!(
                    "a {} has more than 64 bits, conditions compute with 64: name a half of it, as `*(long *)&NAME` or `((long *)&NAME)[1]`",
                    t.name
                ),
                _ => format!("a {} has no value that could be used here", ty.name()),
            };
            return Err(Wrong::new(at, what));
        }
        if place {
            self.code.emit(&[match size {
                1 => op::REF8,
                2 => op::REF16,
                4 => op::REF32,
                _ => op::REF64,
            }]);
        }
        if let Kind::Int { size, signed: true } = ty {
            self.code.extend(size * 8, true);
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
            self.code.emit(&[match bits.bytes() {
                1 => op::REF8,
                2 => op::REF16,
                3 | 4 => op::REF32,
                _ => op::REF64,
            }]);
        }
        if bits.first > 0 {
            self.code.constant(bits.first);
            self.code.emit(&[op::RSH_UNSIGNED]);
        }
        self.code.extend(bits.len as u8, signed);
        // As in C, a bit-field that fits into int becomes int.
        Ok(match bits.len < 32 {
            true => INT,
            false => Kind::Int { size, signed },
        })
    }

    pub(super) fn operand(&mut self, node: &Node) -> Compiling<Operand> {
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
                self.code.constant(*n);
                value(Kind::Int {
                    size: bits / 8,
                    signed: *signed,
                })
            }
            What::Float(bits) => {
                self.code.constant(*bits);
                value(Kind::Float(8))
            }
            What::Word(word) => self.hit_word(word, node.at),
            What::Name(object, name) => {
                let found = self
                    .names
                    .variable(object.as_deref(), name)
                    .map_err(|why| Wrong::new(node.at, why))?;
                self.code.constant(found.addr);
                if found.thread_local {
                    self.code.hit(variable::THREAD_POINTER);
                    self.code.emit(&[op::ADD]);
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
                        self.code.emit(&[op::LOG_NOT]);
                        return value(INT);
                    }
                    _ if !integer => {
                        return wrong(format!("this takes an integer, not a {}", ty.name()));
                    }
                    Unary::Invert => self.code.emit(&[op::BIT_NOT]),
                    // Computed as 0 - n.
                    Unary::Negate => {
                        self.code.constant(0);
                        self.code.emit(&[op::SWAP, op::SUB]);
                    }
                    _ => {}
                }
                let ty = promoted(&ty);
                self.code.narrow(ty);
                value(kind(ty))
            }
            What::And(left, right) | What::Or(left, right) => {
                self.truth(left)?;
                // The left operand remains if it decides.
                self.code.emit(&[op::DUP]);
                if let What::And(..) = node.what {
                    self.code.emit(&[op::LOG_NOT]);
                }
                let end = self.code.jump(op::IF_GOTO);
                self.code.emit(&[op::POP]);
                self.truth(right)?;
                self.code.land(end);
                value(INT)
            }
            What::Binary(operator, left, right) => {
                let ty = self.binary(*operator, left, right, node.at)?;
                value(ty)
            }
            What::Field(of, field) => {
                let operand = self.operand(of)?;
                let pointer = operand.ty.target().is_some() && !operand.ty.is_array();
                // As in gdb, `p.x` also means `p->x`.
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
                        self.code.emit(&[op::LOG_NOT, op::LOG_NOT]);
                    }
                    Kind::Int { size, signed } => self.code.extend(size * 8, *signed),
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

    /// Replaces a C++ reference by its referent.
    fn dereferenced(&mut self, operand: Operand) -> Compiling<Operand> {
        if !operand.ty.is_reference() {
            return Ok(operand);
        }
        self.code.emit(&[op::REF64]);
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
            self.code.constant(member.offset);
            self.code.emit(&[op::ADD]);
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
                self.code.hit(match word {
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
            "kind" => (variable::KIND, LONG),
            "reads" | "writes" => {
                self.code.hit(variable::KIND);
                self.code.constant(if word == "reads" { 1 } else { 2 });
                self.code.emit(&[op::BIT_AND, op::LOG_NOT, op::LOG_NOT]);
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
                        "there is no `${word}`: it is one of $new, $old, $addr, $len, $tid, $pid, $hits, $kind, $reads, $writes, $pc or a register ($rax)"
                    );
                    return Err(Wrong::new(at, why));
                };
                self.code.emit(&[op::REG, 0, n as u8]);
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
        self.code.hit(number);
        Ok(Operand {
            ty,
            place: false,
            bits: None,
        })
    }
}
