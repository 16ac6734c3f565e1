//! Names and resolvers of a pod: host name, `/etc/hosts`, DNS configuration, host ports. Upstream's `network/dns` and
//! `ensureHostsFile`.

use super::core::{HostAlias, Pod};
use super::model;
use kaji_containers::{DnsConfig, PortMapping, Protocol};
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

/// Search domains that a resolver takes, and their characters in all.
const MOST_SEARCHES: usize = 32;
const MOST_SEARCH_CHARACTERS: usize = 2048;
/// Name servers that a resolver takes.
const MOST_SERVERS: usize = 3;

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HOST_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";

/// The node's own resolver configuration: read for each pod that starts, as upstream, so that pods get what it says by then.
#[derive(Clone)]
pub struct NodeDns {
    /// Of the file, for `/configz`.
    pub file: String,
    read: Arc<dyn Fn() -> DnsConfig + Send + Sync>,
}

impl NodeDns {
    /// What `read` answers, which is about a file.
    pub fn new(file: &str, read: impl Fn() -> DnsConfig + Send + Sync + 'static) -> NodeDns {
        NodeDns { file: file.to_owned(), read: Arc::new(read) }
    }

    /// One that does not change.
    #[must_use]
    pub fn fixed(config: DnsConfig) -> NodeDns {
        NodeDns::new("", move || config.clone())
    }

    fn present(&self) -> DnsConfig {
        (self.read)()
    }
}

impl std::fmt::Debug for NodeDns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NodeDns").field(&self.file).finish()
    }
}

/// What the node knows of DNS.
#[derive(Debug, Clone)]
pub struct DnsSettings {
    /// Addresses of the cluster's DNS service.
    pub servers: Vec<IpAddr>,
    /// `cluster.local`; empty for none.
    pub domain: String,
    /// The node's own resolver configuration.
    pub node: NodeDns,
}

/// A pod's resolver configuration, and texts of `DNSConfigForming` events about what did not fit.
#[must_use]
pub fn dns(pod: &Pod, settings: &DnsSettings) -> (DnsConfig, Vec<String>) {
    let spec = model::spec(pod);
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let cluster = match policy {
        "ClusterFirstWithHostNet" => true,
        "ClusterFirst" => !model::host_network(pod),
        _ => false,
    };
    let mut warnings = vec![];
    let mut config = if policy == "None" {
        DnsConfig::default()
    } else if cluster && settings.servers.is_empty() {
        warnings.push(format!(
            "pod: \"{}\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"{policy}\" policy. Falling back to \"Default\" policy.",
            model::display(pod)
        ));
        settings.node.present()
    } else if cluster {
        let mut searches = vec![];
        if !settings.domain.is_empty() {
            let domain = &settings.domain;
            searches = vec![
                format!("{}.svc.{domain}", model::namespace(pod)),
                format!("svc.{domain}"),
                domain.clone(),
            ];
        }
        searches.extend(settings.node.present().searches);
        DnsConfig {
            servers: settings.servers.iter().map(ToString::to_string).collect(),
            searches,
            options: vec!["ndots:5".to_owned()],
        }
    } else {
        settings.node.present()
    };
    if let Some(own) = &spec.dns_config {
        config.servers.extend(own.nameservers.iter().flatten().cloned());
        config.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            config.options.retain(|o| o.split(':').next() != Some(name.as_str()));
            config.options.push(match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name,
            });
        }
    }
    limit(&mut config, &mut warnings);
    (config, warnings)
}

fn unique(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

fn limit(config: &mut DnsConfig, warnings: &mut Vec<String>) {
    unique(&mut config.servers);
    unique(&mut config.searches);
    if config.servers.len() > MOST_SERVERS {
        config.servers.truncate(MOST_SERVERS);
        let kept = config.servers.join(" ");
        warnings.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {kept}"
        ));
    }
    let (mut characters, count) = (0, config.searches.len());
    config.searches.truncate(MOST_SEARCHES);
    config.searches.retain(|search| {
        characters += search.len() + 1;
        characters <= MOST_SEARCH_CHARACTERS + 1
    });
    if config.searches.len() < count {
        let kept = config.searches.join(" ");
        warnings.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {kept}"
        ));
    }
}

