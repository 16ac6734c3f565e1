//! Which request has made a revision: kept for a moment, for the history that is written beside the store.
//!
//! The store's events say what changed and not by which request, and some of them come before their write is acknowledged. A
//! write that is about to be committed has a number until its revision is known; a reader that has an event without an attribution
//! waits until no write with a number from before the event is under way.
//!
//! Invariants:
//! - An engine without [`Attributions`] pays nothing.
//! - Writes that are made on behalf of a request (a binding, an eviction) are attributed to it: the request goes with its task.
//! - Bounded: of revisions that are not taken, the oldest half is given up, and counted.

use crate::request::ApiRequest;
use kaji_meta::options::FIELD_MANAGER_MAX_LENGTH;
use kaji_resource::{UserInfo, Verb};
use kaji_store::Revision;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Revisions that wait to be taken.
const KNOWN: usize = 64 * 1024;
/// The longest text of a request that is kept: names in requests are as long as clients like.
const TEXT: usize = 512;

tokio::task_local! {
    /// The request that the present task carries out.
    static REQUEST: Arc<Attribution>;
}

/// The request that has made a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// The user.
    pub user: String,
    /// The request's user agent; empty for writes of the server itself.
    pub user_agent: String,
    /// The field manager: that of the request, else the first part of its user agent.
    pub field_manager: String,
    /// `patch`; empty for writes of the server itself.
    pub verb: String,
    /// `status`; empty for the object itself.
    pub subresource: String,
    /// The audit id; empty for writes of the server itself.
    pub audit_id: String,
}

impl Attribution {
    fn of_request(req: &ApiRequest) -> Attribution {
        let manager = match req.query.text("fieldManager") {
            "" => req.user_agent.split('/').next().unwrap_or_default(),
            named => named,
        };
        Attribution {
            user: cut(&req.user.name, TEXT),
            user_agent: cut(&req.user_agent, TEXT),
            field_manager: cut(manager, FIELD_MANAGER_MAX_LENGTH),
            verb: req.verb.as_str().to_owned(),
            subresource: req.subresource.clone(),
            audit_id: cut(&req.audit_id, TEXT),
        }
    }
}

fn cut(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text[..end].to_owned()
}

/// Carries a request out; the writes in it are attributed to the request if `attributions` are kept.
pub(crate) async fn within<F: Future>(
    attributions: Option<&Arc<Attributions>>,
    req: &ApiRequest,
    work: F,
) -> F::Output {
    let reads = matches!(req.verb, Verb::Get | Verb::List | Verb::Watch);
    match attributions.filter(|_| !reads) {
        Some(_) => REQUEST.scope(Arc::new(Attribution::of_request(req)), work).await,
        None => work.await,
    }
}

#[derive(Default)]
struct State {
    next: u64,
    under_way: BTreeSet<u64>,
    known: Vec<(Revision, Arc<Attribution>)>,
    given_up: u64,
}

/// The attributions of recent revisions.
#[derive(Default)]
pub struct Attributions(Mutex<State>);

impl Attributions {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write that is about to be committed.
    pub(crate) fn begin(self: &Arc<Self>) -> PendingCommit {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number);
        PendingCommit { attributions: self.clone(), number }
    }

    /// The number that the next write will have.
    pub fn next_number(&self) -> u64 {
        self.lock().next
    }

    /// The lowest number of the writes that are under way. The attributions of all writes with lower ones can be taken.
    pub fn first_under_way(&self) -> Option<u64> {
        self.lock().under_way.first().copied()
    }

    /// The attributions that were not taken yet, in the order in which the writes were acknowledged.
    pub fn take(&self) -> Vec<(Revision, Arc<Attribution>)> {
        std::mem::take(&mut self.lock().known)
    }

    /// How many were given up because they were not taken in time.
    pub fn given_up(&self) -> u64 {
        self.lock().given_up
    }
}

/// A write that is being committed. One that is dropped was not made, or its outcome is unknown.
pub(crate) struct PendingCommit {
    attributions: Arc<Attributions>,
    number: u64,
}

impl PendingCommit {
    /// It has made this revision, for the request of the present task, or else for this user.
    pub fn committed(self, revision: Revision, user: &UserInfo) {
        let own = || Arc::new(Attribution { user: cut(&user.name, TEXT), ..Attribution::default() });
        let attribution = REQUEST.try_with(Arc::clone).unwrap_or_else(|_| own());
        let mut state = self.attributions.lock();
        if state.known.len() >= KNOWN {
            state.known.drain(..KNOWN / 2);
            state.given_up += KNOWN as u64 / 2;
        }
        state.known.push((revision, attribution));
    }
}

impl Drop for PendingCommit {
    fn drop(&mut self) {
        self.attributions.lock().under_way.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::GroupResource;

    fn request() -> ApiRequest {
        let own =
            ApiRequest::own(Verb::Update, GroupResource::new("", "configmaps"), "v1", "kubectl/v1 (linux)");
        ApiRequest { audit_id: "a-1".into(), ..own }
    }

    #[tokio::test]
    async fn writes_of_a_request_are_attributed_to_it() {
        let attributions = Arc::new(Attributions::default());
        let user = UserInfo { name: "system:other".into(), ..UserInfo::default() };
        within(Some(&attributions), &request(), async {
            attributions.begin().committed(7, &user);
        })
        .await;
        attributions.begin().committed(8, &user);
        let taken = attributions.take();
        assert_eq!(taken[0].0, 7);
        assert_eq!(taken[0].1.field_manager, "kubectl");
        assert_eq!(taken[0].1.audit_id, "a-1");
        assert_eq!((taken[1].0, taken[1].1.user.as_str()), (8, "system:other"));
        assert!(attributions.take().is_empty());
    }

    #[test]
    fn readers_wait_for_writes_from_before() {
        let attributions = Arc::new(Attributions::default());
        let first = attributions.begin();
        let number = attributions.next_number();
        let second = attributions.begin();
        assert!(attributions.first_under_way() < Some(number));
        drop(first);
        assert_eq!(attributions.first_under_way(), Some(number));
        drop(second);
        assert_eq!(attributions.first_under_way(), None);
    }

    #[test]
    fn what_is_not_taken_is_bounded() {
        let attributions = Arc::new(Attributions::default());
        for revision in 0..KNOWN as u64 + 10 {
            attributions.begin().committed(revision, &UserInfo::default());
        }
        assert_eq!(attributions.given_up(), KNOWN as u64 / 2);
        let taken = attributions.take();
        assert_eq!(taken.last().map(|(revision, _)| *revision), Some(KNOWN as u64 + 9));
        assert_eq!(cut("aé", 2), "a");
    }
}
