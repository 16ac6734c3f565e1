//! The maximum cost of an expression, estimated from the expression and the declarations of its variables, before there is
//! any data. Costs are those of [`crate::cost`]. Definitions are accepted or refused by these numbers, so they are upstream's
//! to the unit, oddities included (a number in a field counts as nothing, since its declaration has no size).
//! Sources: cel-go `checker/cost.go`, apiserver `cel/library/cost.go`.

mod calls;
mod range;

pub(crate) use range::Range;

use crate::{
    ast::{Comprehension, Entry, Expr, Id, Kind, Literal},
    check::Checked,
    cost,
    decl::{Decl, DeclKind},
    types::Type,
};
use std::collections::HashMap;

/// The cost of a checked expression. `variables` are the declarations of variables; `root` is that of the first.
pub(crate) fn estimate<'c>(
    checked: &'c Checked,
    variables: &'c HashMap<String, std::sync::Arc<Decl>>,
    root: Option<&'c Decl>,
) -> Range {
    let mut estimator = Estimator {
        checked,
        variables,
        root,
        places: HashMap::new(),
        locals: vec![],
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    estimator.cost(&checked.root)
}

/// Where in declared data a value comes from.
#[derive(Clone, Copy, Debug)]
enum Origin<'c> {
    /// It is made by the expression.
    Constructed,
    /// Data, but not declared.
    Unknown,
    /// A key of a map, of at most so many characters.
    Key(u64),
    /// Declared data.
    At(&'c Decl),
}

/// A step from a value to a part of it.
#[derive(Clone, Copy)]
enum Step<'s> {
    Field(&'s str),
    Element,
    Key,
    Index,
}

/// The sizes of the entries of a list or map.
#[derive(Clone, Copy, Debug)]
struct Entries {
    list: bool,
    key: Range,
    value: Range,
}

#[derive(Clone, Debug)]
struct Local<'c> {
    name: &'c str,
    place: Origin<'c>,
    size: Option<Range>,
    entries: Option<Entries>,
}

struct Estimator<'c> {
    checked: &'c Checked,
    variables: &'c HashMap<String, std::sync::Arc<Decl>>,
    root: Option<&'c Decl>,
    places: HashMap<Id, Origin<'c>>,
    locals: Vec<Local<'c>>,
    sizes: HashMap<Id, Range>,
    entries: HashMap<Id, Entries>,
}

impl<'c> Estimator<'c> {
    fn cost(&mut self, e: &'c Expr) -> Range {
        match &e.kind {
            Kind::Literal(_) => Range::ZERO,
            Kind::Ident(name) => self.name(e, name),
            Kind::Select { operand, field, test } => match self.checked.names.get(&e.id) {
                Some(name) => self.name(e, name),
                None => self.select(e, operand, field, *test),
            },
            Kind::Call { target, function, args } => self.call(e, target.as_deref(), function, args),
            Kind::List { elements, .. } => self.list(e, elements),
            Kind::Map { entries } => self.map(e, entries),
            Kind::Struct { fields, .. } => {
                let fields = fields.iter().fold(Range::ZERO, |sum, f| sum.plus(self.cost(&f.value)));
                fields.plus(Range::exactly(cost::OBJECT))
            }
            Kind::Comprehension(c) if c.is_bind() => self.bind(e, c),
            Kind::Comprehension(c) => self.comprehension(e, c),
        }
    }

