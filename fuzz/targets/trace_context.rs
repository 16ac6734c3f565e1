//! `traceparent` and `tracestate` of requests: what is extracted is injected as it came.

#![no_main]

use http::{HeaderMap, HeaderValue};
use kaji_traces::SpanContext;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut lines = input.splitn(2, |byte| *byte == b'\n');
    let mut headers = HeaderMap::new();
    for (name, value) in ["traceparent", "tracestate"].into_iter().zip(&mut lines) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    }
    let Some(context) = SpanContext::extract(&headers) else { return };
    let mut again = HeaderMap::new();
    context.inject(&mut again);
    assert_eq!(SpanContext::extract(&again).as_ref(), Some(&context));
});
