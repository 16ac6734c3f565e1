//! Containers of all three lists.

use super::{Cx, env, image_without_spaces, paths, probes, requirements, security};
use crate::{
    core::pods::is_sidecar,
    shared::{Fields, check},
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};

/// Fields that an ephemeral container may not set.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

pub(super) fn containers(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    let list = cx.spec.list("containers");
    if list.is_empty() {
        errs.push(Error::required(path, ""));
        return;
    }
    let mut names = HashSet::new();
    for (i, c) in list.iter().enumerate() {
        let path = path.index(i);
        common(errs, cx, &path, c);
        if !names.insert(c.text("name")) {
            errs.push(Error::duplicate(&path.child("name"), c.text("name")));
        }
        probes::of_container(errs, cx, &path, c);
        restart_policy(errs, &path, c);
    }
    host_ports(errs, path, list, 0);
}

pub(super) fn init_containers(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    let mut names: HashSet<&str> = cx.spec.list("containers").iter().map(|c| c.text("name")).collect();
    for (i, c) in cx.spec.list("initContainers").iter().enumerate() {
        let own = path.index(i);
        common(errs, cx, &own, c);
        if c.has("restartPolicy") {
            restart_policy(errs, &own, c);
        } else if !c.list("restartPolicyRules").is_empty() {
            let text = "must specify restartPolicy when restart rules are used";
            errs.push(Error::required(&own.child("restartPolicy"), text));
        }
        let name = c.text("name");
        if names.contains(name) {
            errs.push(Error::duplicate(&own.child("name"), name));
        } else if !name.is_empty() {
            names.insert(name);
        }
        host_ports(errs, path, std::slice::from_ref(c), 0);
        if is_sidecar(c) {
            probes::of_container(errs, cx, &own, c);
        } else {
            for f in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if c.has(f) {
                    let text = "may not be set for init containers without restartPolicy=Always";
                    errs.push(Error::forbidden(&own.child(f), text));
                }
            }
            for (j, p) in c.list("resizePolicy").iter().enumerate() {
                if p.text("restartPolicy") == "RestartContainer" {
                    let text = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                    let path = own.child("resizePolicy").index(j).child("restartPolicy");
                    errs.push(Error::invalid(&path, "RestartContainer", text));
                }
            }
        }
    }
}

pub(super) fn ephemeral_containers(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    let others: HashSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|l| cx.spec.list(l))
        .map(|c| c.text("name"))
        .collect();
    let mut names = others.clone();
    for (i, c) in cx.spec.list("ephemeralContainers").iter().enumerate() {
        let path = path.index(i);
        common(errs, cx, &path, c);
        image_without_spaces(errs, &path, c);
        if !names.insert(c.text("name")) {
            errs.push(Error::duplicate(&path.child("name"), c.text("name")));
        }
        let target = c.text("targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            errs.push(Error::not_found(&path.child("targetContainerName"), target));
        }
        for f in NOT_EPHEMERAL {
            let set = match c.at(f) {
                Value::Array(a) => !a.is_empty(),
                Value::Object(o) => f != "resources" || !o.is_empty(),
                other => !other.is_null(),
            };
            if set {
                errs.push(Error::forbidden(&path.child(f), "cannot be set for an Ephemeral Container"));
            }
        }
        for (j, m) in c.list("volumeMounts").iter().enumerate() {
            for f in ["subPath", "subPathExpr"] {
                if !m.text(f).is_empty() {
                    let path = path.child("volumeMounts").index(j).child(f);
                    errs.push(Error::forbidden(&path, "cannot be set for an Ephemeral Container"));
                }
            }
        }
    }
}

