//! The objects that let nodes join, as kubeadm creates them: the public ConfigMap `cluster-info`, the roles of bootstrap
//! tokens, and what a joined node's service proxy, network policies and DNS read.
//!
//! Invariants: existing objects are left unchanged, except that `cluster-info` names this server and its certificate
//! authority; the signatures in it are the bootstrap signer's.

use futures_util::{future::try_join_all, try_join};
use kaji_files::kubeconfig;
use kaji_meta::{GroupResource, Status};
use kaji_resource::{Api, unless_exists};
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
/// What network policies and DNS of a node read, beside what upstream's kube-proxy reads.
const NODE_NETWORK: &str = "kaji:node-network";
/// The ConfigMap that says which resolvers a node's DNS asks. Apart from the role above, so that clusters from before get it.
const NODE_DNS: &str = "kaji:node-dns";
/// Its name.
const DNS_MAP: &str = "kube-dns";
/// Serving certificates of joined nodes are approved if their names are the node's own; the API server verifies them.
const SELF_SERVING: &str = "kaji:node-autoapprove-serving";
const APPROVER: &str = "kaji:approve-node-serving";
const NODES: &str = "system:nodes";

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
        NODES,
    ),
    // kubeadm's kube-proxy has a service account for this, and pod networks have others. Here they are parts of the node's agent,
    // which has the node's certificate.
    ("kaji:node-proxier", "system:node-proxier", NODES),
    // The group of the API server's client certificate for kubelets; kubeadm makes it administrators.
    ("kaji:kubelet-api-admin", "system:kubelet-api-admin", "kubeadm:cluster-admins"),
    (SELF_SERVING, SELF_SERVING, NODES),
    (NODE_NETWORK, NODE_NETWORK, NODES),
    (NODE_DNS, NODE_DNS, NODES),
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
    let mut node_network = object("ClusterRole", NODE_NETWORK, "");
    let watched = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]});
    node_network["rules"] =
        json!([watched("", &["namespaces", "pods"]), watched("networking.k8s.io", &["networkpolicies"])]);
    let mut node_dns = object("ClusterRole", NODE_DNS, "");
    let mut map = watched("", &["configmaps"]);
    map["resourceNames"] = json!([DNS_MAP]);
    node_dns["rules"] = json!([map]);
    let mut self_serving = object("ClusterRole", SELF_SERVING, "");
    self_serving["rules"] = json!([{
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["certificatesigningrequests/selfnodeserver"],
        "verbs": ["create"],
    }]);
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
        create_missing(api, "clusterroles", "", node_network),
        create_missing(api, "clusterroles", "", node_dns),
        create_missing(api, "clusterroles", "", self_serving),
        approver(api),
        try_join_all(bindings),
    )
    .map(drop)
}

/// Lets the approver approve serving certificates, which upstream's does not.
async fn approver(api: &dyn Api) -> Result<(), Status> {
    let mut role = object("ClusterRole", APPROVER, "");
    role["rules"] = json!([{
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["signers"],
        "resourceNames": ["kubernetes.io/kubelet-serving"],
        "verbs": ["approve"],
    }]);
    let mut binding = object("ClusterRoleBinding", APPROVER, "");
    binding["roleRef"] = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": APPROVER});
    binding["subjects"] =
        json!([{"kind": "ServiceAccount", "namespace": "kube-system", "name": "certificate-controller"}]);
    try_join!(
        create_missing(api, "clusterroles", "", role),
        create_missing(api, "clusterrolebindings", "", binding),
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
    unless_exists(api.create(&maps, NAMESPACE, map, false).await)
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
    unless_exists(api.create(&resource, namespace, object, false).await)
}
