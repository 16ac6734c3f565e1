//! `LimitRanger`: containers get a namespace's defaults, and what requests too little or too much is refused.
//!
//! Invariant: names are visited in order, so texts do not change from one try to the next.

use crate::pod_spec::containers;
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Quantity, Status, object};
use kaji_quota::{Demand, Usage, amounts, limits, requests};
use kaji_resource::BoxFuture;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Says what was set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The plugin.
pub(super) struct LimitRanger;

impl Admission for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let phases = match (group, resource) {
            ("", "pods") => Phases::BOTH,
            ("", "persistentvolumeclaims") => Phases::VALIDATING,
            _ => Phases::NONE,
        };
        phases.when(matches!(operation, Operation::Create | Operation::Update))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        if a.old.is_some_and(|o| object::deletion_timestamp(o).is_some()) {
            return false;
        }
        match (a.resource.resource.as_str(), a.subresource) {
            // Containers of pods change only through resize.
            ("pods", "") => a.operation == Operation::Create,
            ("pods", "resize") => a.operation == Operation::Update,
            (_, subresource) => subresource.is_empty(),
        }
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let ranges = ranges(a).await?;
            if let Some(pod) = a.object.as_deref_mut() {
                ranges.iter().for_each(|range| fill(pod, range));
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let Some(o) = a.new_object() else { return Ok(()) };
            for range in ranges(a).await? {
                let mut errors = match a.resource.resource.as_str() {
                    "pods" => check_pod(o, &range),
                    _ => check_claim(o, &range),
                };
                let mut seen = std::collections::HashSet::new();
                errors.retain(|e| seen.insert(e.clone()));
                match errors.as_slice() {
                    [] => {}
                    [one] => return Err(a.forbidden(one)),
                    many => return Err(a.forbidden(format!("[{}]", many.join(", ")))),
                }
            }
            Ok(())
        })
    }
}

async fn ranges(a: &Attributes<'_>) -> Result<Vec<Arc<Value>>, Status> {
    crate::read_own_writes(a.api).await?;
    Ok(a.api.list(&GroupResource::new("", "limitranges"), Some(a.namespace)))
}

/// The limits of one type.
fn items<'a>(range: &'a Value, ty: &str) -> impl Iterator<Item = &'a Value> {
    object::arr_at(range, &["spec", "limits"]).iter().filter(move |l| l["type"] == ty)
}

/// Gives containers what they do not say, and notes that on the pod.
fn fill(pod: &mut Value, range: &Value) {
    let default = |field: &str| -> Map<String, Value> {
        items(range, "Container").filter_map(|l| l[field].as_object().cloned()).flatten().collect()
    };
    let (requests, limits) = (default("defaultRequest"), default("default"));
    let mut notes = vec![];
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        let Some(Value::Array(all)) = pod.get_mut("spec").and_then(|s| s.get_mut(list)) else { continue };
        for container in all {
            let name = object::str_at(container, &["name"]).to_owned();
            for (kind, noun, defaults) in [("requests", "request", &requests), ("limits", "limit", &limits)] {
                let given = object::obj_at(container, &["resources", kind]);
                let missing: Vec<(String, Value)> = defaults
                    .iter()
                    .filter(|(k, _)| given.is_none_or(|g| !g.contains_key(*k)))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                if missing.is_empty() {
                    continue;
                }
                let mut names: Vec<&str> = missing.iter().map(|(k, _)| k.as_str()).collect();
                names.sort_unstable();
                notes.push(format!("{} {noun} for {what} {name}", names.join(", ")));
                object::map_mut_at(container, &["resources", kind]).extend(missing);
            }
        }
    }
    if !notes.is_empty() {
        let text = format!("LimitRanger plugin set: {}", notes.join("; "));
        object::map_mut_at(pod, &["metadata", "annotations"]).insert(ANNOTATION.into(), text.into());
    }
}

/// Requests and limits, to be compared with the allowed ranges.
struct Requested {
    ty: &'static str,
    requests: Usage,
    limits: Usage,
}

/// Milli values exist up to here; above, whole ones are compared.
const MOST_MILLI: i64 = i64::MAX / 1000;

