//! What a definition may declare. Source: apiextensions-apiserver `validation.go`, `cel_validation.go`.

use super::{
    below,
    compile::{self, Rule},
    decl::decl,
    embedded, field_path, list, properties, text,
};
use kaji_cel::Decl;
use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::{Value, json};
use std::sync::Arc;

/// Checks the rules of a root schema that is structural.
pub(crate) fn check(schema: &Value, path: &Path) -> ErrorList {
    let mut check = Check { errors: vec![] };
    if kaji_schema::structural::has_rules(schema) {
        let declared = decl(schema, true).map(Arc::new);
        check.node(schema, path, &Place { declared, uncorrelatable: None });
    }
    check.errors
}

/// Where a schema stands.
#[derive(Clone)]
struct Place {
    /// What rules may know here; none if they cannot.
    declared: Option<Arc<Decl>>,
    /// The list or map within which old and new values cannot be told apart.
    uncorrelatable: Option<Path>,
}

struct Check {
    errors: ErrorList,
}

impl Check {
    fn node(&mut self, schema: &Value, path: &Path, place: &Place) {
        let below_map = |kind: &str| match kind {
            "" | "granular" | "atomic" => place.uncorrelatable.clone(),
            _ => place.uncorrelatable.clone().or_else(|| Some(path.clone())),
        };
        let map = below_map(text(schema, "x-kubernetes-map-type"));
        let element = || place.declared.as_ref().and_then(|d| d.element()).cloned();
        if let Some(values) = below(schema, "additionalProperties") {
            let place = Place { declared: element(), uncorrelatable: map.clone() };
            self.node(values, &path.child("additionalProperties"), &place);
        }
        for (name, property) in properties(schema) {
            let known = kaji_cel::escape::escape(name)
                .and_then(|escaped| place.declared.as_ref()?.field(&escaped).cloned());
            let declared = known.or_else(|| decl(property, embedded(property)).map(Arc::new));
            let place = Place { declared, uncorrelatable: map.clone() };
            self.node(property, &path.child("properties").key(name), &place);
        }
        if let Some(items) = below(schema, "items") {
            let uncorrelatable = match text(schema, "x-kubernetes-list-type") {
                "map" => place.uncorrelatable.clone(),
                _ => place.uncorrelatable.clone().or_else(|| Some(path.clone())),
            };
            self.node(items, &path.child("items"), &Place { declared: element(), uncorrelatable });
        }
        self.rules(schema, path, place);
    }

    fn rules(&mut self, schema: &Value, path: &Path, place: &Place) {
        let declared = list(schema, "x-kubernetes-validations");
        if declared.is_empty() {
            return;
        }
        let at = path.child("x-kubernetes-validations");
        for (i, rule) in declared.iter().enumerate() {
            let field = text(rule, "fieldPath");
            if !field.is_empty() && field_path::normalized(field, schema).is_none() {
                self.errors.push(Error::invalid(
                    &at.index(i).child("fieldPath"),
                    field,
                    "must be a valid path",
                ));
            }
        }
        let Some(known) = &place.declared else {
            let why = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            return self.errors.push(Error::internal(&at, why));
        };
        for (i, (rule, text)) in compile::rules(schema, schema, known).iter().zip(declared).enumerate() {
            self.rule(rule, text, &at.index(i), place);
        }
    }

    fn rule(&mut self, rule: &Rule, declared: &Value, at: &Path, place: &Place) {
        if let Err(e) = &rule.program {
            self.errors.push(Error::invalid(&at.child("rule"), internal_form(declared), e.as_str()));
        }
        if let Err(e) = &rule.message_expression {
            let at = at.child("messageExpression");
            self.errors.push(Error::invalid(&at, internal_form(declared), e.as_str()));
        }
        match (rule.uses_old, &place.uncorrelatable, rule.optional_old) {
            (true, Some(within), _) => {
                let detail = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
                );
                self.errors.push(Error::invalid(&at.child("rule"), rule.rule.as_str(), detail));
            }
            (false, _, Some(optional)) => {
                let detail = "may not be set if oldSelf is not used in rule";
                self.errors.push(Error::invalid(&at.child("optionalOldSelf"), optional, detail));
            }
            _ => {}
        }
    }
}

/// A rule as upstream's messages show it: its internal form, which has names of its own.
fn internal_form(rule: &Value) -> Value {
    let given = |key: &str| rule.get(key).cloned().unwrap_or(Value::Null);
    json!({
        "Rule": text(rule, "rule"),
        "Message": text(rule, "message"),
        "MessageExpression": text(rule, "messageExpression"),
        "Reason": given("reason"),
        "FieldPath": text(rule, "fieldPath"),
        "OptionalOldSelf": given("optionalOldSelf"),
    })
}
