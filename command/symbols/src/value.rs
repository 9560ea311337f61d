//! Names and formats the bytes of a watched object in source form.

use crate::types::{Bits, Shape, Type};
use std::fmt::Write;
use std::rc::Rc;
use ulpf_host::foreign::text::{Text, is_plain};

/// The smallest named part of an object that contains an access, appended as text to `out`: `[3].next` for an access to
/// that field, `[4..8]` for one to four elements, `+2` for one inside a scalar. Returns the part's type and the number
/// of its bytes before the access.
///
/// `slice` is the number of the first element if the object is a slice of an array.
pub fn describe(
    ty: &Rc<Type>,
    offset: u64,
    len: u64,
    slice: Option<i64>,
    out: &mut String,
) -> Part {
    let (mut ty, mut offset, mut slice, mut named) = (ty.clone(), offset, slice, true);
    loop {
        if offset == 0 && len == ty.size && slice.is_none() && named {
            break;
        }
        let first_index = slice.take();
        named = true;
        let inner = match &ty.shape {
            Shape::Array {
                element, bounds, ..
            } if element.size > 0 => {
                let first_index = first_index.unwrap_or(bounds.first);
                let size = element.size;
                let last = offset.saturating_add(len.max(1) - 1);
                let (from, to) = (offset / size, last / size);
                if from != to {
                    let to = to as i64 + 1 + first_index;
                    let _ = write!(out, "[{}..{to}]", from as i64 + first_index);
                    let whole = offset % size == 0 && len.is_multiple_of(size);
                    let element = element.clone();
                    return Part {
                        ty: element,
                        repeat: whole.then_some(len / size),
                        inside: offset % size,
                        bits: None,
                    };
                }
                *out = bounds.indexed(out, from as i64 + first_index);
                offset %= size;
                element.clone()
            }
            Shape::Struct { members, .. } => {
                let fits = |m: &&crate::types::Member| {
                    let bytes = m.bits.map_or(m.ty.size, |b| b.bytes());
                    let end = m.offset.saturating_add(bytes);
                    m.offset <= offset && offset.saturating_add(len) <= end
                };
                // In a union the first member that fits is named; in other types only one fits. For bit-fields that
                // share bytes the whole is named. Variants of an enum fit only if they have a member at the access.
                let holds = |m: &&crate::types::Member| {
                    m.variant.is_none() || m.ty.holds(offset.wrapping_sub(m.offset), len)
                };
                let mut fitting = members.iter().filter(fits).filter(holds);
                let Some(member) = fitting.next() else { break };
                if (member.bits.is_some() || member.variant.is_some()) && fitting.next().is_some() {
                    break;
                }
                if let (Some(name), false) = (member.name, member.base_class) {
                    out.push('.');
                    out.push_str(
                        name.strip_prefix("__")
                            .filter(|n| n.bytes().all(|b| b.is_ascii_digit()))
                            .unwrap_or(name),
                    );
                }
                named = member.name.is_some() && !member.base_class;
                offset -= member.offset;
                if member.bits.is_some() {
                    return Part {
                        ty: member.ty.clone(),
                        repeat: None,
                        inside: offset,
                        bits: member.bits,
                    };
                }
                member.ty.clone()
            }
            _ => break,
        };
        ty = inner;
    }
    if offset > 0 {
        let _ = write!(out, "+{offset}");
    }
    Part {
        ty,
        repeat: None,
        inside: offset,
        bits: None,
    }
}

/// The result of [`describe`].
#[derive(Clone, Debug)]
pub struct Part {
    pub ty: Rc<Type>,
    /// The access covers this many whole objects of `ty`.
    pub repeat: Option<u64>,
    /// Number of bytes of the part before the access.
    pub inside: u64,
    pub bits: Option<Bits>,
}