    fn local(&self, name: &str) -> Option<&Local<'c>> {
        self.locals.iter().rev().find(|l| l.name == name)
    }

    fn name(&mut self, e: &'c Expr, name: &'c str) -> Range {
        let name = name.strip_prefix('.').unwrap_or(name);
        let place = match self.local(name) {
            Some(local) => local.place,
            None => {
                let decl = self.variables.get(name).map(|d| &**d).or(self.root);
                decl.map_or(Origin::Unknown, Origin::At)
            }
        };
        self.places.insert(e.id, place);
        Range::ONE
    }

    fn select(&mut self, e: &'c Expr, operand: &'c Expr, field: &'c str, test: bool) -> Range {
        let cost = self.cost(operand);
        if test {
            return cost;
        }
        let place = self.step(self.place(operand), Step::Field(field));
        self.places.insert(e.id, place);
        match self.ty(operand) {
            Type::Map(_) | Type::Object(..) | Type::Named(_) | Type::Param(_) => cost.plus(Range::ONE),
            _ => cost,
        }
    }

    /// A part of what is at a place. Parts of what the expression made count as the whole data, as upstream has it.
    fn step(&self, place: Origin<'c>, step: Step<'_>) -> Origin<'c> {
        let decl = match place {
            Origin::Constructed => return self.root.map_or(Origin::Unknown, Origin::At),
            Origin::Unknown | Origin::Key(_) => return Origin::Unknown,
            Origin::At(decl) => decl,
        };
        let part = match step {
            Step::Field(name) => decl.field(name).or_else(|| sized_any(decl)),
            Step::Element => decl.element(),
            Step::Key if matches!(decl.kind, DeclKind::Map { .. }) => return Origin::Key(decl.max_key),
            Step::Key | Step::Index => None,
        };
        part.map_or(Origin::Unknown, |d| Origin::At(d))
    }

    fn list(&mut self, e: &'c Expr, elements: &'c [Expr]) -> Range {
        let (mut cost, mut value) = (Range::exactly(cost::LIST), Range::NONE);
        for element in elements {
            cost = cost.plus(self.cost(element));
            value = value.or(self.size(element));
        }
        let value = if elements.is_empty() { Range::ZERO } else { value };
        self.entries.insert(e.id, Entries { list: true, key: Range::ONE, value });
        cost
    }

    fn map(&mut self, e: &'c Expr, entries: &'c [Entry<Expr>]) -> Range {
        let (mut cost, mut key, mut value) = (Range::exactly(cost::MAP), Range::NONE, Range::NONE);
        for entry in entries {
            cost = cost.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
            key = key.or(self.size(&entry.key));
            value = value.or(self.size(&entry.value));
        }
        if entries.is_empty() {
            (key, value) = (Range::ZERO, Range::ZERO);
        }
        self.entries.insert(e.id, Entries { list: false, key, value });
        cost
    }

    fn bind(&mut self, e: &'c Expr, c: &'c Comprehension) -> Range {
        let cost = self.cost(&c.range).plus(self.cost(&c.init));
        self.push_value(&c.accu, &c.init);
        let cost = cost.plus(self.cost(&c.result));
        self.locals.pop();
        self.copy_sizes(e, &c.result);
        cost
    }

    fn comprehension(&mut self, e: &'c Expr, c: &'c Comprehension) -> Range {
        let cost = self.cost(&c.range).plus(self.cost(&c.init));
        let depth = self.locals.len();
        self.push_value(&c.accu, &c.init);
        self.push_parts(c);
        let turn = self.cost(&c.condition).plus(self.cost(&c.step));
        self.locals.truncate(depth + 1);
        let cost = cost.plus(self.cost(&c.result));
        self.locals.truncate(depth);
        let turns = self.size(&c.range);
        match &c.init.kind {
            Kind::Literal(_) => {
                if let Some(size) = self.known_size(&c.init) {
                    self.sizes.insert(e.id, size);
                }
            }
            Kind::List { .. } | Kind::Map { .. } => {
                self.sizes.insert(e.id, turns);
                if let Some(entries) = self.entries_of(&c.step) {
                    self.entries.insert(e.id, entries);
                }
            }
            _ => {}
        }
        cost.plus(turns.times(turn))
    }

    /// A name for a value.
    fn push_value(&mut self, name: &'c str, value: &'c Expr) {
        let (place, size, entries) = (self.place(value), self.known_size(value), self.entries_of(value));
        self.locals.push(Local { name, place, size, entries });
    }

    /// Names for the keys and values of a range.
    fn push_parts(&mut self, c: &'c Comprehension) {
        let entries = self.entries_of(&c.range);
        let place = self.place(&c.range);
        let is_list = entries.map_or_else(|| matches!(self.ty(&c.range), Type::List(_)), |e| e.list);
        let key = entries.map(|e| e.key);
        let value = entries.map(|e| e.value);
        let mut push = |name: &'c str, step: Step<'_>, size: Option<Range>| {
            let place = self.step(place, step);
            self.locals.push(Local { name, place, size, entries: None });
        };
        match (&c.var2, is_list) {
            (None, true) => push(&c.var, Step::Element, value),
            (None, false) => push(&c.var, Step::Key, key),
            (Some(second), _) => {
                push(&c.var, if is_list { Step::Index } else { Step::Key }, key);
                push(second, Step::Element, value);
            }
        }
    }

    fn ty(&self, e: &Expr) -> &'c Type {
        self.checked.types.get(e.id as usize).unwrap_or(&Type::Dyn)
    }

    fn place(&self, e: &Expr) -> Origin<'c> {
        if let Kind::Ident(name) = &e.kind
            && let Some(local) = self.local(name)
        {
            return local.place;
        }
        self.places.get(&e.id).copied().unwrap_or(Origin::Constructed)
    }

    /// The size of a value; anything if nothing is known of it.
    fn size(&self, e: &Expr) -> Range {
        self.known_size(e).unwrap_or(Range::ANY)
    }

    fn known_size(&self, e: &Expr) -> Option<Range> {
        if let Some(size) = self.sizes.get(&e.id) {
            return Some(*size);
        }
        if let Some(size) = written_size(e).or_else(|| size_at(self.place(e))) {
            return Some(size);
        }
        if self.ty(e).is_scalar() {
            return Some(Range::ONE);
        }
        match &e.kind {
            Kind::Ident(name) => self.local(name)?.size,
            _ => None,
        }
    }

    fn entries_of(&self, e: &Expr) -> Option<Entries> {
        if let Some(entries) = self.entries.get(&e.id) {
            return Some(*entries);
        }
        match &e.kind {
            Kind::Ident(name) => self.local(name)?.entries,
            _ => None,
        }
    }

    fn copy_sizes(&mut self, to: &Expr, from: &Expr) {
        if let Some(size) = self.known_size(from) {
            self.sizes.insert(to.id, size);
        }
        if let Some(entries) = self.entries_of(from) {
            self.entries.insert(to.id, entries);
        }
    }
}

/// The size of what stands in the expression itself.
fn written_size(e: &Expr) -> Option<Range> {
    Some(Range::exactly(match &e.kind {
        Kind::Literal(Literal::String(s)) => s.chars().count() as u64,
        Kind::Literal(Literal::Bytes(b)) => b.len() as u64,
        Kind::Literal(_) => 1,
        Kind::List { elements, .. } => elements.len() as u64,
        Kind::Map { entries } => entries.len() as u64,
        _ => return None,
    }))
}

/// The values of a map that may be anything of a bounded size; fields of other maps have no known size.
fn sized_any(decl: &Decl) -> Option<&std::sync::Arc<Decl>> {
    decl.element().filter(|e| e.kind == DeclKind::Any && e.max_elements > 0)
}

fn size_at(place: Origin<'_>) -> Option<Range> {
    match place {
        Origin::At(Decl { kind: DeclKind::Any | DeclKind::Loose, max_elements: 0, .. })
        | Origin::Constructed
        | Origin::Unknown => None,
        Origin::At(decl) => Some(Range::at_most(decl.max_elements)),
        Origin::Key(max) => Some(Range::at_most(max)),
    }
}
