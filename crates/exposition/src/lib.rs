//! Metrics in Prometheus' text format 0.0.4, as components of Kubernetes serve them: the one place that writes it.
//!
//! Invariants:
//! - A family is served under the name that it was registered with: nothing is added to a counter's name.
//! - Families are in the order of their names, series in that of their labels' values, labels in that of their names with `le`
//!   at the end; numbers are written as Go's client library does.
//! - A family without series is not on the page; no family, and no series, is on it twice.
//! - Values of labels and texts of help are escaped.
//!
//! Source: client_golang's `prometheus/registry.go` and common's `expfmt/text_create.go`, `expfmt/encode.go`.

mod build;
mod content_type;
mod number;
mod open_metrics;
mod page;
mod process;
pub mod slis;

pub use build::{COMPILER, GO_VERSION, MINOR, MINOR_NUMBER, git_version, platform};
pub use content_type::{CONTENT_TYPE, content_type};
pub use page::{Family, Page, Sample, labels};
pub use process::Process;

use prometheus_client::registry::Registry;

/// The page of a registry alone.
#[must_use]
pub fn encode(registry: &Registry) -> String {
    let mut page = Page::default();
    page.registry(registry);
    page.finish()
}

/// The page of a component: a registry, the process and the version.
#[must_use]
pub fn component(registry: &Registry) -> String {
    let mut page = Page::default();
    page.registry(registry);
    page.process(&Process::read());
    page.build_info();
    page.finish()
}
