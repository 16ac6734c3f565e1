//! `NamespaceLifecycle`: refuses objects in namespaces that do not exist, new objects in namespaces that are terminating,
//! and the deletion of the system's namespaces. Source: `k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle`.
//!
//! Invariants:
//! - A namespace counts as missing only after the caches have caught up with all acknowledged writes; so it does as terminating
//!   where other servers write, too: it may be a former one of the name.
//! - An object is stored only while its namespace is at the version that was found to take objects. So none is left behind by a
//!   deletion, however long webhooks take and however far behind this server's caches are.

use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Cause, GroupResource, Status, object};
use kaji_resource::{BoxFuture, ObjectVersion};
use serde_json::Value;
use std::sync::Arc;

/// Namespaces that may not be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// The plugin. It has no state.
pub(crate) struct NamespaceLifecycle;

impl Admission for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let of_namespaces = (group, resource) == ("", "namespaces");
        match operation {
            Operation::Create => Phases::BOTH.when(!of_namespaces),
            Operation::Update => Phases::MUTATING.when(!of_namespaces),
            Operation::Delete => Phases::MUTATING.when(of_namespaces),
            Operation::Connect => Phases::NONE,
        }
    }

    fn measured_phases(&self) -> Phases {
        // The second look is not upstream's.
        Phases::MUTATING
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        match a.operation {
            Operation::Create | Operation::Update => !a.namespace.is_empty() && !is_namespace(a),
            Operation::Delete => is_namespace(a),
            Operation::Connect => false,
        }
    }

    fn handles_unchanged(&self) -> bool {
        false
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { check(a).await.map(drop) })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let stored = a.operation == Operation::Create && a.subresource.is_empty() && a.def.stored;
            if !stored || a.dry_run {
                return Ok(());
            }
            if let Some(namespace) = check(a).await? {
                a.extras.expect(ObjectVersion::of(&namespaces(), &namespace));
            }
            Ok(())
        })
    }
}

fn namespaces() -> GroupResource {
    GroupResource::new("", "namespaces")
}

pub(crate) fn is_namespace(a: &Attributes<'_>) -> bool {
    a.resource.group.is_empty() && a.resource.resource == "namespaces"
}

/// The namespace of a write, if one has to be there.
async fn check(a: &Attributes<'_>) -> Result<Option<Arc<Value>>, Status> {
    if a.operation == Operation::Delete {
        if IMMORTAL.contains(&a.name) {
            return Err(Status::forbidden(&a.group_resource(), a.name, "this namespace may not be deleted"));
        }
        return Ok(None);
    }
    // To users that review their own access, the answer would disclose whether the namespace exists.
    if a.resource.group == "authorization.k8s.io" && a.resource.resource == "localsubjectaccessreviews" {
        return Ok(None);
    }
    let namespaces = namespaces();
    let takes = |namespace: &Value| {
        a.operation != Operation::Create || object::str_at(namespace, &["status", "phase"]) != "Terminating"
    };
    let mut namespace = a.api.get(&namespaces, "", a.namespace);
    if namespace.as_deref().is_none_or(|namespace| a.api.has_other_writers() && !takes(namespace)) {
        a.api.sync().await?;
        namespace = a.api.get(&namespaces, "", a.namespace);
    }
    let Some(namespace) = namespace else { return Err(Status::not_found(&namespaces, a.namespace)) };
    if takes(&namespace) { Ok(Some(namespace)) } else { Err(terminating(a)) }
}

/// The 403 for a new object.
fn terminating(a: &Attributes<'_>) -> Status {
    let mut status = a.forbidden(format!(
        "unable to create new content in namespace {} because it is being terminated",
        a.namespace
    ));
    if let Some(details) = &mut status.details {
        details.causes.push(Cause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {} is being terminated", a.namespace),
            field: "metadata.namespace".into(),
        });
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;
    use expect_test::expect;
    use kaji_resource::Scope;
    use serde_json::json;

    /// The answer to a request.
    async fn admit(request: &mut Request) -> String {
        let plugin = NamespaceLifecycle;
        let result =
            request.with(async |a| if plugin.handles(a) { plugin.admit(a).await } else { Ok(()) }).await;
        result.map_or_else(|status| format!("{} {}", status.code, status.message), |()| "allowed".into())
    }

    #[tokio::test]
    async fn refuses_objects_in_missing_and_terminating_namespaces() {
        let mut request = Request::new();
        let mut seen = vec![admit(&mut request).await];
        let terminating = json!({"metadata": {"name": "n"}, "status": {"phase": "Terminating"}});
        request.api.put(&GroupResource::new("", "namespaces"), terminating);
        seen.push(admit(&mut request).await);
        let refused = request.with(async |a| NamespaceLifecycle.admit(a).await).await.unwrap_err();
        let cause = &refused.details.unwrap().causes[0];
        assert_eq!(
            (&*cause.reason, &*cause.message, &*cause.field),
            ("NamespaceTerminating", "namespace n is being terminated", "metadata.namespace")
        );
        request.operation = Operation::Update;
        seen.push(admit(&mut request).await);
        request.namespace = "missing";
        seen.push(admit(&mut request).await);
        expect![[r#"
            allowed
            403 configmaps "c" is forbidden: unable to create new content in namespace n because it is being terminated
            allowed
            404 namespaces "missing" not found"#]]
        .assert_eq(&seen.join("\n"));
    }

    #[tokio::test]
    async fn refuses_to_delete_system_namespaces() {
        let mut request = Request::of("", "v1", "Namespace", "namespaces", Scope::Cluster);
        request.operation = Operation::Delete;
        request.name = "kube-system";
        let refused = admit(&mut request).await;
        assert_eq!(refused, "403 namespaces \"kube-system\" is forbidden: this namespace may not be deleted");
        request.name = "mine";
        assert_eq!(admit(&mut request).await, "allowed");
    }
}