/// Amounts in one unit, as exactly as all of them allow; missing ones count as nothing.
fn comparable<const N: usize>(amounts: [Option<&Quantity>; N]) -> [i64; N] {
    let whole = amounts.map(|q| q.map_or(0, Quantity::value));
    if whole.iter().all(|v| *v <= MOST_MILLI) {
        return amounts.map(|q| q.map_or(0, Quantity::milli_value));
    }
    whole
}

impl Requested {
    fn min(&self, name: &str, least: &Quantity) -> Option<String> {
        let (request, limit) = (self.requests.get(name), self.limits.get(name));
        let text = format!("minimum {name} usage per {} is {least}", self.ty);
        let Some(given) = request else { return Some(format!("{text}.  No request is specified")) };
        let [r, l, least] = comparable([request, limit, Some(least)]);
        if r < least {
            return Some(format!("{text}, but request is {given}"));
        }
        limit.filter(|_| l < least).map(|given| format!("{text}, but limit is {given}"))
    }

    fn max(&self, name: &str, most: &Quantity) -> Option<String> {
        let (request, limit) = (self.requests.get(name), self.limits.get(name));
        let text = format!("maximum {name} usage per {} is {most}", self.ty);
        let Some(given) = limit else { return Some(format!("{text}.  No limit is specified")) };
        let [r, l, most] = comparable([request, limit, Some(most)]);
        if l > most {
            return Some(format!("{text}, but limit is {given}"));
        }
        request.filter(|_| r > most).map(|given| format!("{text}, but request is {given}"))
    }

    /// The same for claims, which have no limits.
    fn max_request(&self, name: &str, most: &Quantity) -> Option<String> {
        let request = self.requests.get(name);
        let text = format!("maximum {name} usage per {} is {most}", self.ty);
        let Some(given) = request else { return Some(format!("{text}.  No request is specified")) };
        let [r, most] = comparable([request, Some(most)]);
        (r > most).then(|| format!("{text}, but request is {given}"))
    }

    fn ratio(&self, name: &str, most: &Quantity) -> Option<String> {
        let text = format!("{name} max limit to request ratio per {} is {most}", self.ty);
        let [r, l, _] = comparable([self.requests.get(name), self.limits.get(name), Some(most)]);
        if r == 0 {
            return Some(format!("{text}, but no request is specified or request is 0"));
        }
        if l == 0 {
            return Some(format!("{text}, but no limit is specified or limit is 0"));
        }
        let ratio = l as f64 / r as f64;
        let over = if most.value() <= MOST_MILLI {
            ratio * 1000.0 > most.milli_value() as f64
        } else {
            ratio > most.value() as f64
        };
        over.then(|| format!("{text}, but provided ratio is {ratio:.6}"))
    }

    fn check(&self, limit: &Value, errors: &mut Vec<String>) {
        let of = |field: &str| amounts(limit.get(field));
        errors.extend(of("min").iter().filter_map(|(name, q)| self.min(name, q)));
        errors.extend(of("max").iter().filter_map(|(name, q)| self.max(name, q)));
        errors.extend(of("maxLimitRequestRatio").iter().filter_map(|(name, q)| self.ratio(name, q)));
    }
}

fn check_pod(pod: &Value, range: &Value) -> Vec<String> {
    let mut errors = vec![];
    for limit in object::arr_at(range, &["spec", "limits"]) {
        match object::str_at(limit, &["type"]) {
            "Container" => {
                for container in ["containers", "initContainers"].iter().flat_map(|l| containers(pod, l)) {
                    let of = |kind| amounts(object::at(container, &["resources", kind]));
                    let requested =
                        Requested { ty: "Container", requests: of("requests"), limits: of("limits") };
                    requested.check(limit, &mut errors);
                }
            }
            "Pod" => {
                let plain = Demand::default();
                let requested =
                    Requested { ty: "Pod", requests: requests(pod, plain), limits: limits(pod, plain) };
                requested.check(limit, &mut errors);
            }
            _ => {}
        }
    }
    errors
}

