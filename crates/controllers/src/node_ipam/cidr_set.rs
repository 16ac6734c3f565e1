//! Ranges of addresses that nodes have for their pods: the cluster's range, cut into pieces of one size. Pure.
//! Source: upstream's `pkg/controller/nodeipam/ipam/cidrset`.
//!
//! Invariants:
//! - What is given out overlaps nothing that a node holds or that is set apart.
//! - A range that several nodes hold (their users wrote them so) is free again when the last of them is gone.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// An IPv6 range is cut into at most 2¹⁶ pieces, as upstream's, which has no limit for IPv4: 2²⁰ pieces exceed the number of nodes
/// of any cluster, and bound the work that one Node object can cause.
const MOST_BITS: (u8, u8) = (20, 16);
const MASK_V4: u8 = 24;
const MASK_V6: u8 = 64;

/// A range: an address without host bits, and how many bits are the network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    base: u128,
    prefix: u8,
    /// 32 or 128.
    bits: u8,
}

impl FromStr for Cidr {
    type Err = ();

    fn from_str(text: &str) -> Result<Cidr, ()> {
        let (address, prefix) = text.split_once('/').ok_or(())?;
        let (base, bits) = match address.parse().map_err(|_| ())? {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
            IpAddr::V6(ip) => (u128::from(ip), 128),
        };
        let prefix = prefix.parse().ok().filter(|p| *p <= bits).ok_or(())?;
        Ok(Cidr { base: cut(base, bits - prefix), prefix, bits })
    }
}

/// Without the last bits.
fn cut(number: u128, bits: u8) -> u128 {
    let without = number.checked_shr(bits.into()).unwrap_or(0);
    without.checked_shl(bits.into()).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u32::try_from(self.base) {
            Ok(v4) if self.bits == 32 => write!(f, "{}/{}", Ipv4Addr::from(v4), self.prefix),
            _ => write!(f, "{}/{}", Ipv6Addr::from(self.base), self.prefix),
        }
    }
}

impl Cidr {
    /// Whether an end of another range is in this one.
    fn touches(&self, other: &Cidr) -> bool {
        let within = |address| (self.base..=self.last()).contains(&address);
        self.bits == other.bits && (within(other.base) || within(other.last()))
    }

    fn last(&self) -> u128 {
        let hosts = 1u128.checked_shl((self.bits - self.prefix).into()).map_or(u128::MAX, |n| n - 1);
        self.base | hosts
    }
}

/// How the pod ranges of nodes are cut: one range, or one a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRanges {
    /// The cluster's range and how many bits are the network's in a node's.
    cluster: Vec<(Cidr, u8)>,
    /// Never given out.
    services: Vec<Cidr>,
}

/// How many bits of an address are the network's in a node's range; 0 for what is usual (24 and 64).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaskSizes {
    /// For clusters with one family.
    pub any: u8,
    /// IPv4.
    pub v4: u8,
    /// IPv6.
    pub v6: u8,
}

impl NodeRanges {
    /// Ranges of the cluster, which are as big as `masks` says, and those of its services. Service ranges that cannot be
    /// read set nothing apart.
    ///
    /// # Errors
    /// What upstream's `--cluster-cidr` and `--node-cidr-mask-size` do not take either.
    pub fn new<S: AsRef<str>>(cluster: &[S], masks: MaskSizes, services: &[S]) -> Result<NodeRanges, String> {
        let parse = |text: &S| {
            text.as_ref().trim().parse().map_err(|()| format!("invalid CIDR address: {}", text.as_ref()))
        };
        let cluster: Vec<Cidr> = cluster.iter().map(parse).collect::<Result<_, _>>()?;
        let v6 = |c: &Cidr| c.bits == 128;
        match &cluster[..] {
            [] => return Err("must specify --cluster-cidr if --allocate-node-cidrs is set".into()),
            [_] => {}
            [a, b] if v6(a) != v6(b) => {}
            [_, _] => return Err("two ranges in --cluster-cidr must be of both IP families".into()),
            more => {
                return Err(format!("--cluster-cidr has {} ranges, more than the two allowed", more.len()));
            }
        }
        let sizes = sizes(&cluster, masks)?;
        for (cidr, mask) in cluster.iter().zip(&sizes) {
            if *mask < cidr.prefix || *mask > cidr.bits {
                return Err(format!(
                    "invalid --cluster-cidr {cidr}: its mask size must be less than or equal to --node-cidr-mask-size ({mask})"
                ));
            }
            let most = if v6(cidr) { MOST_BITS.1 } else { MOST_BITS.0 };
            if mask - cidr.prefix > most {
                return Err(format!("--cluster-cidr {cidr}: the node CIDR size is too big ({mask})"));
            }
        }
        let services = services.iter().filter_map(|s| s.as_ref().trim().parse().ok()).collect();
        Ok(NodeRanges { cluster: cluster.into_iter().zip(sizes).collect(), services })
    }

