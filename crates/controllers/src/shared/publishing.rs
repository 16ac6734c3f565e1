//! What the publishers of certificates have in common: the code by which their syncs are counted.
//!
//! Source: upstream's `pkg/controller/certificates/rootcacertpublisher/metrics.go`.

use kaji_runtime::{Failure, metrics::Label};

/// `200`, or the code of the first write that failed; `500` where the failure has none. Failures that are `settled` need no other
/// sync and count as success.
pub fn outcome_code(failures: &[Failure], settled: impl Fn(&Failure) -> bool) -> Label {
    match failures.iter().find(|failure| !settled(failure)).map(|failure| failure.error.code()) {
        None => "200".into(),
        Some(None | Some(0)) => "500".into(),
        Some(Some(code)) => code.to_string().into(),
    }
}
