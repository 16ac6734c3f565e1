//! What a cluster must have reached by itself, some time after faults and changes have ended.

use crate::objects::{
    AUTOSCALERS, CLAIMS, CRON_JOBS, DAEMON_SETS, DEFINITIONS, DEPLOYMENTS, JOBS, NODES, Objects, PODS,
    QUOTAS, REPLICA_SETS, STATEFUL_SETS, at, is_condition_true, is_deleting, is_finished, number, text, uid,
};
use serde_json::Value;
use std::{collections::BTreeSet, sync::Arc};

/// What is missing.
#[must_use]
pub fn missing(objects: &Objects) -> Vec<String> {
    let mut missing = vec![];
    for (key, object) in objects.all() {
        if is_deleting(object) {
            missing.push(format!("{key}: its deletion does not end"));
        }
    }
    orphans(objects, &mut missing);
    quotas(objects, &mut missing);
    custom(objects, &mut missing);
    for node in objects.of(NODES).filter(|node| !is_condition_true(node, "Ready")) {
        missing.push(format!("node {} is not ready", text(node, &["metadata", "name"])));
    }
    for scaler in objects.of(AUTOSCALERS).filter(|scaler| holds_back(scaler)) {
        missing.push(format!("autoscaler {} is about to scale down", text(scaler, &["metadata", "name"])));
    }
    // Workloads beyond a quota are short of pods for good.
    if !objects.have_quota() {
        workloads(objects, &mut missing);
        others(objects, &mut missing);
    }
    missing
}

/// The custom resources of the scenario's group.
const CUSTOM: &str = "/registry/example.com/";

/// Custom resources without their definition.
fn custom(objects: &Objects, missing: &mut Vec<String>) {
    let defined: BTreeSet<&str> =
        objects.of(DEFINITIONS).map(|object| text(object, &["spec", "names", "plural"])).collect();
    for (key, _) in objects.all() {
        let plural = key.strip_prefix(CUSTOM).and_then(|rest| rest.split('/').next());
        if plural.is_some_and(|plural| !defined.contains(plural)) {
            missing.push(format!("{key}: it has outlived its definition"));
        }
    }
}

/// Claims, cron jobs, jobs that are deleted after their end, and autoscalers.
fn others(objects: &Objects, missing: &mut Vec<String>) {
    for claim in objects.of(CLAIMS).filter(|claim| !is_bound_or_unused(objects, claim)) {
        missing.push(format!("claim {} is not bound", text(claim, &["metadata", "name"])));
    }
    for job in objects.of(JOBS).filter(|job| !job["spec"]["ttlSecondsAfterFinished"].is_null()) {
        missing.push(format!("job {} is not deleted yet", text(job, &["metadata", "name"])));
    }
    for cron_job in objects.of(CRON_JOBS) {
        let active = at(cron_job, &["status", "active"]).as_array().map_or(0, Vec::len);
        if active > 0 {
            missing.push(format!(
                "cron job {}: {active} jobs are active",
                text(cron_job, &["metadata", "name"])
            ));
        }
    }
    objects.of(AUTOSCALERS).for_each(|scaler| autoscaled(objects, scaler, missing));
}

/// A claim of the default class is bound when its first pod is scheduled. That of a stateful set which was deleted before it made the
/// pod waits for good.
fn is_bound_or_unused(objects: &Objects, claim: &Value) -> bool {
    let name = text(claim, &["metadata", "name"]);
    let uses = |volume: &Value| text(volume, &["persistentVolumeClaim", "claimName"]) == name;
    let is_used =
        |pod: &Arc<Value>| pod["spec"]["volumes"].as_array().is_some_and(|volumes| volumes.iter().any(uses));
    match text(claim, &["status", "phase"]) {
        "Bound" => true,
        "Pending" => !objects.of(PODS).any(is_used),
        _ => false,
    }
}

/// Whether an autoscaler waits before it scales down, until what it found out last has held for some minutes.
fn holds_back(scaler: &Value) -> bool {
    let conditions = at(scaler, &["status", "conditions"]).as_array();
    let mut reasons = conditions.into_iter().flatten().map(|condition| text(condition, &["reason"]));
    reasons.any(|reason| reason == "ScaleDownStabilized")
}

