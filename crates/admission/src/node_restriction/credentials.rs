//! Credentials that a kubelet requests on behalf of the pods that run on its node.

use super::{current, new, pods_on_node::MIRROR, unsure};
use kaji_auth::{Attributes as Question, Authorizer};
use kaji_engine::{Attributes, Operation};
use kaji_meta::{GroupResource, Status, object, text::quote};
use serde_json::Value;

/// Tokens are bound to pods of the node, for audiences that those pods name.
pub(super) async fn check(a: &Attributes<'_>, node: &str, authorizer: &dyn Authorizer) -> Result<(), Status> {
    if a.operation != Operation::Create || a.subresource != "token" {
        return Ok(());
    }
    let token = new(a);
    let bound = &token["spec"]["boundObjectRef"];
    let name = object::str_at(bound, &["name"]);
    if bound["apiVersion"] != "v1" || bound["kind"] != "Pod" || name.is_empty() {
        return Err(a.forbidden("node requested token not bound to a pod"));
    }
    let uid = object::str_at(bound, &["uid"]);
    if uid.is_empty() {
        return Err(a.forbidden("node requested token with a pod binding without a uid"));
    }
    let pod = current(a, "pods", name).await?;
    if uid != object::uid(&pod) {
        return Err(a.forbidden(format!("the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated")));
    }
    if pod["spec"]["nodeName"] != node {
        return Err(a.forbidden("node requested token bound to a pod scheduled on a different node"));
    }
    audience(a, token, &pod, authorizer).await.map_err(|text| a.forbidden(text))
}

async fn audience(
    a: &Attributes<'_>,
    token: &Value,
    pod: &Value,
    authorizer: &dyn Authorizer,
) -> Result<(), String> {
    let audience = match object::arr_at(token, &["spec", "audiences"]) {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Err("node may only request 0 or 1 audiences".into()),
    };
    match names_audience(a, pod, audience) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) => return Err(format!("error validating audience {}: {error}", quote(audience))),
    }
    let question = Question {
        namespace: a.namespace,
        version: "v1",
        name: a.name,
        ..Question::resource(a.user, "request-serviceaccounts-token-audience", "", audience)
    };
    let outcome = authorizer.authorize(&question).await;
    if outcome.allowed() {
        return Ok(());
    }
    let (audience, user) = (quote(audience), &a.user.name);
    Err(match outcome.error {
        Some(error) => format!(
            "audience {audience} not found in pod spec volume, error authorizing {user} to request tokens for this audience: {error}"
        ),
        None => format!(
            "audience {audience} not found in pod spec volume, {user} is not authorized to request tokens for this audience"
        ),
    })
}

/// The CSI drivers that took over what was built in.
const MIGRATED: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

fn migrated(volume: &Value) -> Option<&'static str> {
    MIGRATED.iter().find(|(key, _)| volume[*key].is_object()).map(|(_, driver)| *driver)
}

