//! Where a service is: one of its ready endpoints, for there is nothing here that routes its cluster IP.
//!
//! Source: upstream's `pkg/util/proxy` of k8s.io/apiserver (`ResolveEndpoint`; `ResolveCluster` for external names).

use kaji_meta::{GroupResource, Random, Status, object, text};
use kaji_resource::Api;
use serde_json::Value;
use std::sync::Arc;

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// An address, or a name for services that only stand for one.
    pub host: String,
    /// The port there.
    pub port: u16,
}

/// Finds an endpoint of a service's port.
///
/// # Errors
/// 404 for a service that does not exist, 503 for one without that port or without ready endpoints, and for one of which the
/// endpoint is a pod of a simulated node: its address is of no machine here, but may be of one beyond.
pub fn resolve(
    api: &dyn Api,
    random: &dyn Random,
    (namespace, name): (&str, &str),
    port: u16,
) -> Result<Endpoint, Status> {
    let services = GroupResource::new("", "services");
    // Upstream asks a lister, which names one of them.
    let missing = || Status::not_found(&GroupResource::new("", "service"), name);
    let service = api.get(&services, namespace, name).ok_or_else(missing)?;
    match object::str_at(&service, &["spec", "type"]) {
        "ClusterIP" | "LoadBalancer" | "NodePort" | "" => {}
        "ExternalName" => {
            let host = object::str_at(&service, &["spec", "externalName"]).to_owned();
            return Ok(Endpoint { host, port });
        }
        other => return Err(Status::internal(format!("unsupported service type {}", text::quote(other)))),
    }
    let ports = object::at(&service, &["spec", "ports"]).and_then(Value::as_array);
    let found = ports.and_then(|all| all.iter().find(|p| p["port"] == port)).ok_or_else(|| {
        Status::service_unavailable(format!("no service port {port} found for service {}", text::quote(name)))
    })?;
    let port_name = object::str_at(found, &["name"]);
    let family = object::at(&service, &["spec", "ipFamilies"]).and_then(|f| f[0].as_str()).unwrap_or("");
    let resource = GroupResource::new("discovery.k8s.io", "endpointslices");
    let owner =
        |slice: &Value| object::str_at(slice, &["metadata", "labels", "kubernetes.io/service-name"]) == name;
    let mut slices: Vec<Arc<Value>> =
        api.list(&resource, Some(namespace)).into_iter().filter(|s| owner(s)).collect();
    // In random order, those of the service's first family first.
    let start = below(random, slices.len());
    slices.rotate_left(start);
    slices.sort_by_key(|s| object::str_at(s, &["addressType"]) != family);
    let (endpoint, node) =
        slices.iter().find_map(|slice| pick(slice, port_name, random)).ok_or_else(|| {
            Status::service_unavailable(format!("no endpoints available for service {}", text::quote(name)))
        })?;
    if node.as_deref().is_some_and(|node| is_simulated(api, node)) {
        let Endpoint { host, port } = &endpoint;
        let text = format!("dial tcp {host}:{port}: connect: connection refused (a simulated pod)");
        return Err(Status::service_unavailable(text));
    }
    Ok(endpoint)
}

/// Whether nothing runs on a node.
fn is_simulated(api: &dyn Api, node: &str) -> bool {
    api.get(&GroupResource::new("", "nodes"), "", node).is_some_and(|node| {
        let runtime = object::str_at(&node, &["status", "nodeInfo", "containerRuntimeVersion"]);
        runtime.starts_with("simulated://")
    })
}

/// A ready endpoint of a slice that has a port of this name, and its node.
fn pick(slice: &Value, port_name: &str, random: &dyn Random) -> Option<(Endpoint, Option<String>)> {
    let ports = slice.get("ports")?.as_array()?;
    let named = |p: &&Value| object::str_at(p, &["name"]) == port_name && p["port"].is_u64();
    let port = u16::try_from(ports.iter().find(named)?["port"].as_u64()?).ok()?;
    let endpoints = slice.get("endpoints")?.as_array()?;
    let start = below(random, endpoints.len());
    (0..endpoints.len()).map(|i| &endpoints[(i + start) % endpoints.len()]).find_map(|endpoint| {
        // What is not said to be unready is ready.
        (endpoint["conditions"]["ready"] != false).then_some(())?;
        let node = endpoint["nodeName"].as_str().map(str::to_owned);
        Some((Endpoint { host: endpoint["addresses"][0].as_str()?.to_owned(), port }, node))
    })
}

fn below(random: &dyn Random, count: usize) -> usize {
    if count < 2 { 0 } else { usize::try_from(random.u64() % count as u64).unwrap_or(0) }
}

#[cfg(test)]
mod tests;
