//! Controller references: the keys of owners, and claims, by which a controller adopts orphans that its selector matches and
//! releases objects that no longer match.
//!
//! Invariants:
//! - Nothing is adopted by an owner that is being deleted, or that the view shows in an old state: a stage before the
//!   adoption compares the owner's resourceVersion on the server.
//! - Every patch names the uid of the object it was decided for.

use kaji_runtime::{Change, Key, Meta, PatchKind, Plan, Projection, Step, View, Write, client::Target};
use serde_json::{Value, json};
use std::sync::Arc;

/// The key of the `O` that controls an object.
pub fn controller_key<O: Projection>(object: &Meta) -> Option<Key> {
    let reference = object.controller().filter(|o| o.kind == O::KIND && o.api_version == O::api_version())?;
    Some(Key::new(object.namespace.as_str(), reference.name.as_str()))
}

/// The keys of the `O`s that control a changed object, before and after the change.
pub fn controller_keys<O: Projection, T: Projection>(change: &Change<T>) -> Vec<Key> {
    let objects = change.old.iter().chain(&change.new);
    let mut keys: Vec<Key> = objects.filter_map(|object| controller_key::<O>(object.meta())).collect();
    keys.dedup();
    keys
}

/// The keys of the `O`s that control a changed object, and of those that may adopt it: an orphan is enqueued for every `O` of
/// its namespace that selects it, when it is new, was released, or `differs` from before.
pub fn owner_keys<O: Projection, T: Projection>(
    change: &Change<T>,
    view: &View,
    selects: impl Fn(&O, &Meta) -> bool,
    differs: impl Fn(&T, &T) -> bool,
) -> Vec<Key> {
    let mut keys = controller_keys::<O, T>(change);
    let orphan = |object: &&Arc<T>| object.meta().controller().is_none();
    let Some(new) = change.new.as_ref().filter(orphan).filter(|o| !o.meta().deleting()) else { return keys };
    if change.old.as_ref().filter(orphan).is_none_or(|old| differs(old, new)) {
        let owners = view.get::<O>();
        let matching = owners.in_namespace(&new.meta().namespace).filter(|o| selects(o, new.meta()));
        keys.extend(matching.map(|o| o.meta().key()));
    }
    keys
}

/// Whether the labels of two objects differ.
pub fn labels_differ<T: Projection>(old: &T, new: &T) -> bool {
    old.meta().labels != new.meta().labels
}

/// The outcome of claiming.
pub struct Claimed<T> {
    /// What the owner manages once the patches are carried out.
    pub owned: Vec<Arc<T>>,
    adopt: Vec<Step>,
    release: Vec<Step>,
}

impl<T> Claimed<T> {
    /// Lets adoptions add a finalizer, and releases take it off.
    pub fn with_finalizer(mut self, finalizer: &str) -> Self {
        for (steps, field) in
            [(&mut self.adopt, "finalizers"), (&mut self.release, "$deleteFromPrimitiveList/finalizers")]
        {
            for step in steps {
                if let Write::Patch { body, .. } = &mut step.write {
                    body["metadata"][field] = json!([finalizer]);
                }
            }
        }
        self
    }

    /// Puts the patches in front of a plan. `owner` is a no-op patch that fails when the owner changed.
    pub fn into_plan(self, owner: Write) -> (Vec<Arc<T>>, Plan) {
        let mut plan = Plan::nothing().stage(self.release);
        if !self.adopt.is_empty() {
            plan = plan.then(owner).stage(self.adopt);
        }
        (self.owned, plan)
    }
}

/// A step without events.
pub fn quiet(write: Write) -> Step {
    Step { write, on_success: None, on_failure: None }
}

/// A patch that changes nothing and fails if the object is not as the view shows it. It is one of the status, which the
/// roles of all controllers of pods let them write: those of stateful sets and daemon sets let them write nothing else of it.
pub fn unchanged<T: Projection>(meta: &Meta) -> Write {
    Write::Patch {
        target: Target::of::<T>(&meta.namespace, &meta.name).subresource("status"),
        kind: PatchKind::Merge,
        body: json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}}),
    }
}

/// Decides what `owner` manages among `candidates` (what it manages already, and orphans of its namespace).
pub fn claim<T: Projection>(
    owner: &Meta,
    reference: &Value,
    matches: impl Fn(&Meta) -> bool,
    candidates: impl Iterator<Item = Arc<T>>,
) -> Claimed<T> {
    let mut claimed = Claimed { owned: vec![], adopt: vec![], release: vec![] };
    for object in candidates {
        let meta = object.meta();
        match meta.controller() {
            Some(controller) if controller.uid != owner.uid => {}
            Some(_) if matches(meta) => claimed.owned.push(object),
            Some(_) => {
                if !owner.deleting() {
                    let gone = json!([{"$patch": "delete", "uid": owner.uid}]);
                    claimed.release.push(quiet(owner_patch(&*object, gone)));
                }
            }
            None => {
                if !owner.deleting() && !meta.deleting() && meta.namespace == owner.namespace && matches(meta)
                {
                    claimed.adopt.push(quiet(owner_patch(&*object, json!([reference]))));
                    claimed.owned.push(object);
                }
            }
        }
    }
    claimed
}

fn owner_patch<T: Projection>(object: &T, references: Value) -> Write {
    let meta = object.meta();
    Write::Patch {
        target: Target::of::<T>(&meta.namespace, &meta.name),
        kind: PatchKind::Strategic,
        body: json!({"metadata": {"ownerReferences": references, "uid": meta.uid}}),
    }
}
