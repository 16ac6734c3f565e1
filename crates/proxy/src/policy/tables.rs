//! The tables of network policies.
//!
//! Two base chains follow each other at the forward hook, first for connections from pods, then for those to them: a verdict of
//! acceptance ends only its own chain, so that both sides are asked. Packets to the node itself pass the first one only.

use super::compile::{Accept, Direction, Peers, Ports, Rules};
use kaji_netfilter::{
    Batch, Chain, ChainType, Compare, Element, ElementData, Expr, Family, Field, Hook, Reg, SetData, SetSpec,
    Verdict,
    expr::{STATE_ESTABLISHED, STATE_RELATED, any_bit, concatenation},
    octets,
    set::{DataType, Key, interval_elements},
};
use std::net::IpAddr;

/// Pods' addresses, twice.
const SELF: &str = "self";
/// Destinations that every pod may reach.
const EXEMPT: &str = "exempt";

fn map_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress-pods",
        Direction::Egress => "egress-pods",
    }
}

fn chain_name(direction: Direction, number: usize) -> String {
    match direction {
        Direction::Ingress => format!("ingress-{number}"),
        Direction::Egress => format!("egress-{number}"),
    }
}

/// The whole table, in place of what is there. `exempt`: destinations that policies do not restrict, with their protocol.
pub fn table(family: Family, name: &str, rules: &Rules, exempt: &[(IpAddr, u8, u16)]) -> Batch {
    let ip = DataType::address(family);
    let mut batch = Batch::new(family, name);
    batch.add_table();
    batch.delete_table();
    batch.add_table();
    let own = SetSpec::new(SELF, &[ip, ip], SetData::None);
    let exempted = SetSpec::new(EXEMPT, &[ip, DataType::Protocol, DataType::Port], SetData::None);
    let maps = [Direction::Egress, Direction::Ingress]
        .map(|direction| (direction, SetSpec::new(map_name(direction), &[ip], SetData::Verdict)));
    for spec in [&own, &exempted, &maps[0].1, &maps[1].1] {
        batch.add_set(spec);
    }
    for (number, (direction, accepted)) in rules.chains.iter().enumerate() {
        chain(&mut batch, family, *direction, number, accepted);
    }
    let present = |key: Vec<u8>| Element::new(key, ElementData::None);
    let addresses: std::collections::BTreeSet<IpAddr> = rules.pods.keys().map(|(_, ip)| *ip).collect();
    let pairs: Vec<Element> =
        addresses.iter().map(|ip| present(Key::new().address(*ip).address(*ip).bytes())).collect();
    batch.add_elements(&own, &pairs);
    let destinations: Vec<Element> = exempt
        .iter()
        .filter(|(ip, ..)| Family::of(*ip) == family)
        .map(|(ip, protocol, port)| present(Key::new().address(*ip).protocol(*protocol).port(*port).bytes()))
        .collect();
    batch.add_elements(&exempted, &destinations);
    for (direction, spec) in &maps {
        let of_direction = rules.pods.iter().filter(|((own, _), _)| own == direction);
        let elements: Vec<Element> = of_direction
            .map(|((_, ip), number)| {
                let verdict = Verdict::Goto(chain_name(*direction, *number));
                Element::new(octets(*ip), ElementData::Verdict(verdict))
            })
            .collect();
        batch.add_elements(spec, &elements);
    }
    base(&mut batch, family);
    batch
}

