//! Policies, pods and namespaces become chains and sets. Pure.
//!
//! Each direction has a map from pods' addresses to a chain, which is shared by the pods that the same policies select; it has the
//! rules of those policies and drops what none of them accepts.

use super::local::{LocalPod, LocalTable};
use super::object::{IpBlock, NetworkPolicy, Peer, Port, Rule};
use kaji_netfilter::{
    Family,
    set::{merge_ranges, next_address, prefix_bounds},
};
use kaji_network::Cidr;
use kaji_runtime::{
    ObjectSnapshot,
    objects::{LabelSelector, Namespace, Pod},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

/// Which connections a chain is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To pods.
    Ingress,
    /// From pods.
    Egress,
}

/// Addresses of the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// Any.
    All,
    /// In one of these ranges, each from first to last; they are disjoint and in order.
    Ranges(Vec<(IpAddr, IpAddr)>),
}

/// Ports of the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// Any, of any protocol.
    All,
    /// From first to last, of a protocol.
    Range(u8, u16, u16),
    /// Those of single destinations: a port's name means another number for each pod.
    Of(BTreeSet<(IpAddr, u8, u16)>),
}

/// What is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accept {
    /// The other side.
    pub peers: Peers,
    /// Ports.
    pub ports: Ports,
}

/// What policies become, in one family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Addresses of restricted pods, to the number of their chain.
    pub pods: BTreeMap<(Direction, IpAddr), usize>,
    /// Chains: what each accepts. The rest is dropped.
    pub chains: Vec<(Direction, Vec<Accept>)>,
}

/// What policies become on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compiled {
    /// IPv4.
    pub v4: Rules,
    /// IPv6.
    pub v6: Rules,
}

/// The objects that rules follow from.
#[derive(Clone, Default)]
pub struct PolicyObjects {
    /// Policies.
    pub policies: ObjectSnapshot<NetworkPolicy>,
    /// Pods, of all nodes.
    pub pods: ObjectSnapshot<Pod>,
    /// Namespaces.
    pub namespaces: ObjectSnapshot<Namespace>,
    /// Pods of this node with the addresses that they have here.
    pub local: Arc<LocalTable>,
}

/// Whether a pod has addresses of its own that are in use.
fn connected(pod: &Pod) -> bool {
    !pod.spec.host_network && !matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

fn addresses(pod: &Pod, family: Family) -> impl Iterator<Item = IpAddr> {
    let single = std::iter::once(pod.status.pod_ip.as_str()).filter(|_| pod.status.pod_ips.is_empty());
    let all = pod.status.pod_ips.iter().map(|ip| ip.ip.as_str()).chain(single);
    all.filter_map(|text| text.parse().ok()).filter(move |ip| Family::of(*ip) == family)
}

/// What policies become on a node.
#[must_use]
pub fn compile(objects: &PolicyObjects, node: &str) -> Compiled {
    let mut local: Local<'_> = HashMap::new();
    for (_, (found, pod)) in local_pods(objects, node) {
        local.entry(pod.metadata.uid.as_str()).or_default().extend(found.addresses.iter().copied());
    }
    Compiled {
        v4: Compiler { objects, node, local: &local, family: Family::V4 }.compile(),
        v6: Compiler { objects, node, local: &local, family: Family::V6 }.compile(),
    }
}

/// Addresses by the uid that the API shows.
type Local<'a> = HashMap<&'a str, Vec<IpAddr>>;

/// The sandboxes of which the API shows the pods on this node, with these: rules apply to them.
pub(super) fn local_pods<'a>(
    objects: &'a PolicyObjects,
    node: &'a str,
) -> impl Iterator<Item = (&'a String, (&'a LocalPod, &'a Arc<Pod>))> {
    objects.local.iter().filter_map(move |(sandbox, local)| {
        let pod = objects.pods.get(&local.namespace, &local.name)?;
        (local.is(pod) && pod.spec.node_name.as_str() == node).then_some((sandbox, (local, pod)))
    })
}

struct Compiler<'a> {
    objects: &'a PolicyObjects,
    node: &'a str,
    local: &'a Local<'a>,
    family: Family,
}

