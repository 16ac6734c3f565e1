//! `NamespaceExists`: refuses writes in namespaces that do not exist, deletions too. Source: kubernetes
//! `plugin/pkg/admission/namespace/exists`.

use crate::{find, namespace_lifecycle::is_namespace};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Status};
use kaji_resource::BoxFuture;

/// The plugin.
pub(super) struct NamespaceExists;

impl Admission for NamespaceExists {
    fn name(&self) -> &'static str {
        "NamespaceExists"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(operation != Operation::Connect && (group, resource) != ("", "namespaces"))
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        !a.namespace.is_empty() && !is_namespace(a)
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let namespaces = GroupResource::new("", "namespaces");
            let found = find(a, &namespaces, a.namespace).await?;
            found.map(|_| ()).ok_or_else(|| Status::not_found(&namespaces, a.namespace))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;
    use kaji_resource::Scope;

    #[tokio::test]
    async fn refuses_writes_in_namespaces_that_do_not_exist() {
        for operation in [Operation::Create, Operation::Update, Operation::Delete] {
            let mut request = Request::new();
            request.operation = operation;
            assert_eq!(request.with(async |a| NamespaceExists.validate(a).await).await, Ok(()));
            request.namespace = "missing";
            let refused = request.with(async |a| NamespaceExists.validate(a).await).await.unwrap_err();
            assert_eq!(
                (refused.code, &*refused.message),
                (404, r#"namespaces "missing" not found"#),
                "{operation:?}"
            );
        }
        assert_eq!(NamespaceExists.phases("", "pods", Operation::Connect), Phases::NONE);
        assert_eq!(NamespaceExists.phases("", "namespaces", Operation::Delete), Phases::NONE);
    }

    #[tokio::test]
    async fn objects_of_the_cluster_have_no_namespace() {
        let mut request = Request::of("", "v1", "Node", "nodes", Scope::Cluster);
        assert!(!request.with(async |a| NamespaceExists.handles(a)).await);
    }
}
