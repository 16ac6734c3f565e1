//! Whether an object is the one that was asked for, or hangs on it by owner references.
//!
//! Invariant: what is remembered is bounded; what is forgotten is looked up again.

use super::Event;
use crate::{
    Api,
    discovery::{Discovery, Resource},
    tree::{DEPTH, Dependents},
};
use kaji_meta::object::{self, str_at};
use serde_json::Value;
use std::collections::HashSet;

/// Objects that are remembered, members and others.
const REMEMBERED: usize = 50_000;

/// An object, and all that it owns.
pub struct Family {
    resource: Resource,
    namespace: String,
    name: String,
    /// Uids of members.
    members: HashSet<String>,
    /// Uids of others that events were about.
    others: HashSet<String>,
}

impl Family {
    /// Of an object, which may not exist yet, or any more.
    pub fn new(resource: Resource, namespace: &str, name: &str, present: Option<&Value>) -> Family {
        let members = present.map(|object| object::uid(object).to_owned()).into_iter().collect();
        Family {
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            members,
            others: HashSet::new(),
        }
    }

    /// The resource of the object.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The object's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Adds all dependents of members.
    pub fn add(&mut self, dependents: &Dependents) {
        let mut pending: Vec<String> = self.members.iter().cloned().collect();
        while let Some(uid) = pending.pop() {
            for dependent in dependents.of(&uid) {
                if self.members.insert(object::uid(dependent).to_owned()) {
                    pending.push(object::uid(dependent).to_owned());
                }
            }
        }
    }

    /// Whether an event is about a member that is known.
    pub fn has(&self, event: &Event) -> bool {
        let of = &event.regarding;
        self.is_root(&of.api_version, &of.kind, &of.namespace, &of.name) || self.members.contains(&of.uid)
    }

    /// Whether an event is about a member; objects that are not known are looked up with their owners.
    pub async fn takes(&mut self, api: &dyn Api, discovery: &Discovery, event: &Event) -> bool {
        let of = &event.regarding;
        if self.has(event) {
            if !of.uid.is_empty() {
                self.remember([of.uid.clone()]);
            }
            return true;
        }
        if of.uid.is_empty() || self.others.contains(&of.uid) {
            return false;
        }
        let mut path = vec![];
        let belongs = self.descends(api, discovery, event, &mut path).await;
        if belongs {
            self.remember(path);
        } else {
            if self.others.len() >= REMEMBERED {
                self.others.clear();
            }
            self.others.insert(of.uid.clone());
        }
        belongs
    }

    fn remember(&mut self, uids: impl IntoIterator<Item = String>) {
        if self.members.len() >= REMEMBERED {
            self.members.clear();
        }
        self.members.extend(uids);
    }

    /// Goes from an event's object to its controller, and so on. `path` gets the uids on the way.
    async fn descends(
        &self,
        api: &dyn Api,
        discovery: &Discovery,
        event: &Event,
        path: &mut Vec<String>,
    ) -> bool {
        let of = event.regarding.clone();
        let (mut api_version, mut kind, mut name, mut uid) = (of.api_version, of.kind, of.name, of.uid);
        for _ in 0..DEPTH {
            let Some(resource) = discovery.of_kind(&api_version, &kind) else { return false };
            let namespace = if resource.namespaced { of.namespace.as_str() } else { "" };
            // One that cannot be read, or is another one by now, tells nothing of its owners.
            let Ok(found) = api.get(&resource.path(namespace, &name)).await else { return false };
            if object::uid(&found) != uid {
                return false;
            }
            path.push(uid);
            let references = object::owner_references(&found);
            let is_member = |owner: &Value| {
                self.members.contains(str_at(owner, &["uid"]))
                    || self.is_root(
                        str_at(owner, &["apiVersion"]),
                        str_at(owner, &["kind"]),
                        &of.namespace,
                        str_at(owner, &["name"]),
                    )
            };
            if references.iter().any(is_member) {
                return true;
            }
            let Some(owner) = object::controller_of(&found).or_else(|| references.first()) else {
                return false;
            };
            let text = |member: &str| str_at(owner, &[member]).to_owned();
            (api_version, kind, name, uid) = (text("apiVersion"), text("kind"), text("name"), text("uid"));
        }
        false
    }

    /// Whether this is the object that was asked for, by its name: it may be made anew.
    fn is_root(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> bool {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let same_place = self.namespace.is_empty() || self.namespace == namespace;
        kind == self.resource.kind && name == self.name && group == self.resource.group && same_place
    }
}
