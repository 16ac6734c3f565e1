//! The elements that services need, and what a change of one service changes in the kernel.
//!
//! Invariant: of services that claim the same element with different values, the one with the least name has it, whatever the
//! order in which they came.

use crate::{
    NodeConfig,
    tables::{REJECT, SetId, Spread, skeleton},
};
use kaji_netfilter::{Batch, Chain, Element, ElementData, Family, Verdict};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// An element's set and key.
pub type Slot = (SetId, Vec<u8>);

/// What an element holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Nothing.
    Present,
    /// Leads to the chain.
    Spread(Spread),
    /// Rejects, or drops.
    Refuse {
        /// Drops.
        silently: bool,
    },
    /// An endpoint.
    Endpoint(Vec<u8>),
    /// The destination that stands for a service's port.
    ServicePort(Vec<u8>),
    /// The key is the first of an interval; this is the last.
    Until(Vec<u8>),
}

impl Value {
    fn element(&self, key: &[u8]) -> Element {
        let (last, data) = match self {
            Value::Present => (None, ElementData::None),
            Value::Spread(spread) => (None, ElementData::Verdict(Verdict::Goto(spread.to_string()))),
            Value::Refuse { silently: true } => (None, ElementData::Verdict(Verdict::Drop)),
            Value::Refuse { silently: false } => {
                (None, ElementData::Verdict(Verdict::Goto(REJECT.to_owned())))
            }
            Value::Endpoint(value) | Value::ServicePort(value) => (None, ElementData::Value(value.clone())),
            Value::Until(last) => (Some(last.clone()), ElementData::None),
        };
        Element { key: key.to_vec(), last, data, timeout: None }
    }
}

/// The elements of one service, in one family.
pub type Elements = BTreeMap<Slot, Value>;

/// What has to change in the kernel.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Chains that are new.
    chains: BTreeSet<Spread>,
    removed: BTreeMap<Slot, Value>,
    added: BTreeMap<Slot, Value>,
}

impl Changes {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// Elements that are removed or added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.removed.len() + self.added.len()
    }

    /// Does to `elements` what the transaction does to the kernel's.
    ///
    /// # Errors
    /// The slot of an element that the kernel would refuse to remove or to add.
    pub fn apply(&self, elements: &mut Elements) -> Result<(), Slot> {
        for (slot, value) in &self.removed {
            if elements.remove(slot).as_ref() != Some(value) {
                return Err(slot.clone());
            }
        }
        for (slot, value) in &self.added {
            if elements.insert(slot.clone(), value.clone()).is_some() {
                return Err(slot.clone());
            }
        }
        Ok(())
    }

    /// Whether elements of a set change.
    #[must_use]
    pub fn touches(&self, id: SetId) -> bool {
        let any = |all: &BTreeMap<Slot, Value>| {
            all.range((id, vec![])..).next().is_some_and(|((set, _), _)| *set == id)
        };
        any(&self.removed) || any(&self.added)
    }

    /// The transaction.
    #[must_use]
    pub fn batch(&self, family: Family, node: &NodeConfig) -> Batch {
        let mut batch = Batch::new(family, &node.table);
        write_chains(&mut batch, self.chains.iter(), family, node);
        for id in SetId::ALL {
            let of_set = |all: &BTreeMap<Slot, Value>| -> Vec<Element> {
                let range = (id, vec![])..;
                let own = all.range(range).take_while(|((set, _), _)| *set == id);
                own.map(|((_, key), value)| value.element(key)).collect()
            };
            let spec = id.spec(family);
            batch.delete_elements(&spec, &of_set(&self.removed));
            batch.add_elements(&spec, &of_set(&self.added));
        }
        batch
    }
}

fn write_chains<'a>(
    batch: &mut Batch,
    chains: impl Iterator<Item = &'a Spread> + Clone,
    family: Family,
    node: &NodeConfig,
) {
    for chain in chains.clone() {
        batch.add_chain(&Chain::regular(&chain.to_string()));
    }
    for chain in chains {
        for rule in chain.rules(family, node) {
            batch.add_rule(&chain.to_string(), &rule);
        }
    }
}

