//! The objects that every cluster has: namespaces, the `kubernetes` service with its endpoints, the default service range,
//! the system priority classes, and those of roles, flow control, aggregation and joining;
//! the default storage class.
//!
//! Invariants: writing them is idempotent; existing objects (after a restart) stay as their owners left them, except what
//! [`KeptObjects`] says. An object is written after the namespace that it is in.

use crate::{default_storage_class, kept_objects::KeptObjects};
use futures_util::{
    future::{try_join, try_join_all},
    join,
};
use jiff::Timestamp;
use kaji_access::default_roles;
use kaji_auth::{authn::ClusterAuthenticationInfo, names::AUTHENTICATED};
use kaji_engine::Engine;
use kaji_kubelet::cluster_info;
use kaji_meta::{Features, GroupResource, Status};
use kaji_resource::{Api, unless_exists};
use kaji_server::{EXPLANATIONS_PATH, cluster_authentication_trust, legacy_token_tracking};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const PRIORITY_CLASSES: &[(&str, i64, &str)] = &[
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

/// How often the objects are tried that another server is writing as well, and the wait between.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Upstream's metrics-server brings such a role; a name of its own keeps the two apart.
const METRICS_READER: &str = "kaji:aggregated-metrics-reader";
const REFUSALS_READER: &str = "kaji:aggregated-refusals-reader";
const HISTORY_READER: &str = "kaji:aggregated-history-reader";
const DECISIONS_READER: &str = "kaji:aggregated-decisions-reader";
/// The role, and its binding, by which users get explanations.
const EXPLANATIONS_READER: &str = "kaji:explanations-reader";

/// What the objects say about the cluster.
pub struct Facts<'a> {
    /// Those that are also made again when they are gone.
    pub kept: &'a KeptObjects,
    /// The URL of the server.
    pub url: &'a str,
    /// The certificate authority of the server, PEM.
    pub root_ca: &'a str,
    /// How the server authenticates clients by certificates.
    pub authentication: &'a ClusterAuthenticationInfo,
    /// The machine's time.
    pub now: Timestamp,
    /// The feature gates.
    pub features: Features,
    /// Whether the provisioner of the default storage class runs.
    pub storage_class: bool,
    /// Whether a history of objects is kept.
    pub history: bool,
}

/// Creates missing objects.
///
/// # Errors
/// The first write that is rejected.
pub async fn run(engine: &Arc<Engine>, facts: &Facts<'_>) -> Result<(), Status> {
    for _ in 0..TRIES {
        match write(engine, facts).await {
            // Another server that starts writes the same objects; what is there at the next try is left alone. The address of the
            // service (422) may be allocated before the service is stored.
            Err(status) if matches!(status.code, 409 | 422) => tokio::time::sleep(PAUSE).await,
            other => return other,
        }
    }
    write(engine, facts).await
}

async fn write(engine: &Arc<Engine>, facts: &Facts<'_>) -> Result<(), Status> {
    let api: &dyn Api = &**engine;
    // As many writes as possible run at the same time, since those that wait together share an fsync.
    let namespaced = async {
        try_join(facts.kept.namespaces(api), facts.kept.service_cidr(api)).await?;
        let (service, roles, info, trust, tracking, class) = join!(
            facts.kept.kubernetes_service(api),
            default_roles::ensure_namespaced(api),
            cluster_info::ensure(api, facts.url, facts.root_ca),
            cluster_authentication_trust::ensure(api, facts.authentication, facts.now),
            legacy_token_tracking::ensure(api, facts.now, true),
            storage_class(api, facts),
        );
        service.and(roles).and(info).and(trust).and(tracking).and(class)
    };
    // None is dropped when another one fails: an address that was allocated would have no service.
    let (namespaced, priorities, metrics, history, refusals, decisions, explanations, roles, flows, services) = join!(
        namespaced,
        priority_classes(api),
        metrics_reader(api),
        history_reader(api, facts),
        memory_reader(api, REFUSALS_READER, kaji_refusals::RESOURCE),
        memory_reader(api, DECISIONS_READER, kaji_refusals::decisions::RESOURCE),
        explanations_reader(api),
        default_roles::ensure_cluster_wide(api, facts.features),
        kaji_server::flowcontrol::ensure(engine),
        kaji_aggregator::ensure(engine),
    );
    let readers = metrics.and(history).and(refusals).and(decisions).and(explanations);
    namespaced.and(priorities).and(readers).and(roles).and(flows).and(services).map(drop)
}

