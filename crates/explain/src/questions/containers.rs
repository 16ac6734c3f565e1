//! Containers of a pod that has a node: images, configuration, crashes, probes; the container that the others wait for.

use super::pod_volumes::missing;
use crate::{
    case::{Case, condition_is, is_finished, tell},
    names::nearest,
    paths,
    reader::Found,
    report::{Cause, Sort},
};
use kaji_meta::object::{arr_at, bool_at, i64_at, str_at};
use serde_json::Value;

/// Of a log that is shown.
const LOG_LINES: usize = 5;
const LOG_BYTES: usize = 16 << 10;
/// The exit code of a process that was ended by SIGKILL.
const KILLED: i64 = 137;

/// What keeps containers from running, or the pod from being ready.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let pod = case.object;
    if str_at(pod, &["spec", "nodeName"]).is_empty() {
        return vec![];
    }
    let mut causes = on_node(case).await;
    let init = arr_at(pod, &["status", "initContainerStatuses"]);
    for (list, statuses) in
        [("initContainers", init), ("containers", arr_at(pod, &["status", "containerStatuses"]))]
    {
        for status in statuses {
            causes.extend(of_container(case, list, status).await);
        }
    }
    if causes.is_empty() {
        causes.extend(not_ready(case).await);
    }
    if causes.is_empty() && str_at(pod, &["status", "phase"]) == "Failed" {
        let reason = format!(
            "status.reason {}: {}",
            str_at(pod, &["status", "reason"]),
            str_at(pod, &["status", "message"])
        );
        causes.push(Cause::new(Sort::Container, "it failed").known(reason));
    }
    causes
}

/// A node that does not report.
async fn on_node(case: &Case<'_>) -> Vec<Cause> {
    let name = str_at(case.object, &["spec", "nodeName"]);
    let finished = is_finished(case.object);
    match case.reader.get(&paths::path("v1", "", "nodes", name)).await {
        _ if finished => vec![],
        Found::Absent => {
            let cause = Cause::new(Sort::Node, format!("its node {name} does not exist"));
            let text = "the garbage collector of pods deletes it after its grace period";
            vec![cause.known("spec.nodeName names a node that is not there").inferred(text)]
        }
        Found::Object(node) => super::node::not_ready(&node).into_iter().collect(),
        Found::Unreadable => vec![],
    }
}

async fn of_container(case: &Case<'_>, list: &str, status: &Value) -> Option<Cause> {
    let name = str_at(status, &["name"]);
    let reason = str_at(status, &["state", "waiting", "reason"]);
    let message = str_at(status, &["state", "waiting", "message"]);
    let waiting = format!("container {name} waits: {reason}: {message}");
    let spec = arr_at(case.object, &["spec", list]).iter().find(|c| str_at(c, &["name"]) == name);
    match reason {
        "ImagePullBackOff"
        | "ErrImagePull"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => Some(image(case, status, spec, &waiting).await),
        "CreateContainerConfigError" => Some(configuration(case, name, spec?, &waiting).await),
        "CreateContainerError"
        | "RunContainerError"
        | "PreCreateHookError"
        | "PreStartHookError"
        | "PostStartHookError" => {
            Some(Cause::new(Sort::Container, format!("container {name} cannot be started")).known(waiting))
        }
        "CrashLoopBackOff" => Some(crash(case, status, Some(waiting)).await),
        _ => {
            let code = i64_at(status, &["state", "terminated", "exitCode"])?;
            if code == 0 {
                return None;
            }
            Some(crash(case, status, None).await)
        }
    }
}

async fn image(case: &Case<'_>, status: &Value, spec: Option<&Value>, waiting: &str) -> Cause {
    let image = match str_at(status, &["image"]) {
        "" => spec.map_or("", |spec| str_at(spec, &["image"])),
        image => image,
    };
    let mut cause = Cause::new(Sort::Image, format!("the image {image} cannot be pulled")).known(waiting);
    if let Some(event) = case.event(&["Failed"]).await {
        cause = cause.known(event);
    }
    let mut secrets = vec![];
    for secret in arr_at(case.object, &["spec", "imagePullSecrets"]) {
        let name = str_at(secret, &["name"]);
        secrets.push(name);
        if case.beside("v1", "secrets", name).await.is_absent() {
            cause = cause.known(format!("its pull secret {name} does not exist"));
            cause =
                cause.fix(format!("kubectl create secret docker-registry {name} -n {}", case.namespace()));
        }
    }
    let text = cause.chain.iter().map(|s| s.text.to_lowercase()).collect::<Vec<_>>().join(" ");
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let (inferred, fix) = if text.contains("invalidimagename") {
        ("the name of the image is malformed", "correct the image's name")
    } else if text.contains("errimageneverpull") {
        (
            "imagePullPolicy is Never and the node does not have the image",
            "kaji image load it on the node, or let the policy be IfNotPresent",
        )
    } else if says(&[
        "no such host",
        "name resolution",
        "dns error",
        "failed to lookup",
        "server misbehaving",
    ]) {
        (
            "the registry's name cannot be resolved on the node",
            "correct the registry's name, or the node's DNS",
        )
    } else if says(&["unauthorized", "401", "403", "denied", "authentication"]) && secrets.is_empty() {
        (
            "the registry asks for credentials, and the pod names no pull secret",
            "create a docker-registry secret and name it in imagePullSecrets; or correct the image's name (registries answer so for names they do not have)",
        )
    } else if says(&["unauthorized", "401", "403", "denied", "authentication"]) {
        (
            "the registry refuses the credentials of the pull secrets",
            "renew the pull secret; or correct the image's name",
        )
    } else if says(&["not found", "404", "manifest unknown"]) {
        ("the registry does not have this name or tag", "correct the image's name or tag")
    } else if says(&["timeout", "timed out", "refused", "unreachable", "no route"]) {
        ("the registry cannot be reached from the node", "check the node's way to the registry, or a mirror")
    } else {
        return cause;
    };
    cause.inferred(inferred).fix(fix)
}

