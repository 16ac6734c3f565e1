//! Waiting for a condition that nothing announces.
//!
//! Invariant: it ends; a condition that does not hold within a minute fails the test.

use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(20);

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let held = async {
        while !holds().await {
            tokio::time::sleep(INTERVAL).await;
        }
    };
    tokio::time::timeout(DEADLINE, held).await.unwrap_or_else(|_| panic!("never {what}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_until_the_condition_holds() {
        let mut calls = 0;
        until("three calls", async || {
            calls += 1;
            calls == 3
        })
        .await;
        assert_eq!(calls, 3);
    }
}
