//! What a definition may declare. Source: apiextensions-apiserver `validation.go`, `cel_validation.go`.

use super::{
    below,
    compile::{self, Rule},
    decl::decl,
    embedded, field_path, list, properties, text,
};
use kaji_cel::{Decl, ESTIMATE_LIMIT, Program};
use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;
use std::sync::Arc;

/// What all rules of one schema may cost together, by their estimates (upstream's `StaticEstimatedCRDCostLimit`).
const TOTAL_LIMIT: u64 = 100_000_000;
/// How many of the dearest rules are named when together they cost too much.
const NAMED: usize = 4;

/// Checks the rules of a root schema that is structural. What each of them costs is not held against one that was `stored` as it is.
pub(crate) fn check(schema: &Value, path: &Path, stored: bool) -> ErrorList {
    let mut check = Check { errors: vec![], stored, total: 0, dearest: vec![] };
    if kaji_schema::structural::has_rules(schema) {
        let declared = decl(schema, true).map(Arc::new);
        let place = SchemaContext { declared, within_rules: false, uncorrelatable: None, most: Some(1) };
        check.node(schema, path, &place);
        check.total(path);
    }
    check.errors
}

/// Where a schema stands.
#[derive(Clone)]
struct SchemaContext {
    /// What rules may know here; none if they cannot.
    declared: Option<Arc<Decl>>,
    /// A schema around this one has rules: upstream then takes types from there alone.
    within_rules: bool,
    /// The list or map within which old and new values cannot be told apart.
    uncorrelatable: Option<Path>,
    /// How many such values one object holds at most; none if nothing bounds them.
    most: Option<u64>,
}

struct Check {
    errors: ErrorList,
    /// A single rule may cost any amount.
    stored: bool,
    /// The estimated cost of all rules.
    total: u64,
    /// Those that contribute most.
    dearest: Vec<(u64, Path)>,
}

impl Check {
    fn node(&mut self, schema: &Value, path: &Path, place: &SchemaContext) {
        let below_map = |kind: &str| match kind {
            "" | "granular" | "atomic" => place.uncorrelatable.clone(),
            _ => place.uncorrelatable.clone().or_else(|| Some(path.clone())),
        };
        let map = below_map(text(schema, "x-kubernetes-map-type"));
        let within_rules = place.within_rules || !list(schema, "x-kubernetes-validations").is_empty();
        let element = |of: &Value| {
            let known = place.declared.as_ref().and_then(|d| d.element()).cloned();
            known.or_else(|| if within_rules { None } else { decl(of, embedded(of)).map(Arc::new) })
        };
        let most = place.most.zip(multiplies(schema)).map(|(most, by)| most.saturating_mul(by));
        if let Some(values) = below(schema, "additionalProperties") {
            let place =
                SchemaContext { declared: element(values), within_rules, uncorrelatable: map.clone(), most };
            self.node(values, &path.child("additionalProperties"), &place);
        }
        for (name, property) in properties(schema) {
            let known = kaji_cel::escape::escape(name)
                .and_then(|escaped| place.declared.as_ref()?.field(&escaped).cloned());
            let declared = known.or_else(|| decl(property, embedded(property)).map(Arc::new));
            let place = SchemaContext { declared, within_rules, uncorrelatable: map.clone(), most };
            self.node(property, &path.child("properties").key(name), &place);
        }
        if let Some(items) = below(schema, "items") {
            let uncorrelatable = match text(schema, "x-kubernetes-list-type") {
                "map" => place.uncorrelatable.clone(),
                _ => place.uncorrelatable.clone().or_else(|| Some(path.clone())),
            };
            let place = SchemaContext { declared: element(items), within_rules, uncorrelatable, most };
            self.node(items, &path.child("items"), &place);
        }
        self.rules(schema, path, place);
    }

