//! `RuntimeClass`, `DefaultTolerationSeconds` and `ExtendedResourceToleration`: what pods get besides their priority.

use super::{
    find, is,
    pod::{LISTS, containers},
};
use kaji_engine::{Admission, Attributes, Operation};
use kaji_meta::{GroupResource, Quantity, Status, object, semantic_equal, text::quote, validation};
use kaji_resource::BoxFuture;
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// The plugin.
pub(super) struct RuntimeClass;

impl Admission for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.operation == Operation::Create && is(a, "", "pods")
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(class) = class_of(a).await? else { return Ok(()) };
            set_overhead(a, &class["overhead"]["podFixed"])?;
            set_scheduling(a, &class["scheduling"])
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let class = class_of(a).await?;
            let wanted =
                class.as_ref().filter(|c| c["overhead"].is_object()).map(|c| &c["overhead"]["podFixed"]);
            let given = a.new_object().map_or(&Value::Null, |pod| &pod["spec"]["overhead"]);
            match wanted {
                Some(wanted) if !same(wanted, given) => Err(a.forbidden(DIFFERS)),
                None if !given.is_null() => Err(a.forbidden(
                    "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
                )),
                _ => Ok(()),
            }
        })
    }
}

const DIFFERS: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

async fn class_of(a: &Attributes<'_>) -> Result<Option<Arc<Value>>, Status> {
    let Some(name) =
        a.new_object().and_then(|pod| pod["spec"]["runtimeClassName"].as_str()).map(str::to_owned)
    else {
        return Ok(None);
    };
    match find(a, &GroupResource::new("node.k8s.io", "runtimeclasses"), &name).await? {
        Some(class) => Ok(Some(class)),
        None => Err(a.forbidden(format!("pod rejected: RuntimeClass {} not found", quote(&name)))),
    }
}

/// Whether two resource lists have the same names and amounts.
fn same(a: &Value, b: &Value) -> bool {
    let empty = Map::new();
    let (a, b) = (a.as_object().unwrap_or(&empty), b.as_object().unwrap_or(&empty));
    let amount = |v: &Value| Quantity::from_value(v).ok();
    a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| v == w || amount(v) == amount(w)))
}

fn set_overhead(a: &mut Attributes<'_>, fixed: &Value) -> Result<(), Status> {
    if fixed.is_null() {
        return Ok(());
    }
    let given = a.new_object().map_or(&Value::Null, |pod| &pod["spec"]["overhead"]);
    if given.as_object().is_some_and(|g| !g.is_empty()) && !same(given, fixed) {
        return Err(a.forbidden(DIFFERS));
    }
    if let Some(pod) = a.object.as_deref_mut() {
        object::set_at(pod, &["spec", "overhead"], fixed.clone());
    }
    Ok(())
}

fn set_scheduling(a: &mut Attributes<'_>, scheduling: &Value) -> Result<(), Status> {
    if !scheduling.is_object() {
        return Ok(());
    }
    let pod = a.new_object().unwrap_or(&Value::Null);
    for (key, value) in object::str_map_at(scheduling, &["nodeSelector"]) {
        if let Some(given) = pod["spec"]["nodeSelector"][key].as_str().filter(|g| *g != value) {
            return Err(a.forbidden(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {given}"
            )));
        }
    }
    let tolerations =
        merged(object::arr_at(pod, &["spec", "tolerations"]), object::arr_at(scheduling, &["tolerations"]));
    let Some(pod) = a.object.as_deref_mut() else { return Ok(()) };
    for (key, value) in object::str_map_at(scheduling, &["nodeSelector"]) {
        object::set_at(pod, &["spec", "nodeSelector", key], value);
    }
    if !tolerations.is_empty() {
        object::set_at(pod, &["spec", "tolerations"], tolerations);
    }
    Ok(())
}

/// Both lists without tolerations that another one includes; of equal ones the first stays.
fn merged(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut out: Vec<Value> = vec![];
    for (i, t) in all.iter().enumerate() {
        let later = all[i + 1..].iter().any(|other| !semantic_equal(t, other) && includes(other, t));
        if !later && !out.iter().any(|kept| includes(kept, t)) {
            out.push((*t).clone());
        }
    }
    out
}

/// Whether a toleration tolerates all that another one does.
fn includes(wide: &Value, narrow: &Value) -> bool {
    if semantic_equal(wide, narrow) {
        return true;
    }
    let text = |v: &'_ Value, field: &str| v[field].as_str().unwrap_or_default().to_owned();
    let (operator, key, effect) = (text(wide, "operator"), text(wide, "key"), text(wide, "effect"));
    if key != text(narrow, "key") && !(key.is_empty() && operator == "Exists") {
        return false;
    }
    if !effect.is_empty() && effect != text(narrow, "effect") {
        return false;
    }
    if effect == "NoExecute"
        && let Some(limit) = wide["tolerationSeconds"].as_i64()
        && narrow["tolerationSeconds"].as_i64().is_none_or(|s| s > limit)
    {
        return false;
    }
    match operator.as_str() {
        "Exists" => true,
        "Equal" | "" => text(narrow, "operator") == "Equal" && wide["value"] == narrow["value"],
        _ => false,
    }
}

/// The plugin.
pub(super) struct DefaultTolerationSeconds;

/// How long a pod stays on a node that is not ready or out of reach, unless it says otherwise. Seconds.
const GRACE: i64 = 300;