fn check_claim(claim: &Value, range: &Value) -> Vec<String> {
    let requests = amounts(object::at(claim, &["spec", "resources", "requests"]));
    let requested = Requested { ty: "PersistentVolumeClaim", requests, limits: Usage::new() };
    let mut errors = vec![];
    for limit in items(range, requested.ty) {
        errors.extend(amounts(limit.get("min")).iter().filter_map(|(name, q)| requested.min(name, q)));
        errors
            .extend(amounts(limit.get("max")).iter().filter_map(|(name, q)| requested.max_request(name, q)));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn range(limits: Value) -> Value {
        json!({"spec": {"limits": limits}})
    }

    #[test]
    fn containers_get_defaults() {
        let mut pod = json!({"metadata": {}, "spec": {
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}, {"name": "b"}],
            "initContainers": [{"name": "i", "resources": {"requests": {"memory": "1"}, "limits": {"cpu": "2", "memory": "3"}}}],
        }});
        let range = range(json!([
            {"type": "Pod", "default": {"cpu": "7"}},
            {"type": "Container", "default": {"cpu": "300m", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}},
        ]));
        fill(&mut pod, &range);
        expect!["LimitRanger plugin set: cpu, memory limit for container a; cpu request for container b; cpu, memory limit for container b; cpu request for init container i"]
            .assert_eq(object::annotation(&pod, ANNOTATION).unwrap());
        expect![[r#"{"limits":{"cpu":"300m","memory":"1Gi"},"requests":{"cpu":"1"}}"#]]
            .assert_eq(&pod["spec"]["containers"][0]["resources"].to_string());
        let once = pod.clone();
        fill(&mut pod, &range);
        assert_eq!(pod, once);
    }

    fn one(limit: Value, resources: Value) -> String {
        let pod = json!({"spec": {"containers": [{"name": "a", "resources": resources}]}});
        check_pod(&pod, &range(json!([limit]))).join("\n")
    }

    #[test]
    fn rejects_requests_outside_of_the_limits() {
        let container = |field: &str, q: &str| json!({"type": "Container", field: {"cpu": q}});
        let ask = |r: &str, l: &str| json!({"requests": {"cpu": r}, "limits": {"cpu": l}});
        assert_eq!(one(container("min", "100m"), ask("100m", "0.1")), "");
        expect!["minimum cpu usage per Container is 100m, but request is 50m"]
            .assert_eq(&one(container("min", "100m"), ask("50m", "1")));
        expect!["minimum cpu usage per Container is 100m.  No request is specified"]
            .assert_eq(&one(container("min", "100m"), json!({})));
        expect!["maximum cpu usage per Container is 1, but limit is 2"]
            .assert_eq(&one(container("max", "1"), ask("500m", "2")));
        expect!["maximum cpu usage per Container is 1, but request is 3"]
            .assert_eq(&one(container("max", "1"), ask("3", "1")));
        expect!["maximum cpu usage per Container is 1.  No limit is specified"]
            .assert_eq(&one(container("max", "1"), json!({"requests": {"cpu": "1"}})));
        assert_eq!(one(container("maxLimitRequestRatio", "1.5"), ask("2", "3")), "");
        expect!["cpu max limit to request ratio per Container is 1500m, but provided ratio is 2.000000"]
            .assert_eq(&one(container("maxLimitRequestRatio", "1.5"), ask("1", "2")));
        expect![
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0"
        ]
        .assert_eq(&one(container("maxLimitRequestRatio", "2"), json!({"limits": {"cpu": "1"}})));
        expect!["cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0"]
            .assert_eq(&one(container("maxLimitRequestRatio", "2"), json!({"requests": {"cpu": "1"}})));
    }

    #[test]
    fn pods_are_bounded_as_wholes_and_claims_by_their_requests() {
        let pod = json!({"spec": {"containers": [
            {"name": "a", "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}},
            {"name": "b", "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}}],
            "overhead": {"memory": "9Gi"}}});
        let limit = |q: &str| range(json!([{"type": "Pod", "max": {"memory": q}}]));
        assert!(check_pod(&pod, &limit("2Gi")).is_empty());
        expect!["maximum memory usage per Pod is 1536Mi, but limit is 2Gi"]
            .assert_eq(&check_pod(&pod, &limit("1.5Gi")).join("\n"));
        let claim = |q: &str| json!({"spec": {"resources": {"requests": {"storage": q}}}});
        let limit = range(
            json!([{"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "10Gi"}}]),
        );
        assert!(check_claim(&claim("5Gi"), &limit).is_empty());
        expect!["minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"]
            .assert_eq(&check_claim(&claim("1Mi"), &limit).join("\n"));
        expect!["maximum storage usage per PersistentVolumeClaim is 10Gi, but request is 11Gi"]
            .assert_eq(&check_claim(&claim("11Gi"), &limit).join("\n"));
    }
}
