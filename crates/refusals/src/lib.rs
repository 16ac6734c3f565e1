//! Refused writes, remembered for explanations: what was asked, by which user and field manager, and what refused it.
//!
//! A write that is refused leaves no revision. [`Refusals`] keeps the latest ones, bounded in bytes and age; the kind Refusal of
//! `kaji.dev/v1alpha1` ([`resource`]) shows them, and `kaji why` reads it.
//!
//! - `ring`: the memory. `rule`: what refused a write, by upstream's texts. `resource`: the kind.
//! - `decisions`: the kind Decision, which shows the memory of the crate of that name. `visibility`: what users see of both.
//!
//! Invariants:
//! - Of a write that succeeds nothing is decoded or kept.
//! - A refusal is shown to the user that was refused, and to users that may get the object that it is about; to no others.
//! - Of Secrets no message is kept: it may repeat what was written.

pub mod decisions;
mod resource;
mod ring;
mod rule;
mod visibility;

pub use resource::{GROUP, RESOURCE, VERSION, def};
pub use ring::{Limits, Refusals};
pub use rule::Rule;

/// A write that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The user.
    pub user: String,
    /// The request's user agent.
    pub user_agent: String,
    /// The field manager, if the request named one.
    pub field_manager: String,
    /// `create`
    pub verb: String,
    /// `""` for core.
    pub group: String,
    /// Plural.
    pub resource: String,
    /// `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for objects of the cluster.
    pub namespace: String,
    /// The object's name; its `generateName` if it had no name yet.
    pub name: String,
    /// `ReplicaSet web-1`: the controller that owns the object.
    pub owner: String,
    /// HTTP code.
    pub code: u16,
    /// `Forbidden`
    pub reason: String,
    /// The answer's message.
    pub message: String,
}

impl Refusal {
    /// Whether a refusal of this code is worth keeping: conflicts of optimistic writers, throttled requests and objects that are
    /// gone are the everyday life of controllers.
    pub fn is_kept(code: u16, reason: &str, message: &str) -> bool {
        match code {
            403 | 413 | 422 => true,
            400 => message.contains("admission webhook") || message.contains("denied"),
            409 => message.starts_with("Apply failed with"),
            429 => reason == "TooManyRequests" && message.contains("disruption budget"),
            500 => message.contains("webhook"),
            _ => false,
        }
    }
}
