//! Whether this node takes a pod that was bound to it. Upstream's `lifecycle/predicate.go`: a pod that is refused is `Failed`
//! with the reason and message of the first predicate that does not hold.

use super::context::NodeContext;
use super::core::{Node, NodeSelectorTerm, Pod, Taint, Toleration};
use super::model::{self, Amounts};
use super::worker::Ending;
use crate::metrics::families::REJECTIONS;
use crate::node::DECLARED_FEATURES;
use kaji_runtime::{EventRecord, FeatureRequests};
use std::collections::BTreeMap;

/// Why a pod is refused: `status.reason` and `status.message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRejection {
    /// `OutOfcpu`, `NodeAffinity`, …
    pub reason: String,
    /// For people.
    pub message: String,
}

/// Counts a refusal, tells it by an event, and makes it the pod's end.
pub fn refused(cx: &NodeContext, pod: &Pod, refusal: PodRejection) -> Ending {
    cx.metrics.count(&REJECTIONS, &[("reason", &refusal.reason)]);
    let event = EventRecord::warning(model::reference(pod), &refusal.reason, refusal.message.clone());
    cx.api.record(event);
    let message = format!("Pod was rejected: {}", refusal.message);
    Ending { reason: refusal.reason, message, ..Ending::default() }
}

/// Thousandths for `cpu`, whole units otherwise.
fn amount(name: &str, amounts: &Amounts) -> i64 {
    let found =
        if name == "cpu" { model::milli(Some(amounts), name) } else { model::whole(Some(amounts), name) };
    found.unwrap_or(0)
}

fn add(to: &mut BTreeMap<String, i64>, amounts: Option<&Amounts>) {
    let Some(amounts) = amounts else { return };
    for name in amounts.keys() {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.saturating_add(amount(name, amounts));
    }
}

/// What a pod asks for: the sum over containers and sidecars, or what one init container asks for while it runs, in
/// thousandths for `cpu`.
#[must_use]
pub fn pod_requests(pod: &Pod) -> BTreeMap<String, i64> {
    let mut sum = BTreeMap::new();
    for container in model::containers(pod) {
        add(&mut sum, model::requests(container.resources.as_ref()));
    }
    let (mut sidecars, mut most) = (BTreeMap::new(), BTreeMap::new());
    for container in model::init_containers(pod) {
        let requests = model::requests(container.resources.as_ref());
        let mut while_it_runs = sidecars.clone();
        add(&mut while_it_runs, requests);
        if model::is_sidecar(container) {
            add(&mut sidecars, requests);
            add(&mut sum, requests);
        }
        for (name, value) in while_it_runs {
            let kept: &mut i64 = most.entry(name).or_default();
            *kept = (*kept).max(value);
        }
    }
    for (name, value) in most {
        let total = sum.entry(name).or_default();
        *total = (*total).max(value);
    }
    if let Some(amounts) = model::requests(model::spec(pod).resources.as_ref()) {
        sum.extend(amounts.keys().map(|name| (name.clone(), amount(name, amounts))));
    }
    add(&mut sum, model::spec(pod).overhead.as_ref());
    sum
}

/// Whether the node takes a pod beside the others that it holds and that are not terminal.
///
/// # Errors
/// The refusal.
pub fn admit(pod: &Pod, others: &[&Pod], node: &Node) -> Result<(), PodRejection> {
    operating_system(pod)?;
    match insufficient(pod, others, node).first() {
        Some(lacking) => Err(lacking.refusal()),
        None => suits(pod, others, node),
    }
}

/// Whether the node takes a pod, whatever resources it has left.
///
/// # Errors
/// The refusal.
pub fn suits(pod: &Pod, others: &[&Pod], node: &Node) -> Result<(), PodRejection> {
    operating_system(pod)?;
    let mirror =
        pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("kubernetes.io/config.mirror"));
    affinity(pod, node)?;
    ports(pod, others)?;
    if !mirror && !model::is_static(pod) {
        taints(pod, node)?;
    }
    declared_features(pod, &DECLARED_FEATURES)
}

/// Whether the node takes a pod while it has these conditions, by their types. Upstream's admission of its eviction manager.
///
/// # Errors
/// The refusal.
pub fn under_pressure(pod: &Pod, conditions: &[&str]) -> Result<(), PodRejection> {
    if conditions.is_empty() || model::is_critical(pod) {
        return Ok(());
    }
    if conditions == ["MemoryPressure"] {
        // Those that requested memory may go on to use it.
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let tolerations = model::spec(pod).tolerations.as_deref().unwrap_or_default();
        if model::qos(pod) != model::Qos::BestEffort || tolerations.iter().any(|t| tolerates(t, &taint)) {
            return Ok(());
        }
    }
    refusal("Evicted", format!("The node had condition: [{}]. ", conditions.join(" ")))
}

