//! Counters with upstream's names, and what is said about events that are lost.
//!
//! Invariants: every event that is lost is counted; the log says which, or at least how many.

use crate::{Event, Level};
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use std::sync::{Arc, Mutex, PoisonError};

/// Lines about lost events in a second; the rest are only counted, or the log would be the next to drown.
const LINES: u32 = 100;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PluginLabel {
    plugin: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LevelLabel {
    level: &'static str,
}

/// The lines of the current second.
#[derive(Debug, Default)]
struct Lines {
    second: i64,
    written: u32,
    kept_back: u64,
}

/// The metrics of audit.
#[derive(Debug)]
pub struct Metrics {
    events: Counter,
    errors: Family<PluginLabel, Counter>,
    levels: [Counter; 4],
    rejected: Counter,
    lines: Mutex<Lines>,
}

impl Metrics {
    /// Puts them on a page.
    pub fn new(registry: &mut Registry) -> Self {
        let (events, rejected) = (Counter::default(), Counter::default());
        let errors = Family::default();
        let levels = Family::<LevelLabel, Counter>::default();
        let help = "[ALPHA] Counter of audit events generated and sent to the audit backend.";
        registry.register("apiserver_audit_event_total", help, events.clone());
        let help = "[ALPHA] Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.";
        registry.register("apiserver_audit_error_total", help, errors.clone());
        let help = "[ALPHA] Counter of policy levels for audit events (1 per request).";
        registry.register("apiserver_audit_level_total", help, levels.clone());
        let help = "[ALPHA] Counter of apiserver requests rejected due to an error in audit logging backend.";
        registry.register("apiserver_audit_requests_rejected_total", help, rejected.clone());
        let levels =
            Level::ALL.map(|level| levels.get_or_create(&LevelLabel { level: level.as_str() }).clone());
        Metrics { events, errors, levels, rejected, lines: Mutex::default() }
    }

    /// An event is on its way.
    pub fn event(&self) {
        self.events.inc();
    }

    /// The policy has spoken about a request.
    pub fn level(&self, level: Level) {
        self.levels[level as usize].inc();
    }

    /// A request is turned away because it cannot be recorded.
    pub fn rejected(&self) {
        self.rejected.inc();
    }

    /// Events are lost, or may be.
    pub fn lost(&self, plugin: &'static str, error: &str, events: &[Arc<Event>], now: Timestamp) {
        self.errors.get_or_create(&PluginLabel { plugin }).inc_by(events.len() as u64);
        let (lines, kept_back) = self.lines(events.len(), now.as_second());
        if kept_back > 0 {
            tracing::error!("further {kept_back} audit events were lost");
        }
        if lines > 0 {
            let affected = events.len();
            tracing::error!("Error in audit plugin '{plugin}' affecting {affected} audit events: {error}");
        }
        for event in &events[..lines] {
            tracing::error!("Impacted event: {}", event.line());
        }
    }

    /// How many lines may be written now, and how many could not be before.
    fn lines(&self, wanted: usize, second: i64) -> (usize, u64) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = 0;
        if lines.second != second {
            before = lines.kept_back;
            *lines = Lines { second, ..Lines::default() };
        }
        let allowed = wanted.min((LINES - lines.written) as usize);
        lines.written += allowed as u32;
        lines.kept_back += (wanted - allowed) as u64;
        (allowed, before)
    }

    /// How many events could not be reported in lines yet.
    pub fn kept_back(&self) -> u64 {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).kept_back
    }
}
