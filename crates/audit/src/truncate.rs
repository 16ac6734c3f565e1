//! Events that are too large for where they go. Source: `plugin/pkg/audit/truncate`.

use crate::{Event, Level, TruncateOptions};
use std::{collections::BTreeMap, sync::Arc};

const ANNOTATION: &str = "audit.k8s.io/truncated";

/// How an event is sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Fit {
    /// In this form, maybe without its bodies.
    Encoded(Vec<u8>),
    /// Not at all: even without its bodies it is too large.
    TooLarge,
}

/// Encodes an event, without its bodies if it would be too large with them.
pub fn fit(event: &Event, limits: &TruncateOptions, encode: impl Fn(&Event) -> Vec<u8>) -> Fit {
    if !limits.enabled {
        return Fit::Encoded(encode(event));
    }
    let most = limits.max_event_size;
    let fits = |encoded: &Vec<u8>| encoded.len() as u64 <= most;
    let whole = (event.bodies() as u64 <= most).then(|| encode(event));
    match whole {
        Some(encoded) if fits(&encoded) => Fit::Encoded(encoded),
        _ if event.level < Level::Request => Fit::TooLarge,
        _ => {
            let encoded = encode(&bare(event));
            if fits(&encoded) { Fit::Encoded(encoded) } else { Fit::TooLarge }
        }
    }
}

/// The event without its bodies, which says so.
fn bare(event: &Event) -> Event {
    let mut annotations: BTreeMap<String, String> = (*event.annotations).clone();
    annotations.insert(ANNOTATION.into(), "true".into());
    Event { request_object: None, response_object: None, annotations: Arc::new(annotations), ..event.clone() }
}
