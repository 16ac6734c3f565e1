//! Objects that pods refer to, each followed by a watch of its own: the node's user may read single objects only. Upstream's
//! `watch_based_manager.go`.
//!
//! Invariants: an object has one watch, however many pods refer to it; it ends with the last of them; one that is immutable
//! is not watched after it was read; at most [`MOST`] objects are followed.

use super::{Keyed, KeyedRef};
use futures_util::StreamExt;
use kaji_meta::Clock;
use kaji_runtime::feed::ObjectEvent;
use kaji_runtime::{Client, Collection, Error, Selection, Target};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// Objects that are followed at the same time.
const MOST: usize = 8192;
/// How long a read waits for an object's first list.
const FIRST: Duration = Duration::from_secs(10);
/// The first and the longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What is known of an object.
#[derive(Debug, Clone, Default, PartialEq)]
enum Known {
    /// Not listed yet.
    #[default]
    Nothing,
    /// It could not be read: why.
    Failed(String),
    /// It is this, or absent.
    Value(Option<Arc<Keyed>>),
}

/// The pods that refer to an object, by uid, with what to notify.
type Referring = Arc<Mutex<HashMap<String, Arc<Notify>>>>;

struct Followed {
    known: watch::Receiver<Known>,
    referring: Referring,
    task: JoinHandle<()>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The objects that a node's pods refer to.
pub(super) struct WatchedObjects {
    client: Client,
    clock: Arc<dyn Clock>,
    objects: Mutex<HashMap<KeyedRef, Followed>>,
}

impl WatchedObjects {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> WatchedObjects {
        WatchedObjects { client, clock, objects: Mutex::default() }
    }

    /// Follows these objects for a pod, and no others. Called on a tokio runtime.
    pub(super) fn follow(&self, pod_uid: &str, names: &BTreeSet<KeyedRef>, wake: &Arc<Notify>) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.retain(|name, followed| names.contains(name) || !followed.release(pod_uid));
        for name in names {
            if !objects.contains_key(name) {
                if objects.len() >= MOST {
                    tracing::warn!(
                        name = name.name,
                        namespace = name.namespace,
                        "too many objects are watched"
                    );
                    continue;
                }
                objects.insert(name.clone(), self.start(name));
            }
            if let Some(followed) = objects.get(name) {
                let mut referring = followed.referring.lock().unwrap_or_else(PoisonError::into_inner);
                referring.insert(pod_uid.to_owned(), wake.clone());
            }
        }
    }

    fn start(&self, name: &KeyedRef) -> Followed {
        let (sender, known) = watch::channel(Known::Nothing);
        let referring = Referring::default();
        let follower = Follower {
            client: self.client.clone(),
            clock: self.clock.clone(),
            collection: collection(name),
            name: name.clone(),
            known: sender,
            referring: referring.clone(),
        };
        Followed { known, referring, task: tokio::spawn(follower.run()) }
    }

    /// The values of an object that is followed. `None` for one that is not.
    pub(super) async fn get(&self, name: &KeyedRef) -> Option<Result<Option<Arc<Keyed>>, String>> {
        let mut known = {
            let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
            objects.get(name)?.known.clone()
        };
        let listed = known.wait_for(|known| *known != Known::Nothing);
        let cache = || format!("failed to sync {} cache", name.kind.word());
        Some(match tokio::time::timeout(FIRST, listed).await.map(|known| known.map(|k| k.clone())) {
            Ok(Ok(Known::Value(value))) => Ok(value),
            Ok(Ok(Known::Failed(error))) => Err(format!("{}: {error}", cache())),
            // The pod that referred to it has gone.
            Ok(Ok(Known::Nothing) | Err(_)) | Err(_) => {
                Err(format!("{}: timed out waiting for the condition", cache()))
            }
        })
    }
}

impl Followed {
    /// Whether no pod refers to it any more.
    fn release(&self, pod_uid: &str) -> bool {
        let mut referring = self.referring.lock().unwrap_or_else(PoisonError::into_inner);
        referring.remove(pod_uid);
        referring.is_empty()
    }
}

