//! Shared informers: one list and one watch per resource, however many loops read it, from the
//! client's [`ObjectFeed`](crate::feed::ObjectFeed).
//!
//! Invariants:
//! - A snapshot is replaced atomically; handlers run after it is visible, in order, on the informer's own task.
//! - After a broken watch the informer resumes from its last revision; after 410 it lists again and reports the differences.
//! - Retries back off up to 5 s and end with the process.
//!
//! What does not depend on the type is in [`reflector`].

mod reflector;
mod resync;

pub use resync::Resync;

use crate::{
    client::{Client, Error, Target},
    feed::{Collection, ObjectEvent, Selection},
    meta::{Key, Meta},
    metrics::ControllerMetrics,
    queue::Queue,
    signal::Signal,
    view::{ObjectSnapshot, Projection, Slots},
};
use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use kaji_meta::time::{Clock, SystemClock};
use reflector::{ReflectorStore, Replacement};
use serde::Deserialize;
use std::{
    any::{Any, TypeId},
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

/// One object's change; both sides for an update.
pub struct Change<T> {
    /// Before.
    pub old: Option<Arc<T>>,
    /// After.
    pub new: Option<Arc<T>>,
}

impl<T> Change<T> {
    /// The newest state.
    pub fn any(&self) -> &Arc<T> {
        match (&self.new, &self.old) {
            (Some(object), _) | (None, Some(object)) => object,
            (None, None) => unreachable!("a change has a side"),
        }
    }
}

type Handler<T> = Box<dyn Fn(&Change<T>) + Send + Sync>;

/// A shared informer.
pub struct Informer<T> {
    collection: Collection,
    /// Of objects of type `T`.
    slots: ArcSwap<Slots>,
    handlers: Mutex<Vec<Handler<T>>>,
    /// The newest revision seen; `None` before the first list.
    progress: Signal<Option<u64>>,
}

/// An informer of any type, as the plan applier uses it.
pub trait Observed: Send + Sync {
    /// Resolves once the informer has seen this revision.
    fn reached(&self, revision: u64) -> BoxFuture<'_, ()>;
    /// Resolves once the object is absent, being deleted, or another one than `uid`.
    fn gone<'a>(&'a self, key: &'a Key, uid: Option<&'a str>) -> BoxFuture<'a, ()>;
    /// Calls the handlers for every object, as for an update that changes nothing.
    fn resync(&self);
}

impl<T: Projection> Informer<T> {
    fn new(selection: Selection) -> Self {
        let path = Target::of::<T>("", "").path();
        Informer {
            collection: Collection { path, selection, metadata_only: false },
            slots: ArcSwap::default(),
            handlers: Mutex::default(),
            progress: Signal::default(),
        }
    }

    /// The present snapshot.
    pub fn snapshot(&self) -> ObjectSnapshot<T> {
        ObjectSnapshot::from_slots(Slots::clone(&self.slots.load()))
    }

    /// Adds a handler. It is called for every existing object as an addition, then for every change.
    pub fn handle(&self, handler: impl Fn(&Change<T>) + Send + Sync + 'static) {
        let mut handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        for object in self.snapshot().iter() {
            handler(&Change { old: None, new: Some(object.clone()) });
        }
        handlers.push(Box::new(handler));
    }

    /// Resolves once the first list is complete.
    pub async fn synced(&self) {
        self.progress.wait_for(Option::is_some).await;
    }

    /// Applies changes to the snapshot, publishes it, then calls the handlers.
    fn publish(&self, upserts: Vec<Arc<T>>, removals: Vec<Key>, revision: Option<u64>) {
        // The lock orders publications against `handle`, so that no handler misses or sees a change twice.
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = self.snapshot();
        let mut changes = Vec::with_capacity(upserts.len() + removals.len());
        for key in removals {
            if let Some(old) = snapshot.remove(&key) {
                changes.push(Change { old: Some(old), new: None });
            }
        }
        for object in upserts {
            let old = snapshot.insert(object.clone());
            changes.push(Change { old, new: Some(object) });
        }
        self.slots.store(Arc::new(snapshot.into_slots()));
        for change in &changes {
            handlers.iter().for_each(|h| h(change));
        }
        drop(handlers);
        if let Some(revision) = revision {
            self.progress.modify(|p| {
                let newer = p.is_none_or(|p| p < revision);
                if newer {
                    *p = Some(revision);
                }
                // Waiters for a deletion check the snapshot: every change wakes them.
                newer || !changes.is_empty()
            });
        }
    }
}

impl<T: Projection> ReflectorStore for Informer<T> {
    fn collection(&self) -> &Collection {
        &self.collection
    }

