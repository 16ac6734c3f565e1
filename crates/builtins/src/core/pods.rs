//! Pods. What concerns the pod spec is shared by every kind that holds a pod template.
//!
//! Invariants: nothing about the spec reads other objects; functions take the wire form (`v1`), in which host
//! namespaces (`hostNetwork`, …) are fields of the spec.

pub mod binding;
pub mod columns;
pub mod defaults;
pub mod diff;
pub mod drop;
pub mod eviction;
pub mod image;
pub mod matching;
pub mod resize;
pub mod resources;
pub mod status;
pub mod streams;
pub mod template;
pub mod update;
pub mod validate;
pub mod warnings;

use crate::shared::{
    Fields,
    conditions::{self, Condition},
    metadata,
    value::{drop_field, ensure_object, put},
};
use kaji_meta::{GroupVersionKind, Path, Status, field::ErrorList, object, semantic_equal};
use kaji_resource::{
    BoxFuture, CallHooks, CallRequest, Carries, ConnectRequest, Ctx, DeleteOptions, DeletionHooks, Hooks,
    Location, ResourceDef, Scope, SelectableField, SubresourceDef, Verb,
};
use serde_json::{Value, json};

/// The lists of a pod spec that hold containers, in the order in which upstream visits them.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Calls `f` with every container of a pod spec and its path.
pub fn each_container<'a>(spec: &'a impl Fields, path: &Path, mut f: impl FnMut(&'a Value, &Path)) {
    for list in CONTAINER_LISTS {
        let items = spec.list(list);
        if items.is_empty() {
            continue;
        }
        let path = path.child(list);
        for (i, c) in items.iter().enumerate() {
            f(c, &path.index(i));
        }
    }
}

/// Whether an init container is a sidecar (`restartPolicy: Always`).
pub fn is_sidecar(container: &Value) -> bool {
    container.text("restartPolicy") == "Always"
}

/// Whether a pod's phase is final.
pub fn is_terminal(pod: &Value) -> bool {
    matches!(pod.at("status").text("phase"), "Succeeded" | "Failed")
}

struct Pods;

const GET_CREATE: &[Verb] = &[Verb::Create, Verb::Get];
const UPDATE: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];
const PROXY: &[Verb] = &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];

/// The pods resource.
pub fn def() -> ResourceDef {
    let core = |kind: &str| GroupVersionKind::new("", "v1", kind);
    // Old clients select by the former name of spec.nodeName.
    let mut host = SelectableField::new("spec.nodeName");
    host.name = "spec.host".into();
    ResourceDef::builtin("", "v1", "Pod", "pods", Scope::Namespaced, columns::COLUMNS, Pods)
        .optional_to_start()
        .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
        .return_deleted_object()
        .acknowledge_when_stored()
        .short(&["po"])
        .category(&["all"])
        .with_generation()
        .select(&[
            SelectableField::new("spec.nodeName").indexed(),
            SelectableField::new("spec.restartPolicy"),
            SelectableField::new("spec.schedulerName"),
            SelectableField::new("spec.serviceAccountName"),
            SelectableField::new("spec.hostNetwork").missing("false"),
            SelectableField::new("status.phase"),
            SelectableField::new("status.podIP"),
            SelectableField::new("status.podIPs"),
            SelectableField::new("status.nominatedNodeName"),
            host,
        ])
        .sub(&[
            SubresourceDef::status(),
            SubresourceDef::update("ephemeralcontainers", UPDATE),
            SubresourceDef::update("resize", UPDATE),
            SubresourceDef::connect("attach", core("PodAttachOptions"), Carries::Upgrade, GET_CREATE),
            SubresourceDef::call("binding", core("Binding"), Verb::CREATE_ONLY),
            SubresourceDef::call(
                "eviction",
                GroupVersionKind::new("policy", "v1", "Eviction"),
                Verb::CREATE_ONLY,
            ),
            SubresourceDef::connect("exec", core("PodExecOptions"), Carries::Upgrade, GET_CREATE),
            SubresourceDef::connect("log", core("Pod"), Carries::Body, &[Verb::Get]),
            SubresourceDef::connect(
                "portforward",
                core("PodPortForwardOptions"),
                Carries::Upgrade,
                GET_CREATE,
            ),
            SubresourceDef::connect("proxy", core("PodProxyOptions"), Carries::Requests, PROXY),
        ])
}

impl Hooks for Pods {
    fn deletion(&self) -> &dyn DeletionHooks {
        self
    }

    fn calls(&self) -> &dyn CallHooks {
        self
    }

