//! The zone of the cluster's domain: answers questions from the records of all services. Pure.
//!
//! Behaviour of the Kubernetes DNS specification 1.1.0, and of CoreDNS' kubernetes plug-in where the specification is silent:
//! pods' names (`10-1-2-3.ns.pod.cluster.local`) are answered without a look at the pods; endpoints of every service have names,
//! and reverse names unless a cluster IP has the address; reverse names that no service has are forwarded.
//!
//! Invariants: aliases are followed within the zone, at most [`MAX_ALIASES`] of them, so that loops end; the target of one that
//! leads out is never a name of the zone.

use crate::records::{Port, ReadyEndpoint, ServiceRecords, dashed};
use imbl::{GenericHashMap, GenericHashSet, shared_ptr::DefaultSharedPtr};
use std::fmt::Write as _;
use std::hash::RandomState;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Version of the specification, in the TXT record of `dns-version`.
const DNS_VERSION: &str = "1.1.0";
/// How many aliases may follow each other, as CoreDNS.
pub const MAX_ALIASES: usize = 8;

type Map<K, V> = GenericHashMap<K, V, RandomState, DefaultSharedPtr>;
type Set<K> = GenericHashSet<K, RandomState, DefaultSharedPtr>;

/// Namespace and name, both in lower case as the API has them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ServiceKey {
    /// A key.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> ServiceKey {
        ServiceKey { namespace: namespace.into(), name: name.into() }
    }
}

/// The type of a question, as far as the zone tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    #[allow(missing_docs)]
    A,
    #[allow(missing_docs)]
    Aaaa,
    #[allow(missing_docs)]
    Srv,
    #[allow(missing_docs)]
    Ptr,
    #[allow(missing_docs)]
    Txt,
    #[allow(missing_docs)]
    Ns,
    #[allow(missing_docs)]
    Soa,
    /// A name that is an alias answers with it; all others have no data.
    Other,
}

/// The data of a record. Names have no dot at their end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// A or AAAA.
    Address(IpAddr),
    /// SRV, with priority 0.
    Service {
        /// 100 divided by the number of targets, as CoreDNS weighs them.
        weight: u16,
        /// Port number.
        port: u16,
        /// Host name.
        target: String,
    },
    /// CNAME.
    Alias(String),
    /// PTR.
    Pointer(String),
    /// TXT.
    Text(String),
    /// NS.
    NameServer(String),
    /// The zone's SOA.
    Authority,
}

/// A record of an answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Its owner's name, in lower case, without a dot at its end; empty for the name of the question.
    pub name: String,
    /// Its type and data.
    pub data: Data,
}

impl Record {
    fn own(data: Data) -> Record {
        Record { name: String::new(), data }
    }
}

/// What the zone says to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The name exists; without records, it has none of this type.
    Records {
        /// Of the question's name.
        answers: Vec<Record>,
        /// Addresses of SRV targets.
        additionals: Vec<Record>,
    },
    /// The name is an alias, and its target is not in the zone: another resolver has the rest of the answer.
    Alias {
        /// From the question's name to the target.
        aliases: Vec<Record>,
        /// In lower case, without a dot at its end.
        target: String,
    },
    /// The name does not exist.
    NoSuchName,
    /// The name is not in the zone.
    NotAuthoritative,
}

impl Answer {
    fn records(answers: Vec<Record>) -> Answer {
        Answer::Records { answers, additionals: vec![] }
    }

    fn no_data() -> Answer {
        Answer::records(vec![])
    }
}

/// All names of a cluster at one moment. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Zone {
    /// `cluster.local`, in lower case.
    domain: Arc<str>,
    /// Of the DNS service itself, for the zone's name server.
    servers: Arc<[IpAddr]>,
    /// Of the SOA record; grows with every change.
    serial: u32,
    services: Map<ServiceKey, Arc<ServiceRecords>>,
    namespaces: Set<Arc<str>>,
    /// The services of each address, sorted.
    reverse: Map<IpAddr, Arc<[ServiceKey]>>,
}

impl Zone {
    /// A zone without services.
    #[must_use]
    pub fn new(domain: &str, servers: Vec<IpAddr>) -> Zone {
        Zone {
            domain: domain.trim_end_matches('.').to_ascii_lowercase().into(),
            servers: servers.into(),
            serial: 1,
            services: Map::default(),
            namespaces: Set::default(),
            reverse: Map::default(),
        }
    }

