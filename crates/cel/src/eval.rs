//! The evaluator. Every step is charged to a budget, by upstream's cost model; when it is used up, evaluation ends.
//!
//! Invariants: recursion follows the plan, and the plan's depth is bounded; what a comprehension gathers grows in place, so its
//! time is bounded by its cost.

use crate::{
    compare,
    constructed::Struct,
    cost::{self, Budget},
    error::Error,
    plan::{Access, Call, Fold, Index, Mode, Node, Select},
    program::{Known, Lazy},
    types::Named,
    value::{Constructed, List, Map, Value},
};
use std::sync::Arc;

type Evaluated<'a> = Result<Value<'a>, Error>;

/// One evaluation: its variables and what is left of its budget.
pub(crate) struct Evaluator<'e, 'a> {
    vars: &'e [Option<Value<'a>>],
    named: &'e [Arc<Lazy>],
    /// What is known of `named`, and what that cost.
    known: &'e mut Known<'a>,
    pub budget: Budget,
    /// Variables of comprehensions; an accumulator may hold an error that a later step overrules.
    locals: Vec<Evaluated<'a>>,
}

impl<'e, 'a> Evaluator<'e, 'a> {
    pub(crate) fn new(
        vars: &'e [Option<Value<'a>>],
        named: &'e [Arc<Lazy>],
        known: &'e mut Known<'a>,
        limit: u64,
    ) -> Self {
        Evaluator { vars, named, known, budget: Budget::new(limit), locals: vec![] }
    }

    pub(crate) fn eval(&mut self, node: &Node) -> Evaluated<'a> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Var(index) => {
                self.budget.charge(1)?;
                let found = self.vars.get(*index).cloned().flatten();
                found.ok_or_else(|| Error::eval("no such attribute(s)"))
            }
            Node::Local(slot) => {
                self.budget.charge(1)?;
                self.locals.get(*slot).cloned().unwrap_or(Ok(Value::Null))
            }
            Node::Named(index, mode) => self.named(*index, *mode),
            Node::AllNamed => self.all_named(),
            Node::Struct(name, fields) => self.structure(name, fields),
            Node::Select(select) => self.select(select),
            Node::Index(index) => self.index(index),
            Node::And(args) => self.logic(args, false),
            Node::Or(args) => self.logic(args, true),
            Node::Cond(args) => {
                let chosen = match self.eval(&args[0])? {
                    Value::Bool(true) => &args[1],
                    Value::Bool(false) => &args[2],
                    _ => return Err(Error::Overload),
                };
                let value = self.eval(chosen);
                // cel-go sees the condition and the attribute that it chooses as one.
                if chosen.is_attribute() && !value.as_ref().is_err_and(Error::is_final) {
                    self.budget.refund(1);
                }
                value
            }
            Node::NotStrictlyFalse(arg) => {
                let value = self.eval(arg);
                self.budget.charge(1)?;
                match value {
                    Err(error) if error.is_final() => Err(error),
                    Ok(Value::Bool(false)) => Ok(Value::Bool(false)),
                    _ => Ok(Value::Bool(true)),
                }
            }
            Node::Not(arg) => {
                let value = self.argument(arg)?;
                self.budget.charge(1)?;
                match value? {
                    Value::Bool(b) => Ok(Value::Bool(!b)),
                    _ => Err(Error::Overload),
                }
            }
            Node::Equal(args, equal) => self.equal(args, *equal),
            Node::Member(arg, list) => self.member(arg, list),
            Node::OrOptional(args) => self.or_optional(args),
            Node::OrValue(args) => self.or_value(args),
            Node::Call(call) => self.call(call),
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => self.map(entries),
            Node::Fold(fold) => self.fold(fold),
            Node::Bind(parts) => {
                let value = self.eval(&parts[0]);
                if value.as_ref().is_err_and(Error::is_final) {
                    return value;
                }
                self.locals.push(value);
                let result = self.eval(&parts[1]);
                self.locals.pop();
                result
            }
            Node::Append(slot, element) => self.append(*slot, element),
            Node::Insert(slot, entry) => self.insert(*slot, entry),
        }
    }

    /// An argument; the outer error ends everything, the inner one is charged for like a value.
    fn argument(&mut self, node: &Node) -> Result<Evaluated<'a>, Error> {
        match self.eval(node) {
            Err(error) if error.is_final() => Err(error),
            other => Ok(other),
        }
    }

    fn select(&mut self, select: &Select) -> Evaluated<'a> {
        let operand = self.eval(&select.operand)?;
        let (target, was_optional) = match &operand {
            Value::Optional(None) => (None, true),
            Value::Optional(Some(inner)) => (Some(&**inner), true),
            other => (Some(other), false),
        };
        let found = match target {
            None => Ok(None),
            Some(Value::Map(map)) => map.field(&select.field),
            Some(Value::Struct(constructed))
                if select.access == Access::Opaque && constructed.named() == Named::Object =>
            {
                Ok(None)
            }
            Some(Value::Struct(constructed)) => constructed.field(&select.field),
            Some(_) if select.mode == Mode::Value => Err(Error::no_such_key(&select.field)),
            Some(_) => Ok(None),
        };
        let tests = select.mode == Mode::Has;
        let absent = (was_optional || select.mode == Mode::Optional) && matches!(found, Ok(None));
        self.budget.charge(u64::from(!tests && !absent) + u64::from(select.relative))?;
        match (select.mode, found?) {
            (Mode::Has, found) => Ok(Value::Bool(found.is_some())),
            (Mode::Optional, found) => Ok(Value::Optional(found.map(Arc::new))),
            (Mode::Value, found) if was_optional => Ok(Value::Optional(found.map(Arc::new))),
            (Mode::Value, Some(value)) => Ok(value),
            // By its type, a part of an object has every field; one that was not given is null.
            (Mode::Value, None)
                if select.access == Access::Typed
                    && matches!(&operand, Value::Struct(part) if part.named() == Named::Object) =>
            {
                Ok(Value::Null)
            }
            (Mode::Value, None) => Err(Error::no_such_key(&select.field)),
        }
    }

    /// A variable that is an expression: `variables.name`.
    fn named(&mut self, index: usize, mode: Mode) -> Evaluated<'a> {
        self.budget.charge(if mode == Mode::Has { 1 } else { 2 })?;
        match mode {
            Mode::Has => Ok(Value::Bool(index < self.named.len())),
            Mode::Optional => self.value_of(index).map(Value::some),
            Mode::Value => self.value_of(index),
        }
    }

    /// Every variable that is an expression, for what looks at all of them.
    fn all_named(&mut self) -> Evaluated<'a> {
        self.budget.charge(1)?;
        let mut constructed = Constructed::default();
        for (index, lazy) in self.named.iter().enumerate() {
            let value = self.value_of(index)?;
            constructed.insert(Value::text(lazy.name.as_str()), value)?;
        }
        Ok(Value::Map(Map::Constructed(Arc::new(constructed))))
    }

    /// Evaluates a variable once, for a separate budget.
    fn value_of(&mut self, index: usize) -> Evaluated<'a> {
        if let Some(Some(known)) = self.known.values.get(index) {
            return known.clone();
        }
        let named = self.named;
        let Some(lazy) = named.get(index) else { return Err(Error::eval("no such attribute(s)")) };
        let failed = |why: &dyn std::fmt::Display| {
            Error::eval(format!("composited variable \"{}\" fails to {why}", lazy.name))
        };
        let program = match &lazy.program {
            Ok(program) => program,
            Err(error) => return Err(failed(&format_args!("compile: {error}"))),
        };
        let (vars, known) = (self.vars, &mut *self.known);
        let (result, cost) = program.run(vars, named, known, crate::PER_CALL_LIMIT);
        self.known.cost = self.known.cost.saturating_add(cost);
        let result = match result {
            Err(Error::Unanswered) => return Err(Error::Unanswered),
            Err(error) => Err(failed(&format_args!("evaluate: {error}"))),
            ok => ok,
        };
        if self.known.values.len() <= index {
            self.known.values.resize(index + 1, None);
        }
        self.known.values[index] = Some(result.clone());
        result
    }

    fn structure(&mut self, name: &Arc<str>, fields: &[(Arc<str>, Node, bool)]) -> Evaluated<'a> {
        self.budget.charge(cost::OBJECT)?;
        let mut constructed = Struct { name: name.clone(), fields: Vec::with_capacity(fields.len()) };
        for (field, node, optional) in fields {
            let value = self.eval(node)?;
            let Some(value) = entry(value, *optional)? else { continue };
            if constructed.named() == Named::JsonPatch
                && &**field != "value"
                && !matches!(value, Value::String(_))
            {
                let found = value.ty().name();
                return Err(Error::eval(format!(
                    "unexpected type {found} for JSONPatchType '{field}' field"
                )));
            }
            constructed.fields.retain(|(known, _)| known != field);
            constructed.fields.push((field.clone(), value));
        }
        Ok(Value::Struct(Arc::new(constructed)))
    }

    fn index(&mut self, index: &Index) -> Evaluated<'a> {
        let operand = self.eval(&index.operand)?;
        let key = self.eval(&index.key)?;
        let (target, was_optional) = match &operand {
            Value::Optional(None) => (None, true),
            Value::Optional(Some(inner)) => (Some(&**inner), true),
            other => (Some(other), false),
        };
        let found = match target {
            None => Ok(None),
            Some(Value::List(list)) => position(&key).and_then(|at| at.and_then(|i| list.get(i)).transpose()),
            Some(Value::Map(map)) => map.get(&key),
            Some(_) => Err(Error::no_such_key(&key.shown())),
        };
        let optional = index.optional || was_optional;
        let absent = optional && matches!(found, Ok(None));
        self.budget.charge(u64::from(!absent) + u64::from(index.relative))?;
        match found? {
            found if optional => Ok(Value::Optional(found.map(Arc::new))),
            Some(value) => Ok(value),
            None if matches!(target, Some(Value::List(_))) => {
                Err(Error::eval(format!("index out of bounds: {}", key.shown())))
            }
            None => Err(Error::no_such_key(&key.shown())),
        }
    }

    /// `&&` and `||`: the deciding operand wins over an error on the other side.
    fn logic(&mut self, args: &[Node; 2], decides: bool) -> Evaluated<'a> {
        let left = self.eval(&args[0]);
        match left {
            Ok(Value::Bool(b)) if b == decides => return left,
            Err(ref error) if error.is_final() => return left,
            _ => {}
        }
        let right = self.eval(&args[1]);
        match (left, right) {
            (_, Ok(Value::Bool(b))) if b == decides => Ok(Value::Bool(b)),
            (_, Err(error)) if error.is_final() => Err(error),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(Value::Bool(_)), Ok(Value::Bool(b))) => Ok(Value::Bool(b)),
            _ => Err(Error::Overload),
        }
    }

    fn equal(&mut self, args: &[Node; 2], equal: bool) -> Evaluated<'a> {
        let (left, right) = (self.argument(&args[0])?, self.argument(&args[1])?);
        let seen = |v: &Evaluated<'a>| v.as_ref().map_or(Value::Null, Clone::clone);
        self.budget.charge(cost::equality(&seen(&left), &seen(&right), equal))?;
        Ok(Value::Bool(compare::equal(&left?, &right?)? == equal))
    }

    fn member(&mut self, arg: &Node, list: &Value<'static>) -> Evaluated<'a> {
        let value = self.eval(arg)?;
        let Value::List(list) = list else { return Err(Error::Overload) };
        for element in list.iter() {
            if compare::equal(&value, &element?)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }

    fn or_optional(&mut self, args: &[Node; 2]) -> Evaluated<'a> {
        match self.eval(&args[0])? {
            Value::Optional(None) => match self.eval(&args[1])? {
                other @ Value::Optional(_) => Ok(other),
                _ => Err(Error::Overload),
            },
            found @ Value::Optional(_) => Ok(found),
            _ => Err(Error::Overload),
        }
    }

    fn or_value(&mut self, args: &[Node; 2]) -> Evaluated<'a> {
        match self.eval(&args[0])? {
            Value::Optional(None) => self.eval(&args[1]),
            Value::Optional(Some(found)) => Ok((*found).clone()),
            _ => Err(Error::Overload),
        }
    }

    fn call(&mut self, call: &Call) -> Evaluated<'a> {
        let mut args = Vec::with_capacity(call.args.len());
        let mut failed = None;
        for arg in &call.args {
            match self.argument(arg)? {
                Ok(value) => args.push(value),
                // Of one or two arguments all are evaluated and the call is charged; more end at the first error.
                Err(error) if call.args.len() > 2 && args.len() + 1 < call.args.len() => return Err(error),
                Err(error) => {
                    failed.get_or_insert(error);
                    args.push(Value::Null);
                }
            }
        }
        // What is known before is charged before, so that no call outruns the budget.
        let before = cost::call(call, &args, None);
        if let Some(cost) = before {
            self.budget.charge(cost)?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let result = match &call.pattern {
            Some(pattern) => pattern.call(call.name, &args),
            None => (call.native)(&args),
        };
        if before.is_none() {
            let cost = cost::call(call, &args, result.as_ref().ok()).unwrap_or(1);
            self.budget.charge(cost)?;
        }
        match result {
            Err(Error::Overload) => Err(Error::no_overload(call.name, &args)),
            result => result,
        }
    }

    fn list(&mut self, elements: &[(Node, bool)]) -> Evaluated<'a> {
        self.budget.charge(cost::LIST)?;
        let mut list = Vec::with_capacity(elements.len());
        for (node, optional) in elements {
            let value = self.eval(node)?;
            list.extend(entry(value, *optional)?);
        }
        Ok(Value::list(list))
    }

    fn map(&mut self, entries: &[(Node, Node, bool)]) -> Evaluated<'a> {
        self.budget.charge(cost::MAP)?;
        let mut constructed = Constructed::default();
        for (key, value, optional) in entries {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            let Some(value) = entry(value, *optional)? else { continue };
            let shown = key.shown();
            if !constructed.insert(key, value)? {
                return Err(Error::eval(format!("Failed with repeated key: {shown}")));
            }
        }
        Ok(Value::Map(Map::Constructed(Arc::new(constructed))))
    }

    fn fold(&mut self, fold: &Fold) -> Evaluated<'a> {
        let range = self.eval(&fold.range)?;
        let init = self.eval(&fold.init)?;
        let base = self.locals.len();
        self.locals.push(Ok(init));
        let looped = self.each(fold, &range, base);
        self.locals.truncate(base + 1);
        let result = looped.and_then(|()| self.eval(&fold.result));
        self.locals.truncate(base);
        result
    }

    fn each(&mut self, fold: &Fold, range: &Value<'a>, base: usize) -> Result<(), Error> {
        let mut step = |first: Evaluated<'a>, second: Option<Evaluated<'a>>| -> Result<bool, Error> {
            self.locals.truncate(base + 1);
            self.locals.push(first);
            self.locals.extend(second);
            if !matches!(self.eval(&fold.condition)?, Value::Bool(true)) {
                return Ok(false);
            }
            let next = self.eval(&fold.step);
            match next {
                Err(error) if error.is_final() => return Err(error),
                next => self.locals[base] = next,
            }
            Ok(true)
        };
        match range {
            Value::List(list) => {
                for (i, element) in list.iter().enumerate() {
                    let index = Ok(Value::Int(i64::try_from(i).unwrap_or(i64::MAX)));
                    let more = if fold.two { step(index, Some(element))? } else { step(element, None)? };
                    if !more {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for key in map.keys() {
                    let value = match fold.two {
                        true => Some(map.get(&key).map(|v| v.unwrap_or(Value::Null))),
                        false => None,
                    };
                    if !step(Ok(key), value)? {
                        break;
                    }
                }
            }
            other => {
                return Err(Error::eval(format!("got '{}', expected iterable type", other.go_type())));
            }
        }
        Ok(())
    }

    fn append(&mut self, slot: usize, element: &Node) -> Evaluated<'a> {
        let element = self.eval(element);
        // The accumulator is read, a list of one is made, and both are joined.
        self.budget.charge(1 + cost::LIST + 1)?;
        let element = element?;
        let accu = std::mem::replace(&mut self.locals[slot], Ok(Value::Null))?;
        match accu {
            Value::List(List::Constructed(mut list, kind)) => {
                Arc::make_mut(&mut list).push(element);
                Ok(Value::List(List::Constructed(list, kind)))
            }
            _ => Err(Error::Overload),
        }
    }

    fn insert(&mut self, slot: usize, entry: &[Node]) -> Evaluated<'a> {
        let mut parts = Vec::with_capacity(entry.len());
        for node in entry {
            parts.push(self.eval(node)?);
        }
        self.budget.charge(2)?;
        let accu = std::mem::replace(&mut self.locals[slot], Ok(Value::Null))?;
        let Value::Map(Map::Constructed(mut constructed)) = accu else { return Err(Error::Overload) };
        let map = Arc::make_mut(&mut constructed);
        let mut insert = |key: Value<'a>, value: Value<'a>| match map.insert(key.clone(), value)? {
            true => Ok(()),
            false => Err(Error::eval(format!("insert failed: key {} already exists", key.shown()))),
        };
        match parts.as_slice() {
            [key, value] => insert(key.clone(), value.clone())?,
            [Value::Map(entries)] => {
                for key in entries.keys() {
                    let value = entries.get(&key)?.unwrap_or(Value::Null);
                    insert(key, value)?;
                }
            }
            _ => return Err(Error::Overload),
        }
        Ok(Value::Map(Map::Constructed(constructed)))
    }
}

/// The value of an entry; of an optional one, what it holds.
fn entry(value: Value<'_>, optional: bool) -> Result<Option<Value<'_>>, Error> {
    match (optional, value) {
        (false, value) => Ok(Some(value)),
        (true, Value::Optional(inner)) => Ok(inner.map(|v| (*v).clone())),
        (true, other) => Err(Error::eval(format!(
            "cannot initialize optional list element from non-optional value {}",
            other.shown()
        ))),
    }
}

/// The place that a key of a list names; none if it is negative.
fn position(key: &Value<'_>) -> Result<Option<usize>, Error> {
    match (crate::value::Key::of(key), key) {
        (Some(crate::value::Key::Number(n)), _) => Ok(usize::try_from(n).ok()),
        (_, Value::Double(d)) => Err(Error::eval(format!("unsupported index value {d} in list"))),
        _ => Err(Error::eval(format!("unsupported index type '{}' in list", key.ty().name()))),
    }
}
