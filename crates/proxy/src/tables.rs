//! The tables of the service proxy: sets, maps, base chains, and the chains that spread connections.
//!
//! There is no chain a service. A connection's destination is looked up in `service-ips`, which leads to a chain for the *number* of
//! endpoints; that chain draws a random number and looks up destination and number in `endpoints`. So a change of a service is
//! a change of elements, and services with equally many endpoints share their chain.
//!
//! Node ports have the unspecified address as their destination.
//!
//! A client's affinity is to an endpoint of a service's port, whatever the destination by which it came: `service-ports` leads from
//! each destination to that of the cluster IP, which is the same as long as the service exists. Each traffic policy has a map of
//! clients of its own, because an element of a dynamic map cannot be replaced by a rule: a client may have to get another endpoint by
//! one policy than by the other. A client without an element in the one map keeps the endpoint of the other, if the policy allows it.
//!
//! Affinity is no condition of a connection: where the map is full, clients are not remembered.

use crate::NodeConfig;
use kaji_netfilter::{
    Batch, Chain, ChainType, Compare, Expr, Family, Field, Hook, Reg, SetData, SetSpec, Verdict,
    expr::{LOCAL, STATE_NEW, STATUS_DNAT, any_bit, concatenation, set_mark_bit},
    octets,
    set::DataType,
};
use std::{fmt, net::Ipv6Addr, time::Duration};

/// Elements of an affinity map, at most; the kernel reserves a table of about this size.
const AFFINITY_SIZE: u32 = 65535;
/// Rejects connections.
pub const REJECT: &str = "reject";

/// The sets and maps that have elements from services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// Destinations that are translated, to the chains that do it.
    ServiceIps,
    /// Destinations without endpoints, to `drop` or the chain that rejects.
    NoEndpoints,
    /// Cluster IPs.
    ClusterIps,
    /// Destination and number to endpoint, policy `Cluster`.
    Endpoints,
    /// Destination and number to endpoint, policy `Local`.
    LocalEndpoints,
    /// Destinations of services with affinity, to the cluster IP and port of the same service's port.
    ServicePorts,
    /// Cluster IP's destination and endpoint, policy `Cluster`, for services with affinity.
    AffinityEndpoints,
    /// Cluster IP's destination and endpoint, policy `Local`, for services with affinity.
    LocalAffinityEndpoints,
    /// Endpoints on this node, twice: a pod that reaches itself by a service.
    Hairpin,
    /// Destinations with source ranges.
    Firewalled,
    /// Destination and clients that may reach it.
    AllowedSources,
}

impl SetId {
    /// All of them.
    pub const ALL: [SetId; 11] = [
        SetId::ServiceIps,
        SetId::NoEndpoints,
        SetId::ClusterIps,
        SetId::Endpoints,
        SetId::LocalEndpoints,
        SetId::ServicePorts,
        SetId::AffinityEndpoints,
        SetId::LocalAffinityEndpoints,
        SetId::Hairpin,
        SetId::Firewalled,
        SetId::AllowedSources,
    ];

    /// Name in the kernel.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SetId::ServiceIps => "service-ips",
            SetId::NoEndpoints => "no-endpoints",
            SetId::ClusterIps => "cluster-ips",
            SetId::Endpoints => "endpoints",
            SetId::LocalEndpoints => "local-endpoints",
            SetId::ServicePorts => "service-ports",
            SetId::AffinityEndpoints => "affinity-endpoints",
            SetId::LocalAffinityEndpoints => "local-affinity-endpoints",
            SetId::Hairpin => "hairpin",
            SetId::Firewalled => "firewalled",
            SetId::AllowedSources => "allowed-sources",
        }
    }

    /// Its definition.
    #[must_use]
    pub fn spec(self, family: Family) -> SetSpec {
        let ip = DataType::address(family);
        let destination = [ip, DataType::Protocol, DataType::Port];
        let with = |more: &[DataType]| [&destination[..], more].concat();
        let endpoint = || SetData::Value(vec![ip, DataType::Port]);
        let spec = |key: &[DataType], data| SetSpec::new(self.name(), key, data);
        match self {
            SetId::ServiceIps | SetId::NoEndpoints => spec(&destination, SetData::Verdict),
            SetId::ClusterIps => spec(&[ip], SetData::None),
            SetId::Endpoints | SetId::LocalEndpoints => spec(&with(&[DataType::Integer]), endpoint()),
            SetId::ServicePorts => spec(&destination, SetData::Value(destination.to_vec())),
            SetId::AffinityEndpoints | SetId::LocalAffinityEndpoints => {
                spec(&with(&[ip, DataType::Port]), SetData::None)
            }
            SetId::Hairpin => spec(&[ip, ip], SetData::None),
            SetId::Firewalled => spec(&destination, SetData::None),
            SetId::AllowedSources => spec(&with(&[ip]), SetData::None).with_intervals(),
        }
    }
}

