//! Calls that are rewritten when parsed: `has`, the comprehensions over one and two variables, and those on optionals.
//! The trees are those of cel-go, for types and costs follow from them.

use crate::{
    ast::{ACCUMULATOR, Comprehension, Expr, Id, Kind, Literal},
    parser::{Abort, Parser},
    source::Offset,
};

/// What a macro makes; an inner error is a misuse, reported at the argument.
type Constructed = Result<Result<Kind, (Offset, String)>, Abort>;

/// Whether `Kind` is a plain name.
fn ident(e: &Expr) -> Option<&str> {
    match &e.kind {
        Kind::Ident(name) => Some(name),
        _ => None,
    }
}

impl Parser<'_> {
    /// A call without a target, or the macro of that name.
    pub(crate) fn global_call(&mut self, id: Id, name: &str, mut args: Vec<Expr>) -> Result<Expr, Abort> {
        if name != "has" || args.len() != 1 {
            return self.with_id(id, Kind::Call { target: None, function: name.to_owned(), args });
        }
        match args.remove(0) {
            Expr { kind: Kind::Select { operand, field, .. }, .. } => {
                self.with_id(id, Kind::Select { operand, field, test: true })
            }
            other => {
                let at = self.offset(other.id);
                self.report.add(at, "invalid argument to has() macro");
                Ok(other)
            }
        }
    }

    /// A call on a target, or the macro of that name and number of arguments.
    pub(crate) fn member_call(
        &mut self,
        id: Id,
        name: &str,
        target: Expr,
        args: Vec<Expr>,
    ) -> Result<Expr, Abort> {
        let binds = self.bindings && ident(&target) == Some("cel");
        let mut m = Macro { at: self.offset(id), p: self };
        let constructed = match (name, args.len()) {
            ("all" | "exists" | "exists_one" | "existsOne", 2 | 3) => m.quantifier(name, target, args),
            ("map", 2 | 3) => m.map(target, args),
            ("filter", 2) => m.filter(target, args),
            ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => {
                m.transform(name, target, args)
            }
            ("optMap" | "optFlatMap", 2) => m.optional(name, target, args),
            ("bind", 3) if binds => m.cel_bind(args),
            ("sortBy", 2) => m.sort_by(target, args),
            _ => Ok(Ok(Kind::Call { target: Some(Box::new(target)), function: name.to_owned(), args })),
        }?;
        match constructed {
            Ok(kind) => self.with_id(id, kind),
            Err((at, message)) => {
                self.report.add(at, message);
                self.with_id(id, Kind::Literal(Literal::Null))
            }
        }
    }

    fn offset(&self, id: Id) -> Offset {
        self.offsets.get(id as usize).copied().flatten()
    }
}

/// Builds trees at the place of the macro's call.
struct Macro<'p, 't> {
    at: Offset,
    p: &'p mut Parser<'t>,
}

/// The parts of a comprehension that macros choose.
struct Loop {
    range: Expr,
    vars: (String, Option<String>),
    init: Expr,
    condition: Expr,
    step: Expr,
    result: Expr,
}

impl From<Loop> for Kind {
    fn from(l: Loop) -> Kind {
        Kind::Comprehension(Box::new(Comprehension {
            range: l.range,
            var: l.vars.0,
            var2: l.vars.1,
            accu: ACCUMULATOR.to_owned(),
            init: l.init,
            condition: l.condition,
            step: l.step,
            result: l.result,
        }))
    }
}

impl Macro<'_, '_> {
    fn node(&mut self, kind: Kind) -> Result<Expr, Abort> {
        self.p.node(self.at, kind)
    }

    fn literal(&mut self, literal: Literal) -> Result<Expr, Abort> {
        self.node(Kind::Literal(literal))
    }

