//! How this server reaches nodes: which of a node's addresses it takes, the certificate that it shows, and the authority that
//! kubelets' certificates must be by.
//!
//! Invariants: the kubelet's certificate is verified unless the client asks for a log without; the client certificate goes to
//! kubelets only. Addresses that requests can choose are resolved once: what was checked is what is connected to.

use super::plain_error;
use crate::serving_certificates::Certificates;
use arc_swap::ArcSwap;
use kaji_meta::Status;
use kaji_outbound::{ClientConfig, Target};
use kaji_resource::{Host, Location, Security, is_global_unicast};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// The order in which a node's addresses are tried, as kubeadm configures it: host names of nodes need not resolve.
pub const ADDRESS_TYPES: [&str; 5] = ["InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"];

/// Certificate chain and key, PEM.
type Pair = (Vec<u8>, Vec<u8>);

/// The client of nodes.
pub struct NodeClient {
    certificates: Arc<Certificates>,
    /// Instead of the cluster's own, if files name one.
    identity: ArcSwap<Option<Pair>>,
    authority: Option<Vec<u8>>,
    address_types: Vec<String>,
}

impl NodeClient {
    /// Shows the cluster's own client certificate for kubelets and trusts the cluster's authority.
    pub fn new(certificates: Arc<Certificates>) -> NodeClient {
        let address_types = ADDRESS_TYPES.map(str::to_owned).to_vec();
        NodeClient { certificates, identity: ArcSwap::default(), authority: None, address_types }
    }

    /// Trusts this authority, PEM, instead of the cluster's.
    #[must_use]
    pub fn with_authority(mut self, authority: Option<Vec<u8>>) -> NodeClient {
        self.authority = authority;
        self
    }

    /// Takes the first of a node's addresses by this order of types; by the default order if it is empty.
    #[must_use]
    pub fn with_address_types(mut self, types: Vec<String>) -> NodeClient {
        if !types.is_empty() {
            self.address_types = types;
        }
        self
    }

    /// From now on shows this certificate.
    pub fn identify(&self, chain: Vec<u8>, key: Vec<u8>) {
        self.identity.store(Arc::new(Some((chain, key))));
    }

    /// The configuration of the client of a location.
    ///
    /// # Errors
    /// The node has no usable address, or the address may not be proxied to.
    pub(super) async fn config(&self, location: &Location) -> Result<ClientConfig, Status> {
        let host = self.host(location).await?;
        let port = location.port;
        if location.security == Security::Plain {
            return Ok(ClientConfig::new(Target::Plain { host, port }, ""));
        }
        let url = match host.contains(':') {
            true => format!("https://[{host}]:{port}"),
            false => format!("https://{host}:{port}"),
        };
        let mut config = ClientConfig::new(Target::Url(url), "");
        match location.security {
            Security::Mutual { verify } => {
                let pki = self.certificates.current();
                let own = || (pki.kubelet_client.certificate.clone(), pki.kubelet_client.key.clone());
                let given = Option::clone(&self.identity.load());
                config.identity = Some(given.unwrap_or_else(|| {
                    let (chain, key) = own();
                    (chain.into_bytes(), key.into_bytes())
                }));
                if verify {
                    let own = || pki.ca.certificate.clone().into_bytes();
                    config.ca_bundle = self.authority.clone().unwrap_or_else(own);
                }
                config.insecure = !verify;
            }
            Security::Plain | Security::Unverified => config.insecure = true,
        }
        Ok(config)
    }

    async fn host(&self, location: &Location) -> Result<String, Status> {
        let host = match &location.host {
            Host::Address(address) => address.clone(),
            Host::AnyOf(addresses) => self.preferred(addresses)?,
        };
        if !location.global_only {
            return Ok(host);
        }
        let not_allowed = || Status::bad_request("address not allowed");
        if let Ok(ip) = host.parse::<IpAddr>() {
            return if is_global_unicast(ip) { Ok(host) } else { Err(not_allowed()) };
        }
        let missing = |why: String| Status::bad_request(format!("lookup {host}: {why}"));
        let found = kaji_outbound::networks::lookup_host(&host, location.port).await;
        let found: Vec<IpAddr> =
            found.map_err(|e| missing(e.to_string()))?.iter().map(SocketAddr::ip).collect();
        match found.first() {
            None => Err(missing("no addresses for hostname".into())),
            Some(first) if found.iter().all(|ip| is_global_unicast(*ip)) => Ok(first.to_string()),
            Some(_) => Err(not_allowed()),
        }
    }

