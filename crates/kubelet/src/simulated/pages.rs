//! `/metrics/resource` of simulated nodes that have no listener, for the server in their process.
//!
//! Invariant: a node that is down shows nothing.

use super::{faults, metrics, usage::Meters};
use jiff::Timestamp;
use kaji_meta::Clock;
use kaji_runtime::objects::{Node, Pod};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The most nodes with meters.
const MOST: usize = 65_536;

/// The meters of nodes.
pub struct ResourcePages {
    clock: Arc<dyn Clock>,
    began: Timestamp,
    meters: Mutex<HashMap<String, Meters>>,
}

impl ResourcePages {
    /// Meters that begin now.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> ResourcePages {
        ResourcePages { began: clock.now(), clock, meters: Mutex::default() }
    }

    /// The page of a node with its pods; `None` for one that is down.
    pub fn page(&self, node: &Node, pods: &[Pod]) -> Option<String> {
        if faults::of(node).is_some() {
            return None;
        }
        let mut all = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        let meters = all.entry(node.metadata.name.clone()).or_default();
        let since = node.metadata.creation_timestamp.unwrap_or(self.began);
        Some(metrics::page(since, pods.iter(), meters, self.clock.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_runtime::VirtualClock;
    use serde_json::json;

    #[test]
    fn a_node_shows_what_its_pods_use_unless_it_is_down() {
        let pages = ResourcePages::new(Arc::new(VirtualClock::default()));
        let node = |annotations| {
            let metadata =
                json!({"name": "a", "annotations": annotations, "creationTimestamp": "2026-01-01T00:00:00Z"});
            serde_json::from_value::<Node>(json!({"metadata": metadata})).unwrap()
        };
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"sim.kaji.dev/memory-usage": "1Gi"}},
            "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
        });
        let pods = [serde_json::from_value::<Pod>(pod).unwrap()];
        let page = pages.page(&node(json!({})), &pods).unwrap();
        let line = page.lines().find(|line| line.starts_with("pod_memory_working_set_bytes{")).unwrap();
        assert!(line.contains("pod=\"p\"") && line.contains("1.073741824e+09"), "{line}");
        assert_eq!(pages.page(&node(json!({"sim.kaji.dev/down": "crashed"})), &pods), None);
    }
}