fn base(batch: &mut Batch, family: Family) {
    let egress = (Direction::Egress, Field::Source(family));
    let ingress = (Direction::Ingress, Field::Destination(family));
    for (name, hook, priority, (direction, pod)) in [
        ("forward-egress", Hook::Forward, 0, egress),
        ("input-egress", Hook::Input, 0, egress),
        ("forward-ingress", Hook::Forward, 1, ingress),
    ] {
        batch.add_chain(&Chain::base(name, ChainType::Filter, hook, priority));
        let accept = Expr::Decide(Verdict::Accept);
        let mut rule = any_bit(Field::ConnectionState, STATE_ESTABLISHED | STATE_RELATED);
        rule.push(accept.clone());
        batch.add_rule(name, &rule);
        if family == Family::V6 {
            // Neighbour discovery, without which there is no IPv6 on the bridge.
            let discovery = [
                Expr::Load(Field::Protocol, Reg(0)),
                Expr::Compare(Reg(0), Compare::Equal, vec![58]),
                Expr::Load(Field::IcmpType, Reg(0)),
                Expr::Compare(Reg(0), Compare::AtLeast, vec![133]),
                Expr::Compare(Reg(0), Compare::AtMost, vec![136]),
                accept.clone(),
            ];
            batch.add_rule(name, &discovery);
        }
        let mut rule = concatenation(&[Field::Source(family), Field::Destination(family)]);
        rule.extend([Expr::Contains(Reg(0), SELF.into()), accept.clone()]);
        batch.add_rule(name, &rule);
        if direction == Direction::Egress {
            let mut rule =
                concatenation(&[Field::Destination(family), Field::Protocol, Field::DestinationPort]);
            rule.extend([Expr::Contains(Reg(0), EXEMPT.into()), accept]);
            batch.add_rule(name, &rule);
        }
        let dispatch = [Expr::Load(pod, Reg(0)), Expr::VerdictMap(Reg(0), map_name(direction).into())];
        batch.add_rule(name, &dispatch);
    }
}

fn chain(batch: &mut Batch, family: Family, direction: Direction, number: usize, accepted: &[Accept]) {
    let ip = DataType::address(family);
    let name = chain_name(direction, number);
    batch.add_chain(&Chain::regular(&name));
    for (index, accept) in accepted.iter().enumerate() {
        let mut rule = vec![];
        if let Peers::Ranges(ranges) = &accept.peers {
            let spec = SetSpec::new(&format!("{name}-{index}-peers"), &[ip], SetData::None).with_intervals();
            batch.add_set(&spec);
            batch.add_elements(&spec, &interval_elements(ranges.iter().copied()));
            let other = match direction {
                Direction::Ingress => Field::Source(family),
                Direction::Egress => Field::Destination(family),
            };
            rule.extend([Expr::Load(other, Reg(0)), Expr::Contains(Reg(0), spec.name)]);
        }
        match &accept.ports {
            Ports::All => {}
            Ports::Range(protocol, first, last) => {
                rule.extend([
                    Expr::Load(Field::Protocol, Reg(0)),
                    Expr::Compare(Reg(0), Compare::Equal, vec![*protocol]),
                ]);
                if (*first, *last) != (0, u16::MAX) {
                    rule.extend([
                        Expr::Load(Field::DestinationPort, Reg(0)),
                        Expr::Compare(Reg(0), Compare::AtLeast, first.to_be_bytes().into()),
                        Expr::Compare(Reg(0), Compare::AtMost, last.to_be_bytes().into()),
                    ]);
                }
            }
            Ports::Of(ports) => {
                let key = [ip, DataType::Protocol, DataType::Port];
                let spec = SetSpec::new(&format!("{name}-{index}-ports"), &key, SetData::None);
                batch.add_set(&spec);
                let keys = ports.iter().map(|(ip, protocol, port)| {
                    Key::new().address(*ip).protocol(*protocol).port(*port).bytes()
                });
                let elements: Vec<Element> = keys.map(|key| Element::new(key, ElementData::None)).collect();
                batch.add_elements(&spec, &elements);
                rule.extend(concatenation(&[
                    Field::Destination(family),
                    Field::Protocol,
                    Field::DestinationPort,
                ]));
                rule.push(Expr::Contains(Reg(0), spec.name));
            }
        }
        rule.push(Expr::Decide(Verdict::Accept));
        batch.add_rule(&name, &rule);
    }
    batch.add_rule(&name, &[Expr::Decide(Verdict::Drop)]);
}
