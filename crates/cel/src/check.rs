//! The type checker: resolves names, fields and overloads, and gives every node its type.
//! Source of rules and texts: cel-go, `checker`.

use crate::{
    ast::{Comprehension, Entry, Expr, Id, Kind, Literal, qualified},
    constructed,
    functions::jsonpatch,
    literals,
    overloads::{self, Overload},
    parser::Parsing,
    source::{Issues, Report},
    types::{FRESH, Named, Type},
    unify::{Mapping, most_general},
};
use std::collections::HashMap;

/// What is known of a checked expression.
#[derive(Debug)]
pub(crate) struct Checked {
    pub root: Expr,
    /// By id; dyn for ids that are no nodes.
    pub types: Vec<Type>,
    /// The overloads that a call may turn out to be.
    pub overloads: HashMap<Id, Vec<&'static str>>,
    /// Select nodes that are names of variables or types.
    pub names: HashMap<Id, String>,
    /// Calls with the function's namespace for a target.
    pub functions: HashMap<Id, &'static str>,
}

/// Variables by name.
pub(crate) type Variables = HashMap<String, Type>;

struct Checker<'v> {
    variables: &'v Variables,
    /// Whether expressions may make objects.
    makes: bool,
    scopes: Vec<(String, Type)>,
    mapping: Mapping,
    fresh: u32,
    types: Vec<Type>,
    offsets: Vec<Option<u32>>,
    overloads: HashMap<Id, Vec<&'static str>>,
    names: HashMap<Id, String>,
    functions: HashMap<Id, &'static str>,
    report: Report,
}

/// Checks a parsed expression.
pub(crate) fn check(parsing: Parsing, variables: &Variables, makes: bool) -> Result<Checked, Issues> {
    let mut checker = Checker {
        variables,
        makes,
        scopes: vec![],
        mapping: Mapping::default(),
        fresh: FRESH,
        types: vec![Type::Dyn; parsing.offsets.len()],
        offsets: parsing.offsets,
        overloads: HashMap::new(),
        names: HashMap::new(),
        functions: HashMap::new(),
        report: parsing.report,
    };
    checker.check(&parsing.root);
    if !checker.report.is_empty() {
        return Err(checker.report.finish());
    }
    let types = checker.types.iter().map(|t| checker.mapping.substitute(t, true)).collect();
    let (offsets, mut report) = (checker.offsets, checker.report);
    let checked = Checked {
        root: parsing.root,
        types,
        overloads: checker.overloads,
        names: checker.names,
        functions: checker.functions,
    };
    for (id, message) in literals::check(&checked) {
        report.add(offsets.get(id as usize).copied().flatten(), message);
    }
    if report.is_empty() { Ok(checked) } else { Err(report.finish()) }
}

/// The types that expressions can name.
pub(crate) fn type_named(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "string" => Type::String,
        "null_type" => Type::Null,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "type" => Type::Type(None),
        "google.protobuf.Duration" => Type::Duration,
        "google.protobuf.Timestamp" => Type::Timestamp,
        "optional_type" => Type::optional(Type::Dyn),
        "net.IP" => Type::Named(Named::Ip),
        "net.CIDR" => Type::Named(Named::Cidr),
        _ => return None,
    })
}

