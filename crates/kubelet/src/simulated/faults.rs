//! Simulated nodes that are lost and come back, by the annotation `sim.kaji.dev/down` of their Node:
//!
//! | value | meaning |
//! |---|---|
//! | `crashed`, `true`, empty | the machine is off: nothing is reported, and what ran is lost when it comes back |
//! | `unreachable` | nothing is reported, and what runs goes on |
//! | `false`, or no annotation | the node is up |
//!
//! Invariant: a node that is down writes nothing.

use super::behaviour::PREFIX;
use kaji_runtime::objects::Node;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// How a node is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeFailure {
    /// Its machine is off.
    Crashed,
    /// Nothing reaches it.
    Unreachable,
}

/// What a Node's annotation asks for.
#[must_use]
pub fn of(node: &Node) -> Option<NodeFailure> {
    match node.metadata.annotations.get(&format!("{PREFIX}down"))?.as_str() {
        "false" => None,
        "unreachable" => Some(NodeFailure::Unreachable),
        _ => Some(NodeFailure::Crashed),
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    down: Option<NodeFailure>,
    boots: u32,
}

/// Which nodes are down, and how often each was started.
#[derive(Debug, Default)]
pub struct Faults(Mutex<HashMap<String, State>>);

/// What has happened to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeChange {
    /// Nothing.
    None,
    /// What runs there is lost.
    Crashed,
    /// Nothing reaches it any more.
    Lost,
    /// It is up again.
    Returned,
}

impl Faults {
    /// Takes notice of a Node.
    pub fn notice(&self, node: &Node) -> NodeChange {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let down = of(node);
        let known = states.get(&node.metadata.name).copied().unwrap_or_default();
        if down == known.down {
            return NodeChange::None;
        }
        let crashes = down == Some(NodeFailure::Crashed);
        let state = State { down, boots: known.boots + u32::from(crashes) };
        states.insert(node.metadata.name.clone(), state);
        match down {
            Some(NodeFailure::Crashed) => NodeChange::Crashed,
            Some(NodeFailure::Unreachable) => NodeChange::Lost,
            None => NodeChange::Returned,
        }
    }

    /// Forgets a node that is gone.
    pub fn forget(&self, node: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }

    /// Whether a node is down.
    #[must_use]
    pub fn down(&self, node: &str) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(node)
            .is_some_and(|state| state.down.is_some())
    }

    /// How often a node was started anew.
    #[must_use]
    pub fn boots(&self, node: &str) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(node).map_or(0, |state| state.boots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_is_lost_and_comes_back() {
        let faults = Faults::default();
        let values = [None, Some("true"), Some(""), Some("false"), Some("unreachable"), None];
        let seen: Vec<String> = values
            .iter()
            .map(|value| {
                let annotations = value.map(|v| json!({"sim.kaji.dev/down": v}));
                let node =
                    json!({"metadata": {"name": "a", "annotations": annotations.unwrap_or(json!({}))}});
                let change = faults.notice(&serde_json::from_value(node).unwrap());
                format!("{value:?}: {change:?}, down {}, boots {}", faults.down("a"), faults.boots("a"))
            })
            .collect();
        expect_test::expect![[r#"
            None: None, down false, boots 0
            Some("true"): Crashed, down true, boots 1
            Some(""): None, down true, boots 1
            Some("false"): Returned, down false, boots 1
            Some("unreachable"): Lost, down true, boots 1
            None: Returned, down false, boots 1"#]]
        .assert_eq(&seen.join("\n"));
    }
}
