//! A node's heartbeats (its Lease and its `Ready` condition) as the monitor saw them last, and for how long there was none.
//!
//! Invariants:
//! - Time stamps of the node are compared with each other only, never with the clock: the clocks of machines differ.
//! - Silence grows by a period at most from one look to the next. A clock that jumps, or a process that was suspended, says
//!   nothing of a kubelet that had no time to renew its lease.

use crate::NodeMonitorConfig;
use jiff::Timestamp;
use kaji_runtime::objects::{Lease, Node};
use serde_json::{Value, json};
use std::time::Duration;

/// The conditions that a kubelet posts; `NetworkUnavailable` is the control plane's.
const POSTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// A node as it was seen last.
#[derive(Debug)]
pub struct Health {
    /// Uid.
    pub uid: String,
    /// Counted time without a sign of life.
    pub silence: Duration,
    /// The heartbeat of the `Ready` condition; the outer option is whether there is one.
    heartbeat: Option<Option<Timestamp>>,
    /// When the lease was renewed.
    renewed: Option<Timestamp>,
    /// How many looks are left in which its ready pods are marked not ready.
    pub marks: u8,
    /// Since when it waits for a token.
    pub waiting: Option<Timestamp>,
    /// Whether its `NoExecute` taints are to be removed although it is not ready.
    pub lift: bool,
}

/// The status of a node's `Ready` condition.
pub fn ready_status(node: &Node) -> Option<&str> {
    node.status.conditions.iter().find(|c| c.kind == "Ready").map(|c| c.status.as_str())
}

fn heartbeat(node: &Node) -> Option<Option<Timestamp>> {
    node.status.conditions.iter().find(|c| c.kind == "Ready").map(|c| c.last_heartbeat_time)
}

impl Health {
    /// Of a node that is seen for the first time: its silence begins now, whatever its time stamps say.
    pub fn new(node: &Node, lease: Option<&Lease>) -> Self {
        Health {
            uid: node.metadata.uid.clone(),
            silence: Duration::ZERO,
            heartbeat: heartbeat(node),
            renewed: lease.and_then(|l| l.spec.renew_time),
            marks: 0,
            waiting: None,
            lift: false,
        }
    }

    /// Takes note of a node, `passed` after it was seen last.
    pub fn observe(
        &mut self,
        node: &Node,
        lease: Option<&Lease>,
        passed: Duration,
        config: &NodeMonitorConfig,
    ) {
        self.silence = self.silence.saturating_add(passed.min(config.period));
        let heartbeat = heartbeat(node);
        if self.heartbeat != heartbeat {
            self.heartbeat = heartbeat;
            self.silence = Duration::ZERO;
        }
        let renewed = lease.and_then(|l| l.spec.renew_time);
        if renewed > self.renewed {
            self.renewed = renewed;
            self.silence = Duration::ZERO;
        }
    }

    /// Whether it has been silent for too long.
    pub fn silent(&self, config: &NodeMonitorConfig) -> bool {
        self.silence > if self.heartbeat.is_some() { config.grace } else { config.startup_grace }
    }
}

/// The conditions that say that nothing is known of a node, as a list to be merged; `None` when it says so already. `now` is
/// in whole seconds.
pub fn unknown(node: &Node, now: Timestamp) -> Option<Value> {
    if ready_status(node) == Some("Unknown") {
        return None;
    }
    let present = |kind: &str| node.status.conditions.iter().find(|c| c.kind == kind);
    let lost = POSTED.into_iter().filter_map(|kind| match present(kind) {
        Some(condition) if condition.status == "Unknown" => None,
        Some(_) => Some(json!({
            "type": kind,
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": now,
        })),
        None => Some(json!({
            "type": kind,
            "status": "Unknown",
            "reason": "NodeStatusNeverUpdated",
            "message": "Kubelet never posted node status.",
            "lastHeartbeatTime": node.metadata.creation_timestamp,
            "lastTransitionTime": now,
        })),
    });
    Some(lost.collect())
}
