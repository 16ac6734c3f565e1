//! `NodeRestriction`: limits the writes of kubelets to their own node and its pods, as far as authorization cannot.
//!
//! Invariants:
//! - Restrictions hold for every user that authenticated as a node, whatever else it may do, and for no other user.
//! - They are decided before other plugins change the object, as upstream does.

mod credentials;
mod own_node;
mod pods_on_node;
#[cfg(test)]
mod tests;

use kaji_auth::{Authorizer, authz::node::node_of, names::NODE_PREFIX};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{GroupResource, Reason, Status, object, semantic_equal, text::quote};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::sync::Arc;

/// The plugin.
pub(super) struct NodeRestriction {
    authorizer: Arc<dyn Authorizer>,
}

impl NodeRestriction {
    pub(super) fn new(authorizer: Arc<dyn Authorizer>) -> Self {
        NodeRestriction { authorizer }
    }
}

const RESTRICTED: [(&str, &str); 9] = [
    ("", "pods"),
    ("", "nodes"),
    ("", "persistentvolumeclaims"),
    ("", "serviceaccounts"),
    ("certificates.k8s.io", "podcertificaterequests"),
    ("coordination.k8s.io", "leases"),
    ("storage.k8s.io", "csinodes"),
    ("resource.k8s.io", "resourceslices"),
    ("certificates.k8s.io", "certificatesigningrequests"),
];

impl Admission for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource);
        Phases::MUTATING.when(operation != Operation::Connect)
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        node_of(a.user).is_some()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let a = &*a;
            let Some(node) = node_of(a.user) else { return Ok(()) };
            if node.is_empty() {
                return Err(
                    a.forbidden(format!("could not determine node from user {}", quote(&a.user.name)))
                );
            }
            let of = (a.resource.group.as_str(), a.resource.resource.as_str());
            if !RESTRICTED.contains(&of) {
                return Ok(());
            }
            match of.1 {
                "pods" => pods_on_node::check(a, node).await,
                "nodes" => own_node::check(a, node),
                "persistentvolumeclaims" => claim(a, node),
                "serviceaccounts" => credentials::check(a, node, &*self.authorizer).await,
                "podcertificaterequests" => credentials::certificate(a, node).await,
                "leases" => lease(a, node),
                "csinodes" => {
                    own(a, node, "can only access CSINode with the same name as the requesting node")
                }
                "resourceslices" => slice(a, node),
                _ => request(a, node),
            }
        })
    }
}

/// Upstream's plain errors: 500 with the text alone, which clients take for a reason to try again.
fn unsure(text: String) -> Status {
    Status::new(500, Reason::Unknown, text)
}

/// `unexpected operation "UPDATE"`
fn unexpected(a: &Attributes<'_>) -> Status {
    a.forbidden(format!("unexpected operation {}", quote(a.operation.as_str())))
}

/// The object as it will be, or null.
fn new<'a>(a: &'a Attributes<'_>) -> &'a Value {
    a.new_object().unwrap_or(&Value::Null)
}

/// The object as it is: from the write or, where that has none, from the cache.
async fn current(a: &Attributes<'_>, resource: &str, name: &str) -> Result<Arc<Value>, Status> {
    if let Some(old) = a.old.filter(|_| a.resource.resource == resource) {
        return Ok(Arc::new(old.clone()));
    }
    let resource = GroupResource::new("", resource);
    a.api.sync().await?;
    a.api.get(&resource, a.namespace, name).ok_or_else(|| Status::not_found(&resource, name))
}

/// What is named like the node.
fn own(a: &Attributes<'_>, node: &str, text: &str) -> Result<(), Status> {
    let name = if a.operation == Operation::Create { object::name(new(a)) } else { a.name };
    if name == node { Ok(()) } else { Err(a.forbidden(text)) }
}

fn lease(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    const NAMESPACE: &str = "kube-node-lease";
    if a.namespace != NAMESPACE {
        let text = format!("can only access leases in the {} system namespace", quote(NAMESPACE));
        return Err(a.forbidden(text));
    }
    own(a, node, "can only access node lease with the same name as the requesting node")
}

fn slice(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let (slice, verb) = match a.operation {
        Operation::Create => (new(a), "create"),
        // Updates are the node authorizer's.
        Operation::Delete => (a.old.unwrap_or(&Value::Null), "delete"),
        Operation::Update | Operation::Connect => return Ok(()),
    };
    if slice["spec"]["nodeName"] == node {
        return Ok(());
    }
    Err(a.forbidden(format!("can only {verb} ResourceSlice with the same NodeName as the requesting node")))
}

/// Certificates for the node itself only.
fn request(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    const SIGNERS: [&str; 2] =
        ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];
    let signer = object::str_at(new(a), &["spec", "signerName"]);
    if a.operation != Operation::Create || !SIGNERS.contains(&signer) {
        return Ok(());
    }
    let subject = crate::certificate_signing_requests::subject(new(a))
        .map_err(|error| a.forbidden(format!("unable to parse csr: {error}")))?;
    if subject.common_name == format!("{NODE_PREFIX}{node}") {
        return Ok(());
    }
    Err(a.forbidden(format!("can only create a node CSR with CN={NODE_PREFIX}{node}")))
}

/// A kubelet reports what it made of a claim, nothing else.
fn claim(a: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if a.subresource != "status" {
        return Err(a.forbidden("may only update PVC status"));
    }
    if a.operation != Operation::Update {
        return Err(unexpected(a));
    }
    const FREE: [&[&str]; 6] = [
        &["metadata", "resourceVersion"],
        &["metadata", "managedFields"],
        &["status", "capacity"],
        &["status", "conditions"],
        &["status", "allocatedResources"],
        &["status", "allocatedResourceStatuses"],
    ];
    let bare = |claim: &Value| {
        let mut bare = claim.clone();
        FREE.iter().for_each(|path| drop(object::remove_at(&mut bare, path)));
        bare
    };
    let (old, new) = (bare(a.old.unwrap_or(&Value::Null)), bare(new(a)));
    if semantic_equal(&old, &new) {
        return Ok(());
    }
    let mut changed = vec![];
    differences("", &old, &new, &mut changed);
    Err(a.forbidden(format!(
        "node {} is not allowed to update fields other than status.quantity and status.conditions: {}",
        quote(node),
        changed.join(", ")
    )))
}

/// The paths of the fields that differ.
fn differences(path: &str, a: &Value, b: &Value, out: &mut Vec<String>) {
    let (Some(left), Some(right)) = (a.as_object(), b.as_object()) else {
        if !semantic_equal(a, b) {
            out.push(path.to_owned());
        }
        return;
    };
    let keys: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    for key in keys {
        let deeper = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        differences(&deeper, &a[key], &b[key], out);
    }
}
