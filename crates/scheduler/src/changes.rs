//! What informers have reported since the loop looked last: pods and nodes by key, other changes in order.
//!
//! Invariants:
//! - Several changes of one object become one, from the state that the loop has seen to the newest.
//! - At most [`OTHERS`] changes of other objects are kept; beyond that the loop treats everything as changed.

use crate::framework::Event;
use kaji_runtime::{
    Key,
    objects::{Node, Pod},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Notify;

/// Changes of objects beside pods and nodes that are kept.
const OTHERS: usize = 1024;

/// An object before and after; both are present if it was replaced.
pub type Pair<T> = (Option<Arc<T>>, Option<Arc<T>>);

/// What has changed.
#[derive(Default)]
pub struct Batch {
    /// Pods.
    pub pods: BTreeMap<Key, Pair<Pod>>,
    /// Nodes.
    pub nodes: BTreeMap<Key, Pair<Node>>,
    /// Other objects.
    pub others: Vec<Event>,
    /// Changes of other objects were dropped.
    pub overflow: bool,
}

/// Collects changes on the tasks of informers.
#[derive(Default)]
pub struct Changes {
    batch: Mutex<Batch>,
    wake: Notify,
}

impl Changes {
    fn note(&self, note: impl FnOnce(&mut Batch)) {
        note(&mut self.batch.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_one();
    }

    /// A pod's change.
    pub fn pod(&self, key: Key, change: Pair<Pod>) {
        self.note(|batch| merge(&mut batch.pods, key, change));
    }

    /// A node's change.
    pub fn node(&self, key: Key, change: Pair<Node>) {
        self.note(|batch| merge(&mut batch.nodes, key, change));
    }

    /// A change of another object.
    pub fn other(&self, event: Event) {
        self.note(|batch| {
            if batch.others.len() < OTHERS {
                batch.others.push(event);
            } else {
                batch.overflow = true;
            }
        });
    }

    /// What has changed since the last call.
    pub fn take(&self) -> Batch {
        std::mem::take(&mut *self.batch.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resolves when something has changed since the last call of this.
    pub async fn changed(&self) {
        self.wake.notified().await;
    }
}

fn merge<T>(changes: &mut BTreeMap<Key, Pair<T>>, key: Key, (old, new): Pair<T>) {
    changes.entry(key).and_modify(|known| known.1.clone_from(&new)).or_insert((old, new));
}
