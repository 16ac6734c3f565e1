//! Watchers found by the events that may concern them.
//!
//! Invariants: a live watcher is in exactly one place, that of its interest. An event looks at the places that its object
//! (before and after) belongs to, and at no other watcher. The index only narrows down: whether a watcher gets the event is
//! decided by its filter.

use super::{Fields, entry::Entry, event::Event, filter::Interest, watcher::Watcher};
use std::{collections::HashMap, hash::Hash, sync::Arc};

type List = Vec<Arc<Watcher>>;

#[derive(Debug, Default)]
pub(super) struct Index {
    all: List,
    namespaces: HashMap<Box<str>, List>,
    keys: HashMap<Box<str>, List>,
    /// By position of the field, then by value.
    fields: HashMap<usize, HashMap<Box<str>, List>>,
    labels: HashMap<Box<str>, HashMap<Box<str>, List>>,
}

fn remove_from(list: &mut List, watcher: &Arc<Watcher>) {
    if let Some(at) = list.iter().position(|w| Arc::ptr_eq(w, watcher)) {
        list.swap_remove(at);
    }
}

fn remove_in<K: Hash + Eq>(map: &mut HashMap<K, List>, key: &K, watcher: &Arc<Watcher>) {
    if let Some(list) = map.get_mut(key) {
        remove_from(list, watcher);
        if list.is_empty() {
            map.remove(key);
        }
    }
}

impl Index {
    pub fn add(&mut self, watcher: Arc<Watcher>) {
        match &watcher.interest {
            Interest::All => &mut self.all,
            Interest::Namespace(ns) => self.namespaces.entry(ns.clone()).or_default(),
            Interest::Key(key) => self.keys.entry(key.clone()).or_default(),
            Interest::Field(at, value) => {
                self.fields.entry(*at).or_default().entry(value.clone()).or_default()
            }
            Interest::Label(key, value) => {
                self.labels.entry(key.clone()).or_default().entry(value.clone()).or_default()
            }
        }
        .push(watcher);
    }

    /// Does nothing when it is not there.
    pub fn remove(&mut self, watcher: &Arc<Watcher>) {
        match &watcher.interest {
            Interest::All => remove_from(&mut self.all, watcher),
            Interest::Namespace(ns) => remove_in(&mut self.namespaces, ns, watcher),
            Interest::Key(key) => remove_in(&mut self.keys, key, watcher),
            Interest::Field(at, value) => {
                if let Some(values) = self.fields.get_mut(at) {
                    remove_in(values, value, watcher);
                    if values.is_empty() {
                        self.fields.remove(at);
                    }
                }
            }
            Interest::Label(key, value) => {
                if let Some(values) = self.labels.get_mut(key) {
                    remove_in(values, value, watcher);
                    if values.is_empty() {
                        self.labels.remove(key);
                    }
                }
            }
        }
    }

    /// Calls `visit` once for each watcher that the event may concern.
    pub fn concerned(&self, event: &Event, fields: &Fields, mut visit: impl FnMut(&Arc<Watcher>)) {
        let entry = &event.entry;
        self.all.iter().for_each(&mut visit);
        let by_name = [self.namespaces.get(entry.namespace()), self.keys.get(&*entry.key)];
        by_name.into_iter().flatten().flatten().for_each(&mut visit);
        for (at, values) in &self.fields {
            let missing = fields.list.get(*at).map_or("", |f| f.missing);
            let value = |entry: &'_ Entry| entry.field(*at).unwrap_or(missing).to_owned();
            let new = value(entry);
            values.get(&*new).into_iter().flatten().for_each(&mut visit);
            if let Some(old) = event.previous.as_deref().map(value).filter(|old| *old != new) {
                values.get(&*old).into_iter().flatten().for_each(&mut visit);
            }
        }
        if self.labels.is_empty() {
            return;
        }
        for (key, value) in entry.labels() {
            let found = self.labels.get(key).and_then(|values| values.get(value));
            found.into_iter().flatten().for_each(&mut visit);
        }
        for (key, value) in event.previous.iter().flat_map(|p| p.labels()) {
            let found = self.labels.get(key).and_then(|values| values.get(value));
            if let Some(list) = found.filter(|_| entry.label(key) != Some(value)) {
                list.iter().for_each(&mut visit);
            }
        }
    }

    /// As many watchers as there are, but no more than so many, in no order.
    pub fn some(&self, most: usize) -> Vec<Arc<Watcher>> {
        let nested = self.fields.values().flat_map(HashMap::values);
        let labels = self.labels.values().flat_map(HashMap::values);
        let flat = self.namespaces.values().chain(self.keys.values());
        let listed = flat.chain(nested).chain(labels).flatten();
        self.all.iter().rev().chain(listed).take(most).cloned().collect()
    }

    /// Every watcher, leaving none.
    pub fn take_all(&mut self) -> Vec<Arc<Watcher>> {
        let all = std::mem::take(self);
        let nested = all.fields.into_values().flat_map(HashMap::into_values);
        let labels = all.labels.into_values().flat_map(HashMap::into_values);
        let flat = all.namespaces.into_values().chain(all.keys.into_values());
        all.all.into_iter().chain(flat.chain(nested).chain(labels).flatten()).collect()
    }
}
