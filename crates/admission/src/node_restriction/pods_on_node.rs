//! Writes of a kubelet to pods: mirror pods, status and evictions of pods on its node.

use super::{current, new, unexpected};
use crate::pod_spec::{config_map_names, secret_names};
use kaji_engine::{Attributes, Operation};
use kaji_meta::{Status, object, semantic_equal, text::quote};
use serde_json::Value;
use std::collections::BTreeMap;

/// On pods that stand for what a kubelet runs without the API.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) async fn check(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    match a.subresource {
        "" => pod(a, node).await,
        "status" => status(a, node),
        "eviction" => eviction(a, node).await,
        other => Err(a.forbidden(format!(
            "unexpected pod subresource {}, only 'status' and 'eviction' are allowed",
            quote(other)
        ))),
    }
}

async fn pod(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let quoted = quote(node);
    match a.operation {
        Operation::Create => create(a, node).await,
        Operation::Delete => {
            let pod = current(a, "pods", a.name).await?;
            if pod["spec"]["nodeName"] != node {
                let text = format!("node {quoted} can only delete pods with spec.nodeName set to itself");
                return Err(a.forbidden(text));
            }
            Ok(())
        }
        Operation::Update | Operation::Connect => Err(a.forbidden(format!(
            "unexpected operation {}, node {quoted} can only create and delete mirror pods",
            quote(a.operation.as_str())
        ))),
    }
}

async fn create(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let (pod, quoted) = (new(a), quote(node));
    if let Some(text) = not_a_mirror(pod, node) {
        return Err(a.forbidden(text));
    }
    let nodes = kaji_meta::GroupResource::new("", "nodes");
    a.api.sync().await?;
    let known = a.api.get(&nodes, "", node).ok_or_else(|| Status::not_found(&nodes, node))?;
    let named = object::str_at(&object::owner_references(pod)[0], &["uid"]);
    if named != object::uid(&known) {
        let text = format!("node {node} UID mismatch: expected {named} got {}", object::uid(&known));
        return Err(a.forbidden(text));
    }
    match reference(pod) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => {
            Err(a.forbidden(format!("node {quoted} can not create pods that reference {what}")))
        }
        Err(error) => Err(a.forbidden(format!("error checking mirror pod for API references: {error}"))),
    }
}

