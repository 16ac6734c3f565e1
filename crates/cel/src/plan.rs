//! The plan of evaluation of a checked expression: names are slots, functions are pointers, constants are values.

use crate::{
    ast::{ACCUMULATOR, Comprehension, Entry, Expr, Kind, Literal},
    check::{Checked, type_named},
    functions::{self, Native, regex::Pattern},
    program::{NamedExpressions, VARIABLES},
    types::{Named, Type},
    value::{Constructed, Map, TypeValue, Value},
};
use std::{collections::BTreeSet, sync::Arc};

/// Something to evaluate.
#[derive(Debug)]
pub(crate) enum Node {
    Const(Value<'static>),
    /// A variable that the caller supplies.
    Var(usize),
    /// A variable of a comprehension.
    Local(usize),
    /// A variable that is an expression, by its place.
    Named(usize, Mode),
    /// All of them.
    AllNamed,
    Select(Box<Select>),
    Index(Box<Index>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Cond(Box<[Node; 3]>),
    NotStrictlyFalse(Box<Node>),
    Not(Box<Node>),
    Equal(Box<[Node; 2]>, bool),
    /// `x in [constants]`.
    Member(Box<Node>, Value<'static>),
    OrOptional(Box<[Node; 2]>),
    OrValue(Box<[Node; 2]>),
    Call(Box<Call>),
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    /// An object of a type, with its fields; some only if there is a value.
    Struct(Arc<str>, Vec<(Arc<str>, Node, bool)>),
    Fold(Box<Fold>),
    Bind(Box<[Node; 2]>),
    /// Grows the list that a comprehension gathers, in place.
    Append(usize, Box<Node>),
    /// Grows the map that a comprehension gathers, in place: key and value, or a map.
    Insert(usize, Vec<Node>),
}

impl Node {
    /// A variable or a part of something.
    pub(crate) fn is_attribute(&self) -> bool {
        match self {
            Node::Var(_) | Node::Local(_) | Node::Index(_) | Node::AllNamed => true,
            Node::Named(_, mode) => *mode != Mode::Has,
            Node::Select(select) => select.mode != Mode::Has,
            _ => false,
        }
    }
}

/// How upstream finds fields of objects that an expression constructs. By their type every field exists, and one that was
/// not given is null. A field's value is a plain map afterwards, of which only the keys that were given exist. The object
/// itself, where its type is not known, has no fields at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The type of the object is known.
    Typed,
    /// The value was reached through a field, an index or a variable.
    Dynamic,
    /// `dyn(Object{...})`
    Opaque,
}

#[derive(Debug)]
pub(crate) struct Select {
    /// How fields of constructed objects are found.
    pub access: Access,
    pub operand: Node,
    pub field: String,
    pub mode: Mode,
    /// The operand is no variable nor a part of one.
    pub relative: bool,
}

/// The mode of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Value,
    Optional,
    Has,
}

#[derive(Debug)]
pub(crate) struct Index {
    pub operand: Node,
    pub key: Node,
    pub optional: bool,
    pub relative: bool,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub name: &'static str,
    /// The overload, if the checker could tell.
    pub overload: &'static str,
    pub native: Native,
    pub args: Vec<Node>,
    /// A regular expression that is constant.
    pub pattern: Option<Pattern>,
}

#[derive(Debug)]
pub(crate) struct Fold {
    pub range: Node,
    pub two: bool,
    pub init: Node,
    pub condition: Node,
    pub step: Node,
    pub result: Node,
}

struct Planner<'c> {
    checked: &'c Checked,
    variables: &'c [String],
    named: Option<&'c NamedExpressions>,
    scopes: Vec<String>,
    used: BTreeSet<usize>,
    /// Why what was planned cannot run.
    broken: Option<String>,
}

/// Makes the plan, and says which variables it uses. The error says what of it can never run.
pub(crate) fn plan(
    checked: &Checked,
    variables: &[String],
    named: Option<&NamedExpressions>,
) -> Result<(Node, BTreeSet<usize>), String> {
    let mut planner =
        Planner { checked, variables, named, scopes: vec![], used: BTreeSet::new(), broken: None };
    let node = planner.node(&checked.root);
    planner.broken.map_or(Ok((node, planner.used)), Err)
}

pub(crate) fn constant(literal: &Literal) -> Value<'static> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(b) => Value::Bool(*b),
        Literal::Int(i) => Value::Int(*i),
        Literal::Uint(u) => Value::Uint(*u),
        Literal::Double(d) => Value::Double(*d),
        Literal::String(s) => Value::text(s.as_str()),
        Literal::Bytes(b) => Value::Bytes(b.as_slice().into()),
    }
}

