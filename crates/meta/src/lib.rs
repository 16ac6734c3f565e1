//! What every other crate needs to speak about Kubernetes objects: kinds and resources, `Status` errors, field
//! paths and validation texts, object metadata, selectors, quantities, times, generated names.
//!
//! Everything here is pure: no I/O, no async, no global clock or random source. Objects are `serde_json::Value`;
//! functions borrow from them and allocate only when there is something to report. Message texts are part of the
//! API (clients match on them), so they follow `k8s.io/apimachinery` word for word.

pub mod budget;
pub mod conditions;
pub mod cron;
pub mod duration;
pub mod equality;
pub mod features;
pub mod field;
pub mod fields;
pub mod gvk;
pub mod intstr;
pub mod json;
pub mod labels;
pub mod object;
pub mod objectmeta;
pub mod options;
pub mod pattern;
pub mod quantity;
pub mod query;
pub mod random;
pub mod resource_name;
pub mod status;
pub mod text;
pub mod time;
pub mod validation;

pub use budget::{Late, OverBudget, SizeBudget, Work};
pub use equality::semantic_equal;
pub use features::{Features, ServedVersions};
pub use field::{ErrorList, Path};
pub use gvk::{GroupKind, GroupResource, GroupVersion, GroupVersionKind, GroupVersionResource, TypeMeta};
pub use intstr::IntOrString;
pub use quantity::Quantity;
pub use query::Query;
pub use random::{Random, SeededRandom, SystemRandom, generate_name};
pub use status::{Cause, Details, Reason, Status};
pub use time::{Clock, ManualClock, MicroTime, SystemClock, Time};
