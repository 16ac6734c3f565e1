//! Node selectors as projected objects carry them.
//!
//! Invariant: a selector without terms, and a term without requirements, select no node.

use crate::Meta;
use serde::Deserialize;

/// A requirement of a label or field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct NodeRequirement {
    /// The label or field.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`
    pub operator: String,
    /// What it is compared with.
    pub values: Vec<String>,
}

impl NodeRequirement {
    /// Whether a value, if there is one, is as required.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|v| v == value);
        // Upstream compares integers of 64 bits; anything else is neither above nor below.
        let compared = |holds: fn(&i64, &i64) -> bool| {
            let number = |text: &str| text.parse::<i64>().ok();
            let (Some(value), [limit]) = (value.and_then(number), &self.values[..]) else { return false };
            number(limit).is_some_and(|limit| holds(&value, &limit))
        };
        match self.operator.as_str() {
            "In" => value.is_some_and(listed),
            "NotIn" => !value.is_some_and(listed),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compared(i64::gt),
            "Lt" => compared(i64::lt),
            _ => false,
        }
    }
}

/// Requirements that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// Of labels.
    pub match_expressions: Vec<NodeRequirement>,
    /// Of fields, of which there is one: `metadata.name`.
    pub match_fields: Vec<NodeRequirement>,
}

impl NodeSelectorTerm {
    /// Whether a node is selected.
    pub fn matches(&self, node: &Meta) -> bool {
        let label = |r: &NodeRequirement| r.matches(node.labels.get(&r.key).map(String::as_str));
        let field = |r: &NodeRequirement| r.key == "metadata.name" && r.matches(Some(&node.name));
        !(self.match_expressions.is_empty() && self.match_fields.is_empty())
            && self.match_expressions.iter().all(label)
            && self.match_fields.iter().all(field)
    }
}

/// Terms of which one must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    /// The terms.
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

impl NodeSelector {
    /// Whether a node is selected.
    pub fn matches(&self, node: &Meta) -> bool {
        self.node_selector_terms.iter().any(|term| term.matches(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selects_nodes() {
        let node: Meta =
            serde_json::from_value(json!({"name": "n", "labels": {"zone": "a", "cpus": "8"}})).unwrap();
        let term = |expressions: serde_json::Value, fields: serde_json::Value| {
            let selector = json!({"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
                {"matchExpressions": expressions, "matchFields": fields},
            ]});
            serde_json::from_value::<NodeSelector>(selector).unwrap().matches(&node)
        };
        let one = |key: &str, operator: &str, values: &[&str]| {
            term(json!([{"key": key, "operator": operator, "values": values}]), json!([]))
        };
        assert!(one("zone", "In", &["b", "a"]) && !one("zone", "In", &["b"]) && !one("x", "In", &["a"]));
        assert!(one("x", "NotIn", &["a"]) && !one("zone", "NotIn", &["a"]));
        assert!(one("zone", "Exists", &[]) && one("x", "DoesNotExist", &[]) && !one("x", "Exists", &[]));
        assert!(one("cpus", "Gt", &["7"]) && !one("cpus", "Lt", &["8"]) && !one("zone", "Gt", &["1"]));
        assert!(!one("zone", "Like", &["a"]));
        let name = |name: &str| json!([{"key": "metadata.name", "operator": "In", "values": [name]}]);
        assert!(term(json!([]), name("n")) && !term(json!([]), name("m")) && !term(json!([]), json!([])));
        assert!(!NodeSelector::default().matches(&node));
    }
}