impl Part {
    /// Formats the accessed bytes. `whole_len` is the length of the access; `bytes` may be only its beginning.
    pub fn render(&self, bytes: &[u8], whole_len: u64, out: &mut String) {
        let truncated = (bytes.len() as u64) < whole_len;
        if let (Some(count), true) = (self.repeat, self.ty.size > 0) {
            if matches!(self.ty.shape, Shape::Char { .. }) {
                return render_text(bytes, truncated, out);
            }
            out.push('{');
            for (i, item) in bytes.chunks_exact(self.ty.size as usize).enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                render_scalar(&self.ty, item, out);
            }
            if truncated || bytes.len() as u64 / self.ty.size < count {
                out.push_str(", …");
            }
            return out.push('}');
        }
        if let (Some(bits), 1..=8) = (self.bits, bytes.len()) {
            let _ = match self.bit_field(bits, bytes) {
                Bitten::Signed(n) => write!(out, "{n}"),
                Bitten::Unsigned(n) => write!(out, "{n}"),
            };
            return;
        }
        if self.is_whole(bytes, truncated) {
            return render_scalar(&self.ty, bytes, out);
        }
        render_raw(bytes, truncated, out);
    }
}

/// A value for programs, with the variable's own type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Bool(bool),
    Signed(i128),
    Unsigned(u128),
    Single(f32),
    Double(f64),
    /// A string, the name of an enumerator, or a pointer (`0x…`); also bytes without a type, formatted as by
    /// [`Part::render`].
    Text(String),
    List(Vec<Value>),
}

impl Part {
    /// Bytes of unknown type, at offset `inside` of a watch.
    pub fn untyped(inside: u64) -> Part {
        Part {
            ty: Type::opaque(0),
            repeat: None,
            inside,
            bits: None,
        }
    }

    /// The accessed bytes as a value; the arguments are those of [`Part::render`].
    pub fn value(&self, bytes: &[u8], whole_len: u64) -> Value {
        let truncated = (bytes.len() as u64) < whole_len;
        if self.repeat.is_some() && self.ty.size > 0 {
            if matches!(self.ty.shape, Shape::Char { .. }) && self.ty.size == 1 {
                return Value::Text(characters(bytes));
            }
            let items = bytes.chunks_exact(self.ty.size as usize);
            return Value::List(items.map(|item| scalar(&self.ty, item)).collect());
        }
        if let (Some(bits), 1..=8) = (self.bits, bytes.len()) {
            return match self.bit_field(bits, bytes) {
                Bitten::Signed(n) => Value::Signed(n.into()),
                Bitten::Unsigned(n) => Value::Unsigned(n.into()),
            };
        }
        if self.is_whole(bytes, truncated) {
            return scalar(&self.ty, bytes);
        }
        raw(bytes, truncated)
    }

    /// Whether the part is a pointer; `None` if its type is unknown.
    pub fn is_pointer(&self) -> Option<bool> {
        let whole = self.inside == 0 && self.repeat.is_none_or(|n| n == 1);
        match self.ty.shape {
            Shape::Opaque => None,
            Shape::Pointer { .. } => Some(whole),
            _ => Some(false),
        }
    }

    /// The name of the value's type, or `None` if the bytes have no type.
    pub fn type_name(&self, len: u64) -> Option<String> {
        match self.repeat {
            _ if matches!(self.ty.shape, Shape::Opaque) => None,
            Some(count) => Some(format!("{} [{count}]", written(&self.ty.name))),
            None if self.bits.is_some() || self.inside == 0 && self.ty.size == len => {
                Some(written(&self.ty.name))
            }
            None => None,
        }
    }

    fn is_whole(&self, bytes: &[u8], truncated: bool) -> bool {
        self.inside == 0 && bytes.len() as u64 == self.ty.size && !truncated
    }

    fn bit_field(&self, bits: Bits, bytes: &[u8]) -> Bitten {
        let value = unsigned(bytes) as u64 >> bits.first & mask(bits.len);
        let shift = 64 - bits.len.clamp(1, 64);
        match self.ty.shape {
            Shape::Int { signed: true } => Bitten::Signed((value << shift) as i64 >> shift),
            _ => Bitten::Unsigned(value),
        }
    }
}

/// C's types as programmers and gdb write them; GCC writes `long unsigned int` in debug information.
fn written(name: &str) -> String {
    const NAMES: [(&str, &str); 6] = [
        ("long long unsigned int", "unsigned long long"),
        ("long long int", "long long"),
        ("long unsigned int", "unsigned long"),
        ("short unsigned int", "unsigned short"),
        ("long int", "long"),
        ("short int", "short"),
    ];
    let known = NAMES.iter().find_map(|(from, to)| {
        let rest = name.strip_prefix(from)?;
        let whole = rest.is_empty() || rest.starts_with(' ');
        whole.then(|| format!("{to}{rest}"))
    });
    known.unwrap_or_else(|| name.to_string())
}

