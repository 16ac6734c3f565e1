//! Resources that are limited by default: a write that consumes one needs a quota that covers it. Source:
//! `apiserver.config.k8s.io/v1 ResourceQuotaConfiguration` and upstream's `CheckRequest`.

use crate::{
    Usage,
    evaluator::Evaluator,
    scopes::{self, Requirement},
};
use kaji_meta::GroupResource;
use serde_json::Value;
use std::collections::BTreeSet;

/// One entry of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitedResource {
    /// The resource of the objects that it is about.
    pub resource: GroupResource,
    /// Names of a quota that contain one of these need a quota when something of them is used.
    pub match_contains: Vec<String>,
    /// `ScopedResourceSelectorRequirement`s: an object that matches one needs a quota with that scope. They apply to
    /// objects of every resource that has scopes.
    pub match_scopes: Vec<Value>,
}

/// The configuration as it applies to objects of a resource.
#[derive(Clone, Copy, Debug)]
pub struct Limited<'a> {
    /// The resource.
    pub resource: &'a GroupResource,
    /// All entries.
    pub entries: &'a [LimitedResource],
}

impl<'a> Limited<'a> {
    /// Whether nothing is limited.
    pub(crate) fn is_empty(self) -> bool {
        self.entries.is_empty()
    }

    /// The names that something is used of, and that a quota has to cover.
    pub(crate) fn names(self, usage: &Usage) -> BTreeSet<&str> {
        let entries = self.entries.iter().filter(|entry| entry.resource == *self.resource);
        let parts: Vec<&str> = entries.flat_map(|e| &e.match_contains).map(String::as_str).collect();
        let used = usage.iter().filter(|(_, quantity)| quantity.sign() > 0).map(|(name, _)| name.as_str());
        used.filter(|name| parts.iter().any(|part| name.contains(part))).collect()
    }

    /// The scopes of an object that a quota has to cover.
    pub(crate) fn scopes(self, evaluator: &Evaluator, item: &Value) -> Vec<Requirement<'a>> {
        let required = self.entries.iter().flat_map(|entry| &entry.match_scopes).map(Requirement::of);
        scopes::matching(evaluator, item, required).collect()
    }
}
