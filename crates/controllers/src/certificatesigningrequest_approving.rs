//! The approver: certificate requests of nodes are approved when their user has the permission to request them.
//!
//! Three permissions on `certificatesigningrequests` count, as subresources: for client certificates `selfnodeclient` (the user asks
//! for its own name) and `nodeclient` (any node), for serving certificates `selfnodeserver`. Which of them to check is a pure
//! decision; SubjectAccessReviews answer it, so that this controller drives its queue itself.
//!
//! Invariants: a request without permission is retried: permissions may be granted later. A serving certificate has no name or
//! address but its node's own; upstream leaves all of them to administrators, and had this permission in its early versions.

use crate::{
    ControllerContext, Descriptor, Start,
    shared::{
        certificates::{parse, request::Request, signers, status, with_condition},
        workers::{self, Works},
    },
};
use kaji_runtime::{
    Client, Error, Informer, Key, ObjectSnapshot, Write,
    client::Target,
    objects::{CertificateSigningRequest, EndpointSlice, Node, SERVICE_NAME_LABEL, Service},
    queue::Queue,
};
use serde_json::{Value, json};
use std::{net::IpAddr, sync::Arc};
use tokio::task::JoinSet;

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

const SERVING: Permission = Permission {
    subresource: "selfnodeserver",
    message: "Auto approving self kubelet server certificate after SubjectAccessReview.",
};
/// Names of the API server, which no node's certificate may have.
const RESERVED: [&str; 3] = ["kubernetes", "localhost", "kubernetes.default"];

/// What certificates of nodes must not overlap.
struct World {
    nodes: ObjectSnapshot<Node>,
    services: ObjectSnapshot<Service>,
    slices: ObjectSnapshot<EndpointSlice>,
}

impl World {
    /// Whether every name of a request is the node's own, and no other part of the cluster is reached by it.
    fn owns(&self, node: &str, request: &Request) -> bool {
        let reserved = RESERVED.contains(&node) || node.starts_with("kubernetes.default.");
        !reserved
            && request.dns.iter().all(|name| name == node)
            && request.addresses.iter().all(|address| self.owns_address(node, *address))
    }

    fn owns_address(&self, node: &str, address: IpAddr) -> bool {
        let is = |text: &str| text.parse() == Ok(address);
        let has = |node: &Node| {
            let numeric = |kind: &str| matches!(kind, "InternalIP" | "ExternalIP");
            node.status.addresses.iter().any(|a| numeric(&a.kind) && is(&a.address))
        };
        let of_services = |service: &Arc<Service>| {
            let spec = &service.spec;
            spec.cluster_ips.iter().chain(&spec.external_ips).any(|ip| is(ip))
        };
        let of_server = |slice: &&Arc<EndpointSlice>| {
            slice.metadata.namespace == "default"
                && slice.metadata.labels.get(SERVICE_NAME_LABEL).is_some_and(|name| name == "kubernetes")
        };
        let mut server = self.slices.iter().filter(of_server).flat_map(|slice| &slice.endpoints);
        !address.is_loopback()
            && self.nodes.iter().all(|other| has(other) == (other.metadata.name == node))
            && self.nodes.get("", node).is_some()
            && !self.services.iter().any(of_services)
            && !server.any(|endpoint| endpoint.addresses.iter().any(|ip| is(ip)))
    }
}

/// The permissions that suffice for a request, the narrower one first.
fn permissions(csr: &CertificateSigningRequest, request: &Request) -> Vec<Permission> {
    if csr.spec.signer_name == signers::KUBELET_SERVING {
        let own = csr.spec.username == request.common_name();
        let serves = signers::check(&csr.spec.signer_name, request, &csr.spec.usages).is_ok();
        return if own && serves { vec![SERVING] } else { vec![] };
    }
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
    nodes: Arc<Informer<Node>>,
    services: Arc<Informer<Service>>,
    slices: Arc<Informer<EndpointSlice>>,
    queue: Queue,
}

