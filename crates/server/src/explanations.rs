//! `GET /kaji/why`: why an object is not as it was asked to be, or why a request was refused, with the caller's rights. What explains is a
//! parameter ([`Explain`]); here are the bounds.
//!
//! An explanation costs what its reads cost, and each of them is held, counted and recorded by itself. What is computed between them takes
//! no CPU permit: therefore few are computed at a time.
//!
//! Invariants:
//! - All that an explanation reads it reads by [`CallerReads`]: it contains nothing that its caller could not read by other requests.
//! - Bounded are the explanations that are computed at a time, those that wait for their turn, those of one user, and the time, the reads and
//!   the answer of each. One user cannot take all turns.

use crate::on_behalf::CallerReads;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use kaji_meta::{Query, Status};
use kaji_resource::UserInfo;
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::Semaphore;

/// The path, which upstream does not have.
pub const EXPLANATIONS_PATH: &str = "/kaji/why";
/// Explanations that are computed at a time.
const COMPUTED: usize = 4;
/// Explanations that are computed or wait.
const ADMITTED: usize = 32;
/// Those of one user.
const OF_ONE_USER: usize = 4;
/// How long one may take, and wait before that. `--request-timeout` may allow less.
const LONGEST: Duration = Duration::from_secs(30);
/// Bytes of an answer.
const LARGEST: usize = 1 << 20;
/// Seconds after which a client tries again.
const RETRY_AFTER: u32 = 1;

/// Explains objects and refusals.
pub trait Explain: Send + Sync {
    /// The parameters of a question.
    fn parameters(&self) -> &'static [&'static str];

    /// The explanation that the parameters are for, in JSON.
    fn explain(&self, reads: CallerReads, query: Query) -> BoxFuture<'static, Result<Bytes, Status>>;
}

/// The explanations of a server.
pub struct Explanations {
    explain: Arc<dyn Explain>,
    turns: Semaphore,
    /// How many explanations each user has in progress; none has zero.
    users: Mutex<HashMap<String, usize>>,
}

/// An explanation in progress, until it is dropped.
struct Admission<'a> {
    users: &'a Mutex<HashMap<String, usize>>,
    user: &'a str,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = users.get_mut(self.user) {
            *count -= 1;
            if *count == 0 {
                users.remove(self.user);
            }
        }
    }
}

impl Explanations {
    /// With what explains.
    pub fn new(explain: Arc<dyn Explain>) -> Explanations {
        Explanations { explain, turns: Semaphore::new(COMPUTED), users: Mutex::default() }
    }

    /// The answer to a user's request. Without parameters it says which there are: so a client finds out whether it may ask here.
    pub(crate) async fn answer(
        &self,
        user: &UserInfo,
        reads: CallerReads,
        query: &Query,
    ) -> Result<Bytes, Status> {
        if query.is_empty() {
            return Ok(json!({"parameters": self.explain.parameters()}).to_string().into());
        }
        self.bounded(&user.name, || self.explain.explain(reads, query.clone())).await
    }

    /// Computes an explanation within the bounds.
    async fn bounded(
        &self,
        user: &str,
        explain: impl FnOnce() -> BoxFuture<'static, Result<Bytes, Status>>,
    ) -> Result<Bytes, Status> {
        let _admission = self.admit(user)?;
        let computed = async {
            let _turn = self.turns.acquire().await.map_err(Status::internal)?;
            explain().await
        };
        let answer = tokio::time::timeout(LONGEST, computed).await;
        let answer = answer.map_err(|_| Status::timeout("the explanation was not made in time", 0))??;
        if answer.len() > LARGEST {
            return Err(Status::internal(format!("the explanation has more than {LARGEST} bytes")));
        }
        Ok(answer)
    }

    /// # Errors
    /// 429 when the user, or all users together, have as many explanations in progress as may be.
    fn admit<'a>(&'a self, user: &'a str) -> Result<Admission<'a>, Status> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = users.values().sum();
        let own = users.get(user).copied().unwrap_or_default();
        if all >= ADMITTED || own >= OF_ONE_USER {
            return Err(Status::too_many_requests("other explanations are being made", RETRY_AFTER));
        }
        users.insert(user.to_owned(), own + 1);
        Ok(Admission { users: &self.users, user })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::{pending, ready};

    struct Nothing;

    impl Explain for Nothing {
        fn parameters(&self) -> &'static [&'static str] {
            &[]
        }

        fn explain(&self, _: CallerReads, _: Query) -> BoxFuture<'static, Result<Bytes, Status>> {
            ready(Ok(Bytes::new())).boxed()
        }
    }

    fn explanations() -> Explanations {
        Explanations::new(Arc::new(Nothing))
    }

    fn forever() -> BoxFuture<'static, Result<Bytes, Status>> {
        pending().boxed()
    }

    fn made(bytes: usize) -> impl FnOnce() -> BoxFuture<'static, Result<Bytes, Status>> {
        move || ready(Ok(vec![b'x'; bytes].into())).boxed()
    }

    #[tokio::test]
    async fn one_user_has_a_few_explanations_in_progress_and_all_users_a_few_more() {
        let explanations = explanations();
        let mut held = vec![];
        for user in 0..ADMITTED / OF_ONE_USER {
            let user = format!("user-{user}");
            for _ in 0..OF_ONE_USER {
                let mut explanation = Box::pin({
                    let (explanations, user) = (&explanations, user.clone());
                    async move { explanations.bounded(&user, forever).await }
                });
                assert!(explanation.as_mut().now_or_never().is_none());
                held.push(explanation);
            }
            assert_eq!(explanations.bounded(&user, made(1)).await.unwrap_err().code, 429);
        }
        let refused = explanations.bounded("another", made(1)).await.unwrap_err();
        assert_eq!((refused.code, refused.suggests_retry()), (429, Some(RETRY_AFTER)));
        // Those that wait take the turns of those that end, or are given up by their clients.
        held.truncate(COMPUTED - 1);
        assert_eq!(explanations.bounded("another", made(1)).await.unwrap().len(), 1);
        held.clear();
        assert!(explanations.users.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn time_and_size_are_bounded() {
        let explanations = explanations();
        let began = tokio::time::Instant::now();
        let late = explanations.bounded("a", forever).await.unwrap_err();
        assert!(late.code == 504 && began.elapsed() >= LONGEST, "{late}");
        assert_eq!(explanations.bounded("a", made(LARGEST)).await.unwrap().len(), LARGEST);
        assert_eq!(explanations.bounded("a", made(LARGEST + 1)).await.unwrap_err().code, 500);
        // Waiting for a turn counts, too.
        let _all = explanations.turns.acquire_many(u32::try_from(COMPUTED).unwrap()).await.unwrap();
        assert_eq!(explanations.bounded("a", made(1)).await.unwrap_err().code, 504);
        assert!(explanations.users.lock().unwrap().is_empty());
    }
}