    /// The cluster's domain.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The number of the zone's version.
    #[must_use]
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Sets or removes what a service has. Whether anything changed.
    pub fn set_service(&mut self, key: &ServiceKey, records: Option<ServiceRecords>) -> bool {
        let former = self.services.get(key).cloned();
        if former.as_deref() == records.as_ref() {
            return false;
        }
        self.serial = self.serial.wrapping_add(1);
        // A rollout changes few of a service's many endpoints at a time.
        let before = former.map(|records| records.reverse()).unwrap_or_default();
        let after = records.as_ref().map(ServiceRecords::reverse).unwrap_or_default();
        for address in before.iter().filter(|a| after.binary_search(a).is_err()) {
            self.forget_reverse(*address, key);
        }
        // One list for all addresses that only this service has.
        let alone: Arc<[ServiceKey]> = [key.clone()].into();
        for address in after.iter().filter(|a| before.binary_search(a).is_err()) {
            let keys = match self.reverse.get(address) {
                None => alone.clone(),
                Some(others) => {
                    let mut keys = others.to_vec();
                    keys.push(key.clone());
                    keys.sort();
                    keys.into()
                }
            };
            self.reverse.insert(*address, keys);
        }
        match records {
            None => drop(self.services.remove(key)),
            Some(records) => drop(self.services.insert(key.clone(), Arc::new(records))),
        }
        true
    }

    fn forget_reverse(&mut self, address: IpAddr, key: &ServiceKey) {
        let left: Vec<_> = self
            .reverse
            .get(&address)
            .map(|keys| keys.iter().filter(|k| *k != key).cloned().collect())
            .unwrap_or_default();
        match left.is_empty() {
            true => drop(self.reverse.remove(&address)),
            false => drop(self.reverse.insert(address, left.into())),
        }
    }

    /// Adds or removes a namespace.
    pub fn set_namespace(&mut self, name: &str, exists: bool) {
        match exists {
            true => drop(self.namespaces.insert(name.into())),
            false => drop(self.namespaces.remove(name)),
        }
    }

    /// Answers a question. The name is in lower case, without a dot at its end.
    #[must_use]
    pub fn answer(&self, name: &str, kind: Kind) -> Answer {
        match self.find(name, kind) {
            // Stub resolvers do not follow an alias themselves, and ask for addresses.
            Answer::Alias { aliases, target } if matches!(kind, Kind::A | Kind::Aaaa) => {
                self.follow(aliases, target, kind)
            }
            Answer::Alias { aliases, .. } => Answer::records(aliases),
            answer => answer,
        }
    }

    /// Adds what the zone has of an alias' target.
    fn follow(&self, mut aliases: Vec<Record>, mut target: String, kind: Kind) -> Answer {
        while aliases.len() <= MAX_ALIASES {
            match self.find(&target, kind) {
                Answer::Alias { aliases: next, target: following } => {
                    aliases.extend(owned_by(&target, next));
                    target = following;
                }
                Answer::Records { answers, .. } => {
                    aliases.extend(owned_by(&target, answers));
                    return Answer::records(aliases);
                }
                Answer::NoSuchName => return Answer::records(aliases),
                Answer::NotAuthoritative => return Answer::Alias { aliases, target },
            }
        }
        // A loop, or as good as one: resolvers that follow aliases would ask on and on.
        Answer::no_data()
    }

    /// The answer of one name; of an alias, the alias.
    fn find(&self, name: &str, kind: Kind) -> Answer {
        if let Some(address) = reverse_address(name) {
            return self.pointers(address, kind);
        }
        let Some(relative) = name.strip_suffix(&*self.domain) else { return Answer::NotAuthoritative };
        if relative.is_empty() {
            return self.apex(kind);
        }
        let Some(relative) = relative.strip_suffix('.') else { return Answer::NotAuthoritative };
        let labels: Vec<&str> = relative.split('.').collect();
        match labels[..] {
            ["dns-version"] => match kind {
                Kind::Txt => Answer::records(vec![Record::own(Data::Text(DNS_VERSION.into()))]),
                _ => Answer::no_data(),
            },
            ["ns", "dns"] => Answer::records(addresses(self.servers.iter().copied(), kind, "")),
            ["dns"] | ["svc"] | ["pod"] => Answer::no_data(),
            [namespace, "svc" | "pod"] => match self.namespaces.contains(namespace) {
                true => Answer::no_data(),
                false => Answer::NoSuchName,
            },
            [ref labels @ .., service, namespace, "svc"] => self.service(labels, service, namespace, kind),
            [address, namespace, "pod"] => self.pod(address, namespace, kind),
            _ => Answer::NoSuchName,
        }
    }

