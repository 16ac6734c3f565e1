//! The objects that let nodes join, as kubeadm creates them: the public ConfigMap `cluster-info`, and the roles of bootstrap
//! tokens.
//!
//! Invariants: existing objects are left unchanged, except that `cluster-info` names this server and its certificate
//! authority; the signatures in it are the bootstrap signer's.

use futures_util::{future::try_join_all, try_join};
use kaji_files::kubeconfig;
use kaji_meta::{GroupResource, Status};
use kaji_resource::Api;
use serde_json::{Value, json};

/// The group of tokens that nodes join with.
pub const NODE_TOKENS: &str = "system:bootstrappers:kubeadm:default-node-token";

const RBAC: &str = "rbac.authorization.k8s.io";
/// The name of the public ConfigMap.
pub const NAME: &str = "cluster-info";
/// Its namespace.
pub const NAMESPACE: &str = "kube-public";
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

/// Creates missing objects. `server` is the URL that clients use, `ca` its certificate authority, PEM.
///
/// # Errors
/// Those of the API.
pub async fn ensure(api: &dyn Api, server: &str, ca: &str) -> Result<(), Status> {
    let kubeconfig = kubeconfig::cluster_info(server, ca).map_err(Status::internal)?;
    let rule = |resource: &str, names: &[&str]| {
        let mut rule = json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        json!([rule])
    };
    let mut signer = object("Role", SIGNER, NAMESPACE);
    signer["rules"] = rule("configmaps", &[NAME]);
    let mut anonymous = object("RoleBinding", SIGNER, NAMESPACE);
    anonymous["roleRef"] = json!({"apiGroup": RBAC, "kind": "Role", "name": SIGNER});
    anonymous["subjects"] = subject("User", "system:anonymous");
    let mut get_nodes = object("ClusterRole", GET_NODES, "");
    get_nodes["rules"] = rule("nodes", &[]);
    let bindings = BINDINGS.iter().map(|(name, role, group)| {
        let mut binding = object("ClusterRoleBinding", name, "");
        binding["roleRef"] = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": role});
        binding["subjects"] = subject("Group", group);
        create_missing(api, "clusterrolebindings", "", binding)
    });
    // At the same time: writes that wait together share an fsync.
    try_join!(
        cluster_info(api, kubeconfig),
        create_missing(api, "roles", NAMESPACE, signer),
        create_missing(api, "rolebindings", NAMESPACE, anonymous),
        create_missing(api, "clusterroles", "", get_nodes),
        try_join_all(bindings),
    )
    .map(drop)
}

fn subject(kind: &str, name: &str) -> Value {
    json!([{"apiGroup": RBAC, "kind": kind, "name": name}])
}

async fn cluster_info(api: &dyn Api, kubeconfig: String) -> Result<(), Status> {
    let maps = GroupResource::new("", "configmaps");
    if let Some(found) = api.get(&maps, NAMESPACE, NAME) {
        if found["data"]["kubeconfig"] == kubeconfig.as_str() {
            return Ok(());
        }
        api.delete(&maps, NAMESPACE, NAME, Default::default()).await?;
    }
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {"kubeconfig": kubeconfig},
    });
    api.create(&maps, NAMESPACE, map, false).await.map(drop)
}

fn object(kind: &str, name: &str, namespace: &str) -> Value {
    let mut object = json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

async fn create_missing(api: &dyn Api, resource: &str, namespace: &str, object: Value) -> Result<(), Status> {
    let resource = GroupResource::new(RBAC, resource);
    if api.get(&resource, namespace, kaji_meta::object::name(&object)).is_some() {
        return Ok(());
    }
    match api.create(&resource, namespace, object, false).await {
        Err(status) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}
