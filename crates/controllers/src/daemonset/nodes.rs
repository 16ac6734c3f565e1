//! On which nodes a daemon set's pods belong, and what binds a pod to its node.

use crate::shared::tolerations::tolerates;
use kaji_runtime::objects::{Node, Pod, Toleration};
use serde_json::{Value, json};

/// Taints that the node's own state brings: daemons stay, and start, in spite of them.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// For pods that use the node's network.
const NO_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// What of a pod template decides about nodes.
pub struct Placement<'a> {
    spec: &'a Value,
    tolerations: Vec<Toleration>,
}

/// Whether a node should get a pod, and may keep one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Start one.
    pub run: bool,
    /// Keep one.
    pub keep: bool,
}

impl<'a> Placement<'a> {
    /// Of a template.
    pub fn of(template: &'a Value) -> Self {
        let spec = template.get("spec").unwrap_or(&Value::Null);
        let raw = tolerations(spec);
        let tolerations = raw.into_iter().filter_map(|t| kaji_meta::json::from_value(&t).ok()).collect();
        Placement { spec, tolerations }
    }

    /// How a node fits.
    pub fn fit(&self, node: &Node) -> Fit {
        let named = self.spec.get("nodeName").and_then(Value::as_str).filter(|n| !n.is_empty());
        if named.is_some_and(|n| n != node.metadata.name) || !self.affine(node) {
            return Fit { run: false, keep: false };
        }
        let bad = |effects: &[&str]| {
            node.spec.taints.iter().any(|t| {
                effects.contains(&t.effect.as_str()) && !self.tolerations.iter().any(|tol| tolerates(tol, t))
            })
        };
        Fit { run: !bad(&["NoSchedule", "NoExecute"]), keep: !bad(&["NoExecute"]) }
    }

    /// Node selector and required node affinity.
    fn affine(&self, node: &Node) -> bool {
        let labels = &node.metadata.labels;
        let selector = self.spec.get("nodeSelector").and_then(Value::as_object);
        let selected = selector
            .into_iter()
            .flatten()
            .all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str());
        let path = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let Some(terms) = self.spec.pointer(path).and_then(Value::as_array) else { return selected };
        selected && terms.iter().any(|term| term_matches(term, node))
    }
}

fn term_matches(term: &Value, node: &Node) -> bool {
    let list = |name: &str| term.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (expressions, fields) = (list("matchExpressions"), list("matchFields"));
    let key = |r: &Value| r.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
    // A term without requirements matches nothing.
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|r| requirement(r, node.metadata.labels.get(&key(r)).map(String::as_str)))
        && fields.iter().all(|r| {
            let value = (key(r) == "metadata.name").then_some(node.metadata.name.as_str());
            requirement(r, value)
        })
}

fn requirement(requirement: &Value, value: Option<&str>) -> bool {
    let values = requirement.get("values").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let listed = |v: &str| values.iter().any(|x| x.as_str() == Some(v));
    let compared = |order: std::cmp::Ordering| {
        let wanted = values.first().and_then(Value::as_str).and_then(|v| v.parse::<i64>().ok());
        let found = value.and_then(|v| v.parse::<i64>().ok());
        matches!((found, wanted), (Some(f), Some(w)) if f.cmp(&w) == order)
    };
    match requirement.get("operator").and_then(Value::as_str).unwrap_or_default() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(std::cmp::Ordering::Greater),
        "Lt" => compared(std::cmp::Ordering::Less),
        _ => false,
    }
}

/// The tolerations of a daemon's pod: its own, and those that every daemon has. One of its own that differs from one of them only in
/// its seconds is replaced, so that the pod stays for good.
pub fn tolerations(spec: &Value) -> Vec<Value> {
    let mut all = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    let network = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or(false);
    for (key, effect) in TOLERATED.into_iter().chain(network.then_some(NO_NETWORK)) {
        let toleration = json!({"key": key, "operator": "Exists", "effect": effect});
        let mut replaced = false;
        for own in all.iter_mut().filter(|own| same_but_for_seconds(own, &toleration)) {
            *own = toleration.clone();
            replaced = true;
        }
        if !replaced {
            all.push(toleration);
        }
    }
    all
}

fn same_but_for_seconds(a: &Value, b: &Value) -> bool {
    ["key", "effect", "operator", "value"].into_iter().all(|field| {
        let [a, b] = [a, b].map(|toleration| toleration.get(field).and_then(Value::as_str));
        a.unwrap_or_default() == b.unwrap_or_default()
    })
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Binds a pod to a node by its affinity, in place of what it required before.
pub fn bind(spec: &mut Value, node: &str) {
    let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
    spec["affinity"]["nodeAffinity"][REQUIRED] = json!({"nodeSelectorTerms": terms});
}

/// The node that a daemon's pod is on, or is meant for.
pub fn node_of(pod: &Pod) -> Option<&str> {
    if !pod.spec.node_name.is_empty() {
        return Some(&pod.spec.node_name);
    }
    let terms =
        pod.spec.affinity.as_ref()?.pointer(&format!("/nodeAffinity/{REQUIRED}/nodeSelectorTerms"))?;
    let fields = terms.as_array()?.iter().filter_map(|t| t.get("matchFields")?.as_array()).flatten();
    fields
        .filter(|f| {
            f.get("key").is_some_and(|k| k == "metadata.name") && f.get("operator").is_some_and(|o| o == "In")
        })
        .find_map(|f| f.get("values")?.as_array()?.first()?.as_str())
}
