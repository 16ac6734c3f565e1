//! Sandboxes.

use super::{labels, security};
use crate::messages as cri;
use kaji_containers::{
    PodSandboxConfig, PodSandboxFilter, PodSandboxInfo, PodSandboxMetadata, PodSandboxState,
    PodSandboxStatus, PortMapping, Protocol, SandboxSecurity,
};
use std::net::IpAddr;

numbers!(
    protocol, protocol_of, Protocol,
    [0 => Protocol::Tcp, 1 => Protocol::Udp, 2 => Protocol::Sctp],
    else Protocol::Tcp
);
numbers!(
    state, state_of, PodSandboxState,
    [0 => PodSandboxState::Ready, 1 => PodSandboxState::NotReady],
    else PodSandboxState::NotReady
);

pub(crate) fn metadata(m: &PodSandboxMetadata) -> cri::PodSandboxMetadata {
    cri::PodSandboxMetadata {
        name: m.name.clone(),
        uid: m.uid.clone(),
        namespace: m.namespace.clone(),
        attempt: m.attempt,
    }
}

pub(crate) fn metadata_of(m: Option<&cri::PodSandboxMetadata>) -> PodSandboxMetadata {
    m.map_or_else(PodSandboxMetadata::default, |m| PodSandboxMetadata {
        name: m.name.clone(),
        namespace: m.namespace.clone(),
        uid: m.uid.clone(),
        attempt: m.attempt,
    })
}

fn port(port: &PortMapping) -> cri::PortMapping {
    cri::PortMapping {
        protocol: protocol(port.protocol),
        container_port: port.container_port.into(),
        host_port: port.host_port.into(),
        host_ip: port.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
    }
}

/// What a sandbox is to be.
#[must_use]
pub fn config(config: &PodSandboxConfig) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(metadata(&config.metadata)),
        // In the node's network the host name is the node's.
        hostname: match config.security.namespaces.network {
            kaji_containers::NamespaceMode::Node => String::new(),
            _ => config.hostname.clone(),
        },
        log_directory: config.log_directory.clone(),
        dns_config: Some(cri::DnsConfig {
            servers: config.dns.servers.clone(),
            searches: config.dns.searches.clone(),
            options: config.dns.options.clone(),
        }),
        port_mappings: config.port_mappings.iter().map(port).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: config.cgroup_parent.clone(),
            security_context: Some(security::of_sandbox(&config.security)),
            sysctls: config.sysctls.clone(),
            overhead: config.overhead.as_ref().map(security::resources),
            resources: config.resources.as_ref().map(security::resources),
        }),
    }
}

/// Which sandboxes to list.
#[must_use]
pub fn filter(filter: &PodSandboxFilter) -> cri::PodSandboxFilter {
    cri::PodSandboxFilter {
        id: filter.id.clone().unwrap_or_default(),
        state: filter.state.map(|s| cri::PodSandboxStateValue { state: state(s) }),
        label_selector: labels(&filter.labels),
    }
}

/// A sandbox in a list.
#[must_use]
pub fn info(sandbox: cri::PodSandbox) -> PodSandboxInfo {
    PodSandboxInfo {
        metadata: metadata_of(sandbox.metadata.as_ref()),
        id: sandbox.id,
        state: state_of(sandbox.state),
        created_at_nanos: sandbox.created_at,
        labels: sandbox.labels,
        annotations: sandbox.annotations,
        runtime_handler: sandbox.runtime_handler,
    }
}

/// A sandbox's status. What the runtime does not give back of its configuration is empty.
#[must_use]
pub fn status(status: cri::PodSandboxStatus) -> PodSandboxStatus {
    let network = status.network.unwrap_or_default();
    let others = network.additional_ips.into_iter().map(|other| other.ip);
    let addresses: Vec<IpAddr> =
        std::iter::once(network.ip).chain(others).filter_map(|ip| ip.parse().ok()).collect();
    let namespaces = status.linux.and_then(|linux| linux.namespaces).and_then(|n| n.options);
    PodSandboxStatus {
        info: info(cri::PodSandbox {
            id: status.id,
            metadata: status.metadata,
            state: status.state,
            created_at: status.created_at,
            labels: status.labels,
            annotations: status.annotations,
            runtime_handler: status.runtime_handler,
        }),
        addresses,
        network_namespace: None,
        security: SandboxSecurity {
            namespaces: namespaces.as_ref().map(security::namespaces_of).unwrap_or_default(),
            ..Default::default()
        },
    }
}
