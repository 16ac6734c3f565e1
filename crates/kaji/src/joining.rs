//! What lets new nodes join, as kubeadm sets it up: the public `cluster-info`, and what bootstrap tokens may do.
//!
//! Invariants: what is there is left as it is, except that `cluster-info` names this server and its authority; its
//! signatures are the bootstrap signer's and are not touched.

use crate::kubeconfig;
use kaji_meta::{GroupResource, Status};
use kaji_resource::Api;
use serde_json::{Value, json};

/// The group of tokens that nodes join with.
pub const NODE_TOKENS: &str = "system:bootstrappers:kubeadm:default-node-token";

const RBAC: &str = "rbac.authorization.k8s.io";
/// The public map.
pub const INFO: &str = "cluster-info";
/// Where it is.
pub const PUBLIC: &str = "kube-public";
const SIGNER: &str = "kubeadm:bootstrap-signer-clusterinfo";
const GET_NODES: &str = "kubeadm:get-nodes";

/// Bindings of cluster roles to groups.
const BINDINGS: &[(&str, &str, &str)] = &[
    ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", NODE_TOKENS),
    (GET_NODES, GET_NODES, NODE_TOKENS),
    (
        "kubeadm:node-autoapprove-bootstrap",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        NODE_TOKENS,
    ),
    (
        "kubeadm:node-autoapprove-certificate-rotation",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        "system:nodes",
    ),
];

/// Creates what is missing. `server` is the URL that clients use, `ca` its authority's certificate, PEM.
///
/// # Errors
/// Those of the API.
pub async fn prepare(api: &dyn Api, server: &str, ca: &str) -> Result<(), Status> {
    cluster_info(api, kubeconfig::public(server, ca).map_err(Status::internal)?).await?;
    let subject = |kind: &str, name: &str| json!([{"apiGroup": RBAC, "kind": kind, "name": name}]);
    let rule = |resource: &str, names: &[&str]| {
        let mut rule = json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        json!([rule])
    };
    let mut role = object("Role", SIGNER, PUBLIC);
    role["rules"] = rule("configmaps", &[INFO]);
    ensure(api, "roles", PUBLIC, role).await?;
    let mut binding = object("RoleBinding", SIGNER, PUBLIC);
    binding["roleRef"] = json!({"apiGroup": RBAC, "kind": "Role", "name": SIGNER});
    binding["subjects"] = subject("User", "system:anonymous");
    ensure(api, "rolebindings", PUBLIC, binding).await?;
    let mut role = object("ClusterRole", GET_NODES, "");
    role["rules"] = rule("nodes", &[]);
    ensure(api, "clusterroles", "", role).await?;
    for (name, role, group) in BINDINGS {
        let mut binding = object("ClusterRoleBinding", name, "");
        binding["roleRef"] = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": role});
        binding["subjects"] = subject("Group", group);
        ensure(api, "clusterrolebindings", "", binding).await?;
    }
    Ok(())
}

async fn cluster_info(api: &dyn Api, kubeconfig: String) -> Result<(), Status> {
    let maps = GroupResource::new("", "configmaps");
    if let Some(found) = api.get(&maps, PUBLIC, INFO) {
        if found["data"]["kubeconfig"] == kubeconfig.as_str() {
            return Ok(());
        }
        api.delete(&maps, PUBLIC, INFO, Default::default()).await?;
    }
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": INFO, "namespace": PUBLIC},
        "data": {"kubeconfig": kubeconfig},
    });
    api.create(&maps, PUBLIC, map, false).await.map(drop)
}

fn object(kind: &str, name: &str, namespace: &str) -> Value {
    let mut object = json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

async fn ensure(api: &dyn Api, resource: &str, namespace: &str, object: Value) -> Result<(), Status> {
    let resource = GroupResource::new(RBAC, resource);
    if api.get(&resource, namespace, kaji_meta::object::name(&object)).is_some() {
        return Ok(());
    }
    match api.create(&resource, namespace, object, false).await {
        Err(status) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}
