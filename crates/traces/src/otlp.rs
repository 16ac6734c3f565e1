//! The messages of OTLP that are sent, by their field numbers. Source: `opentelemetry/proto/trace/v1/trace.proto` and
//! `collector/trace/v1/trace_service.proto` of OpenTelemetry's protocol, which are stable.

/// The method that takes spans.
pub const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// [`Span::flags`] says whether the parent is in another process.
pub const KNOWS_REMOTE: u32 = 0x100;
/// In [`Span::flags`]: the parent is in another process.
pub const REMOTE: u32 = 0x200;
/// [`Status::code`] of a span that failed.
pub const ERROR: i32 = 2;

/// `ExportTraceServiceRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportRequest {
    /// Spans by their process.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// `ExportTraceServiceResponse`
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportResponse {
    /// What was not taken.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// `ExportTracePartialSuccess`
#[derive(Clone, PartialEq, prost::Message)]
pub struct PartialSuccess {
    /// How many.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    /// Why.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// Spans of a process.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResourceSpans {
    /// The process.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// Its spans by what has made them.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// A process.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    /// What is known of it.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// Spans of an instrumentation.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScopeSpans {
    /// The instrumentation.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// Its spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

/// `InstrumentationScope`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Scope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// A span.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Span {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// `tracestate`
    #[prost(string, tag = "3")]
    pub trace_state: String,
    /// 8 bytes, or none of a root.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// Its name.
    #[prost(string, tag = "5")]
    pub name: String,
    /// Internal 1, server 2, client 3.
    #[prost(int32, tag = "6")]
    pub kind: i32,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// What is known of it.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    /// Attributes beyond the limit.
    #[prost(uint32, tag = "10")]
    pub dropped_attributes_count: u32,
    /// What happened in it.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
    /// Events beyond the limit.
    #[prost(uint32, tag = "12")]
    pub dropped_events_count: u32,
    /// Spans that it has to do with.
    #[prost(message, repeated, tag = "13")]
    pub links: Vec<Link>,
    /// Whether it failed.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    /// Those of its context, and where its parent is.
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// Something that happened in a span.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Event {
    /// Nanoseconds since 1970.
    #[prost(fixed64, tag = "1")]
    pub time_unix_nano: u64,
    /// What.
    #[prost(string, tag = "2")]
    pub name: String,
    /// More of it.
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<KeyValue>,
}

/// A span of another trace.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Link {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// `tracestate`
    #[prost(string, tag = "3")]
    pub trace_state: String,
    /// As [`Span::flags`].
    #[prost(fixed32, tag = "6")]
    pub flags: u32,
}

/// Whether a span failed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    /// Why.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Unset 0, ok 1, error 2.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// An attribute.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AnyValue {
    /// What it is.
    #[prost(oneof = "Any", tags = "1, 2, 3")]
    pub value: Option<Any>,
}

/// A value; those of other types are not sent.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Any {
    /// `string_value`
    #[prost(string, tag = "1")]
    Text(String),
    /// `bool_value`
    #[prost(bool, tag = "2")]
    Bool(bool),
    /// `int_value`
    #[prost(int64, tag = "3")]
    Int(i64),
}
