//! Event recording, as client-go's `tools/record`: events are correlated and written by one task per component.
//!
//! Invariants:
//! - Recording never blocks the caller; the queue is bounded, and an event that finds it full is dropped.
//! - Events that wait are created together; repeats of one are written after it.

mod correlator;

use crate::{
    batch,
    client::{Client, Target},
};
use correlator::{Correlator, Observation};
use kaji_meta::{random::Random, time::Clock};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// `Normal` or `Warning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum EventType {
    Normal,
    Warning,
}

/// An event to be recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRecord {
    /// `involvedObject`, see [`crate::Meta::reference`].
    pub regarding: Value,
    /// Type.
    pub kind: EventType,
    /// `ScalingReplicaSet`
    pub reason: String,
    /// Text.
    pub message: String,
}

impl EventRecord {
    /// A `Normal` event.
    pub fn normal(regarding: Value, reason: &str, message: impl Into<String>) -> Self {
        EventRecord { regarding, kind: EventType::Normal, reason: reason.into(), message: message.into() }
    }

    /// A `Warning` event.
    pub fn warning(regarding: Value, reason: &str, message: impl Into<String>) -> Self {
        EventRecord { regarding, kind: EventType::Warning, reason: reason.into(), message: message.into() }
    }

    /// With `{name}` and `{error}` filled in.
    pub fn filled(mut self, name: &str, error: &str) -> Self {
        self.message = self.message.replace("{name}", name).replace("{error}", error);
        self
    }
}

/// Upstream's limit of messages.
const MESSAGE_LIMIT: usize = 1024;
/// Events that wait to be written.
const QUEUE: usize = 1000;

/// Records events of one component.
#[derive(Clone)]
pub struct Recorder {
    sender: mpsc::Sender<EventRecord>,
}

impl Recorder {
    /// Starts a recorder; its task ends when the last clone is gone.
    pub fn start(client: Client, component: &str, clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let writer = Writer {
            client: client.named(component),
            component: component.to_owned(),
            clock,
            random,
            correlator: Correlator::default(),
        };
        tokio::spawn(writer.run(receiver));
        Recorder { sender }
    }

    /// Records an event, or drops it when the queue is full: events are best effort, as upstream's.
    pub fn record(&self, event: EventRecord) {
        if self.sender.try_send(event).is_err() {
            tracing::debug!("the recorder dropped an event because its queue is full");
        }
    }

    /// Records an event that must not be dropped: waits until the queue has room.
    pub async fn record_when_there_is_room(&self, event: EventRecord) {
        if self.sender.send(event).await.is_err() {
            tracing::debug!("the recorder has ended before an event was recorded");
        }
    }
}

struct Writer {
    client: Client,
    component: String,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    correlator: Correlator,
}

impl Writer {
    async fn run(mut self, mut receiver: mpsc::Receiver<EventRecord>) {
        let mut events = Vec::new();
        while receiver.recv_many(&mut events, batch::SIZE).await > 0 {
            let mut new = Vec::new();
            for event in events.drain(..) {
                self.write(event, &mut new).await;
            }
            self.create(new).await;
        }
    }

    /// Writes an event that has an object; one that has none joins the new ones. Events with one key are written in order.
    async fn write(&mut self, mut event: EventRecord, new: &mut Vec<NewEvent>) {
        let now = self.clock.now();
        truncate(&mut event.message);
        let Some(mut observed) = self.correlator.observe(&event, now) else { return };
        truncate(&mut observed.message);
        if new.iter().any(|other| other.key == observed.key) {
            self.create(std::mem::take(new)).await;
            observed.existing = self.correlator.object(&observed.key);
        }
        if let Some(target) = &observed.existing {
            match self.increase(target, &observed, now).await {
                // Expired meanwhile: it is created again.
                Err(error) if error.not_found() => {}
                outcome => return outcome.unwrap_or_else(|error| not_written(&error)),
            }
        }
        new.push(self.new_event(event, observed, now));
    }

    async fn increase(
        &self,
        target: &Target,
        observed: &Observation,
        now: jiff::Timestamp,
    ) -> Result<(), crate::Error> {
        let last = kaji_meta::time::Time::new(now).to_string();
        let patch = json!({"count": observed.count, "lastTimestamp": last, "message": observed.message});
        let content_type = crate::PatchKind::Strategic.content_type();
        self.client.patch_only(target, content_type, &patch).await
    }

    /// Creates the objects of new events, together.
    async fn create(&mut self, new: Vec<NewEvent>) {
        if new.is_empty() {
            return;
        }
        let parts = |NewEvent { key, collection, name, body }: NewEvent| {
            let object = Target { name, ..collection.clone() };
            ((collection, body), (key, object))
        };
        let (creations, objects): (Vec<_>, Vec<_>) = new.into_iter().map(parts).unzip();
        for ((key, object), outcome) in objects.into_iter().zip(self.client.create_all(creations).await) {
            match outcome {
                Ok(()) => self.correlator.written(&key, object),
                Err(error) => not_written(&error),
            }
        }
    }

    fn new_event(&self, event: EventRecord, observed: Observation, now: jiff::Timestamp) -> NewEvent {
        let field = |name: &str| event.regarding.get(name).and_then(Value::as_str).unwrap_or_default();
        let namespace = match field("namespace") {
            "" => "default".to_owned(),
            namespace => namespace.to_owned(),
        };
        // Upstream appends the time; a random number is as unique and does not repeat within a clock tick.
        let name = format!("{}.{:016x}", field("name"), self.random.u64());
        let body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": event.regarding,
            "reason": event.reason,
            "message": observed.message,
            "source": {"component": self.component},
            "firstTimestamp": kaji_meta::time::Time::new(observed.first).to_string(),
            "lastTimestamp": kaji_meta::time::Time::new(now).to_string(),
            "count": observed.count,
            "type": match event.kind { EventType::Normal => "Normal", EventType::Warning => "Warning" },
            "eventTime": null,
            "reportingComponent": self.component,
            "reportingInstance": "",
        });
        let collection =
            Target { version: "v1".into(), resource: "events".into(), namespace, ..Target::default() };
        NewEvent { key: observed.key, collection, name, body }
    }
}

/// An event without an object.
struct NewEvent {
    /// Identifies the event in the log.
    key: String,
    collection: Target,
    name: String,
    body: Value,
}

fn not_written(error: &crate::Error) {
    tracing::debug!(%error, "an event could not be written");
}

/// Cuts a message at upstream's limit, between two characters.
fn truncate(message: &mut String) {
    let mut end = message.len().min(MESSAGE_LIMIT);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
}

#[cfg(test)]
mod tests;
