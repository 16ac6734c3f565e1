//! From what metrics ask for to what is done: limits of replicas, rates of change, stabilization. Pure but for the history
//! that it is given.
//!
//! Invariants:
//! - The result is within the least and the greatest number of replicas, unless a rate keeps the present number beyond them.
//! - Stabilization picks nothing beyond the extremes of its window and the present.
//! - A history is bounded by the longest window and by [`MOST_KEPT`]. It is lost with the process, as upstream's: the first
//!   recommendation after that is the present number.
//!
//! Source: upstream's `horizontal.go`.

use jiff::{SignedDuration, Timestamp};
use kaji_runtime::objects::{Behavior, ScalingPolicy, ScalingRules};

/// The least limit of growth, where no behaviour says otherwise.
const GROWTH_MINIMUM: i64 = 4;
/// Recommendations, and changes in each direction, that are kept.
const MOST_KEPT: usize = 4096;
/// Upstream's largest window and period; validation allows no longer ones.
const LONGEST: SignedDuration = SignedDuration::from_hours(1);

/// Replicas at a time, or a number of replicas by which it was changed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    replicas: i64,
    at: Timestamp,
}

/// What an autoscaler recommended and did lately.
#[derive(Clone, Debug, Default)]
pub struct History {
    recommendations: Vec<Entry>,
    ups: Vec<Entry>,
    downs: Vec<Entry>,
}

fn keep(entries: &mut Vec<Entry>, entry: Entry, longest: SignedDuration) {
    let cutoff = before(entry.at, longest);
    entries.retain(|e| e.at >= cutoff);
    if entries.len() >= MOST_KEPT {
        entries.remove(0);
    }
    entries.push(entry);
}

fn before(now: Timestamp, period: SignedDuration) -> Timestamp {
    now.saturating_sub(period).unwrap_or(Timestamp::MIN)
}

/// What was changed within the last seconds.
fn changed(entries: &[Entry], seconds: i64, now: Timestamp) -> i64 {
    let cutoff = before(now, SignedDuration::from_secs(seconds));
    entries.iter().filter(|e| e.at > cutoff).map(|e| e.replicas).sum()
}

impl History {
    /// The first recommendation of an autoscaler is what it finds.
    pub fn begin(&mut self, replicas: i64, at: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push(Entry { replicas, at });
        }
    }

    /// Records a change.
    pub fn scaled(&mut self, from: i64, to: i64, at: Timestamp) {
        let entry = Entry { replicas: (to - from).abs(), at };
        keep(if to > from { &mut self.ups } else { &mut self.downs }, entry, LONGEST);
    }
}

/// Between which numbers, and from which, replicas are changed.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The least.
    pub min: i64,
    /// The greatest.
    pub max: i64,
    /// At present.
    pub current: i64,
}

/// A reason with its text.
pub type Why = (&'static str, &'static str);

/// What is done about a recommendation.
#[derive(Debug, PartialEq)]
pub struct Normalized {
    /// Replicas.
    pub replicas: i64,
    /// Of the condition `AbleToScale`.
    pub able: Why,
    /// Whether the condition `ScalingLimited` is true.
    pub limited: bool,
    /// Its reason.
    pub limit: Why,
}

const READY: Why = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: Why = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: Why = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN: Why = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: Why = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: Why = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const UP_LIMIT: Why =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: Why =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

/// Turns a recommendation into what is done, and records it. `window` is the stabilization of downward changes, where no
/// behaviour says otherwise.
pub fn normalize(
    history: &mut History,
    behavior: Option<&Behavior>,
    bounds: Bounds,
    wanted: i64,
    window: SignedDuration,
    now: Timestamp,
) -> Normalized {
    let (stabilized, able) = match behavior {
        None => {
            let highest = history.highest(wanted, before(now, window));
            (highest, DOWN_STABILIZED)
        }
        Some(behavior) => {
            let seconds = |rules: &ScalingRules| rules.stabilization_window_seconds;
            let up = SignedDuration::from_secs(seconds(&behavior.scale_up).unwrap_or(0));
            let down = seconds(&behavior.scale_down).map_or(window, SignedDuration::from_secs);
            let able = if wanted >= bounds.current { UP_STABILIZED } else { DOWN_STABILIZED };
            (history.stabilize(bounds.current, wanted, (up, down), now), able)
        }
    };
    keep(&mut history.recommendations, Entry { replicas: wanted, at: now }, LONGEST.max(window));
    let (replicas, limit) = match behavior {
        None => limited(bounds, stabilized),
        Some(behavior) => history.limited(behavior, bounds, stabilized, now),
    };
    Normalized {
        replicas,
        able: if stabilized == wanted { READY } else { able },
        limited: replicas != stabilized,
        limit,
    }
}