    fn group_version_resource(&self) -> [&'static str; 3] {
        [T::GROUP, T::VERSION, T::RESOURCE]
    }

    fn replace(&self) -> Box<dyn Replacement + '_> {
        let known = self.snapshot();
        Box::new(InformerReplacement { informer: self, known, present: HashSet::new(), upserts: vec![] })
    }

    fn publish_absence(&self) {
        self.publish(vec![], vec![], Some(0));
    }

    fn publish_events(&self, batch: Vec<ObjectEvent>, last: &mut String) -> Result<(), Error> {
        let mut changes = Changes::default();
        let outcome = batch.into_iter().try_for_each(|event| changes.add(event, last));
        self.publish(changes.upserts, changes.removals, last.parse().ok());
        outcome
    }
}

/// The changes of a batch of events.
struct Changes<T> {
    upserts: Vec<Arc<T>>,
    removals: Vec<Key>,
}

impl<T> Default for Changes<T> {
    fn default() -> Self {
        Changes { upserts: Vec::new(), removals: Vec::new() }
    }
}

impl<T: Projection> Changes<T> {
    /// Adds an event, and sets `last` to its revision.
    fn add(&mut self, event: ObjectEvent, last: &mut String) -> Result<(), Error> {
        match event {
            ObjectEvent::Failed(status) => return Err(Error::of_watch(&status)),
            ObjectEvent::Bookmark(object) => *last = bookmark(&object)?,
            ObjectEvent::Changed(object) => {
                let object: T = parse(&object)?;
                last.clone_from(&object.meta().resource_version);
                self.upserts.push(Arc::new(object));
            }
            ObjectEvent::Deleted(object) => {
                let object: T = parse(&object)?;
                last.clone_from(&object.meta().resource_version);
                // A batch may hold the object's creation as well: keep their order.
                let key = object.meta().key();
                self.upserts.retain(|o| o.meta().key() != key);
                self.removals.push(key);
            }
        }
        Ok(())
    }
}

/// A list that is being compared with what an informer knows.
struct InformerReplacement<'a, T> {
    informer: &'a Informer<T>,
    known: ObjectSnapshot<T>,
    present: HashSet<Key>,
    upserts: Vec<Arc<T>>,
}

impl<T: Projection> Replacement for InformerReplacement<'_, T> {
    fn add(&mut self, object: &[u8]) -> Result<(), Error> {
        let object: T = parse(object)?;
        let key = object.meta().key();
        let same = |k: &Arc<T>| {
            k.meta().resource_version == object.meta().resource_version && k.meta().uid == object.meta().uid
        };
        if !self.known.by_key(&key).is_some_and(same) {
            self.upserts.push(Arc::new(object));
        }
        // A first list is compared with nothing.
        if !self.known.is_empty() {
            self.present.insert(key);
        }
        Ok(())
    }

    fn publish(self: Box<Self>, revision: u64) {
        let InformerReplacement { informer, known, present, upserts } = *self;
        let removals = known.iter().map(|o| o.meta().key()).filter(|k| !present.contains(k)).collect();
        informer.publish(upserts, removals, Some(revision));
    }
}

fn parse<T: Projection>(object: &[u8]) -> Result<T, Error> {
    T::decode(object).map_err(|e| Error::Decode(e.to_string()))
}

/// The revision of a bookmark.
fn bookmark(object: &[u8]) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: Meta,
    }
    let bookmark: Bookmark = decode(object).map_err(|e| Error::Decode(e.to_string()))?;
    Ok(bookmark.metadata.resource_version)
}

impl<T: Projection> Observed for Informer<T> {
    fn reached(&self, revision: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.progress.wait_for(|p| p.is_some_and(|p| p >= revision)).await;
        })
    }

    fn gone<'a>(&'a self, key: &'a Key, uid: Option<&'a str>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let settled = |_: &Option<u64>| {
                self.snapshot().by_key(key).is_none_or(|object| {
                    object.meta().deleting() || uid.is_some_and(|uid| uid != object.meta().uid)
                })
            };
            self.progress.wait_for(settled).await;
        })
    }

    fn resync(&self) {
        // The lock orders this against publications: no handler sees an object after its removal.
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        for object in self.snapshot().iter() {
            let change = Change { old: Some(object.clone()), new: Some(object.clone()) };
            handlers.iter().for_each(|handler| handler(&change));
        }
    }
}

/// Which objects informers read, by resource.
#[derive(Default)]
pub struct Selected(HashMap<TypeId, Selection>);

impl Selected {
    /// Of this resource, those that a field selector (`spec.nodeName=a`) matches.
    pub fn of<T: Projection>(mut self, fields: impl Into<String>) -> Self {
        self.0.insert(TypeId::of::<T>(), Selection::by_fields(fields));
        self
    }