    /// Source: `GetPreferredNodeAddress`.
    fn preferred(&self, addresses: &[(String, String)]) -> Result<String, Status> {
        let of_type = |wanted: &String| addresses.iter().find(|(ty, a)| ty == wanted && !a.is_empty());
        let found = self.address_types.iter().find_map(of_type);
        found.map(|(_, address)| address.clone()).ok_or_else(|| {
            let known: Vec<String> = addresses.iter().map(|(ty, a)| format!("{{{ty} {a}}}")).collect();
            plain_error(format!("no preferred addresses found; known addresses: [{}]", known.join(" ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use kaji_resource::LocationQuery;

    fn location(host: Host, security: Security, global_only: bool) -> Location {
        let (path, query) = ("/x".into(), LocationQuery::AsReceived);
        Location { host, port: 10250, security, path, query, global_only }
    }

    fn client() -> NodeClient {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        NodeClient::new(Arc::new(Certificates::in_memory(vec![], now).unwrap()))
    }

    fn any_of(addresses: &[(&str, &str)]) -> Host {
        Host::AnyOf(addresses.iter().map(|(ty, a)| ((*ty).to_owned(), (*a).to_owned())).collect())
    }

    #[test]
    fn addresses_are_preferred_by_type() {
        let both = [("Hostname", "n"), ("InternalIP", "fd00::1"), ("ExternalIP", "8.8.8.8")];
        let pick = |client: &NodeClient, host: Host| {
            let location = location(host, Security::Mutual { verify: true }, false);
            let config = client.config(&location).now_or_never().unwrap();
            config.map_or_else(|status| status.message, |config| format!("{:?}", config.target))
        };
        let client = client();
        let seen = [
            pick(&client, any_of(&both)),
            pick(&client, any_of(&[("Other", "x"), ("InternalIP", "")])),
            pick(&client.with_address_types(vec!["Hostname".into()]), any_of(&both)),
        ];
        expect_test::expect![[r#"
            Url("https://[fd00::1]:10250")
            no preferred addresses found; known addresses: [{Other x} {InternalIP }]
            Url("https://n:10250")"#]]
        .assert_eq(&seen.join("\n"));
    }

    #[test]
    fn the_client_certificate_is_for_kubelets() {
        let client = client();
        let config = |security| {
            let location = location(Host::Address("10.0.0.1".into()), security, false);
            client.config(&location).now_or_never().unwrap().unwrap()
        };
        let verified = config(Security::Mutual { verify: true });
        assert!(verified.identity.is_some() && !verified.insecure && !verified.ca_bundle.is_empty());
        let unverified = config(Security::Mutual { verify: false });
        assert!(unverified.identity.is_some() && unverified.insecure);
        for other in [Security::Plain, Security::Unverified] {
            assert!(config(other).identity.is_none());
        }
        client.identify(b"chain".to_vec(), b"key".to_vec());
        let given = config(Security::Mutual { verify: true });
        assert_eq!(given.identity, Some((b"chain".to_vec(), b"key".to_vec())));
    }

    #[tokio::test]
    async fn names_are_checked_by_their_addresses() {
        let client = client();
        for host in ["127.0.0.1", "169.254.169.254", "::1", "localhost"] {
            let location = location(any_of(&[("Hostname", host)]), Security::Plain, true);
            let refused = client.config(&location).await.unwrap_err();
            assert_eq!((refused.code, &*refused.message), (400, "address not allowed"), "{host}");
        }
        let location = location(any_of(&[("InternalIP", "10.0.0.1")]), Security::Plain, true);
        assert!(client.config(&location).await.is_ok());
    }
}