/// A pod's host name and the domain that it is in; empty without a subdomain.
///
/// # Errors
/// The text for a name that is none.
pub fn hostname(pod: &Pod, cluster_domain: &str) -> Result<(String, String), String> {
    let spec = model::spec(pod);
    if let Some(name) = &spec.hostname_override {
        return Ok((truncated(model::name(pod), name)?, String::new()));
    }
    let own = spec.hostname.as_deref().filter(|h| !h.is_empty());
    let name = truncated(model::name(pod), own.unwrap_or(model::name(pod)))?;
    let domain = match spec.subdomain.as_deref().filter(|s| !s.is_empty()) {
        Some(subdomain) => format!("{subdomain}.{}.svc.{cluster_domain}", model::namespace(pod)),
        None => String::new(),
    };
    Ok((name, domain))
}

/// The kernel takes 63 characters.
fn truncated(pod: &str, name: &str) -> Result<String, String> {
    if name.len() <= 63 {
        return Ok(name.to_owned());
    }
    let cut = name.get(..63).unwrap_or_default().trim_end_matches(['-', '.']);
    if cut.is_empty() {
        Err(format!("hostname for pod \"{pod}\" was invalid: \"{name}\""))
    } else {
        Ok(cut.to_owned())
    }
}

/// What the sandbox's host name is set to.
///
/// # Errors
/// The text of a name that does not fit.
pub fn node_name_or_fqdn(pod: &Pod, cluster_domain: &str, node: &str) -> Result<String, String> {
    if model::host_network(pod) && model::spec(pod).hostname_override.is_none() {
        return Ok(node.to_owned());
    }
    let (name, domain) = hostname(pod, cluster_domain)?;
    if model::spec(pod).set_hostname_as_fqdn == Some(true) && !domain.is_empty() {
        let full = format!("{name}.{domain}");
        if full.len() > 64 {
            return Err(format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long (64 characters is the max, {} characters requested)",
                full.len()
            ));
        }
        return Ok(full);
    }
    Ok(name)
}

/// `/etc/hosts` of a pod with these addresses. `node_hosts` is the node's own file, for pods in its network.
#[must_use]
pub fn hosts_file(
    pod: &Pod,
    addresses: &[IpAddr],
    hostname: &str,
    domain: &str,
    node_hosts: Option<&str>,
) -> String {
    let aliases = model::spec(pod).host_aliases.as_deref().unwrap_or_default();
    if let Some(node_hosts) = node_hosts {
        return format!("{HOST_HEADER}{node_hosts}{}", alias_lines(aliases));
    }
    let mut text = String::from(HEADER);
    text += "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n";
    text += "fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
    for address in addresses {
        // Writing to a string cannot fail.
        let _ = if domain.is_empty() {
            writeln!(text, "{address}\t{hostname}")
        } else {
            writeln!(text, "{address}\t{hostname}.{domain}\t{hostname}")
        };
    }
    text + &alias_lines(aliases)
}

fn alias_lines(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        text += &format!("{}\t{names}\n", alias.ip);
    }
    text
}

/// The host ports of a pod's containers; none in the node's network, where they are the containers' own.
#[must_use]
pub fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    if model::host_network(pod) {
        return vec![];
    }
    let sidecars = model::init_containers(pod).iter().filter(|c| model::is_sidecar(c));
    let ports = sidecars.chain(model::containers(pod)).flat_map(|c| c.ports.iter().flatten());
    let of = |p: &super::core::ContainerPort| PortMapping {
        protocol: match p.protocol.as_deref() {
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            _ => Protocol::Tcp,
        },
        container_port: u16::try_from(p.container_port).unwrap_or(0),
        host_port: p.host_port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0),
        host_ip: p.host_ip.as_deref().and_then(|ip| ip.parse().ok()),
    };
    ports.map(of).filter(|p| p.host_port > 0).collect()
}
