//! The controllers of certificates.k8s.io: approver, signers, cleaners, publisher of the server's trust bundle.

mod approving;
mod authority;
pub mod bundle;
pub mod cleaner;
mod der;
mod policy;
mod request;
pub mod signing;
#[cfg(test)]
mod tests;

pub use approving::spawn;
pub use authority::Authority;

/// How long ago a moment was; `None` when it is not past.
fn ago(moment: jiff::Timestamp, now: jiff::Timestamp) -> Option<jiff::SignedDuration> {
    Some(now.duration_since(moment)).filter(|d| d.is_positive())
}