    fn rules(&mut self, schema: &Value, path: &Path, place: &SchemaContext) {
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
            let why = match place.within_rules {
                true => "failed to convert to declType for CEL validation rules",
                false => {
                    "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations"
                }
            };
            return self.errors.push(Error::internal(&at, why));
        };
        for (i, (rule, text)) in compile::rules(schema, schema, known).iter().zip(declared).enumerate() {
            let most = place.most.unwrap_or_else(|| known.max_cardinality());
            self.costs(rule, &at.index(i), most);
            self.rule(rule, text, &at.index(i), place);
        }
    }

    /// A rule costs its estimate for each value that it is applied to; a message is made once.
    fn costs(&mut self, rule: &Rule, at: &Path, most: u64) {
        let cost = |program: &Result<Option<Program>, String>| {
            program.as_ref().ok().and_then(Option::as_ref).map(Program::max_cost)
        };
        let whole = cost(&rule.program).map(|c| c.saturating_mul(most));
        for (key, what, cost) in [
            ("rule", "estimated rule cost", whole),
            ("messageExpression", "estimated messageExpression cost", cost(&rule.message_expression)),
        ] {
            let Some(cost) = cost else { continue };
            if cost > ESTIMATE_LIMIT && !self.stored {
                self.errors.push(Error::forbidden(&at.child(key), too_dear(what, cost, ESTIMATE_LIMIT)));
            }
            self.total = self.total.saturating_add(cost);
            if cost >= TOTAL_LIMIT / 100 {
                self.dearest.push((cost, at.child(key)));
            }
        }
    }

    /// The sum of all rules.
    fn total(&mut self, path: &Path) {
        if self.total <= TOTAL_LIMIT {
            return;
        }
        self.dearest.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, at) in self.dearest.iter().take(NAMED) {
            let detail =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            self.errors.push(Error::forbidden(at, detail));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        self.errors.push(Error::forbidden(path, too_dear(what, self.total, TOTAL_LIMIT)));
    }

    fn rule(&mut self, rule: &Rule, declared: &Value, at: &Path, place: &SchemaContext) {
        if let Err(e) = &rule.program {
            self.errors.push(broken(declared, &at.child("rule"), e));
        }
        if let Err(e) = &rule.message_expression {
            self.errors.push(broken(declared, &at.child("messageExpression"), e));
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

/// How many values a schema makes of one, at most; none if there is no bound.
fn multiplies(schema: &Value) -> Option<u64> {
    let bound = |key: &str| schema.get(key).map(|n| n.as_u64().unwrap_or_default());
    match text(schema, "type") {
        "object" if schema.get("additionalProperties").is_some() => bound("maxProperties"),
        "array" => bound("maxItems"),
        _ => Some(1),
    }
}

#[allow(clippy::cast_precision_loss, reason = "a factor for people to read")]
fn too_dear(what: &str, cost: u64, limit: u64) -> String {
    let factor = match cost as f64 / limit as f64 {
        f if f > 100.0 => "more than 100x".to_owned(),
        f if f < 1.5 => format!("{f:.6}x"),
        f => format!("{f:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// A rule that does not compile, shown as upstream's messages do: in its internal form, with that form's names and order.
fn broken(rule: &Value, at: &Path, why: &str) -> Error {
    let given = |key: &str| rule.get(key).cloned().unwrap_or(Value::Null);
    let shown = [
        ("Rule", text(rule, "rule").into()),
        ("Message", text(rule, "message").into()),
        ("MessageExpression", text(rule, "messageExpression").into()),
        ("Reason", given("reason")),
        ("FieldPath", text(rule, "fieldPath").into()),
        ("OptionalOldSelf", given("optionalOldSelf")),
    ]
    .map(|(name, value)| format!("\"{name}\":{value}"));
    // As Go escapes JSON.
    let shown = shown.map(|s| s.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"));
    Error::invalid(at, Value::Null, format!("{{{}}}: {why}", shown.join(","))).without_value()
}
