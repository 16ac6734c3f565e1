//! Event recording: repeats of one event become a count, floods are cut, nothing blocks the caller.
//! Source: client-go `tools/record` (correlation by source, object, reason, message; burst 25 per object, then 1 per 5 min).

use crate::client::{Client, Target};
use kaji_meta::{random::Random, time::Clock};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};
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
const QUEUE: usize = 1000;
/// Distinct events remembered for counting.
const REMEMBERED: usize = 4096;
const BURST: f64 = 25.0;
const REFILL_PER_SECOND: f64 = 1.0 / 300.0;

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
            seen: HashMap::new(),
            order: VecDeque::new(),
            budgets: HashMap::new(),
        };
        tokio::spawn(writer.run(receiver));
        Recorder { sender }
    }

    /// Records, unless too many wait already: events are best effort, as upstream's.
    pub fn record(&self, event: EventRecord) {
        if self.sender.try_send(event).is_err() {
            tracing::debug!("an event was dropped: the recorder's queue is full");
        }
    }
}

type Seen = (String, String, String, EventType, String);

struct Writer {
    client: Client,
    component: String,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    /// Event object and count so far.
    seen: HashMap<Seen, (Target, i64)>,
    order: VecDeque<Seen>,
    /// Tokens left and when they were counted, per object.
    budgets: HashMap<String, (f64, jiff::Timestamp)>,
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
        if event.message.len() > MESSAGE_LIMIT {
            let mut end = MESSAGE_LIMIT;
            while !event.message.is_char_boundary(end) {
                end -= 1;
            }
            event.message.truncate(end);
        }
        let text =
            |key: &str| event.regarding.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (uid, kind, name) = (text("uid"), text("kind"), text("name"));
        if !self.allowed(&format!("{kind}/{}/{name}/{uid}", text("namespace"))) {
            return Ok(());
        }
        let now = self.clock.now();
        let stamp = kaji_meta::time::Time::new(now).to_string();
        let seen: Seen =
            (format!("{uid}{name}"), kind, event.reason.clone(), event.kind, event.message.clone());
        if let Some((target, count)) = self.seen.get_mut(&seen) {
            *count += 1;
            let patch = json!({"count": *count, "lastTimestamp": stamp});
            let patched = self
                .client
                .patch(target, crate::PatchKind::Strategic.content_type(), "", &patch)
                .await
                .map(drop);
            // Expired in the meantime: write it anew.
            if !matches!(&patched, Err(e) if e.not_found()) {
                return patched;
            }
        }
        let namespace = match text("namespace") {
            ns if ns.is_empty() => "default".to_owned(),
            ns => ns,
        };
        // Upstream appends the time; a random number is as unique and does not repeat within a clock tick.
        let event_name = format!("{name}.{:016x}", self.random.u64());
        let body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event_name, "namespace": namespace},
            "involvedObject": event.regarding,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self.component},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "type": match event.kind { EventType::Normal => "Normal", EventType::Warning => "Warning" },
            "eventTime": null,
            "reportingComponent": self.component,
            "reportingInstance": "",
        });
        let mut target =
            Target { version: "v1".into(), resource: "events".into(), namespace, ..Target::default() };
        self.client.post(&target, &body).await?;
        target.name = event_name;
        self.remember(seen, target);
        Ok(())
    }

    fn remember(&mut self, seen: Seen, target: Target) {
        if self.seen.insert(seen.clone(), (target, 1)).is_none() {
            self.order.push_back(seen);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.seen.remove(&oldest);
            }
        }
    }

    fn allowed(&mut self, object: &str) -> bool {
        let now = self.clock.now();
        if self.budgets.len() > REMEMBERED {
            self.budgets.clear();
        }
        let (tokens, at) = self.budgets.entry(object.to_owned()).or_insert((BURST, now));
        let passed = now.duration_since(*at).as_secs_f64().max(0.0);
        *tokens = (*tokens + passed * REFILL_PER_SECOND).min(BURST);
        *at = now;
        let allowed = *tokens >= 1.0;
        if allowed {
            *tokens -= 1.0;
        }
        allowed
    }
}