fn collection(name: &KeyedRef) -> Collection {
    let target = Target {
        version: "v1".into(),
        resource: name.kind.resource().into(),
        namespace: name.namespace.clone(),
        ..Target::default()
    };
    let selection = Selection::by_fields(format!("metadata.name={}", name.name));
    Collection { path: target.path(), selection, metadata_only: false }
}

/// The task of one object.
struct Follower {
    client: Client,
    clock: Arc<dyn Clock>,
    collection: Collection,
    name: KeyedRef,
    known: watch::Sender<Known>,
    referring: Referring,
}

#[derive(Deserialize)]
struct Revisioned {
    metadata: Revision,
}

#[derive(Deserialize)]
struct Revision {
    #[serde(default, rename = "resourceVersion")]
    resource_version: String,
}

impl Follower {
    async fn run(self) {
        let mut pause = PAUSE.0;
        let mut from: Option<String> = None;
        loop {
            let outcome = match from.take() {
                None => self.list().await.map(Some),
                Some(revision) => self.watch(revision).await,
            };
            if matches!(&*self.known.borrow(), Known::Value(Some(value)) if value.immutable) {
                return;
            }
            match outcome {
                Ok(next) => {
                    // A watch that the server ends at once is not begun again without a pause.
                    from = next;
                    pause = PAUSE.0;
                }
                Err(error) => {
                    tracing::debug!(name = self.name.name, namespace = self.name.namespace, %error, "an object cannot be watched");
                    // What was known before stays: volumes go on with it.
                    self.known.send_if_modified(|known| {
                        let new = !matches!(known, Known::Value(_));
                        if new {
                            *known = Known::Failed(error.to_string());
                        }
                        new
                    });
                    kaji_runtime::time::sleep(&*self.clock, pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    /// Publishes what the API shows; the pods that refer to it are woken if it differs.
    fn publish(&self, object: Option<&[u8]>) -> Result<(), Error> {
        let value = object.map(|json| self.name.kind.parse(json).map(Arc::new)).transpose();
        let value = Known::Value(value.map_err(|e| Error::Decode(e.to_string()))?);
        let changed = self.known.send_if_modified(|known| {
            let differs = *known != value;
            *known = value;
            differs
        });
        if changed {
            let referring = self.referring.lock().unwrap_or_else(PoisonError::into_inner);
            referring.values().for_each(|wake| wake.notify_one());
        }
        Ok(())
    }

    async fn list(&self) -> Result<String, Error> {
        let mut found: Option<Vec<u8>> = None;
        let revision = self
            .client
            .list_objects(&self.collection, |object| {
                found = Some(object.to_vec());
                Ok(())
            })
            .await?;
        self.publish(found.as_deref())?;
        Ok(revision)
    }

    /// Follows changes from a revision until the watch ends. Answers the revision to go on from; `None` to list anew.
    async fn watch(&self, from: String) -> Result<Option<String>, Error> {
        let mut events = match self.client.watch_objects(&self.collection, &from).await {
            Err(error) if error.code() == Some(410) => return Ok(None),
            events => events?,
        };
        let mut newest = from.clone();
        while let Some(batch) = events.next().await {
            for event in batch? {
                let object = match &event {
                    ObjectEvent::Changed(object) => {
                        self.publish(Some(object))?;
                        object
                    }
                    ObjectEvent::Deleted(object) => {
                        self.publish(None)?;
                        object
                    }
                    ObjectEvent::Bookmark(object) => object,
                    ObjectEvent::Failed(status) => {
                        let error = Error::of_watch(status);
                        return if error.code() == Some(410) { Ok(None) } else { Err(error) };
                    }
                };
                let revision =
                    serde_json::from_slice::<Revisioned>(object).map_err(|e| Error::Decode(e.to_string()))?;
                newest = revision.metadata.resource_version;
            }
            if matches!(&*self.known.borrow(), Known::Value(Some(value)) if value.immutable) {
                break;
            }
        }
        if newest == from {
            return Err(Error::Transport("the watch ended without an event".into()));
        }
        Ok(Some(newest))
    }
}
