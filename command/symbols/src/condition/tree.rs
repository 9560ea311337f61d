//! The syntax tree of a condition.

/// A node and its position: bytes from the start of the watch's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub at: usize,
    pub what: What,
}

impl Node {
    /// The node's value as a floating-point number, if it is a number.
    pub fn number(&self) -> Option<f64> {
        match &self.what {
            What::Float(bits) => Some(f64::from_bits(*bits)),
            What::Number { value, .. } => Some(*value as f64),
            What::Unary(Unary::Negate, of) => Some(-of.number()?),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Number {
        value: u64,
        bits: u8,
        signed: bool,
    },
    /// The bits of the number, by `f64::to_bits`.
    Float(u64),
    /// An object (if any) and a name.
    Name(Option<String>, String),
    /// A word after `$`.
    Word(String),
    Unary(Unary, Box<Node>),
    Binary(Binary, Box<Node>, Box<Node>),
    /// `&&` and `||`, which skip the second operand if the first decides.
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Field(Box<Node>, String),
    Arrow(Box<Node>, String),
    Index(Box<Node>, Box<Node>),
    Cast(CastTo, Box<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Not,
    Invert,
    Negate,
    Plus,
    Deref,
    Address,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Multiply,
    Divide,
    Remainder,
    Add,
    Subtract,
    Left,
    Right,
    Less,
    Greater,
    LessEqual,
    GreaterEqual,
    Equal,
    NotEqual,
    And,
    Xor,
    Or,
}

/// A type in a cast: `stars` pointers to `base`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CastTo {
    pub base: Base,
    pub stars: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Int {
        size: u8,
        signed: bool,
    },
    Bool,
    Void,
    /// A structure type, by name.
    Named(String),
}

/// An error and its position (see [`Node::at`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub at: usize,
    pub why: String,
}

impl Wrong {
    pub fn new(at: usize, why: impl Into<String>) -> Wrong {
        Wrong {
            at,
            why: why.into(),
        }
    }

    /// The error as a message about `text` for the user.
    pub fn in_text(&self, text: &str) -> String {
        let before = text.get(..self.at).unwrap_or(text);
        let column = before.chars().count() + 1;
        let rest = text.get(self.at..).unwrap_or("").trim_start();
        let near: String = rest.chars().take(12).collect();
        match near.trim_end() {
            "" => format!("{} (at the end, column {column})", self.why),
            near => {
                let more = if rest.len() > near.len() { "…" } else { "" };
                format!("{} (column {column}, at `{near}{more}`)", self.why)
            }
        }
    }
}