/// The value of a bit-field.
enum Bitten {
    Signed(i64),
    Unsigned(u64),
}

/// One complete object of type `ty`.
fn scalar(ty: &Type, bytes: &[u8]) -> Value {
    match (&ty.shape, bytes.len()) {
        (Shape::Bool, 1) if bytes[0] < 2 => Value::Bool(bytes[0] == 1),
        (Shape::Int { signed: true } | Shape::Char { signed: true }, 1..=16) => {
            Value::Signed(signed(bytes))
        }
        (Shape::Int { .. } | Shape::Char { .. } | Shape::Bool, 1..=16) => {
            Value::Unsigned(unsigned(bytes))
        }
        (Shape::Float, 4) => Value::Single(f32::from_bits(unsigned(bytes) as u32)),
        (Shape::Float, 8) => Value::Double(f64::from_bits(unsigned(bytes) as u64)),
        (Shape::Float, 16) => Value::Double(x87(bytes)),
        (Shape::Array { element, .. }, _)
            if matches!(element.shape, Shape::Char { .. }) && element.size == 1 =>
        {
            Value::Text(characters(bytes))
        }
        (Shape::Array { element, .. }, _) if element.size > 0 => {
            let items = bytes.chunks_exact(element.size as usize);
            Value::List(items.map(|item| scalar(element, item)).collect())
        }
        (Shape::Struct { .. }, _) => match ty.only_member() {
            Some(only) => scalar(&only, bytes),
            None => raw(bytes, false),
        },
        _ => {
            let mut text = String::new();
            render_scalar(ty, bytes, &mut text);
            // (An enumerator without a name is a number.)
            match text.parse() {
                Ok(n) if matches!(ty.shape, Shape::Enum { .. }) => Value::Signed(n),
                _ => Value::Text(text),
            }
        }
    }
}

fn raw(bytes: &[u8], truncated: bool) -> Value {
    let mut text = String::new();
    render_raw(bytes, truncated, &mut text);
    Value::Text(text)
}

/// Text up to the first NUL.
fn characters(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

fn mask(bits: u64) -> u64 {
    u64::MAX >> (64 - bits.clamp(1, 64))
}

fn unsigned(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u128::from(*b))
}

fn signed(bytes: &[u8]) -> i128 {
    let shift = 128 - 8 * bytes.len().clamp(1, 16) as u32;
    (unsigned(bytes) << shift) as i128 >> shift
}

/// Formats one complete object of type `ty`.
pub fn render_scalar(ty: &Type, bytes: &[u8], out: &mut String) {
    let _ = match (&ty.shape, bytes.len()) {
        (Shape::Int { signed: true }, 1..=16) => write!(out, "{}", signed(bytes)),
        (Shape::Int { signed: false }, 1..=16) => write!(out, "{}", unsigned(bytes)),
        (Shape::Bool, 1) => match bytes[0] {
            0 => write!(out, "false"),
            1 => write!(out, "true"),
            n => write!(out, "{n}"),
        },
        (Shape::Char { signed: is_signed }, 1..=4) => {
            let code = unsigned(bytes) as u32;
            let _ = if *is_signed {
                write!(out, "{}", signed(bytes))
            } else {
                write!(out, "{code}")
            };
            match char::from_u32(code) {
                Some(c) if is_plain(c) && (bytes.len() > 1 || c.is_ascii()) => {
                    write!(out, " '{c}'")
                }
                _ => Ok(()),
            }
        }
        (Shape::Float, 4) => write!(out, "{:?}", f32::from_bits(unsigned(bytes) as u32)),
        (Shape::Float, 8) => write!(out, "{:?}", f64::from_bits(unsigned(bytes) as u64)),
        (Shape::Float, 16) => write!(out, "{:?}", x87(bytes)),
        (Shape::Enum { values }, 1..=16) => {
            let (s, u) = (signed(bytes), unsigned(bytes) as i128);
            match values.iter().find(|(_, v)| *v == s || *v == u) {
                Some((name, _)) => write!(out, "{}", Text(name)),
                None => write!(out, "{s}"),
            }
        }
        (Shape::Pointer { .. }, 8) => write!(out, "{:#x}", unsigned(bytes)),
        (Shape::Array { element, .. }, _)
            if matches!(element.shape, Shape::Char { .. }) && element.size == 1 =>
        {
            render_text(bytes, false, out);
            Ok(())
        }
        (Shape::Array { element, .. }, _) if element.size > 0 => {
            let all = Part {
                ty: element.clone(),
                repeat: Some(bytes.len() as u64 / element.size),
                inside: 0,
                bits: None,
            };
            all.render(bytes, bytes.len() as u64, out);
            Ok(())
        }
        (Shape::Struct { .. }, _) => {
            match ty.only_member() {
                Some(only) => render_scalar(&only, bytes, out),
                None => render_raw(bytes, false, out),
            }
            Ok(())
        }
        _ => {
            render_raw(bytes, false, out);
            Ok(())
        }
    };
}

