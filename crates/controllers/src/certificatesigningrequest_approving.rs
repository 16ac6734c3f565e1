//! The approver: client certificate requests of nodes are approved when their user has the permission to request them.
//!
//! Two permissions on `certificatesigningrequests` count, as subresources: `selfnodeclient` (the user asks for its own
//! name) and `nodeclient` (any node). Which of them to check is a pure decision; SubjectAccessReviews
//! answer it, so that this controller drives its queue itself.
//!
//! Invariant: a request without permission is retried: permissions may be granted later.

use crate::{
    Descriptor, Start,
    shared::{
        certificates::{parse, request::Request, signers, status, with_condition},
        workers::{self, Works},
    },
};
use kaji_runtime::{
    Client, Error, Informer, Informers, Key, Shared, Write, client::Target,
    objects::CertificateSigningRequest, queue::Queue,
};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::{sync::watch, task::JoinSet};

const WORKERS: usize = 2;

/// A permission with which a request is approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Permission {
    subresource: &'static str,
    message: &'static str,
}

const SELF: Permission = Permission {
    subresource: "selfnodeclient",
    message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
};
const ANY: Permission = Permission {
    subresource: "nodeclient",
    message: "Auto approving kubelet client certificate after SubjectAccessReview.",
};

/// The permissions that suffice for a request, the narrower one first.
fn permissions(csr: &CertificateSigningRequest, request: &Request) -> Vec<Permission> {
    if csr.spec.signer_name != signers::KUBELET_CLIENT
        || signers::kubelet_client(request, &csr.spec.usages).is_err()
    {
        return vec![];
    }
    if csr.spec.username == request.common_name() { vec![SELF, ANY] } else { vec![ANY] }
}

/// The review of a permission of the request's user.
fn review(csr: &CertificateSigningRequest, permission: Permission) -> Value {
    json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": csr.spec.username,
            "uid": csr.spec.uid,
            "groups": csr.spec.groups,
            "extra": csr.spec.extra,
            "resourceAttributes": {
                "group": "certificates.k8s.io",
                "resource": "certificatesigningrequests",
                "verb": "create",
                "subresource": permission.subresource,
                "version": "*",
            },
        },
    })
}

fn undecided(csr: &CertificateSigningRequest) -> bool {
    csr.status.certificate.is_empty() && !csr.has("Approved") && !csr.has("Denied")
}

struct Approver {
    client: Client,
    requests: Arc<Informer<CertificateSigningRequest>>,
    queue: Queue,
}

const COMPONENT: &str = "csrapproving";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "certificatesigningrequest-approving-controller",
    components: &[COMPONENT],
    service_account: Some("certificate-controller"),
    start: Start::Tasks(spawn),
};

/// Starts the controller.
fn spawn(tasks: &mut JoinSet<()>, informers: &Arc<Informers>, shared: &Shared, stop: watch::Receiver<bool>) {
    let requests = informers.get::<CertificateSigningRequest>();
    let approver = Arc::new(Approver {
        client: shared.client.named(COMPONENT),
        requests,
        queue: Queue::new(shared.clock.clone()),
    });
    // A weak reference: the informer must not keep the controller alive.
    let seen = Arc::downgrade(&approver);
    approver.requests.handle(move |change| {
        if let (Some(csr), Some(approver)) = (&change.new, seen.upgrade())
            && undecided(csr)
        {
            approver.queue.add(csr.metadata.key());
        }
    });
    tasks.spawn(workers::run(approver, WORKERS, std::future::pending(), stop));
}

impl Works for Approver {
    fn queue(&self) -> &Queue {
        &self.queue
    }

    async fn handle(&self, key: &Key) {
        match self.work(key).await {
            Ok(true) => self.queue.forget(key),
            Ok(false) => self.queue.retry(key.clone()),
            Err(error) => {
                tracing::debug!(%key, %error, "approving");
                self.queue.retry(key.clone());
            }
        }
    }
}

impl Approver {
    /// Whether nothing is left to be done.
    async fn work(&self, key: &Key) -> Result<bool, Error> {
        let requests = self.requests.snapshot();
        let Some(csr) = requests.by_key(key).filter(|csr| undecided(csr)) else { return Ok(true) };
        let Ok(request) = parse(csr) else { return Ok(true) };
        let permissions = permissions(csr, &request);
        for permission in &permissions {
            let reviews = Target {
                group: "authorization.k8s.io".into(),
                version: "v1".into(),
                resource: "subjectaccessreviews".into(),
                ..Target::default()
            };
            let answer = self.client.create(&reviews, &review(csr, *permission)).await?;
            if answer["status"]["allowed"] != true {
                continue;
            }
            let condition = json!({
                "type": "Approved",
                "status": "True",
                "reason": "AutoApproved",
                "message": permission.message,
            });
            if let Write::Patch { target, kind, body } =
                status(csr, "approval", with_condition(csr, condition))
            {
                self.client.patch(&target, kind.content_type(), "", &body).await?;
            }
            return Ok(true);
        }
        // Not a node's request: nothing that a permission could change.
        Ok(permissions.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subresources(username: &str, signer: &str, organization: &str) -> Vec<&'static str> {
        let mut csr = CertificateSigningRequest::default();
        csr.spec.username = username.into();
        csr.spec.signer_name = signer.into();
        csr.spec.usages = vec!["client auth".into(), "digital signature".into()];
        let mut request = Request::default();
        request.subject[1] = vec![organization.into()];
        request.subject[7] = vec!["system:node:a".into()];
        permissions(&csr, &request).iter().map(|p| p.subresource).collect()
    }

    #[test]
    fn reviews_the_narrower_permission_first() {
        let node = signers::KUBELET_CLIENT;
        assert_eq!(subresources("system:node:a", node, "system:nodes"), ["selfnodeclient", "nodeclient"]);
        assert_eq!(subresources("system:bootstrap:x", node, "system:nodes"), ["nodeclient"]);
        assert!(subresources("system:node:a", node, "system:masters").is_empty());
        assert!(subresources("system:node:a", signers::CLIENT, "system:nodes").is_empty());
    }
}
