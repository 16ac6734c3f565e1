//! Assigning a pod to a node, through `pods/binding` or `bindings`.

use crate::shared::{
    Fields,
    conditions::{self, Condition},
    value::{drop_field, ensure_object, put},
};
use kaji_meta::{
    GroupResource, Path, Reason, Status,
    field::{self, Error},
    object,
};
use kaji_resource::{Ctx, FieldManagement, Members, UpdateOptions};
use serde_json::Value;

/// What an assignment reads and sets of a pod.
const MEMBERS: Members = &[
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "uid"),
    ("metadata", "resourceVersion"),
    ("metadata", "deletionTimestamp"),
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec", "nodeName"),
    ("spec", "schedulingGates"),
    ("status", "nominatedNodeName"),
    ("status", "conditions"),
];

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

/// Serves the creation of a Binding for the pod that it names.
pub async fn bind(ctx: &Ctx<'_>, name: &str, binding: &Value) -> Result<(u16, Value), Status> {
    if name != object::name(binding) {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let errs = validate(binding);
    if !errs.is_empty() {
        // Upstream returns the bare list here, which becomes an error without a reason.
        return Err(Status::new(500, Reason::Unknown, field::aggregate(&errs)));
    }
    let change = |pod: &mut Value| assign(pod, binding, ctx.now);
    let options =
        UpdateOptions::new("binding", FieldManagement::Skip).dry_run(ctx.dry_run).of_members(MEMBERS);
    ctx.api.update(&pods(), ctx.namespace, name, options, &change).await?;
    Ok((201, Status::success(201)))
}

fn validate(binding: &Value) -> field::ErrorList {
    let mut errs = vec![];
    let target = binding.at("target");
    let path = Path::new("target");
    if !matches!(target.text("kind"), "" | "Node") {
        errs.push(Error::not_supported(&path.child("kind"), target.text("kind"), &["Node", "<empty>"]));
    }
    if target.text("name").is_empty() {
        errs.push(Error::required(&path.child("name"), ""));
    }
    errs
}

/// Sets the node's name, and the annotations and labels of the binding.
fn assign(pod: &mut Value, binding: &Value, now: jiff::Timestamp) -> Result<(), Status> {
    let name = object::name(pod).to_owned();
    let refuse = |why: String| {
        // The resource in this message is the subresource's.
        Err(Status::conflict(&GroupResource::new("", "pods/binding"), &name, why))
    };
    let invalid = |field: &str, want: &str, have: &str| {
        let key = format!("/registry/pods/{}/{name}", object::namespace(pod));
        Status::conflict(
            &pods(),
            &name,
            format!(
                "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
                 Precondition failed: {field} in precondition: {want}, {field} in object meta: {have}"
            ),
        )
    };
    let (uid, version) = (object::uid(binding), object::resource_version(binding));
    if !uid.is_empty() && uid != object::uid(pod) {
        return Err(invalid("UID", uid, object::uid(pod)));
    }
    if !version.is_empty() && version != object::resource_version(pod) {
        return Err(invalid("ResourceVersion", version, object::resource_version(pod)));
    }
    if object::deletion_timestamp(pod).is_some() {
        return refuse(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = pod.at("spec").text("nodeName");
    if !node.is_empty() {
        return refuse(format!("pod {name} is already assigned to node {}", kaji_meta::text::quote(node)));
    }
    if !pod.at("spec").list("schedulingGates").is_empty() {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    put(ensure_object(pod, "spec"), "nodeName", binding.at("target").text("name"));
    drop_field(ensure_object(pod, "status"), "nominatedNodeName");
    for map in ["annotations", "labels"] {
        for (k, v) in binding.at("metadata").string_map(map) {
            put(ensure_object(ensure_object(pod, "metadata"), map), k, v);
        }
    }
    conditions::set(pod, &Condition { ty: "PodScheduled", status: "True", reason: "", message: "" }, now);
    Ok(())
}