/// An 80-bit x87 value in its 16 bytes (Intel SDM vol. 1, 4.2.2), converted to double precision.
fn x87(bytes: &[u8]) -> f64 {
    let mantissa = unsigned(&bytes[..8]) as u64;
    let head = unsigned(&bytes[8..10]) as u32;
    let (negative, exponent) = (head & 0x8000 != 0, (head & 0x7fff) as i32);
    let magnitude = match (exponent, mantissa << 1) {
        (0x7fff, 0) => f64::INFINITY,
        (0x7fff, _) => f64::NAN,
        _ => (mantissa as f64) * 2f64.powi((exponent - 16383 - 63).max(-1074)),
    };
    if negative { -magnitude } else { magnitude }
}

/// Characters as text, up to the first NUL.
fn render_text(bytes: &[u8], truncated: bool, out: &mut String) {
    let end = bytes.iter().position(|b| *b == 0);
    let text = &bytes[..end.unwrap_or(bytes.len())];
    out.push('"');
    for b in text {
        match b {
            b'"' | b'\\' => out.extend(['\\', *b as char]),
            b' '..=b'~' => out.push(*b as char),
            b'\n' => out.push_str("\\n"),
            _ => {
                let _ = write!(out, "\\x{b:02x}");
            }
        }
    }
    out.push('"');
    if truncated && end.is_none() {
        out.push('…');
    }
}

