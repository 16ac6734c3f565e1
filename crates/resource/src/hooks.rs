//! `Hooks`: the behaviour of one resource that data cannot express, in four traits by what calls them.
//!
//! - [`Hooks`]: defaulting, conversion, validation and table rows, which create, update, patch and reads call (upstream's
//!   `RESTCreateStrategy`, `RESTUpdateStrategy` and `TableConvertor`).
//! - [`DeletionHooks`]: DELETE (upstream's `RESTDeleteStrategy` and `BeforeDelete`).
//! - [`CallHooks`]: subresources and review kinds that compute an answer (upstream's `Connecter` and `NamedCreater`).
//! - [`Normalizer`]: stored objects on their way into the watch cache.
//!
//! Invariant: a resource without behaviour of one sort implements nothing for it.

use crate::{ConnectRequest, Ctx, DeleteOptions, Location, ObjectVersion, Verb};
use kaji_meta::{Query, Random, Status, field};
use serde_json::{Map, Value};

pub use futures_util::future::BoxFuture;

/// Something allocated before a write is committed (a cluster IP, a node port). Exactly one of the two futures runs.
pub struct Reservation {
    /// Runs once the write is durable.
    pub commit: BoxFuture<'static, ()>,
    /// Runs when the write fails: releases what was allocated.
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
    /// The `deleteOptions` of the body (eviction).
    pub delete_options: Option<DeleteOptions>,
}

/// The behaviour of one resource. Every method has a default that does what most resources want.
///
/// Order of a create, as upstream's: decode, prune, `default`, managed fields, `convert` to the storage version, mutating
/// admission, engine fills metadata (name, uid, creationTimestamp, generation), `prepare_create`, `validate_create`,
/// `warnings`, `canonicalize`, validating admission, `expected`, `reserve`, commit. An update: the same with `prepare_update` and
/// `validate_update` and without `expected`; the engine puts back what the subresource may not change right before `prepare_update`.
#[allow(unused_variables)]
pub trait Hooks: Send + Sync + 'static {
    /// The hooks of deletion. The default deletes at once.
    fn deletion(&self) -> &dyn DeletionHooks {
        &NoHooks
    }

    /// The hooks of subresources of kind `Call`, and of review kinds. The default refuses every call.
    fn calls(&self) -> &dyn CallHooks {
        &NoHooks
    }

    /// What changes stored objects before they are read; `None` if reads return what is stored.
    fn normalizer(&self) -> Option<&dyn Normalizer> {
        None
    }

    /// Defaults of the given version, as upstream's versioned defaulting. Also run on objects read back.
    fn default(&self, version: &str, object: &mut Value) {}

    /// What an earlier release did not store, beside defaults: called for objects that an API server of upstream has stored, after
    /// [`Hooks::default`]. Only what is absent is filled in, from the object alone.
    fn complete_stored(&self, object: &mut Value) {}

    /// Translates between versions. The engine rewrites `apiVersion` (and `kind`) itself, after this. For a resource that
    /// shares another's storage, `from` and `to` are whole apiVersions (`events.k8s.io/v1` and `v1`).
    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        Ok(())
    }

    /// Clears what a client may not set (status), and sets initial values. Upstream's `PrepareForCreate`.
    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {}

    /// Adds to a new object, in the form that is stored, what each reader of it would be shown besides: the default of a status,
    /// which a client cannot set before the object is there. Upstream stores an object without it, and fills it in with each read.
    fn complete_created(&self, object: &mut Value) {}

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

    /// Upstream's `Canonicalize`: brings an object that was validated into the form in which it is read back.
    fn canonicalize(&self, object: &mut Value) {}

    /// The name of a new object without a name and a base for one; `None` refuses such an object.
    fn default_name(&self, random: &dyn Random) -> Option<String> {
        None
    }

    /// Whether the change moves `metadata.generation`, for resources with `Generation::Spec`.
    /// The engine passes objects that differ somewhere outside metadata and status.
    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        true
    }

    /// Refuses a creation before admission runs. `ctx.name` is empty while the name is not generated yet.
    fn check_create(&self, ctx: &Ctx<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Other objects that a new one needs as they are. It is stored only if they are at these versions then; else the cache
    /// catches up, and validating admission and this run again. Not called on dry run.
    ///
    /// # Errors
    /// What the creation is refused with.
    fn expected(&self, ctx: &Ctx<'_>) -> Result<Vec<ObjectVersion>, Status> {
        Ok(vec![])
    }

    /// Whether the user may write this, beyond being allowed the request. Asked before `reserve`, also on dry run.
    ///
    /// # Errors
    /// What the write is refused with.
    fn permit<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async { Ok(()) })
    }

    /// Whether `reserve` fills anything into `new`, which another attempt must not find there.
    fn fills_in_reservations(&self) -> bool {
        false
    }

    /// Allocates what must be unique in the cluster, and fills it into `new`. Runs last before the commit. On dry run it
    /// allocates nothing.
    fn reserve<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a mut Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<Option<Reservation>, Status>> {
        Box::pin(async { Ok(None) })
    }

    /// Runs after an object was removed from the store (releases cluster IPs). Must be idempotent.
    fn deleted<'a>(&'a self, ctx: &'a Ctx<'a>, object: &'a Value) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

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

