//! The configuration that every cluster has: mandatory objects, which are always restored, and suggested ones, which are
//! updated until a user takes them over (annotation `apf.kubernetes.io/autoupdate-spec`).
//! Source: Kubernetes, "API Priority and Fairness", maintenance of the mandatory and suggested configuration objects.

use crate::config::{CATCH_ALL, EXEMPT};
use serde_json::{Value, json};

/// Says whether the server may change an object's spec.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// Every PriorityLevelConfiguration with whether it is mandatory.
pub fn priority_levels() -> Vec<(Value, bool)> {
    let mut all: Vec<(Value, bool)> = [
        ("system", 30, 33, 64, 6),
        ("node-high", 40, 25, 64, 6),
        ("leader-election", 10, 0, 16, 4),
        ("workload-high", 40, 50, 128, 6),
        ("workload-low", 100, 90, 128, 6),
        ("global-default", 20, 50, 128, 6),
    ]
    .into_iter()
    .map(|(name, shares, lendable, queues, hand)| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        let spec = json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "limitResponse": {"type": "Queue", "queuing": queuing},
        }});
        (object("PriorityLevelConfiguration", name, spec), false)
    })
    .collect();
    let reject = json!({"type": "Limited", "limited": {
        "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"},
    }});
    all.push((object("PriorityLevelConfiguration", CATCH_ALL, reject), true));
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    all.push((object("PriorityLevelConfiguration", EXEMPT, exempt), true));
    all
}

/// Every FlowSchema with whether it is mandatory.
pub fn flow_schemas() -> Vec<(Value, bool)> {
    let leases = |verbs: &[&str]| resources(verbs, "coordination.k8s.io", &["leases"], false);
    let nodes = vec![resources(&["*"], "", &["nodes", "nodes/status"], true), leases(&["*"])];
    let all_users = || groups(&[UNAUTHENTICATED, AUTHENTICATED]);
    let kube_system =
        || json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}});
    let mut elections = users(&["system:kube-controller-manager", "system:kube-scheduler"]);
    elections.push(kube_system());
    let probes = json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]);
    let schema = |name: &str, level: &str, precedence: i64, by: Option<&str>, rule: Value| {
        let mut spec = json!({
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule],
        });
        if let Some(by) = by {
            spec["distinguisherMethod"] = json!({"type": by});
        }
        object("FlowSchema", name, spec)
    };
    let suggested = [
        schema("system-nodes", "system", 500, Some("ByUser"), everything(groups(&["system:nodes"]))),
        schema(
            "system-node-high",
            "node-high",
            400,
            Some("ByUser"),
            json!({"subjects": groups(&["system:nodes"]), "resourceRules": nodes}),
        ),
        schema("probes", EXEMPT, 2, None, json!({"subjects": all_users(), "nonResourceRules": probes})),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            Some("ByUser"),
            json!({"subjects": elections, "resourceRules": [leases(&["get", "create", "update"])]}),
        ),
        schema(
            "kube-controller-manager",
            "workload-high",
            800,
            Some("ByNamespace"),
            everything(users(&["system:kube-controller-manager"])),
        ),
        schema(
            "kube-scheduler",
            "workload-high",
            800,
            Some("ByNamespace"),
            everything(users(&["system:kube-scheduler"])),
        ),
        schema(
            "kube-system-service-accounts",
            "workload-high",
            900,
            Some("ByNamespace"),
            everything(vec![kube_system()]),
        ),
        schema(
            "service-accounts",
            "workload-low",
            9000,
            Some("ByUser"),
            everything(groups(&["system:serviceaccounts"])),
        ),
        schema("global-default", "global-default", 9900, Some("ByUser"), everything(all_users())),
    ];
    let mandatory = [
        schema(EXEMPT, EXEMPT, 1, None, everything(groups(&["system:masters"]))),
        schema(CATCH_ALL, CATCH_ALL, 10_000, Some("ByUser"), everything(all_users())),
    ];
    suggested.into_iter().map(|s| (s, false)).chain(mandatory.into_iter().map(|s| (s, true))).collect()
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}},
        "spec": spec,
    })
}

fn groups(names: &[&str]) -> Vec<Value> {
    names.iter().map(|n| json!({"kind": "Group", "group": {"name": n}})).collect()
}

fn users(names: &[&str]) -> Vec<Value> {
    names.iter().map(|n| json!({"kind": "User", "user": {"name": n}})).collect()
}