async fn priority_classes(api: &dyn Api) -> Result<(), Status> {
    let resource = GroupResource::new("scheduling.k8s.io", "priorityclasses");
    let all = PRIORITY_CLASSES.iter().map(|(name, value, description)| {
        let mut class = object("scheduling.k8s.io/v1", "PriorityClass", name);
        class["value"] = (*value).into();
        class["description"] = (*description).into();
        ensure(api, &resource, "", class)
    });
    try_join_all(all).await.map(drop)
}

/// The figures of nodes and pods, for the users of the roles `view`, `edit` and `admin`.
async fn metrics_reader(api: &dyn Api) -> Result<(), Status> {
    let mut role = object("rbac.authorization.k8s.io/v1", "ClusterRole", METRICS_READER);
    role["metadata"]["labels"] = aggregated();
    role["rules"] = json!([{
        "apiGroups": [kaji_resource_metrics::GROUP],
        "resources": ["nodes", "pods"],
        "verbs": ["get", "list", "watch"],
    }]);
    ensure(api, &GroupResource::new("rbac.authorization.k8s.io", "clusterroles"), "", role).await
}

/// Refused writes, or decisions, for the users of the roles `view`, `edit` and `admin`; each is shown only those of objects that it may read.
async fn memory_reader(api: &dyn Api, name: &str, resource: &str) -> Result<(), Status> {
    let mut role = object("rbac.authorization.k8s.io/v1", "ClusterRole", name);
    role["metadata"]["labels"] = aggregated();
    role["rules"] = json!([{
        "apiGroups": [kaji_refusals::GROUP],
        "resources": [resource],
        "verbs": ["get", "list"],
    }]);
    ensure(api, &GroupResource::new("rbac.authorization.k8s.io", "clusterroles"), "", role).await
}

/// Recorded revisions, for the users of the roles `view`, `edit` and `admin`; each is shown only those of objects that it may get.
/// Purges are for users with every right, unless a role grants them.
async fn history_reader(api: &dyn Api, facts: &Facts<'_>) -> Result<(), Status> {
    if !facts.history {
        return Ok(());
    }
    let mut role = object("rbac.authorization.k8s.io/v1", "ClusterRole", HISTORY_READER);
    role["metadata"]["labels"] = aggregated();
    role["rules"] = json!([{
        "apiGroups": [kaji_history::GROUP],
        "resources": [kaji_history::REVISIONS],
        "verbs": ["get", "list"],
    }]);
    ensure(api, &GroupResource::new("rbac.authorization.k8s.io", "clusterroles"), "", role).await
}

/// Explanations, for every user that is authenticated: each says only what its caller may read.
async fn explanations_reader(api: &dyn Api) -> Result<(), Status> {
    let group = "rbac.authorization.k8s.io";
    let mut role = object("rbac.authorization.k8s.io/v1", "ClusterRole", EXPLANATIONS_READER);
    role["rules"] = json!([{"nonResourceURLs": [EXPLANATIONS_PATH], "verbs": ["get"]}]);
    let mut binding = object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", EXPLANATIONS_READER);
    binding["roleRef"] = json!({"apiGroup": group, "kind": "ClusterRole", "name": EXPLANATIONS_READER});
    binding["subjects"] = json!([{"apiGroup": group, "kind": "Group", "name": AUTHENTICATED}]);
    let (roles, bindings) =
        (GroupResource::new(group, "clusterroles"), GroupResource::new(group, "clusterrolebindings"));
    try_join(ensure(api, &roles, "", role), ensure(api, &bindings, "", binding)).await.map(drop)
}

/// The labels of a role that `view`, `edit` and `admin` include.
fn aggregated() -> Value {
    let labels = ["view", "edit", "admin"]
        .map(|to| (format!("rbac.authorization.k8s.io/aggregate-to-{to}"), Value::from("true")));
    Value::Object(labels.into_iter().collect())
}

async fn storage_class(api: &dyn Api, facts: &Facts<'_>) -> Result<(), Status> {
    if facts.storage_class { default_storage_class::ensure(api).await } else { Ok(()) }
}

pub(crate) fn object(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})
}

/// Creates an object, unless there is one of its name.
pub(crate) async fn ensure(
    api: &dyn Api,
    resource: &GroupResource,
    namespace: &str,
    object: Value,
) -> Result<(), Status> {
    // Read first: creating a service again would find its own address allocated.
    if api.get(resource, namespace, kaji_meta::object::name(&object)).is_some() {
        return Ok(());
    }
    unless_exists(api.create(resource, namespace, object, false).await)
}