impl Checker<'_> {
    fn ty(&self, e: &Expr) -> Type {
        self.types.get(e.id as usize).cloned().unwrap_or(Type::Dyn)
    }

    fn set(&mut self, id: Id, ty: Type) {
        if let Some(slot) = self.types.get_mut(id as usize) {
            *slot = ty;
        }
    }

    fn problem(&mut self, id: Id, message: String) {
        let at = self.offsets.get(id as usize).copied().flatten();
        self.report.add(at, message);
    }

    fn undeclared(&mut self, id: Id, name: &str) {
        self.problem(id, format!("undeclared reference to '{name}' (in container '')"));
        self.set(id, Type::Error);
    }

    fn mismatch(&mut self, id: Id, expected: &Type, found: &Type) {
        self.problem(id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn variable(&mut self) -> Type {
        self.fresh += 1;
        Type::Param(self.fresh - 1)
    }

    fn lookup(&self, name: &str) -> Option<Type> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some((_, ty)) = self.scopes.iter().rev().find(|(n, _)| n == name) {
            return Some(ty.clone());
        }
        let variable = self.variables.get(name).cloned();
        variable.or_else(|| type_named(name).map(|t| Type::Type(Some(t.into()))))
    }

    fn check(&mut self, e: &Expr) {
        match &e.kind {
            Kind::Literal(literal) => self.set(e.id, literal_type(literal)),
            Kind::Ident(name) => match self.lookup(name) {
                Some(ty) => self.set(e.id, ty),
                None => self.undeclared(e.id, name),
            },
            Kind::Select { operand, field, test } => self.select(e, operand, field, *test),
            Kind::Call { target, function, args } => self.call(e, target.as_deref(), function, args),
            Kind::List { elements, optional } => self.list(e, elements, optional),
            Kind::Map { entries } => self.map(e, entries),
            Kind::Struct { name, fields } => self.message(e, name, fields),
            Kind::Comprehension(c) => self.comprehension(e, c),
        }
    }

    fn select(&mut self, e: &Expr, operand: &Expr, field: &str, test: bool) {
        if let (false, Some(name)) = (test, qualified(e))
            && let Some(ty) = self.lookup(&name)
        {
            self.names.insert(e.id, name);
            return self.set(e.id, ty);
        }
        let ty = self.field(e, operand, field, false);
        let ty = if test { Type::Bool } else { self.mapping.substitute(&ty, false) };
        self.set(e.id, ty);
    }

    fn field(&mut self, e: &Expr, operand: &Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let (target, was_optional) = self.mapping.substitute(&self.ty(operand), false).unwrap_optional();
        let ty = match &target {
            Type::Map(of) => of.1.clone(),
            Type::Object(..) => target.field(field).unwrap_or_else(|| {
                self.problem(e.id, format!("undefined field '{field}'"));
                Type::Error
            }),
            Type::Part(_) | Type::Named(_) => constructed::field_type(&target, field).unwrap_or_else(|| {
                self.problem(e.id, format!("undefined field '{field}'"));
                Type::Error
            }),
            Type::Param(_) => {
                self.mapping.assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            other if other.is_dyn_or_error() => Type::Dyn,
            other => {
                self.problem(e.id, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        if was_optional || optional { Type::optional(ty) } else { ty }
    }

    fn call(&mut self, e: &Expr, target: Option<&Expr>, function: &str, args: &[Expr]) {
        if function == "_?._" {
            if let [operand, Expr { kind: Kind::Literal(Literal::String(field)), .. }] = args {
                let ty = self.field(e, operand, field, true);
                self.overloads.insert(e.id, vec!["select_optional_field"]);
                let ty = self.mapping.substitute(&ty, false);
                self.set(e.id, ty);
            }
            return;
        }
        for arg in args {
            self.check(arg);
        }
        let Some(target) = target else {
            let plain = function.strip_prefix('.').unwrap_or(function);
            return match self.function(plain) {
                Some((name, list)) => self.resolve(e, name, list, None, args),
                None => self.undeclared(e.id, function),
            };
        };
        if let Some(prefix) = qualified(target)
            && let Some((name, list)) = self.function(&format!("{prefix}.{function}"))
        {
            self.functions.insert(e.id, name);
            return self.resolve(e, name, list, None, args);
        }
        self.check(target);
        match self.function(function) {
            Some((name, list)) => self.resolve(e, name, list, Some(target), args),
            None => self.undeclared(e.id, function),
        }
    }

    /// A function that is there in this environment.
    fn function(&self, name: &str) -> Option<(&'static str, &'static [Overload])> {
        overloads::function(name).filter(|(name, _)| self.makes || *name != jsonpatch::ESCAPE)
    }

    fn resolve(
        &mut self,
        e: &Expr,
        name: &str,
        list: &'static [Overload],
        target: Option<&Expr>,
        args: &[Expr],
    ) {
        let mut types: Vec<Type> = target.iter().map(|t| self.ty(t)).collect();
        types.extend(args.iter().map(|a| self.ty(a)));
        if matches!(name, "_&&_" | "_||_") {
            for (arg, ty) in args.iter().zip(&types) {
                if !self.mapping.assignable(ty, &Type::Bool) {
                    let ty = self.mapping.substitute(ty, false);
                    self.mismatch(arg.id, &Type::Bool, &ty);
                }
            }
            self.overloads.insert(e.id, vec![list.first().map_or("", |o| o.id)]);
            return self.set(e.id, Type::Bool);
        }
        let (mut result, mut matched) = (None::<Type>, vec![]);
        for overload in list.iter().filter(|o| o.member == target.is_some() && o.args.len() == types.len()) {
            let (params, of) = self.instantiate(overload);
            if !self.mapping.all_assignable(&types, &params) {
                continue;
            }
            matched.push(overload.id);
            let of = self.mapping.substitute(&of, false);
            result = Some(match result {
                None => of,
                Some(before) if before == Type::Dyn || of == before => before,
                Some(_) => Type::Dyn,
            });
        }
        let Some(result) = result else {
            let shown: Vec<String> =
                types.iter().map(|t| self.mapping.substitute(t, true).to_string()).collect();
            let signature = match target {
                Some(_) => format!("{}.({})", shown[0], shown[1..].join(", ")),
                None => format!("({})", shown.join(", ")),
            };
            self.problem(e.id, format!("found no matching overload for '{name}' applied to '{signature}'"));
            return self.set(e.id, Type::Error);
        };
        self.overloads.insert(e.id, matched);
        self.set(e.id, result);
    }

    /// Arguments and result of an overload with fresh variables for its parameters.
    fn instantiate(&mut self, overload: &Overload) -> (Vec<Type>, Type) {
        if !overload.generic {
            return (overload.args.clone(), overload.result.clone());
        }
        let mut fresh = HashMap::new();
        let mut rename = |ty: &Type| renamed(ty, &mut fresh, &mut self.fresh);
        let args = overload.args.iter().map(&mut rename).collect();
        (args, rename(&overload.result))
    }

    fn join(&mut self, before: Option<Type>, ty: Type) -> Type {
        let Some(before) = before else { return ty };
        if self.mapping.assignable(&before, &ty) {
            return most_general(&before, &ty);
        }
        // Mixed types are found by `literals`, which has the places where they are allowed.
        Type::Dyn
    }

    /// The type of an element or value, freed of `optional_type` where `?` stands before it.
    fn entry_type(&mut self, e: &Expr, optional: bool) -> Type {
        self.check(e);
        let ty = self.ty(e);
        if !optional {
            return ty;
        }
        let (of, is_optional) = ty.unwrap_optional();
        if !is_optional && of != Type::Dyn {
            self.mismatch(e.id, &Type::optional(of.clone()), &of);
        }
        of
    }

    fn list(&mut self, e: &Expr, elements: &[Expr], optional: &[usize]) {
        let mut joined = None;
        for (i, element) in elements.iter().enumerate() {
            let ty = self.entry_type(element, optional.contains(&i));
            joined = Some(self.join(joined, ty));
        }
        let of = joined.unwrap_or_else(|| self.variable());
        self.set(e.id, Type::list(of));
    }

    fn map(&mut self, e: &Expr, entries: &[Entry<Expr>]) {
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            let key = self.entry_type(&entry.key, false);
            keys = Some(self.join(keys, key));
            let value = self.entry_type(&entry.value, entry.optional);
            values = Some(self.join(values, value));
        }
        let key = keys.unwrap_or_else(|| self.variable());
        let value = values.unwrap_or_else(|| self.variable());
        self.set(e.id, Type::map(key, value));
    }

    /// Objects cannot be made in expressions that only judge; what names no type at all says so.
    fn message(&mut self, e: &Expr, name: &str, fields: &[Entry<String>]) {
        if let Some(ty) = constructed::constructed_type(name).filter(|_| self.makes) {
            return self.structure(e, ty, fields);
        }
        match self.lookup(name) {
            None => return self.undeclared(e.id, name),
            Some(Type::Type(Some(of))) => {
                self.problem(e.id, format!("'{of}' is not a message type"));
                self.set(e.id, Type::Error);
            }
            Some(other) => {
                self.problem(e.id, format!("'{other}' is not a type"));
                self.set(e.id, Type::Error);
            }
        }
        for field in fields {
            self.check(&field.value);
        }
    }

    fn structure(&mut self, e: &Expr, ty: Type, fields: &[Entry<String>]) {
        self.set(e.id, ty.clone());
        for field in fields {
            let found = self.entry_type(&field.value, field.optional);
            match constructed::field_type(&ty, &field.key) {
                None => self.problem(field.id, format!("undefined field '{}'", field.key)),
                Some(expected) if !self.mapping.assignable(&expected, &found) => {
                    let found = self.mapping.substitute(&found, false);
                    let (name, text) = (&field.key, "but provided type is");
                    self.problem(
                        field.id,
                        format!("expected type of field '{name}' is '{expected}' {text} '{found}'"),
                    );
                }
                Some(_) => {}
            }
        }
    }

    fn comprehension(&mut self, e: &Expr, c: &Comprehension) {
        self.check(&c.range);
        self.check(&c.init);
        let range = self.mapping.substitute(&self.ty(&c.range), false);
        let accu = self.ty(&c.init);
        self.scopes.push((c.accu.clone(), accu.clone()));
        let two = c.var2.is_some();
        let (first, second) = match &range {
            Type::List(of) if two => (Type::Int, (**of).clone()),
            Type::List(of) => ((**of).clone(), Type::Dyn),
            Type::Map(of) => (of.0.clone(), of.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.mapping.assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.problem(c.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        self.scopes.push((c.var.clone(), first));
        if let Some(name) = &c.var2 {
            self.scopes.push((name.clone(), second));
        }
        self.check(&c.condition);
        self.assert(&c.condition, &Type::Bool);
        self.check(&c.step);
        self.assert(&c.step, &accu);
        self.scopes.truncate(self.scopes.len() - 1 - usize::from(two));
        self.check(&c.result);
        self.scopes.pop();
        let ty = self.mapping.substitute(&self.ty(&c.result), false);
        self.set(e.id, ty);
    }

    fn assert(&mut self, e: &Expr, expected: &Type) {
        let found = self.ty(e);
        if !self.mapping.assignable(expected, &found) {
            self.mismatch(e.id, expected, &found);
        }
    }
}

fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}

fn renamed(ty: &Type, names: &mut HashMap<u32, u32>, next: &mut u32) -> Type {
    match ty {
        Type::Param(p) => Type::Param(*names.entry(*p).or_insert_with(|| {
            *next += 1;
            *next - 1
        })),
        Type::List(of) => Type::list(renamed(of, names, next)),
        Type::Optional(of) => Type::optional(renamed(of, names, next)),
        Type::Map(of) => Type::map(renamed(&of.0, names, next), renamed(&of.1, names, next)),
        Type::Type(Some(of)) => Type::Type(Some(renamed(of, names, next).into())),
        other => other.clone(),
    }
}