/// Without a behaviour: within the bounds, and not more than doubled at once.
fn limited(bounds: Bounds, wanted: i64) -> (i64, Why) {
    let growth = (2 * bounds.current).max(GROWTH_MINIMUM);
    let (most, why) = if bounds.max > growth { (growth, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
    if wanted < bounds.min {
        (bounds.min, TOO_FEW)
    } else if wanted > most {
        (most, why)
    } else {
        (wanted, WITHIN)
    }
}

impl History {
    fn highest(&self, wanted: i64, cutoff: Timestamp) -> i64 {
        let lately = self.recommendations.iter().filter(|e| e.at >= cutoff).map(|e| e.replicas);
        lately.fold(wanted, i64::max)
    }

    /// The number nearest to the present one between the lowest recommendation of one window and the highest of the other.
    fn stabilize(
        &self,
        current: i64,
        wanted: i64,
        (up, down): (SignedDuration, SignedDuration),
        now: Timestamp,
    ) -> i64 {
        let since = |period| {
            let cutoff = before(now, period);
            self.recommendations.iter().filter(move |e| e.at > cutoff).map(|e| e.replicas)
        };
        let lowest = since(up).fold(wanted, i64::min);
        let highest = since(down).fold(wanted, i64::max);
        current.max(lowest).min(highest)
    }

    fn limited(&self, behavior: &Behavior, bounds: Bounds, wanted: i64, now: Timestamp) -> (i64, Why) {
        let Bounds { min, max, current } = bounds;
        if wanted > current {
            let limit = self.limit(&behavior.scale_up, current, now, Direction::Up).max(current);
            let (most, why) = if max > limit { (limit, UP_LIMIT) } else { (max, TOO_MANY) };
            if wanted > most {
                return (most, why);
            }
        } else if wanted < current {
            let limit = self.limit(&behavior.scale_down, current, now, Direction::Down).min(current);
            let (least, why) = if min < limit { (limit, DOWN_LIMIT) } else { (min, TOO_FEW) };
            if wanted < least {
                return (least, why);
            }
        }
        (wanted, WITHIN)
    }

    /// How far the policies of a direction go at present.
    fn limit(&self, rules: &ScalingRules, current: i64, now: Timestamp, direction: Direction) -> i64 {
        if rules.select_policy == "Disabled" {
            return current;
        }
        let reach = rules.policies.iter().map(|policy| {
            let added = changed(&self.ups, policy.period_seconds, now);
            let removed = changed(&self.downs, policy.period_seconds, now);
            direction.reach(current - added + removed, policy)
        });
        let highest = match direction {
            Direction::Up => rules.select_policy != "Min",
            Direction::Down => rules.select_policy == "Min",
        };
        // Without a policy there is no change; validation requires one.
        if highest { reach.max() } else { reach.min() }.unwrap_or(current)
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

impl Direction {
    /// How far a policy goes from the replicas at the beginning of its period.
    fn reach(self, start: i64, policy: &ScalingPolicy) -> i64 {
        let share = policy.value as f64 / 100.0;
        let percent = policy.kind == "Percent";
        match self {
            // Rounded up: a small share of few pods would never add one.
            Direction::Up if percent => (start as f64 * (1.0 + share)).ceil().min(f64::from(i32::MAX)) as i64,
            Direction::Up => start.saturating_add(policy.value),
            Direction::Down if percent => (start as f64 * (1.0 - share)) as i64,
            Direction::Down => start - policy.value,
        }
    }
}

#[cfg(test)]
mod tests;