    /// Whether a range, as text, is one of the cluster's pods: an end of it is in the cluster's ranges.
    pub(crate) fn has(&self, range: &str) -> bool {
        range.parse().is_ok_and(|range| self.cluster.iter().any(|(cluster, _)| cluster.touches(&range)))
    }
}

fn sizes(cluster: &[Cidr], masks: MaskSizes) -> Result<Vec<u8>, String> {
    let flag = "--node-cidr-mask-size";
    if masks.any != 0 {
        if cluster.len() > 1 {
            return Err(format!("usage of {flag} is not allowed with dual-stack clusters"));
        }
        if masks.v4 != 0 || masks.v6 != 0 {
            return Err(format!("usage of {flag}-ipv4 and {flag}-ipv6 is not allowed if {flag} is set"));
        }
        return Ok(vec![masks.any]);
    }
    if let [one] = cluster {
        for (family, given, wrong) in [(4, masks.v4, one.bits == 128), (6, masks.v6, one.bits == 32)] {
            if given != 0 && wrong {
                let other = 10 - family;
                return Err(format!(
                    "usage of {flag}-ipv{family} is not allowed for a single-stack IPv{other} cluster"
                ));
            }
        }
    }
    let or = |given: u8, usual| if given == 0 { usual } else { given };
    Ok(cluster
        .iter()
        .map(|c| if c.bits == 32 { or(masks.v4, MASK_V4) } else { or(masks.v6, MASK_V6) })
        .collect())
}

/// The pieces of one range.
struct Pieces {
    of: Cidr,
    /// Bits of a piece's network.
    mask: u8,
    /// Where the search begins: what was just released is not given out at once.
    next: u64,
    /// By number, how many hold it.
    used: HashMap<u64, u32>,
    /// How many pieces were taken that were free, ever.
    allocations: u64,
    /// How many became free again.
    releases: u64,
}

/// The numbers of a range of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeNumbers {
    /// The range.
    pub cluster: String,
    /// Its pieces.
    pub pieces: u64,
    /// Those that are taken, by nodes or services.
    pub used: u64,
    /// How many pieces were taken that were free, ever.
    pub allocations: u64,
    /// How many became free again.
    pub releases: u64,
}

/// What a node is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Its ranges, one of each of the cluster's.
    pub ranges: Vec<String>,
    /// With the cluster's range, how many pieces were passed over that were taken; nothing for what it had before.
    pub tries: Vec<(String, u64)>,
}

impl Pieces {
    fn count(&self) -> u64 {
        1 << (self.mask - self.of.prefix)
    }

    /// The numbers of the first and last piece that a range touches.
    fn touched(&self, cidr: &Cidr) -> Option<(u64, u64)> {
        if cidr.bits != self.of.bits || cidr.base > self.of.last() || cidr.last() < self.of.base {
            return None;
        }
        let host = u32::from(self.of.bits - self.mask);
        let number = |address: u128| (address - self.of.base).checked_shr(host).unwrap_or(0) as u64;
        Some((number(cidr.base.max(self.of.base)), number(cidr.last().min(self.of.last()))))
    }

    /// A piece that is free, and how many were passed over.
    fn free(&self) -> Option<(u64, u64)> {
        let count = self.count();
        if self.used.len() as u64 >= count {
            return None;
        }
        let numbers = (0..count).map(|tries| ((self.next + tries) % count, tries));
        numbers.into_iter().find(|(number, _)| !self.used.contains_key(number))
    }

    fn piece(&self, number: u64) -> Cidr {
        let offset = u128::from(number).checked_shl((self.of.bits - self.mask).into()).unwrap_or(0);
        Cidr { base: self.of.base + offset, prefix: self.mask, bits: self.of.bits }
    }

    fn occupy(&mut self, (first, last): (u64, u64)) {
        for number in first..=last {
            let holders = self.used.entry(number).or_default();
            self.allocations += u64::from(*holders == 0);
            *holders += 1;
        }
    }

    fn release(&mut self, (first, last): (u64, u64)) {
        for number in first..=last {
            if let Some(holders) = self.used.get_mut(&number) {
                *holders -= 1;
                if *holders == 0 {
                    self.used.remove(&number);
                    self.releases += 1;
                }
            }
        }
    }
}

