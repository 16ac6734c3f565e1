//! Defaults of a definition must satisfy the rules about them. Source: apiextensions-apiserver
//! `schema/defaulting/validation.go`.
//!
//! Invariants: rules are compiled once for a schema, however many defaults it has; all defaults of a schema share one cost
//! budget, and the first to exceed it ends the check.

use super::{Rules, below, evaluate, properties};
use kaji_cel::REQUEST_BUDGET;
use kaji_meta::field::{ErrorList, Path};
use serde_json::Value;

/// Validates the defaults in a root schema against its rules; the schema is structural and its rules compile.
pub(crate) fn check(schema: &Value, path: &Path) -> ErrorList {
    let mut check = Check { budget: Some(REQUEST_BUDGET), errors: vec![] };
    if has_defaults(schema)
        && let Some(rules) = Rules::new(schema)
    {
        check.node(schema, &rules, path);
    }
    check.errors
}

/// Whether there is a default that rules could be about. There are none below `additionalProperties`.
fn has_defaults(schema: &Value) -> bool {
    schema.get("default").is_some_and(|default| !default.is_null())
        || below(schema, "items").is_some_and(has_defaults)
        || properties(schema).any(|(_, property)| has_defaults(property))
}

struct Check {
    /// What is left of the cost budget; none once evaluation has stopped.
    budget: Option<u64>,
    errors: ErrorList,
}

impl Check {
    fn node(&mut self, schema: &Value, rules: &Rules, path: &Path) {
        if let Some(default) = schema.get("default") {
            self.default(rules, default, &path.child("default"));
        }
        if let (Some(items), Some(rules)) = (below(schema, "items"), &rules.items) {
            self.node(items, rules, &path.child("items"));
        }
        for (name, property) in properties(schema) {
            if let Some(rules) = rules.properties.get(name) {
                self.node(property, rules, &path.child("properties").key(name));
            }
        }
    }

    /// A default must be valid as it stays and, for rules that also run without an old value, as it is introduced.
    fn default(&mut self, rules: &Rules, default: &Value, path: &Path) {
        let Some(budget) = self.budget else { return };
        let before = self.errors.len();
        let mut left = evaluate::default(rules, path, default, Some(default), budget, &mut self.errors);
        if self.errors.len() == before {
            let introduced = evaluate::default(rules, path, default, None, budget, &mut self.errors);
            left = left.zip(introduced).map(|(stays, introduced)| stays.min(introduced));
        }
        self.budget = left;
    }
}