/// A container that waits for something which its environment names.
async fn configuration(case: &Case<'_>, name: &str, spec: &Value, waiting: &str) -> Cause {
    let mut cause =
        Cause::new(Sort::Container, format!("the configuration of container {name} is incomplete"))
            .known(waiting);
    let from = arr_at(spec, &["envFrom"])
        .iter()
        .flat_map(|from| [(from.get("configMapRef"), true), (from.get("secretRef"), false)]);
    let values = arr_at(spec, &["env"]).iter().filter_map(|env| env.get("valueFrom"));
    let values =
        values.flat_map(|from| [(from.get("configMapKeyRef"), true), (from.get("secretKeyRef"), false)]);
    for (source, config_map) in from.chain(values) {
        let Some(source) = source.filter(|source| bool_at(source, &["optional"]) != Some(true)) else {
            continue;
        };
        let (wanted, key) = (str_at(source, &["name"]), str_at(source, &["key"]));
        let sort = if config_map { ("configmaps", "ConfigMap") } else { ("secrets", "Secret") };
        if let Some(missing) = missing(case, sort, wanted, &format!("container {name}")).await {
            cause.chain.extend(missing.chain);
            cause.summary = missing.summary;
            cause.nearest = missing.nearest;
            cause.fixes.extend(missing.fixes);
        } else if let Some(object) = case.beside("v1", sort.0, wanted).await.object() {
            let keys = ["data", "binaryData"].into_iter().filter_map(|at| object.get(at)?.as_object());
            let keys: Vec<&str> = keys.flat_map(|map| map.keys().map(String::as_str)).collect();
            if !key.is_empty() && !keys.contains(&key) {
                cause = cause.known(format!("{} {wanted} has no key {key}", sort.1));
                if let Some(near) = nearest(key, keys.iter().copied()) {
                    cause = cause.nearest(format!("it has the key {near}"));
                }
                cause =
                    cause.fix(format!("add the key {key} to {} {wanted}, or correct the reference", sort.1));
            }
        }
    }
    cause
}

async fn crash(case: &Case<'_>, status: &Value, waiting: Option<String>) -> Cause {
    let name = str_at(status, &["name"]);
    let last = if waiting.is_some() { "lastState" } else { "state" };
    let (code, reason) =
        (i64_at(status, &[last, "terminated", "exitCode"]), str_at(status, &[last, "terminated", "reason"]));
    let restarts = i64_at(status, &["restartCount"]).unwrap_or_default();
    let code_text = code.map_or_else(String::new, |code| format!(" with code {code}"));
    let mut cause =
        Cause::new(Sort::Container, format!("container {name} ends{code_text}, restarted {restarts} times"));
    if let Some(text) = waiting {
        cause = cause.known(text);
    }
    if let Some(code) = code {
        cause = cause.known(format!("its last end: {reason}, exit code {code}"));
    }
    match str_at(status, &[last, "terminated", "message"]) {
        "" => {}
        message => cause = cause.known(format!("its termination message: {message}")),
    }
    if reason == "OOMKilled" {
        cause = cause
            .inferred("it used more memory than its limit")
            .fix("raise resources.limits.memory, or let it use less");
    } else if code == Some(KILLED) {
        cause = cause.inferred("it was killed: by its liveness probe, or from outside");
    } else if code == Some(127) || code == Some(128) {
        cause = cause
            .inferred("its command was not found or could not be executed")
            .fix("correct command and args, or the image");
    }
    if let Some(event) = case.event(&["Unhealthy", "Killing"]).await {
        cause = cause.known(event);
    }
    let path = paths::log(case.namespace(), case.name(), name, last == "lastState", LOG_LINES);
    let log = case.reader.text(&path, LOG_BYTES).await;
    let lines: Vec<&str> = log.lines().collect();
    if !lines.is_empty() {
        let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
        cause = cause.known(format!("its last lines:\n{tail}"));
    }
    cause.fix(format!("kubectl logs -n {} {} -c {name} --previous", case.namespace(), case.name()))
}

/// A pod that runs and is not ready.
async fn not_ready(case: &Case<'_>) -> Option<Cause> {
    let pod = case.object;
    let condition = condition_is(pod, "Ready", "False")?;
    if is_finished(pod) {
        return None;
    }
    let mut cause = Cause::new(Sort::Readiness, "it is not ready").known(tell(condition));
    let statuses = arr_at(pod, &["status", "containerStatuses"]);
    for status in statuses.iter().filter(|status| bool_at(status, &["ready"]) == Some(false)) {
        let name = str_at(status, &["name"]);
        let spec = arr_at(pod, &["spec", "containers"]).iter().find(|c| str_at(c, &["name"]) == name);
        let started = bool_at(status, &["started"]) == Some(true);
        for (probe, says) in [("startupProbe", !started), ("readinessProbe", started)] {
            if says && spec.is_some_and(|spec| spec.get(probe).is_some()) {
                cause = cause.inferred(format!("the {probe} of container {name} does not succeed"));
            }
        }
    }
    for gate in arr_at(pod, &["spec", "readinessGates"]) {
        let sort = str_at(gate, &["conditionType"]);
        if condition_is(pod, sort, "True").is_none() {
            cause = cause.known(format!("the readiness gate {sort} is not True"));
            cause = cause.fix(format!(
                "the controller that sets the condition {sort} has not done so; look at its logs"
            ));
        }
    }
    if let Some(event) = case.event(&["Unhealthy"]).await {
        cause = cause.known(event);
    }
    Some(cause)
}
