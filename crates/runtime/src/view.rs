//! Snapshots of projected objects, and the view that a reconcile sees.

use crate::{
    client::Client,
    feed::Selection,
    informer::StartedInformer,
    meta::{Key, Meta},
};
use foldhash::quality::RandomState;
use imbl::{GenericHashMap, OrdMap, OrdSet, ordmap::DiffItem, shared_ptr::DefaultSharedPtr};
use kaji_meta::json;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    any::{Any, TypeId},
    collections::HashMap,
    marker::PhantomData,
    sync::Arc,
};

type Index = GenericHashMap<(&'static str, String), OrdSet<Arc<Key>>, RandomState, DefaultSharedPtr>;

/// The fields of a resource that controllers read, decoded once and shared by all of them.
pub trait Projection: DeserializeOwned + Send + Sync + 'static {
    /// `""` for core.
    const GROUP: &'static str;
    /// `v1`
    const VERSION: &'static str;
    /// Plural.
    const RESOURCE: &'static str;
    /// Kind.
    const KIND: &'static str;

    /// ObjectMeta.
    fn meta(&self) -> &Meta;

    /// Makes the informer of this resource: [`compile_informer!`](crate::compile_informer).
    fn informer(selection: Selection, client: Client) -> StartedInformer<Self>;

    /// Reads JSON: [`compile_informer!`](crate::compile_informer).
    ///
    /// # Errors
    /// JSON that is broken or does not fit.
    fn decode(object: &[u8]) -> Result<Self, serde_json::Error>;

    /// The projection of an object that was read already.
    ///
    /// # Errors
    /// An object that does not fit.
    fn from_value(object: &Value) -> Result<Self, serde_json::Error> {
        let mut text = vec![];
        json::write(&mut text, object);
        Self::decode(&text)
    }

    /// Further index terms besides the controller's uid (`owner`): name of the index and value.
    fn index(&self) -> Vec<(&'static str, String)> {
        vec![]
    }

    /// `apps/v1`
    fn api_version() -> String {
        kaji_meta::gvk::api_version(Self::GROUP, Self::VERSION)
    }
}

/// An `Arc<T>`. What keeps objects is compiled once, for those of every type: one a type was half of what this crate is compiled to.
#[derive(Clone)]
struct Slot(Arc<dyn Any + Send + Sync>);

impl Slot {
    /// The object of a snapshot, all of which are of its type.
    fn object<T: Projection>(&self) -> &Arc<T> {
        match self.0.downcast_ref() {
            Some(object) => object,
            None => unreachable!("a snapshot has objects of one type"),
        }
    }
}

/// The same slot, whatever is in it.
impl PartialEq for Slot {
    fn eq(&self, other: &Slot) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// An object's terms in the index: the name of each, and its value.
type Terms = Vec<(&'static str, String)>;

/// The objects of one resource, of whatever type.
#[derive(Clone, Default)]
pub(crate) struct Slots {
    /// The indexes share the keys.
    objects: OrdMap<Arc<Key>, Slot>,
    index: Index,
}

impl Slots {
    /// Adds or replaces; returns the former object.
    fn insert(&mut self, key: Key, slot: Slot, terms: fn(&Slot) -> Terms) -> Option<Slot> {
        let key = self.objects.get_key_value(&key).map_or_else(|| Arc::new(key), |(key, _)| key.clone());
        let new = terms(&slot);
        let old = self.objects.insert(key.clone(), slot);
        // Most changes are of status: the index stays as it is.
        let stale = old.as_ref().map(terms).unwrap_or_default();
        if stale != new {
            self.unlist(&key, stale);
            for term in new {
                self.index.entry(term).or_default().insert(key.clone());
            }
        }
        old
    }

    fn remove(&mut self, key: &Key, terms: fn(&Slot) -> Terms) -> Option<Slot> {
        let old = self.objects.remove(key)?;
        self.unlist(key, terms(&old));
        Some(old)
    }

    fn unlist(&mut self, key: &Key, terms: Terms) {
        for term in terms {
            if let Some(keys) = self.index.get_mut(&term) {
                keys.remove(key);
                if keys.is_empty() {
                    self.index.remove(&term);
                }
            }
        }
    }
}

/// All objects of one resource at one moment. Cloning is cheap.
pub struct ObjectSnapshot<T> {
    /// Of type `T`.
    slots: Slots,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for ObjectSnapshot<T> {
    fn clone(&self) -> Self {
        ObjectSnapshot { slots: self.slots.clone(), of: PhantomData }
    }
}

impl<T> Default for ObjectSnapshot<T> {
    fn default() -> Self {
        ObjectSnapshot { slots: Slots::default(), of: PhantomData }
    }
}

impl<T: Projection> ObjectSnapshot<T> {
    /// A snapshot of these slots.
    pub(crate) fn from_slots(slots: Slots) -> Self {
        ObjectSnapshot { slots, of: PhantomData }
    }

    /// The slots, for what keeps snapshots of any type.
    pub(crate) fn into_slots(self) -> Slots {
        self.slots
    }

    /// A snapshot of given objects (tests, first lists).
    pub fn of(objects: impl IntoIterator<Item = T>) -> Self {
        let mut snapshot = Self::default();
        for object in objects {
            snapshot.insert(Arc::new(object));
        }
        snapshot
    }

    /// One object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<T>> {
        self.by_key(&Key::new(namespace, name))
    }

    /// One object by key.
    pub fn by_key(&self, key: &Key) -> Option<&Arc<T>> {
        self.slots.objects.get(key).map(Slot::object)
    }

    /// All objects, by namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.slots.objects.values().map(Slot::object)
    }

    /// The objects of one namespace, by name.
    pub fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<T>> {
        self.slots
            .objects
            .range(Key::new(namespace, "")..)
            .take_while(move |(k, _)| k.namespace == namespace)
            .map(|(_, object)| object.object())
    }

    /// The objects under an index term (see [`Projection::index`]).
    pub fn indexed<'a>(
        &'a self,
        index: &'static str,
        value: &str,
    ) -> impl Iterator<Item = &'a Arc<T>> + use<'a, T> {
        self.slots
            .index
            .get(&(index, value.to_owned()))
            .into_iter()
            .flatten()
            .filter_map(|key| self.by_key(key))
    }

