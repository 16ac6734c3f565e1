//! How fast nodes of a zone may get `NoExecute` taints, after how many of its nodes are not ready.
//!
//! A node that stopped is one failure; most nodes of a zone that stop at once are more likely a failure of the network
//! between them and the control plane, and evicting their pods would make it worse.
//!
//! Invariants:
//! - While no node at all is ready, no token is given.
//! - A zone gives at most one token per interval of its rate, and saves none up.

use jiff::{SignedDuration, Timestamp};
use kaji_runtime::objects::Node;
use std::{collections::BTreeMap, time::Duration};

/// The time between two nodes of a zone: the inverse of kube-controller-manager's `--node-eviction-rate` 0.1.
const INTERVAL: Duration = Duration::from_secs(10);
/// The same for a large zone with too many nodes that are not ready: `--secondary-node-eviction-rate` 0.01.
const SECONDARY_INTERVAL: Duration = Duration::from_secs(100);
/// `--unhealthy-zone-threshold`, in percent.
const UNHEALTHY_PERCENT: usize = 55;
/// `--large-cluster-size-threshold`
const LARGE: usize = 50;

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
    pub fn disruption(self) -> Disruption {
        let total = self.ready + self.unready;
        match self {
            Counts { ready: 0, unready: 1.. } => Disruption::Full,
            Counts { unready: 3.., .. } if self.unready * 100 >= UNHEALTHY_PERCENT * total => {
                Disruption::Partial
            }
            _ => Disruption::Normal,
        }
    }

    /// The interval of a zone with such nodes; `None` when it gives no tokens.
    fn interval(self) -> Option<Duration> {
        match self.disruption() {
            Disruption::Partial if self.ready + self.unready > LARGE => Some(SECONDARY_INTERVAL),
            Disruption::Partial => None,
            Disruption::Initial | Disruption::Normal | Disruption::Full => Some(INTERVAL),
        }
    }
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
pub struct Zones(BTreeMap<ZoneKey, Zone>);

impl Zones {
    /// Adds a zone that is not known yet.
    pub fn add(&mut self, key: &ZoneKey, now: Timestamp) {
        if !self.0.contains_key(key) {
            let limiter = Limiter { interval: Some(INTERVAL), next: now };
            self.0.insert(key.clone(), Zone { state: Disruption::default(), limiter });
        }
    }

    /// Takes note of the nodes of all zones; zones without nodes are forgotten.
    pub fn update(&mut self, counts: &BTreeMap<ZoneKey, Counts>, now: Timestamp) -> Turn {
        self.0.retain(|key, _| counts.contains_key(key));
        for key in counts.keys() {
            self.add(key, now);
        }
        // Zones of which all nodes are excluded from these checks keep the default rate.
        let counted = |counts: &&Counts| **counts != Counts::default();
        let full = |state: Disruption| state == Disruption::Full;
        let all_full = counts.values().filter(counted).all(|c| full(c.disruption()));
        let was_full = self.0.values().any(|z| full(z.state))
            && self.0.values().all(|z| full(z.state) || z.state == Disruption::Initial);
        let mut turn = if was_full && !all_full { Turn::Resumed } else { Turn::None };
        for (key, zone) in &mut self.0 {
            let Some(counts) = counts.get(key).filter(counted) else { continue };
            if all_full && zone.state != Disruption::Full {
                turn = Turn::Stopped;
            }
            let state = counts.disruption();
            if all_full {
                zone.limiter.change(None, now);
            } else if zone.state != state || was_full {
                zone.limiter.change(counts.interval(), now);
            }
            zone.state = state;
        }
        turn
    }

    /// Takes a token of a zone, if there is one.
    pub fn accepts(&mut self, key: &ZoneKey, now: Timestamp) -> bool {
        self.0.get_mut(key).is_some_and(|zone| zone.limiter.accepts(now))
    }

    /// Gives a token back that was not used.
    pub fn refund(&mut self, key: &ZoneKey, now: Timestamp) {
        if let Some(zone) = self.0.get_mut(key) {
            zone.limiter.next = now;
        }
    }

    /// When a zone's next token is there; `None` if it gives none.
    pub fn next_token(&self, key: &ZoneKey, now: Timestamp) -> Option<Timestamp> {
        self.0.get(key)?.limiter.available(now)
    }
}
