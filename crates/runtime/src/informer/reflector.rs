//! The task of an informer: lists and watches its collection, and passes on what it gets as encoded objects. It knows no types, so
//! that it is compiled once and not for each resource.
//!
//! Invariants: those of [`informer`](super): it resumes from the last revision that it published, lists again after 410 and after
//! an object that cannot be decoded, and backs off up to 5 s.

use crate::{
    client::{Client, Error},
    feed::{Collection, ObjectEvent},
};
use futures_util::StreamExt;
use std::{sync::Arc, time::Duration};

/// Where a reflector puts what it gets: an informer, without its type.
pub(super) trait ReflectorStore: Send + Sync {
    /// What is listed and watched.
    fn collection(&self) -> &Collection;

    /// The resource's group, version and plural.
    fn group_version_resource(&self) -> [&'static str; 3];

    /// Begins to replace the objects by those of a list.
    fn replace(&self) -> Box<dyn Replacement + '_>;

    /// Publishes that there are no objects: the server does not have the resource.
    fn publish_absence(&self);

    /// Publishes the events of a batch up to the first that fails, and sets `last` to the revision of the newest published.
    ///
    /// # Errors
    /// That of the watch, or of an object that cannot be decoded.
    fn publish_events(&self, batch: Vec<ObjectEvent>, last: &mut String) -> Result<(), Error>;
}

/// The objects of a list on their way into a store.
pub(super) trait Replacement: Send {
    /// Adds an object, in JSON.
    ///
    /// # Errors
    /// When it cannot be decoded.
    fn add(&mut self, object: &[u8]) -> Result<(), Error>;

    /// Publishes the list, which is of this revision.
    fn publish(self: Box<Self>, revision: u64);
}

/// Answers in a row by which a resource is known not to be served: a server may be about to.
pub(super) const NOT_SERVED: u32 = 5;

/// Keeps a store up to date, for ever.
pub(super) async fn run(store: Arc<dyn ReflectorStore>, client: Client) {
    let mut backoff = Backoff::default();
    let mut resume: Option<String> = None;
    loop {
        let outcome = match &mut resume {
            None => list(&*store, &client).await.map(|listed| resume = Some(listed)),
            Some(last) => watch(&*store, &client, last).await,
        };
        let Err(error) = outcome else {
            backoff.reset();
            continue;
        };
        // What cannot be decoded would be sent again from the same revision: a list may have replaced it since.
        if error.code() == Some(410) || matches!(error, Error::Decode(_)) {
            resume = None;
        }
        // An older server, or a feature that is off: there are no objects, until there are.
        if resume.is_none() && backoff.0 >= NOT_SERVED && is_absent(&*store, &client, &error).await {
            store.publish_absence();
        }
        log(&*store, &error);
        tokio::time::sleep(backoff.next()).await;
    }
}

/// Failures of the connection pass; an object that cannot be decoded stalls every reader of the resource until it is mended.
fn log(store: &dyn ReflectorStore, error: &Error) {
    let [_, _, resource] = store.group_version_resource();
    match error {
        Error::Decode(_) => tracing::error!(resource, %error, "informer cannot decode an object"),
        _ => tracing::debug!(resource, %error, "informer retries"),
    }
}

/// Lists; the revision to watch from.
async fn list(store: &dyn ReflectorStore, client: &Client) -> Result<String, Error> {
    let mut replacement = store.replace();
    let last = client.list_objects(store.collection(), |object: &[u8]| replacement.add(object)).await?;
    replacement.publish(last.parse().unwrap_or(0));
    Ok(last)
}

/// Watches until the stream ends. `last` is where it begins, and then the revision of what was published last.
async fn watch(store: &dyn ReflectorStore, client: &Client, last: &mut String) -> Result<(), Error> {
    let mut events = client.watch_objects(store.collection(), last).await?;
    while let Some(batch) = events.next().await {
        store.publish_events(batch?, last)?;
    }
    Ok(())
}

/// Whether the server does not have the resource. One that is not served may be forbidden as well: discovery tells.
async fn is_absent(store: &dyn ReflectorStore, client: &Client, error: &Error) -> bool {
    if error.code() != Some(403) {
        return is_not_served(error);
    }
    let [group, version, resource] = store.group_version_resource();
    let path = match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    match client.get::<serde_json::Value>(&path).await {
        Ok(found) => {
            let resources = found["resources"].as_array();
            resources.is_some_and(|all| all.iter().all(|served| served["name"] != resource))
        }
        Err(error) => is_not_served(&error),
    }
}

/// Whether a list failed because the server has no such resource, or no such group version.
fn is_not_served(error: &Error) -> bool {
    error.not_found() || matches!(error, Error::Transport(text) if text.starts_with("HTTP 404"))
}

#[derive(Default)]
struct Backoff(u32);

impl Backoff {
    fn next(&mut self) -> Duration {
        self.0 = (self.0 + 1).min(10);
        Duration::from_millis(5 << self.0)
    }

    fn reset(&mut self) {
        self.0 = 0;
    }
}