    fn default(&self, _version: &str, object: &mut Value) {
        defaults::pod(object);
        // Of pods only: templates keep their value.
        if object.at("spec").int("terminationGracePeriodSeconds") < 0 {
            put(ensure_object(object, "spec"), "terminationGracePeriodSeconds", 1);
        }
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, pod: &mut Value) {
        put(pod, "status", json!({"phase": "Pending"}));
        drop::disabled_fields(ctx.features, ensure_object(pod, "spec"), None);
        if !pod.at("spec").list("schedulingGates").is_empty() {
            let gated = Condition {
                ty: "PodScheduled",
                status: "False",
                reason: "SchedulingGated",
                message: "Scheduling is blocked due to non-empty scheduling gates",
            };
            conditions::set(pod, &gated, ctx.now);
        }
        matching::apply_label_keys(pod);
        for warning in validate::annotations::app_armor_to_fields(pod) {
            ctx.warn(warning);
        }
        resources::default_pod_level(ensure_object(pod, "spec"));
        let qos = resources::qos_class(pod.at("spec"));
        put(ensure_object(pod, "status"), "qosClass", qos);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, pod: &Value) -> ErrorList {
        let mut errs = vec![];
        validate::pod(&mut errs, pod);
        let path = Path::new("spec");
        let spec = pod.at("spec");
        if !spec.list("ephemeralContainers").is_empty() {
            let path = path.child("ephemeralContainers");
            errs.push(kaji_meta::field::Error::forbidden(&path, "cannot be set on create"));
        }
        if !spec.text("nodeName").is_empty() && !spec.list("schedulingGates").is_empty() {
            let text = "cannot be set until all schedulingGates have been cleared";
            errs.push(kaji_meta::field::Error::forbidden(&path.child("nodeName"), text));
        }
        validate::annotations::match_fields(&mut errs, &path, pod.at("metadata"), spec);
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        match ctx.subresource {
            "status" => {
                status::prepare(new, old);
                drop::of_status(ensure_object(new, "status"), old.at("status"));
            }
            "ephemeralcontainers" => update::prepare_ephemeral(new, old),
            "resize" => resize::prepare(new, old),
            "" => update::keep_pod_level(new, old),
            _ => {}
        }
        drop::disabled_fields(ctx.features, ensure_object(new, "spec"), Some(old.at("spec")));
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        match ctx.subresource {
            "status" => status::validate(&mut errs, new, old),
            "ephemeralcontainers" => update::validate_ephemeral(&mut errs, new, old),
            "resize" => resize::validate(&mut errs, new, old),
            // Checked before it was assigned.
            "binding" => {}
            _ => update::validate(&mut errs, new, old),
        }
        errs
    }

    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        if old.is_none() {
            let mut out: Vec<String> =
                template::warn_name(object::name(new), "the Pod's hostname").into_iter().collect();
            out.extend(warnings::spec_and_meta(&Path::root(), false, new.at("spec"), new.at("metadata")));
            return out;
        }
        let mut out = vec![];
        if ctx.subresource == "status" {
            for list in ["podIPs", "hostIPs"] {
                for (i, ip) in new.at("status").list(list).iter().enumerate() {
                    let path = Path::new("status").child(list).index(i).child("ip");
                    warnings::ip(&mut out, &path, ip.text("ip"));
                }
            }
        }
        out
    }

    /// Assignment to a node is not a change of the spec by its owner.
    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        let (n, o) = (new.at("spec"), old.at("spec"));
        if !o.text("nodeName").is_empty() || n.text("nodeName").is_empty() {
            return !semantic_equal(n, o);
        }
        let mut n = n.clone();
        drop_field(&mut n, "nodeName");
        !semantic_equal(&n, o)
    }

    fn row(&self, _version: &str, pod: &Value, now: jiff::Timestamp) -> Vec<Value> {
        columns::row(pod, now)
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" => &[&["status"]],
            "status" => &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
            _ => &[],
        }
    }
}

impl DeletionHooks for Pods {
    /// A pod ends at once if it never started or is over; else it has its own grace period, or the client's.
    fn grace_period(&self, _ctx: &Ctx<'_>, pod: &Value, options: &DeleteOptions) -> Option<i64> {
        let spec = pod.at("spec");
        if spec.text("nodeName").is_empty() || is_terminal(pod) {
            return Some(0);
        }
        let period = options.grace_period_seconds.or_else(|| spec.opt_int("terminationGracePeriodSeconds"));
        Some(match period.unwrap_or(0) {
            n if n < 0 => 1,
            n => n,
        })
    }
}

impl CallHooks for Pods {
    /// A binding looks for the pod itself, as it changes it.
    fn call_reads_object(&self, subresource: &str) -> bool {
        subresource != "binding"
    }

    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async move {
            match ctx.subresource {
                "binding" => binding::bind(ctx, ctx.name, &request.body).await,
                "eviction" => eviction::evict(ctx, &request.body).await,
                _ => Err(Status::generic_not_found()),
            }
        })
    }

    fn connect<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: ConnectRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<Location>, Status>> {
        Box::pin(async move { streams::location(ctx, &request) })
    }
}

#[cfg(test)]
mod tests;
