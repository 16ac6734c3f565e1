//! The nftables of the pod network: host ports, and masquerade of what leaves the cluster. One table a family.
//!
//! Host ports on all addresses have the unspecified address in their key. Priorities are just after the service proxy's.

use crate::{Cidr, NetworkError, cidr, records::Record};
use kaji_containers::Protocol;
use kaji_netfilter::{
    Batch, Chain, ChainType, Compare, Element, ElementData, Expr, Family, Field, Hook, Nftables, Reg,
    SetData, SetSpec,
    expr::{LOCAL, STATUS_DNAT, any_bit, concatenation, interface_name},
    octets,
    set::{DataType, Key},
};
use std::collections::{BTreeMap, BTreeSet};

/// Priority of the chains that translate destinations: after the service proxy's, which is -100.
const DESTINATION: i32 = -95;
/// Priority of the chain that translates sources.
const SOURCE: i32 = 105;

const PORTS: &str = "host-ports";
const HAIRPIN: &str = "hairpin";
const PODS: &str = "pod-cidrs";
const CLUSTER: &str = "cluster-cidrs";

/// What the tables are made from.
#[derive(Debug, Clone, Default)]
pub struct HostRules {
    /// Of the tables.
    pub table: String,
    /// Name of the bridge.
    pub bridge: String,
    /// This node's.
    pub pod_cidrs: Vec<Cidr>,
    /// Those of all nodes: traffic to them is not masqueraded.
    pub cluster_cidrs: Vec<Cidr>,
}

/// The number of a transport protocol.
pub fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

fn ports_spec(family: Family) -> SetSpec {
    let ip = DataType::address(family);
    let value = SetData::Value(vec![ip, DataType::Port]);
    SetSpec::new(PORTS, &[ip, DataType::Protocol, DataType::Port], value)
}

fn hairpin_spec(family: Family) -> SetSpec {
    let ip = DataType::address(family);
    SetSpec::new(HAIRPIN, &[ip, ip], SetData::None)
}

fn ranges_spec(name: &str, family: Family) -> SetSpec {
    SetSpec::new(name, &[DataType::address(family)], SetData::None).with_intervals()
}

/// Where a host port leads, by its key.
type Ports = BTreeMap<Vec<u8>, Vec<u8>>;

/// The host ports and hairpin pairs of a sandbox.
fn elements(record: &Record, family: Family) -> (Ports, BTreeSet<Vec<u8>>) {
    let (mut ports, mut hairpins) = (Ports::new(), BTreeSet::new());
    let Some(pod) = record.addresses.iter().find(|address| Family::of(**address) == family) else {
        return (ports, hairpins);
    };
    for port in record.ports.iter().filter(|port| port.host_port != 0) {
        let host = match port.host_ip {
            // An unspecified address of either family stands for all, as upstream's plug-in takes it.
            None => family.unspecified(),
            Some(ip) if ip.is_unspecified() => family.unspecified(),
            Some(ip) if Family::of(ip) == family => ip,
            Some(_) => continue,
        };
        let key = Key::new().address(host).protocol(number(port.protocol)).port(port.host_port).bytes();
        ports.insert(key, Key::new().address(*pod).port(port.container_port).bytes());
        hairpins.insert(Key::new().address(*pod).address(*pod).bytes());
    }
    (ports, hairpins)
}

/// The whole table, in place of one that is there.
pub fn table<'a>(rules: &HostRules, records: impl Iterator<Item = &'a Record>, family: Family) -> Batch {
    let mut batch = Batch::new(family, &rules.table);
    batch.add_table();
    batch.delete_table();
    batch.add_table();
    for (name, hook, priority) in [
        ("prerouting", Hook::Prerouting, DESTINATION),
        ("output", Hook::Output, DESTINATION),
        ("postrouting", Hook::Postrouting, SOURCE),
    ] {
        batch.add_chain(&Chain::base(name, ChainType::Nat, hook, priority));
    }
    let (ports, hairpins) = (ports_spec(family), hairpin_spec(family));
    let (pods, cluster) = (ranges_spec(PODS, family), ranges_spec(CLUSTER, family));
    for spec in [&ports, &hairpins, &pods, &cluster] {
        batch.add_set(spec);
    }
    let (mut all_ports, mut all_hairpins) = (Ports::new(), BTreeSet::new());
    for record in records {
        let (ports, hairpins) = elements(record, family);
        all_ports.extend(ports);
        all_hairpins.extend(hairpins);
    }
    batch.add_elements(&ports, &port_elements(all_ports));
    batch.add_elements(&hairpins, &hairpin_elements(all_hairpins));
    batch.add_elements(&pods, &cidr::elements(&rules.pod_cidrs, family));
    batch.add_elements(&cluster, &cidr::elements(&rules.cluster_cidrs, family));
    add_rules(&mut batch, family, &rules.bridge);
    batch
}

fn port_elements(ports: Ports) -> Vec<Element> {
    ports.into_iter().map(|(key, value)| Element::new(key, ElementData::Value(value))).collect()
}

fn hairpin_elements(pairs: BTreeSet<Vec<u8>>) -> Vec<Element> {
    pairs.into_iter().map(|key| Element::new(key, ElementData::None)).collect()
}

