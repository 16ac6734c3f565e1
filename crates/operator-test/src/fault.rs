//! Faults that the API permits at any time, and the points of a run at which they come about: the k-th request of a client to a
//! resource with a verb, or the k-th event of its watches.
//!
//! Invariant: a fault comes about once.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A request, or an event of a watch, counted from one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The product of the `User-Agent`, without its version.
    pub client: String,
    /// The verb of the API; `watch` counts events.
    pub verb: String,
    /// `deployments.apps`, `webapps.example.com/status`
    pub resource: String,
    /// Which of them.
    pub nth: u32,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { client, verb, resource, nth } = self;
        if verb == "watch" {
            return write!(f, "event {nth} of {client}'s watches of {resource}");
        }
        write!(f, "{verb} {nth} of {resource} by {client}")
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The write is carried out, and the connection breaks before the answer.
    AnswerLost,
    /// The write is carried out, and the operator is killed before the answer, and started again.
    Kill,
    /// As `kill`; lists at resourceVersion 0 are then answered from the time before the write, and events come late.
    StaleView,
    /// Events of the resource that was written come late to the client that wrote.
    LateEvents,
    /// From the event on nothing comes for a while; then the watch ends with 410, and what was between is never seen.
    SkippedStates,
    /// Another client writes the object just before.
    Conflict,
    /// 429
    TooManyRequests,
    /// 500
    InternalError,
    /// 503
    Unavailable,
    /// 500, as when an admission webhook does not answer.
    WebhookTimeout,
    /// Another holder takes the lease just before it is renewed.
    LostLease,
    /// 401
    ExpiredToken,
    /// The cluster's clock goes forward by an hour just before.
    TimeJump,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 13] = [
        FaultKind::AnswerLost,
        FaultKind::Kill,
        FaultKind::StaleView,
        FaultKind::LateEvents,
        FaultKind::SkippedStates,
        FaultKind::Conflict,
        FaultKind::TooManyRequests,
        FaultKind::InternalError,
        FaultKind::Unavailable,
        FaultKind::WebhookTimeout,
        FaultKind::LostLease,
        FaultKind::ExpiredToken,
        FaultKind::TimeJump,
    ];

    /// Its name in files and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::AnswerLost => "answer-lost",
            FaultKind::Kill => "kill",
            FaultKind::StaleView => "stale-view",
            FaultKind::LateEvents => "late-events",
            FaultKind::SkippedStates => "skipped-states",
            FaultKind::Conflict => "conflict",
            FaultKind::TooManyRequests => "too-many-requests",
            FaultKind::InternalError => "internal-error",
            FaultKind::Unavailable => "unavailable",
            FaultKind::WebhookTimeout => "webhook-timeout",
            FaultKind::LostLease => "lost-lease",
            FaultKind::ExpiredToken => "expired-token",
            FaultKind::TimeJump => "time-jump",
        }
    }

    /// Whether it can come about at a request or event of this verb and resource.
    #[must_use]
    pub fn applies(self, verb: &str, resource: &str) -> bool {
        let lease = resource == "leases.coordination.k8s.io";
        let events = matches!(resource, "events" | "events.events.k8s.io");
        let changes = matches!(verb, "update" | "patch");
        let writes = changes || matches!(verb, "create" | "delete" | "deletecollection");
        match self {
            FaultKind::SkippedStates => verb == "watch",
            FaultKind::LostLease => lease && changes,
            FaultKind::Conflict => changes && !lease && !events,
            // Nothing reads its own events, and a killed holder's lease is an end that other faults bring about.
            FaultKind::Kill | FaultKind::StaleView | FaultKind::LateEvents => writes && !lease && !events,
            FaultKind::ExpiredToken => writes || matches!(verb, "get" | "list"),
            _ => writes,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thing that goes wrong, at one point.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// Where.
    pub at: Point,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.kind, self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files() {
        for kind in FaultKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn faults_apply_where_they_can_come_about() {
        let of = |verb: &str, resource: &str| -> Vec<&str> {
            FaultKind::ALL.iter().filter(|k| k.applies(verb, resource)).map(|k| k.name()).collect()
        };
        assert_eq!(of("watch", "pods"), ["skipped-states"]);
        assert_eq!(of("list", "pods"), ["expired-token"]);
        assert!(of("update", "leases.coordination.k8s.io").contains(&"lost-lease"));
        assert!(!of("create", "configmaps").contains(&"conflict"));
        assert!(of("patch", "configmaps").contains(&"conflict"));
    }
}