/// What every container is held to.
fn common(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, c: &Value) {
    let name = c.text("name");
    if name.is_empty() {
        errs.push(Error::required(&path.child("name"), ""));
    } else {
        check::dns_label(errs, &path.child("name"), name);
    }
    check::required(errs, &path.child("image"), c.text("image"));
    check::required_one_of(
        errs,
        &path.child("terminationMessagePolicy"),
        c.text("terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    );
    ports(errs, &path.child("ports"), c);
    env::env(errs, &path.child("env"), c);
    env::env_from(errs, &path.child("envFrom"), c);
    mounts(errs, cx, &path.child("volumeMounts"), c);
    devices(errs, cx, &path.child("volumeDevices"), c);
    pull_policy(errs, &path.child("imagePullPolicy"), c.text("imagePullPolicy"));
    requirements::requirements(errs, &path.child("resources"), c.at("resources"), &cx.claims);
    resize_policy(errs, cx, &path.child("resizePolicy"), c);
    security::container(errs, cx, &path.child("securityContext"), c);
}

/// When to pull an image.
pub(super) fn pull_policy(errs: &mut ErrorList, path: &Path, policy: &str) {
    check::required_one_of(errs, path, policy, &["Always", "IfNotPresent", "Never"]);
}

fn ports(errs: &mut ErrorList, path: &Path, c: &Value) {
    let mut names = HashSet::new();
    for (i, p) in c.list("ports").iter().enumerate() {
        let path = path.index(i);
        let name = p.text("name");
        if !name.is_empty() {
            let messages = validation::is_valid_port_name(name);
            if !messages.is_empty() {
                check::each(errs, &path.child("name"), name, messages);
            } else if !names.insert(name) {
                errs.push(Error::duplicate(&path.child("name"), name));
            }
        }
        let number = |errs: &mut ErrorList, field: &str| {
            let n = p.int(field);
            let messages = validation::is_valid_port_num(n);
            errs.extend(messages.into_iter().map(|m| Error::invalid(&path.child(field), n, m)));
        };
        if p.int("containerPort") == 0 {
            errs.push(Error::required(&path.child("containerPort"), ""));
        } else {
            number(errs, "containerPort");
        }
        if p.int("hostPort") != 0 {
            number(errs, "hostPort");
        }
        check::required_one_of(errs, &path.child("protocol"), p.text("protocol"), &["SCTP", "TCP", "UDP"]);
    }
}

/// No two containers of a list may take the same host port.
fn host_ports(errs: &mut ErrorList, path: &Path, list: &[Value], first: usize) {
    let mut taken = HashSet::new();
    for (i, c) in list.iter().enumerate() {
        for (j, p) in c.list("ports").iter().enumerate().filter(|(_, p)| p.int("hostPort") != 0) {
            let key = format!("{}/{}/{}", p.text("protocol"), p.text("hostIP"), p.int("hostPort"));
            if taken.contains(&key) {
                let path = path.index(first + i).child("ports").index(j).child("hostPort");
                errs.push(Error::duplicate(&path, key));
            } else {
                taken.insert(key);
            }
        }
    }
}

fn mounts(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, c: &Value) {
    let mut seen = HashSet::new();
    let devices = c.list("volumeDevices");
    for (i, m) in c.list("volumeMounts").iter().enumerate() {
        let own = path.index(i);
        let (name, at) = (m.text("name"), m.text("mountPath"));
        check::required(errs, &own.child("name"), name);
        if !cx.volumes.contains_key(name) {
            errs.push(Error::not_found(&own.child("name"), name));
        }
        check::required(errs, &own.child("mountPath"), at);
        if !seen.insert(at) {
            errs.push(Error::invalid(&own.child("mountPath"), at, "must be unique"));
        }
        if devices.iter().any(|d| d.text("name") == name) {
            errs.push(Error::invalid(&own.child("name"), name, "must not already exist in volumeDevices"));
        }
        if devices.iter().any(|d| d.text("devicePath") == at) {
            let text = "must not already exist as a path in volumeDevices";
            errs.push(Error::invalid(&own.child("mountPath"), at, text));
        }
        let (sub, expr) = (m.text("subPath"), m.text("subPathExpr"));
        if !sub.is_empty() {
            paths::local_descending(errs, &path.child("subPath"), sub);
        }
        if !expr.is_empty() {
            if !sub.is_empty() {
                let text = "subPathExpr and subPath are mutually exclusive";
                errs.push(Error::invalid(&own.child("subPathExpr"), expr, text));
            }
            paths::local_descending(errs, &path.child("subPathExpr"), expr);
        }
        mount_modes(errs, path, c, m);
    }
}

fn mount_modes(errs: &mut ErrorList, path: &Path, c: &Value, m: &Value) {
    let propagation = m.opt_text("mountPropagation");
    if let Some(p) = propagation {
        let path = path.child("mountPropagation");
        check::one_of(errs, &path, p, &["Bidirectional", "HostToContainer", "None"]);
        if p == "Bidirectional" && !c.at("securityContext").flag("privileged") {
            let text = "Bidirectional mount propagation is available only to privileged containers";
            errs.push(Error::forbidden(&path, text));
        }
    }
    let path = path.child("recursiveReadOnly");
    match m.opt_text("recursiveReadOnly") {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !m.flag("readOnly") {
                errs.push(Error::forbidden(&path, "may only be specified when readOnly is true"));
            }
            if propagation.is_some_and(|p| p != "None") {
                let text = "may only be specified when mountPropagation is None or not specified";
                errs.push(Error::forbidden(&path, text));
            }
        }
        Some(other) => errs.push(Error::not_supported(&path, other, &["Disabled", "Enabled", "IfPossible"])),
    }
}

fn devices(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, c: &Value) {
    let (mut names, mut at_paths) = (HashSet::new(), HashSet::new());
    let mounts = c.list("volumeMounts");
    for (i, d) in c.list("volumeDevices").iter().enumerate() {
        let path = path.index(i);
        let (name, at) = (d.text("name"), d.text("devicePath"));
        let (name_path, at_path) = (path.child("name"), path.child("devicePath"));
        check::required(errs, &name_path, name);
        if names.contains(name) {
            errs.push(Error::invalid(&name_path, name, "must be unique"));
        }
        match cx.volumes.get(name) {
            Some(v) if !v.has("persistentVolumeClaim") && !v.has("ephemeral") => errs.push(Error::invalid(
                &name_path,
                name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            )),
            Some(_) => {}
            None => errs.push(Error::not_found(&name_path, name)),
        }
        check::required(errs, &at_path, at);
        if at_paths.contains(at) {
            errs.push(Error::invalid(&at_path, at, "must be unique"));
        }
        if at.split('/').any(|s| s == "..") {
            errs.push(Error::invalid(&at_path, at, "can not contain backsteps ('..')"));
        } else {
            at_paths.insert(at);
        }
        if mounts.iter().any(|m| m.text("name") == name) {
            errs.push(Error::invalid(&name_path, name, "must not already exist in volumeMounts"));
        }
        if mounts.iter().any(|m| m.text("mountPath") == at) {
            errs.push(Error::invalid(&at_path, at, "must not already exist as a path in volumeMounts"));
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}

fn resize_policy(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path, c: &Value) {
    let mut seen = BTreeSet::new();
    for (i, p) in c.list("resizePolicy").iter().enumerate() {
        let (resource, policy) = (p.text("resourceName"), p.text("restartPolicy"));
        if !seen.insert(resource) {
            errs.push(Error::duplicate(&path.index(i), resource));
        }
        check::required_one_of(errs, path, resource, &["cpu", "memory"]);
        check::required_one_of(errs, path, policy, &["NotRequired", "RestartContainer"]);
        if cx.spec.text("restartPolicy") == "Never" && policy != "NotRequired" {
            let text = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errs.push(Error::invalid(path, policy, text));
        }
    }
}

/// A container's own restart policy and rules.
fn restart_policy(errs: &mut ErrorList, path: &Path, c: &Value) {
    let rules = c.list("restartPolicyRules");
    let own = path.child("restartPolicy");
    match c.opt_text("restartPolicy") {
        None if rules.is_empty() => return,
        None => errs.push(Error::required(&own, "must specify restartPolicy when restart rules are used")),
        Some(p) => check::one_of(errs, &own, p, &["Always", "Never", "OnFailure"]),
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > 20 {
        errs.push(Error::too_many(&path, rules.len(), 20));
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.index(i);
        let actions = ["Restart", "RestartAllContainers"];
        check::one_of(errs, &path.child("action"), rule.text("action"), &actions);
        let path = path.child("exitCodes");
        match rule.get_field("exitCodes") {
            None => errs.push(Error::required(&path, "must be specified")),
            Some(codes) => {
                check::one_of(errs, &path.child("operator"), codes.text("operator"), &["In", "NotIn"]);
                let n = codes.list("values").len();
                if n > 255 {
                    errs.push(Error::too_many(&path.child("values"), n, 255));
                }
            }
        }
    }
}
