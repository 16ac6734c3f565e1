//! Resyncs: handlers are called for every object from time to time, so that what a loop has missed is looked at again.
//!
//! Source: client-go's shared informers, with the period of upstream's `--min-resync-period`.
//!
//! Invariant: nothing is asked of the server.

use super::Observed;
use crate::time;
use kaji_meta::{
    random::{Random, fraction},
    time::Clock,
};
use std::{fmt, sync::Arc, time::Duration};

/// How often the handlers of an informer are called for every object.
#[derive(Clone)]
pub struct Resync {
    /// The time between two resyncs is between this and twice as long.
    pub shortest: Duration,
    /// Chooses it.
    pub random: Arc<dyn Random>,
}

impl fmt::Debug for Resync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resync").field("shortest", &self.shortest).finish_non_exhaustive()
    }
}

impl Resync {
    /// Resyncs with a shortest time between them; none for no time.
    pub fn every(shortest: Duration, random: Arc<dyn Random>) -> Option<Resync> {
        (!shortest.is_zero()).then_some(Resync { shortest, random })
    }
}

/// Resyncs an informer again and again.
pub(super) async fn run(informer: Arc<dyn Observed>, clock: Arc<dyn Clock>, resync: Resync) {
    loop {
        time::sleep(&*clock, resync.shortest).await;
        time::sleep(&*clock, resync.shortest.mul_f64(fraction(&*resync.random))).await;
        informer.resync();
    }
}
