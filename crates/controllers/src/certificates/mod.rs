//! The controllers of certificates.k8s.io: approver, signers, cleaners, publisher of the server's trust bundle.

mod approving;
mod authority;
mod bundle;
mod cleaner;
mod der;
mod policy;
mod request;
mod signing;
#[cfg(test)]
mod tests;

pub use approving::spawn;
pub use authority::Authority;

use crate::Config;
use kaji_runtime::{Controller, Informers};
use std::sync::Arc;

/// Those of the controllers that are plain reconcilers.
pub fn controllers(informers: &Arc<Informers>, config: &Config) -> Vec<Controller> {
    let mut all: Vec<Controller> = cleaner::controllers(informers).into();
    if let Some(authority) = &config.authority {
        all.extend(signing::controllers(informers, authority));
    }
    // Without certificates there is nothing to publish.
    if !config.root_ca.is_empty() {
        all.push(bundle::controller(informers, &config.root_ca));
    }
    all
}

/// How long ago a moment was; `None` when it is not past.
fn ago(moment: jiff::Timestamp, now: jiff::Timestamp) -> Option<jiff::SignedDuration> {
    Some(now.duration_since(moment)).filter(|d| d.is_positive())
}