/// Whether a deployment has as many replicas as the utilization of processors asks for, which the annotation of its pods says.
/// Within a tenth of the target an autoscaler leaves it alone.
fn autoscaled(objects: &Objects, scaler: &Value, missing: &mut Vec<String>) {
    let name = text(scaler, &["spec", "scaleTargetRef", "name"]);
    let target = objects.of(DEPLOYMENTS).find(|object| text(object, &["metadata", "name"]) == name);
    let Some(deployment) = target else { return };
    let template = at(deployment, &["spec", "template"]);
    let used = millis(at(template, &["metadata", "annotations", "sim.kaji.dev/cpu-usage"]));
    let asked = millis(&template["spec"]["containers"][0]["resources"]["requests"]["cpu"]);
    let wanted = &scaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"];
    let (Some(used), Some(asked), Some(wanted)) = (used, asked, wanted.as_i64()) else { return };
    let replicas = number(deployment, &["spec", "replicas"]);
    let percent = 100 * used / asked.max(1);
    if (percent - wanted).abs() * 10 <= wanted {
        return;
    }
    let (least, most) = (number(scaler, &["spec", "minReplicas"]), number(scaler, &["spec", "maxReplicas"]));
    let right = ((replicas * percent + wanted - 1) / wanted.max(1)).clamp(least, most);
    if right != replicas {
        missing.push(format!(
            "autoscaler {}: {replicas} replicas at {percent} % of {wanted} %",
            text(scaler, &["metadata", "name"])
        ));
    }
}

/// Thousandths of processors, of `250m`.
fn millis(amount: &Value) -> Option<i64> {
    amount.as_str()?.strip_suffix('m')?.parse().ok()
}

/// Objects with owners, none of which exists.
fn orphans(objects: &Objects, missing: &mut Vec<String>) {
    let uids: BTreeSet<&str> = objects.all().map(|(_, object)| uid(object)).collect();
    for (key, object) in objects.all() {
        let owners = at(object, &["metadata", "ownerReferences"]).as_array().map_or(&[][..], Vec::as_slice);
        if !owners.is_empty() && !owners.iter().any(|owner| uids.contains(text(owner, &["uid"]))) {
            missing.push(format!("{key}: it has outlived its owners"));
        }
    }
}

fn quotas(objects: &Objects, missing: &mut Vec<String>) {
    for quota in objects.of(QUOTAS) {
        let pods = objects.of(PODS).filter(|pod| !is_finished(pod)).count().to_string();
        let used = text(quota, &["status", "used", "pods"]);
        if used != pods {
            missing.push(format!("quota: {used} pods are counted, and {pods} exist"));
        }
    }
}

fn workloads(objects: &Objects, missing: &mut Vec<String>) {
    let mut replicated: Vec<(&str, &Arc<Value>)> = vec![];
    replicated.extend(objects.of(DEPLOYMENTS).map(|object| ("deployment", object)));
    replicated.extend(objects.of(STATEFUL_SETS).map(|object| ("stateful set", object)));
    for (kind, object) in replicated {
        let (name, replicas) = (text(object, &["metadata", "name"]), number(object, &["spec", "replicas"]));
        let sets: BTreeSet<&str> = objects
            .of_controller(REPLICA_SETS, uid(object))
            .map(|set| uid(set))
            .chain([uid(object)])
            .collect();
        let count = |ready: bool| {
            let pods = sets.iter().flat_map(|set| objects.pods_of(set));
            i64::try_from(pods.filter(|pod| !ready || is_condition_true(pod, "Ready")).count())
                .unwrap_or(i64::MAX)
        };
        for (what, counted) in [
            ("pods", count(false)),
            ("ready pods", count(true)),
            ("counted replicas", number(object, &["status", "replicas"])),
            ("counted ready replicas", number(object, &["status", "readyReplicas"])),
            ("updated replicas", number(object, &["status", "updatedReplicas"])),
        ] {
            if counted != replicas {
                missing.push(format!("{kind} {name}: {counted} {what} of {replicas}"));
            }
        }
        observed(kind, object, missing);
    }
    let nodes = i64::try_from(objects.of(NODES).count()).unwrap_or(i64::MAX);
    for set in objects.of(DAEMON_SETS) {
        let ready = number(set, &["status", "numberReady"]);
        if ready != nodes {
            missing.push(format!(
                "daemon set {}: {ready} ready pods on {nodes} nodes",
                text(set, &["metadata", "name"])
            ));
        }
        observed("daemon set", set, missing);
    }
    for job in objects.of(JOBS).filter(|job| !is_condition_true(job, "Complete")) {
        missing.push(format!("job {} is not complete: {}", text(job, &["metadata", "name"]), job["status"]));
    }
}

fn observed(kind: &str, object: &Value, missing: &mut Vec<String>) {
    let (generation, observed) =
        (number(object, &["metadata", "generation"]), number(object, &["status", "observedGeneration"]));
    if generation != observed {
        missing.push(format!(
            "{kind} {}: generation {observed} of {generation} is observed",
            text(object, &["metadata", "name"])
        ));
    }
}
