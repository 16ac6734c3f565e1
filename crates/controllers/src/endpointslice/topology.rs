//! Topology-aware hints: endpoints are allotted to zones in proportion to the processors of their nodes
//! (`service.kubernetes.io/topology-mode: Auto`).
//!
//! Invariants:
//! - An endpoint moves to another zone only if that brings both zones nearer to their shares.
//! - There are no hints where zones would need more endpoints than there are, so that none has more than 20 % too much to do.
//! - Slices that are not written anyway keep their hints as long as these fit.
//!
//! Source: KEP-2433, upstream's `endpointslice/topologycache`. Where upstream takes the zones in any order, they are taken by name.

use kaji_meta::Quantity;
use kaji_runtime::{
    ObjectSnapshot,
    objects::{Endpoint, EndpointSlice, Node},
};
use std::collections::BTreeMap;

/// How much more than its share an endpoint may have to do.
const OVERLOAD: f64 = 0.2;
/// Nodes with one of these labels run no workload.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// The parts of the processors that are in each zone; `None` where that is not known, or there is one zone only.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capacity(Option<BTreeMap<String, f64>>);

impl Capacity {
    /// Of nodes that are ready.
    #[allow(clippy::cast_precision_loss, reason = "upstream's arithmetic")]
    pub fn of(nodes: &ObjectSnapshot<Node>) -> Capacity {
        let mut zones: BTreeMap<&str, i64> = BTreeMap::new();
        for node in nodes.iter().filter(|node| node.ready()) {
            let labels = &node.metadata.labels;
            if EXCLUDED.iter().any(|label| labels.contains_key(*label)) {
                continue;
            }
            let zone = labels.get(super::ZONE_LABEL).map_or("", String::as_str);
            let processors = node.status.allocatable.get("cpu").and_then(|text| Quantity::parse(text).ok());
            let processors = processors.map_or(0, |quantity| quantity.milli_value());
            if zone.is_empty() || processors <= 0 {
                return Capacity(None);
            }
            let total = zones.entry(zone).or_default();
            *total = total.saturating_add(processors);
        }
        let total: f64 = zones.values().map(|n| *n as f64).sum();
        let several = zones.len() > 1;
        Capacity(
            several.then(|| zones.into_iter().map(|(zone, n)| (zone.to_owned(), n as f64 / total)).collect()),
        )
    }

    /// Whether hints leave some zone with too few endpoints. A service without hints has none that is.
    #[allow(clippy::cast_precision_loss, reason = "upstream's arithmetic")]
    pub fn overloads<'a>(&self, slices: impl Iterator<Item = &'a EndpointSlice>) -> bool {
        let mut hints: BTreeMap<&str, usize> = BTreeMap::new();
        for zone in slices.flat_map(|slice| &slice.endpoints).flat_map(zones_of) {
            *hints.entry(zone).or_default() += 1;
        }
        let total = hints.values().sum::<usize>() as f64;
        let short =
            |(zone, part): (&String, &f64)| hints.get(zone.as_str()).is_none_or(|n| *n < least(total * part));
        !hints.is_empty() && self.0.as_ref().is_none_or(|zones| zones.iter().any(short))
    }

    /// How many endpoints each zone should have.
    ///
    /// # Errors
    /// Upstream's reason why there can be no hints.
    #[allow(clippy::cast_precision_loss, reason = "upstream's arithmetic")]
    fn allotments(&self, endpoints: usize) -> Result<BTreeMap<&str, Allotment>, String> {
        let Some(zones) = &self.0 else {
            return Err(
                "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
                    .to_owned(),
            );
        };
        let numbers = format!("({endpoints} endpoints, {} zones)", zones.len());
        if zones.len() > endpoints {
            return Err(format!("Insufficient number of endpoints {numbers}"));
        }
        let mut all: BTreeMap<&str, Allotment> = BTreeMap::new();
        for (zone, part) in zones {
            let desired = part * endpoints as f64;
            let minimum = least(desired);
            all.insert(zone, Allotment { minimum, maximum: 0, desired: desired.max(minimum as f64) });
        }
        let minimum: usize = all.values().map(|a| a.minimum).sum();
        let Some(spare) = endpoints.checked_sub(minimum) else {
            return Err(format!(
                "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold {numbers}"
            ));
        };
        all.values_mut().for_each(|a| a.maximum = a.minimum + spare);
        Ok(all)
    }
}

/// The fewest endpoints for a share.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is not negative")]
fn least(share: f64) -> usize {
    (share * (1.0 / (1.0 + OVERLOAD))).ceil() as usize
}

/// The endpoints of a zone.
struct Allotment {
    minimum: usize,
    maximum: usize,
    desired: f64,
}

