//! How many watches hear of a write, for the estimate of its work.

use crate::route::Target;
use kaji_flowcontrol::ResourceDigest;
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
};

/// Watches by what they watch. Bounded by the watches there are.
#[derive(Default)]
pub struct Watches {
    hasher: RandomState,
    /// Keyed by hash alone: numbers that are a little too high now and then do no harm.
    counts: Mutex<HashMap<u64, u32>>,
}

/// One watch, counted until dropped.
pub struct Watching {
    watches: Arc<Watches>,
    key: Option<u64>,
}

impl Watches {
    fn key(&self, group: &str, resource: &str, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((group, resource, namespace, name))
    }

    /// Counts a watch. One that only follows the pods of a node is not counted: few writes are about them.
    pub fn register(watches: &Arc<Watches>, target: &Target, query: &[(String, String)]) -> Watching {
        let of_node = target.resource == "pods"
            && query.iter().filter(|(k, _)| k == "fieldSelector").any(|(_, v)| {
                v.split(',').any(|term| {
                    let value = term.strip_prefix("spec.nodeName=");
                    value.is_some_and(|v| !v.trim_start_matches('=').is_empty())
                })
            });
        let key =
            (!of_node).then(|| watches.key(&target.group, &target.resource, &target.namespace, &target.name));
        if let Some(key) = key {
            *watches.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
        }
        Watching { watches: watches.clone(), key }
    }

    /// How many watch all objects of the target's kind, those of its namespace, or itself.
    pub fn interested(&self, target: &ResourceDigest<'_>) -> u64 {
        let ResourceDigest { group, resource, namespace, name, .. } = *target;
        let mut keys = [Some(self.key(group, resource, "", "")), None, None];
        if !namespace.is_empty() {
            keys[1] = Some(self.key(group, resource, namespace, ""));
        }
        if !name.is_empty() {
            keys[2] = Some(self.key(group, resource, namespace, name));
        }
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().flatten().filter_map(|key| counts.get(key).copied()).map(u64::from).sum()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut counts = self.watches.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_heard_by_those_who_watch_them() {
        let watches = Arc::new(Watches::default());
        let target = |namespace: &str, name: &str| Target {
            resource: "pods".into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Target::default()
        };
        let node = vec![("fieldSelector".to_owned(), "spec.nodeName=n1".to_owned())];
        let all = Watches::register(&watches, &target("", ""), &[]);
        let _mine = Watches::register(&watches, &target("a", ""), &[]);
        let _other = Watches::register(&watches, &target("b", ""), &[]);
        let _kubelet = Watches::register(&watches, &target("", ""), &node);
        let pod = ResourceDigest {
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            namespace: "a",
            name: "p",
        };
        assert_eq!(watches.interested(&pod), 2);
        drop(all);
        assert_eq!(watches.interested(&pod), 1);
    }
}