/// What a node holds.
#[derive(Default)]
struct Held {
    ranges: Vec<String>,
    /// Which pieces of which range that touches.
    spans: Vec<(usize, (u64, u64))>,
}

/// The ranges that are allocated, and their nodes.
pub struct Pool {
    ranges: Vec<Pieces>,
    by_node: HashMap<String, Held>,
}

impl Pool {
    /// All is free but what services have.
    pub fn new(ranges: &NodeRanges) -> Pool {
        let mut pieces: Vec<Pieces> = (ranges.cluster.iter())
            .map(|(of, mask)| Pieces {
                of: *of,
                mask: *mask,
                next: 0,
                used: HashMap::new(),
                allocations: 0,
                releases: 0,
            })
            .collect();
        for pieces in &mut pieces {
            let spans: Vec<_> = ranges.services.iter().filter_map(|s| pieces.touched(s)).collect();
            spans.into_iter().for_each(|span| pieces.occupy(span));
        }
        Pool { ranges: pieces, by_node: HashMap::new() }
    }

    /// A node has these ranges and no others. What is not a CIDR, or none of the cluster's, is ignored.
    pub fn hold<S: AsRef<str>>(&mut self, node: &str, ranges: &[S]) {
        let same = |held: &Held| held.ranges.iter().eq(ranges.iter().map(AsRef::as_ref));
        if self.by_node.get(node).is_some_and(same) {
            return;
        }
        self.release(node);
        let mut held = Held { ranges: ranges.iter().map(|r| r.as_ref().to_owned()).collect(), spans: vec![] };
        for cidr in ranges.iter().filter_map(|r| r.as_ref().parse::<Cidr>().ok()) {
            for (index, pieces) in self.ranges.iter_mut().enumerate() {
                if let Some(span) = pieces.touched(&cidr) {
                    pieces.occupy(span);
                    held.spans.push((index, span));
                }
            }
        }
        self.by_node.insert(node.to_owned(), held);
    }

    /// The ranges of a node: those that it was given before, else a free one of each of the cluster's. `None` when there
    /// is none left of one of them.
    pub fn assign(&mut self, node: &str) -> Option<Assigned> {
        if let Some(held) = self.by_node.get(node) {
            return Some(Assigned { ranges: held.ranges.clone(), tries: vec![] });
        }
        let free: Vec<(u64, u64)> = self.ranges.iter().map(Pieces::free).collect::<Option<_>>()?;
        let (mut held, mut passed) = (Held::default(), vec![]);
        for (index, (pieces, (number, tries))) in self.ranges.iter_mut().zip(free).enumerate() {
            pieces.next = (number + 1) % pieces.count();
            pieces.occupy((number, number));
            held.ranges.push(pieces.piece(number).to_string());
            held.spans.push((index, (number, number)));
            passed.push((pieces.of.to_string(), tries));
        }
        let assigned = Assigned { ranges: held.ranges.clone(), tries: passed };
        self.by_node.insert(node.to_owned(), held);
        Some(assigned)
    }

    /// What there is of each range of the cluster.
    pub fn numbers(&self) -> Vec<RangeNumbers> {
        let of_range = |pieces: &Pieces| RangeNumbers {
            cluster: pieces.of.to_string(),
            pieces: pieces.count(),
            used: pieces.used.len() as u64,
            allocations: pieces.allocations,
            releases: pieces.releases,
        };
        self.ranges.iter().map(of_range).collect()
    }