/// The zones that an endpoint has hints for.
fn zones_of(endpoint: &Endpoint) -> impl Iterator<Item = &str> {
    let zones = endpoint.hints.get("forZones").and_then(serde_json::Value::as_array);
    zones.into_iter().flatten().filter_map(|zone| zone.get("name")?.as_str())
}

/// A slice as hints are made for it.
pub struct Candidate<'a> {
    /// Its endpoints that are ready: number and zone.
    pub ready: Vec<(usize, Option<&'a str>)>,
    /// What is there of it, unless it is written anyway.
    pub unchanged: Option<&'a EndpointSlice>,
}

/// The hints of a service's endpoints in one address family.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Which unchanged slices have to be written, by their places.
    pub rewritten: Vec<usize>,
    /// The zones of the endpoints of all slices that are written, by number.
    pub zones: BTreeMap<usize, String>,
}

/// Allots endpoints to zones.
///
/// # Errors
/// Upstream's reason why there can be no hints.
pub fn hints(capacity: &Capacity, slices: &[Candidate<'_>]) -> Result<Hints, String> {
    let allotments = capacity.allotments(slices.iter().map(|slice| slice.ready.len()).sum())?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut hints, mut written) = (Hints::default(), vec![]);
    for (place, slice) in slices.iter().enumerate() {
        let Some(unchanged) = slice.unchanged else {
            written.extend(&slice.ready);
            continue;
        };
        if let Some(kept) = kept(unchanged, &counts, &allotments) {
            kept.into_iter().for_each(|(zone, n)| *counts.entry(zone).or_default() += n);
        } else {
            hints.rewritten.push(place);
            written.extend(&slice.ready);
        }
    }
    for (number, zone) in &written {
        let zone = zone.ok_or("One or more endpoints do not have a zone specified")?;
        *counts.entry(zone).or_default() += 1;
        hints.zones.insert(*number, zone.to_owned());
    }
    if counts.is_empty() {
        return Err("No hints allocated for zones".to_owned());
    }
    let (mut giving, mut receiving) = exchange(&allotments, &counts);
    for (number, zone) in &written {
        let zone = zone.unwrap_or_default();
        if giving.get(zone).is_some_and(|n| *n > 0)
            && let Some((to, left)) = receiving.iter_mut().find(|(_, left)| **left > 0)
        {
            *left -= 1;
            giving.entry(zone).and_modify(|n| *n -= 1);
            hints.zones.insert(*number, (*to).to_owned());
        }
    }
    Ok(hints)
}

/// The zones of a slice's hints with their numbers, if each ready endpoint has some, and no zone gets too many.
fn kept<'a>(
    slice: &'a EndpointSlice,
    counts: &BTreeMap<&str, usize>,
    allotments: &BTreeMap<&str, Allotment>,
) -> Option<BTreeMap<&'a str, usize>> {
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready == Some(true)) {
        zones_of(endpoint).next()?;
        zones_of(endpoint).for_each(|zone| *kept.entry(zone).or_default() += 1);
    }
    let fits = |(zone, n): (&&str, &usize)| {
        let before = counts.get(zone).copied().unwrap_or_default();
        allotments.get(zone).is_some_and(|allotment| before + n <= allotment.maximum)
    };
    kept.iter().all(fits).then_some(kept)
}

/// How many endpoints zones give to others, and how many they get.
#[allow(clippy::cast_precision_loss, reason = "upstream's arithmetic")]
fn exchange<'a>(
    allotments: &BTreeMap<&'a str, Allotment>,
    counts: &BTreeMap<&'a str, usize>,
) -> (BTreeMap<&'a str, usize>, BTreeMap<&'a str, usize>) {
    let difference = |(zone, allotment): (&&'a str, &Allotment)| {
        let has = counts.get(zone).copied().unwrap_or_default() as f64;
        (*zone, has - allotment.desired)
    };
    let mut differences: Vec<(&str, f64)> = allotments.iter().map(difference).collect();
    let (mut giving, mut receiving) = (BTreeMap::new(), BTreeMap::new());
    loop {
        // The first of several by name.
        let most = |sign: f64, all: &[(&str, f64)]| {
            let mut best: Option<(usize, f64)> = None;
            for (i, (_, difference)) in all.iter().enumerate() {
                let amount = difference * sign;
                if amount > best.map_or(0.0, |(_, b)| b) {
                    best = Some((i, amount));
                }
            }
            best
        };
        let (from, to) = (most(1.0, &differences), most(-1.0, &differences));
        let (Some((from, gives)), Some((to, gets))) = (from, to) else { break };
        if (gives < 1.0 && gets < 1.0) || gives < 0.5 || gets < 0.5 {
            break;
        }
        *giving.entry(differences[from].0).or_default() += 1;
        *receiving.entry(differences[to].0).or_default() += 1;
        differences[from].1 -= 1.0;
        differences[to].1 += 1.0;
    }
    (giving, receiving)
}

#[cfg(test)]
mod tests;