fn resources(verbs: &[&str], group: &str, names: &[&str], cluster_scope: bool) -> Value {
    let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": names, "namespaces": ["*"]});
    if cluster_scope {
        rule["clusterScope"] = true.into();
    }
    rule
}

fn everything(subjects: Vec<Value>) -> Value {
    json!({
        "subjects": subjects,
        "resourceRules": [resources(&["*"], "*", &["*"], true)],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    })
}

/// Go's reading of a boolean.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// What a present object has to become, or `None` when it is as it should be.
pub fn revise(current: &Value, wanted: &Value, mandatory: bool) -> Option<Value> {
    let said = current["metadata"]["annotations"][AUTO_UPDATE].as_str().and_then(boolean);
    // Without the annotation, an object with a spec that was never changed is the server's.
    let ours = mandatory || said.unwrap_or_else(|| current["metadata"]["generation"] == 1);
    let mut spec = wanted["spec"].clone();
    if spec["type"] == "Exempt" && current["spec"]["exempt"].is_object() {
        // The two numbers of the exempt level are its owner's.
        spec["exempt"] = current["spec"]["exempt"].clone();
    }
    let stale = ours && !kaji_meta::semantic_equal(&spec, &current["spec"]);
    if !stale && said == Some(ours) {
        return None;
    }
    let mut revised = current.clone();
    if stale {
        revised["spec"] = wanted["spec"].clone();
    }
    if !revised["metadata"]["annotations"].is_object() {
        revised["metadata"]["annotations"] = json!({});
    }
    revised["metadata"]["annotations"][AUTO_UPDATE] = ours.to_string().into();
    Some(revised)
}

/// Whether an object is one that the server has created and no longer maintains.
pub fn unwanted(object: &Value, wanted: &[(Value, bool)]) -> bool {
    let name = &object["metadata"]["name"];
    object["metadata"]["annotations"][AUTO_UPDATE].as_str().and_then(boolean) == Some(true)
        && !wanted.iter().any(|(w, _)| w["metadata"]["name"] == *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(name: &str) -> Value {
        priority_levels().into_iter().find(|(v, _)| v["metadata"]["name"] == name).unwrap().0
    }

    #[test]
    fn suggested_objects_stay_with_users_that_took_them_over() {
        let wanted = level("system");
        assert_eq!(revise(&wanted, &wanted, false), None);
        let mut taken = wanted.clone();
        taken["spec"]["limited"]["nominalConcurrencyShares"] = 77.into();
        // Changed, but still annotated as the server's.
        assert_eq!(revise(&taken, &wanted, false).unwrap()["spec"], wanted["spec"]);
        taken["metadata"]["annotations"][AUTO_UPDATE] = "false".into();
        assert_eq!(revise(&taken, &wanted, false), None);
        // A mandatory one is put right nevertheless.
        let right = revise(&taken, &wanted, true).unwrap();
        assert_eq!(
            (&right["spec"], &right["metadata"]["annotations"][AUTO_UPDATE]),
            (&wanted["spec"], &json!("true"))
        );
        // Without the annotation, the generation tells.
        taken["metadata"]["annotations"] = Value::Null;
        taken["metadata"]["generation"] = 2.into();
        let marked = revise(&taken, &wanted, false).unwrap();
        assert_eq!(marked["metadata"]["annotations"][AUTO_UPDATE], "false");
        assert_eq!(marked["spec"], taken["spec"]);
        taken["metadata"]["generation"] = 1.into();
        assert_eq!(revise(&taken, &wanted, false).unwrap()["spec"], wanted["spec"]);
    }

    #[test]
    fn the_exempt_level_keeps_its_numbers() {
        let wanted = level(EXEMPT);
        let mut tuned = wanted.clone();
        tuned["spec"]["exempt"]["nominalConcurrencyShares"] = 10.into();
        assert_eq!(revise(&tuned, &wanted, true), None);
    }

    #[test]
    fn what_the_server_no_longer_knows_goes() {
        let wanted = priority_levels();
        assert!(unwanted(&object("PriorityLevelConfiguration", "old", json!({})), &wanted));
        assert!(!unwanted(&wanted[0].0, &wanted));
        assert!(!unwanted(&json!({"metadata": {"name": "mine"}}), &wanted));
    }

    #[test]
    fn every_object_reads_back() {
        let levels: Vec<String> =
            priority_levels().iter().map(|(v, _)| crate::PriorityLevel::parse(v).unwrap().name).collect();
        for (schema, _) in flow_schemas() {
            let schema = crate::FlowSchema::parse(&schema);
            assert!(levels.contains(&schema.level), "{}", schema.name);
        }
    }
}
