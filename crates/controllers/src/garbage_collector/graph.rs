//! The graph of owners and dependents, as observed by the watches.
//!
//! Invariants:
//! - A node is keyed by uid. One that only dependents refer to is *virtual* until a watch shows it or the server responds
//!   that it does not exist.
//! - An identity is absent only after its deletion was observed, or the server responded that it does not exist; uids are
//!   never reused, so absence is final.
//! - Changes return the objects to check; nothing is decided here.

use kaji_runtime::intern::Text;
use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

/// A uid.
pub type Uid = Arc<str>;

/// An owner as an owner reference names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coordinates {
    /// `Deployment`
    pub kind: Arc<str>,
    /// `apps/v1`
    pub api_version: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Uid.
    pub uid: Uid,
}

/// An object: coordinates and namespace (`""` for cluster-scoped ones).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Kind, version, name, uid.
    pub at: Arc<Coordinates>,
    /// Namespace.
    pub namespace: Text,
}

impl Identity {
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        let rank =
            |i: &Self| (i.at.kind.clone(), i.at.api_version.clone(), i.namespace.clone(), i.at.name.clone());
        rank(self).cmp(&rank(other))
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = &self.at;
        write!(
            f,
            "[{}/{}, namespace: {}, name: {}, uid: {}]",
            at.api_version, at.kind, self.namespace, at.name, at.uid
        )
    }
}

/// An owner reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The owner.
    pub at: Arc<Coordinates>,
    /// Whether the owner's foreground deletion waits for this object.
    pub blocks: bool,
}

/// An object as a watch shows it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object.
    pub identity: Identity,
    /// Its owners.
    pub owners: Vec<Owner>,
    /// It is being deleted.
    pub deleting: bool,
    /// And waits until its dependents are deleted.
    pub foreground: bool,
    /// And waits until its dependents are orphaned.
    pub orphaning: bool,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// The object.
    pub identity: Identity,
    /// Its owners.
    pub owners: Box<[Owner]>,
    /// The objects that refer to it as an owner. Most objects have none: an empty tree is small.
    pub dependents: BTreeSet<Uid>,
    /// It is being deleted.
    pub deleting: bool,
    /// Its deletion waits until its dependents are deleted.
    pub foreground: bool,
    /// Whether the finalizer of that was there when the object was last seen.
    pub held: bool,
    /// Its deletion waits until its dependents are orphaned.
    pub orphaning: bool,
    /// No watch has shown it yet.
    pub virtual_: bool,
}

/// The effect of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Check whether the object is to be deleted.
    Check(Uid),
    /// The same, but not at once.
    CheckLater(Uid),
    /// Orphan the object's dependents.
    Orphan(Uid),
    /// An object refers to an owner that is not in its namespace: a warning event is due.
    WrongNamespace {
        /// The object.
        dependent: Identity,
        /// Its reference.
        owner: Arc<Coordinates>,
    },
}

/// Identities remembered as absent.
const ABSENT: usize = 500;

/// The graph.
#[derive(Default, Debug)]
pub struct Graph {
    nodes: HashMap<Uid, Node>,
    absent: HashSet<Identity>,
    absent_order: VecDeque<Identity>,
}

