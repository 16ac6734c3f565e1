//! The decision about one object: pure, over the graph and the responses of the server so far.
//!
//! Invariants:
//! - Nothing is deleted before the server has returned the object, and has responded for each of its owners (or the owner is
//!   in the graph's set of absent ones).
//! - Every write carries the uid and resourceVersion of the object it was decided for.

use super::graph::{Coordinates, Graph, Identity, Uid};
use kaji_runtime::OwnerRef;
use std::{collections::HashMap, sync::Arc};

/// `foregroundDeletion`
pub const FOREGROUND: &str = "foregroundDeletion";
/// `orphan`
pub const ORPHAN: &str = "orphan";

/// An object's metadata as the server has it now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Live {
    /// Uid.
    pub uid: String,
    /// For preconditions.
    pub resource_version: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// Owners.
    pub owners: Vec<OwnerRef>,
}

impl Live {
    fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|f| f == finalizer)
    }
}

/// The responses of the server for one decision: `None` in a value means that the object does not exist.
#[derive(Default, Debug)]
pub struct Facts {
    /// The object.
    pub item: Option<Option<Live>>,
    /// Its owners.
    pub owners: HashMap<Coordinates, Option<Live>>,
}

/// Whether a kind's objects live in namespaces; `None` when no such kind is served.
pub type Scope<'a> = &'a dyn Fn(&str, &str) -> Option<bool>;

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Nothing.
    Done,
    /// Decide again later: an owner's kind is not served (yet), or no watch has shown the object yet.
    Later,
    /// Read the object.
    LookUp(Identity),
    /// Read an owner.
    LookUpOwner(Identity),
    /// Mark the object as absent in the graph.
    Absent(Identity),
    /// Check these dependents, which block the object's deletion.
    Push(Vec<Uid>),
    /// Remove a finalizer.
    Release {
        /// The object.
        item: Identity,
        /// As it is.
        live: Live,
        /// Which.
        finalizer: &'static str,
    },
    /// Set the object's owners.
    SetOwners {
        /// The object.
        item: Identity,
        /// As it is.
        live: Live,
        /// What remains.
        owners: Vec<OwnerRef>,
    },
    /// Delete the object.
    Delete {
        /// The object.
        item: Identity,
        /// As it is.
        live: Live,
        /// `Foreground`, `Background`, `Orphan`
        policy: &'static str,
        /// Before that, unblock its owners: it is part of a cycle.
        unblock: bool,
    },
}

enum State {
    Solid,
    Dangling,
    Waiting,
}

/// Decides about one object.
pub fn decide(graph: &Graph, uid: &str, facts: &Facts, scope: Scope<'_>) -> Next {
    let Some(node) = graph.get(uid) else { return Next::Done };
    if node.deleting && !node.foreground {
        return Next::Done;
    }
    let item = node.identity.clone();
    let live = match &facts.item {
        None => return Next::LookUp(item),
        Some(None) => return Next::Absent(item),
        Some(Some(live)) if live.uid != *item.at.uid => return Next::Absent(item),
        Some(Some(live)) => live,
    };
    if node.foreground {
        return foreground(graph, uid, item, live);
    }
    if live.owners.is_empty() {
        return settled(graph, uid);
    }
    let (mut solid, mut rest, mut waiting) = (vec![], 0, false);
    for owner in &live.owners {
        match classify(graph, &item, owner, facts, scope) {
            Ok(State::Solid) => solid.push(owner.clone()),
            Ok(State::Dangling) => rest += 1,
            Ok(State::Waiting) => {
                rest += 1;
                waiting = true;
            }
            Err(next) => return *next,
        }
    }
    let live = live.clone();
    if !solid.is_empty() {
        return if rest == 0 { settled(graph, uid) } else { Next::SetOwners { item, live, owners: solid } };
    }
    if waiting && !node.dependents.is_empty() {
        let unblock = node.dependents.iter().any(|d| graph.get(d).is_some_and(|n| n.foreground))
            && live.owners.iter().any(|o| o.block_owner_deletion);
        return Next::Delete { item, live, policy: "Foreground", unblock };
    }
    let policy = match () {
        () if live.has(ORPHAN) => "Orphan",
        () if live.has(FOREGROUND) => "Foreground",
        () => "Background",
    };
    Next::Delete { item, live, policy, unblock: false }
}

/// Nothing to do, unless the node is virtual: it must not stay in the graph for ever.
fn settled(graph: &Graph, uid: &str) -> Next {
    if graph.get(uid).is_some_and(|n| n.virtual_) { Next::Later } else { Next::Done }
}

/// The object waits for its dependents.
fn foreground(graph: &Graph, uid: &str, item: Identity, live: &Live) -> Next {
    let Some(node) = graph.get(uid) else { return Next::Done };
    let blocks = |dependent: &&Uid| {
        graph.get(dependent).is_some_and(|n| n.owners.iter().any(|o| &*o.at.uid == uid && o.blocks))
    };
    let blocking: Vec<&Uid> = node.dependents.iter().filter(blocks).collect();
    if blocking.is_empty() {
        return if live.has(FOREGROUND) {
            Next::Release { item, live: live.clone(), finalizer: FOREGROUND }
        } else {
            Next::Done
        };
    }
    let pushed = blocking.into_iter().filter(|d| graph.get(d).is_some_and(|n| !n.foreground));
    Next::Push(pushed.cloned().collect())
}

fn classify(
    graph: &Graph,
    item: &Identity,
    owner: &OwnerRef,
    facts: &Facts,
    scope: Scope<'_>,
) -> Result<State, Box<Next>> {
    let at = Arc::new(coordinates(owner));
    for namespace in ["".into(), item.namespace.clone()] {
        if graph.is_absent(&Identity { at: at.clone(), namespace }) {
            return Ok(State::Dangling);
        }
    }
    let Some(namespaced) = scope(&owner.api_version, &owner.kind) else { return Err(Box::new(Next::Later)) };
    if namespaced && item.namespace.is_empty() {
        // A cluster-scoped object cannot have a namespaced owner; a retry would not change that.
        return Err(Box::new(Next::Done));
    }
    match facts.owners.get(&*at) {
        None => {
            let namespace = if namespaced { item.namespace.clone() } else { "".into() };
            Err(Box::new(Next::LookUpOwner(Identity { at, namespace })))
        }
        Some(Some(live)) if live.uid == owner.uid => {
            Ok(if live.deleting && live.has(FOREGROUND) { State::Waiting } else { State::Solid })
        }
        Some(_) => Ok(State::Dangling),
    }
}

/// The coordinates in an owner reference.
pub fn coordinates(owner: &OwnerRef) -> Coordinates {
    Coordinates {
        kind: owner.kind.as_str().into(),
        api_version: owner.api_version.as_str().into(),
        name: owner.name.as_str().into(),
        uid: owner.uid.as_str().into(),
    }
}
