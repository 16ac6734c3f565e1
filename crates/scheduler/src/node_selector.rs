//! Node selectors of pods and volumes: terms over a node's labels and its name, parsed once.
//!
//! Invariants:
//! - Terms are alternatives; the requirements of one must all hold; an empty term matches no node.
//! - A requirement that cannot be parsed matches no node.
//!
//! Source: Kubernetes, "Assigning pods to nodes"; API reference, `NodeSelector`.

use kaji_runtime::objects::Node;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Box<[String]>,
}

impl Requirement {
    fn parse(raw: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let operator = match raw["operator"].as_str().unwrap_or_default() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt,
            "Lt" => Operator::Lt,
            _ => Operator::Unknown,
        };
        let values = raw["values"].as_array().into_iter().flatten().map(text).collect();
        Requirement { key: text(&raw["key"]), operator, values }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let among = |v: &str| self.values.iter().any(|x| x == v);
        let number = |text: &str| text.parse::<i64>().ok();
        let compared = || value.and_then(number).zip(self.values.first().and_then(|v| number(v)));
        match self.operator {
            Operator::In => value.is_some_and(among),
            Operator::NotIn => !value.is_some_and(among),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => compared().is_some_and(|(a, b)| a > b),
            Operator::Lt => compared().is_some_and(|(a, b)| a < b),
            Operator::Unknown => false,
        }
    }
}

/// One alternative of a node selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeTerm {
    labels: Box<[Requirement]>,
    fields: Box<[Requirement]>,
}

impl NodeTerm {
    /// Of a `NodeSelectorTerm`.
    pub fn parse(raw: &Value) -> Self {
        let list = |key: &str| {
            raw[key].as_array().into_iter().flatten().map(Requirement::parse).collect::<Box<[_]>>()
        };
        NodeTerm { labels: list("matchExpressions"), fields: list("matchFields") }
    }

    /// Whether a node satisfies all its requirements.
    pub fn matches(&self, node: &Node) -> bool {
        if self.labels.is_empty() && self.fields.is_empty() {
            return false;
        }
        let field = |key: &str| (key == "metadata.name").then_some(node.metadata.name.as_str());
        self.labels.iter().all(|r| r.matches(node.metadata.labels.get(&r.key).map(String::as_str)))
            && self.fields.iter().all(|r| r.matches(field(&r.key)))
    }

    /// The names that it restricts nodes to, if it does.
    fn node_names(&self) -> Option<BTreeSet<&str>> {
        let names = self.fields.iter().filter(|r| r.key == "metadata.name" && r.operator == Operator::In);
        names
            .map(|r| r.values.iter().map(String::as_str).collect::<BTreeSet<_>>())
            .reduce(|a, b| a.intersection(&b).copied().collect())
    }
}

/// A `NodeSelector`: alternatives. One without terms matches no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSelector {
    terms: Box<[NodeTerm]>,
}

impl NodeSelector {
    /// Of a `NodeSelector`.
    pub fn parse(raw: &Value) -> Self {
        let terms = raw["nodeSelectorTerms"].as_array().into_iter().flatten();
        NodeSelector { terms: terms.map(NodeTerm::parse).collect() }
    }

    /// Whether a node satisfies one of the terms.
    pub fn matches(&self, node: &Node) -> bool {
        self.terms.iter().any(|term| term.matches(node))
    }

    /// The names of the only nodes that can match, if every term names some.
    pub fn node_names(&self) -> Option<BTreeSet<&str>> {
        let mut all = BTreeSet::new();
        for term in &self.terms {
            all.extend(term.node_names()?);
        }
        (!self.terms.is_empty()).then_some(all)
    }
}

/// Which nodes a pod can run on: `nodeSelector` and required node affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequiredNodes {
    labels: BTreeMap<String, String>,
    affinity: Option<NodeSelector>,
}

impl RequiredNodes {
    /// Of `spec.nodeSelector` and `spec.affinity`.
    pub fn parse(labels: &BTreeMap<String, String>, affinity: Option<&Value>) -> Self {
        let required =
            affinity.and_then(|a| a.pointer("/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"));
        let required = required.filter(|r| !r.is_null());
        RequiredNodes { labels: labels.clone(), affinity: required.map(NodeSelector::parse) }
    }

    /// Whether every node is right.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.affinity.is_none()
    }

    /// Whether a node is right.
    pub fn matches(&self, node: &Node) -> bool {
        self.labels.iter().all(|(key, value)| node.metadata.labels.get(key) == Some(value))
            && self.affinity.as_ref().is_none_or(|selector| selector.matches(node))
    }

    /// The names of the only nodes that can be right, if required affinity names some in every term.
    pub fn node_names(&self) -> Option<BTreeSet<&str>> {
        self.affinity.as_ref()?.node_names()
    }
}

/// Preferred node affinity: weights and terms. Terms without requirements or weight are left out.
pub fn preferred_terms(preferred: Option<&Value>) -> Box<[(i64, NodeTerm)]> {
    let terms = preferred.and_then(Value::as_array).into_iter().flatten();
    terms
        .map(|raw| (raw["weight"].as_i64().unwrap_or_default(), NodeTerm::parse(&raw["preference"])))
        .filter(|(weight, term)| *weight != 0 && !(term.labels.is_empty() && term.fields.is_empty()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn evaluates_operators() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"zone": "a", "size": "7"}}}))
                .unwrap();
        let fits = |terms: Value| NodeSelector::parse(&json!({"nodeSelectorTerms": terms})).matches(&node);
        let one = |key: &str, op: &str, values: Value| {
            fits(json!([{"matchExpressions": [{"key": key, "operator": op, "values": values}]}]))
        };
        assert!(one("zone", "In", json!(["b", "a"])));
        assert!(!one("zone", "NotIn", json!(["a"])));
        assert!(one("absent", "NotIn", json!(["a"])));
        assert!(one("size", "Gt", json!(["6"])) && !one("size", "Lt", json!(["7"])));
        assert!(!one("zone", "Gt", json!(["6"])));
        assert!(fits(
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}])
        ));
        assert!(!fits(json!([{}])) && !fits(json!([])));
        assert!(fits(json!([{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}])));
    }

    #[test]
    fn names_the_only_nodes_that_can_match() {
        let names = |terms: Value| {
            let selector = NodeSelector::parse(&json!({"nodeSelectorTerms": terms}));
            selector.node_names().map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        let name = |values: Value| json!({"key": "metadata.name", "operator": "In", "values": values});
        let term = |requirements: &[Value]| json!({"matchFields": requirements});
        assert_eq!(
            names(json!([term(&[name(json!(["b", "a"]))]), term(&[name(json!(["c"]))])])).unwrap(),
            ["a", "b", "c"]
        );
        assert_eq!(
            names(json!([term(&[name(json!(["a"])), name(json!(["b"]))])])).unwrap(),
            Vec::<String>::new()
        );
        assert_eq!(names(json!([term(&[name(json!(["a"]))]), {"matchExpressions": []}])), None);
    }
}