    fn apex(&self, kind: Kind) -> Answer {
        let server = format!("ns.dns.{}", self.domain);
        match kind {
            Kind::Soa => Answer::records(vec![Record::own(Data::Authority)]),
            Kind::Ns => Answer::Records {
                answers: vec![Record::own(Data::NameServer(server.clone()))],
                additionals: self
                    .servers
                    .iter()
                    .map(|a| Record { name: server.clone(), data: Data::Address(*a) })
                    .collect(),
            },
            _ => Answer::no_data(),
        }
    }

    fn pod(&self, label: &str, namespace: &str, kind: Kind) -> Answer {
        match undashed(label).filter(|_| self.namespaces.contains(namespace)) {
            Some(address) => Answer::records(addresses([address], kind, "")),
            None => Answer::NoSuchName,
        }
    }

    fn pointers(&self, address: IpAddr, kind: Kind) -> Answer {
        let Some(keys) = self.reverse.get(&address) else { return Answer::NotAuthoritative };
        if kind != Kind::Ptr {
            return Answer::no_data();
        }
        let services: Vec<(&ServiceKey, &ServiceRecords)> =
            keys.iter().filter_map(|key| Some((key, &**self.services.get(key)?))).collect();
        // A cluster IP belongs to one service.
        if let Some((key, _)) = services.iter().find(|(_, records)| records.cluster_ips().contains(&address))
        {
            return Answer::records(vec![Record::own(Data::Pointer(self.service_name(key)))]);
        }
        let mut answers = vec![];
        for (key, records) in services {
            let service = self.service_name(key);
            let endpoints = records.endpoints_of(address).iter();
            answers.extend(endpoints.map(|e| Record::own(Data::Pointer(format!("{}.{service}", e.label())))));
        }
        Answer::records(distinct(answers))
    }

    fn service_name(&self, key: &ServiceKey) -> String {
        let mut name = String::with_capacity(key.name.len() + key.namespace.len() + self.domain.len() + 6);
        // Writing to a string cannot fail.
        let _ = write!(name, "{}.{}.svc.{}", key.name, key.namespace, self.domain);
        name
    }

    /// `labels` are those before the service's name.
    fn service(&self, labels: &[&str], service: &str, namespace: &str, kind: Kind) -> Answer {
        let key = ServiceKey::new(namespace, service);
        let Some(records) = self.services.get(&key) else { return Answer::NoSuchName };
        match (&**records, labels) {
            (_, [label]) => self.of_endpoints(&key, labelled(records.endpoints(), label), kind),
            (ServiceRecords::ExternalName(target), []) => {
                let alias = Record::own(Data::Alias(target.clone()));
                Answer::Alias { aliases: vec![alias], target: target.clone() }
            }
            (ServiceRecords::ClusterIp { addresses: ips, ports, .. }, []) => match kind {
                Kind::Srv => self.cluster_ip_targets(&key, ips, ports.iter()),
                _ => Answer::records(addresses(ips.iter().copied(), kind, "")),
            },
            (ServiceRecords::ClusterIp { addresses: ips, ports, .. }, [port, protocol]) => {
                let Some(selected) = select(ports, port, protocol) else { return Answer::NoSuchName };
                match kind {
                    Kind::Srv => self.cluster_ip_targets(&key, ips, selected.into_iter()),
                    _ => Answer::no_data(),
                }
            }
            (ServiceRecords::Headless(endpoints), []) => self.of_endpoints(&key, endpoints.iter(), kind),
            (ServiceRecords::Headless(endpoints), [port, protocol]) => {
                let pairs = |e| select_in(e, port, protocol).map(move |p| (e, p));
                let mut selected = endpoints.iter().flat_map(pairs).peekable();
                match selected.peek() {
                    None => Answer::NoSuchName,
                    Some(_) if kind == Kind::Srv => self.endpoint_targets(&key, selected),
                    Some(_) => Answer::no_data(),
                }
            }
            _ => Answer::NoSuchName,
        }
    }

