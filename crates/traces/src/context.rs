//! The context of a span in headers: `traceparent` and `tracestate`. Source: W3C Trace Context, and `TraceContext` of
//! OpenTelemetry's Go SDK for what it takes.
//!
//! Invariants: a malformed `traceparent` is none; a malformed `tracestate` is left out and says nothing about `traceparent`;
//! both are bounded.

use http::{HeaderMap, HeaderName, HeaderValue};
use kaji_meta::{
    random::Random,
    text::{from_hex, hex},
};
use std::sync::Arc;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Members of a `tracestate`.
const MEMBERS: usize = 32;
/// Bytes of a `tracestate` that is propagated: W3C asks for 512 at least.
const STATE: usize = 2048;
const SAMPLED: u8 = 1;

/// What of a span its children need, here or in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanContext {
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
    state: Option<Arc<str>>,
    /// Whether it came in a header.
    remote: bool,
}

impl SpanContext {
    #[cfg(test)]
    pub(crate) fn from_parts(trace: [u8; 16], span: [u8; 8], flags: u8) -> SpanContext {
        SpanContext { trace, span, flags, state: None, remote: false }
    }

    /// A span in the trace of its parent, or in a new one.
    pub(crate) fn new(parent: Option<&SpanContext>, random: &dyn Random) -> SpanContext {
        let span = random.u64().max(1).to_be_bytes();
        match parent {
            Some(parent) => SpanContext { span, remote: false, ..parent.clone() },
            None => {
                let trace = u128::from(random.u64()) << 64 | u128::from(random.u64());
                SpanContext { trace: trace.max(1).to_be_bytes(), span, flags: 0, state: None, remote: false }
            }
        }
    }

    pub(crate) fn decided(self, sampled: bool) -> SpanContext {
        let flags = if sampled { self.flags | SAMPLED } else { self.flags & !SAMPLED };
        SpanContext { flags, ..self }
    }

    /// Whether the span is recorded.
    #[must_use]
    pub fn sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    pub(crate) fn trace(&self) -> &[u8; 16] {
        &self.trace
    }

    pub(crate) fn span(&self) -> &[u8; 8] {
        &self.span
    }

    pub(crate) fn state(&self) -> &str {
        self.state.as_deref().unwrap_or_default()
    }

    pub(crate) fn flags(&self) -> u8 {
        self.flags
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.remote
    }

    /// The context that the headers of a request name.
    #[must_use]
    pub fn extract(headers: &HeaderMap) -> Option<SpanContext> {
        let parent = headers.get(TRACEPARENT)?.to_str().ok()?;
        let (trace, span, flags) = traceparent(parent)?;
        let state = headers.get(TRACESTATE).and_then(|state| state.to_str().ok());
        let state = state.filter(|state| !state.is_empty() && is_state(state)).map(Arc::from);
        Some(SpanContext { trace, span, flags, state, remote: true })
    }

    /// Names this context in the headers of a request, instead of any other.
    pub fn inject(&self, headers: &mut HeaderMap) {
        let text = format!("00-{}-{}-{:02x}", hex(&self.trace), hex(&self.span), self.flags);
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(TRACEPARENT, value);
        }
        headers.remove(TRACESTATE);
        if let Some(value) = self.state.as_ref().and_then(|state| HeaderValue::from_str(state).ok()) {
            headers.insert(TRACESTATE, value);
        }
    }
}

/// `version-trace-span-flags`. Versions that are not known yet may have more behind it.
fn traceparent(text: &str) -> Option<([u8; 16], [u8; 8], u8)> {
    let mut parts = text.splitn(5, '-');
    let [version] = bytes::<1>(parts.next()?)?;
    let (trace, span, [flags]) =
        (bytes::<16>(parts.next()?)?, bytes::<8>(parts.next()?)?, bytes::<1>(parts.next()?)?);
    let more = parts.next().is_some();
    let unknown = version == 0 && (more || flags > 2);
    if version == 0xff || unknown || trace == [0; 16] || span == [0; 8] {
        return None;
    }
    Some((trace, span, flags & SAMPLED))
}