impl Compiler<'_> {
    /// A pod's addresses: those that the API shows, and those that it has here.
    fn addresses(&self, pod: &Pod) -> impl Iterator<Item = IpAddr> {
        let family = self.family;
        let local = self.local.get(pod.metadata.uid.as_str()).into_iter().flatten().copied();
        addresses(pod, family).chain(local.filter(move |ip| Family::of(*ip) == family))
    }

    fn compile(&self) -> Rules {
        let mut rules = Rules::default();
        let mut groups: BTreeMap<(Direction, Vec<usize>), Vec<&Arc<Pod>>> = BTreeMap::new();
        let policies: Vec<&Arc<NetworkPolicy>> = self.objects.policies.iter().collect();
        for pod in
            self.objects.pods.iter().filter(|pod| pod.spec.node_name.as_str() == self.node && connected(pod))
        {
            for direction in [Direction::Ingress, Direction::Egress] {
                let own: Vec<usize> =
                    (0..policies.len()).filter(|index| restricts(policies[*index], direction, pod)).collect();
                if !own.is_empty() {
                    groups.entry((direction, own)).or_default().push(pod);
                }
            }
        }
        for ((direction, own), pods) in groups {
            let number = rules.chains.len();
            for pod in &pods {
                rules.pods.extend(self.addresses(pod).map(|ip| ((direction, ip), number)));
            }
            let accepted = own.iter().flat_map(|index| self.policy(policies[*index], direction, &pods));
            rules.chains.push((direction, accepted.collect()));
        }
        rules
    }

    fn policy(&self, policy: &NetworkPolicy, direction: Direction, pods: &[&Arc<Pod>]) -> Vec<Accept> {
        let rules = match direction {
            Direction::Ingress => &policy.spec.ingress,
            Direction::Egress => &policy.spec.egress,
        };
        let rules = rules.as_deref().unwrap_or_default();
        rules.iter().flat_map(|rule| self.rule(policy, rule, direction, pods)).collect()
    }

    fn rule(
        &self,
        policy: &NetworkPolicy,
        rule: &Rule,
        direction: Direction,
        pods: &[&Arc<Pod>],
    ) -> Vec<Accept> {
        let (peers, peer_pods) = self.peers(policy, rule.peers());
        if peers == Peers::Ranges(vec![]) {
            return vec![];
        }
        let destinations: Vec<&Arc<Pod>> = match direction {
            Direction::Ingress => pods.to_vec(),
            Direction::Egress => peer_pods,
        };
        let ports = rule.ports.as_deref().unwrap_or_default();
        if ports.is_empty() {
            return vec![Accept { peers, ports: Ports::All }];
        }
        let ports = ports.iter().filter_map(|port| self.port(port, &destinations));
        ports.map(|ports| Accept { peers: peers.clone(), ports }).collect()
    }

    /// Addresses of peers, and the pods among them.
    fn peers(&self, policy: &NetworkPolicy, peers: &[Peer]) -> (Peers, Vec<&Arc<Pod>>) {
        let connected = || self.objects.pods.iter().filter(|pod| connected(pod));
        if peers.is_empty() {
            return (Peers::All, connected().collect());
        }
        let mut ranges: Vec<(IpAddr, IpAddr)> = vec![];
        for block in peers.iter().filter_map(|peer| peer.ip_block.as_ref()) {
            ranges.extend(block_ranges(block, self.family));
        }
        let pods: Vec<&Arc<Pod>> =
            connected().filter(|pod| peers.iter().any(|peer| self.selects(policy, peer, pod))).collect();
        ranges.extend(pods.iter().flat_map(|pod| self.addresses(pod)).map(|ip| (ip, ip)));
        (Peers::Ranges(merge_ranges(ranges)), pods)
    }

    fn selects(&self, policy: &NetworkPolicy, peer: &Peer, pod: &Pod) -> bool {
        if peer.ip_block.is_some() {
            return false;
        }
        let labels = &*pod.metadata.labels;
        let namespace = match &peer.namespace_selector {
            None => pod.metadata.namespace == policy.metadata.namespace,
            Some(selector) => {
                let namespace = self.objects.namespaces.get("", &pod.metadata.namespace);
                namespace.is_some_and(|namespace| selector.matches(&namespace.metadata.labels))
            }
        };
        namespace && peer.pod_selector.as_ref().is_none_or(|selector| selector.matches(labels))
    }

    /// `None` for a port that no destination has.
    fn port(&self, port: &Port, destinations: &[&Arc<Pod>]) -> Option<Ports> {
        let name = port.protocol.as_deref().unwrap_or("TCP");
        let protocol = match name {
            "UDP" => 17,
            "SCTP" => 132,
            _ => 6,
        };
        let number = |value: u64| u16::try_from(value).ok();
        if port.port.is_null() {
            return Some(Ports::Range(protocol, 0, u16::MAX));
        }
        if let Some(first) = port.port.as_u64().and_then(number) {
            return Some(Ports::Range(protocol, first, port.end_port.unwrap_or(first)));
        }
        let wanted = port.port.as_str()?;
        let mut found = BTreeSet::new();
        for pod in destinations {
            let sidecars = pod.spec.init_containers.iter().filter(|container| container.sidecar());
            let ports = pod.spec.containers.iter().chain(sidecars).flat_map(|container| &container.ports);
            let own = ports.filter(|port| {
                let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
                &*port.name == wanted && protocol == name
            });
            for port in own {
                let Ok(number) = u16::try_from(port.container_port) else { continue };
                found.extend(self.addresses(pod).map(|ip| (ip, protocol, number)));
            }
        }
        (!found.is_empty()).then_some(Ports::Of(found))
    }
}

