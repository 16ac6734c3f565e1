//! A pod without a node: gates, what each node says to it, and the node that is nearest to taking it.

use super::{decisions, gang};
use crate::{
    case::{Case, condition_is, is_finished, tell},
    paths::path,
    report::{Cause, Sort, some},
};
use kaji_meta::object::{arr_at, str_at};
use kaji_scheduler::{READ_RESOURCES, ReadResource, Verdict, Verdicts, verdicts};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// The scheduler that the default profile stands for.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// Nodes that are named for one reason.
const NAMED: usize = 5;

/// Why the pod has no node.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let pod = case.object;
    if !str_at(pod, &["spec", "nodeName"]).is_empty() || is_finished(pod) {
        return vec![];
    }
    let gates: Vec<&str> =
        arr_at(pod, &["spec", "schedulingGates"]).iter().map(|gate| str_at(gate, &["name"])).collect();
    if !gates.is_empty() {
        let text = format!("scheduling gates hold it back: {}", some(&gates, NAMED));
        let cause =
            Cause::new(Sort::Scheduling, text).known("the scheduler does not look at a pod that has gates");
        return vec![cause.fix(format!(
            "the controller that set the gates removes them; look at its logs ({})",
            gates.join(", ")
        ))];
    }
    let mut cause = Cause::new(Sort::Scheduling, "it has no node");
    if let Some(condition) = condition_is(pod, "PodScheduled", "False") {
        cause = cause.known(tell(condition));
    }
    let scheduler = str_at(pod, &["spec", "schedulerName"]);
    if !scheduler.is_empty() && scheduler != DEFAULT_SCHEDULER {
        let cause = cause.known(format!("spec.schedulerName is {scheduler}"));
        return vec![cause.inferred(format!("no scheduler of the name {scheduler} has bound it")).fix(
            format!(
                "start the scheduler {scheduler}, or let the template say schedulerName: {DEFAULT_SCHEDULER}"
            ),
        )];
    }
    vec![ask(case, cause).await]
}

async fn ask(case: &Case<'_>, mut cause: Cause) -> Cause {
    let (nodes, pods, verdict) = futures_util::join!(
        case.reader.list("/api/v1/nodes"),
        case.reader.list("/api/v1/pods"),
        decisions::verdict(case)
    );
    if let Some(verdict) = &verdict {
        cause = cause.known(verdict.tell());
    }
    let (Some(nodes), Some(pods)) = (nodes, pods) else { return cause };
    let collection = |of: &ReadResource| match of.group {
        "" => path(of.version, "", of.resource, ""),
        group => path(&format!("{group}/{}", of.version), "", of.resource, ""),
    };
    let paths: Vec<String> = READ_RESOURCES.iter().map(collection).collect();
    let lists = case.reader.lists(&paths).await.into_iter().map(Option::unwrap_or_default);
    let others: HashMap<&str, Arc<Vec<Value>>> =
        READ_RESOURCES.iter().map(|of| of.resource).zip(lists).collect();
    let objects = |resource: &str| -> Arc<Vec<Value>> { others.get(resource).cloned().unwrap_or_default() };
    match verdicts(case.object, &nodes, &pods, &objects, case.now) {
        Err(error) => cause.inferred(format!("the scheduler cannot read the pod: {error}")),
        Ok(Verdicts::NotQueued(status) | Verdicts::Rejected(status)) => {
            cause.inferred(format!("{} rejects it on every node: {status}", status.plugin))
        }
        Ok(Verdicts::Nodes(verdicts)) if verdicts.is_empty() => cause
            .known("the cluster has no node")
            .fix("add a node: kaji agent --join, or kaji up with --nodes"),
        Ok(Verdicts::Nodes(verdicts)) => node_verdicts(case, cause, &nodes, &verdicts, verdict.as_ref()),
    }
}

