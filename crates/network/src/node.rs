//! The node's side of the pod network, on the thread that owns it: bridge, tables, records, routes.

use crate::{
    Cidr, NetworkConfig, NetworkError, PeerNode,
    addresses::{Addresses, gateway},
    bandwidth,
    host_rules::{self, HostRules},
    pods::{is_ours, link_name, mac},
    records::{Record, Records},
    routes::{self, RouteSettings},
    rtnetlink::{Requests, Rtnetlink},
    sysctl,
};
use kaji_containers::NetworkSetup;
use kaji_netfilter::{Family, Nftables};
use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
};

/// MTU without an uplink.
const DEFAULT_MTU: u32 = 1500;

/// The state of a node's pod network.
pub struct Node {
    config: NetworkConfig,
    pub netlink: Rtnetlink,
    nft: Nftables,
    records: Records<Record>,
    pods: BTreeMap<String, Record>,
    pub addresses: Addresses,
    rules: HostRules,
    /// Index; 0 before it is made.
    pub bridge: u32,
    pub mtu: u32,
}

impl Node {
    /// Reads the records. Nothing in the kernel is changed before there are pod CIDRs.
    ///
    /// # Errors
    /// Those of the system, of the records.
    pub fn open(config: NetworkConfig) -> Result<Node, NetworkError> {
        let records = Records::<Record>::open(config.state_dir.join("addresses"))?;
        let pods: BTreeMap<String, Record> =
            records.all()?.into_iter().map(|record| (record.sandbox.clone(), record)).collect();
        let mut addresses = Addresses::default();
        for address in pods.values().flat_map(|record| &record.addresses) {
            addresses.take(*address);
        }
        let rules =
            HostRules { table: config.table.clone(), bridge: config.bridge.clone(), ..HostRules::default() };
        Ok(Node {
            netlink: Rtnetlink::open().map_err(NetworkError::io("netlink"))?,
            nft: Nftables::open()?,
            records,
            pods,
            addresses,
            rules,
            bridge: 0,
            mtu: DEFAULT_MTU,
            config,
        })
    }

    /// Name of the bridge.
    pub fn bridge_name(&self) -> &str {
        &self.config.bridge
    }

    /// Why pods cannot be set up.
    pub fn unavailable_reason(&self) -> Option<String> {
        (self.bridge == 0).then(|| NetworkError::NoPodCidr.to_string())
    }

    /// Makes the bridge with its addresses, the kernel parameters and the tables for these ranges.
    pub fn update_pod_cidrs(&mut self, texts: &[String]) -> Result<(), NetworkError> {
        let parse = |text: &String| text.parse::<Cidr>().map_err(|e| NetworkError::Invalid(e.to_string()));
        let ranges = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if let Some(range) = ranges.iter().find(|range| range.size() < 4) {
            return Err(NetworkError::Invalid(format!("range {range} has no addresses for pods")));
        }
        if ranges.is_empty() || (self.bridge != 0 && self.addresses.ranges().eq(ranges.iter().copied())) {
            return Ok(());
        }
        self.mtu = self.config.mtu.map_or_else(|| self.uplink_mtu(), Ok)?;
        self.make_bridge(&ranges)?;
        self.parameters(&ranges)?;
        self.rules.pod_cidrs.clone_from(&ranges);
        if self.rules.cluster_cidrs.is_empty() {
            self.rules.cluster_cidrs.clone_from(&ranges);
        }
        let (rules, pods) = (&self.rules, &self.pods);
        host_rules::both(&mut self.nft, |family| host_rules::table(rules, pods.values(), family))?;
        self.addresses.set_ranges(&ranges);
        Ok(())
    }

    /// MTU of the interface that the default route leads by.
    fn uplink_mtu(&mut self) -> Result<u32, NetworkError> {
        let routes = self.netlink.routes()?;
        let Some((_, uplink)) = routes.iter().find(|(destination, _)| destination.is_none()) else {
            return Ok(DEFAULT_MTU);
        };
        let links = self.netlink.links()?;
        Ok(links.iter().find(|link| link.index == uplink.link).map_or(DEFAULT_MTU, |link| link.mtu))
    }

    fn make_bridge(&mut self, ranges: &[Cidr]) -> Result<(), NetworkError> {
        let gateways: Vec<(IpAddr, u8)> =
            ranges.iter().filter_map(|range| Some((gateway(range)?, range.prefix_length()))).collect();
        let Some((first, _)) = gateways.first() else { return Ok(()) };
        let mut requests = Requests::default();
        requests.add_bridge(&self.config.bridge, self.mtu, mac(*first));
        self.netlink.send(&requests)?;
        let bridge = self.netlink.link(&self.config.bridge)?;
        let bridge = bridge.ok_or_else(|| NetworkError::NotAsSetUp("no bridge".into()))?.index;
        let mut requests = Requests::default();
        requests.set_up(bridge);
        for (link, address, prefix) in self.netlink.addresses()? {
            let link_local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
            if link == bridge && !link_local && !gateways.contains(&(address, prefix)) {
                requests.address(false, bridge, address, prefix);
            }
        }
        for (address, prefix) in gateways {
            requests.address(true, bridge, address, prefix);
        }
        self.netlink.send(&requests)?;
        self.bridge = bridge;
        Ok(())
    }

