//! Whether a node is silent, or the view of leases only behind: the lease of a node that seems to be lost is read from the server
//! before the node's status says so (`NodeControllerLeaseCircuitBreaker`).
//!
//! Invariants:
//! - A lease that the server has in a newer state than the view says that the view is behind. Then no node's silence counts
//!   until the view shows that state.
//! - A reading holds for the look that follows it, and for no other.

use kaji_runtime::{Client, client::Target, objects::Lease};
use std::collections::{BTreeMap, BTreeSet};

/// A lease as the server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// It was written last at this revision.
    At(u64),
    /// There is none.
    Missing,
    /// It could not be read.
    Unread,
}

impl Live {
    /// Reads the lease of a node.
    pub async fn read(client: &Client, node: &str) -> Live {
        match client.get::<Lease>(&Target::of::<Lease>(Lease::OF_NODES, node).path()).await {
            Ok(lease) => Live::At(revision(&lease)),
            Err(error) if error.not_found() => Live::Missing,
            Err(error) => {
                tracing::warn!(node, %error, "the lease cannot be read: the node stays as it is");
                Live::Unread
            }
        }
    }

    /// Whether it is newer than what the view shows.
    pub fn is_newer_than(self, shown: Option<&Lease>) -> bool {
        matches!(self, Live::At(at) if shown.is_none_or(|shown| revision(shown) < at))
    }
}

fn revision(lease: &Lease) -> u64 {
    lease.metadata.resource_version.parse().unwrap_or_default()
}

/// The leases that are to be read, and those that were.
#[derive(Debug, Default)]
pub struct Readings {
    wanted: BTreeSet<String>,
    read: BTreeMap<String, Live>,
}

impl Readings {
    /// The nodes of which the leases are to be read before the next look.
    pub fn take_wanted(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.wanted)
    }

    /// Takes note of a lease.
    pub fn note(&mut self, node: String, live: Live) {
        self.read.insert(node, live);
    }

    /// Whether some lease is newer than the view shows it; it is read again before the next look.
    pub fn show_stale_view<'a>(&mut self, shown: impl Fn(&str) -> Option<&'a Lease>) -> bool {
        let newer = self.read.iter().filter(|(node, live)| live.is_newer_than(shown(node)));
        let newer: BTreeSet<String> = newer.map(|(node, _)| node.clone()).collect();
        let stale = !newer.is_empty();
        if stale {
            self.read.clear();
            self.wanted = newer;
        }
        stale
    }

    /// What the reading of a node's lease says, if there is one; otherwise, and if it failed, it is read before the next look.
    pub fn of(&mut self, node: &str) -> Option<Live> {
        let live = self.read.get(node).copied();
        if matches!(live, None | Some(Live::Unread)) {
            self.wanted.insert(node.to_owned());
        }
        live
    }

    /// A look is over.
    pub fn expire(&mut self) {
        self.read.clear();
    }
}