/// How objects of one resource are deleted. Every method has a default: deletion at once, unless finalizers remain.
#[allow(unused_variables)]
pub trait DeletionHooks: Send + Sync {
    /// The grace period of a deletion in seconds; `None` deletes at once. Only pods have one. Upstream's
    /// `CheckGracefulDelete`.
    fn grace_period(&self, ctx: &Ctx<'_>, object: &Value, options: &DeleteOptions) -> Option<i64> {
        None
    }

    /// Refuses a deletion, or warns of it, before it begins.
    fn check_delete(&self, ctx: &Ctx<'_>, object: &Value, options: &DeleteOptions) -> Result<(), Status> {
        Ok(())
    }

    /// Changes the object when its deletion is marked but not finished (namespace: `status.phase: Terminating`).
    fn mark_deleted(&self, ctx: &Ctx<'_>, object: &mut Value) {}

    /// Whether a pending deletion sets only `metadata.deletionTimestamp`: no grace period, and no new generation. True of
    /// kinds with upstream registries that set the timestamp themselves (namespaces, custom resource definitions). Once it is set, a
    /// further DELETE changes nothing while [`DeletionHooks::deletion_waits`]; in the first one the old `orphanDependents: false` means foreground.
    fn marks_timestamp_only(&self) -> bool {
        false
    }

    /// Whether the first DELETE only marks the object, and the propagation policy counts from the second DELETE on (custom
    /// resource definitions).
    fn first_delete_ignores_propagation(&self) -> bool {
        false
    }

    /// Whether deletion must wait even with no finalizers in metadata (namespaces with `spec.finalizers`).
    fn deletion_waits(&self, object: &Value) -> bool {
        false
    }
}

/// The answers of `Call` subresources (`binding`, `eviction`, `token`, …) and of review kinds, and where `Connect`
/// subresources lead.
#[allow(unused_variables)]
pub trait CallHooks: Send + Sync {
    /// Whether the subresource needs the object that it belongs to. If not, the object is not read and may be missing.
    fn call_reads_object(&self, subresource: &str) -> bool {
        true
    }

    /// Completes and checks the body of a `Create` between mutating and validating admission: what validating plugins see.
    fn prepare_call(&self, ctx: &Ctx<'_>, object: Option<&Value>, body: &mut Value) -> Result<(), Status> {
        Ok(())
    }

    /// Serves the request. The answer is the response body, with its HTTP code.
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(async {
            Err(Status::method_not_supported(&kaji_meta::GroupResource::new("", ctx.subresource), "call"))
        })
    }

    /// Where a subresource that connects to another server leads, after admission; `None` where there is nothing to read
    /// yet. Objects are read through the context, which is as new as the request.
    fn connect<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: ConnectRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<Location>, Status>> {
        Box::pin(async {
            Err(Status::method_not_supported(&kaji_meta::GroupResource::new("", ctx.subresource), "connect"))
        })
    }
}

/// Brings stored objects into the form that reads show, where the two may differ: fields that the schema no longer has are
/// dropped, new defaults are filled in. Costs one decode per object, when it enters the watch cache.
pub trait Normalizer: Send + Sync {
    /// Changes a stored object, which is in the version that its `apiVersion` names.
    fn normalize(&self, object: &mut Value);
}