impl Admission for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        matches!(a.operation, Operation::Create | Operation::Update) && is(a, "", "pods")
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        if let Some(pod) = a.object.as_deref_mut() {
            tolerate(pod);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

fn tolerate(pod: &mut Value) {
    let mut list = object::arr_at(pod, &["spec", "tolerations"]).to_vec();
    let given = list.len();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let either = |t: &Value, field: &str, wanted: &str| {
            matches!(t[field].as_str(), None | Some("")) || t[field] == wanted
        };
        if !list[..given].iter().any(|t| either(t, "key", key) && either(t, "effect", "NoExecute")) {
            list.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": GRACE}),
            );
        }
    }
    if list.len() > given {
        object::set_at(pod, &["spec", "tolerations"], list);
    }
}

/// The plugin.
pub(super) struct ExtendedResourceToleration;

impl Admission for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        "ExtendedResourceToleration"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        matches!(a.operation, Operation::Create | Operation::Update) && is(a, "", "pods")
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        if let Some(pod) = a.object.as_deref_mut() {
            tolerate_extended(pod);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Whether a resource is neither Kubernetes' own nor one that quotas alone know.
fn extended(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native
        && !name.starts_with("requests.")
        && validation::is_qualified_name(&format!("requests.{name}")).is_empty()
}

/// Nodes with extended resources may be tainted by them; who asks for one tolerates that.
fn tolerate_extended(pod: &mut Value) {
    let all = LISTS[..2].iter().flat_map(|list| containers(pod, list));
    let requests = all.filter_map(|c| object::obj_at(c, &["resources", "requests"]));
    let names: BTreeSet<String> = requests.flat_map(|r| r.keys()).filter(|n| extended(n)).cloned().collect();
    if names.is_empty() {
        return;
    }
    let mut list = object::arr_at(pod, &["spec", "tolerations"]).to_vec();
    for name in names {
        let own = json!({"key": name, "operator": "Exists", "effect": "NoSchedule"});
        let same = |t: &Value| {
            let value = t["value"].as_str().unwrap_or_default();
            ["key", "operator", "effect"].iter().all(|f| t[f] == own[f]) && value.is_empty()
        };
        match list.iter_mut().find(|t| same(t)) {
            Some(there) => *there = own,
            None => list.push(own),
        }
    }
    object::set_at(pod, &["spec", "tolerations"], list);
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn keys(pod: &Value) -> String {
        let list = object::arr_at(pod, &["spec", "tolerations"]);
        list.iter().map(|t| format!("{}:{}", t["key"], t["tolerationSeconds"])).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn pods_tolerate_troubled_nodes_for_a_while() {
        let mut pod = json!({"spec": {}});
        tolerate(&mut pod);
        expect![[r#""node.kubernetes.io/not-ready":300 "node.kubernetes.io/unreachable":300"#]]
            .assert_eq(&keys(&pod));
        let once = pod.clone();
        tolerate(&mut pod);
        assert_eq!(pod, once);
        let mut all = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        tolerate(&mut all);
        assert_eq!(keys(&all), "null:null");
        let mut other = json!({"spec": {"tolerations": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/unreachable", "tolerationSeconds": 1}]}});
        tolerate(&mut other);
        expect![[r#""node.kubernetes.io/not-ready":null "node.kubernetes.io/unreachable":1 "node.kubernetes.io/not-ready":300"#]]
            .assert_eq(&keys(&other));
    }

    #[test]
    fn merging_keeps_the_wider_toleration() {
        let exists = json!({"key": "a", "operator": "Exists"});
        let equal = json!({"key": "a", "operator": "Equal", "value": "x"});
        let brief = json!({"key": "b", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
        let long = json!({"key": "b", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9});
        let one = |v: &Value| vec![v.clone()];
        assert_eq!(merged(&one(&equal), &one(&exists)), one(&exists));
        assert_eq!(merged(&one(&exists), &one(&equal)), one(&exists));
        assert_eq!(merged(&one(&exists), &one(&exists)), one(&exists));
        assert_eq!(merged(&one(&brief), &one(&long)), one(&long));
        assert_eq!(merged(&one(&equal), &one(&brief)).len(), 2);
        assert_eq!(merged(&[brief, equal], &one(&json!({"operator": "Exists"}))).len(), 1);
    }

    #[test]
    fn amounts_are_compared_by_value() {
        assert!(same(&json!({"cpu": "100m"}), &json!({"cpu": "0.1"})));
        assert!(!same(&json!({"cpu": "100m"}), &json!({"cpu": "1"})));
        assert!(!same(&json!({"cpu": "1"}), &Value::Null));
    }

    #[test]
    fn who_asks_for_a_device_tolerates_its_taint() {
        let mut pod = json!({"spec": {"tolerations": [{"key": "a.io/x", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}],
            "containers": [{"resources": {"requests": {"cpu": "1", "b.io/y": "1", "a.io/x": "1", "kubernetes.io/z": "1"}}}]}});
        tolerate_extended(&mut pod);
        let one = |name: &str| json!({"key": name, "operator": "Exists", "effect": "NoSchedule"});
        assert_eq!(pod["spec"]["tolerations"], json!([one("a.io/x"), one("b.io/y")]));
        let once = pod.clone();
        tolerate_extended(&mut pod);
        assert_eq!(pod, once);
    }
}
