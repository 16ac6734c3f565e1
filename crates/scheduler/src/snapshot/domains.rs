//! The domains of a topology key: which nodes have which value of a label, as a column of numbers.
//!
//! Invariant: two nodes have the same number if and only if they have the same value of the label.

use super::NodeInfo;
use std::{collections::HashMap, sync::Arc};

/// A node without the label.
pub const NO_DOMAIN: u32 = u32::MAX;

/// The values of one label by the slots of nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Domains {
    by_slot: Vec<u32>,
    values: Vec<Box<str>>,
    /// Some node does not have the label.
    incomplete: bool,
}

impl Domains {
    /// Of these nodes.
    pub fn new<'a>(key: &str, nodes: impl Iterator<Item = &'a Arc<NodeInfo>>) -> Self {
        let mut domains = Domains::default();
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        for node in nodes {
            if domains.by_slot.len() <= node.slot {
                domains.by_slot.resize(node.slot + 1, NO_DOMAIN);
            }
            let Some(value) = node.label(key) else {
                domains.incomplete = true;
                continue;
            };
            let next = u32::try_from(numbers.len()).unwrap_or(NO_DOMAIN);
            domains.by_slot[node.slot] = *numbers.entry(value).or_insert_with(|| {
                domains.values.push(value.into());
                next
            });
        }
        domains
    }

    /// The number of a node's domain, below [`Domains::len`], if it has the label.
    pub fn of(&self, slot: usize) -> Option<usize> {
        let number = *self.by_slot.get(slot)?;
        (number != NO_DOMAIN).then_some(number as usize)
    }

    /// Whether every node has the label.
    pub fn is_complete(&self) -> bool {
        !self.incomplete
    }

    /// The numbers by slot, [`NO_DOMAIN`] for nodes without the label.
    pub fn by_slot(&self) -> &[u32] {
        &self.by_slot
    }

    /// How many domains there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether no node has the label.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The label's value in a domain.
    pub fn value(&self, domain: usize) -> &str {
        self.values.get(domain).map_or("", |value| value)
    }

    /// Sums numbers of nodes by their domain.
    pub fn sum(&self, counts: &[u32]) -> Vec<i64> {
        let mut sums = vec![0; self.len()];
        for (domain, count) in self.by_slot.iter().zip(counts) {
            if let Some(sum) = sums.get_mut(*domain as usize) {
                *sum += i64::from(*count);
            }
        }
        sums
    }
}