/// Hooks that do nothing.
pub struct NoHooks;

impl Hooks for NoHooks {}

impl DeletionHooks for NoHooks {}

impl CallHooks for NoHooks {}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestContext;
    use futures_util::FutureExt;
    use serde_json::json;

    #[test]
    fn default_hooks_change_nothing_and_delete_at_once() {
        let test = TestContext::default();
        let mut object = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"x": 1}});
        let (before, seen) = (object.clone(), object.clone());
        let ctx = test.ctx(&seen, "", "v1");
        NoHooks.default("v1", &mut object);
        NoHooks.prepare_create(&ctx, &mut object);
        NoHooks.prepare_update(&ctx, &mut object, &before);
        NoHooks.convert(&mut object, "v1", "v2").unwrap();
        NoHooks.deletion().mark_deleted(&ctx, &mut object);
        assert_eq!(object, before);
        assert!(NoHooks.validate_create(&ctx, &object).is_empty());
        assert!(NoHooks.validate_update(&ctx, &object, &before).is_empty());
        assert!(NoHooks.bumps_generation(&object, &before));
        assert!(NoHooks.check_create(&ctx).is_ok());
        assert!(NoHooks.expected(&ctx).is_ok_and(|all| all.is_empty()) && !NoHooks.fills_in_reservations());
        assert!(NoHooks.normalizer().is_none());
        let deletion = NoHooks.deletion();
        assert_eq!(deletion.grace_period(&ctx, &object, &DeleteOptions::default()), None);
        assert!(deletion.check_delete(&ctx, &object, &DeleteOptions::default()).is_ok());
        assert!(!deletion.deletion_waits(&object) && !deletion.marks_timestamp_only());
        assert!(NoHooks.permit(&ctx, &object, None).now_or_never().unwrap().is_ok());
        let reserved = NoHooks.reserve(&ctx, &mut object, None).now_or_never().unwrap();
        assert!(reserved.is_ok_and(|reservation| reservation.is_none()));
    }

    #[test]
    fn default_call_refuses_with_405() {
        let test = TestContext::default();
        let object = json!({"metadata": {"name": "a"}});
        let ctx = test.ctx(&object, "exec", "v1");
        let query = Query::default();
        let request = CallRequest {
            verb: Verb::Create,
            body: Value::Null,
            object: Some(&object),
            query: &query,
            delete_options: None,
        };
        assert!(NoHooks.calls().call_reads_object("exec"));
        let refused = NoHooks.calls().call(&ctx, request).now_or_never().unwrap().unwrap_err();
        assert_eq!(refused.code, 405);
    }

    #[test]
    fn writers_own_neither_the_others_part_by_default() {
        assert_eq!(NoHooks.reset_fields("v1", ""), [["status"]]);
        assert_eq!(NoHooks.reset_fields("v1", "status"), [["spec"]]);
        assert!(NoHooks.reset_fields("v1", "scale").is_empty());
    }

    #[test]
    fn default_row_is_name_and_age() {
        let object = json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-02T03:03:05Z"}});
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(NoHooks.row("v1", &object, now), [json!("a"), json!("60s")]);
    }

    #[test]
    fn status_only_takes_status_and_metadata_of_the_new_object() {
        let old = json!({"metadata": {"name": "a", "labels": {"l": "old"}}, "spec": 1, "status": 1});
        let sent = json!({"metadata": {"name": "a", "labels": {"l": "new"}, "annotations": {"k": "v"}},
            "spec": 2, "status": 2});
        let mut new = sent.clone();
        status_only(&mut new, &old, false);
        assert_eq!(new, json!({"metadata": sent["metadata"], "spec": 1, "status": 2}));
        let mut new = sent.clone();
        status_only(&mut new, &old, true);
        assert_eq!(new["metadata"], json!({"name": "a", "labels": {"l": "old"}, "annotations": {"k": "v"}}));
        let mut new = json!({"metadata": {"name": "a", "labels": {"l": "new"}}, "spec": 2});
        status_only(&mut new, &json!({"metadata": {"name": "a"}, "spec": 1, "status": 1}), true);
        assert_eq!(new, json!({"metadata": {"name": "a"}, "spec": 1}));
    }
}
