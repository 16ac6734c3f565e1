//! What a Service and its EndpointSlices have in DNS. Pure.

use kaji_runtime::objects::{Endpoint, EndpointPort, EndpointSlice, Service};
use std::net::IpAddr;

/// A port with a name, for SRV records.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Name; empty for the only port of a service.
    pub name: String,
    /// `tcp`, `udp`, `sctp`.
    pub protocol: String,
    /// Number.
    pub number: u16,
}

/// An endpoint of a headless service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeadlessEndpoint {
    /// Its host name, or its address with dashes.
    pub label: String,
    /// Whether the label is a host name; only such endpoints have PTR records.
    pub has_hostname: bool,
    /// Its address.
    pub address: IpAddr,
    /// Ports of its slice.
    pub ports: Vec<Port>,
}

/// What a service has in DNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceRecords {
    /// A service with cluster IPs.
    ClusterIp {
        /// Of both families.
        addresses: Vec<IpAddr>,
        /// Of the service.
        ports: Vec<Port>,
    },
    /// A headless service.
    Headless(Vec<HeadlessEndpoint>),
    /// An alias of a name outside the cluster, without a dot at its end.
    ExternalName(String),
}

impl ServiceRecords {
    /// The records of a service. `None` for one that has none yet: no cluster IP is allocated.
    pub fn of<'a>(
        service: &Service,
        slices: impl IntoIterator<Item = &'a EndpointSlice>,
    ) -> Option<ServiceRecords> {
        let spec = &service.spec;
        if spec.kind == "ExternalName" {
            let name = spec.external_name.trim_end_matches('.');
            return (!name.is_empty()).then(|| ServiceRecords::ExternalName(name.to_ascii_lowercase()));
        }
        if service.headless() {
            let mut endpoints: Vec<_> = slices.into_iter().flat_map(headless_endpoints).collect();
            endpoints.sort();
            endpoints.dedup();
            return Some(ServiceRecords::Headless(endpoints));
        }
        let addresses: Vec<IpAddr> = if spec.cluster_ips.is_empty() {
            spec.cluster_ip.parse().into_iter().collect()
        } else {
            spec.cluster_ips.iter().filter_map(|ip| ip.parse().ok()).collect()
        };
        let port =
            |p: &kaji_runtime::objects::ServicePort| port(Some(&p.name), Some(&p.protocol), Some(p.port));
        let ports = spec.ports.iter().filter_map(port).collect();
        (!addresses.is_empty()).then_some(ServiceRecords::ClusterIp { addresses, ports })
    }

    /// The addresses that have PTR records, with the label of the endpoint for headless services.
    pub fn reverse(&self) -> impl Iterator<Item = (IpAddr, Option<&str>)> {
        let (addresses, endpoints) = match self {
            ServiceRecords::ClusterIp { addresses, .. } => (addresses.as_slice(), &[][..]),
            ServiceRecords::Headless(endpoints) => (&[][..], endpoints.as_slice()),
            ServiceRecords::ExternalName(_) => (&[][..], &[][..]),
        };
        let endpoints = endpoints.iter().filter(|e| e.has_hostname);
        addresses.iter().map(|a| (*a, None)).chain(endpoints.map(|e| (e.address, Some(e.label.as_str()))))
    }
}

fn port(name: Option<&String>, protocol: Option<&String>, number: Option<i64>) -> Option<Port> {
    Some(Port {
        name: name.cloned().unwrap_or_default(),
        protocol: protocol.filter(|p| !p.is_empty()).map_or_else(|| "tcp".into(), |p| p.to_ascii_lowercase()),
        number: u16::try_from(number?).ok()?,
    })
}

fn headless_endpoints(slice: &EndpointSlice) -> impl Iterator<Item = HeadlessEndpoint> {
    let slice_port = |p: &EndpointPort| port(p.name.as_ref(), p.protocol.as_ref(), p.port);
    let ports: Vec<Port> = slice.ports.iter().filter_map(slice_port).collect();
    // Unknown readiness counts as ready. A slice is marked ready for services that publish addresses that are not.
    let ready = |endpoint: &&Endpoint| endpoint.conditions.ready.unwrap_or(true);
    slice.endpoints.iter().filter(ready).flat_map(move |endpoint| {
        let hostname = endpoint.hostname.as_deref().filter(|h| !h.is_empty()).map(str::to_ascii_lowercase);
        let ports = ports.clone();
        endpoint.addresses.iter().filter_map(|a| a.parse().ok()).map(move |address: IpAddr| {
            HeadlessEndpoint {
                label: hostname.clone().unwrap_or_else(|| dashed(address)),
                has_hostname: hostname.is_some(),
                address,
                ports: ports.clone(),
            }
        })
    })
}

/// An address as one label: `10-1-2-3`, `2001-db8--1`.
fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}