fn refusal(reason: &str, message: impl Into<String>) -> Result<(), PodRejection> {
    Err(PodRejection { reason: reason.to_owned(), message: message.into() })
}

fn operating_system(pod: &Pod) -> Result<(), PodRejection> {
    let spec = model::spec(pod);
    let selector = spec.node_selector.as_ref().and_then(|s| s.get("kubernetes.io/os"));
    if selector.is_some_and(|os| os != "linux") {
        return refusal(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        );
    }
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return refusal("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");
    }
    Ok(())
}

/// A pod that was bound past the scheduler may need what this node has not. Upstream's `declaredFeaturesAdmitHandler`.
fn declared_features(pod: &Pod, declared: &[&str]) -> Result<(), PodRejection> {
    let spec = model::spec(pod);
    let asks = FeatureRequests {
        restarts_all: model::all_containers_could_restart(pod),
        host_network: spec.host_network == Some(true),
        host_users: spec.host_users,
    };
    let lacking: Vec<&str> = asks.features().filter(|feature| !declared.contains(feature)).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let text = format!("Pod requires node features that are not available: {}", lacking.join(", "));
    refusal("PodFeatureUnsupported", text)
}

/// A resource of which the node has less left than a pod asks for, in thousandths for `cpu`. Upstream's `InsufficientResourceError`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Insufficient {
    /// Its name.
    pub resource: String,
    /// What the pod asks for.
    pub requested: i64,
    /// What other pods ask for.
    pub used: i64,
    /// What the node has.
    pub capacity: i64,
}

impl Insufficient {
    /// How much more the node needs.
    #[must_use]
    pub fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }

    fn refusal(&self) -> PodRejection {
        let Insufficient { resource, requested, used, capacity } = self;
        let reason = format!("OutOf{}", resource.rsplit('/').next().unwrap_or(resource));
        let message = format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        PodRejection { reason, message }
    }
}

/// What the node lacks for a pod beside other pods; in upstream's order: pods, cpu, memory, ephemeral-storage, then the others.
#[must_use]
pub fn insufficient(pod: &Pod, others: &[&Pod], node: &Node) -> Vec<Insufficient> {
    let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
    let allowed = |name: &str| {
        if name == "cpu" { model::milli(allocatable, name) } else { model::whole(allocatable, name) }
    };
    let mut lacking = vec![];
    let mut lacks = |name: &str, requested: i64, used: i64, capacity: i64| {
        lacking.push(Insufficient { resource: name.to_owned(), requested, used, capacity });
    };
    let count = i64::try_from(others.len()).unwrap_or(i64::MAX);
    if let Some(pods) = allowed("pods")
        && count.saturating_add(1) > pods
    {
        lacks("pods", 1, count, pods);
    }
    let asked = pod_requests(pod);
    let taken: Vec<BTreeMap<String, i64>> = others.iter().map(|p| pod_requests(p)).collect();
    let rank = |name: &str| {
        ["cpu", "memory", "ephemeral-storage"].iter().position(|known| *known == name).unwrap_or(3)
    };
    let mut names: Vec<&String> = asked.keys().collect();
    names.sort_by_key(|name| (rank(name), (*name).clone()));
    for name in names {
        let wanted = asked[name];
        if wanted == 0 {
            continue;
        }
        // Extended resources that the node does not list belong to the cluster, or to a device plug-in.
        let Some(capacity) = allowed(name) else {
            if rank(name) < 3 || name.starts_with("hugepages-") {
                lacks(name, wanted, 0, 0);
            }
            continue;
        };
        let used: i64 = taken.iter().filter_map(|t| t.get(name)).sum();
        if used.saturating_add(wanted) > capacity {
            lacks(name, wanted, used, capacity);
        }
    }
    lacking
}

fn affinity(pod: &Pod, node: &Node) -> Result<(), PodRejection> {
    let failed = || {
        refusal(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        )
    };
    let spec = model::spec(pod);
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selector = spec.node_selector.iter().flatten();
    if selector.into_iter().any(|(name, value)| labels.get(name) != Some(value)) {
        return failed();
    }
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let Some(required) = required else { return Ok(()) };
    if matches_terms(&required.node_selector_terms, node) { Ok(()) } else { failed() }
}

