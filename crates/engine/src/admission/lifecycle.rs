//! `NamespaceLifecycle`: nothing is created in a namespace that is missing or going away, and some namespaces stay.
//!
//! Texts and rules are those of upstream's plugin of that name.

use super::{Admission, Attributes, Operation};
use kaji_meta::{Cause, GroupResource, Status, object};
use kaji_resource::BoxFuture;

/// Namespaces that may not be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// The plugin.
pub(super) struct NamespaceLifecycle;

impl Admission for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        match a.operation {
            Operation::Create | Operation::Update => !a.namespace.is_empty() && !is_namespace(a),
            Operation::Delete => is_namespace(a),
            Operation::Connect => false,
        }
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(check(a))
    }
}

fn is_namespace(a: &Attributes<'_>) -> bool {
    a.resource.group.is_empty() && a.resource.resource == "namespaces"
}

/// The plugin's work, without a box: it runs on every write.
pub(super) async fn check(a: &Attributes<'_>) -> Result<(), Status> {
    if a.operation == Operation::Delete {
        if IMMORTAL.contains(&a.name) {
            return Err(Status::forbidden(&a.group_resource(), a.name, "this namespace may not be deleted"));
        }
        return Ok(());
    }
    // Saying whether the namespace exists would leak it to those who only ask about their own access.
    if a.resource.group == "authorization.k8s.io" && a.resource.resource == "localsubjectaccessreviews" {
        return Ok(());
    }
    let namespaces = GroupResource::new("", "namespaces");
    let mut namespace = a.api.get(&namespaces, "", a.namespace);
    if namespace.is_none() {
        a.api.sync().await?;
        namespace = a.api.get(&namespaces, "", a.namespace);
    }
    let Some(namespace) = namespace else { return Err(Status::not_found(&namespaces, a.namespace)) };
    if a.operation != Operation::Create || object::str_at(&namespace, &["status", "phase"]) != "Terminating" {
        return Ok(());
    }
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
    Err(status)
}
