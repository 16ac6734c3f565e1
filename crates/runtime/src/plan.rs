//! A plan: what a reconcile wants written. Data, so that tests can read it.

use crate::{client::Target, events::EventRecord};
use serde_json::Value;
use std::time::Duration;

/// The patch types of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 7386
    Merge,
    /// RFC 6902
    Json,
    /// Strategic merge
    Strategic,
    /// Server-side apply, forced
    Apply,
}

impl PatchKind {
    /// Its content type.
    pub fn content_type(self) -> &'static str {
        match self {
            PatchKind::Merge => "application/merge-patch+json",
            PatchKind::Json => "application/json-patch+json",
            PatchKind::Strategic => "application/strategic-merge-patch+json",
            PatchKind::Apply => "application/apply-patch+yaml",
        }
    }
}

/// One write. Preconditions (uid, resourceVersion) are in the body or the options, as the API has them.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// POST to a collection or a subresource.
    Create {
        /// Where.
        target: Target,
        /// What.
        body: Value,
    },
    /// PUT.
    Update {
        /// Where.
        target: Target,
        /// What, with its resourceVersion.
        body: Value,
    },
    /// PATCH.
    Patch {
        /// Where.
        target: Target,
        /// How.
        kind: PatchKind,
        /// What.
        body: Value,
    },
    /// DELETE. A missing object counts as done.
    Delete {
        /// Where.
        target: Target,
        /// `DeleteOptions`, with preconditions.
        options: Value,
    },
}

impl Write {
    /// Where it goes.
    pub fn target(&self) -> &Target {
        match self {
            Write::Create { target, .. }
            | Write::Update { target, .. }
            | Write::Patch { target, .. }
            | Write::Delete { target, .. } => target,
        }
    }
}

/// A write with the events that its outcome deserves. `{name}` in a message stands for the written object's name,
/// `{error}` for the failure's text.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The write.
    pub write: Write,
    /// Recorded when it succeeds.
    pub on_success: Option<EventRecord>,
    /// Recorded when it fails (not on conflicts, which are retried silently).
    pub on_failure: Option<EventRecord>,
}

/// What a reconcile wants done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Stages in order; the writes of one stage run side by side. A stage runs only if all before it succeeded.
    pub stages: Vec<Vec<Step>>,
    /// Recorded whatever the writes do.
    pub events: Vec<EventRecord>,
    /// Work on the key again after this long, even if nothing changes.
    pub requeue_after: Option<Duration>,
}

impl Plan {
    /// Nothing to do.
    pub fn nothing() -> Self {
        Plan::default()
    }

    /// Adds a stage of one write without events.
    pub fn then(self, write: Write) -> Self {
        self.stage(vec![Step { write, on_success: None, on_failure: None }])
    }

    /// Adds a stage. An empty one is left out.
    pub fn stage(mut self, steps: Vec<Step>) -> Self {
        if !steps.is_empty() {
            self.stages.push(steps);
        }
        self
    }

    /// Adds an event.
    pub fn event(mut self, event: EventRecord) -> Self {
        self.events.push(event);
        self
    }

    /// Asks to be called again; the earliest wish wins.
    pub fn again_after(mut self, wait: Duration) -> Self {
        self.requeue_after = Some(self.requeue_after.map_or(wait, |w| w.min(wait)));
        self
    }

    /// Whether it asks for nothing at all.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty() && self.events.is_empty() && self.requeue_after.is_none()
    }

    /// All writes in order.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        self.stages.iter().flatten().map(|s| &s.write)
    }
}