fn add_rules(batch: &mut Batch, family: Family, bridge: &str) {
    let after = Reg(0).after(family.address_len() + 8);
    let translate = [
        Expr::Map { key: Reg(0), map: PORTS.into(), to: after },
        Expr::Dnat { family, address: after, port: after.after(family.address_len()) },
    ];
    let local = [
        Expr::Load(Field::DestinationKind, Reg(0)),
        Expr::Compare(Reg(0), Compare::Equal, LOCAL.to_ne_bytes().into()),
    ];
    let address = Expr::Load(Field::Destination(family), Reg(0));
    let any = Expr::Constant(octets(family.unspecified()), Reg(0));
    let port = [
        Expr::Load(Field::Protocol, Reg(0).after(family.address_len())),
        Expr::Load(Field::DestinationPort, Reg(0).after(family.address_len() + 4)),
    ];
    for chain in ["prerouting", "output"] {
        for destination in [&address, &any] {
            let mut rule = local.to_vec();
            rule.push(destination.clone());
            rule.extend(port.clone());
            rule.extend(translate.clone());
            batch.add_rule(chain, &rule);
        }
    }
    let mut rule = any_bit(Field::ConnectionStatus, STATUS_DNAT);
    rule.extend(concatenation(&[Field::Source(family), Field::Destination(family)]));
    rule.extend([Expr::Contains(Reg(0), HAIRPIN.into()), Expr::Masquerade]);
    batch.add_rule("postrouting", &rule);
    let to_bridge =
        |op| [Expr::Load(Field::OutputInterface, Reg(0)), Expr::Compare(Reg(0), op, interface_name(bridge))];
    if family == Family::V4 {
        // From the node's loopback address to a host port: the pod could not answer it.
        let mut rule = to_bridge(Compare::Equal).to_vec();
        rule.extend([
            Expr::Load(Field::Source(family), Reg(0)),
            Expr::Bits { from: Reg(0), to: Reg(0), mask: vec![255, 0, 0, 0], xor: vec![0; 4] },
            Expr::Compare(Reg(0), Compare::Equal, vec![127, 0, 0, 0]),
            Expr::Masquerade,
        ]);
        batch.add_rule("postrouting", &rule);
    }
    let mut rule = to_bridge(Compare::NotEqual).to_vec();
    rule.extend([
        Expr::Load(Field::Source(family), Reg(0)),
        Expr::Contains(Reg(0), PODS.into()),
        Expr::Load(Field::Destination(family), Reg(0)),
        Expr::Lacks(Reg(0), CLUSTER.into()),
    ]);
    rule.extend(not_multicast(family));
    rule.push(Expr::Masquerade);
    batch.add_rule("postrouting", &rule);
}

fn not_multicast(family: Family) -> Vec<Expr> {
    let (mask, value) = match family {
        Family::V4 => (vec![240, 0, 0, 0], vec![224, 0, 0, 0]),
        Family::V6 => {
            let mut first = vec![0; 16];
            first[0] = 255;
            (first.clone(), first)
        }
    };
    vec![
        Expr::Bits { from: Reg(0), to: Reg(0), xor: vec![0; mask.len()], mask },
        Expr::Compare(Reg(0), Compare::NotEqual, value),
    ]
}

/// Adds or removes one sandbox's host ports.
pub fn change(rules: &HostRules, record: &Record, family: Family, add: bool) -> Batch {
    let mut batch = Batch::new(family, &rules.table);
    let (ports, hairpins) = elements(record, family);
    let (ports, hairpins) = (port_elements(ports), hairpin_elements(hairpins));
    if add {
        batch.add_elements(&ports_spec(family), &ports);
        batch.add_elements(&hairpin_spec(family), &hairpins);
    } else {
        batch.delete_elements(&ports_spec(family), &ports);
        batch.delete_elements(&hairpin_spec(family), &hairpins);
    }
    batch
}

/// Replaces the ranges that traffic is not masqueraded to.
pub fn set_cluster_cidrs(rules: &HostRules, family: Family) -> Batch {
    let mut batch = Batch::new(family, &rules.table);
    batch.flush_set(CLUSTER);
    batch.add_elements(&ranges_spec(CLUSTER, family), &cidr::elements(&rules.cluster_cidrs, family));
    batch
}

/// The host ports that two sandboxes both have.
///
/// # Errors
/// [`NetworkError::HostPortTaken`].
pub fn check_ports<'a>(
    record: &Record,
    mut others: impl Iterator<Item = &'a Record>,
) -> Result<(), NetworkError> {
    if record.ports.is_empty() {
        return Ok(());
    }
    let own: Vec<Ports> = [Family::V4, Family::V6].iter().map(|family| elements(record, *family).0).collect();
    let clash = others.find(|other| {
        other.sandbox != record.sandbox
            && !other.ports.is_empty()
            && [Family::V4, Family::V6]
                .iter()
                .zip(&own)
                .any(|(family, own)| elements(other, *family).0.keys().any(|key| own.contains_key(key)))
    });
    match clash {
        Some(other) => {
            let taken = |port: &&kaji_containers::PortMapping| {
                other.ports.iter().any(|p| (p.host_port, p.protocol) == (port.host_port, port.protocol))
            };
            let port = record.ports.iter().find(taken).map(|port| port.host_port).unwrap_or_default();
            Err(NetworkError::HostPortTaken(format!("{port} of {}", other.pod)))
        }
        None => Ok(()),
    }
}

/// A table without anything in it, to be deleted.
pub fn removal(rules: &HostRules, family: Family) -> Batch {
    let mut batch = Batch::new(family, &rules.table);
    batch.add_table();
    batch.delete_table();
    batch
}

/// Applies the same change to both families.
///
/// # Errors
/// The kernel's.
pub fn both(nft: &mut Nftables, batch: impl Fn(Family) -> Batch) -> Result<(), NetworkError> {
    for family in [Family::V4, Family::V6] {
        nft.apply(&batch(family))?;
    }
    Ok(())
}
