//! The subsets of Endpoints in their canonical form: addresses that offer the same ports stand together, everything is
//! in order, an address is ready or not, and never both.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    /// Name, `""` for the only one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Number.
    pub port: i64,
    /// `TCP`, `UDP`, `SCTP`
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Hint for the protocol above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

/// An address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Address {
    /// The address.
    pub ip: String,
    /// DNS name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The pod, raw.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub target_ref: Value,
}

impl Address {
    /// Address and uid: pods may share an address, so the pod counts as well.
    pub fn identity(&self) -> (&str, &str) {
        (&self.ip, self.target_ref.get("uid").and_then(Value::as_str).unwrap_or_default())
    }

    /// A pod's resourceVersion is not news.
    fn without_revision(mut self) -> Self {
        if let Some(reference) = self.target_ref.as_object_mut() {
            reference.remove("resourceVersion");
        }
        self
    }
}

/// Addresses that offer the same ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subset {
    /// Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    /// Not ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_ready_addresses: Vec<Address>,
    /// Ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
}

impl Subset {
    /// How many addresses.
    pub fn len(&self) -> usize {
        self.addresses.len() + self.not_ready_addresses.len()
    }
}

/// Reads raw subsets; what cannot be read counts as nothing.
pub fn parse(raw: &Value) -> Vec<Subset> {
    Option::deserialize(raw).ok().flatten().unwrap_or_default()
}

/// Collects addresses with their ports, and packs them.
#[derive(Default)]
pub struct Packer {
    addresses: Vec<Address>,
    numbers: HashMap<(String, String), usize>,
    /// The addresses that offer a port, and whether they are ready there. The absence of ports is a separate entry.
    offers: BTreeMap<Option<Port>, BTreeMap<usize, bool>>,
}

impl Packer {
    /// Adds an address. What is not ready anywhere for a port is not ready there.
    pub fn add(&mut self, address: Address, ports: &[Port], ready: bool) {
        let (ip, uid) = address.identity();
        let next = self.addresses.len();
        let number = *self.numbers.entry((ip.to_owned(), uid.to_owned())).or_insert(next);
        if number == next {
            self.addresses.push(address.without_revision());
        }
        let mut offer = |port: Option<Port>| {
            *self.offers.entry(port).or_default().entry(number).or_insert(true) &= ready;
        };
        if ports.is_empty() {
            offer(None);
        }
        ports.iter().for_each(|port| offer(Some(port.clone())));
    }

    /// Adds whole subsets.
    pub fn add_all(&mut self, subsets: Vec<Subset>) {
        for subset in subsets {
            for (addresses, ready) in [(subset.addresses, true), (subset.not_ready_addresses, false)] {
                addresses.into_iter().for_each(|address| self.add(address, &subset.ports, ready));
            }
        }
    }

    /// The canonical subsets.
    pub fn pack(self) -> Vec<Subset> {
        let mut groups: BTreeMap<Vec<(usize, bool)>, Vec<Port>> = BTreeMap::new();
        for (port, offers) in self.offers {
            groups.entry(offers.into_iter().collect()).or_default().extend(port);
        }
        let mut subsets: Vec<Subset> = groups
            .into_iter()
            .map(|(members, ports)| {
                let mut subset = Subset { ports, ..Subset::default() };
                for (number, ready) in members {
                    let address = self.addresses[number].clone();
                    if ready { &mut subset.addresses } else { &mut subset.not_ready_addresses }.push(address);
                }
                subset.addresses.sort_by(|a, b| a.identity().cmp(&b.identity()));
                subset.not_ready_addresses.sort_by(|a, b| a.identity().cmp(&b.identity()));
                subset
            })
            .collect();
        subsets.sort_by(|a, b| a.ports.cmp(&b.ports));
        subsets
    }
}

/// Subsets in their canonical form.
pub fn repack(subsets: Vec<Subset>) -> Vec<Subset> {
    let mut packer = Packer::default();
    packer.add_all(subsets);
    packer.pack()
}