/// The elements of all services, in one family.
#[derive(Debug, Default, Clone)]
pub struct Ruleset {
    services: HashMap<Arc<str>, Elements>,
    /// Claims of each slot, by service.
    slots: HashMap<Slot, BTreeMap<Arc<str>, Value>>,
    /// Chains that the kernel has. They stay until the table is written anew: their number is that of the different counts.
    chains: BTreeSet<Spread>,
}

impl Ruleset {
    /// Replaces a service's elements; none for a service that is gone.
    pub fn update(&mut self, service: &str, elements: Elements) -> Changes {
        let service: Arc<str> = match self.services.get_key_value(service) {
            Some((known, _)) => known.clone(),
            None => service.into(),
        };
        let old = self.services.remove(&service).unwrap_or_default();
        let mut changes = Changes::default();
        for slot in old.keys().filter(|slot| !elements.contains_key(*slot)) {
            self.claim(&service, slot, None, &mut changes);
        }
        for (slot, value) in elements.iter().filter(|(slot, value)| old.get(*slot) != Some(value)) {
            self.claim(&service, slot, Some(value.clone()), &mut changes);
        }
        if !elements.is_empty() {
            self.services.insert(service, elements);
        }
        changes
    }

    fn claim(&mut self, service: &Arc<str>, slot: &Slot, value: Option<Value>, changes: &mut Changes) {
        let claims = self.slots.entry(slot.clone()).or_default();
        let before = claims.first_key_value().map(|(_, value)| value.clone());
        match value {
            Some(value) => claims.insert(service.clone(), value),
            None => claims.remove(service),
        };
        let after = claims.first_key_value().map(|(_, value)| value.clone());
        if claims.is_empty() {
            self.slots.remove(slot);
        }
        if before == after {
            return;
        }
        if let Some(before) = before {
            changes.removed.insert(slot.clone(), before);
        }
        if let Some(after) = after {
            if let Value::Spread(spread) = after {
                self.need(spread, changes);
            }
            changes.added.insert(slot.clone(), after);
        }
    }

    fn need(&mut self, spread: Spread, changes: &mut Changes) {
        for chain in spread.needs().into_iter().chain([spread]) {
            if self.chains.insert(chain) {
                changes.chains.insert(chain);
            }
        }
    }

    /// Puts together changes of several services. The later ones are those that were made later.
    pub fn merge(first: &mut Changes, later: Changes) {
        first.chains.extend(later.chains);
        for (slot, value) in later.removed {
            // Of an element that was added before, nothing remains; what was removed before stays removed.
            if first.added.remove(&slot).is_none() {
                first.removed.insert(slot, value);
            }
        }
        first.added.extend(later.added);
    }

    /// The whole table, in place of what is there.
    #[must_use]
    pub fn table(&mut self, family: Family, node: &NodeConfig) -> Batch {
        let mut batch = skeleton(family, node);
        let mut changes = Changes::default();
        self.chains.clear();
        for (slot, claims) in &self.slots {
            let Some((_, value)) = claims.first_key_value() else { continue };
            if let Value::Spread(spread) = value {
                for chain in spread.needs().into_iter().chain([*spread]) {
                    self.chains.insert(chain);
                }
            }
            changes.added.insert(slot.clone(), value.clone());
        }
        write_chains(&mut batch, self.chains.iter(), family, node);
        for id in SetId::ALL {
            let own = changes.added.range((id, vec![])..).take_while(|((set, _), _)| *set == id);
            let elements: Vec<Element> = own.map(|((_, key), value)| value.element(key)).collect();
            batch.add_elements(&id.spec(family), &elements);
        }
        batch
    }

    /// Whether a set has a key.
    #[must_use]
    pub fn contains(&self, slot: &Slot) -> bool {
        self.slots.contains_key(slot)
    }

    /// Services that have elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.services.len()
    }

    /// Whether no service has elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// The effective elements, for tests.
    #[must_use]
    pub fn effective(&self) -> Elements {
        let first = |(slot, claims): (&Slot, &BTreeMap<Arc<str>, Value>)| {
            Some((slot.clone(), claims.first_key_value()?.1.clone()))
        };
        self.slots.iter().filter_map(first).collect()
    }
}
