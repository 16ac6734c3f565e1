//! What all pre-filters said: the nodes that are worth filtering.

use super::super::{NodeNames, Status};
use crate::snapshot::{NodeInfo, Snapshot};
use std::{collections::BTreeSet, sync::Arc};

/// The outcome of all pre-filters.
pub struct Prepared {
    /// The only nodes that are worth filtering, if not all are.
    pub nodes: Option<NodeNames>,
    /// The plugins that said so.
    pub plugins: BTreeSet<&'static str>,
}

/// Names as Go prints a slice: `[A B]`.
fn list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

impl Prepared {
    /// What is said when the plugins have left no node.
    pub(super) fn no_node_left(&self) -> Status {
        let names: Vec<&str> = self.plugins.iter().copied().collect();
        match names.as_slice() {
            [one] => Status::unresolvable(format!("node(s) didn't satisfy plugin {one}")),
            _ => Status::unresolvable(format!(
                "node(s) didn't satisfy plugin(s) {} simultaneously",
                list(&names)
            )),
        }
    }

    /// What is said of the nodes that are not worth filtering.
    pub fn others(&self) -> Option<Status> {
        self.nodes.as_ref()?;
        let names: Vec<&str> = self.plugins.iter().copied().collect();
        Some(Status::unresolvable(format!("node(s) didn't satisfy plugin(s) {}", list(&names))))
    }

    /// The nodes to filter that there are, in the order of the snapshot from a place on.
    pub fn candidates<'a>(&'a self, snapshot: &'a Snapshot, from: usize) -> Candidates<'a> {
        let nodes = self
            .nodes
            .as_ref()
            .map(|names| names.iter().filter_map(|name| snapshot.node(name)).cloned().collect::<Vec<_>>());
        let len = nodes.as_ref().map_or(snapshot.len(), Vec::len);
        Candidates { snapshot, nodes, from, len }
    }
}

/// The nodes to filter.
pub struct Candidates<'a> {
    snapshot: &'a Snapshot,
    nodes: Option<Vec<Arc<NodeInfo>>>,
    from: usize,
    len: usize,
}

impl Candidates<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One of them.
    pub fn nth(&self, place: usize) -> Option<&Arc<NodeInfo>> {
        let place = (self.from + place) % self.len.max(1);
        match &self.nodes {
            Some(nodes) => nodes.get(place),
            None => self.snapshot.nth(place),
        }
    }
}
