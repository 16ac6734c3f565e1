//! `clusterDomain`, `clusterDNS` and `resolvConf`: the resolvers of a node's pods.

use kaji_meta::validation::is_dns1123_subdomain;
use std::net::IpAddr;
use std::path::PathBuf;

/// What an administrator configures of DNS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsConfiguration {
    /// The domain of services' names; `None` for the default.
    pub domain: Option<String>,
    /// The resolvers of pods with the policy ClusterFirst; without any, cluster DNS.
    pub servers: Vec<IpAddr>,
    /// The node's resolver configuration; empty for none, `None` for the machine's.
    pub resolv_conf: Option<PathBuf>,
}

impl DnsConfiguration {
    pub(super) fn new(
        domain: Option<&str>,
        servers: &[String],
        resolv_conf: Option<&str>,
    ) -> Result<DnsConfiguration, String> {
        let domain = domain.filter(|domain| !domain.is_empty());
        if let Some(domain) = domain
            && let Some(error) = is_dns1123_subdomain(domain).first()
        {
            return Err(format!("clusterDomain: {domain:?}: {error}"));
        }
        let server = |text: &String| {
            text.parse().map_err(|_| format!("invalid configuration: clusterDNS: {text:?} is no IP address"))
        };
        if let Some(path) = resolv_conf.filter(|path| !path.is_empty() && !path.starts_with('/')) {
            return Err(format!("resolvConf: {path:?} is no absolute path"));
        }
        Ok(DnsConfiguration {
            domain: domain.map(str::to_owned),
            servers: servers.iter().map(server).collect::<Result<_, _>>()?,
            resolv_conf: resolv_conf.map(PathBuf::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn resolvers_are_addresses_and_files() {
        let of = |text: &str| {
            parse(&format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}"))
                .map(|configuration| configuration.dns)
        };
        let dns =
            of("clusterDomain: example.internal\nclusterDNS: [10.0.0.10, 'fd00::a']\nresolvConf: /run/r")
                .unwrap();
        assert_eq!(dns.domain.as_deref(), Some("example.internal"));
        assert_eq!(dns.servers, ["10.0.0.10", "fd00::a"].map(|ip| ip.parse::<std::net::IpAddr>().unwrap()));
        assert_eq!(dns.resolv_conf.unwrap().to_str(), Some("/run/r"));
        assert_eq!(of("resolvConf: ''").unwrap().resolv_conf.unwrap().to_str(), Some(""));
        assert_eq!(of("").unwrap(), super::DnsConfiguration::default());
        for wrong in
            ["clusterDomain: a_b", "clusterDNS: [dns.example]", "resolvConf: relative", "clusterDNS: 7"]
        {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
