//! What many pods have in common, kept once: values with the number of pods that have each, and the nodes of an object.
//!
//! Invariants: equal values that are acquired are one allocation; a value that was released as often as it was acquired is not
//! there. Copies are cheap and independent.

use imbl::OrdMap;
use std::sync::Arc;

/// Values and how often each is in use.
pub(super) struct Shared<T: ?Sized>(OrdMap<Arc<T>, u32>);

impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Shared(OrdMap::new())
    }
}

impl<T: ?Sized + Ord> Shared<T>
where
    Arc<T>: From<Box<T>>,
{
    /// The value, or an equal one that is in use.
    pub fn acquire(&mut self, value: Box<T>) -> Arc<T> {
        let known = self.0.get_key_value(&*value).map(|(known, count)| (known.clone(), *count));
        let (value, count) = known.unwrap_or_else(|| (value.into(), 0));
        self.0.insert(value.clone(), count + 1);
        value
    }

    /// One use has ended.
    pub fn release(&mut self, value: &Arc<T>) {
        match self.0.get(&**value).copied() {
            Some(count) if count > 1 => drop(self.0.insert(value.clone(), count - 1)),
            _ => drop(self.0.remove(&**value)),
        }
    }

    /// Whether nothing is in use.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Nodes, with the number of pods of each that need an object.
#[derive(Clone)]
pub(super) enum Nodes {
    /// One node, as for what is a single pod's: a map would take ten times the memory.
    One(Arc<str>, u32),
    /// Any number of nodes.
    Many(OrdMap<Arc<str>, u32>),
}

impl Nodes {
    /// One more pod of a node needs it.
    pub fn add(&mut self, node: &Arc<str>) {
        match self {
            Nodes::One(known, count) if known == node => *count += 1,
            Nodes::One(known, count) => {
                *self = Nodes::Many(OrdMap::from_iter([(known.clone(), *count), (node.clone(), 1)]));
            }
            Nodes::Many(nodes) => *nodes.entry(node.clone()).or_insert(0) += 1,
        }
    }

    /// A pod of a node needs it no longer. Whether any does.
    pub fn remove(&mut self, node: &str) -> bool {
        match self {
            Nodes::One(known, count) => {
                if **known == *node {
                    *count = count.saturating_sub(1);
                }
                *count > 0
            }
            Nodes::Many(nodes) => {
                let left = nodes.get(node).map_or(0, |count| count.saturating_sub(1));
                match nodes.get_mut(node) {
                    Some(count) if left > 0 => *count = left,
                    _ => drop(nodes.remove(node)),
                }
                !nodes.is_empty()
            }
        }
    }

    /// Whether a pod of a node needs it.
    pub fn has(&self, node: &str) -> bool {
        match self {
            Nodes::One(known, _) => **known == *node,
            Nodes::Many(nodes) => nodes.contains_key(node),
        }
    }
}
