//! How fast nodes of a zone may get `NoExecute` taints, after how many of its nodes are not ready.
//!
//! A node that stopped is one failure; most nodes of a zone that stop at once are more likely a failure of the network
//! between them and the control plane, and evicting their pods would make it worse.
//!
//! Invariants:
//! - While no node at all is ready, no token is given.
//! - A zone gives at most one token per interval of its rate, and saves none up.

use crate::EvictionRates;
use jiff::{SignedDuration, Timestamp};
use kaji_runtime::objects::Node;
use std::{collections::BTreeMap, time::Duration};

const ZONE: [&str; 2] = ["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"];
const REGION: [&str; 2] = ["failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"];

/// The zone of a node: region and zone, `""` for what it does not say.
pub type ZoneKey = (String, String);

/// The zone that a node is in, by its labels.
pub fn zone_of(node: &Node) -> ZoneKey {
    let label = |keys: [&str; 2]| {
        let value = keys.into_iter().find_map(|key| node.metadata.labels.get(key));
        value.cloned().unwrap_or_default()
    };
    (label(REGION), label(ZONE))
}

/// How many nodes of a zone are ready, and how many are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ready.
    pub ready: usize,
    /// Not ready, of unknown status, or without one.
    pub unready: usize,
}

/// The state of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disruption {
    /// Not looked at yet.
    #[default]
    Initial,
    /// Enough nodes are ready.
    Normal,
    /// Too many are not.
    Partial,
    /// None is.
    Full,
}

impl Counts {
    /// The state of a zone with such nodes.
    pub fn disruption(self, rates: &EvictionRates) -> Disruption {
        let total = self.ready + self.unready;
        match self {
            Counts { ready: 0, unready: 1.. } => Disruption::Full,
            Counts { unready: 3.., .. } if fraction(self.unready, total) >= rates.unhealthy => {
                Disruption::Partial
            }
            _ => Disruption::Normal,
        }
    }

    /// The interval of a zone with such nodes; `None` when it gives no tokens.
    fn interval(self, rates: &EvictionRates) -> Option<Duration> {
        match self.disruption(rates) {
            Disruption::Partial if self.ready + self.unready > rates.large => {
                interval_of(rates.secondary_rate)
            }
            Disruption::Partial => None,
            Disruption::Initial | Disruption::Normal | Disruption::Full => interval_of(rates.rate),
        }
    }
}

fn fraction(part: usize, whole: usize) -> f64 {
    let number = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    number(part) / number(whole)
}

/// The time between two nodes at so many a second; none for a rate of zero.
fn interval_of(rate: f64) -> Option<Duration> {
    if rate > 0.0 { Duration::try_from_secs_f64(1.0 / rate).ok() } else { None }
}

/// A bucket of one token.
#[derive(Debug)]
struct Limiter {
    /// Without one it gives no tokens.
    interval: Option<Duration>,
    /// When the next token is there.
    next: Timestamp,
}

fn later(now: Timestamp, by: Duration) -> Timestamp {
    now.saturating_add(SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX)
}

impl Limiter {
    /// When the next token is there. A clock that was set back delays it by an interval at most.
    fn available(&self, now: Timestamp) -> Option<Timestamp> {
        self.interval.map(|interval| self.next.min(later(now, interval)))
    }

    fn accepts(&mut self, now: Timestamp) -> bool {
        let accepted = self.available(now).is_some_and(|at| at <= now);
        if let (true, Some(interval)) = (accepted, self.interval) {
            self.next = later(now, interval);
        }
        accepted
    }

    /// Changes the rate. What had to wait before waits a whole interval of the new rate.
    fn change(&mut self, interval: Option<Duration>, now: Timestamp) {
        if self.interval == interval {
            return;
        }
        let waits = self.available(now).is_none_or(|at| at > now);
        self.interval = interval;
        self.next = if waits { later(now, interval.unwrap_or_default()) } else { now };
    }
}

#[derive(Debug)]
struct Zone {
    state: Disruption,
    limiter: Limiter,
}

/// What a look at the zones found of the cluster as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing changed for it.
    None,
    /// The last ready node is gone: nothing is evicted from now on.
    Stopped,
    /// Some node is ready again.
    Resumed,
}

/// All zones.
#[derive(Debug, Default)]
pub struct Zones {
    zones: BTreeMap<ZoneKey, Zone>,
    rates: EvictionRates,
}

impl Zones {
    /// None yet.
    pub fn new(rates: EvictionRates) -> Zones {
        Zones { zones: BTreeMap::new(), rates }
    }

    /// Adds a zone that is not known yet.
    pub fn add(&mut self, key: &ZoneKey, now: Timestamp) {
        if !self.zones.contains_key(key) {
            let limiter = Limiter { interval: interval_of(self.rates.rate), next: now };
            self.zones.insert(key.clone(), Zone { state: Disruption::default(), limiter });
        }
    }

    /// Takes note of the nodes of all zones; zones without nodes are forgotten.
    pub fn update(&mut self, counts: &BTreeMap<ZoneKey, Counts>, now: Timestamp) -> Turn {
        self.zones.retain(|key, _| counts.contains_key(key));
        for key in counts.keys() {
            self.add(key, now);
        }
        // Zones of which all nodes are excluded from these checks keep the default rate.
        let counted = |counts: &&Counts| **counts != Counts::default();
        let full = |state: Disruption| state == Disruption::Full;
        let all_full = counts.values().filter(counted).all(|c| full(c.disruption(&self.rates)));
        let was_full = self.zones.values().any(|z| full(z.state))
            && self.zones.values().all(|z| full(z.state) || z.state == Disruption::Initial);
        let mut turn = if was_full && !all_full { Turn::Resumed } else { Turn::None };
        for (key, zone) in &mut self.zones {
            let Some(counts) = counts.get(key).filter(counted) else { continue };
            if all_full && zone.state != Disruption::Full {
                turn = Turn::Stopped;
            }
            let state = counts.disruption(&self.rates);
            if all_full {
                zone.limiter.change(None, now);
            } else if zone.state != state || was_full {
                zone.limiter.change(counts.interval(&self.rates), now);
            }
            zone.state = state;
        }
        turn
    }

    /// Takes a token of a zone, if there is one.
    pub fn accepts(&mut self, key: &ZoneKey, now: Timestamp) -> bool {
        self.zones.get_mut(key).is_some_and(|zone| zone.limiter.accepts(now))
    }

    /// Gives a token back that was not used.
    pub fn refund(&mut self, key: &ZoneKey, now: Timestamp) {
        if let Some(zone) = self.zones.get_mut(key) {
            zone.limiter.next = now;
        }
    }

    /// When a zone's next token is there; `None` if it gives none.
    pub fn next_token(&self, key: &ZoneKey, now: Timestamp) -> Option<Timestamp> {
        self.zones.get(key)?.limiter.available(now)
    }
}
