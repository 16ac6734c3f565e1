//! The client's spans of requests to other servers, which learn of them by `traceparent`. Source: `Transport` of `otelhttp`, with
//! which upstream wraps the clients of webhooks and extension servers.
//!
//! Invariant: what is not traced keeps the headers that it has.

use crate::CallError;
use http::{HeaderMap, Method, Response};
use kaji_traces::Span;

/// Begins the span of a request to a server, if the present task works for one.
#[must_use]
pub fn begin(method: &Method, authority: &str) -> Option<Span> {
    let mut span = kaji_traces::client(method)?;
    span.set("http.request.method", method.as_str());
    span.set("server.address", authority);
    Some(span)
}

/// Names it in the headers of the request.
pub fn inject(span: Option<&Span>, headers: &mut HeaderMap) {
    if let Some(span) = span {
        span.inject(headers);
    }
}

/// Says what the answer is, or why there is none.
pub fn answered<B>(span: Option<&mut Span>, answer: &Result<Response<B>, CallError>) {
    let Some(span) = span else { return };
    match answer {
        Ok(response) => {
            span.set("http.response.status_code", response.status().as_u16());
            if response.status().as_u16() >= 400 {
                span.fail("");
            }
        }
        Err(error) => span.fail(&error.to_string()),
    }
}