/// Which of a service's endpoints a connection may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// The cluster's.
    Cluster,
    /// The node's.
    Local,
}

impl TrafficPolicy {
    /// Both of them.
    pub const ALL: [TrafficPolicy; 2] = [TrafficPolicy::Cluster, TrafficPolicy::Local];

    fn other(self) -> TrafficPolicy {
        match self {
            TrafficPolicy::Cluster => TrafficPolicy::Local,
            TrafficPolicy::Local => TrafficPolicy::Cluster,
        }
    }

    /// The map that endpoints are drawn from.
    #[must_use]
    pub fn endpoints(self) -> SetId {
        match self {
            TrafficPolicy::Cluster => SetId::Endpoints,
            TrafficPolicy::Local => SetId::LocalEndpoints,
        }
    }

    /// The endpoints that clients may keep.
    #[must_use]
    pub fn affinity_endpoints(self) -> SetId {
        match self {
            TrafficPolicy::Cluster => SetId::AffinityEndpoints,
            TrafficPolicy::Local => SetId::LocalAffinityEndpoints,
        }
    }

    fn affinity(self) -> &'static str {
        match self {
            TrafficPolicy::Cluster => "affinity",
            TrafficPolicy::Local => "local-affinity",
        }
    }

    /// The map of clients' affinity: client and cluster IP's destination to endpoint.
    #[must_use]
    pub fn affinity_spec(self, family: Family) -> SetSpec {
        let ip = DataType::address(family);
        let key = [ip, ip, DataType::Protocol, DataType::Port];
        let mut spec = SetSpec::new(self.affinity(), &key, SetData::Value(vec![ip, DataType::Port]));
        spec.dynamic = Some(AFFINITY_SIZE);
        spec
    }
}

/// A chain that spreads connections over equally many endpoints. Its rules follow from this alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spread {
    /// For node ports: the destination is any address.
    pub any: bool,
    /// Seconds of clients' affinity.
    pub affinity: Option<u32>,
    /// Which endpoints.
    pub kind: SpreadKind,
}

/// See [`Spread`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpreadKind {
    /// So many of the cluster's.
    Cluster(u32),
    /// So many of the node's.
    Local(u32),
    /// From outside, so many of the cluster's: the source is translated too.
    External(u32),
    /// From outside, so many of the node's; local clients use so many of the cluster's.
    ExternalLocal {
        /// For local clients.
        cluster: u32,
        /// For others.
        local: u32,
    },
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SpreadKind::Cluster(n) => write!(f, "cluster-{n}")?,
            SpreadKind::Local(n) => write!(f, "local-{n}")?,
            SpreadKind::External(n) => write!(f, "external-{n}")?,
            SpreadKind::ExternalLocal { cluster, local } => write!(f, "external-local-{cluster}-{local}")?,
        }
        if self.any {
            f.write_str("-node-port")?;
        }
        self.affinity.map_or(Ok(()), |seconds| write!(f, "-affinity-{seconds}"))
    }
}

impl Spread {
    fn with(self, kind: SpreadKind) -> Spread {
        Spread { kind, ..self }
    }

    /// The chains that this one leads to.
    #[must_use]
    pub fn needs(self) -> Vec<Spread> {
        match self.kind {
            SpreadKind::Cluster(_) | SpreadKind::Local(_) => vec![],
            SpreadKind::External(n) => vec![self.with(SpreadKind::Cluster(n))],
            SpreadKind::ExternalLocal { cluster, local } => {
                let both = [(cluster, SpreadKind::Cluster(cluster)), (local, SpreadKind::Local(local))];
                both.into_iter().filter(|(n, _)| *n > 0).map(|(_, kind)| self.with(kind)).collect()
            }
        }
    }