    /// Of this resource, those that a label selector (`a=b`) matches.
    pub fn labelled<T: Projection>(mut self, labels: impl Into<String>) -> Self {
        self.0.insert(TypeId::of::<T>(), Selection::by_labels(labels));
        self
    }
}

/// An informer, and the task that keeps it up to date.
pub struct StartedInformer<T> {
    informer: Arc<Informer<T>>,
    task: BoxFuture<'static, ()>,
}

impl<T: Projection> StartedInformer<T> {
    /// An informer of the selected objects.
    pub fn new(selection: Selection, client: Client) -> Self {
        let informer = Arc::new(Informer::<T>::new(selection));
        StartedInformer { task: Box::pin(reflector::run(informer.clone(), client)), informer }
    }
}

/// Reads JSON: [`Projection::decode`] for what is generic.
pub use kaji_meta::json::from_slice as decode;
/// An object that is no JSON, or not of its type.
pub use serde_json::Error as DecodeError;

/// Implements [`Projection::informer`] and [`Projection::decode`]. Functions that are not generic are compiled once, with the decoder,
/// the snapshot and the task of the resource, in the crate of the type; otherwise every crate that reads the resource would compile them.
#[macro_export]
macro_rules! compile_informer {
    () => {
        fn informer(
            selection: $crate::feed::Selection,
            client: $crate::Client,
        ) -> $crate::informer::StartedInformer<Self> {
            $crate::informer::StartedInformer::new(selection, client)
        }

        fn decode(object: &[u8]) -> Result<Self, $crate::informer::DecodeError> {
            $crate::informer::decode(object)
        }
    };
}

/// All informers of a process, one per resource, started at their first use.
pub struct Informers {
    client: Client,
    /// The clock of the controllers that read from these informers.
    clock: Arc<dyn Clock>,
    /// Which objects, by resource.
    selected: HashMap<TypeId, Selection>,
    started: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    tasks: Mutex<tokio::task::JoinSet<()>>,
    /// Of the controllers that read from these informers.
    metrics: ControllerMetrics,
    /// How often handlers are called for every object; never without it.
    resync: Option<Resync>,
}

impl Informers {
    /// No informers yet.
    pub fn new(client: Client) -> Arc<Self> {
        Self::selecting(client, Selected::default())
    }

    /// No informers yet. Of some resources they will read only the selected objects, as clients must that have no permission
    /// for all.
    pub fn selecting(client: Client, selected: Selected) -> Arc<Self> {
        Self::timed(client, selected, Arc::new(SystemClock))
    }

    /// The same, for controllers with a given clock.
    pub fn timed(client: Client, selected: Selected, clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::measured(client, selected, clock, ControllerMetrics::default())
    }

    /// The same, for controllers that are measured.
    pub fn measured(
        client: Client,
        selected: Selected,
        clock: Arc<dyn Clock>,
        metrics: ControllerMetrics,
    ) -> Arc<Self> {
        Self::resyncing(client, selected, clock, metrics, None)
    }

    /// The same, with handlers that are called for every object again and again.
    pub fn resyncing(
        client: Client,
        selected: Selected,
        clock: Arc<dyn Clock>,
        metrics: ControllerMetrics,
        resync: Option<Resync>,
    ) -> Arc<Self> {
        Arc::new(Informers {
            client,
            clock,
            selected: selected.0,
            started: Mutex::default(),
            tasks: Mutex::default(),
            metrics,
            resync,
        })
    }

    /// An empty queue of a controller that reads from these informers; the name is that of its metrics.
    pub fn queue(&self, name: &str) -> Queue {
        Queue::named(name, self.clock.clone(), self.metrics.queues())
    }

    /// The metrics of the controllers that read from these informers.
    pub fn metrics(&self) -> &ControllerMetrics {
        &self.metrics
    }

    /// The clock of the controllers that read from these informers.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The informer of a resource. Its tasks end with `Informers`.
    pub fn get<T: Projection>(&self) -> Arc<Informer<T>> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let any = started.entry(TypeId::of::<T>()).or_insert_with(|| {
            let selection = self.selected.get(&TypeId::of::<T>()).cloned().unwrap_or_default();
            let StartedInformer { informer, task } = T::informer(selection, self.client.clone());
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.spawn(task);
            if let Some(resync) = &self.resync {
                tasks.spawn(resync::run(informer.clone(), self.clock.clone(), resync.clone()));
            }
            informer
        });
        // The map is keyed by the type.
        any.clone().downcast().unwrap_or_else(|_| Arc::new(Informer::new(Selection::default())))
    }
}

#[cfg(test)]
mod tests;
