//! Objects that an API server of upstream stored in a version that is not served any more, with the members of one that is: a
//! cluster that was upgraded keeps them in etcd until they are written again.
//!
//! Invariant: what is read has the name of the served version, and means what it meant in its own.
//!
//! Source: the messages in upstream's `generated.proto` of both versions have equal numbers and types; conversions of the rest.

use serde_json::{Map, Value, json};

/// Kinds that were stored in former versions, a line each: the group, versions, and kinds of which the members are those of `v1`.
const TABLE: &str = include_str!("former.txt");
const SERVED: &str = "v1";
const BUDGET: &str = "PodDisruptionBudget";

/// A line of [`TABLE`].
struct Former<'a> {
    group: &'a str,
    versions: &'a str,
    kinds: &'a str,
}

impl Former<'static> {
    fn all() -> impl Iterator<Item = Self> {
        TABLE.lines().filter_map(|line| {
            let (group, rest) = line.split_once(' ')?;
            let (versions, kinds) = rest.split_once(' ')?;
            Some(Former { group, versions, kinds })
        })
    }
}

/// The served version, with its group, that has the members of this one.
pub(crate) fn served(api_version: &str, kind: &str) -> Option<String> {
    let (group, version) = api_version.split_once('/')?;
    let is_it = |row: Former<'_>| {
        row.group == group
            && row.versions.split(',').any(|v| v == version)
            && row.kinds.split(' ').any(|k| k == kind)
    };
    Former::all().any(is_it).then(|| format!("{group}/{SERVED}"))
}

/// Changes what has the same members, and means something else: an object that was stored in this version.
pub(crate) fn adapt(api_version: &str, kind: &str, object: &mut Value) {
    match (api_version, kind) {
        ("policy/v1beta1", BUDGET) => {
            if let Some(selector) = object.pointer_mut("/spec/selector").and_then(Value::as_object_mut) {
                budget_selector(selector);
            }
        }
        ("flowcontrol.apiserver.k8s.io/v1beta1" | "flowcontrol.apiserver.k8s.io/v1beta2", _) => {
            // The same number of the message, and another name in JSON.
            if let Some(limited) = object.pointer_mut("/spec/limited").and_then(Value::as_object_mut)
                && let Some(shares) = limited.remove("assuredConcurrencyShares")
            {
                limited.insert("nominalConcurrencyShares".into(), shares);
            }
        }
        _ => {}
    }
}

/// Upstream's key for "all pods" in `v1beta1`, and for "no pods" in what came from there.
const EMPTY_SELECTOR: &str = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match";

/// An empty selector was that of no pods, and is that of all pods.
fn budget_selector(selector: &mut Map<String, Value>) {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    if selector.values().all(is_empty) {
        let never = json!([{"key": EMPTY_SELECTOR, "operator": "Exists"}]);
        selector.insert("matchExpressions".into(), never);
        return;
    }
    if let Some(Value::Array(requirements)) = selector.get_mut("matchExpressions") {
        requirements.retain(|requirement| requirement["key"] != EMPTY_SELECTOR);
    }
    selector.retain(|_, value| !is_empty(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::{Defaults, json as read};
    use bytes::Bytes;
    use kaji_schema::{SchemaRef, protobuf, types};
    use std::sync::Arc;

    /// What is read of an object that was stored as protobuf, and as JSON, in a former version.
    fn both(former: &str, object: &Value) -> [Value; 2] {
        let none: Defaults = Arc::new(|_, _, _| {});
        let kind = object["kind"].as_str().unwrap();
        let served = served(former, kind).unwrap();
        let (group, version) = served.split_once('/').unwrap();
        let schema = SchemaRef::Named(types::entry_for_gvk(group, version, kind).unwrap());
        let binary = protobuf::object(&schema, former, kind, object).unwrap();
        let mut text = object.clone();
        text["apiVersion"] = former.into();
        let text = format!("{text}\n");
        [Bytes::from(binary), text.into()]
            .map(|value| serde_json::from_slice(&read("/registry/x", value, &none).unwrap()).unwrap())
    }

    #[test]
    fn every_row_is_of_versions_that_are_not_served() {
        let known = |group, version, kind| types::entry_for_gvk(group, version, kind).is_some();
        assert_eq!(Former::all().count(), TABLE.lines().count());
        for Former { group, versions, kinds } in Former::all() {
            for kind in kinds.split(' ') {
                assert!(known(group, SERVED, kind), "{group}/{SERVED} {kind}");
                assert!(!versions.split(',').any(|version| known(group, version, kind)), "{group} {kind}");
            }
        }
    }

    #[test]
    fn a_former_version_is_read_as_the_served_one() {
        let address = json!({"kind": "IPAddress", "metadata": {"name": "10.0.0.1"},
            "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "kubernetes"}}});
        for read in both("networking.k8s.io/v1beta1", &address) {
            assert_eq!(read["apiVersion"], "networking.k8s.io/v1");
            assert_eq!(read["spec"], address["spec"]);
        }
        let binary = json!({"kind": "PriorityLevelConfiguration", "metadata": {"name": "a"},
            "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 7}}});
        let [read, _] = both("flowcontrol.apiserver.k8s.io/v1beta2", &binary);
        assert_eq!(read["spec"]["limited"]["nominalConcurrencyShares"], 7);
        let mut text = binary;
        text["spec"]["limited"] = json!({"assuredConcurrencyShares": 7});
        adapt("flowcontrol.apiserver.k8s.io/v1beta2", "PriorityLevelConfiguration", &mut text);
        assert_eq!(text["spec"]["limited"], json!({"nominalConcurrencyShares": 7}));
        assert_eq!(served("networking.k8s.io/v1beta1", "Ingress"), None);
        assert_eq!(served("v1", "Pod"), None);
    }

    #[test]
    fn an_empty_selector_of_a_former_budget_selects_no_pods() {
        let read = |selector: Value| {
            let budget = json!({"kind": BUDGET, "metadata": {"name": "a", "namespace": "b"},
                "spec": {"minAvailable": 1, "selector": selector}});
            let [binary, text] = both("policy/v1beta1", &budget);
            assert_eq!(binary["spec"]["selector"], text["spec"]["selector"]);
            assert_eq!(binary["apiVersion"], "policy/v1");
            binary["spec"]["selector"].clone()
        };
        let exists = json!({"key": EMPTY_SELECTOR, "operator": "Exists"});
        let absent = json!({"key": EMPTY_SELECTOR, "operator": "DoesNotExist"});
        assert_eq!(read(json!({})), json!({"matchExpressions": [exists]}));
        assert_eq!(read(json!({"matchExpressions": [absent]})), json!({}));
        let labels = json!({"matchLabels": {"a": "b"}});
        assert_eq!(read(labels.clone()), labels);
        let with_key = json!({"matchLabels": {"a": "b", EMPTY_SELECTOR: ""}});
        assert_eq!(read(with_key.clone()), with_key, "upstream's key is one of expressions only");
        assert_eq!(read(json!({"matchLabels": {"a": "b"}, "matchExpressions": [absent]})), labels);
        assert_eq!(read(Value::Null), Value::Null);
    }
}
