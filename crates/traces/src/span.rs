//! Spans: what they are made by, what they record, and how they end.
//!
//! Invariants: a span ends when it is dropped, once; what it records is bounded; ids and times come from the injected
//! randomness and clock; a span never ends before it began.

use crate::{
    context::SpanContext,
    otlp::{self, Any, AnyValue, KeyValue},
    queue::Queue,
    sampler::Sampler,
};
use http::HeaderMap;
use kaji_meta::{random::Random, time::Clock};
use std::sync::Arc;

/// Attributes of a span or of an event.
const ATTRIBUTES: usize = 64;
/// Events of a span.
const EVENTS: usize = 128;
/// Bytes of a text: clients choose paths, names and user agents. Source: `maxUserAgentLength` of apiserver.
const TEXT: usize = 1024;
/// What follows a text that was cut.
const CUT: &str = "...TRUNCATED";

/// The side of a call that a span is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None.
    Internal = 1,
    /// That of the server.
    Server = 2,
    /// That of the client.
    Client = 3,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A text, which is cut if it is long.
    Text(&'a str),
    /// A number.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Value<'a> {
        Value::Text(text)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Value<'a> {
        Value::Text(text)
    }
}

impl From<u16> for Value<'_> {
    fn from(number: u16) -> Self {
        Value::Int(number.into())
    }
}

impl From<usize> for Value<'_> {
    fn from(number: usize) -> Self {
        Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value<'_> {
    fn from(truth: bool) -> Self {
        Value::Bool(truth)
    }
}

impl Value<'_> {
    fn owned(self) -> AnyValue {
        let value = match self {
            Value::Text(text) => Any::Text(cut(text)),
            Value::Int(number) => Any::Int(number),
            Value::Bool(truth) => Any::Bool(truth),
        };
        AnyValue { value: Some(value) }
    }
}

fn cut(text: &str) -> String {
    if text.len() <= TEXT {
        return text.to_owned();
    }
    let end = (0..=TEXT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    format!("{}{CUT}", &text[..end])
}

pub(crate) fn attribute<'a>(key: &str, value: impl Into<Value<'a>>) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(value.into().owned()) }
}

/// Makes spans; clones share everything.
#[derive(Clone)]
pub struct Tracer(Arc<Parts>);

struct Parts {
    sampler: Sampler,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    queue: Arc<Queue>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("sampler", &self.0.sampler).finish_non_exhaustive()
    }
}

impl Tracer {
    pub(crate) fn new(
        sampler: Sampler,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        queue: Arc<Queue>,
    ) -> Tracer {
        Tracer(Arc::new(Parts { sampler, clock, random, queue }))
    }

    /// Begins a span: of its parent's trace, or of a new one. A `link` names a span of another trace that it has to do with.
    #[must_use]
    pub fn begin(
        &self,
        name: &str,
        kind: Kind,
        parent: Option<&SpanContext>,
        link: Option<&SpanContext>,
    ) -> Span {
        let context = SpanContext::new(parent, &*self.0.random);
        let sampled = self.0.sampler.samples(parent, context.trace());
        let context = context.decided(sampled);
        let record = sampled.then(|| {
            let remote = if parent.is_some_and(SpanContext::is_remote) { otlp::REMOTE } else { 0 };
            Box::new(otlp::Span {
                trace_id: context.trace().to_vec(),
                span_id: context.span().to_vec(),
                trace_state: context.state().to_owned(),
                parent_span_id: parent.map(|parent| parent.span().to_vec()).unwrap_or_default(),
                name: cut(name),
                kind: kind as i32,
                start_time_unix_nano: self.now(),
                links: link.map(linked).into_iter().collect(),
                flags: u32::from(context.flags()) | otlp::KNOWS_REMOTE | remote,
                ..otlp::Span::default()
            })
        });
        Span { tracer: self.clone(), context, record }
    }

    /// Nanoseconds since 1970.
    fn now(&self) -> u64 {
        u64::try_from(self.0.clock.now().as_nanosecond()).unwrap_or_default()
    }
}

fn linked(context: &SpanContext) -> otlp::Link {
    let remote = if context.is_remote() { otlp::REMOTE } else { 0 };
    otlp::Link {
        trace_id: context.trace().to_vec(),
        span_id: context.span().to_vec(),
        trace_state: context.state().to_owned(),
        flags: u32::from(context.flags()) | otlp::KNOWS_REMOTE | remote,
    }
}

/// A span that children can be begun of.
#[derive(Clone, Debug)]
pub struct Parent {
    tracer: Tracer,
    context: Arc<SpanContext>,
}

impl Parent {
    /// Begins a child.
    #[must_use]
    pub fn child(&self, name: &str, kind: Kind) -> Span {
        self.tracer.begin(name, kind, Some(&self.context), None)
    }
}

/// A span. It ends when it is dropped.
pub struct Span {
    tracer: Tracer,
    context: SpanContext,
    record: Option<Box<otlp::Span>>,
}

impl Span {
    /// Whether it is sampled: attributes of one that is not need not be computed.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.record.is_some()
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &SpanContext {
        &self.context
    }

    /// What children are begun by.
    #[must_use]
    pub fn parent(&self) -> Parent {
        Parent { tracer: self.tracer.clone(), context: Arc::new(self.context.clone()) }
    }

    /// Begins a child.
    #[must_use]
    pub fn child(&self, name: &str, kind: Kind) -> Span {
        self.tracer.begin(name, kind, Some(&self.context), None)
    }

    /// Adds an attribute.
    pub fn set<'a>(&mut self, key: &str, value: impl Into<Value<'a>>) {
        let Some(record) = &mut self.record else { return };
        match record.attributes.len() < ATTRIBUTES {
            true => record.attributes.push(attribute(key, value)),
            false => record.dropped_attributes_count = record.dropped_attributes_count.saturating_add(1),
        }
    }

    /// Adds an event at the present time.
    pub fn event(&mut self, name: &str, attributes: &[(&str, Value<'_>)]) {
        let now = self.record.as_ref().map(|_| self.tracer.now());
        let (Some(record), Some(now)) = (&mut self.record, now) else { return };
        if record.events.len() >= EVENTS {
            record.dropped_events_count = record.dropped_events_count.saturating_add(1);
            return;
        }
        let attributes = attributes.iter().take(ATTRIBUTES);
        record.events.push(otlp::Event {
            time_unix_nano: now,
            name: cut(name),
            attributes: attributes.map(|(key, value)| attribute(key, *value)).collect(),
        });
    }

    /// Says that it failed.
    pub fn fail(&mut self, why: &str) {
        if let Some(record) = &mut self.record {
            record.status = Some(otlp::Status { message: cut(why), code: otlp::ERROR });
        }
    }

    /// Names it in the headers of a request, as that request's parent.
    pub fn inject(&self, headers: &mut HeaderMap) {
        self.context.inject(headers);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(mut record) = self.record.take() {
            // The clock may have been set back.
            record.end_time_unix_nano = self.tracer.now().max(record.start_time_unix_nano);
            self.tracer.0.queue.put(*record);
        }
    }
}