    fn accu(&mut self) -> Result<Expr, Abort> {
        self.node(Kind::Ident(ACCUMULATOR.to_owned()))
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Result<Expr, Abort> {
        self.p.call(self.at, function, args)
    }

    fn member(&mut self, target: Expr, function: &str) -> Result<Expr, Abort> {
        self.node(Kind::Call { target: Some(Box::new(target)), function: function.to_owned(), args: vec![] })
    }

    fn list(&mut self, elements: Vec<Expr>) -> Result<Expr, Abort> {
        self.node(Kind::List { elements, optional: vec![] })
    }

    /// A copy with separate ids.
    fn copy(&mut self, e: &Expr) -> Result<Expr, Abort> {
        let id = self.p.id(self.p.offset(e.id));
        let boxed = |m: &mut Self, e: &Expr| m.copy(e).map(Box::new);
        let kind = match &e.kind {
            Kind::Literal(_) | Kind::Ident(_) => e.kind.clone(),
            Kind::Select { operand, field, test } => {
                Kind::Select { operand: boxed(self, operand)?, field: field.clone(), test: *test }
            }
            Kind::Call { target, function, args } => Kind::Call {
                target: target.as_ref().map(|t| boxed(self, t)).transpose()?,
                function: function.clone(),
                args: self.copies(args)?,
            },
            Kind::List { elements, optional } => {
                Kind::List { elements: self.copies(elements)?, optional: optional.clone() }
            }
            Kind::Map { entries } => {
                let mut copies = Vec::with_capacity(entries.len());
                for entry in entries {
                    let (key, value) = (self.copy(&entry.key)?, self.copy(&entry.value)?);
                    let id = self.p.id(self.p.offset(entry.id));
                    copies.push(crate::ast::Entry { id, key, value, optional: entry.optional });
                }
                Kind::Map { entries: copies }
            }
            Kind::Struct { name, fields } => {
                let mut copies = Vec::with_capacity(fields.len());
                for field in fields {
                    let value = self.copy(&field.value)?;
                    let id = self.p.id(self.p.offset(field.id));
                    copies.push(crate::ast::Entry {
                        id,
                        key: field.key.clone(),
                        value,
                        optional: field.optional,
                    });
                }
                Kind::Struct { name: name.clone(), fields: copies }
            }
            Kind::Comprehension(c) => Kind::Comprehension(Box::new(Comprehension {
                range: self.copy(&c.range)?,
                var: c.var.clone(),
                var2: c.var2.clone(),
                accu: c.accu.clone(),
                init: self.copy(&c.init)?,
                condition: self.copy(&c.condition)?,
                step: self.copy(&c.step)?,
                result: self.copy(&c.result)?,
            })),
        };
        self.p.with_id(id, kind)
    }

    fn copies(&mut self, list: &[Expr]) -> Result<Vec<Expr>, Abort> {
        list.iter().map(|e| self.copy(e)).collect()
    }

    /// The variable names that stand in front of `args`.
    fn vars(
        &self,
        args: &[Expr],
        two: bool,
        misuse: &str,
    ) -> Result<(String, Option<String>), (Offset, String)> {
        let name =
            |e: &Expr| ident(e).map(str::to_owned).ok_or_else(|| (self.p.offset(e.id), misuse.to_owned()));
        let first = name(&args[0])?;
        let second = if two { Some(name(&args[1])?) } else { None };
        if second.as_ref() == Some(&first) {
            return Err((self.p.offset(args[1].id), format!("duplicate variable name: {first}")));
        }
        for (e, name) in args.iter().zip([Some(&first), second.as_ref()]) {
            if name.is_some_and(|n| n == "__result__") {
                return Err((
                    self.p.offset(e.id),
                    "iteration variable overwrites accumulator variable".into(),
                ));
            }
        }
        Ok((first, second))
    }

    fn quantifier(&mut self, name: &str, range: Expr, mut args: Vec<Expr>) -> Constructed {
        let vars = match self.vars(&args, args.len() == 3, "argument must be a simple name") {
            Ok(vars) => vars,
            Err(e) => return Ok(Err(e)),
        };
        let Some(test) = args.pop() else { return Err(Abort) };
        let accu = self.accu()?;
        let (init, condition, step, result);
        match name {
            "all" => {
                init = self.literal(Literal::Bool(true))?;
                condition = self.call("@not_strictly_false", vec![accu])?;
                let accu = self.accu()?;
                step = self.call("_&&_", vec![accu, test])?;
                result = self.accu()?;
            }
            "exists" => {
                init = self.literal(Literal::Bool(false))?;
                let not = self.call("!_", vec![accu])?;
                condition = self.call("@not_strictly_false", vec![not])?;
                let accu = self.accu()?;
                step = self.call("_||_", vec![accu, test])?;
                result = self.accu()?;
            }
            _ => {
                init = self.literal(Literal::Int(0))?;
                condition = self.literal(Literal::Bool(true))?;
                let one = self.literal(Literal::Int(1))?;
                let more = self.call("_+_", vec![accu, one])?;
                let same = self.accu()?;
                step = self.call("_?_:_", vec![test, more, same])?;
                let (accu, one) = (self.accu()?, self.literal(Literal::Int(1))?);
                result = self.call("_==_", vec![accu, one])?;
            }
        }
        Ok(Ok(Loop { range, vars, init, condition, step, result }.into()))
    }

    /// A comprehension: its result grows by `step` where `filter` holds.
    fn gathering(
        &mut self,
        range: Expr,
        vars: (String, Option<String>),
        init: Expr,
        filter: Option<Expr>,
        mut step: Expr,
    ) -> Constructed {
        let condition = self.literal(Literal::Bool(true))?;
        if let Some(filter) = filter {
            let same = self.accu()?;
            step = self.call("_?_:_", vec![filter, step, same])?;
        }
        let result = self.accu()?;
        Ok(Ok(Loop { range, vars, init, condition, step, result }.into()))
    }

    fn append(&mut self, element: Expr) -> Result<Expr, Abort> {
        let accu = self.accu()?;
        let list = self.list(vec![element])?;
        self.call("_+_", vec![accu, list])
    }

    fn map(&mut self, range: Expr, mut args: Vec<Expr>) -> Constructed {
        let vars = match self.vars(&args, false, "argument is not an identifier") {
            Ok(vars) => vars,
            Err(e) => return Ok(Err(e)),
        };
        let Some(transform) = args.pop() else { return Err(Abort) };
        let filter = if args.len() == 2 { args.pop() } else { None };
        let init = self.list(vec![])?;
        let step = self.append(transform)?;
        self.gathering(range, vars, init, filter, step)
    }

    fn filter(&mut self, range: Expr, mut args: Vec<Expr>) -> Constructed {
        let vars = match self.vars(&args, false, "argument is not an identifier") {
            Ok(vars) => vars,
            Err(e) => return Ok(Err(e)),
        };
        let filter = args.pop();
        let Some(var) = args.pop() else { return Err(Abort) };
        let init = self.list(vec![])?;
        let step = self.append(var)?;
        self.gathering(range, vars, init, filter, step)
    }

    fn transform(&mut self, name: &str, range: Expr, mut args: Vec<Expr>) -> Constructed {
        let vars = match self.vars(&args, true, "argument must be a simple name") {
            Ok(vars) => vars,
            Err(e) => return Ok(Err(e)),
        };
        let Some(transform) = args.pop() else { return Err(Abort) };
        let filter = if args.len() == 3 { args.pop() } else { None };
        if name == "transformList" {
            let init = self.list(vec![])?;
            let step = self.append(transform)?;
            return self.gathering(range, vars, init, filter, step);
        }
        let init = self.node(Kind::Map { entries: vec![] })?;
        let mut inserted = vec![self.accu()?];
        if name == "transformMap" {
            inserted.push(self.node(Kind::Ident(vars.0.clone()))?);
        }
        inserted.push(transform);
        let step = self.call("cel.@mapInsert", inserted)?;
        self.gathering(range, vars, init, filter, step)
    }

    fn optional(&mut self, name: &str, target: Expr, mut args: Vec<Expr>) -> Constructed {
        let (Some(body), Some(var)) = (args.pop(), args.pop()) else { return Err(Abort) };
        let Some(var_name) = ident(&var).map(str::to_owned) else {
            let message = format!("{name}() variable name must be a simple identifier");
            return Ok(Err((self.p.offset(var.id), message)));
        };
        let copy = self.copy(&target)?;
        let has = self.member(target, "hasValue")?;
        let value = self.member(copy, "value")?;
        let mut bound = self.bind(var_name, value, body)?;
        if name == "optMap" {
            bound = self.call("optional.of", vec![bound])?;
        }
        let none = self.call("optional.none", vec![])?;
        Ok(Ok(Kind::Call { target: None, function: "_?_:_".into(), args: vec![has, bound, none] }))
    }

    fn cel_bind(&mut self, mut args: Vec<Expr>) -> Constructed {
        let (Some(body), Some(value), Some(var)) = (args.pop(), args.pop(), args.pop()) else {
            return Err(Abort);
        };
        let Some(name) = ident(&var).map(str::to_owned) else {
            let message = "cel.bind() variable names must be simple identifiers";
            return Ok(Err((self.p.offset(var.id), message.into())));
        };
        self.bind(name, value, body).map(|bound| Ok(bound.kind))
    }

    fn bind(&mut self, name: String, value: Expr, body: Expr) -> Result<Expr, Abort> {
        let bind = Comprehension {
            range: self.list(vec![])?,
            var: "#unused".into(),
            var2: None,
            init: value,
            condition: self.literal(Literal::Bool(false))?,
            step: self.node(Kind::Ident(name.clone()))?,
            accu: name,
            result: body,
        };
        self.node(Kind::Comprehension(Box::new(bind)))
    }

    fn sort_by(&mut self, target: Expr, args: Vec<Expr>) -> Constructed {
        const INPUT: &str = "@__sortBy_input__";
        if matches!(target.kind, Kind::Literal(_) | Kind::Map { .. } | Kind::Struct { .. }) {
            let message =
                "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Ok(Err((self.p.offset(target.id), message.into())));
        }
        let input = self.node(Kind::Ident(INPUT.into()))?;
        let keys = match self.map(input, args)? {
            Ok(kind) => self.node(kind)?,
            Err(e) => return Ok(Err(e)),
        };
        let input = self.node(Kind::Ident(INPUT.into()))?;
        let function = "@sortByAssociatedKeys".to_owned();
        let sorted = self.node(Kind::Call { target: Some(Box::new(input)), function, args: vec![keys] })?;
        let bound = self.bind(INPUT.into(), target, sorted)?;
        Ok(Ok(bound.kind))
    }
}