    fn parameters(&self, ranges: &[Cidr]) -> Result<(), NetworkError> {
        let bridge = &self.config.bridge;
        // Packets between pods of a node have to pass the tables of IP: translated ones, and those that policies decide about.
        for name in ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"] {
            if !sysctl::exists(name) {
                return Err(NetworkError::Invalid(format!("/proc/sys/{name} is absent: load br_netfilter")));
            }
            sysctl::set(name, "1")?;
        }
        if ranges.iter().any(|range| range.family() == Family::V4) {
            sysctl::set("net/ipv4/ip_forward", "1")?;
            // Host ports of the loopback address lead to pods.
            sysctl::set(&format!("net/ipv4/conf/{bridge}/route_localnet"), "1")?;
            // Answers may take another way than requests, by VXLAN or another uplink.
            sysctl::set(&format!("net/ipv4/conf/{bridge}/rp_filter"), "2")?;
        }
        if ranges.iter().any(|range| range.family() == Family::V6) {
            sysctl::set("net/ipv6/conf/all/forwarding", "1")?;
            sysctl::set_if_present(&format!("net/ipv6/conf/{bridge}/accept_ra"), "0")?;
        }
        Ok(())
    }

    /// Sets a sandbox up, or checks that it is.
    pub fn set_up(&mut self, setup: &NetworkSetup) -> Result<Vec<IpAddr>, NetworkError> {
        if self.bridge == 0 {
            return Err(NetworkError::NoPodCidr);
        }
        if let Some(record) = self.pods.get(&setup.sandbox_id).cloned() {
            match self.check_link(&record, &setup.namespace) {
                Ok(()) => return Ok(record.addresses),
                // Interrupted: it is made anew with the same addresses.
                Err(NetworkError::NotAsSetUp(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let limits = bandwidth::limits(&setup.annotations)?;
        let record = match self.pods.get(&setup.sandbox_id) {
            Some(record) => record.clone(),
            None => self.record(setup)?,
        };
        if let Err(error) = self.make_link(&record, &setup.namespace, limits) {
            if let Err(error) = self.forget(&record) {
                tracing::warn!(sandbox = record.sandbox, %error, "an interface could not be removed; the next clean-up removes it");
            }
            return Err(error);
        }
        Ok(record.addresses)
    }

    /// Assigns addresses and host ports.
    fn record(&mut self, setup: &NetworkSetup) -> Result<Record, NetworkError> {
        let ports = setup.port_mappings.iter().filter(|port| port.host_port != 0).cloned().collect();
        let mut record = Record {
            sandbox: setup.sandbox_id.clone(),
            pod: format!("{}/{}", setup.metadata.namespace, setup.metadata.name),
            addresses: self.addresses.assign()?,
            link: link_name(&setup.sandbox_id),
            ports,
        };
        record
            .addresses
            .sort_by_key(|address| self.rules.pod_cidrs.iter().position(|range| range.contains(*address)));
        let kept = host_rules::check_ports(&record, self.pods.values())
            .and_then(|()| self.records.write(&record))
            .and_then(|()| self.change_ports(&record, true));
        if let Err(error) = kept {
            record.addresses.iter().for_each(|address| self.addresses.release(*address));
            self.records.remove(&record.sandbox)?;
            return Err(error);
        }
        self.pods.insert(record.sandbox.clone(), record.clone());
        Ok(record)
    }

    fn change_ports(&mut self, record: &Record, add: bool) -> Result<(), NetworkError> {
        if record.ports.is_empty() {
            return Ok(());
        }
        let rules = &self.rules;
        host_rules::both(&mut self.nft, |family| host_rules::change(rules, record, family, add))
    }

    /// Takes back everything of a record; the record last.
    fn forget(&mut self, record: &Record) -> Result<(), NetworkError> {
        self.remove_link(&record.link)?;
        if self.bridge != 0
            && let Err(error) = self.change_ports(record, false)
        {
            tracing::debug!(sandbox = record.sandbox, %error, "the rules of a host port could not be changed; rewriting all of them");
            self.pods.remove(&record.sandbox);
            let (rules, pods) = (&self.rules, &self.pods);
            host_rules::both(&mut self.nft, |family| host_rules::table(rules, pods.values(), family))?;
        }
        self.records.remove(&record.sandbox)?;
        self.pods.remove(&record.sandbox);
        record.addresses.iter().for_each(|address| self.addresses.release(*address));
        Ok(())
    }

    /// Checks a sandbox that was set up by an earlier process.
    pub fn adopt(&mut self, setup: &NetworkSetup) -> Result<Vec<IpAddr>, NetworkError> {
        let record = self.pods.get(&setup.sandbox_id).cloned().ok_or_else(|| {
            NetworkError::NotAsSetUp(format!("sandbox {} was not set up", setup.sandbox_id))
        })?;
        if self.bridge == 0 {
            // A restart before the node is read: the bridge is still there.
            self.bridge = self.netlink.link(&self.config.bridge)?.map_or(0, |link| link.index);
            let adopted = self.check_link(&record, &setup.namespace);
            self.bridge = 0;
            adopted?;
        } else {
            self.check_link(&record, &setup.namespace)?;
        }
        Ok(record.addresses)
    }

    /// Takes a sandbox's network back.
    pub fn tear_down(&mut self, setup: &NetworkSetup) -> Result<(), NetworkError> {
        match self.pods.get(&setup.sandbox_id).cloned() {
            Some(record) => self.forget(&record),
            None => self.remove_link(&link_name(&setup.sandbox_id)),
        }
    }

    /// Removes records and interfaces of sandboxes that are not listed.
    pub fn sweep(&mut self, sandboxes: &[String]) -> Result<(), NetworkError> {
        let known: HashSet<&str> = sandboxes.iter().map(String::as_str).collect();
        let stale: Vec<Record> =
            self.pods.values().filter(|record| !known.contains(record.sandbox.as_str())).cloned().collect();
        for record in &stale {
            self.forget(record)?;
        }
        let bridge = self.netlink.link(&self.config.bridge)?.map(|link| link.index);
        let kept: HashSet<&str> = self.pods.values().map(|record| record.link.as_str()).collect();
        let links = self.netlink.links()?;
        let unknown = links.iter().filter(|link| {
            bridge.is_some()
                && link.master == bridge
                && is_ours(&link.name)
                && !kept.contains(link.name.as_str())
        });
        let mut requests = Requests::default();
        unknown.for_each(|link| requests.delete_link(&link.name));
        Ok(self.netlink.send(&requests)?)
    }

    /// Makes the routes to the other nodes' pods what these nodes need, and their pods exempt from masquerade. Of a bridge that nodes
    /// are attached to: the routes to their pods.
    pub fn update_peers(&mut self, nodes: &[PeerNode]) -> Result<(), NetworkError> {
        let mut ranges: Vec<Cidr> = nodes.iter().flat_map(|node| node.pod_cidrs.iter().copied()).collect();
        ranges.extend(&self.rules.pod_cidrs);
        let ranges = crate::cidr::disjoint(ranges);
        if ranges != self.rules.cluster_cidrs {
            self.rules.cluster_cidrs = ranges;
            if self.bridge != 0 {
                let rules = &self.rules;
                host_rules::both(&mut self.nft, |family| host_rules::set_cluster_cidrs(rules, family))?;
            }
        }
        let settings = RouteSettings {
            protocol: self.config.route_protocol,
            vxlan: format!("{}.vx", self.config.bridge),
            vxlan_id: self.config.vxlan_id,
            vxlan_port: self.config.vxlan_port,
            mtu: self.uplink_mtu()?,
        };
        if self.config.attaches_nodes {
            let segments = &self.rules.pod_cidrs;
            let Some(own) = segments.first().and_then(gateway) else { return Ok(()) };
            let mut plan = routes::routes(nodes, &self.config.node_name, segments, &[]);
            plan.retain(|route| matches!(route.via, routes::Via::Segment(_)));
            return routes::sync(&mut self.netlink, &settings, own, &plan);
        }
        let own = nodes.iter().find(|node| node.name == self.config.node_name);
        let Some(own) = own.and_then(|node| node.internal_ips.first().copied()) else { return Ok(()) };
        let bridge = self.bridge;
        let addresses = self.netlink.addresses()?;
        let segments: Vec<Cidr> = addresses
            .iter()
            .filter(|(link, address, _)| *link != bridge && !address.is_loopback())
            .map(|(_, address, prefix)| Cidr::new(*address, *prefix))
            .collect();
        let local: Vec<IpAddr> = addresses.iter().map(|(_, address, _)| *address).collect();
        let plan = routes::routes(nodes, &self.config.node_name, &segments, &local);
        routes::sync(&mut self.netlink, &settings, own, &plan)
    }

    /// Removes bridge, interfaces, routes and tables. Records stay.
    pub fn remove_all(&mut self) -> Result<(), NetworkError> {
        let links: Vec<String> = self.pods.values().map(|record| record.link.clone()).collect();
        for link in links {
            self.remove_link(&link)?;
        }
        let mut requests = Requests::default();
        requests.delete_link(&self.config.bridge);
        requests.delete_link(&format!("{}.vx", self.config.bridge));
        let protocol = self.config.route_protocol;
        for (destination, route) in self.netlink.routes()? {
            if let Some(destination) = destination.filter(|_| route.protocol == protocol) {
                requests.route(false, &destination, &route);
            }
        }
        self.netlink.send(&requests)?;
        let rules = &self.rules;
        host_rules::both(&mut self.nft, |family| host_rules::removal(rules, family))?;
        self.bridge = 0;
        self.addresses.set_ranges(&[]);
        Ok(())
    }
}
