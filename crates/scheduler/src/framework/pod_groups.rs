//! Which pods belong to which group, as far as the loop knows: those of its queue and its cache.
//!
//! Invariants: a pod that is over belongs to none; a pod is added before it enters the queue.

use kaji_runtime::{Key, objects::Pod};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

type Groups = HashMap<Key, BTreeMap<Key, Arc<Pod>>>;

/// The pods of groups. Clones share them.
#[derive(Clone, Default)]
pub struct PodGroups(Arc<Mutex<Groups>>);

impl PodGroups {
    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod came, changed or is gone.
    pub fn update(&self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        let group = |pod: &&Arc<Pod>| pod.spec.scheduling_group.is_some();
        let (old, new) = (old.filter(group), new.filter(group));
        if old.is_none() && new.is_none() {
            return;
        }
        let mut groups = self.groups();
        if let Some((group, old)) = old.and_then(|old| Some((old.scheduling_group()?, old)))
            && let Some(pods) = groups.get_mut(&group)
        {
            pods.remove(&old.metadata.key());
            if pods.is_empty() {
                groups.remove(&group);
            }
        }
        let new = new.filter(|new| !new.finished());
        if let Some((group, new)) = new.and_then(|new| Some((new.scheduling_group()?, new))) {
            groups.entry(group).or_default().insert(new.metadata.key(), new.clone());
        }
    }

    /// How many pods a group has.
    pub fn count(&self, group: &Key) -> usize {
        self.groups().get(group).map_or(0, BTreeMap::len)
    }

    /// The pods of a group, by name.
    pub fn pods(&self, group: &Key) -> Vec<Arc<Pod>> {
        self.groups().get(group).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }
}