fn type_value(ty: &Type) -> TypeValue {
    match ty {
        Type::Null => TypeValue::Null,
        Type::Bool => TypeValue::Bool,
        Type::Int => TypeValue::Int,
        Type::Uint => TypeValue::Uint,
        Type::Double => TypeValue::Double,
        Type::String => TypeValue::String,
        Type::Bytes => TypeValue::Bytes,
        Type::Timestamp => TypeValue::Timestamp,
        Type::Duration => TypeValue::Duration,
        Type::List(_) => TypeValue::List,
        Type::Map(_) | Type::Object(..) => TypeValue::Map,
        Type::Optional(_) => TypeValue::Optional,
        Type::Named(named) => TypeValue::Named(*named),
        Type::Part(_) => TypeValue::Named(Named::Object),
        Type::Type(_) | Type::Dyn | Type::Error | Type::Param(_) => TypeValue::Type,
    }
}

impl Planner<'_> {
    fn name(&mut self, name: &str) -> Node {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some(slot) = self.scopes.iter().rposition(|n| n == name) {
            return Node::Local(slot);
        }
        if let Some(index) = self.variables.iter().position(|n| n == name) {
            self.used.insert(index);
            return Node::Var(index);
        }
        if name == VARIABLES && self.named.is_some() {
            return Node::AllNamed;
        }
        // The checker has seen to it that it is a type.
        Node::Const(type_named(name).map_or(Value::Null, |t| Value::Type(type_value(&t))))
    }

    fn pair(&mut self, args: &[Expr]) -> Box<[Node; 2]> {
        Box::new([self.arg(args, 0), self.arg(args, 1)])
    }

    fn arg(&mut self, args: &[Expr], index: usize) -> Node {
        args.get(index).map_or(Node::Const(Value::Null), |e| self.node(e))
    }

    fn node(&mut self, e: &Expr) -> Node {
        match &e.kind {
            Kind::Literal(literal) => Node::Const(constant(literal)),
            Kind::Ident(name) => self.name(name),
            Kind::Select { operand, field, test } => match self.checked.names.get(&e.id) {
                Some(name) => self.name(name),
                None => {
                    let mode = if *test { Mode::Has } else { Mode::Value };
                    self.select(operand, field, mode)
                }
            },
            Kind::Call { target, function, args } => self.call(e, target.as_deref(), function, args),
            Kind::List { elements, optional } => self.list(elements, optional),
            Kind::Map { entries } => self.map(entries),
            Kind::Struct { name, fields } => self.structure(name, fields),
            Kind::Comprehension(c) => self.comprehension(c),
        }
    }

    fn select(&mut self, operand: &Expr, field: &str, mode: Mode) -> Node {
        let access = self.access(operand);
        let operand = self.node(operand);
        if let Node::AllNamed = operand
            && let Some(index) = self.named.and_then(|named| named.places.get(field))
        {
            return Node::Named(*index, mode);
        }
        let relative = is_relative(&operand);
        Node::Select(Box::new(Select { operand, field: field.to_owned(), mode, relative, access }))
    }

    /// How fields of a constructed object that this expression results in are found.
    fn access(&self, operand: &Expr) -> Access {
        let ty = self.checked.types.get(operand.id as usize).unwrap_or(&Type::Dyn);
        if matches!(ty.unwrap_optional().0, Type::Part(_)) {
            return Access::Typed;
        }
        match &operand.kind {
            Kind::Call { function, .. } if function == "dyn" => Access::Opaque,
            _ => Access::Dynamic,
        }
    }

    fn call(&mut self, e: &Expr, target: Option<&Expr>, function: &str, args: &[Expr]) -> Node {
        let function = function.strip_prefix('.').unwrap_or(function);
        match (function, args) {
            ("_&&_", _) => return Node::And(self.pair(args)),
            ("_||_", _) => return Node::Or(self.pair(args)),
            ("_?_:_", _) => {
                return Node::Cond(Box::new([self.arg(args, 0), self.arg(args, 1), self.arg(args, 2)]));
            }
            ("@not_strictly_false", _) => return Node::NotStrictlyFalse(Box::new(self.arg(args, 0))),
            ("!_", _) => return Node::Not(Box::new(self.arg(args, 0))),
            ("_==_", _) => return Node::Equal(self.pair(args), true),
            ("_!=_", _) => return Node::Equal(self.pair(args), false),
            ("_?._", [operand, Expr { kind: Kind::Literal(Literal::String(field)), .. }]) => {
                return self.select(operand, field, Mode::Optional);
            }
            ("_[_]" | "_[?_]", _) => {
                let [operand, key] = *self.pair(args);
                let relative = is_relative(&operand);
                return Node::Index(Box::new(Index {
                    operand,
                    key,
                    optional: function == "_[?_]",
                    relative,
                }));
            }
            ("or", [other]) => {
                if let Some(target) = target {
                    return Node::OrOptional(Box::new([self.node(target), self.node(other)]));
                }
            }
            ("orValue", [other]) => {
                if let Some(target) = target {
                    return Node::OrValue(Box::new([self.node(target), self.node(other)]));
                }
            }
            _ => {}
        }
        self.function(e, target, function, args)
    }

    fn function(&mut self, e: &Expr, target: Option<&Expr>, function: &str, args: &[Expr]) -> Node {
        let namespaced = self.checked.functions.get(&e.id).copied();
        let name = namespaced.unwrap_or(function);
        let target = if namespaced.is_some() { None } else { target };
        let mut nodes: Vec<Node> = target.iter().map(|t| self.node(t)).collect();
        nodes.extend(args.iter().map(|a| self.node(a)));
        let overload = match self.checked.overloads.get(&e.id).map(Vec::as_slice) {
            Some([one]) => one,
            _ => "",
        };
        if name == "@in"
            && let [_, Node::Const(Value::List(_))] = nodes.as_slice()
            && let (Some(Node::Const(list)), Some(arg)) = (nodes.pop(), nodes.pop())
        {
            return Node::Member(Box::new(arg), list);
        }
        let Some((name, native)) = functions::native(name) else { return Node::Const(Value::Null) };
        let native = if name == "sum" { functions::lists::sum_of(overload) } else { native };
        if let [Node::Const(value)] = nodes.as_slice()
            && is_conversion(name)
        {
            match native(std::slice::from_ref(value)) {
                Ok(value) => return Node::Const(value),
                Err(e) => drop(self.broken.get_or_insert_with(|| e.to_string())),
            }
        }
        let pattern = match (name, nodes.get(1)) {
            ("matches" | "find" | "findAll", Some(Node::Const(Value::String(text)))) => {
                let pattern = Pattern::new(text);
                if let Err(e) = &pattern {
                    self.broken.get_or_insert_with(|| format!("error parsing regexp: {e}"));
                }
                pattern.ok()
            }
            _ => None,
        };
        Node::Call(Box::new(Call { name, overload, native, args: nodes, pattern }))
    }

    fn list(&mut self, elements: &[Expr], optional: &[usize]) -> Node {
        let nodes: Vec<Node> = elements.iter().map(|e| self.node(e)).collect();
        if optional.is_empty() && nodes.iter().all(|n| matches!(n, Node::Const(_))) {
            let values = nodes.into_iter().map(|n| match n {
                Node::Const(v) => v,
                _ => Value::Null,
            });
            return Node::Const(Value::list(values.collect()));
        }
        Node::List(nodes.into_iter().enumerate().map(|(i, n)| (n, optional.contains(&i))).collect())
    }

    fn map(&mut self, entries: &[Entry<Expr>]) -> Node {
        let nodes: Vec<_> =
            entries.iter().map(|e| (self.node(&e.key), self.node(&e.value), e.optional)).collect();
        let mut constructed = Constructed::default();
        for (key, value, optional) in &nodes {
            match (key, value) {
                (Node::Const(key), Node::Const(value))
                    if !optional && constructed.insert(key.clone(), value.clone()).is_ok_and(|new| new) => {}
                _ => return Node::Map(nodes),
            }
        }
        Node::Const(Value::Map(Map::Constructed(Arc::new(constructed))))
    }

    fn structure(&mut self, name: &str, fields: &[Entry<String>]) -> Node {
        let name = name.strip_prefix('.').unwrap_or(name);
        let fields = fields.iter().map(|f| (f.key.as_str().into(), self.node(&f.value), f.optional));
        Node::Struct(name.into(), fields.collect())
    }

    fn comprehension(&mut self, c: &Comprehension) -> Node {
        if c.is_bind() {
            let init = self.node(&c.init);
            self.scopes.push(c.accu.clone());
            let result = self.node(&c.result);
            self.scopes.pop();
            return Node::Bind(Box::new([init, result]));
        }
        let (range, init) = (self.node(&c.range), self.node(&c.init));
        let accu = self.scopes.len();
        self.scopes.push(c.accu.clone());
        self.scopes.push(c.var.clone());
        self.scopes.extend(c.var2.clone());
        let condition = self.node(&c.condition);
        let step = self.step(&c.step, accu);
        self.scopes.truncate(accu + 1);
        let result = self.node(&c.result);
        self.scopes.pop();
        Node::Fold(Box::new(Fold { range, two: c.var2.is_some(), init, condition, step, result }))
    }

    /// A step; what grows the accumulator does so in place.
    fn step(&mut self, e: &Expr, accu: usize) -> Node {
        let gathers = |e: &Expr| e.kind == Kind::Ident(ACCUMULATOR.to_owned());
        if let Kind::Call { target: None, function, args } = &e.kind {
            match (function.as_str(), args.as_slice()) {
                ("_?_:_", [test, yes, no]) => {
                    return Node::Cond(Box::new([self.node(test), self.step(yes, accu), self.node(no)]));
                }
                ("_+_", [list, Expr { kind: Kind::List { elements, .. }, .. }]) if gathers(list) => {
                    return Node::Append(accu, Box::new(self.arg(elements, 0)));
                }
                ("cel.@mapInsert", [map, entry @ ..]) if gathers(map) => {
                    return Node::Insert(accu, entry.iter().map(|e| self.node(e)).collect());
                }
                _ => {}
            }
        }
        self.node(e)
    }
}

fn is_relative(operand: &Node) -> bool {
    !operand.is_attribute() && !matches!(operand, Node::Cond(_))
}

/// Conversions of constants are done once.
fn is_conversion(name: &str) -> bool {
    matches!(
        name,
        "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "uint" | "type"
    )
}