    /// The objects that a controller with this uid manages.
    pub fn owned_by<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a Arc<T>> + use<'a, T> {
        self.indexed("owner", uid)
    }

    /// The objects of a namespace that no controller manages.
    pub fn orphans<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Arc<T>> + use<'a, T> {
        self.indexed("orphan", namespace)
    }

    /// What has changed since a former snapshot of the same informer: each object before and after. What both share is not
    /// looked at.
    pub fn changes_since<'a>(
        &'a self,
        former: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a Arc<T>>, Option<&'a Arc<T>>)>
    where
        T: PartialEq,
    {
        let changes = former.slots.objects.diff(&self.slots.objects).map(|change| match change {
            DiffItem::Add(_, new) => (None, Some(new.object())),
            DiffItem::Update { old, new } => (Some(old.1.object()), Some(new.1.object())),
            DiffItem::Remove(_, old) => (Some(old.object()), None),
        });
        changes.filter(|(old, new)| old != new)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.slots.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.objects.is_empty()
    }

    /// Adds or replaces; returns the former object.
    pub fn insert(&mut self, object: Arc<T>) -> Option<Arc<T>> {
        let key = object.meta().key();
        self.slots.insert(key, Slot(Arc::new(object)), terms::<T>).map(|old| old.object::<T>().clone())
    }

    /// Removes.
    pub fn remove(&mut self, key: &Key) -> Option<Arc<T>> {
        self.slots.remove(key, terms::<T>).map(|old| old.object::<T>().clone())
    }
}

fn terms<T: Projection>(slot: &Slot) -> Terms {
    let object: &Arc<T> = slot.object();
    let mut terms = object.index();
    match object.meta().controller() {
        Some(owner) => terms.push(("owner", owner.uid.clone())),
        None => terms.push(("orphan", object.meta().namespace.clone())),
    }
    terms
}

/// A resource's snapshot, taken when it is used.
#[derive(Clone)]
pub(crate) struct Source {
    resource: TypeId,
    snapshot: Arc<dyn Fn() -> Arc<dyn Any + Send + Sync> + Send + Sync>,
}

impl Source {
    /// Of the resource that `snapshot` gives.
    pub(crate) fn new<T: Projection>(
        snapshot: impl Fn() -> ObjectSnapshot<T> + Send + Sync + 'static,
    ) -> Self {
        Source { resource: TypeId::of::<T>(), snapshot: Arc::new(move || Arc::new(snapshot())) }
    }
}

/// What one reconcile sees: a snapshot of each resource its controller reads.
#[derive(Clone, Default)]
pub struct View {
    snapshots: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
    /// Snapshots that are taken at their first use.
    sources: Arc<[Source]>,
}

impl View {
    /// A view that takes each snapshot at its first use, for event handlers that mostly use none.
    pub(crate) fn present(sources: Arc<[Source]>) -> Self {
        View { snapshots: HashMap::new(), sources }
    }

    /// A view in which everything is as of now.
    pub(crate) fn of(sources: &[Source]) -> Self {
        let snapshots = sources.iter().map(|source| (source.resource, (source.snapshot)())).collect();
        View { snapshots, sources: Arc::default() }
    }

    /// The snapshot of a resource. Empty when the controller does not read it (a programming mistake that tests show).
    pub fn get<T: Projection>(&self) -> ObjectSnapshot<T> {
        let resource = TypeId::of::<T>();
        let kept = self.snapshots.get(&resource).cloned();
        let present = || self.sources.iter().find(|s| s.resource == resource).map(|s| (s.snapshot)());
        let found = kept.or_else(present);
        let found = found.as_deref().and_then(|s| s.downcast_ref::<ObjectSnapshot<T>>());
        debug_assert!(found.is_some(), "{} is not among the controller's informers", T::RESOURCE);
        found.cloned().unwrap_or_default()
    }

    /// Adds a resource's snapshot.
    pub fn with<T: Projection>(mut self, snapshot: ObjectSnapshot<T>) -> Self {
        self.snapshots.insert(TypeId::of::<T>(), Arc::new(snapshot));
        self
    }
}

#[cfg(test)]
mod tests;