    fn cluster_ip_targets<'a>(
        &self,
        key: &ServiceKey,
        ips: &[IpAddr],
        ports: impl Iterator<Item = &'a Port>,
    ) -> Answer {
        let target = self.service_name(key);
        let numbers: Vec<u16> = ports.map(|p| p.number).collect();
        let weight = weight(numbers.len());
        let answer = |port| Record::own(Data::Service { weight, port, target: target.clone() });
        Answer::Records {
            answers: numbers.into_iter().map(answer).collect(),
            additionals: ips
                .iter()
                .map(|ip| Record { name: target.clone(), data: Data::Address(*ip) })
                .collect(),
        }
    }

    /// A name that stands for endpoints exists while there are any, of either family.
    fn of_endpoints<'a>(
        &self,
        key: &ServiceKey,
        endpoints: impl Iterator<Item = &'a ReadyEndpoint>,
        kind: Kind,
    ) -> Answer {
        let mut endpoints = endpoints.peekable();
        match endpoints.peek() {
            None => Answer::NoSuchName,
            Some(_) if kind == Kind::Srv => {
                self.endpoint_targets(key, endpoints.flat_map(|e| e.ports.iter().map(move |p| (e, p))))
            }
            Some(_) => Answer::records(distinct(addresses(endpoints.map(|e| e.address), kind, ""))),
        }
    }

    fn endpoint_targets<'a>(
        &self,
        key: &ServiceKey,
        pairs: impl Iterator<Item = (&'a ReadyEndpoint, &'a Port)>,
    ) -> Answer {
        let service = self.service_name(key);
        let (mut answers, mut additionals) = (vec![], vec![]);
        for (endpoint, port) in pairs {
            let target = format!("{}.{service}", endpoint.label());
            answers.push(Record::own(Data::Service { weight: 0, port: port.number, target: target.clone() }));
            additionals.push(Record { name: target, data: Data::Address(endpoint.address) });
        }
        // An endpoint of two families is one target.
        let mut answers = distinct(answers);
        let each = weight(answers.len());
        for record in &mut answers {
            if let Data::Service { weight, .. } = &mut record.data {
                *weight = each;
            }
        }
        Answer::Records { answers, additionals: distinct(additionals) }
    }
}

fn weight(targets: usize) -> u16 {
    u16::try_from(100 / targets.max(1)).unwrap_or(0).max(1)
}

fn distinct(mut records: Vec<Record>) -> Vec<Record> {
    records.sort();
    records.dedup();
    records
}

/// The records of a question's name as those of another name.
fn owned_by(name: &str, records: Vec<Record>) -> impl Iterator<Item = Record> {
    records.into_iter().map(move |record| Record { name: name.to_owned(), data: record.data })
}

/// The endpoints that a label names.
fn labelled<'a>(
    endpoints: &'a [ReadyEndpoint],
    label: &'a str,
) -> impl Iterator<Item = &'a ReadyEndpoint> + use<'a> {
    // Parsed once, since endpoints do not keep the labels of their addresses.
    let address = undashed(label).filter(|address| dashed(*address) == label);
    endpoints.iter().filter(move |endpoint| match &endpoint.hostname {
        Some(hostname) => **hostname == *label,
        None => Some(endpoint.address) == address,
    })
}

/// The addresses of the question's family.
fn addresses(all: impl IntoIterator<Item = IpAddr>, kind: Kind, name: &str) -> Vec<Record> {
    let wanted = |a: &IpAddr| matches!((kind, a), (Kind::A, IpAddr::V4(_)) | (Kind::Aaaa, IpAddr::V6(_)));
    let record = |a| Record { name: name.to_owned(), data: Data::Address(a) };
    all.into_iter().filter(wanted).map(record).collect()
}

/// The ports that `_port._protocol` names; `None` where a label has no underscore or nothing is named.
fn select<'a>(ports: &'a [Port], port: &str, protocol: &str) -> Option<Vec<&'a Port>> {
    let (port, protocol) = (port.strip_prefix('_')?, protocol.strip_prefix('_')?);
    let selected: Vec<_> = ports.iter().filter(|p| p.name == port && p.protocol == protocol).collect();
    (!selected.is_empty()).then_some(selected)
}

fn select_in<'a>(
    endpoint: &'a ReadyEndpoint,
    port: &str,
    protocol: &str,
) -> impl Iterator<Item = &'a Port> + use<'a> {
    select(&endpoint.ports, port, protocol).unwrap_or_default().into_iter()
}

/// The address in a pod's name: `10-1-2-3`, `2001-db8--1`.
fn undashed(label: &str) -> Option<IpAddr> {
    let v4 = label.replace('-', ".").parse::<Ipv4Addr>();
    v4.map(IpAddr::V4).ok().or_else(|| label.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6))
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` stands for.
fn reverse_address(name: &str) -> Option<IpAddr> {
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let mut octets: Vec<u8> = labels.split('.').map(|l| l.parse().ok()).collect::<Option<_>>()?;
        octets.reverse();
        return Some(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?));
    }
    let labels = name.strip_suffix(".ip6.arpa")?;
    let digit = |l: &str| (l.len() == 1).then(|| u128::from_str_radix(l, 16).ok()).flatten();
    let digits: Vec<u128> = labels.split('.').map(digit).collect::<Option<_>>()?;
    (digits.len() == 32)
        .then(|| IpAddr::from(digits.iter().rev().fold(0_u128, |sum, d| sum << 4 | d).to_be_bytes()))
}

#[cfg(test)]
mod tests;