const COMPONENT: &str = "csrapproving";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "certificatesigningrequest-approving-controller",
    components: &[COMPONENT],
    service_account: Some("certificate-controller"),
    workers: None,
    start: Start::Tasks(spawn),
};

/// Starts the controller.
fn spawn(tasks: &mut JoinSet<()>, context: ControllerContext<'_>) {
    let ControllerContext { informers, shared, stop, .. } = context;
    let requests = informers.get::<CertificateSigningRequest>();
    let approver = Arc::new(Approver {
        client: shared.client.named(COMPONENT),
        requests,
        nodes: informers.get::<Node>(),
        services: informers.get::<Service>(),
        slices: informers.get::<EndpointSlice>(),
        queue: informers.queue("certificate"),
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
                tracing::debug!(%key, %error, "a certificate signing request could not be approved");
                self.queue.retry(key.clone());
            }
        }
    }
}

/// The node that a request is for.
fn node_of(request: &Request) -> &str {
    request.common_name().strip_prefix("system:node:").unwrap_or_default()
}

impl Approver {
    /// The newest state; what is not read yet could overlap.
    async fn world(&self) -> World {
        tokio::join!(self.nodes.synced(), self.services.synced(), self.slices.synced());
        World {
            nodes: self.nodes.snapshot(),
            services: self.services.snapshot(),
            slices: self.slices.snapshot(),
        }
    }

    /// Whether nothing is left to be done.
    async fn work(&self, key: &Key) -> Result<bool, Error> {
        let requests = self.requests.snapshot();
        let Some(csr) = requests.by_key(key).filter(|csr| undecided(csr)) else { return Ok(true) };
        let Ok(request) = parse(csr) else { return Ok(true) };
        let permissions = permissions(csr, &request);
        if permissions.contains(&SERVING) && !self.world().await.owns(node_of(&request), &request) {
            // The Node may not have its addresses yet; an administrator may approve what is refused here.
            return Ok(false);
        }
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

    fn snapshot<T: kaji_runtime::Projection>(objects: Value) -> ObjectSnapshot<T> {
        let mut snapshot = ObjectSnapshot::default();
        for object in objects.as_array().unwrap() {
            snapshot.insert(Arc::new(serde_json::from_value(object.clone()).unwrap()));
        }
        snapshot
    }

    #[test]
    fn serving_certificates_have_the_nodes_own_names() {
        let node = |name: &str, address: &str| json!({"metadata": {"name": name}, "status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let world = World {
            nodes: snapshot(json!([
                node("a", "10.0.0.1"),
                node("b", "10.0.0.2"),
                node("c", "10.0.0.2"),
                node("server", "10.0.0.9"),
                node("rogue", "10.96.0.1"),
                node("kubernetes", "10.0.0.3"),
            ])),
            services: snapshot(json!([
                {"metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {"clusterIPs": ["10.96.0.1"]}},
            ])),
            slices: snapshot(json!([{
                "metadata": {"name": "kubernetes", "namespace": "default", "labels": {SERVICE_NAME_LABEL: "kubernetes"}},
                "endpoints": [{"addresses": ["10.0.0.9"]}],
            }])),
        };
        let owns = |node: &str, dns: &str, address: &str| {
            let request = Request {
                dns: vec![dns.to_owned()],
                addresses: vec![address.parse().unwrap()],
                ..Request::default()
            };
            world.owns(node, &request)
        };
        assert!(owns("a", "a", "10.0.0.1"));
        // Another's name or address, one that two nodes claim, a node that is not there, and those of the API server.
        for (node, dns, address) in [
            ("a", "b", "10.0.0.1"),
            ("a", "a", "10.0.0.2"),
            ("b", "b", "10.0.0.2"),
            ("d", "d", "10.0.0.4"),
            ("server", "server", "10.0.0.9"),
            ("rogue", "rogue", "10.96.0.1"),
            ("kubernetes", "kubernetes", "10.0.0.3"),
            ("a", "a", "127.0.0.1"),
        ] {
            assert!(!owns(node, dns, address), "{node} {dns} {address}");
        }
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