fn restricts(policy: &NetworkPolicy, direction: Direction, pod: &Pod) -> bool {
    let (ingress, egress) = policy.directions();
    let restricted = match direction {
        Direction::Ingress => ingress,
        Direction::Egress => egress,
    };
    // An absent selector is an empty one: all pods.
    let all = |selector: &Option<LabelSelector>| {
        selector.as_ref().is_none_or(|selector| selector.matches(&pod.metadata.labels))
    };
    restricted && policy.metadata.namespace == pod.metadata.namespace && all(&policy.spec.pod_selector)
}

fn previous(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).checked_sub(1).map(|n| IpAddr::V4(n.into())),
        IpAddr::V6(ip) => u128::from(ip).checked_sub(1).map(|n| IpAddr::V6(n.into())),
    }
}

/// A block's range without its exceptions.
fn block_ranges(block: &IpBlock, family: Family) -> Vec<(IpAddr, IpAddr)> {
    let parse = |text: &String| text.parse::<Cidr>().ok().filter(|range| range.family() == family);
    let Some(range) = parse(&block.cidr) else { return vec![] };
    let excepted = block.except.iter().filter_map(parse).map(|except| {
        let (first, last) = prefix_bounds(except.first(), except.prefix_length());
        (first, last)
    });
    let mut left = vec![];
    let mut first = Some(range.first());
    for (from, to) in merge_ranges(excepted) {
        let Some(start) = first else { break };
        if from > range.last() {
            break;
        }
        if let Some(end) = previous(from).filter(|end| *end >= start) {
            left.push((start, end));
        }
        first = next_address(to).map(|after| after.max(start));
    }
    left.extend(first.filter(|first| *first <= range.last()).map(|first| (first, range.last())));
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_without_their_exceptions() {
        let shown = |cidr: &str, except: &[&str]| {
            let block =
                IpBlock { cidr: cidr.into(), except: except.iter().map(|text| (*text).into()).collect() };
            let ranges = block_ranges(&block, Family::V4);
            ranges.iter().map(|(a, b)| format!("{a}-{b}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown("10.0.0.0/8", &[]), "10.0.0.0-10.255.255.255");
        assert_eq!(
            shown("10.0.0.0/8", &["10.1.0.0/16", "10.0.0.0/24", "10.0.0.0/25"]),
            "10.0.1.0-10.0.255.255 10.2.0.0-10.255.255.255"
        );
        assert_eq!(shown("10.0.0.0/8", &["10.0.0.0/8"]), "");
        assert_eq!(shown("0.0.0.0/0", &["128.0.0.0/1"]), "0.0.0.0-127.255.255.255");
        assert_eq!(shown("fd00::/8", &[]), "");
    }
}
