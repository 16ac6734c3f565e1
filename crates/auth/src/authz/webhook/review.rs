//! A request as a SubjectAccessReview, and the decision in its response.

use super::Answer;
use crate::authz::Attributes;
use kaji_meta::{fields, labels};
use serde_json::{Map, Value, json};

/// Adds what is not empty, as upstream's encoder does.
fn put(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    let value = value.into();
    let empty = match &value {
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    };
    if !empty {
        map.insert(key.to_owned(), value);
    }
}

/// The review to send, in `v1` or `v1beta1`.
pub fn of(a: &Attributes<'_>, version: &str) -> Value {
    let mut spec = Map::new();
    if a.is_resource() {
        let mut r = Map::new();
        for (key, value) in [
            ("namespace", a.namespace),
            ("verb", a.verb),
            ("group", a.group),
            ("version", a.version),
            ("resource", a.resource),
            ("subresource", a.subresource),
            ("name", a.name),
        ] {
            put(&mut r, key, value);
        }
        for (key, requirements) in
            [("fieldSelector", by_field(a.field_selector)), ("labelSelector", by_label(a.label_selector))]
        {
            if !requirements.is_empty() {
                r.insert(key.to_owned(), json!({"requirements": requirements}));
            }
        }
        spec.insert("resourceAttributes".to_owned(), r.into());
    } else {
        let mut path = Map::new();
        put(&mut path, "path", a.path);
        put(&mut path, "verb", a.verb);
        spec.insert("nonResourceAttributes".to_owned(), path.into());
    }
    put(&mut spec, "user", a.user.name.as_str());
    // The field has another name in v1beta1.
    put(&mut spec, if version == "v1" { "groups" } else { "group" }, a.user.groups.clone());
    let extra: Map<String, Value> = a.user.extra.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
    put(&mut spec, "extra", extra);
    put(&mut spec, "uid", a.user.uid.as_str());
    json!({
        "apiVersion": format!("authorization.k8s.io/{version}"),
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": spec,
        "status": {"allowed": false},
    })
}

/// Requirements of a field selector.
pub(super) fn by_field(selector: Option<&fields::Selector>) -> Vec<Value> {
    let requirement = |t: &fields::Term| {
        let operator = if t.op == fields::Operator::Equals { "In" } else { "NotIn" };
        json!({"key": t.field, "operator": operator, "values": [t.value]})
    };
    selector.map_or(&[][..], fields::Selector::terms).iter().map(requirement).collect()
}

pub(super) fn by_label(selector: Option<&labels::Selector>) -> Vec<Value> {
    use labels::Operator::{DoesNotExist, DoubleEquals, Equals, Exists, In, NotEquals, NotIn};
    let requirement = |r: &labels::Requirement| {
        let operator = match r.operator() {
            Equals | DoubleEquals | In => "In",
            NotEquals | NotIn => "NotIn",
            Exists => "Exists",
            DoesNotExist => "DoesNotExist",
            _ => return None,
        };
        let mut map = Map::new();
        put(&mut map, "key", r.key());
        put(&mut map, "operator", operator);
        put(&mut map, "values", r.values().to_vec());
        Some(map.into())
    };
    selector.map_or(&[][..], labels::Selector::requirements).iter().filter_map(requirement).collect()
}

/// What a review's status says.
pub(super) fn answer(review: &Value) -> Result<Answer, String> {
    let text = |field: &str| review.get(field).and_then(Value::as_str).unwrap_or_default();
    // A response without a version counts as one of the requested version.
    let (version, kind) = (text("apiVersion"), text("kind"));
    let known = ["", "authorization.k8s.io/v1", "authorization.k8s.io/v1beta1"].contains(&version);
    if !review.is_object() || !known || !["", "SubjectAccessReview"].contains(&kind) {
        return Err(format!("no SubjectAccessReview was answered, but {kind:?} of {version:?}"));
    }
    let status = review.get("status").unwrap_or(&Value::Null);
    let flag = |field: &str| match status.get(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(format!("status.{field} of the answer is {other}")),
    };
    let reason = status.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Answer { allowed: flag("allowed")?, denied: flag("denied")?, reason })
}
