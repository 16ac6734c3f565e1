//! Rules applied to objects. Source: apiextensions-apiserver `schema/cel/validation.go`.

use super::{Rules, compile::Rule};
use kaji_cel::{Error as Failure, PER_CALL_LIMIT, Program, REQUEST_BUDGET, Value as Cel};
use kaji_meta::field::{Error, ErrorList, ErrorType, Path};
use kaji_schema::{
    Schema,
    validate::correlate::{self, Keyed},
};
use serde_json::Value;

/// How long a message that a rule makes may be, in bytes.
const LONGEST_MESSAGE: usize = 5120;
const SPENT: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The error in place of rules, if the object is too wrong for them to make sense of it.
pub(crate) fn blocked(errors: &ErrorList) -> Option<Error> {
    let blocking = [
        ErrorType::NotSupported,
        ErrorType::Required,
        ErrorType::TooLong,
        ErrorType::TooMany,
        ErrorType::TypeInvalid,
    ];
    errors.iter().any(|e| blocking.contains(&e.ty)).then(|| {
        let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        Error::invalid(&Path::root(), Value::Null, detail)
    })
}

/// Applies the rules of a schema to a new object, and to the change from the old one.
pub(crate) fn validate(rules: &Rules, schema: &Schema, new: &Value, old: Option<&Value>) -> ErrorList {
    let mut run = Run { budget: REQUEST_BUDGET, errors: vec![] };
    let same = Ratchet { current: old.map(|old| Pair { schema, new, old }), parent: None };
    // Stopping early is a separate error, already collected.
    let _: Result<(), Stop> = run.node(rules, &Path::root(), new, old, same);
    run.errors
}

/// Applies rules to a default, without ratcheting. Returns what is left of the budget; none if evaluation has stopped.
pub(super) fn default(
    rules: &Rules,
    path: &Path,
    new: &Value,
    old: Option<&Value>,
    budget: u64,
    errors: &mut ErrorList,
) -> Option<u64> {
    let mut run = Run { budget, errors: vec![] };
    let done = run.node(rules, path, new, old, Ratchet::default());
    errors.append(&mut run.errors);
    done.ok().map(|()| run.budget)
}

/// No further rules are run.
struct Stop;

struct Run {
    budget: u64,
    errors: ErrorList,
}

/// A new value, the old one that corresponds to it, and their schema.
#[derive(Clone, Copy)]
struct Pair<'v> {
    schema: &'v Schema,
    new: &'v Value,
    old: &'v Value,
}

impl<'v> Pair<'v> {
    fn unchanged(self) -> bool {
        correlate::unchanged(self.schema, self.new, self.old)
    }

    /// The fields of that name.
    fn field(self, name: &str) -> Option<Pair<'v>> {
        let (new, old) = (self.new.as_object()?.get(name)?, self.old.as_object()?.get(name)?);
        Some(Pair { schema: correlate::described(self.schema, name)?, new, old })
    }
}

/// The values that decide whether an error is forgiven: those where it is, and those of the nearest place around it that
/// correspond.
#[derive(Clone, Copy, Default)]
struct Ratchet<'v> {
    current: Option<Pair<'v>>,
    parent: Option<Pair<'v>>,
}

impl<'v> Ratchet<'v> {
    /// Nothing has changed: what was wrong before is forgiven.
    fn forgives(self) -> bool {
        self.current.or(self.parent).is_some_and(Pair::unchanged)
    }

    fn field(self, name: &str) -> Ratchet<'v> {
        let Some(around) = self.current else { return self };
        // Versions differ in these without the client's doing.
        if self.parent.is_none() && matches!(name, "apiVersion" | "kind") {
            return Ratchet::default();
        }
        Ratchet { current: around.field(name), parent: Some(around) }
    }

    fn element(self, new: &'v Value, old: Option<&'v Value>) -> Ratchet<'v> {
        let Some(around) = self.current else { return self };
        let items = around.schema.items.as_ref();
        let pair = |old| Some(Pair { schema: items?.get(), new, old });
        Ratchet { current: old.and_then(pair), parent: Some(around) }
    }
}

