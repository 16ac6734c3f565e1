//! `Hooks`: the behaviour of one resource that data cannot express.

use crate::{Ctx, DeleteOptions, Verb};
use kaji_meta::{Query, Status, field};
use serde_json::{Map, Value};

pub use futures_util::future::BoxFuture;

/// Something taken before a write is committed (a cluster IP, a node port). Exactly one of the two futures runs.
pub struct Reservation {
    /// Runs once the write is durable.
    pub commit: BoxFuture<'static, ()>,
    /// Runs when the write fails: gives back what was taken.
    pub rollback: BoxFuture<'static, ()>,
}

/// A request to a subresource (or review kind) that is neither status, scale nor a whole-object update.
pub struct CallRequest<'a> {
    /// `create`, `get`, … as HTTP's method says.
    pub verb: Verb,
    /// The decoded body (`Null` without one).
    pub body: Value,
    /// The parent object in its storage version; `None` for review kinds.
    pub object: Option<&'a Value>,
    /// The query parameters.
    pub query: &'a Query,
    /// For eviction: options found in the body are the hook's to read.
    pub delete_options: Option<DeleteOptions>,
}

/// The behaviour of one resource. Every method has a default that does what most resources want.
///
/// Order of a create, as upstream's: decode, prune, `default`, managed fields, `convert` to the storage version, mutating
/// admission, engine fills metadata (name, uid, creationTimestamp, generation), `prepare_create`, `validate_create`,
/// `warnings`, validating admission, `reserve`, commit. An update: the same with `prepare_update` and `validate_update`;
/// the engine puts back what the subresource may not change right before `prepare_update`.
#[allow(unused_variables)]
pub trait Hooks: Send + Sync + 'static {
    /// Defaults of the given version, as upstream's versioned defaulting. Also run on objects read back.
    fn default(&self, version: &str, object: &mut Value) {}

    /// Translates between versions. The engine rewrites `apiVersion` (and `kind`) itself, after this. For a resource that
    /// shares another's storage, `from` and `to` are whole apiVersions (`events.k8s.io/v1` and `v1`).
    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        Ok(())
    }

    /// Clears what a client may not set (status), sets initial values. Upstream's `PrepareForCreate`.
    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {}

    /// Upstream's `Validate`, without ObjectMeta, which the engine has checked.
    fn validate_create(&self, ctx: &Ctx<'_>, object: &Value) -> field::ErrorList {
        vec![]
    }

    /// Upstream's `PrepareForUpdate`, for the main resource and, by `ctx.subresource`, for others.
    /// The engine has already put back `status` on the main resource when status is a subresource, and everything but
    /// `status` and metadata on the status subresource.
    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {}

    /// Upstream's `ValidateUpdate`, without ObjectMeta.
    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> field::ErrorList {
        vec![]
    }

    /// Upstream's `WarningsOnCreate/Update` texts.
    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        vec![]
    }

    /// Whether the change moves `metadata.generation`, for resources with `Generation::Spec`.
    /// The engine passes objects that differ somewhere outside metadata and status.
    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        true
    }

    /// The grace period of a deletion in seconds; `None` deletes at once. Pods answer here.
    fn grace_period(&self, ctx: &Ctx<'_>, object: &Value, options: &DeleteOptions) -> Option<i64> {
        None
    }

    /// Vetoes a creation before anything else looks at it, even admission. `ctx.name` is empty while it is to be generated.
    fn check_create(&self, ctx: &Ctx<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Vetoes or alters a deletion before it begins (namespaces, protected objects). Upstream's `BeforeDelete` checks.
    fn check_delete(&self, ctx: &Ctx<'_>, object: &Value, options: &DeleteOptions) -> Result<(), Status> {
        Ok(())
    }

    /// Changes the object as its deletion is marked but not finished (namespace: `status.phase: Terminating`).
    fn mark_deleted(&self, ctx: &Ctx<'_>, object: &mut Value) {}

    /// Whether the mark is the deletion timestamp alone, without grace period and without moving the generation: kinds
    /// whose registries mark by hand (namespaces, definitions of custom resources).
    fn marks_by_hand(&self) -> bool {
        false
    }

    /// Whether the first deletion only marks the object, and the propagation policy counts from the second on: the registry
    /// of custom resources' definitions.
    fn marks_regardless_of_propagation(&self) -> bool {
        false
    }

    /// Verbs of the main resource that discovery does not offer now, although it answers to them.
    fn undiscovered_verbs(&self) -> &'static [Verb] {
        &[]
    }

    /// Whether deletion must wait even with no finalizers in metadata (namespaces with `spec.finalizers`).
    fn deletion_waits(&self, object: &Value) -> bool {
        false
    }

    /// Whether DELETE answers with the object although it is gone, instead of a `Status` with its uid. Upstream's
    /// `ReturnDeletedObject`: pods, services, volumes and claims, service accounts, quotas, storage and DRA kinds, ….
    fn returns_deleted_object(&self) -> bool {
        false
    }

    /// The finalizer behaviour when a client names no propagation policy. `Some("Orphan")` for old batch/v1 jobs' style,
    /// `Some("Unsupported")` for kinds that are no owners (events): their deletion never sets a finalizer.
    fn default_propagation(&self) -> Option<&'static str> {
        None
    }

    /// Takes what must be unique in the cluster, and fills it into `new`. Runs last before the commit; not on dry run
    /// unless it can answer without keeping anything.
    fn reserve<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a mut Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<Option<Reservation>, Status>> {
        Box::pin(async { Ok(None) })
    }

    /// Runs after an object is gone from the store (releases cluster IPs). Must be idempotent.
    fn deleted<'a>(&'a self, ctx: &'a Ctx<'a>, object: &'a Value) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Whether a `Call` subresource wants to be shown the object that it belongs to. If not, the object is not read, nor
    /// need it be there.
    fn call_reads_object(&self, subresource: &str) -> bool {
        true
    }

    /// Serves a `Call` subresource or a review kind. The answer is the response body, with its HTTP code.
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async {
            Err(Status::method_not_supported(&kaji_meta::GroupResource::new("", ctx.subresource), "call"))
        })
    }

    /// Whether a write counts for every request that comes after its acknowledgement, not only as soon as the caches have
    /// it: kinds that configure the server itself (webhooks, policies). Their writers wait for the caches.
    fn counts_at_once(&self) -> bool {
        false
    }

    /// Changes an object as it is read (defaults newer than the stored form, …). Rarely needed: it costs a decode.
    fn decorates(&self) -> bool {
        false
    }

    /// Whether stored objects may differ from what reads show: fields that the schema has lost since, defaults that it has
    /// gained. Costs a decode once per object, as it enters the cache.
    fn normalizes(&self) -> bool {
        false
    }

    /// Puts a stored object, in the version that it names, into the shape that reads show.
    fn normalize(&self, object: &mut Value) {}

    /// The table's cells for an object, one per column, when the version's columns come from hooks.
    /// The default prints name and age.
    fn row(&self, version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![Value::from(kaji_meta::object::name(object)), Value::from(kaji_meta::object::age(object, now))]
    }

    /// Fields a subresource's (or, with `""`, the main resource's) writers never own in managedFields,
    /// as top-level field names. The default is upstream's usual: `status` on the main resource, `spec` on status.
    fn reset_fields(&self, version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" => &[&["status"]],
            "status" => &[&["spec"]],
            _ => &[],
        }
    }
}

/// Hooks that do nothing.
pub struct NoHooks;

impl Hooks for NoHooks {}

/// On `status` updates, upstream's usual strategy for built-ins: keep everything of `old` but `status` and the metadata
/// that such a write may carry. With `keep_labels` the old labels stay as well (Deployment, ReplicaSet, …).
pub fn status_only(new: &mut Value, old: &Value, keep_labels: bool) {
    let status = new.get("status").cloned();
    let metadata = new.get("metadata").cloned();
    *new = old.clone();
    let Some(map) = new.as_object_mut() else { return };
    match status {
        Some(s) => map.insert("status".into(), s),
        None => map.remove("status"),
    };
    if let Some(Value::Object(mut m)) = metadata {
        let empty = Map::new();
        let old_meta = old.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
        if keep_labels {
            match old_meta.get("labels") {
                Some(l) => m.insert("labels".into(), l.clone()),
                None => m.remove("labels"),
            };
        }
        map.insert("metadata".into(), Value::Object(m));
    }
}
