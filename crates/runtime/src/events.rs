//! Event recording, as client-go's `tools/record`: events are correlated and written by one task per component.
//!
//! Invariant: recording never blocks the caller; the queue is bounded, and an event that finds it full is dropped.

mod correlator;

use crate::client::{Client, Target};
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
        while let Some(event) = receiver.recv().await {
            if let Err(error) = self.write(event).await {
                tracing::debug!(%error, "an event could not be written");
            }
        }
    }

    async fn write(&mut self, mut event: EventRecord) -> Result<(), crate::Error> {
        let now = self.clock.now();
        truncate(&mut event.message);
        let Some(mut observed) = self.correlator.observe(&event, now) else { return Ok(()) };
        truncate(&mut observed.message);
        if let Some(target) = &observed.existing {
            let patched = self.increase(target, &observed, now).await;
            // Expired meanwhile: it is created again.
            if !matches!(&patched, Err(error) if error.not_found()) {
                return patched;
            }
        }
        let target = self.create(event, &observed, now).await?;
        self.correlator.written(&observed.key, target);
        Ok(())
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
        self.client.patch(target, content_type, "", &patch).await.map(drop)
    }

    async fn create(
        &self,
        event: EventRecord,
        observed: &Observation,
        now: jiff::Timestamp,
    ) -> Result<Target, crate::Error> {
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
        let mut target =
            Target { version: "v1".into(), resource: "events".into(), namespace, ..Target::default() };
        self.client.post(&target, &body).await?;
        target.name = name;
        Ok(target)
    }
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
