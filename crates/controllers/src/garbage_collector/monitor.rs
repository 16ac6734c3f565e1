//! Watches one resource's metadata into the graph: a list, then a watch that resumes where it broke.
//!
//! Invariants:
//! - After a gap the list is compared with the graph, so no deletion is missed.
//! - Retries back off up to 5 s and end only with the resource or the process.

use super::{
    Collector,
    decide::{FOREGROUND, Live, ORPHAN, coordinates},
    graph::{Coordinates, Identity, Observed, Owner},
};
use crate::shared::discovery::Resource;
use futures_util::StreamExt;
use kaji_meta::json;
use kaji_runtime::{Collection, Error, OwnerRef, Selection, feed::ObjectEvent};
use serde::{Deserialize, de::IgnoredAny};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The metadata that counts.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerRef>>,
}

/// An object, metadata only.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Head {
    metadata: Metadata,
}

impl From<Head> for Live {
    fn from(head: Head) -> Self {
        let meta = head.metadata;
        Live {
            uid: meta.uid,
            resource_version: meta.resource_version,
            deleting: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers.unwrap_or_default(),
            owners: meta.owner_references.unwrap_or_default(),
        }
    }
}

/// A resource being watched.
pub(super) struct Monitor {
    collector: Arc<Collector>,
    objects: Collection,
    api_version: Arc<str>,
    kind: Arc<str>,
    /// Whether its objects tell of new resources.
    defines_resources: bool,
    synced: Arc<AtomicBool>,
}

impl Monitor {
    /// Of a resource; `synced` turns true after the first list.
    pub(super) fn new(collector: Arc<Collector>, resource: &Resource, synced: Arc<AtomicBool>) -> Self {
        let defines_resources = matches!(
            (resource.group.as_str(), resource.resource.as_str()),
            ("apiextensions.k8s.io", "customresourcedefinitions") | ("apiregistration.k8s.io", "apiservices")
        );
        Monitor {
            collector,
            objects: Collection {
                path: resource.target("", "").path(),
                selection: Selection::default(),
                metadata_only: true,
            },
            api_version: resource.api_version().into(),
            kind: resource.kind.as_str().into(),
            defines_resources,
            synced,
        }
    }

    /// Watches for ever.
    pub(super) async fn run(self) {
        let (mut resume, mut wait): (Option<String>, _) = (None, Duration::from_millis(5));
        loop {
            let outcome = match &resume {
                None => self.list().await,
                Some(revision) => self.watch(revision).await,
            };
            match outcome {
                Ok(revision) => {
                    resume = Some(revision);
                    wait = Duration::from_millis(5);
                }
                Err(error) => {
                    if error.code() == Some(410) {
                        resume = None;
                    }
                    tracing::debug!(path = self.objects.path, %error, "a monitor of the garbage collector retries");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }

    async fn list(&self) -> Result<String, Error> {
        let mut items: Vec<Observed> = vec![];
        let each = |object: &[u8]| -> Result<(), Error> {
            let head: Head = json::from_slice(object).map_err(decode)?;
            items.push(self.observed(head));
            Ok(())
        };
        let revision = self.collector.client.list_objects(&self.objects, each).await?;
        self.collector.change(|graph| {
            let present: HashSet<_> = items.iter().map(|o| o.identity.at.uid.clone()).collect();
            let known = graph.of_kind(&self.api_version, &self.kind);
            let mut effects: Vec<_> = items.into_iter().flat_map(|o| graph.observe(o)).collect();
            for uid in known.iter().filter(|uid| !present.contains(*uid)) {
                if let Some(identity) = graph.get(uid).map(|n| n.identity.clone()) {
                    effects.extend(graph.deleted(&identity));
                }
            }
            effects
        });
        self.synced.store(true, Ordering::Release);
        self.collector.synced.notify_waiters();
        Ok(revision)
    }

    async fn watch(&self, from: &str) -> Result<String, Error> {
        let mut events = self.collector.client.watch_objects(&self.objects, from).await?;
        let mut last = from.to_owned();
        while let Some(batch) = events.next().await {
            self.events(batch?, &mut last)?;
        }
        Ok(last)
    }

    fn events(&self, batch: Vec<ObjectEvent>, last: &mut String) -> Result<(), Error> {
        let mut changes = vec![];
        let mut failure = Ok(());
        for event in batch {
            let (object, deleted) = match &event {
                ObjectEvent::Failed(status) => {
                    failure = Err(Error::of_watch(status));
                    break;
                }
                ObjectEvent::Bookmark(object) => (object, None),
                ObjectEvent::Changed(object) => (object, Some(false)),
                ObjectEvent::Deleted(object) => (object, Some(true)),
            };
            let head: Head = json::from_slice(object).map_err(decode)?;
            last.clone_from(&head.metadata.resource_version);
            if let Some(deleted) = deleted {
                changes.push((deleted, self.observed(head)));
            }
        }
        if self.defines_resources && !changes.is_empty() {
            self.collector.refresh.notify_one();
        }
        self.collector.change(|graph| {
            let apply = |(deleted, seen): (bool, Observed)| {
                if deleted { graph.deleted(&seen.identity) } else { graph.observe(seen) }
            };
            changes.into_iter().flat_map(apply).collect()
        });
        failure
    }

    fn observed(&self, head: Head) -> Observed {
        let meta = head.metadata;
        let deleting = meta.deletion_timestamp.is_some();
        let has = |f: &str| meta.finalizers.as_ref().is_some_and(|list| list.iter().any(|x| x == f));
        let owners = meta.owner_references.as_ref().map_or_else(Vec::new, |owners| {
            owners
                .iter()
                .map(|o| Owner { at: Arc::new(coordinates(o)), blocks: o.block_owner_deletion })
                .collect()
        });
        Observed {
            foreground: deleting && has(FOREGROUND),
            orphaning: deleting && has(ORPHAN),
            deleting,
            owners,
            identity: Identity {
                at: Arc::new(Coordinates {
                    kind: self.kind.clone(),
                    api_version: self.api_version.clone(),
                    name: meta.name.into(),
                    uid: meta.uid.into(),
                }),
                namespace: meta.namespace.into(),
            },
        }
    }
}

fn decode(error: serde_json::Error) -> Error {
    Error::Decode(error.to_string())
}
