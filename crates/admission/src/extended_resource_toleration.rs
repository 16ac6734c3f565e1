//! `ExtendedResourceToleration`: a pod tolerates the taints of the extended resources that it requests, for nodes that are
//! tainted by the name of their devices.

use crate::pod_spec::{LISTS, containers};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, object, resource_name::is_extended};
use kaji_resource::BoxFuture;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The plugin.
pub(super) struct ExtendedResourceToleration;

impl Admission for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        "ExtendedResourceToleration"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::MUTATING.when(
            matches!(operation, Operation::Create | Operation::Update) && (group, resource) == ("", "pods"),
        )
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        if let Some(pod) = a.object.as_deref_mut() {
            tolerate_extended(pod);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Adds a toleration of the taint of each extended resource that the containers request.
fn tolerate_extended(pod: &mut Value) {
    let all = LISTS[..2].iter().flat_map(|list| containers(pod, list));
    let requests = all.filter_map(|c| object::obj_at(c, &["resources", "requests"]));
    let names: BTreeSet<String> =
        requests.flat_map(|r| r.keys()).filter(|n| is_extended(n)).cloned().collect();
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

    #[test]
    fn tolerates_taints_of_requested_extended_resources() {
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