/// Cuts subsets down to `limit` addresses, each in proportion, those that are not ready first. Says whether it had to.
pub fn truncate(subsets: &mut [Subset], limit: usize) -> bool {
    let ready: usize = subsets.iter().map(|s| s.addresses.len()).sum();
    let not_ready: usize = subsets.iter().map(|s| s.not_ready_addresses.len()).sum();
    if ready + not_ready <= limit {
        return false;
    }
    let cut_ready = ready > limit;
    let (room, total) = if cut_ready { (limit, ready) } else { (limit - ready, not_ready) };
    let mut left = room;
    for subset in subsets {
        if cut_ready {
            subset.not_ready_addresses.clear();
        }
        let list = if cut_ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        // Rounded up, so that the last ones get what is left.
        list.truncate((list.len() * room).div_ceil(total).min(left));
        left -= list.len();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn repacked(raw: Value) -> String {
        let subsets = repack(parse(&raw));
        subsets.iter().map(|s| serde_json::to_string(s).unwrap() + "\n").collect()
    }

    #[test]
    fn combines_ports_with_the_same_addresses() {
        expect![[r#"
            {"addresses":[{"ip":"1.1.1.1"},{"ip":"1.1.1.2"}],"ports":[{"name":"a","port":80},{"name":"b","port":81}]}
            {"addresses":[{"ip":"1.1.1.1"}],"ports":[{"name":"c","port":82}]}
        "#]]
        .assert_eq(&repacked(json!([
            {"addresses": [{"ip": "1.1.1.2"}], "ports": [{"name": "b", "port": 81}, {"name": "a", "port": 80}]},
            {"addresses": [{"ip": "1.1.1.1"}], "ports": [{"name": "a", "port": 80}, {"name": "c", "port": 82}]},
            {"addresses": [{"ip": "1.1.1.1"}], "ports": [{"name": "b", "port": 81}]},
        ])));
    }

    #[test]
    fn not_ready_wins_and_ports_may_be_absent() {
        expect![[r#"
            {"notReadyAddresses":[{"ip":"1.1.1.1","nodeName":"n"}],"ports":[{"port":80}]}
        "#]]
        .assert_eq(&repacked(json!([
            {"addresses": [{"ip": "1.1.1.1", "nodeName": "n"}], "ports": [{"port": 80}]},
            {"notReadyAddresses": [{"ip": "1.1.1.1"}], "ports": [{"port": 80}]},
        ])));
        expect![[r#"
            {"addresses":[{"ip":"1.1.1.1","targetRef":{"uid":"a"}},{"ip":"1.1.1.1","targetRef":{"uid":"b"}}]}
        "#]]
        .assert_eq(&repacked(json!([
            {"addresses": [{"ip": "1.1.1.1", "targetRef": {"uid": "b", "resourceVersion": "3"}},
                {"ip": "1.1.1.1", "targetRef": {"uid": "a"}}]},
        ])));
        assert_eq!(repacked(Value::Null), "");
    }

    #[test]
    fn truncates_addresses_at_the_limit() {
        let address = |i: usize| Address { ip: i.to_string(), ..Address::default() };
        let subset = |ready: usize, not: usize| Subset {
            addresses: (0..ready).map(address).collect(),
            not_ready_addresses: (0..not).map(address).collect(),
            ports: vec![],
        };
        let cut = |mut subsets: Vec<Subset>| {
            let cut = truncate(&mut subsets, 10);
            let sizes: Vec<_> =
                subsets.iter().map(|s| (s.addresses.len(), s.not_ready_addresses.len())).collect();
            (cut, sizes)
        };
        assert_eq!(cut(vec![subset(5, 5)]), (false, vec![(5, 5)]));
        assert_eq!(cut(vec![subset(4, 6), subset(4, 3)]), (true, vec![(4, 2), (4, 0)]));
        assert_eq!(
            cut(vec![subset(10, 6), subset(10, 3), subset(1, 0)]),
            (true, vec![(5, 0), (5, 0), (0, 0)])
        );
    }
}
