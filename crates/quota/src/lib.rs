//! What objects use of a quota, which of it a quota limits, and whether a change still fits.
//!
//! Admission charges quotas by it and the quota controller counts by it: both compute the same usage, or quotas drift.
//! Source: Kubernetes' "Resource Quotas" page; `pkg/quota/v1` and the admission plugin `ResourceQuota` for the details.
//!
//! Invariant: everything here is pure; objects are JSON in their storage version.

mod amounts;
mod check;
mod claims;
mod evaluator;
mod extended;
mod limited;
pub mod names;
mod pods;
mod scopes;

pub use amounts::{Usage, add, amounts};
pub use check::{Change, CheckError, check, total};
pub use evaluator::{Context, Evaluator, objects_of};
pub use extended::{charged_to_pod, pod_of};
pub use limited::{Limited, LimitedResource};
pub use pods::{Demand, best_effort, limits, requests};
