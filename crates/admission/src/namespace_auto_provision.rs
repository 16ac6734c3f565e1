//! `NamespaceAutoProvision`: creates the namespace of a new object if there is none. Source: kubernetes
//! `plugin/pkg/admission/namespace/autoprovision`.
//!
//! Invariant: it runs before `NamespaceLifecycle`, which then sees the namespace; nothing is created on a dry run.

use crate::{find, namespace_lifecycle::is_namespace};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status};
use kaji_resource::BoxFuture;
use serde_json::json;

/// The plugin.
pub(super) struct NamespaceAutoProvision;

impl Admission for NamespaceAutoProvision {
    fn name(&self) -> &'static str {
        "NamespaceAutoProvision"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::MUTATING.when(operation == Operation::Create && (group, resource) != ("", "namespaces"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        !a.dry_run && !a.namespace.is_empty() && !is_namespace(a)
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(provide(a))
    }
}

async fn provide(a: &Attributes<'_>) -> Result<(), Status> {
    let namespaces = GroupResource::new("", "namespaces");
    if find(a, &namespaces, a.namespace).await?.is_some() {
        return Ok(());
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": a.namespace}});
    match a.api.create(&namespaces, "", namespace, false).await {
        Ok(_) => Ok(()),
        // Another request did.
        Err(status) if status.is_already_exists() => Ok(()),
        Err(status) => Err(a.forbidden(status.message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;

    async fn admit(request: &mut Request) -> Vec<String> {
        let plugin = NamespaceAutoProvision;
        let result =
            request.with(async |a| if plugin.handles(a) { plugin.admit(a).await } else { Ok(()) }).await;
        assert_eq!(result, Ok(()));
        request.api.names(&GroupResource::new("", "namespaces"))
    }

    #[tokio::test]
    async fn creates_the_namespaces_of_new_objects() {
        let mut request = Request::new();
        assert_eq!(admit(&mut request).await, ["n"]);
        (request.namespace, request.dry_run) = ("later", true);
        assert_eq!(admit(&mut request).await, ["n"]);
        request.dry_run = false;
        assert_eq!(admit(&mut request).await, ["later", "n"]);
        let phases = |resource, operation| NamespaceAutoProvision.phases("", resource, operation);
        assert_eq!(phases("pods", Operation::Create), Phases::MUTATING);
        assert_eq!(phases("pods", Operation::Update), Phases::NONE);
        assert_eq!(phases("namespaces", Operation::Create), Phases::NONE);
    }
}
