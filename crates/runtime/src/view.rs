//! Snapshots of projected objects, and the view that a reconcile sees.

use crate::{
    client::Client,
    feed::Selection,
    informer::StartedInformer,
    meta::{Key, Meta},
};
use foldhash::quality::RandomState;
use imbl::{GenericHashMap, OrdMap, OrdSet, ordmap::DiffItem, shared_ptr::DefaultSharedPtr};
use serde::de::DeserializeOwned;
use std::{
    any::{Any, TypeId},
    collections::HashMap,
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

    /// Further index terms besides the controller's uid (`owner`): name of the index and value.
    fn index(&self) -> Vec<(&'static str, String)> {
        vec![]
    }

    /// `apps/v1`
    fn api_version() -> String {
        kaji_meta::gvk::api_version(Self::GROUP, Self::VERSION)
    }
}

/// All objects of one resource at one moment. Cloning is cheap.
pub struct ObjectSnapshot<T> {
    /// The indexes share the keys.
    objects: OrdMap<Arc<Key>, Arc<T>>,
    index: Index,
}

impl<T> Clone for ObjectSnapshot<T> {
    fn clone(&self) -> Self {
        ObjectSnapshot { objects: self.objects.clone(), index: self.index.clone() }
    }
}

impl<T> Default for ObjectSnapshot<T> {
    fn default() -> Self {
        ObjectSnapshot { objects: OrdMap::new(), index: Index::default() }
    }
}

impl<T: Projection> ObjectSnapshot<T> {
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
        self.objects.get(&Key::new(namespace, name))
    }

    /// One object by key.
    pub fn by_key(&self, key: &Key) -> Option<&Arc<T>> {
        self.objects.get(key)
    }

    /// All objects, by namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values()
    }

    /// The objects of one namespace, by name.
    pub fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<T>> {
        self.objects
            .range(Key::new(namespace, "")..)
            .take_while(move |(k, _)| k.namespace == namespace)
            .map(|(_, object)| object)
    }

    /// The objects under an index term (see [`Projection::index`]).
    pub fn indexed<'a>(
        &'a self,
        index: &'static str,
        value: &str,
    ) -> impl Iterator<Item = &'a Arc<T>> + use<'a, T> {
        self.index
            .get(&(index, value.to_owned()))
            .into_iter()
            .flatten()
            .filter_map(|key| self.objects.get(&**key))
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
        former.objects.diff(&self.objects).map(|change| match change {
            DiffItem::Add(_, new) => (None, Some(new)),
            DiffItem::Update { old, new } => (Some(old.1), Some(new.1)),
            DiffItem::Remove(_, old) => (Some(old), None),
        })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Adds or replaces; returns the former object.
    pub fn insert(&mut self, object: Arc<T>) -> Option<Arc<T>> {
        let key = object.meta().key();
        let key = self.objects.get_key_value(&key).map_or_else(|| Arc::new(key), |(key, _)| key.clone());
        let new = terms(&*object);
        let old = self.objects.insert(key.clone(), object);
        // Most changes are of status: the index stays as it is.
        let stale = old.as_ref().map(|old| terms(&**old)).unwrap_or_default();
        if stale != new {
            self.unlist(&key, stale);
            for term in new {
                self.index.entry(term).or_default().insert(key.clone());
            }
        }
        old
    }

    /// Removes.
    pub fn remove(&mut self, key: &Key) -> Option<Arc<T>> {
        let old = self.objects.remove(key)?;
        self.unlist(key, terms(&*old));
        Some(old)
    }

    fn unlist(&mut self, key: &Key, terms: Vec<(&'static str, String)>) {
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

fn terms<T: Projection>(object: &T) -> Vec<(&'static str, String)> {
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