    /// Its rules.
    #[must_use]
    pub fn rules(self, family: Family, node: &NodeConfig) -> Vec<Vec<Expr>> {
        let goto = |kind| Expr::Decide(Verdict::Goto(self.with(kind).to_string()));
        match self.kind {
            SpreadKind::Cluster(n) => self.choose(family, TrafficPolicy::Cluster, n),
            SpreadKind::Local(n) => self.choose(family, TrafficPolicy::Local, n),
            SpreadKind::External(n) => {
                vec![set_mark_bit(node.masquerade_mark), vec![goto(SpreadKind::Cluster(n))]]
            }
            SpreadKind::ExternalLocal { cluster, local } => {
                let mut rules = vec![];
                if cluster > 0 {
                    let from_pod = [
                        Expr::Load(Field::Source(family), Reg(0)),
                        Expr::Contains(Reg(0), LOCAL_CIDRS.into()),
                        goto(SpreadKind::Cluster(cluster)),
                    ];
                    rules.push(from_pod.to_vec());
                    let mut marked = local_kind(Field::SourceKind);
                    marked.extend(set_mark_bit(node.masquerade_mark));
                    rules.push(marked);
                    let mut from_node = local_kind(Field::SourceKind);
                    from_node.push(goto(SpreadKind::Cluster(cluster)));
                    rules.push(from_node);
                }
                if local > 0 {
                    rules.push(vec![goto(SpreadKind::Local(local))]);
                }
                rules
            }
        }
    }

    /// Registers: client, destination, protocol, port, then number or endpoint. For affinity, the cluster IP's destination takes the
    /// place of the packet's.
    fn choose(self, family: Family, policy: TrafficPolicy, count: u32) -> Vec<Vec<Expr>> {
        let words = (family.address_len() / 4) as u8;
        let (destination, chosen) = (Reg(words), Reg(2 * words + 2));
        let load = [
            Expr::Load(Field::Source(family), Reg(0)),
            if self.any {
                Expr::Constant(octets(family.unspecified()), destination)
            } else {
                Expr::Load(Field::Destination(family), destination)
            },
            Expr::Load(Field::Protocol, Reg(2 * words)),
            Expr::Load(Field::DestinationPort, Reg(2 * words + 1)),
        ];
        let map = |key: Reg, name: &str, to: Reg| Expr::Map { key, map: name.into(), to };
        let draw = [Expr::Random(chosen, count), map(destination, policy.endpoints().name(), chosen)];
        let translate = Expr::Dnat { family, address: chosen, port: chosen.after(family.address_len()) };
        let plain = [&load[..], &draw[..], std::slice::from_ref(&translate)].concat();
        let Some(seconds) = self.affinity else { return vec![plain] };
        let service_port = map(destination, SetId::ServicePorts.name(), destination);
        let remember = |policy: TrafficPolicy| Expr::Remember {
            map: policy.affinity().into(),
            key: Reg(0),
            data: chosen,
            timeout: Duration::from_secs(seconds.into()),
        };
        let mut rules = vec![];
        for memory in [policy, policy.other()] {
            let mut known = load.to_vec();
            known.extend([
                service_port.clone(),
                map(Reg(0), memory.affinity(), chosen),
                // The registers after the client's are the cluster IP's destination and the endpoint in a row.
                Expr::Contains(destination, policy.affinity_endpoints().name().into()),
                remember(memory),
                translate.clone(),
            ]);
            rules.push(known);
        }
        let mut fresh = [&load[..], &draw[..]].concat();
        fresh.extend([service_port, remember(policy), translate]);
        // A map that is full ends the rule that would add to it; the next one translates without that.
        rules.extend([fresh, plain]);
        rules
    }
}

