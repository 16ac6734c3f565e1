//! How many watches hear of a write, for the estimate of its work.

use crate::route::{RequestInfo, Target};
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
    pub fn register(watches: &Arc<Watches>, target: &Target, info: &RequestInfo) -> Watching {
        let fields = info.query.field_selector().unwrap_or_default();
        let node = fields.and_then(|s| s.requires_exact("spec.nodeName")).unwrap_or_default();
        let counted = target.resource != "pods" || node.is_empty();
        let Target { group, resource, namespace, .. } = target;
        let key = counted.then(|| watches.key(group, resource, namespace, info.name()));
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
    use http::Method;
    use kaji_meta::Query;

    #[test]
    fn writes_are_heard_by_those_who_watch_them() {
        let watches = Arc::new(Watches::default());
        let watch = |path: &str, query: &str| {
            let info = RequestInfo::parse(&Method::GET, path, Query::parse(query)).unwrap();
            Watches::register(&watches, info.resource.as_ref().unwrap(), &info)
        };
        let all = watch("/api/v1/pods", "watch=1");
        let _mine = watch("/api/v1/namespaces/a/pods", "watch=1");
        let _other = watch("/api/v1/namespaces/b/pods", "watch=1");
        let _kubelet = watch("/api/v1/pods", "watch=1&fieldSelector=spec.nodeName%3Dn1");
        let _another = watch("/api/v1/namespaces/a/pods", "watch=1&fieldSelector=metadata.name%3Dq");
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