/// Why a pod is no mirror of one that this node runs.
pub(super) fn not_a_mirror(pod: &Value, node: &str) -> Option<String> {
    let quoted = quote(node);
    if object::annotation(pod, MIRROR).is_none() {
        let mark = quote(MIRROR);
        return Some(format!(
            "pod does not have {mark} annotation, node {quoted} can only create mirror pods"
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return Some(format!("node {quoted} can only create pods with spec.nodeName set to itself"));
    }
    let owner = match object::owner_references(pod) {
        [owner] => owner,
        [] => {
            return Some(format!("node {quoted} can only create pods with an owner reference set to itself"));
        }
        _ => {
            return Some(format!(
                "node {quoted} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Some(format!("node {quoted} can only create pods with an owner reference set to itself"));
    }
    if owner["controller"] != true {
        let text =
            format!("node {quoted} can only create pods with a controller owner reference set to itself");
        return Some(text);
    }
    if owner["blockOwnerDeletion"] == true {
        return Some(format!("node {quoted} must not set blockOwnerDeletion on an owner reference"));
    }
    None
}

/// Which API objects a pod refers to. A source of an unknown type may refer to anything.
pub(super) fn reference(pod: &Value) -> Result<Option<&'static str>, String> {
    if !object::str_at(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    if !secret_names(pod).is_empty() {
        return Ok(Some("secrets"));
    }
    if !config_map_names(pod).is_empty() {
        return Ok(Some("configmaps"));
    }
    if !object::arr_at(pod, &["spec", "resourceClaims"]).is_empty() {
        return Ok(Some("resourceclaims"));
    }
    for volume in object::arr_at(pod, &["spec", "volumes"]) {
        if let Some(what) = of_volume(volume)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

fn of_volume(volume: &Value) -> Result<Option<&'static str>, String> {
    const PLAIN: [&str; 22] = [
        "awsElasticBlockStore",
        "azureDisk",
        "cephfs",
        "cinder",
        "downwardAPI",
        "emptyDir",
        "fc",
        "flexVolume",
        "flocker",
        "gcePersistentDisk",
        "gitRepo",
        "hostPath",
        "image",
        "iscsi",
        "nfs",
        "photonPersistentDisk",
        "portworxVolume",
        "quobyte",
        "rbd",
        "scaleIO",
        "storageos",
        "vsphereVolume",
    ];
    const REFERRING: [(&str, &str); 7] = [
        ("configMap", "configmaps (via configmap volumes)"),
        ("secret", "secrets (via secret volumes)"),
        ("csi", "csidrivers (via CSI volumes)"),
        ("glusterfs", "endpoints (via glusterFS volumes)"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        ("azureFile", "secrets (via azureFile volumes)"),
    ];
    const PROJECTED: [(&str, &str); 5] = [
        ("configMap", "configmaps (via projected volumes)"),
        ("secret", "secrets (via projected volumes)"),
        ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
        ("clusterTrustBundle", "clustertrustbundles"),
        ("podCertificate", "podcertificates"),
    ];
    let has = |v: &Value, key: &str| v.get(key).is_some_and(|v| !v.is_null());
    let name = || quote(object::str_at(volume, &["name"]));
    if PLAIN.iter().any(|key| has(volume, key)) {
        return Ok(None);
    }
    if let Some((_, what)) = REFERRING.iter().find(|(key, _)| has(volume, key)) {
        return Ok(Some(what));
    }
    if !has(volume, "projected") {
        return Err(format!("unknown volume type for volume  {}", name()));
    }
    for source in object::arr_at(volume, &["projected", "sources"]) {
        match PROJECTED.iter().find(|(key, _)| has(source, key)) {
            Some((_, what)) => return Ok(Some(what)),
            None if has(source, "downwardAPI") => {}
            None => return Err(format!("unknown source for projected volume {}", name())),
        }
    }
    Ok(None)
}

fn status(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if a.operation != Operation::Update {
        return Err(unexpected(a));
    }
    let (new, old, quoted) = (new(a), a.old.unwrap_or(&Value::Null), quote(node));
    if old["spec"]["nodeName"] != node {
        let text =
            format!("node {quoted} can only update pod status for pods with spec.nodeName set to itself");
        return Err(a.forbidden(text));
    }
    let labels = |pod| object::labels(pod).collect::<BTreeMap<&str, &str>>();
    if labels(old) != labels(new) {
        return Err(a.forbidden(format!("node {quoted} cannot update labels through pod status")));
    }
    let claims = |pod| -> Vec<(Value, Value)> {
        let list = object::arr_at(pod, &["status", "resourceClaimStatuses"]).iter();
        list.map(|c| (c["name"].clone(), c["resourceClaimName"].clone())).collect()
    };
    if claims(old) != claims(new) {
        return Err(a.forbidden(format!("node {quoted} cannot update resource claim statues")));
    }
    let extended = |pod: &Value| pod["status"]["extendedResourceClaimStatus"].clone();
    if !semantic_equal(&extended(old), &extended(new)) {
        return Err(a.forbidden(format!("node {quoted} cannot update extended resource claim status")));
    }
    Ok(())
}

async fn eviction(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if a.operation != Operation::Create {
        return Err(a.forbidden(format!("unexpected operation {}", a.operation.as_str())));
    }
    let name = if a.name.is_empty() { object::name(new(a)) } else { a.name };
    if name.is_empty() {
        return Err(a.forbidden("could not determine pod from request data"));
    }
    let pod = current(a, "pods", name).await?;
    if pod["spec"]["nodeName"] == node {
        return Ok(());
    }
    Err(a.forbidden(format!("node {node} can only evict pods with spec.nodeName set to itself")))
}