/// Whether a pod needs tokens for an audience: in a projected volume, or because the driver of a volume does.
fn names_audience(a: &Attributes<'_>, pod: &Value, audience: &str) -> Result<bool, String> {
    let mut errors = vec![];
    for volume in object::arr_at(pod, &["spec", "volumes"]) {
        let sources = object::arr_at(volume, &["projected", "sources"]).iter();
        let mut tokens = sources.map(|s| &s["serviceAccountToken"]).filter(|t| t.is_object());
        if tokens.any(|t| t["audience"].as_str().unwrap_or_default() == audience) {
            return Ok(true);
        }
        let found = driver_of(a, pod, volume).and_then(|driver| match driver {
            Some(driver) => driver_asks(a, &driver, audience),
            None => Ok(false),
        });
        match found {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    match errors.as_slice() {
        [] => Ok(false),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn get(
    a: &Attributes<'_>,
    resource: &GroupResource,
    namespace: &str,
    name: &str,
) -> Result<std::sync::Arc<Value>, String> {
    let missing = || Status::not_found(resource, name).message;
    a.api.get(resource, namespace, name).ok_or_else(missing)
}

fn driver_of(a: &Attributes<'_>, pod: &Value, volume: &Value) -> Result<Option<String>, String> {
    let some = |name: &str| Ok(Some(name.to_owned()).filter(|n| !n.is_empty()));
    let claim = if volume["ephemeral"]["volumeClaimTemplate"].is_object() {
        format!("{}-{}", object::name(pod), object::str_at(volume, &["name"]))
    } else if volume["persistentVolumeClaim"].is_object() {
        object::str_at(volume, &["persistentVolumeClaim", "claimName"]).to_owned()
    } else if volume["csi"].is_object() {
        return some(object::str_at(volume, &["csi", "driver"]));
    } else {
        return Ok(migrated(volume).map(str::to_owned));
    };
    let claims = GroupResource::new("", "persistentvolumeclaims");
    let claim = get(a, &claims, object::namespace(pod), &claim)?;
    let name = object::str_at(&claim, &["spec", "volumeName"]);
    let volume = get(a, &GroupResource::new("", "persistentvolumes"), "", name)?;
    match migrated(&volume["spec"]) {
        Some(driver) if !volume["spec"]["csi"].is_object() => some(driver),
        _ => some(object::str_at(&volume, &["spec", "csi", "driver"])),
    }
}

fn driver_asks(a: &Attributes<'_>, driver: &str, audience: &str) -> Result<bool, String> {
    let driver = get(a, &GroupResource::new("storage.k8s.io", "csidrivers"), "", driver)?;
    let mut asks = object::arr_at(&driver, &["spec", "tokenRequests"]).iter();
    Ok(asks.any(|t| t["audience"].as_str().unwrap_or_default() == audience))
}

/// Certificates are for pods that run on the node, as the accounts that they run as.
pub(super) async fn certificate(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if a.operation != Operation::Create {
        return Err(a.forbidden(format!("unexpected operation {}", a.operation.as_str())));
    }
    if !a.subresource.is_empty() {
        return Err(a.forbidden(format!("unexpected subresource {}", a.subresource)));
    }
    let field = |name: &str| object::str_at(new(a), &["spec", name]);
    if field("nodeName") != node {
        return Err(a.forbidden(format!(
            "PodCertificateRequest.Spec.NodeName={}, which is not the requesting node {}",
            quote(field("nodeName")),
            quote(node)
        )));
    }
    a.api.sync().await?;
    let pod_name = quote(&format!("{}/{}", a.namespace, field("podName")));
    let known = get(a, &GroupResource::new("", "nodes"), "", node).map_err(|e| {
        unsure(format!("while retrieving node {} named in the PodCertificateRequest: {e}", quote(node)))
    })?;
    if object::uid(&known) != field("nodeUID") {
        return Err(unsure(format!(
            "PodCertificateRequest for pod {pod_name} names node UID {}, inconsistent with the running node ({})",
            quote(field("nodeUID")),
            quote(object::uid(&known))
        )));
    }
    let pod = get(a, &GroupResource::new("", "pods"), a.namespace, field("podName")).map_err(|e| {
        unsure(format!("while retrieving pod {pod_name} named in the PodCertificateRequest: {e}"))
    })?;
    if object::uid(&pod) != field("podUID") {
        return Err(unsure(format!(
            "PodCertificateRequest for pod {pod_name} contains pod UID ({}) which differs from running pod {}",
            quote(field("podUID")),
            quote(object::uid(&pod))
        )));
    }
    if pod["spec"]["nodeName"] != node {
        return Err(a.forbidden(format!(
            "pod {pod_name} is not running on node {} named in the PodCertificateRequest",
            quote(node)
        )));
    }
    if object::annotation(&pod, MIRROR).is_some() {
        return Err(a.forbidden(format!("pod {pod_name} is a mirror pod")));
    }
    account(a, &pod, &pod_name)
}

fn account(a: &Attributes<'_>, pod: &Value, pod_name: &str) -> Result<(), Status> {
    let field = |name: &str| object::str_at(new(a), &["spec", name]);
    let runs_as = object::str_at(pod, &["spec", "serviceAccountName"]);
    let named = field("serviceAccountName");
    if named != runs_as {
        return Err(a.forbidden(format!("PodCertificateRequest for pod {pod_name} contains serviceAccountName ({}) that differs from running pod ({})", quote(named), quote(runs_as))));
    }
    let full = quote(&format!("{}/{named}", a.namespace));
    let account = get(a, &GroupResource::new("", "serviceaccounts"), a.namespace, named).map_err(|e| {
        unsure(format!("while retrieving service account {full} named in the PodCertificateRequest: {e}"))
    })?;
    if object::uid(&account) == field("serviceAccountUID") {
        return Ok(());
    }
    Err(unsure(format!(
        "PodCertificateRequest for pod {pod_name} names service account UID {}, which differs from the running service account ({})",
        quote(field("serviceAccountUID")),
        quote(object::uid(&account))
    )))
}
