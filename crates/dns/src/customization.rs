//! Which resolvers an administrator has cluster DNS ask: `stubDomains` and `upstreamNameservers` of the ConfigMap
//! `kube-system/kube-dns`, as kube-dns has them, and as GKE and NodeLocal DNSCache, which is a DNS of each node too, read them.
//! A Corefile is CoreDNS' own: most of what it may say is about plug-ins that are not here.
//!
//! Invariants: a map that cannot be understood is logged and changes nothing; without a map the node's resolvers are asked.

use crate::forward::Resolvers;
use crate::server::Service;
use hickory_proto::rr::Name;
use kaji_runtime::{Informer, Informers, Meta, Projection};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::sync::Notify;

/// The map's namespace.
pub const NAMESPACE: &str = "kube-system";
/// Its name.
pub const NAME: &str = "kube-dns";
/// Resolvers of one domain, as many as CoreDNS forwards to.
const MOST_SERVERS: usize = 15;
/// Upstream servers, as kube-dns.
const MOST_UPSTREAM: usize = 3;
/// Domains with resolvers of their own.
const MOST_DOMAINS: usize = 1000;
const PORT: u16 = 53;

/// The ConfigMap, projected.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CustomizationMap {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Values in JSON.
    pub data: BTreeMap<String, String>,
}

impl Projection for CustomizationMap {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "configmaps";
    const KIND: &'static str = "ConfigMap";

    kaji_runtime::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// Reads the values of a map.
///
/// # Errors
/// Why it cannot be understood: other keys, and what is no name or address.
pub fn parse(data: &BTreeMap<String, String>) -> Result<Resolvers, String> {
    let (mut stub_domains, mut upstream) = (vec![], vec![]);
    for (key, text) in data {
        match key.as_str() {
            "stubDomains" => {
                let domains: BTreeMap<String, Vec<String>> = json(key, text)?;
                if domains.len() > MOST_DOMAINS {
                    return Err(format!("{key}: more than {MOST_DOMAINS} domains"));
                }
                for (domain, addresses) in domains {
                    let field = format!("{key}: {domain:?}");
                    let mut name = Name::from_ascii(&domain).map_err(|_| format!("{field} is no domain"))?;
                    name.set_fqdn(true);
                    stub_domains.push((name, servers(&field, &addresses, MOST_SERVERS)?));
                }
            }
            "upstreamNameservers" => {
                upstream = servers(key, &json::<Vec<String>>(key, text)?, MOST_UPSTREAM)?
            }
            _ => {
                return Err(format!(
                    "{key:?} is not supported: expected stubDomains and upstreamNameservers"
                ));
            }
        }
    }
    Ok(Resolvers::new(stub_domains, upstream))
}

fn json<T: serde::de::DeserializeOwned>(key: &str, text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("{key}: {error}"))
}

fn servers(field: &str, addresses: &[String], most: usize) -> Result<Vec<SocketAddr>, String> {
    if addresses.is_empty() || addresses.len() > most {
        return Err(format!("{field}: {} servers, expected 1 to {most}", addresses.len()));
    }
    let server = |text: &String| {
        let alone = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT));
        alone
            .or_else(|_| text.parse())
            .map_err(|_| format!("{field}: {text:?} is no address (IP or IP:port)"))
    };
    addresses.iter().map(server).collect()
}

/// The map as the API has it.
pub struct Customization {
    maps: Arc<Informer<CustomizationMap>>,
    changed: Arc<Notify>,
}

impl Customization {
    /// What selects the map among those of its resource: clients may need the right to read a single one.
    #[must_use]
    pub fn selector() -> String {
        format!("metadata.name={NAME}")
    }

    /// Subscribes to the map. The informers have to show [`Customization::selector`] at least.
    #[must_use]
    pub fn new(informers: &Informers) -> Customization {
        let (maps, changed) = (informers.get::<CustomizationMap>(), Arc::new(Notify::new()));
        let notify = changed.clone();
        maps.handle(move |_| notify.notify_one());
        Customization { maps, changed }
    }

    /// Resolves when it is known whether there is a map.
    pub async fn synced(&self) {
        self.maps.synced().await;
    }

    /// Keeps a service's resolvers as the map says until the future is dropped.
    pub async fn run(self, service: Arc<Service>) {
        self.synced().await;
        loop {
            let maps = self.maps.snapshot();
            let resolvers =
                maps.get(NAMESPACE, NAME).map_or_else(|| Ok(Resolvers::default()), |map| parse(&map.data));
            match resolvers {
                Ok(resolvers) => service.configure(resolvers),
                Err(error) => tracing::error!(error, "the ConfigMap {NAMESPACE}/{NAME} cannot be used"),
            }
            self.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pairs: &[(&str, &str)]) -> String {
        let data = pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        match parse(&data) {
            Err(error) => error,
            Ok(Resolvers { stub_domains, upstream }) => {
                let stub = |(name, servers): &(Name, Vec<SocketAddr>)| format!("{name} {servers:?}");
                let stubs: Vec<String> = stub_domains.iter().map(stub).collect();
                format!("{} / {upstream:?}", stubs.join(", "))
            }
        }
    }

    #[test]
    fn maps_are_those_of_kube_dns() {
        let stubs = r#"{"Acme.local": ["1.2.3.4"], "eng.acme.local": ["[fd00::1]:5353", "1.2.3.4:54"]}"#;
        let cases = [
            shown(&[("stubDomains", stubs), ("upstreamNameservers", r#"["8.8.8.8", "fd00::2"]"#)]),
            shown(&[]),
            shown(&[("stubDomains", "garbage")]),
            shown(&[("stubDomains", r#"{"a": "1.2.3.4"}"#)]),
            shown(&[("stubDomains", r#"{"a": ["dns.example"]}"#)]),
            shown(&[("stubDomains", r#"{"a": []}"#)]),
            shown(&[("stubDomains", r#"{"a..b": ["1.2.3.4"]}"#)]),
            shown(&[("upstreamNameservers", r#"["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]"#)]),
            shown(&[("federations", "{}")]),
        ];
        expect_test::expect![[r#"
            eng.acme.local. [[fd00::1]:5353, 1.2.3.4:54], acme.local. [1.2.3.4:53] / [8.8.8.8:53, [fd00::2]:53]
             / []
            stubDomains: expected value at line 1 column 1
            stubDomains: invalid type: string "1.2.3.4", expected a sequence at line 1 column 15
            stubDomains: "a": "dns.example" is no address (IP or IP:port)
            stubDomains: "a": 0 servers, expected 1 to 15
            stubDomains: "a..b" is no domain
            upstreamNameservers: 4 servers, expected 1 to 3
            "federations" is not supported: expected stubDomains and upstreamNameservers
        "#]]
        .assert_eq(&format!("{}\n", cases.join("\n")));
    }

    #[test]
    fn the_map_is_read_as_its_schema_has_it() {
        let mismatches = kaji_schema::probe::mismatches_with_kind::<CustomizationMap>("", "v1", "ConfigMap");
        assert!(mismatches.is_empty(), "{mismatches:?}");
    }
}