/// Ranges of local clients: their traffic is not masqueraded.
pub const LOCAL_CIDRS: &str = "local-cidrs";
/// Addresses of the node that take node ports.
pub const NODE_PORT_IPS: &str = "nodeport-ips";
/// Ranges of cluster IPs.
pub const SERVICE_CIDRS: &str = "service-cidrs";

fn local_kind(field: Field) -> Vec<Expr> {
    vec![Expr::Load(field, Reg(0)), Expr::Compare(Reg(0), Compare::Equal, LOCAL.to_ne_bytes().into())]
}

/// Conditions of traffic to a node port, and its key.
fn node_port(family: Family, node: &NodeConfig) -> Vec<Expr> {
    let mut rule = local_kind(Field::DestinationKind);
    rule.push(Expr::Load(Field::Destination(family), Reg(0)));
    match family {
        _ if node.node_port_cidrs.iter().any(|range| range.family() == family) => {
            rule.push(Expr::Contains(Reg(0), NODE_PORT_IPS.into()));
        }
        Family::V4 => {
            let from = Reg(0);
            rule.push(Expr::Bits { from, to: Reg(4), mask: vec![255, 0, 0, 0], xor: vec![0; 4] });
            rule.push(Expr::Compare(Reg(4), Compare::NotEqual, vec![127, 0, 0, 0]));
        }
        Family::V6 => {
            let loopback = octets(Ipv6Addr::LOCALHOST.into());
            rule.push(Expr::Compare(Reg(0), Compare::NotEqual, loopback));
        }
    }
    let after = Reg(0).after(family.address_len());
    rule.extend([
        Expr::Constant(octets(family.unspecified()), Reg(0)),
        Expr::Load(Field::Protocol, after),
        Expr::Load(Field::DestinationPort, after.after(1)),
    ]);
    rule
}

/// The base chains: name, type, hook, priority.
const BASE: [(&str, ChainType, Hook, i32); 8] = [
    ("filter-prerouting", ChainType::Filter, Hook::Prerouting, -110),
    ("filter-output-early", ChainType::Filter, Hook::Output, -110),
    ("filter-input", ChainType::Filter, Hook::Input, 0),
    ("filter-forward", ChainType::Filter, Hook::Forward, 0),
    ("filter-output", ChainType::Filter, Hook::Output, 0),
    ("nat-prerouting", ChainType::Nat, Hook::Prerouting, -100),
    ("nat-output", ChainType::Nat, Hook::Output, -100),
    ("nat-postrouting", ChainType::Nat, Hook::Postrouting, 100),
];

/// Which chains jump to which, new connections only where it says so.
const JUMPS: [(&str, &str, bool); 11] = [
    ("filter-input", "node-port-check", true),
    ("filter-input", "endpoints-check", true),
    ("filter-forward", "endpoints-check", true),
    ("filter-output", "endpoints-check", true),
    ("filter-prerouting", "firewall-check", true),
    ("filter-output-early", "firewall-check", true),
    ("nat-output", "services", false),
    ("nat-prerouting", "services", false),
    ("nat-postrouting", "masquerading", false),
    ("filter-forward", "cluster-ips-check", true),
    ("filter-output", "cluster-ips-check", true),
];

/// The table with its sets and fixed chains, in place of one that is there; no elements but those of the node.
#[must_use]
pub fn skeleton(family: Family, node: &NodeConfig) -> Batch {
    let mut batch = Batch::new(family, &node.table);
    batch.add_table();
    batch.delete_table();
    batch.add_table();
    for id in SetId::ALL {
        batch.add_set(&id.spec(family));
    }
    for policy in TrafficPolicy::ALL {
        batch.add_set(&policy.affinity_spec(family));
    }
    let ranges = [
        (LOCAL_CIDRS, &node.local_cidrs),
        (NODE_PORT_IPS, &node.node_port_cidrs),
        (SERVICE_CIDRS, &node.service_cidrs),
    ];
    for (name, ranges) in ranges {
        let spec = SetSpec::new(name, &[DataType::address(family)], SetData::None).with_intervals();
        batch.add_set(&spec);
        batch.add_elements(&spec, &kaji_network::cidr::elements(ranges, family));
    }
    for (name, kind, hook, priority) in BASE {
        batch.add_chain(&Chain::base(name, kind, hook, priority));
    }
    let fixed = ["services", "endpoints-check", "node-port-check", "firewall-check", "cluster-ips-check"];
    for name in fixed.into_iter().chain(["masquerading", REJECT]) {
        batch.add_chain(&Chain::regular(name));
    }
    for (from, to, new) in JUMPS {
        let mut rule = if new { any_bit(Field::ConnectionState, STATE_NEW) } else { vec![] };
        rule.push(Expr::Decide(Verdict::Jump(to.into())));
        batch.add_rule(from, &rule);
    }
    services(&mut batch, family, node);
    checks(&mut batch, family, node);
    masquerading(&mut batch, family, node);
    batch
}

