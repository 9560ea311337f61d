//! A condition, taken apart.

/// A node and where it begins: bytes from the start of the watch's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub at: usize,
    pub what: What,
}

impl Node {
    /// A number as a floating-point one, if that is what the node is.
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
    /// `f64::to_bits`
    Float(u64),
    /// Object, name.
    Name(Option<String>, String),
    /// After `$`.
    Word(String),
    Unary(Unary, Box<Node>),
    Binary(Binary, Box<Node>, Box<Node>),
    /// `&&` and `||`, which stop at the first that decides.
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
    /// A structure, by name.
    Named(String),
}

/// What is wrong, and where (see [`Node::at`]).
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

    /// For a user who looks at `text`.
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
