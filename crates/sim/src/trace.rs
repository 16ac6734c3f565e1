//! The trace of a run: what was written when. Two runs of one seed should have the same; where they differ, something depends on more
//! than the seed.
//!
//! Invariant: the digest covers the time, key and kind of every event, and the content of objects but for what certificates and
//! keys are in, which are drawn from the machine's randomness.

use kaji_store::{Event, EventKind};
use serde_json::Value;
use std::{collections::VecDeque, fmt::Write as _};

/// Resources that hold certificates or keys.
const UNTRACED: &[&str] = &[
    "/registry/core/configmaps/",
    "/registry/core/secrets/",
    "/registry/certificates.k8s.io/",
    "/registry/apiregistration.k8s.io/",
];
/// Lines that are kept.
const KEPT: usize = 4_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Trace {
    digest: u64,
    events: u64,
    lines: VecDeque<String>,
}

impl Trace {
    /// Adds an event, at so many milliseconds since the start.
    pub fn add(&mut self, at_millis: u64, event: &Event, object: Option<&Value>) {
        let untraced = UNTRACED.iter().find(|key| event.kv.key.starts_with(**key));
        let content = match (event.kind, object) {
            (EventKind::Put, Some(object)) if untraced.is_none() => fnv(0, object.to_string().as_bytes()),
            _ => 0,
        };
        let verb = match (event.kind, event.kv.version) {
            (EventKind::Delete, _) => "delete",
            (EventKind::Put, 1) => "create",
            (EventKind::Put, _) => "update",
        };
        let mut line = format!(
            "{}.{:03} {verb} {}",
            at_millis / 1000,
            at_millis % 1000,
            untraced.unwrap_or(&&*event.kv.key)
        );
        let _ = write!(line, " {content:016x}");
        self.digest = fnv(self.digest, line.as_bytes());
        self.events += 1;
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// A digest of everything that was added.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// How much was added.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The last lines.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

/// FNV-1a, continued from a former digest. The standard library's hashers may change between its versions.
fn fnv(from: u64, bytes: &[u8]) -> u64 {
    let start = from ^ 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
