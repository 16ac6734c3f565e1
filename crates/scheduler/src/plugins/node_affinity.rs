//! NodeAffinity: node selectors, required and preferred node affinity. Source: Kubernetes, "Assigning pods to nodes".

use super::Plugin;
use crate::cache::{NodeInfo, PodInfo};
use kaji_runtime::objects::{Node, Pod};
use serde_json::Value;

/// The plugin's line in the table.
pub const PLUGIN: Plugin =
    Plugin { name: "NodeAffinity", filter: Some(filter), score: Some(score), weight: 2 };

fn filter(pod: &PodInfo, info: &NodeInfo) -> Vec<String> {
    if required(&pod.pod, &info.node) {
        return vec![];
    }
    vec!["node(s) didn't match Pod's node affinity/selector".into()]
}

fn score(pod: &PodInfo, info: &NodeInfo) -> i64 {
    preferred(&pod.pod, &info.node).min(100)
}

/// Whether a node satisfies a pod's node selector and required node affinity.
fn required(pod: &Pod, node: &Node) -> bool {
    let labels = &node.metadata.labels;
    if !pod.spec.node_selector.iter().all(|(k, v)| labels.get(k) == Some(v)) {
        return false;
    }
    let terms = pod.spec.affinity.as_ref().and_then(|a| {
        a.pointer("/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms")
    });
    terms.and_then(Value::as_array).is_none_or(|terms| terms.iter().any(|t| term(t, node)))
}

/// The weight of preferred terms that a node satisfies.
fn preferred(pod: &Pod, node: &Node) -> i64 {
    let list = pod
        .spec
        .affinity
        .as_ref()
        .and_then(|a| a.pointer("/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution"));
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|p| term(&p["preference"], node))
        .filter_map(|p| p["weight"].as_i64())
        .sum()
}

/// An empty term matches nothing.
fn term(term: &Value, node: &Node) -> bool {
    let list = |key: &str| term[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let (labels, fields) = (list("matchExpressions"), list("matchFields"));
    if labels.is_empty() && fields.is_empty() {
        return false;
    }
    labels.iter().all(|r| {
        requirement(r, node.metadata.labels.get(r["key"].as_str().unwrap_or_default()).map(String::as_str))
    }) && fields.iter().all(|r| {
        let value = (r["key"] == "metadata.name").then_some(node.metadata.name.as_str());
        requirement(r, value)
    })
}

fn requirement(requirement: &Value, value: Option<&str>) -> bool {
    let values = requirement["values"].as_array().map(Vec::as_slice).unwrap_or_default();
    let among = |v: &str| values.iter().any(|x| x == v);
    let number = |text: &str| text.parse::<i64>().ok();
    let compare = |f: fn(&i64, &i64) -> bool| {
        let wanted = values.first().and_then(Value::as_str).and_then(number);
        value.and_then(number).zip(wanted).is_some_and(|(a, b)| f(&a, &b))
    };
    match requirement["operator"].as_str().unwrap_or_default() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => false,
    }
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
        let fits = |terms: Value| {
            let pod: Pod = serde_json::from_value(json!({"spec": {"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}}))
            .unwrap();
            required(&pod, &node)
        };
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
        assert!(!fits(json!([{}])));
        assert!(fits(json!([{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}])));
    }
}
