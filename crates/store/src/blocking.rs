//! Work that takes a thread for long, beside the threads that serve.
//!
//! Invariant: on a runtime with one thread the work runs inline, at a point that depends on nothing but the caller, so that a
//! simulation does the same in each run. Such a runtime has no other thread that would go on serving anyway.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinError;

/// Runs blocking work: on the pool for such work, or inline where the runtime has one thread.
///
/// # Errors
/// When the work panicked on the pool, or the runtime ends before it began. Inline a panic goes to the caller.
///
/// # Panics
/// Outside of a Tokio runtime.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    if runs_inline() { Ok(work()) } else { tokio::task::spawn_blocking(work).await }
}

/// Whether [`blocking`] runs its work inline here.
///
/// # Panics
/// Outside of a Tokio runtime.
#[must_use]
pub fn runs_inline() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::current;

    #[tokio::test]
    async fn runs_inline_on_a_runtime_with_one_thread() {
        let caller = current().id();
        assert!(blocking(move || current().id() == caller).await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn leaves_the_threads_that_serve() {
        let caller = current().id();
        assert!(blocking(move || current().id() != caller).await.unwrap());
    }
}