/// Exactly so many bytes in lower case.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || text.bytes().any(|b| b.is_ascii_uppercase()) {
        return None;
    }
    from_hex(text)?.try_into().ok()
}

fn is_state(text: &str) -> bool {
    let members: Vec<&str> =
        text.split(',').map(|m| m.trim_matches([' ', '\t'])).filter(|m| !m.is_empty()).collect();
    let keys: Vec<&str> = members.iter().filter_map(|m| m.split_once('=').map(|(key, _)| key)).collect();
    let repeated = keys.iter().enumerate().any(|(i, key)| keys[..i].contains(key));
    text.len() <= STATE && members.len() <= MEMBERS && !repeated && members.iter().all(|m| is_member(m))
}

fn is_member(text: &str) -> bool {
    let Some((key, value)) = text.split_once('=') else { return false };
    let plain =
        |part: &str| part.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/'));
    let lower = |part: &str| part.starts_with(|c: char| c.is_ascii_lowercase());
    let digit = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
    let key = match key.split_once('@') {
        None => key.len() <= 256 && lower(key) && plain(key),
        Some((tenant, system)) => {
            tenant.len() <= 241
                && (lower(tenant) || digit(tenant))
                && plain(tenant)
                && system.len() <= 14
                && lower(system)
                && plain(system)
        }
    };
    let printable = value.bytes().all(|b| matches!(b, 0x20..=0x7e) && b != b',' && b != b'=');
    key && !value.is_empty() && value.len() <= 256 && printable && !value.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(parent: &str, state: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_bytes(parent.as_bytes()).unwrap());
        if let Some(state) = state {
            headers.insert(TRACESTATE, HeaderValue::from_bytes(state.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn what_is_extracted_is_injected() {
        let extracted = SpanContext::extract(&headers(GOOD, Some("a=1,b@c=x y"))).unwrap();
        assert!(extracted.sampled() && extracted.is_remote());
        let mut out = headers("stale", Some("stale=1"));
        extracted.inject(&mut out);
        assert_eq!(out, headers(GOOD, Some("a=1,b@c=x y")));
        SpanContext { state: None, ..extracted }.decided(false).inject(&mut out);
        assert_eq!(out, headers(&GOOD.replace("-01", "-00"), None));
    }

    #[test]
    fn malformed_contexts_are_none() {
        let taken = |text: &str| SpanContext::extract(&headers(text, None)).is_some();
        assert!(taken(GOOD));
        assert!(taken(&GOOD.replacen("00-", "cc-", 1)), "a later version");
        assert!(taken(&format!("{}-more", GOOD.replacen("00-", "cc-", 1))));
        for text in [
            "",
            "-",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-09",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-éaf7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        ] {
            assert!(!taken(text), "{text}");
        }
    }

    #[test]
    fn a_malformed_state_is_left_out() {
        let many = (0..33).map(|i| format!("k{i}=v")).collect::<Vec<_>>().join(",");
        let long = (0..20).map(|i| format!("k{i}={}", "v".repeat(200))).collect::<Vec<_>>().join(",");
        for state in ["a", "A=1", "a=", "a=1,a=2", "a=x=y", "@b=1", "a@=1", &many, &long] {
            let context = SpanContext::extract(&headers(GOOD, Some(state))).unwrap();
            assert_eq!(context.state(), "", "{state}");
        }
        assert_eq!(SpanContext::extract(&headers(GOOD, Some("a=1, b=2"))).unwrap().state(), "a=1, b=2");
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_left_out(parent in "[ -~]{0,80}", state in "[ -~]{0,300}") {
            if let Some(context) = SpanContext::extract(&headers(&parent, Some(&state))) {
                prop_assert_ne!(context.trace(), &[0; 16]);
                prop_assert!(context.state().len() <= STATE);
            }
        }
    }
}
