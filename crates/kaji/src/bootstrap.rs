//! The objects a cluster has before anybody creates one: namespaces, the `kubernetes` service with its endpoints, the
//! default service range, the system priority classes.
//!
//! Invariant: creating is idempotent; what is there already (after a restart) stays as its owner left it, except the
//! endpoints of this server, which follow its address.

use futures_util::future::{try_join_all, try_join3};
use kaji_meta::{GroupResource, Status};
use kaji_resource::{Api, DeleteOptions};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};

/// Namespaces that always exist.
const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

/// Where the service network is and where this server listens.
pub struct Facts<'a> {
    /// `10.96.0.0/12`
    pub service_cidrs: &'a [String],
    /// The first address of the primary range, which is the `kubernetes` service's.
    pub service_ip: IpAddr,
    /// The address that endpoints name.
    pub advertise: SocketAddr,
}

/// Creates what is missing.
pub async fn run(api: &dyn Api, facts: &Facts<'_>) -> Result<(), Status> {
    let mut first = vec![];
    for name in NAMESPACES {
        first.push((GroupResource::new("", "namespaces"), object("v1", "Namespace", name)));
    }
    let mut range = object("networking.k8s.io/v1", "ServiceCIDR", "kubernetes");
    range["spec"] = json!({"cidrs": facts.service_cidrs});
    first.push((GroupResource::new("networking.k8s.io", "servicecidrs"), range));
    for (name, value, description) in [
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
    ] {
        let mut class = object("scheduling.k8s.io/v1", "PriorityClass", name);
        class["value"] = value.into();
        class["description"] = description.into();
        first.push((GroupResource::new("scheduling.k8s.io", "priorityclasses"), class));
    }
    // At once, for writes that wait together share an fsync.
    try_join_all(first.iter().map(|(resource, object)| ensure(api, resource, "", object.clone()))).await?;
    kubernetes_service(api, facts).await
}

async fn kubernetes_service(api: &dyn Api, facts: &Facts<'_>) -> Result<(), Status> {
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let mut service = object("v1", "Service", "kubernetes");
    service["metadata"]["labels"] = labels;
    service["spec"] = json!({
        "type": "ClusterIP",
        "clusterIP": facts.service_ip.to_string(),
        "clusterIPs": [facts.service_ip.to_string()],
        "sessionAffinity": "None",
        "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": facts.advertise.port()}],
    });
    let (ip, port) = (facts.advertise.ip().to_string(), facts.advertise.port());
    let mirrored = "endpointslice.kubernetes.io/skip-mirror";
    let mut endpoints = object("v1", "Endpoints", "kubernetes");
    endpoints["metadata"]["labels"] = json!({mirrored: "true"});
    endpoints["subsets"] =
        json!([{"addresses": [{"ip": ip}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]);
    let mut slice = object("discovery.k8s.io/v1", "EndpointSlice", "kubernetes");
    slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": "kubernetes"});
    slice["addressType"] = if facts.advertise.is_ipv4() { "IPv4" } else { "IPv6" }.into();
    slice["endpoints"] = json!([{"addresses": [ip], "conditions": {"ready": true}}]);
    slice["ports"] = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let [services, legacy, slices] =
        [("", "services"), ("", "endpoints"), ("discovery.k8s.io", "endpointslices")]
            .map(|(group, resource)| GroupResource::new(group, resource));
    try_join3(
        ensure(api, &services, "default", service),
        replace(api, &legacy, endpoints, "subsets"),
        replace(api, &slices, slice, "ports"),
    )
    .await
    .map(drop)
}

fn object(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})
}

async fn ensure(
    api: &dyn Api,
    resource: &GroupResource,
    namespace: &str,
    object: Value,
) -> Result<(), Status> {
    // Asked first: creating a service again would find its own address taken.
    if api.get(resource, namespace, kaji_meta::object::name(&object)).is_some() {
        return Ok(());
    }
    match api.create(resource, namespace, object, false).await {
        Err(status) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// Creates an object of the default namespace, or replaces it when `field` is another than what it should be.
async fn replace(api: &dyn Api, resource: &GroupResource, object: Value, field: &str) -> Result<(), Status> {
    let name = kaji_meta::object::name(&object).to_owned();
    match api.get(resource, "default", &name) {
        Some(found)
            if found.get(field) == object.get(field) && found.get("endpoints") == object.get("endpoints") =>
        {
            Ok(())
        }
        Some(_) => {
            api.delete(resource, "default", &name, DeleteOptions::default()).await?;
            ensure(api, resource, "default", object).await
        }
        None => ensure(api, resource, "default", object).await,
    }
}
