//! Other objects that plugins read: claims, volumes, classes, budgets, namespaces, workloads.
//!
//! A plugin says in [`Plugin::reads`](super::Plugin::reads) which resources it reads. Their informers are started, the first
//! decision waits for their first lists, and their changes become events.
//!
//! Invariant: a resource that no plugin of any profile reads is neither listed nor watched.

use super::{Actions, Change, Event, PodGroups, Resource};
use futures_util::future::BoxFuture;
use kaji_runtime::{Informer, Informers, ObjectSnapshot, Projection};
use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::Arc,
};

type Source = Arc<dyn Any + Send + Sync>;

/// The objects.
#[derive(Clone, Default)]
pub struct Listers {
    /// `Arc<Informer<T>>`, or the `ObjectSnapshot<T>` of a test, by the type `T`.
    sources: HashMap<TypeId, Source>,
    pod_groups: PodGroups,
}

impl Listers {
    /// The objects of a resource as of now. Empty if no plugin has said that it reads them.
    pub fn get<T: Projection>(&self) -> ObjectSnapshot<T> {
        let Some(source) = self.sources.get(&TypeId::of::<T>()) else {
            debug_assert!(false, "no plugin reads {}", T::RESOURCE);
            return ObjectSnapshot::default();
        };
        if let Some(informer) = source.downcast_ref::<Arc<Informer<T>>>() {
            return informer.snapshot();
        }
        source.downcast_ref::<ObjectSnapshot<T>>().cloned().unwrap_or_default()
    }

    /// The pods of each group.
    pub fn pod_groups(&self) -> &PodGroups {
        &self.pod_groups
    }

    /// With the given objects of a resource, for decisions without a server.
    pub fn with<T: Projection>(mut self, objects: impl IntoIterator<Item = T>) -> Self {
        self.sources.insert(TypeId::of::<T>(), Arc::new(ObjectSnapshot::of(objects)));
        self
    }
}

/// Registers what plugins read.
pub struct Reads<'a> {
    informers: Option<&'a Arc<Informers>>,
    listers: Listers,
    synced: Vec<BoxFuture<'static, ()>>,
    events: Arc<dyn Fn(Event) + Send + Sync>,
}

impl<'a> Reads<'a> {
    /// From informers; their changes are handed to `events`.
    pub fn new(informers: &'a Arc<Informers>, events: Arc<dyn Fn(Event) + Send + Sync>) -> Self {
        Reads { informers: Some(informers), listers: Listers::default(), synced: vec![], events }
    }

    /// From nothing: every resource is empty.
    pub fn nothing() -> Reads<'static> {
        Reads { informers: None, listers: Listers::default(), synced: vec![], events: Arc::new(|_| {}) }
    }

    /// A resource that is read.
    pub fn read<T: Projection>(&mut self) {
        self.read_with::<T>(true);
    }

    /// A resource that is read, of which the changes are no events.
    pub fn read_quietly<T: Projection>(&mut self) {
        self.read_with::<T>(false);
    }

    fn read_with<T: Projection>(&mut self, noticed: bool) {
        let id = TypeId::of::<T>();
        if self.listers.sources.contains_key(&id) {
            return;
        }
        let Some(informers) = self.informers else {
            self.listers.sources.insert(id, Arc::new(ObjectSnapshot::<T>::default()));
            return;
        };
        let informer = informers.get::<T>();
        if noticed {
            self.notice(&informer);
        }
        let waited = informer.clone();
        self.synced.push(Box::pin(async move { waited.synced().await }));
        self.listers.sources.insert(id, Arc::new(informer));
    }

    /// Changes become events.
    fn notice<T: Projection>(&self, informer: &Informer<T>) {
        let events = self.events.clone();
        informer.handle(move |change| {
            let actions = match (&change.old, &change.new) {
                (None, _) => Actions::ADD,
                (Some(_), None) => Actions::DELETE,
                (Some(_), Some(_)) => Actions::UPDATE,
            };
            let any = |object: &Option<Arc<T>>| object.clone().map(|o| o as Arc<dyn Any + Send + Sync>);
            let change = Change::Other(any(&change.old), any(&change.new));
            events(Event { resource: Resource::Other(T::RESOURCE), actions, change });
        });
    }

    /// The objects, and what resolves once all of them are listed.
    pub fn finish(self) -> (Listers, BoxFuture<'static, ()>) {
        let synced = futures_util::future::join_all(self.synced);
        (self.listers, Box::pin(async move { drop(synced.await) }))
    }
}
