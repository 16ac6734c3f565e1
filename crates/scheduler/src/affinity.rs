//! Affinity and anti-affinity between pods, parsed once.
//!
//! Invariant: terms are equal if and only if they select the same pods by the same text, so that the terms of one template's
//! pods are kept and evaluated once.
//!
//! Source: API reference, `PodAffinityTerm`; KEP-2249 for namespace selectors. The API server has merged `matchLabelKeys` and
//! `mismatchLabelKeys` into the selectors (KEP-3633).

use crate::matcher::Namespaces;
use kaji_meta::labels::Selector;
use kaji_runtime::ObjectSnapshot as Objects;
use kaji_runtime::objects::{Namespace, Pod};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// One term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AffinityTerm {
    /// Namespaces by name.
    pub namespaces: BTreeSet<String>,
    /// Namespaces by their labels; everything for an empty selector, nothing without one.
    pub namespace_selector: Selector,
    /// Which pods.
    pub selector: Selector,
    /// The label of nodes that share a domain.
    pub topology_key: Box<str>,
}

impl AffinityTerm {
    fn parse(namespace: &str, raw: &Value) -> Self {
        let names = raw["namespaces"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut namespaces: BTreeSet<String> = names.map(str::to_owned).collect();
        let selector = |raw: &Value| match raw {
            Value::Null => Selector::nothing(),
            raw => Selector::from_label_selector(raw).unwrap_or_else(|_| Selector::nothing()),
        };
        if namespaces.is_empty() && raw["namespaceSelector"].is_null() {
            namespaces.insert(namespace.to_owned());
        }
        AffinityTerm {
            namespaces,
            namespace_selector: selector(&raw["namespaceSelector"]),
            selector: selector(&raw["labelSelector"]),
            topology_key: raw["topologyKey"].as_str().unwrap_or_default().into(),
        }
    }

    /// Whether it selects a pod, in a namespace with these labels.
    pub fn matches(&self, pod: &Pod, namespace_labels: &BTreeMap<String, String>) -> bool {
        let namespace = &pod.metadata.namespace;
        (self.namespaces.contains(namespace)
            || self.namespace_selector.matches(|key| namespace_labels.get(key).map(String::as_str)))
            && self.selector.matches(|key| pod.metadata.labels.get(key).map(String::as_str))
    }

    /// The namespaces that it selects, of those that there are.
    pub fn resolve(&self, namespaces: &Objects<Namespace>) -> Namespaces {
        if self.namespace_selector.is_everything() {
            return Namespaces::All;
        }
        let mut names = self.namespaces.clone();
        if !self.namespace_selector.is_nothing() {
            let labels = |n: &Namespace| {
                self.namespace_selector.matches(|key| n.metadata.labels.get(key).map(String::as_str))
            };
            names.extend(namespaces.iter().filter(|n| labels(n)).map(|n| n.metadata.name.clone()));
        }
        Namespaces::Some(names)
    }
}

/// A pod's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodAffinity {
    /// Of required affinity.
    pub required: Box<[AffinityTerm]>,
    /// Of required anti-affinity.
    pub required_anti: Box<[AffinityTerm]>,
    /// Of preferred affinity, with their weights.
    pub preferred: Box<[(i64, AffinityTerm)]>,
    /// Of preferred anti-affinity, with their weights.
    pub preferred_anti: Box<[(i64, AffinityTerm)]>,
}

impl PodAffinity {
    /// Of the `affinity` of a pod in a namespace; `None` without any term.
    pub fn parse(namespace: &str, affinity: Option<&Value>) -> Option<Self> {
        let list = |path: &str| affinity?.pointer(path)?.as_array();
        let required = |kind: &str| -> Box<[AffinityTerm]> {
            let terms = list(&format!("/{kind}/requiredDuringSchedulingIgnoredDuringExecution"));
            terms.into_iter().flatten().map(|raw| AffinityTerm::parse(namespace, raw)).collect()
        };
        let preferred = |kind: &str| -> Box<[(i64, AffinityTerm)]> {
            let terms = list(&format!("/{kind}/preferredDuringSchedulingIgnoredDuringExecution"));
            let weight = |raw: &Value| raw["weight"].as_i64().unwrap_or_default();
            let terms = terms.into_iter().flatten();
            terms.map(|raw| (weight(raw), AffinityTerm::parse(namespace, &raw["podAffinityTerm"]))).collect()
        };
        let parsed = PodAffinity {
            required: required("podAffinity"),
            required_anti: required("podAntiAffinity"),
            preferred: preferred("podAffinity"),
            preferred_anti: preferred("podAntiAffinity"),
        };
        (parsed != PodAffinity::default()).then_some(parsed)
    }
}