fn destination(family: Family) -> Vec<Expr> {
    concatenation(&[Field::Destination(family), Field::Protocol, Field::DestinationPort])
}

fn services(batch: &mut Batch, family: Family, node: &NodeConfig) {
    let mut outside = vec![
        Expr::Load(Field::Destination(family), Reg(0)),
        Expr::Contains(Reg(0), SetId::ClusterIps.name().into()),
    ];
    let known = node.local_cidrs.iter().any(|range| range.family() == family);
    if !node.masquerade_all {
        outside.push(Expr::Load(Field::Source(family), Reg(0)));
        outside.push(Expr::Lacks(Reg(0), LOCAL_CIDRS.into()));
    }
    if known || node.masquerade_all {
        outside.extend(set_mark_bit(node.masquerade_mark));
        batch.add_rule("services", &outside);
    }
    let dispatch = Expr::VerdictMap(Reg(0), SetId::ServiceIps.name().into());
    let mut rule = destination(family);
    rule.push(dispatch.clone());
    batch.add_rule("services", &rule);
    let mut rule = node_port(family, node);
    rule.push(dispatch);
    batch.add_rule("services", &rule);
}

fn checks(batch: &mut Batch, family: Family, node: &NodeConfig) {
    batch.add_rule(REJECT, &[Expr::Reject(family)]);
    let check = Expr::VerdictMap(Reg(0), SetId::NoEndpoints.name().into());
    let mut rule = destination(family);
    rule.push(check.clone());
    batch.add_rule("endpoints-check", &rule);
    let mut rule = node_port(family, node);
    rule.push(check);
    batch.add_rule("node-port-check", &rule);
    let mut rule = concatenation(&[
        Field::Destination(family),
        Field::Protocol,
        Field::DestinationPort,
        Field::Source(family),
    ]);
    rule.extend([
        Expr::Contains(Reg(0), SetId::Firewalled.name().into()),
        Expr::Lacks(Reg(0), SetId::AllowedSources.name().into()),
        Expr::Decide(Verdict::Drop),
    ]);
    batch.add_rule("firewall-check", &rule);
    let to = Expr::Load(Field::Destination(family), Reg(0));
    batch.add_rule(
        "cluster-ips-check",
        &[to.clone(), Expr::Contains(Reg(0), SetId::ClusterIps.name().into()), Expr::Reject(family)],
    );
    batch.add_rule(
        "cluster-ips-check",
        &[to, Expr::Contains(Reg(0), SERVICE_CIDRS.into()), Expr::Decide(Verdict::Drop)],
    );
}

fn masquerading(batch: &mut Batch, family: Family, node: &NodeConfig) {
    let mark = node.masquerade_mark;
    let mut rule = any_bit(Field::Mark, mark);
    rule.extend([
        Expr::Load(Field::Mark, Reg(0)),
        Expr::Bits {
            from: Reg(0),
            to: Reg(0),
            mask: u32::MAX.to_ne_bytes().into(),
            xor: mark.to_ne_bytes().into(),
        },
        Expr::SetMark(Reg(0)),
        Expr::Masquerade,
    ]);
    batch.add_rule("masquerading", &rule);
    let mut rule = any_bit(Field::ConnectionStatus, STATUS_DNAT);
    rule.extend(concatenation(&[Field::Source(family), Field::Destination(family)]));
    rule.extend([Expr::Contains(Reg(0), SetId::Hairpin.name().into()), Expr::Masquerade]);
    batch.add_rule("masquerading", &rule);
}