impl Graph {
    /// A node.
    pub fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// The uids of the objects of a kind that a watch has shown, sorted.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Vec<Uid> {
        let same = |n: &&Node| {
            !n.virtual_ && &*n.identity.at.kind == kind && &*n.identity.at.api_version == api_version
        };
        let mut uids: Vec<Uid> =
            self.nodes.values().filter(same).map(|n| n.identity.at.uid.clone()).collect();
        uids.sort_unstable();
        uids
    }

    /// Whether an identity is known not to exist.
    pub fn is_absent(&self, identity: &Identity) -> bool {
        self.absent.contains(identity)
    }

    /// Remembers that an identity does not exist.
    pub fn mark_absent(&mut self, identity: Identity) {
        if self.absent.insert(identity.clone()) {
            self.absent_order.push_back(identity);
        }
        while self.absent_order.len() > ABSENT {
            if let Some(oldest) = self.absent_order.pop_front() {
                self.absent.remove(&oldest);
            }
        }
    }

    /// The same coordinates, shared with the node that has them.
    fn intern(&self, at: Arc<Coordinates>) -> Arc<Coordinates> {
        match self.nodes.get(&at.uid) {
            Some(node) if node.identity.at == at => node.identity.at.clone(),
            _ => at,
        }
    }

    /// An object was added or changed.
    pub fn observe(&mut self, mut seen: Observed) -> Vec<Effect> {
        let mut effects = vec![];
        let uid = seen.identity.at.uid.clone();
        for owner in &mut seen.owners {
            owner.at = self.intern(owner.at.clone());
        }
        self.resolve_virtual(&seen.identity, &mut effects);
        let (started_orphaning, started_foreground) = match self.nodes.get_mut(&uid) {
            None => {
                let node = Node {
                    identity: seen.identity,
                    owners: seen.owners.as_slice().into(),
                    dependents: BTreeSet::new(),
                    deleting: seen.deleting,
                    foreground: seen.foreground,
                    held: seen.foreground,
                    orphaning: seen.orphaning,
                    virtual_: false,
                };
                self.nodes.insert(uid.clone(), node);
                self.link(&uid, &seen.owners, &mut effects);
                (seen.orphaning, seen.foreground)
            }
            Some(node) => {
                // Another deletion adds a finalizer that was removed, which has to be removed again.
                let started = (seen.orphaning && !node.orphaning, seen.foreground && !node.held);
                node.deleting |= seen.deleting;
                node.orphaning = seen.orphaning;
                // Once its deletion has begun, a removed finalizer ends the wait only with the object.
                node.foreground |= seen.foreground;
                node.held = seen.foreground;
                if *node.owners != *seen.owners {
                    let old = std::mem::replace(&mut node.owners, seen.owners.as_slice().into());
                    self.relink(&uid, &old, &seen.owners, &mut effects);
                }
                started
            }
        };
        if started_orphaning {
            effects.push(Effect::Orphan(uid));
        } else if started_foreground {
            let dependents = self.nodes.get(&uid).map(|n| n.dependents.iter().cloned().collect::<Vec<_>>());
            effects.extend(dependents.into_iter().flatten().map(Effect::Check));
            effects.push(Effect::Check(uid));
        }
        effects
    }

    /// A watch shows a virtual node. Dependents that refer to it by other coordinates are checked.
    fn resolve_virtual(&mut self, seen: &Identity, effects: &mut Vec<Effect>) {
        let Some(node) = self.nodes.get_mut(&seen.at.uid).filter(|n| n.virtual_) else { return };
        node.virtual_ = false;
        if node.identity == *seen {
            return;
        }
        node.identity = seen.clone();
        let (_, mismatched) = self.partition(&seen.at.uid, seen);
        for uid in mismatched {
            let Some(dependent) = self.nodes.get(&uid) else { continue };
            if !seen.namespace.is_empty() && dependent.identity.namespace != seen.namespace {
                effects.extend(wrong_namespace(dependent, &seen.at.uid));
            }
            effects.push(Effect::Check(uid));
        }
    }

    /// Adds an object to the dependents of its owners; owners that are not in the graph become virtual nodes.
    fn link(&mut self, uid: &Uid, owners: &[Owner], effects: &mut Vec<Effect>) {
        let Some(namespace) = self.nodes.get(uid).map(|n| n.identity.namespace.clone()) else { return };
        let mut suspect = false;
        for owner in owners {
            let Some(node) = self.nodes.get_mut(&owner.at.uid) else {
                let identity = Identity { at: owner.at.clone(), namespace: namespace.clone() };
                let node = Node {
                    identity,
                    owners: Box::default(),
                    dependents: BTreeSet::from([uid.clone()]),
                    deleting: false,
                    foreground: false,
                    held: false,
                    orphaning: false,
                    virtual_: true,
                };
                self.nodes.insert(owner.at.uid.clone(), node);
                effects.push(Effect::Check(owner.at.uid.clone()));
                continue;
            };
            node.dependents.insert(uid.clone());
            if suspect {
                continue;
            }
            let (theirs, real) = (node.identity.namespace.clone(), !node.virtual_);
            let same = node.identity.at == owner.at;
            if !theirs.is_empty() && theirs != namespace {
                if real {
                    effects.extend(self.nodes.get(uid).and_then(|n| wrong_namespace(n, &owner.at.uid)));
                }
                suspect = true;
            } else if !same || (theirs.is_empty() && theirs != namespace && !real) {
                suspect = true;
            }
        }
        if suspect {
            effects.push(Effect::Check(uid.clone()));
        }
    }

    fn relink(&mut self, uid: &Uid, old: &[Owner], new: &[Owner], effects: &mut Vec<Effect>) {
        let find = |list: &[Owner], uid: &Uid| list.iter().rev().find(|o| o.at.uid == *uid).cloned();
        let mut done = HashSet::new();
        for former in old.iter().filter(|o| done.insert(o.at.uid.clone())) {
            let now = find(new, &former.at.uid);
            let unblocked = former.blocks && now.as_ref().is_none_or(|n| !n.blocks);
            if unblocked && self.nodes.contains_key(&former.at.uid) {
                effects.push(Effect::Check(former.at.uid.clone()));
            }
            if now.is_none() {
                self.unlink(&former.at.uid, uid);
            }
        }
        let added: Vec<Owner> = new.iter().filter(|o| find(old, &o.at.uid).is_none()).cloned().collect();
        self.link(uid, &added, effects);
    }

    fn unlink(&mut self, owner: &Uid, dependent: &Uid) {
        if let Some(node) = self.nodes.get_mut(owner) {
            node.dependents.remove(dependent);
        }
    }

    /// A watch showed the deletion of an object.
    pub fn deleted(&mut self, identity: &Identity) -> Vec<Effect> {
        if !self.nodes.contains_key(&identity.at.uid) {
            return vec![];
        }
        self.remove(identity)
    }

    fn remove(&mut self, identity: &Identity) -> Vec<Effect> {
        let Some(node) = self.nodes.remove(&identity.at.uid) else { return vec![] };
        let mut effects = vec![];
        for owner in &node.owners {
            self.unlink(&owner.at.uid, &identity.at.uid);
        }
        if !node.dependents.is_empty() {
            self.mark_absent(identity.clone());
        }
        effects.extend(node.dependents.into_iter().map(Effect::Check));
        for owner in &node.owners {
            // Its foreground deletion may have waited for this object.
            if self.nodes.get(&owner.at.uid).is_some_and(|n| n.foreground) {
                effects.push(Effect::Check(owner.at.uid.clone()));
            }
        }
        effects
    }

    /// The server responded that an object does not exist.
    pub fn absent(&mut self, identity: &Identity) -> Vec<Effect> {
        let uid = identity.at.uid.clone();
        let Some(node) = self.nodes.get(&uid) else { return vec![] };
        let known = node.identity.clone();
        if !node.virtual_ {
            if known == *identity {
                return self.remove(identity);
            }
            // Watched under other coordinates: only dependents that use the absent ones have lost their owner.
            let (matching, _) = self.partition(&uid, identity);
            return self.lost(identity, matching);
        }
        let (matching, others) = self.partition(&uid, identity);
        if others.is_empty() {
            return self.remove(identity);
        }
        let mut effects = self.lost(identity, matching);
        if known == *identity
            && let Some(alternative) = self.alternative(&others, identity)
            && let Some(node) = self.nodes.get_mut(&uid)
        {
            node.identity = alternative;
            effects.push(Effect::CheckLater(uid));
        }
        effects
    }

    fn lost(&mut self, identity: &Identity, dependents: Vec<Uid>) -> Vec<Effect> {
        if !dependents.is_empty() {
            self.mark_absent(identity.clone());
        }
        dependents.into_iter().map(Effect::Check).collect()
    }

    /// The dependents that name an owner by exactly this identity, and those that name it by another. One may be both.
    fn partition(&self, owner: &Uid, identity: &Identity) -> (Vec<Uid>, Vec<Uid>) {
        let (mut matching, mut others) = (vec![], vec![]);
        let Some(node) = self.nodes.get(owner) else { return (matching, others) };
        for uid in &node.dependents {
            let Some(dependent) = self.nodes.get(uid) else { continue };
            let other_namespace =
                !identity.namespace.is_empty() && identity.namespace != dependent.identity.namespace;
            let references = || dependent.owners.iter().filter(|o| o.at.uid == *owner);
            if !other_namespace && references().any(|o| o.at == identity.at) {
                matching.push(uid.clone());
            }
            if other_namespace || references().any(|o| o.at != identity.at) {
                others.push(uid.clone());
            }
        }
        (matching, others)
    }

    /// Another identity by which dependents refer to an owner: the next in order after the absent one, so that all are
    /// tried in turn.
    fn alternative(&self, dependents: &[Uid], absent: &Identity) -> Option<Identity> {
        let mut found: Vec<Identity> = vec![];
        for dependent in dependents.iter().filter_map(|uid| self.nodes.get(uid)) {
            for owner in dependent.owners.iter().filter(|o| o.at.uid == absent.at.uid) {
                let cluster = absent.namespace.is_empty()
                    && owner.at.kind == absent.at.kind
                    && owner.at.api_version == absent.at.api_version;
                let namespace = if cluster { "".into() } else { dependent.identity.namespace.clone() };
                let other = Identity { at: owner.at.clone(), namespace };
                if other != *absent {
                    found.push(other);
                }
            }
        }
        found.sort_by(Identity::order);
        let following = found.iter().find(|i| i.order(absent).is_gt()).cloned();
        following.or_else(|| found.into_iter().next())
    }

    /// A resource is no longer watched. Its objects may live on, so none counts as absent: those with dependents
    /// become virtual and are looked up when needed, the others are forgotten.
    pub fn forget_kind(&mut self, api_version: &str, kind: &str) {
        for uid in self.of_kind(api_version, kind) {
            let Some(node) = self.nodes.get_mut(&uid) else { continue };
            let owners = std::mem::take(&mut node.owners);
            if node.dependents.is_empty() {
                self.nodes.remove(&uid);
            } else {
                node.virtual_ = true;
            }
            for owner in owners {
                self.unlink(&owner.at.uid, &uid);
            }
        }
    }
}

fn wrong_namespace(dependent: &Node, owner: &Uid) -> Option<Effect> {
    let reference = dependent.owners.iter().find(|o| o.at.uid == *owner)?;
    Some(Effect::WrongNamespace { dependent: dependent.identity.clone(), owner: reference.at.clone() })
}