    /// A node is gone. Whether it held anything.
    pub fn release(&mut self, node: &str) -> bool {
        let Some(held) = self.by_node.remove(node) else { return false };
        for (index, span) in held.spans {
            self.ranges[index].release(span);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn ranges(cluster: &str, masks: [u8; 3], services: &str) -> Result<NodeRanges, String> {
        let split =
            |text: &str| text.split(',').filter(|t| !t.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        let [any, v4, v6] = masks;
        NodeRanges::new(&split(cluster), MaskSizes { any, v4, v6 }, &split(services))
    }

    fn pool(cluster: &str, masks: [u8; 3], services: &str) -> Pool {
        Pool::new(&ranges(cluster, masks, services).unwrap())
    }

    fn give(pool: &mut Pool, nodes: &[&str]) -> String {
        nodes
            .iter()
            .map(|n| pool.assign(n).map_or("none".into(), |a| a.ranges.join(",")))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn allocates_round_robin() {
        let mut pool = pool("10.244.7.0/22", [0; 3], "");
        expect!["10.244.4.0/24 10.244.5.0/24 10.244.6.0/24 10.244.4.0/24 10.244.7.0/24 none"]
            .assert_eq(&give(&mut pool, &["a", "b", "c", "a", "d", "e"]));
        assert!(pool.release("b") && pool.release("c") && !pool.release("c"));
        // What was released last is not the first to be given again.
        expect!["10.244.5.0/24 10.244.6.0/24 none"].assert_eq(&give(&mut pool, &["e", "f", "g"]));
        pool.release("a");
        expect!["10.244.4.0/24"].assert_eq(&give(&mut pool, &["g"]));
    }

    #[test]
    fn does_not_allocate_occupied_ranges() {
        let mut pool = pool("10.0.0.0/14", [15, 0, 0], "10.1.64.0/18");
        pool.hold("outside", &["192.168.0.0/24", "garbage", "fd00::/64"]);
        expect!["10.0.0.0/15 10.2.0.0/15 none"]
            .assert_eq(&give(&mut self::pool("10.0.0.0/14", [15, 0, 0], ""), &["a", "b", "c"]));
        expect!["10.2.0.0/15 none"].assert_eq(&give(&mut pool, &["a", "b"]));
        // Two nodes with one range: it is free when both are gone.
        pool.hold("a", &["10.2.3.0/24"]);
        pool.hold("b", &["10.2.0.0/16"]);
        pool.release("a");
        assert_eq!(give(&mut pool, &["c"]), "none");
        pool.release("b");
        assert_eq!(give(&mut pool, &["c"]), "10.2.0.0/15");
        // More than the cluster's range.
        let mut pool = self::pool("10.0.0.0/15", [16, 0, 0], "");
        pool.hold("x", &["0.0.0.0/0"]);
        assert_eq!(give(&mut pool, &["a"]), "none");
        pool.hold("x", &["10.0.0.0/24"]);
        assert_eq!(give(&mut pool, &["a"]), "10.1.0.0/16");
    }

    #[test]
    fn allocates_both_families() {
        let mut pool = pool("10.244.0.0/24,fd00:10:244::/56", [0, 25, 0], "10.96.0.0/12,fd00:10:244:1::/112");
        expect!["10.244.0.0/25,fd00:10:244::/64 10.244.0.128/25,fd00:10:244:2::/64 none"]
            .assert_eq(&give(&mut pool, &["a", "b", "c"]));
        // One family without a free piece takes none of the other.
        pool.release("a");
        expect!["10.244.0.0/25,fd00:10:244:3::/64"].assert_eq(&give(&mut pool, &["c"]));
        let mut all = self::pool("::/0", [16, 0, 0], "");
        assert_eq!(give(&mut all, &["a", "b"]), "::/16 1::/16");
        let mut whole = self::pool("0.0.0.0/0", [0, 20, 0], "");
        assert_eq!(give(&mut whole, &["a", "b"]), "0.0.0.0/20 0.0.16.0/20");
    }

    #[test]
    fn rejects_invalid_flags() {
        let all = [
            ("", [0; 3]),
            ("10.0.0.0", [0; 3]),
            ("10.0.0.0/33", [0; 3]),
            ("10.0.0.0/8,10.0.0.0/9", [0; 3]),
            ("10.0.0.0/8,fd00::/56,fd01::/56", [0; 3]),
            ("10.0.0.0/25", [0; 3]),
            ("10.0.0.0/8", [33, 0, 0]),
            ("fd00::/47", [0; 3]),
            ("10.0.0.0/8", [29, 0, 0]),
            ("10.0.0.0/8,fd00::/56", [24, 0, 0]),
            ("10.0.0.0/8", [24, 24, 0]),
            ("10.0.0.0/8", [0, 0, 64]),
            ("fd00::/56", [0, 24, 0]),
        ]
        .map(|(cluster, masks)| ranges(cluster, masks, "").unwrap_err());
        expect![[r#"
            must specify --cluster-cidr if --allocate-node-cidrs is set
            invalid CIDR address: 10.0.0.0
            invalid CIDR address: 10.0.0.0/33
            two ranges in --cluster-cidr must be of both IP families
            --cluster-cidr has 3 ranges, more than the two allowed
            invalid --cluster-cidr 10.0.0.0/25: its mask size must be less than or equal to --node-cidr-mask-size (24)
            invalid --cluster-cidr 10.0.0.0/8: its mask size must be less than or equal to --node-cidr-mask-size (33)
            --cluster-cidr fd00::/47: the node CIDR size is too big (64)
            --cluster-cidr 10.0.0.0/8: the node CIDR size is too big (29)
            usage of --node-cidr-mask-size is not allowed with dual-stack clusters
            usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set
            usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster
            usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster"#]].assert_eq(&all.join("\n"));
    }
}
