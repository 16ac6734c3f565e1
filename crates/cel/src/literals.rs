//! Validation of constants beyond their types: timestamps, durations and patterns that do not parse, lists and
//! maps of mixed types, and formats that do not fit their arguments. cel-go's AST validators, those that Kubernetes turns on.

use crate::{
    ast::{Entry, Expr, Id, Kind, Literal},
    check::Checked,
    functions::{self, regex::Pattern, template},
    plan,
    types::Type,
};

/// A problem and the node that it is about.
type Found = (Id, String);

/// Everything that is wrong.
pub(crate) fn check(checked: &Checked) -> Vec<Found> {
    let mut walk = Walk { checked, found: vec![] };
    walk.node(&checked.root, false);
    walk.found
}

struct Walk<'c> {
    checked: &'c Checked,
    found: Vec<Found>,
}

impl Walk<'_> {
    fn ty(&self, e: &Expr) -> &Type {
        self.checked.types.get(e.id as usize).unwrap_or(&Type::Dyn)
    }

    /// `mixed`: within the arguments of `format`, which are of any types.
    fn node(&mut self, e: &Expr, mixed: bool) {
        match &e.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => self.node(operand, mixed),
            Kind::Call { target, function, args } => {
                self.call(e, target.as_deref(), function, args);
                let mixed = mixed || function == "format";
                target.iter().for_each(|t| self.node(t, mixed));
                args.iter().for_each(|a| self.node(a, mixed));
            }
            Kind::List { elements, optional } => {
                if !mixed {
                    self.list(elements, optional);
                }
                elements.iter().for_each(|e| self.node(e, mixed));
            }
            Kind::Map { entries } => {
                if !mixed {
                    self.map(entries);
                }
                for entry in entries {
                    self.node(&entry.key, mixed);
                    self.node(&entry.value, mixed);
                }
            }
            Kind::Struct { fields, .. } => fields.iter().for_each(|f| self.node(&f.value, mixed)),
            Kind::Comprehension(c) => {
                for part in [&c.range, &c.init, &c.condition, &c.step, &c.result] {
                    self.node(part, mixed);
                }
            }
        }
    }

    fn call(&mut self, e: &Expr, target: Option<&Expr>, function: &str, args: &[Expr]) {
        match (function, target, args) {
            ("duration" | "timestamp", None, [arg]) => {
                let Kind::Literal(literal) = &arg.kind else { return };
                let value = [plan::constant(literal)];
                let parses = functions::native(function).is_some_and(|(_, native)| native(&value).is_ok());
                if !parses {
                    self.found.push((arg.id, format!("invalid {function} argument")));
                }
            }
            ("matches", _, [first, ..]) => {
                let Kind::Literal(Literal::String(pattern)) = &first.kind else { return };
                if Pattern::new(pattern).is_err() {
                    self.found.push((first.id, "invalid matches argument".into()));
                }
            }
            ("format", Some(target), [list]) => {
                let (Kind::Literal(Literal::String(text)), Kind::List { elements, .. }) =
                    (&target.kind, &list.kind)
                else {
                    return;
                };
                let found = template::check(text, elements, &|e| self.ty(e).clone());
                self.found.extend(found.err().map(|(at, message)| (at.unwrap_or(e.id), message)));
            }
            _ => {}
        }
    }

    /// The type of an entry; of an optional one, that of what it holds.
    fn held(&self, e: &Expr, optional: bool) -> Type {
        let ty = self.ty(e);
        if optional { ty.unwrap_optional().0 } else { ty.clone() }
    }

    fn mismatch(&mut self, e: &Expr, expected: &Type, found: &Type) {
        self.found.push((e.id, format!("expected type '{expected}' but found '{found}'")));
    }

    fn list(&mut self, elements: &[Expr], optional: &[usize]) {
        let types: Vec<Type> =
            elements.iter().enumerate().map(|(i, e)| self.held(e, optional.contains(&i))).collect();
        let Some((first, rest)) = types.split_first() else { return };
        if let Some(i) = rest.iter().position(|ty| ty != first) {
            self.mismatch(&elements[i + 1], first, &rest[i]);
        }
    }

    fn map(&mut self, entries: &[Entry<Expr>]) {
        let Some((first, rest)) = entries.split_first() else { return };
        let (key, value) = (self.ty(&first.key).clone(), self.held(&first.value, first.optional));
        for entry in rest {
            let (k, v) = (self.ty(&entry.key).clone(), self.held(&entry.value, entry.optional));
            if k != key {
                self.mismatch(&entry.key, &key, &k);
            }
            if v != value {
                self.mismatch(&entry.value, &value, &v);
            }
        }
    }
}
