//! The kind Purge of `history.kaji.dev/v1alpha1`, which exists only as the answer to its creation: removes the history of an object, or of
//! all objects of a resource.
//!
//! Invariants: the right to `create` purges is one of its own, which no role has but those with every right; a purge is in the audit log as
//! any request, and in the history itself as the record that stands for what was removed.

use crate::{Attribution, GROUP, History, PURGES, VERSION, key_of};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::{BoxFuture, CallHooks, CallRequest, Ctx, Hooks, ResourceDef, Scope, Verb};
use kaji_schema::{SchemaRef, structural};
use serde_json::{Value, json};
use std::sync::Arc;

const KIND: &str = "Purge";

/// The resource.
pub(crate) fn def(history: &Arc<History>) -> ResourceDef {
    let text = |description: &str| json!({"type": "string", "description": description});
    let schema = json!({"type": "object", "description": "The removal of recorded revisions.", "properties": {
        "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
        "spec": {"type": "object", "description": "What is removed.", "properties": {
            "group": text("The API group; empty for the core group."),
            "resource": text("The plural of the resource."),
            "namespace": text("The namespace of the object, or of all objects."),
            "name": text("The name of the object."),
            "all": {"type": "boolean", "description": "All objects of the resource, in the namespace if one is given; without a name."}}},
        "status": {"type": "object", "description": "What was removed.", "properties": {
            "revisions": {"type": "integer", "format": "int64"}, "files": {"type": "integer", "format": "int64"}}},
    }});
    let schema = SchemaRef::owned(structural::build(&schema));
    let hooks = Purges(history.clone());
    ResourceDef {
        verbs: Verb::CREATE_ONLY,
        ..ResourceDef::computed((GROUP, VERSION, KIND, PURGES), Scope::Cluster, schema, &[], hooks)
    }
}

struct Purges(Arc<History>);

/// The key that a specification names; with a slash at its end, all keys below it.
fn key(spec: &Value) -> Result<String, Status> {
    let text = |field: &str| object::str_at(spec, &[field]);
    let (group, resource, namespace, name) =
        (text("group"), text("resource"), text("namespace"), text("name"));
    let all = object::bool_at(spec, &["all"]).unwrap_or_default();
    if [group, resource, namespace, name].iter().any(|part| part.contains('/')) {
        return Err(Status::bad_request("spec: a group, resource, namespace or name has no slash"));
    }
    match (resource, name, all) {
        ("", ..) => Err(Status::bad_request("spec.resource: Required value")),
        (_, "", false) => Err(Status::bad_request("spec.name: Required value, unless spec.all is true")),
        (_, name, true) if !name.is_empty() => {
            Err(Status::bad_request("spec.all: Invalid value: true: a name is given"))
        }
        _ => Ok(key_of(group, resource, namespace, name)),
    }
}

impl Purges {
    async fn answer(&self, ctx: &Ctx<'_>, request: CallRequest<'_>) -> Result<(u16, Value), Status> {
        if request.verb != Verb::Create {
            let own = GroupResource::new(GROUP, PURGES);
            return Err(Status::method_not_supported(&own, request.verb.as_str()));
        }
        let mut purge = request.body;
        let key = key(&purge["spec"])?;
        if !ctx.dry_run {
            let by =
                Attribution { user: ctx.user.name.clone(), verb: "create".into(), ..Attribution::default() };
            let purged = self.0.purge(key, by).await?;
            purge["status"] = json!({"revisions": purged.records, "files": purged.files});
        }
        Ok((201, purge))
    }
}

impl Hooks for Purges {
    fn calls(&self) -> &dyn CallHooks {
        self
    }
}

impl CallHooks for Purges {
    fn call<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        request: CallRequest<'a>,
    ) -> BoxFuture<'a, Result<(u16, Value), Status>> {
        Box::pin(self.answer(ctx, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_names_what_it_removes() {
        let key = |spec: Value| key(&spec).map_err(|status| status.message);
        assert_eq!(
            key(json!({"resource": "pods", "namespace": "d", "name": "a"})).unwrap(),
            "/registry/core/pods/d/a"
        );
        assert_eq!(
            key(json!({"resource": "pods", "namespace": "d", "all": true})).unwrap(),
            "/registry/core/pods/d/"
        );
        let all = json!({"group": "apps", "resource": "deployments", "all": true});
        assert_eq!(key(all).unwrap(), "/registry/apps/deployments/");
        for wrong in [
            json!({}),
            json!({"resource": "pods"}),
            json!({"resource": "pods", "name": "a", "all": true}),
            json!({"resource": "pods", "name": "../x"}),
        ] {
            assert!(key(wrong).is_err());
        }
    }
}
