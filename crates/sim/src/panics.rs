//! How many panics there were in this process: a loop that catches one and goes on has failed all the same.
//!
//! Invariant: the former hook still reports each.

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering},
};

static PANICS: AtomicU64 = AtomicU64::new(0);
static HOOK: Once = Once::new();

/// Counts from now on; more calls change nothing.
pub fn count() {
    HOOK.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            former(panic);
        }));
    });
}

/// How many there were since [`count`].
#[must_use]
pub fn counted() -> u64 {
    PANICS.load(Ordering::Relaxed)
}