/// Whether a node matches one of the terms of a node selector.
#[must_use]
pub fn matches_terms(terms: &[NodeSelectorTerm], node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let name = node.metadata.name.clone().unwrap_or_default();
    let holds = |list: Option<&Vec<super::core::NodeSelectorRequirement>>, field: bool| {
        list.into_iter().flatten().all(|r| {
            let value = if field { (r.key == "metadata.name").then_some(&name) } else { labels.get(&r.key) };
            let values = r.values.as_deref().unwrap_or_default();
            let number = |text: &str| text.parse::<i64>().ok();
            let compared = || Some((number(value?)?, number(values.first()?)?));
            match r.operator.as_str() {
                "In" => value.is_some_and(|v| values.contains(v)),
                "NotIn" => !value.is_some_and(|v| values.contains(v)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                "Gt" => compared().is_some_and(|(have, than)| have > than),
                "Lt" => compared().is_some_and(|(have, than)| have < than),
                _ => false,
            }
        })
    };
    terms.iter().any(|term| {
        let (expressions, fields) = (term.match_expressions.as_ref(), term.match_fields.as_ref());
        let empty = expressions.is_none_or(Vec::is_empty) && fields.is_none_or(Vec::is_empty);
        !empty && holds(expressions, false) && holds(fields, true)
    })
}

/// Protocol, address and port of each host port.
fn host_ports(pod: &Pod) -> Vec<(String, String, i32)> {
    let sidecars = model::init_containers(pod).iter().filter(|c| model::is_sidecar(c));
    let ports = sidecars.chain(model::containers(pod)).flat_map(|c| c.ports.iter().flatten());
    let of = |p: &super::core::ContainerPort| {
        let port = p.host_port.filter(|port| *port > 0)?;
        let address = p.host_ip.clone().filter(|a| !a.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned());
        Some((p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), address, port))
    };
    ports.filter_map(of).collect()
}

fn ports(pod: &Pod, others: &[&Pod]) -> Result<(), PodRejection> {
    let asked = host_ports(pod);
    if asked.is_empty() {
        return Ok(());
    }
    let taken: Vec<_> = others.iter().flat_map(|p| host_ports(p)).collect();
    let conflict = asked.iter().any(|(protocol, address, port)| {
        taken.iter().any(|(p, a, n)| {
            p == protocol && n == port && (a == address || a == "0.0.0.0" || address == "0.0.0.0")
        })
    });
    if conflict {
        return refusal(
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        );
    }
    Ok(())
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    if !empty(&toleration.effect) && toleration.effect.as_deref() != Some(taint.effect.as_str()) {
        return false;
    }
    if !empty(&toleration.key) && toleration.key.as_deref() != Some(taint.key.as_str()) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "" | "Equal" => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        "Exists" => true,
        _ => false,
    }
}

fn taints(pod: &Pod, node: &Node) -> Result<(), PodRejection> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    let tolerations = model::spec(pod).tolerations.as_deref().unwrap_or_default();
    let untolerated = taints
        .iter()
        .filter(|t| t.effect == "NoExecute")
        .find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)));
    match untolerated {
        Some(_) => {
            refusal("TaintToleration", "Predicate TaintToleration failed: node(s) had untolerated taint(s)")
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::{Value, json};

    #[test]
    fn pods_that_need_undeclared_features_are_refused() {
        let asked = |spec: Value, declared: &[&str]| {
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
            let refusal = declared_features(&pod, declared).err();
            refusal.map_or_else(|| "admitted".to_owned(), |r| format!("{}: {}", r.reason, r.message))
        };
        let restarts = |action: &str| {
            let rule = json!({"action": action, "exitCodes": {"operator": "In", "values": [1]}});
            json!({"containers": [{"name": "c", "restartPolicyRules": [rule]}]})
        };
        let users = |host: bool| json!({"containers": [], "hostNetwork": true, "hostUsers": host});
        assert_eq!(asked(restarts("Restart"), &[]), "admitted");
        assert_eq!(asked(restarts("RestartAllContainers"), &DECLARED_FEATURES), "admitted");
        assert_eq!(asked(users(true), &DECLARED_FEATURES), "admitted");
        expect![[r#"
            PodFeatureUnsupported: Pod requires node features that are not available: RestartAllContainersOnContainerExits
            PodFeatureUnsupported: Pod requires node features that are not available: UserNamespacesHostNetworkSupport"#]]
        .assert_eq(&[asked(restarts("RestartAllContainers"), &[]), asked(users(false), &DECLARED_FEATURES)].join("\n"));
    }
}
