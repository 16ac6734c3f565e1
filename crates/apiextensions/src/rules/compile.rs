//! The rules of a schema, compiled: a tree of the schema's nodes that hold rules or lead to some.

use super::{below, decl::decl, embedded, field_path, keys_of_map_list, list, properties, text};
use kaji_cel::{CompileError, Decl, Env, Program, Type};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

/// One rule.
#[derive(Debug)]
pub(crate) struct Rule {
    /// None for an empty rule; an error says why it cannot run.
    pub program: Result<Option<Program>, String>,
    /// Makes the message when the rule fails.
    pub message_expression: Result<Option<Program>, String>,
    /// As declared.
    pub message_expression_text: String,
    /// The expression.
    pub rule: String,
    /// What is said when the rule fails; may be empty.
    pub message: String,
    /// The kind of error; "" for an invalid value.
    pub reason: String,
    /// Where the failure is reported, below the value.
    pub field_path: Option<String>,
    /// The rule compares with the old value.
    pub uses_old: bool,
    /// The old value is an optional; the rule runs without one, too. None if not declared.
    pub optional_old: Option<bool>,
}

/// Rules of a schema node and of those below it.
#[derive(Debug)]
pub(crate) struct Rules {
    /// What rules see.
    pub decl: Arc<Decl>,
    /// `type` of the schema; field errors show it in place of the value.
    pub ty: String,
    /// Rules about the node itself.
    pub rules: Vec<Rule>,
    /// Those about the elements of a list.
    pub items: Option<Box<Rules>>,
    /// Those about fields.
    pub properties: BTreeMap<String, Rules>,
    /// Those about the values of a map.
    pub additional: Option<Box<Rules>>,
    /// Those in `allOf`, about the same value.
    pub all_of: Vec<Rules>,
    /// Elements of old and new lists are matched by these properties; none: they are not.
    pub list_keys: Option<Vec<String>>,
}

impl Rules {
    /// The rules of a root schema; none if there are none.
    pub(crate) fn new(schema: &Value) -> Option<Rules> {
        if !kaji_schema::structural::has_rules(schema) {
            return None;
        }
        compile(schema, schema, Arc::new(decl(schema, true)?))
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty()
            && self.items.is_none()
            && self.properties.is_empty()
            && self.additional.is_none()
            && self.all_of.is_empty()
    }
}

/// Compiles the rules that `clause` declares (a schema, or an `allOf` clause of it) about values of `schema`.
fn compile(clause: &Value, schema: &Value, declared: Arc<Decl>) -> Option<Rules> {
    let element = |key: &str| {
        let (clause, schema) = (below(clause, key)?, below(schema, key)?);
        compile(clause, schema, declared.element()?.clone()).map(Box::new)
    };
    let property = |(name, clause): (&String, &Value)| {
        let schema = schema.get("properties")?.get(name)?;
        let field = match kaji_cel::escape::escape(name) {
            Some(escaped) => declared.field(&escaped)?.clone(),
            None => Arc::new(decl(schema, embedded(schema))?),
        };
        Some((name.clone(), compile(clause, schema, field)?))
    };
    let all_of = list(clause, "allOf").iter().filter_map(|c| compile(c, schema, declared.clone())).collect();
    let rules = Rules {
        ty: text(schema, "type").to_owned(),
        rules: rules(clause, schema, &declared),
        items: element("items"),
        properties: properties(clause).filter_map(property).collect(),
        additional: element("additionalProperties"),
        all_of,
        list_keys: keys_of_map_list(schema),
        decl: declared,
    };
    (!rules.is_empty()).then_some(rules)
}

/// The rules that a schema itself declares, about values of `decl`.
pub(super) fn rules(clause: &Value, schema: &Value, decl: &Arc<Decl>) -> Vec<Rule> {
    let declared = list(clause, "x-kubernetes-validations");
    if declared.is_empty() {
        return vec![];
    }
    let base = Env::new().variable("self", decl.clone());
    let plain = base.clone().variable("oldSelf", decl.clone());
    let optional = base.optional("oldSelf", decl.clone());
    let env = |rule: &Value| {
        if rule.get("optionalOldSelf") == Some(&Value::Bool(true)) { &optional } else { &plain }
    };
    declared.iter().map(|r| rule(r, schema, env(r))).collect()
}

fn rule(declared: &Value, schema: &Value, env: &Env) -> Rule {
    let expression = text(declared, "rule");
    let program = match expression.trim().is_empty() {
        true => Ok(None),
        false => {
            compiled(env, expression, &Type::Bool, "", "cel expression must evaluate to a bool").map(Some)
        }
    };
    let message_text = text(declared, "messageExpression");
    let message_expression = match message_text.is_empty() || !matches!(program, Ok(Some(_))) {
        true => Ok(None),
        false => {
            let mistyped = "messageExpression must evaluate to a string";
            compiled(env, message_text, &Type::String, "messageExpression ", mistyped).map(Some)
        }
    };
    Rule {
        uses_old: matches!(&program, Ok(Some(p)) if p.uses("oldSelf")),
        program,
        message_expression,
        message_expression_text: message_text.to_owned(),
        rule: expression.to_owned(),
        message: text(declared, "message").to_owned(),
        reason: text(declared, "reason").to_owned(),
        field_path: field_path::normalized(text(declared, "fieldPath"), schema),
        optional_old: declared.get("optionalOldSelf").and_then(Value::as_bool),
    }
}

fn compiled(env: &Env, text: &str, ty: &Type, prefix: &str, mistyped: &str) -> Result<Program, String> {
    let program = env.compile(text).map_err(|e| match e {
        CompileError::Issues(issues) => format!("{prefix}compilation failed: {issues}"),
        CompileError::Program(why) => {
            let what = if prefix.is_empty() { "program " } else { prefix };
            format!("{what}instantiation failed: {why}")
        }
    })?;
    if program.ty() == ty { Ok(program) } else { Err(mistyped.to_owned()) }
}
