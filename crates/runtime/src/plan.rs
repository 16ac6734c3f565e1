//! A plan: the writes that a reconcile decides on, as data, so that tests can compare it as text.
//!
//! Invariants:
//! - A stage runs only after all writes of the stages before it have succeeded, those of independent stages aside.
//! - After a failed write there is none to the same object, or to the same collection, in a later stage.

use crate::{
    client::Target,
    events::EventRecord,
    metrics::{Moment, Observation, Sample},
};
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
        /// The object or collection.
        target: Target,
        /// The object.
        body: Value,
    },
    /// PUT.
    Update {
        /// The object or collection.
        target: Target,
        /// The object, with its resourceVersion.
        body: Value,
    },
    /// PATCH.
    Patch {
        /// The object or collection.
        target: Target,
        /// The type of the patch.
        kind: PatchKind,
        /// The object.
        body: Value,
    },
    /// DELETE. A missing object counts as done.
    Delete {
        /// The object or collection.
        target: Target,
        /// `DeleteOptions`, with preconditions.
        options: Value,
    },
}

impl Write {
    /// The object or collection.
    pub fn target(&self) -> &Target {
        match self {
            Write::Create { target, .. }
            | Write::Update { target, .. }
            | Write::Patch { target, .. }
            | Write::Delete { target, .. } => target,
        }
    }

    /// `ReplicaSet web-1`: the controller of the object that is to be created; empty if there is none, or of another write.
    pub fn owner(&self) -> String {
        let Write::Create { body, .. } = self else { return String::new() };
        let text = |owner: &Value, field: &str| owner[field].as_str().unwrap_or_default().to_owned();
        kaji_meta::object::controller_of(body)
            .map(|owner| format!("{} {}", text(owner, "kind"), text(owner, "name")))
            .unwrap_or_default()
    }
}

/// A write with the events of its outcomes. `{name}` in a message stands for the written object's name,
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

/// Writes that are made side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    /// The writes.
    pub steps: Vec<Step>,
    /// Whether a failure holds back only later writes to the same object; otherwise it holds back all of them.
    pub independent: bool,
}

/// The result of a reconcile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Stages in order.
    pub stages: Vec<Stage>,
    /// Recorded whatever the writes do.
    pub events: Vec<EventRecord>,
    /// Reconcile the key again after this delay, even without a change.
    pub requeue_after: Option<Duration>,
    /// What is counted of it, each at its moment.
    pub observations: Vec<Observation>,
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

    /// Adds a stage; when one of its writes fails, no later stage runs. An empty one is left out.
    pub fn stage(self, steps: Vec<Step>) -> Self {
        self.push(Stage { steps, independent: false })
    }

    /// Adds a stage in which a failed write holds back only later writes to the same object, or to the same collection. The
    /// plan has failed all the same.
    pub fn independent(self, steps: Vec<Step>) -> Self {
        self.push(Stage { steps, independent: true })
    }

    fn push(mut self, stage: Stage) -> Self {
        if !stage.steps.is_empty() {
            self.stages.push(stage);
        }
        self
    }

    /// Adds an event.
    pub fn event(mut self, event: EventRecord) -> Self {
        self.events.push(event);
        self
    }

    /// Counts a sample at a moment.
    pub fn observe(mut self, moment: Moment, sample: Sample) -> Self {
        self.observations.push(Observation { moment, sample, elapsed: false });
        self
    }

    /// Counts a sample at a moment, with the seconds from when the work on the key began added to its value. Once a plan has
    /// succeeded, its writes are in the informers.
    pub fn observe_elapsed(mut self, moment: Moment, sample: Sample) -> Self {
        self.observations.push(Observation { moment, sample, elapsed: true });
        self
    }

    /// Requests another reconcile after a delay; the shortest one counts.
    pub fn again_after(mut self, wait: Duration) -> Self {
        self.requeue_after = Some(self.requeue_after.map_or(wait, |w| w.min(wait)));
        self
    }

    /// Whether it has neither writes nor events nor a delay.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty() && self.events.is_empty() && self.requeue_after.is_none()
    }

    /// All writes in order.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        self.stages.iter().flat_map(|stage| &stage.steps).map(|s| &s.write)
    }
}