impl Run {
    fn node<'v>(
        &mut self,
        rules: &Rules,
        path: &Path,
        new: &'v Value,
        old: Option<&'v Value>,
        ratchet: Ratchet<'v>,
    ) -> Result<(), Stop> {
        if new.is_null() {
            return Ok(());
        }
        let old = old.filter(|o| !o.is_null());
        self.rules(rules, path, new, old, ratchet)?;
        for clause in &rules.all_of {
            self.node(clause, path, new, old, Ratchet { current: None, parent: ratchet.parent })?;
        }
        match new {
            Value::Array(items) => self.items(rules, path, items, old, ratchet),
            Value::Object(fields) => {
                for (name, value) in fields {
                    let (rules, at) = match (&rules.additional, rules.properties.get(name)) {
                        (Some(rules), _) => (&**rules, path.key(name)),
                        (None, Some(rules)) => (rules, path.child(name)),
                        (None, None) => continue,
                    };
                    let before = old.and_then(|o| o.get(name));
                    self.node(rules, &at, value, before, ratchet.field(name))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn items<'v>(
        &mut self,
        rules: &Rules,
        path: &Path,
        items: &'v [Value],
        old: Option<&'v Value>,
        ratchet: Ratchet<'v>,
    ) -> Result<(), Stop> {
        let Some(below) = &rules.items else { return Ok(()) };
        let known = rules.list_keys.as_ref().zip(old.and_then(Value::as_array));
        let before = known.map(|(keys, old)| Keyed::new(keys.iter().map(String::as_str), old));
        let ratcheted = ratchet.current.and_then(|pair| Keyed::of(pair.schema, Some(pair.old)));
        for (i, item) in items.iter().enumerate() {
            let find = |known: &Option<Keyed<'_, 'v>>| known.as_ref()?.get(item);
            let ratchet = ratchet.element(item, find(&ratcheted));
            self.node(below, &path.index(i), item, find(&before), ratchet)?;
        }
        Ok(())
    }

    fn rules(
        &mut self,
        rules: &Rules,
        path: &Path,
        new: &Value,
        old: Option<&Value>,
        ratchet: Ratchet<'_>,
    ) -> Result<(), Stop> {
        if rules.rules.is_empty() {
            return Ok(());
        }
        let invalid = |detail: String| Error::invalid(path, rules.ty.as_str(), detail);
        if self.budget == 0 {
            self.errors.push(invalid(SPENT.into()));
            return Err(Stop);
        }
        let value = |json| Cel::of_json(json, &rules.decl);
        let (this, before) = match (value(new), old.map(value).transpose()) {
            (Ok(this), Ok(before)) => (this, before),
            (Err(e), _) | (_, Err(e)) => {
                self.errors.push(invalid(e.to_string()));
                return Ok(());
            }
        };
        for rule in &rules.rules {
            let program = match &rule.program {
                Ok(Some(program)) => program,
                Ok(None) => continue,
                Err(e) => {
                    self.errors.push(invalid(format!("rule compile error: {e}")));
                    continue;
                }
            };
            let optional = rule.optional_old == Some(true);
            if rule.uses_old && old.is_none() && !optional {
                continue;
            }
            let before = match optional {
                true => Some(Cel::Optional(before.clone().map(Into::into))),
                false => before.clone(),
            };
            let vars = [Some(this.clone()), before];
            match self.holds(program, &vars, rule, &invalid)? {
                true => {}
                false => self.failed(rules, rule, path, new, &vars, ratchet)?,
            }
        }
        Ok(())
    }

    /// Whether a rule holds; one that cannot be evaluated is reported, and held for good otherwise.
    fn holds(
        &mut self,
        program: &Program,
        vars: &[Option<Cel<'_>>],
        rule: &Rule,
        invalid: &impl Fn(String) -> Error,
    ) -> Result<bool, Stop> {
        let (result, cost) = program.eval(vars, PER_CALL_LIMIT);
        let Some(left) = self.budget.checked_sub(cost) else {
            self.errors.push(invalid(SPENT.into()));
            return Err(Stop);
        };
        self.budget = left;
        let shown = [&rule.message, &rule.rule].into_iter().find(|t| !t.is_empty()).map_or("", |t| t.trim());
        match result {
            Ok(Cel::Bool(holds)) => return Ok(holds),
            Ok(_) => return Ok(false),
            Err(e) if e.is_overload() => self.errors.push(invalid(format!(
                "'{e}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
            ))),
            Err(e @ Failure::Cost) => {
                self.errors.push(invalid(format!(
                    "'{e}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
                )));
                return Err(Stop);
            }
            Err(e) => self.errors.push(invalid(format!("{e} evaluating rule: {shown}"))),
        }
        Ok(true)
    }

    fn failed(
        &mut self,
        rules: &Rules,
        rule: &Rule,
        path: &Path,
        new: &Value,
        vars: &[Option<Cel<'_>>],
        ratchet: Ratchet<'_>,
    ) -> Result<(), Stop> {
        let at = rule.field_path.as_ref().map_or_else(|| path.clone(), |p| path.child(p));
        let forgiven = !rule.uses_old && ratchet.forgives();
        let made = match &rule.message_expression {
            Ok(Some(program)) => match self.message(program, &rule.message_expression_text, vars) {
                Ok(made) => made,
                Err(detail) => {
                    if !forgiven {
                        self.errors.push(Error::invalid(&at, rules.ty.as_str(), detail));
                    }
                    return Err(Stop);
                }
            },
            _ => None,
        };
        if forgiven {
            return Ok(());
        }
        let detail = made.unwrap_or_else(|| match rule.message.trim() {
            "" => format!("failed rule: {}", rule.rule.trim()),
            message => message.to_owned(),
        });
        let structured = matches!(rules.ty.as_str(), "object" | "array");
        let error = match rule.reason.as_str() {
            "FieldValueForbidden" => Error::forbidden(&at, detail),
            "FieldValueRequired" => Error::required(&at, detail),
            "FieldValueDuplicate" => Error::duplicate(&at, new.clone()),
            _ => Error::invalid(&at, new.clone(), detail),
        };
        self.errors.push(if structured { error.without_value() } else { error });
        Ok(())
    }

    /// The message that an expression makes; none if it makes no usable one. An error ends the run.
    fn message(
        &mut self,
        program: &Program,
        text: &str,
        vars: &[Option<Cel<'_>>],
    ) -> Result<Option<String>, String> {
        let (result, cost) = program.eval(vars, PER_CALL_LIMIT);
        self.budget = self.budget.checked_sub(cost).ok_or(
            "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run",
        )?;
        match result {
            Err(Failure::Cost) => Err(format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
                kaji_meta::text::quote(text)
            )),
            Ok(Cel::String(message)) => {
                let message = message.trim();
                let usable =
                    !message.is_empty() && message.len() <= LONGEST_MESSAGE && !message.contains('\n');
                Ok(usable.then(|| message.to_owned()))
            }
            _ => Ok(None),
        }
    }
}
