//! Expressions as parsed, macros expanded. Every node has an id, by which places, types and overloads are looked up.
//!
//! Invariant: no tree is deeper than [`crate::MAX_DEPTH`]; `depth` of a node is one more than that of its deepest child.
//! So whatever walks a tree may recurse.

/// Names a node of one expression.
pub(crate) type Id = u32;

/// A constant as written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    pub id: Id,
    pub depth: u16,
    pub kind: Kind,
}

/// `key: value` of a map or `name: value` of an object; `?` before the key makes it optional.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry<K> {
    pub id: Id,
    pub key: K,
    pub value: Expr,
    pub optional: bool,
}

/// What macros over lists and maps become.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comprehension {
    pub range: Expr,
    pub var: String,
    pub var2: Option<String>,
    pub accu: String,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

impl Comprehension {
    /// Binds a name to a value (`optMap` and its like): nothing is iterated.
    pub(crate) fn is_bind(&self) -> bool {
        matches!(&self.range.kind, Kind::List { elements, .. } if elements.is_empty())
            && self.condition.kind == Kind::Literal(Literal::Bool(false))
            && self.accu != ACCUMULATOR
    }
}

/// The variable in which a comprehension gathers its result; no expression can name it.
pub(crate) const ACCUMULATOR: &str = "@result";

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Literal(Literal),
    Ident(String),
    Select { operand: Box<Expr>, field: String, test: bool },
    Call { target: Option<Box<Expr>>, function: String, args: Vec<Expr> },
    List { elements: Vec<Expr>, optional: Vec<usize> },
    Map { entries: Vec<Entry<Expr>> },
    Struct { name: String, fields: Vec<Entry<String>> },
    Comprehension(Box<Comprehension>),
}

impl Kind {
    /// The depth of the deepest child.
    pub(crate) fn depth(&self) -> u16 {
        let of = |list: &[Expr]| list.iter().map(|e| e.depth).max().unwrap_or_default();
        match self {
            Kind::Literal(_) | Kind::Ident(_) => 0,
            Kind::Select { operand, .. } => operand.depth,
            Kind::Call { target, args, .. } => target.as_ref().map_or(0, |t| t.depth).max(of(args)),
            Kind::List { elements, .. } => of(elements),
            Kind::Map { entries } => {
                entries.iter().map(|e| e.key.depth.max(e.value.depth)).max().unwrap_or_default()
            }
            Kind::Struct { fields, .. } => fields.iter().map(|f| f.value.depth).max().unwrap_or_default(),
            Kind::Comprehension(c) => [&c.range, &c.init, &c.condition, &c.step, &c.result]
                .map(|e| e.depth)
                .into_iter()
                .max()
                .unwrap_or(0),
        }
    }
}

/// `a.b.c` as one name, if the expression is nothing but names and dots.
pub(crate) fn qualified(e: &Expr) -> Option<String> {
    match &e.kind {
        Kind::Ident(name) => Some(name.clone()),
        Kind::Select { operand, field, test: false } => {
            let mut name = qualified(operand)?;
            name.push('.');
            name.push_str(field);
            Some(name)
        }
        _ => None,
    }
}