/// What the nodes say, by reason; the nearest node, and what would make it fit. It is known of what the scheduler said itself.
fn node_verdicts(
    case: &Case<'_>,
    mut cause: Cause,
    nodes: &[Value],
    verdicts: &[Verdict],
    said: Option<&decisions::Verdict>,
) -> Cause {
    let fitting: Vec<&str> =
        verdicts.iter().filter(|v| v.rejections.is_empty()).map(|v| v.node.as_str()).collect();
    if !fitting.is_empty() {
        cause = cause.inferred(format!("it fits now on {}", some(&fitting, NAMED)));
        let group = gang::group_of(case.object);
        if !group.is_empty() {
            return cause.inferred(format!("its group {group} is placed as a whole, or not at all"));
        }
        return cause
            .inferred("the scheduler has not tried it again yet, or does not run")
            .fix("wait; or look at the lease kube-system/kube-scheduler and the scheduler's logs");
    }
    let mut by_reason: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for verdict in verdicts {
        for status in &verdict.rejections {
            by_reason.entry((status.plugin, status.message())).or_default().push(&verdict.node);
        }
    }
    cause.summary = format!("no node takes it (0 of {})", verdicts.len());
    for ((plugin, reason), rejecting) in &by_reason {
        let by = if plugin.is_empty() { "PreFilter" } else { plugin };
        let said_so = |node: &&str| said.is_some_and(|said| said.rejects(plugin, reason, node));
        let (known, inferred): (Vec<&str>, Vec<&str>) = rejecting.iter().copied().partition(said_so);
        let tell = |rejecting: &[&str]| {
            let detail = rejecting.first().and_then(|name| detail(case.object, nodes, name, plugin));
            let detail = detail.map_or_else(String::new, |detail| format!(" ({detail})"));
            format!("{by}: {reason}, on {}{detail}", some(rejecting, NAMED))
        };
        if !known.is_empty() {
            cause = cause.known(tell(&known));
        }
        if !inferred.is_empty() {
            cause = cause.inferred(tell(&inferred));
        }
    }
    let nearest = verdicts.iter().min_by_key(|verdict| verdict.rejections.len());
    if let Some(nearest) = nearest {
        let by: Vec<&str> = nearest.rejections.iter().map(|status| status.plugin).collect();
        cause = cause.nearest(match by.as_slice() {
            [one] => format!("node {}: {one} alone rejects it", nearest.node),
            all => format!("node {}: rejected by {}", nearest.node, all.join(", ")),
        });
        for plugin in by {
            if let Some(fix) = fix(plugin, &nearest.node) {
                cause = cause.fix(fix);
            }
        }
    }
    cause
}

/// What is compared, for plugins with a short comparison.
fn detail(pod: &Value, nodes: &[Value], name: &str, plugin: &str) -> Option<String> {
    let node = nodes.iter().find(|node| kaji_meta::object::name(node) == name)?;
    match plugin {
        "TaintToleration" => {
            let taints: Vec<String> = arr_at(node, &["spec", "taints"])
                .iter()
                .map(|t| {
                    let (key, value) = (str_at(t, &["key"]), str_at(t, &["value"]));
                    let value = if value.is_empty() { String::new() } else { format!("={value}") };
                    format!("{key}{value}:{}", str_at(t, &["effect"]))
                })
                .collect();
            Some(format!("{name} has {}", taints.join(", ")))
        }
        "NodeResourcesFit" => {
            let amounts = |value: Option<&Value>| {
                let amounts = value.and_then(Value::as_object).into_iter().flatten();
                amounts
                    .map(|(k, v)| format!("{k} {}", v.as_str().unwrap_or_default()))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let requests: Vec<String> = arr_at(pod, &["spec", "containers"])
                .iter()
                .map(|c| amounts(kaji_meta::object::at(c, &["resources", "requests"])))
                .filter(|text| !text.is_empty())
                .collect();
            let allocatable = amounts(kaji_meta::object::at(node, &["status", "allocatable"]));
            Some(format!(
                "requests {}; {name} can allocate {allocatable} to all its pods",
                requests.join(" + ")
            ))
        }
        "NodeAffinity" => {
            let selector: Vec<String> = kaji_meta::object::str_map_at(pod, &["spec", "nodeSelector"])
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            (!selector.is_empty()).then(|| format!("nodeSelector {}", selector.join(",")))
        }
        _ => None,
    }
}

/// What is safe to do about a plugin's rejection.
fn fix(plugin: &str, node: &str) -> Option<String> {
    Some(match plugin {
        "NodeUnschedulable" => format!("kubectl uncordon {node}"),
        "TaintToleration" => {
            format!(
                "add a toleration to the pod's template, or remove the taint: kubectl taint node {node} KEY-"
            )
        }
        "NodeResourcesFit" => "lower the requests in the pod's template, free room, or add a node".to_owned(),
        "NodeAffinity" => format!(
            "correct nodeSelector or affinity, or label the node: kubectl label node {node} KEY=VALUE"
        ),
        "NodePorts" => "use another hostPort, or a Service instead of one".to_owned(),
        "PodTopologySpread" => {
            "whenUnsatisfiable: ScheduleAnyway, or nodes in the domains that lack pods".to_owned()
        }
        "InterPodAffinity" => "loosen the pod's (anti-)affinity to preferred, or add nodes".to_owned(),
        "VolumeBinding" | "VolumeZone" => "kaji why for each of its claims".to_owned(),
        _ => return None,
    })
}
