//! What a Service and its EndpointSlices have in DNS. Pure.
//!
//! Invariant: endpoints are sorted by address, each once.

use kaji_runtime::objects::{Endpoint, EndpointPort, EndpointSlice, Service};
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

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

/// An address of an endpoint that is ready. Small, since a service may have thousands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadyEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its host name, in lower case.
    pub hostname: Option<Box<str>>,
    /// Ports of its slice, which all endpoints of the slice share.
    pub ports: Arc<[Port]>,
}

impl ReadyEndpoint {
    /// What stands before the service's name: the host name, or the address with dashes.
    #[must_use]
    pub fn label(&self) -> Cow<'_, str> {
        self.hostname.as_deref().map_or_else(|| Cow::Owned(dashed(self.address)), Cow::Borrowed)
    }
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
        /// Those that are ready.
        endpoints: Box<[ReadyEndpoint]>,
    },
    /// A headless service, with the endpoints that are ready.
    Headless(Box<[ReadyEndpoint]>),
    /// An alias of another name, in lower case and without a dot at its end.
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
            return Some(ServiceRecords::Headless(ready_endpoints(slices)));
        }
        let addresses: Vec<IpAddr> = if spec.cluster_ips.is_empty() {
            spec.cluster_ip.parse().into_iter().collect()
        } else {
            spec.cluster_ips.iter().filter_map(|ip| ip.parse().ok()).collect()
        };
        if addresses.is_empty() {
            return None;
        }
        let port =
            |p: &kaji_runtime::objects::ServicePort| port(Some(&p.name), Some(&p.protocol), Some(p.port));
        let ports = spec.ports.iter().filter_map(port).collect();
        Some(ServiceRecords::ClusterIp { addresses, ports, endpoints: ready_endpoints(slices) })
    }

    /// The cluster IPs.
    #[must_use]
    pub fn cluster_ips(&self) -> &[IpAddr] {
        match self {
            ServiceRecords::ClusterIp { addresses, .. } => addresses,
            ServiceRecords::Headless(_) | ServiceRecords::ExternalName(_) => &[],
        }
    }

    /// The endpoints that are ready, by address.
    #[must_use]
    pub fn endpoints(&self) -> &[ReadyEndpoint] {
        match self {
            ServiceRecords::ClusterIp { endpoints, .. } | ServiceRecords::Headless(endpoints) => endpoints,
            ServiceRecords::ExternalName(_) => &[],
        }
    }

    /// The endpoints that have an address.
    #[must_use]
    pub fn endpoints_of(&self, address: IpAddr) -> &[ReadyEndpoint] {
        let all = self.endpoints();
        let from = &all[all.partition_point(|endpoint| endpoint.address < address)..];
        &from[..from.partition_point(|endpoint| endpoint.address == address)]
    }

    /// The addresses that have PTR records: sorted, each once.
    #[must_use]
    pub fn reverse(&self) -> Vec<IpAddr> {
        let endpoints = self.endpoints().iter().map(|endpoint| endpoint.address);
        let mut addresses: Vec<IpAddr> = self.cluster_ips().iter().copied().chain(endpoints).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

fn port(name: Option<&String>, protocol: Option<&String>, number: Option<i64>) -> Option<Port> {
    Some(Port {
        name: name.cloned().unwrap_or_default(),
        protocol: protocol.filter(|p| !p.is_empty()).map_or_else(|| "tcp".into(), |p| p.to_ascii_lowercase()),
        number: u16::try_from(number?).ok()?,
    })
}

fn ready_endpoints<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> Box<[ReadyEndpoint]> {
    let mut endpoints: Vec<_> = slices.into_iter().flat_map(ready_in).collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    endpoints.into_boxed_slice()
}

fn ready_in(slice: &EndpointSlice) -> impl Iterator<Item = ReadyEndpoint> {
    let slice_port = |p: &EndpointPort| port(p.name.as_ref(), p.protocol.as_ref(), p.port);
    let ports: Arc<[Port]> = slice.ports.iter().filter_map(slice_port).collect();
    // Unknown readiness counts as ready. A slice is marked ready for services that publish addresses that are not.
    let ready = |endpoint: &&Endpoint| endpoint.conditions.ready.unwrap_or(true);
    slice.endpoints.iter().filter(ready).flat_map(move |endpoint| {
        let hostname = endpoint.hostname.as_deref().filter(|h| !h.is_empty());
        let hostname: Option<Box<str>> = hostname.map(|h| h.to_ascii_lowercase().into());
        let ports = ports.clone();
        endpoint.addresses.iter().filter_map(|a| a.parse().ok()).map(move |address: IpAddr| ReadyEndpoint {
            address,
            hostname: hostname.clone(),
            ports: ports.clone(),
        })
    })
}

/// An address as one label: `10-1-2-3`, `2001-db8--1`. A label does not end with a dash: `2001-db8--0`.
pub(crate) fn dashed(address: IpAddr) -> String {
    let mut label = address.to_string().replace(['.', ':'], "-");
    if label.ends_with('-') {
        label.push('0');
    }
    label
}