/// Formats bytes without a type: a number up to 8 bytes, otherwise bytes in memory order.
pub fn render_raw(bytes: &[u8], truncated: bool, out: &mut String) {
    if matches!(bytes.len(), 1 | 2 | 4 | 8) && !truncated {
        let _ = write!(out, "{:#x}", unsigned(bytes));
        return;
    }
    for (i, b) in bytes.iter().enumerate() {
        let _ = write!(out, "{}{b:02x}", if i > 0 { " " } else { "" });
    }
    if truncated {
        out.push_str(" …");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Member;

    fn int(size: u64, signed: bool) -> Rc<Type> {
        Rc::new(Type {
            name: "int".into(),
            size,
            shape: Shape::Int { signed },
        })
    }
    fn array(element: Rc<Type>, count: u64) -> Rc<Type> {
        Rc::new(Type {
            name: "a".into(),
            size: element.size * count,
            shape: Shape::Array {
                element,
                count: Some(count),
                bounds: Default::default(),
            },
        })
    }
    fn show(ty: &Rc<Type>, offset: u64, bytes: &[u8]) -> String {
        let mut out = String::from("v");
        let part = describe(ty, offset, bytes.len() as u64, None, &mut out);
        out.push('=');
        part.render(bytes, bytes.len() as u64, &mut out);
        out
    }

    #[test]
    fn parts_and_values() {
        let i = int(4, true);
        assert_eq!(show(&i, 0, &(-7i32).to_le_bytes()), "v=-7");
        assert_eq!(show(&i, 1, &[0x12]), "v+1=0x12");
        let a = array(i.clone(), 8);
        assert_eq!(show(&a, 12, &5i32.to_le_bytes()), "v[3]=5");
        assert_eq!(show(&a, 4, &[1, 0, 0, 0, 2, 0, 0, 0]), "v[1..3]={1, 2}");
        assert_eq!(show(&a, 6, &[1, 0, 0, 0]), "v[1..3]=0x1");
        assert_eq!(
            show(&array(array(i.clone(), 3), 2), 16, &9i32.to_le_bytes()),
            "v[1][1]=9"
        );
    }

    #[test]
    fn values_have_the_type_of_their_variable() {
        let of = |ty: &Rc<Type>, bytes: &[u8]| {
            let len = bytes.len() as u64;
            let part = describe(ty, 0, len, None, &mut String::new());
            (part.value(bytes, len), part.type_name(len))
        };
        let int = int(4, true);
        let named = |name: &str| Some(name.to_string());
        assert_eq!(
            of(&int, &(-7i32).to_le_bytes()),
            (Value::Signed(-7), named("int"))
        );
        assert_eq!(of(&int, &[0x12]), (Value::Text("0x12".into()), None));
        let two = Value::List(vec![Value::Signed(1), Value::Signed(2)]);
        let a = array(int, 8);
        assert_eq!(of(&a, &[1, 0, 0, 0, 2, 0, 0, 0]), (two, named("int [2]")));
        let char = Rc::new(Type {
            name: "char".into(),
            size: 1,
            shape: Shape::Char { signed: true },
        });
        assert_eq!(
            of(&array(char.clone(), 8), b"hi\n\"\0zz."),
            (Value::Text("hi\n\"".into()), named("a"))
        );
        assert_eq!(of(&char, b"A"), (Value::Signed(65), named("char")));
        assert_eq!(
            of(&Type::opaque(3), &[1, 2, 255]),
            (Value::Text("01 02 ff".into()), None)
        );
        let bool = Rc::new(Type {
            name: "bool".into(),
            size: 1,
            shape: Shape::Bool,
        });
        assert_eq!(of(&bool, &[1]).0, Value::Bool(true));
        assert_eq!(of(&bool, &[7]).0, Value::Unsigned(7));
    }

    #[test]
    fn structures_bit_fields_and_newtypes() {
        let member = |name, offset, ty: &Rc<Type>, bits| Member {
            name: Some(name),
            offset,
            ty: ty.clone(),
            bits,
            base_class: false,
            variant: None,
        };
        let (i, u) = (int(4, true), int(4, false));
        let members = [
            member("x", 0, &i, None),
            member("lo", 4, &u, Some(Bits { first: 0, len: 3 })),
            member("hi", 5, &i, Some(Bits { first: 2, len: 4 })),
            member("__0", 8, &i, None),
        ];
        let s = Rc::new(Type {
            name: "s".into(),
            size: 12,
            shape: Shape::Struct {
                members: members.into(),
                class: Default::default(),
            },
        });
        assert_eq!(show(&s, 0, &1i32.to_le_bytes()), "v.x=1");
        assert_eq!(show(&s, 4, &[0b1110]), "v.lo=6");
        assert_eq!(show(&s, 5, &[0b111_1100]), "v.hi=-1");
        assert_eq!(show(&s, 8, &3i32.to_le_bytes()), "v.0=3");
        assert_eq!(show(&s, 0, &[1, 0, 0, 0, 2, 0, 0, 0]), "v=0x200000001");
        let newtype = Rc::new(Type {
            name: "n".into(),
            size: 4,
            shape: Shape::Struct {
                members: [member("v", 0, &i, None)].into(),
                class: Default::default(),
            },
        });
        assert_eq!(show(&newtype, 0, &4i32.to_le_bytes()), "v=4");
        let mut out = String::new();
        render_scalar(&newtype, &4i32.to_le_bytes(), &mut out);
        assert_eq!(out, "4");
    }

    #[test]
    fn floats_text_and_bytes() {
        let f = |size| {
            Rc::new(Type {
                name: "f".into(),
                size,
                shape: Shape::Float,
            })
        };
        assert_eq!(show(&f(8), 0, &1.5f64.to_le_bytes()), "v=1.5");
        assert_eq!(show(&f(4), 0, &0.1f32.to_le_bytes()), "v=0.1");
        let one = [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f, 0, 0, 0, 0, 0, 0];
        assert_eq!(show(&f(16), 0, &one), "v=1.0");
        let c = Rc::new(Type {
            name: "char".into(),
            size: 1,
            shape: Shape::Char { signed: true },
        });
        assert_eq!(show(&c, 0, b"A"), "v=65 'A'");
        assert_eq!(show(&array(c, 8), 0, b"hi\n\"\0zz."), "v=\"hi\\n\\\"\"");
        assert_eq!(show(&Type::opaque(3), 0, &[1, 2, 255]), "v=01 02 ff");
    }
}
