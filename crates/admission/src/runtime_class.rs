//! `RuntimeClass`: a pod gets the overhead, node selector and tolerations of its runtime class.

use super::find;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Quantity, Status, object, semantic_equal, text::quote};
use kaji_resource::BoxFuture;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The plugin.
pub(super) struct RuntimeClass;

impl Admission for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::BOTH.when(operation == Operation::Create && (group, resource) == ("", "pods"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
}
