//! The checks that the restricted level adds.

use super::{
    baseline::{added_capabilities, unusual_proc_mount},
    checks::{
        Found, all, bad_profiles, containers_text, context, name, own_users, plural, quoted, safe_profile,
        setters, windows,
    },
    policy::Version,
};
use kaji_meta::object;
use serde_json::Value;
use std::collections::BTreeSet;

pub(super) fn privilege_escalation(pod: &Value, version: Version) -> Option<Found> {
    if !version.since(8) || version.since(25) && windows(pod) {
        return None;
    }
    let may = |c: &&Value| context(c, &["allowPrivilegeEscalation"]) != &Value::Bool(false);
    let names: Vec<&str> = all(pod).filter(may).map(name).collect();
    (!names.is_empty()).then(|| Found {
        reason: "allowPrivilegeEscalation != false",
        detail: format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            containers_text(&names)
        ),
    })
}

pub(super) fn capabilities(pod: &Value, version: Version) -> Option<Found> {
    if !version.since(22) || version.since(25) && windows(pod) {
        return None;
    }
    let keeps = |c: &&Value| {
        !object::strs_at(c, &["securityContext", "capabilities", "drop"]).any(|dropped| dropped == "ALL")
    };
    let names: Vec<&str> = all(pod).filter(keeps).map(name).collect();
    let mut details = vec![];
    if !names.is_empty() {
        details.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            containers_text(&names)
        ));
    }
    details.extend(added_capabilities(pod, &["NET_BIND_SERVICE"]));
    (!details.is_empty()).then(|| Found { reason: "unrestricted capabilities", detail: details.join("; ") })
}

pub(super) fn proc_mount(pod: &Value, version: Version) -> Option<Found> {
    if version.since(35) { unusual_proc_mount(pod) } else { None }
}

pub(super) fn volumes(pod: &Value, _: Version) -> Option<Found> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    const KNOWN: [&str; 21] = [
        "hostPath",
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "gitRepo",
        "nfs",
        "iscsi",
        "glusterfs",
        "rbd",
        "flexVolume",
        "cinder",
        "cephfs",
        "flocker",
        "fc",
        "azureFile",
        "vsphereVolume",
        "quobyte",
        "azureDisk",
        "photonPersistentDisk",
        "portworxVolume",
        "scaleIO",
        "storageos",
    ];
    let (mut names, mut types) = (vec![], BTreeSet::new());
    for volume in object::arr_at(pod, &["spec", "volumes"]) {
        let is = |ty: &&&str| volume.get(**ty).is_some_and(|v| !v.is_null());
        if ALLOWED.iter().find(is).is_none() {
            names.push(name(volume));
            types.insert(*KNOWN.iter().find(is).unwrap_or(&"unknown"));
        }
    }
    (!names.is_empty()).then(|| Found {
        reason: "restricted volume types",
        detail: format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", names.len()),
            quoted(&names),
            plural("uses", "use", names.len()),
            plural("restricted volume type", "restricted volume types", types.len()),
            quoted(types)
        ),
    })
}

pub(super) fn non_root(pod: &Value, version: Version) -> Option<Found> {
    if version.since(35) && own_users(pod) {
        return None;
    }
    let says = |of: &Value| context(of, &["runAsNonRoot"]).as_bool();
    let whole = says(pod);
    let reason = "runAsNonRoot != true";
    let root: Vec<&str> = all(pod).filter(|c| says(c) == Some(false)).map(name).collect();
    if let Some(setters_text) = setters(whole == Some(false), &root) {
        return Some(Found {
            reason,
            detail: format!("{setters_text} must not set securityContext.runAsNonRoot=false"),
        });
    }
    if whole == Some(true) {
        return None;
    }
    let silent: Vec<&str> = all(pod).filter(|c| says(c).is_none()).map(name).collect();
    let detail = || format!("pod or {} must set securityContext.runAsNonRoot=true", containers_text(&silent));
    (!silent.is_empty()).then(|| Found { reason, detail: detail() })
}

pub(super) fn user(pod: &Value, version: Version) -> Option<Found> {
    if !version.since(23) || version.since(35) && own_users(pod) {
        return None;
    }
    let root = |of: &Value| context(of, &["runAsUser"]).as_i64() == Some(0);
    let names: Vec<&str> = all(pod).filter(|c| root(c)).map(name).collect();
    let setters_text = setters(root(pod), &names)?;
    Some(Found { reason: "runAsUser=0", detail: format!("{setters_text} must not set runAsUser=0") })
}

pub(super) fn seccomp(pod: &Value, version: Version) -> Option<Found> {
    if !version.since(19) || version.since(25) && windows(pod) {
        return None;
    }
    let reason = "seccompProfile";
    let (whole, names, values) = bad_profiles(pod, "seccompProfile");
    if let Some(setters_text) = setters(whole, &names) {
        let detail =
            format!("{setters_text} must not set securityContext.seccompProfile.type to {}", quoted(values));
        return Some(Found { reason, detail });
    }
    if safe_profile(context(pod, &["seccompProfile"])) {
        return None;
    }
    let silent: Vec<&str> =
        all(pod).filter(|c| !context(c, &["seccompProfile"]).is_object()).map(name).collect();
    let text = || {
        format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            containers_text(&silent)
        )
    };
    (!silent.is_empty()).then(|| Found { reason, detail: text() })
}
