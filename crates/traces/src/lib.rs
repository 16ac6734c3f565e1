//! Distributed tracing: spans of requests, exported by OTLP over gRPC to a collector, and their contexts in the headers of
//! requests (KEP-647, KEP-2831; W3C Trace Context).
//!
//! Invariants:
//! - Without a configuration there is no [`Provider`], and every caller holds a `None`: nothing is allocated, drawn or timed.
//! - A span that is not sampled has a context, so that other processes learn of the decision, and records nothing.
//! - What is recorded is bounded: attributes, events and links of a span and their length, spans that wait for their export
//!   (further ones are dropped, and counted), the time of an export, and that of the last one at the end.
//! - An export that fails costs spans, never a request.
//!
//! The sampler respects a parent's decision; of spans without a parent it takes the configured share, or none.

mod config;
mod context;
mod current;
mod export;
pub mod otlp;
mod queue;
mod sampler;
mod span;

pub use config::{Config, ConfigError, DEFAULT_ENDPOINT, Endpoint, Fields};
pub use context::SpanContext;
pub use current::{child, client, current, within};
pub use export::{Limits, Provider, Service};
pub use span::{Kind, Parent, Span, Tracer, Value};
