//! Service, EndpointSlice and Endpoints, projected.

use super::selector::MapSelector;
use crate::{Meta, ObjectSnapshot, Projection};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

/// A service's port.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name, `""` for the only one.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP`
    pub protocol: String,
    /// Port of the service.
    pub port: i64,
    /// Port of the pods: number or name, raw.
    pub target_port: Value,
    /// Port on every node.
    pub node_port: i64,
    /// Hint for the protocol above.
    pub app_protocol: Option<String>,
}

/// A service's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer`, `ExternalName`
    #[serde(rename = "type")]
    pub kind: String,
    /// Which pods.
    pub selector: MapSelector,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// `None` for headless services.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// All of them.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    /// `IPv4`, `IPv6`
    pub ip_families: Vec<String>,
    /// Whether pods count before they are ready.
    pub publish_not_ready_addresses: bool,
    /// `PreferClose`, …
    pub traffic_distribution: Option<String>,
    /// Target of an ExternalName service.
    pub external_name: String,
    /// Addresses from outside.
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    /// `ClientIP` or `None`
    pub session_affinity: String,
    /// How long affinity lasts.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// The controller that makes the load balancer, if not the cluster's own.
    pub load_balancer_class: Option<Box<str>>,
    /// The address that the load balancer is to have.
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: Box<str>,
    /// Clients that a load balancer's addresses take; empty for all.
    pub load_balancer_source_ranges: Vec<String>,
    /// Port on every node that tells load balancers whether the node has endpoints.
    pub health_check_node_port: u16,
    /// `Cluster` or `Local`
    pub internal_traffic_policy: String,
    /// `Cluster` or `Local`
    pub external_traffic_policy: String,
}

/// Configuration of session affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// Of `ClientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// Configuration of `ClientIP` affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// From a client's last connection.
    pub timeout_seconds: Option<u32>,
}

/// An address of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// Address.
    pub ip: String,
    /// Its name, where it has no address that stays.
    pub hostname: String,
    /// `VIP` (also when empty) if packets arrive with it as their destination, or `Proxy`.
    pub ip_mode: String,
}

/// A load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// Its addresses.
    pub ingress: Vec<LoadBalancerIngress>,
}

/// A service's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Of services of type `LoadBalancer`.
    pub load_balancer: LoadBalancerStatus,
}

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: ServiceSpec,
    /// Status.
    pub status: ServiceStatus,
}

impl Service {
    /// Whether it has no cluster IP.
    pub fn headless(&self) -> bool {
        self.spec.cluster_ip == "None"
    }

    /// The services that select a pod with these labels.
    pub fn selecting<'a>(
        services: &'a ObjectSnapshot<Service>,
        namespace: &'a str,
        labels: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = &'a Arc<Service>> {
        /// So many services are compared sooner than the terms of all labels are made.
        const FEW: usize = 4;
        let mut few: Vec<_> = services.in_namespace(namespace).take(FEW + 1).collect();
        let by_label = (few.len() > FEW).then_some(labels);
        if by_label.is_some() {
            few.clear();
        }
        let terms = by_label.into_iter().flatten();
        let indexed = terms.flat_map(move |(key, value)| {
            services.indexed("selector", &selector_term(namespace, key, value))
        });
        few.into_iter()
            .filter(|service| !service.spec.selector.is_empty())
            .chain(indexed)
            .filter(move |service| service.spec.selector.matches(labels))
    }
}

fn selector_term(namespace: &str, key: &str, value: &str) -> String {
    format!("{namespace}/{key}={value}")
}

impl Projection for Service {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "services";
    const KIND: &'static str = "Service";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    /// `selector`: `namespace/key=value` of the selector's first label, so that the services of a pod are found by the
    /// pod's labels.
    fn index(&self) -> Vec<(&'static str, String)> {
        let first = self.spec.selector.labels.first_key_value();
        first
            .map(|(key, value)| ("selector", selector_term(&self.metadata.namespace, key, value)))
            .into_iter()
            .collect()
    }
}

fn is_null(value: &Value) -> bool {
    value.is_null()
}

/// Conditions of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointConditions {
    /// Takes new connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Answers, even while terminating.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// Is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Addresses.
    pub addresses: Vec<String>,
    /// Conditions.
    pub conditions: EndpointConditions,
    /// DNS name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The pod, raw.
    #[serde(skip_serializing_if = "is_null")]
    pub target_ref: Value,
    /// Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Zones and nodes that should prefer it, raw.
    #[serde(skip_serializing_if = "is_null")]
    pub hints: Value,
}

/// A port of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Hint for the protocol above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

/// An endpoint slice, whole.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// ObjectMeta.
    pub metadata: Meta,
    /// `IPv4`, `IPv6`, `FQDN`
    pub address_type: String,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Ports.
    pub ports: Vec<EndpointPort>,
}

/// The label that names a slice's service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// On endpoints of services without a cluster IP.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

impl Projection for EndpointSlice {
    const GROUP: &'static str = "discovery.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "endpointslices";
    const KIND: &'static str = "EndpointSlice";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    /// `service`: `namespace/name` of the service.
    fn index(&self) -> Vec<(&'static str, String)> {
        match self.metadata.labels.get(SERVICE_NAME_LABEL) {
            Some(service) => vec![("service", format!("{}/{service}", self.metadata.namespace))],
            None => vec![],
        }
    }
}

/// Endpoints, whole; subsets stay raw.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Endpoints {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Subsets, raw.
    pub subsets: Value,
}

impl Projection for Endpoints {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "endpoints";
    const KIND: &'static str = "Endpoints";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
