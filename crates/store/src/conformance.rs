//! The laws of a [`Store`], as one suite that runs against any backend.
//!
//! A law gets a [`Subject`], uses only keys under a separate prefix, and assumes nothing about the revision it starts
//! at; so it also runs against a shared server. Invariant: a law never sleeps; it waits for what has to happen.
//!
//! ```no_run
//! # use kaji_store::{conformance, memory::MemoryStore};
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let report = conformance::run(|| conformance::Subject::new(MemoryStore::new().unwrap())).await;
//! assert_eq!(report, []);
//! # Ok(())
//! # }
//! ```

mod durable;
mod history;
mod leases;
mod txns;
mod watches;

use crate::{KeyValue, Op, Range, Revision, Store, StoreError, Txn, TxnOutcome, WatchBatch, WatchStream};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Moves the store's clock forward and lets the store notice.
pub type Advance = Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;
/// Opens the store anew after it was closed, on the same data.
pub type Reopen = Box<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Store>, StoreError>> + Send + Sync>;

/// A store under test, with what the suite may do to its surroundings.
pub struct Subject {
    /// The store. Empty under the laws' prefixes.
    pub store: Arc<dyn Store>,
    /// How to make time pass; without it the laws that need it to are skipped.
    pub advance: Option<Advance>,
    /// How to restart; without it the laws about restarts are skipped.
    pub reopen: Option<Reopen>,
    /// Dropped after the store; a directory, say.
    pub keep: Option<Box<dyn Any + Send + Sync>>,
}

impl Subject {
    /// A store with nothing around it.
    pub fn new(store: impl Store) -> Subject {
        Subject { store: Arc::new(store), advance: None, reopen: None, keep: None }
    }
}

/// A law that does not hold, and how that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the law.
    pub law: &'static str,
    /// What was seen.
    pub seen: String,
}

type Outcome = Result<(), Broken>;

/// What a law saw.
#[derive(Debug)]
struct Broken(String);

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Broken {
        Broken(format!("unexpected error: {error}"))
    }
}

type Law = for<'a> fn(&'a Subject) -> BoxFuture<'a, Outcome>;

macro_rules! laws {
    ($($module:ident::$law:ident),* $(,)?) => {
        &[$((stringify!($law), |subject| Box::pin($module::$law(subject)))),*]
    };
}

const LAWS: &[(&str, Law)] = laws![
    txns::revisions_and_versions_count,
    txns::compare_and_set,
    txns::transactions_are_atomic,
    txns::mistakes_are_refused,
    txns::one_creator_wins,
    txns::concurrent_updates_are_serial,
    history::ranges_select_and_limit,
    history::old_revisions_stay_readable,
    history::future_is_refused,
    history::compaction_ends_history,
    watches::from_now_and_from_history,
    watches::no_gap_no_repeat_in_order,
    watches::whole_transactions_with_previous,
    watches::prefixes_are_kept_apart,
    watches::progress_follows_other_keys,
    watches::slow_watch_catches_up,
    watches::events_come_no_later_than_answers,
    watches::future_start_waits,
    watches::large_transactions_stay_whole,
    watches::a_watch_that_compaction_overtakes_says_so,
    leases::expiry_deletes_and_tells,
    leases::keep_alive_and_revoke,
    leases::the_last_put_decides_the_lease,
    durable::everything_survives_a_restart,
    durable::watches_resume_after_a_restart,
    durable::leases_keep_their_time,
    durable::closed_is_closed,
];

/// Runs every law against a new subject. Answers the laws that do not hold.
pub async fn run(mut factory: impl FnMut() -> Subject) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (law, check) in LAWS {
        let subject = factory();
        if let Err(Broken(seen)) = check(&subject).await {
            violations.push(Violation { law, seen });
        }
        subject.store.close().await;
    }
    violations
}

macro_rules! ensure {
    ($condition:expr) => {
        if !$condition {
            return Err($crate::conformance::Broken(format!(
                "line {}: {} is false",
                line!(),
                stringify!($condition)
            )));
        }
    };
}
macro_rules! ensure_eq {
    ($left:expr, $right:expr) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            let what = stringify!($left);
            return Err($crate::conformance::Broken(format!(
                "line {}: {what} is {left:?} and should be {right:?}",
                line!()
            )));
        }
    }};
}
pub(crate) use {ensure, ensure_eq};

/// Commits, and answers the revision and what was there before.
async fn commit(store: &dyn Store, txn: Txn) -> Result<(Revision, Vec<Option<KeyValue>>), Broken> {
    match store.txn(txn).await? {
        TxnOutcome::Committed { revision, previous } => Ok((revision, previous)),
        conflict => Err(Broken(format!("unexpected conflict: {conflict:?}"))),
    }
}

async fn put(store: &dyn Store, key: &str, value: &str) -> Result<Revision, Broken> {
    Ok(commit(store, Txn::put(key, value.to_owned())).await?.0)
}

async fn delete(store: &dyn Store, key: &str) -> Result<Revision, Broken> {
    let ops = vec![Op::Delete { key: key.to_owned() }];
    Ok(commit(store, Txn { compare: Vec::new(), ops }).await?.0)
}

async fn get(store: &dyn Store, key: &str) -> Result<Option<KeyValue>, Broken> {
    Ok(store.range(Range::key(key)).await?.kvs.pop())
}

/// "key=value" of a range, which is what most laws are about.
async fn show(store: &dyn Store, range: Range) -> Result<Vec<String>, Broken> {
    let kvs = store.range(range).await?.kvs;
    Ok(kvs.iter().map(|kv| format!("{}={}", kv.key, String::from_utf8_lossy(&kv.value))).collect())
}

/// Reads a watch until it has delivered everything up to `to`; checks that batches move forward.
async fn drain(watch: &mut WatchStream, from: Revision, to: Revision) -> Result<Vec<WatchBatch>, Broken> {
    let mut batches: Vec<WatchBatch> = Vec::new();
    let mut at = from.saturating_sub(1);
    while at < to {
        let Some(batch) = watch.next().await else {
            return Err(Broken(format!("watch ended at {at}, before {to}")));
        };
        let batch = batch?;
        if batch.revision <= at {
            return Err(Broken(format!("batch of revision {} after {at}", batch.revision)));
        }
        for event in &batch.events {
            let revision = event.kv.mod_revision;
            if revision <= at || revision > batch.revision {
                return Err(Broken(format!("event of {revision} in the batch ({at}, {}]", batch.revision)));
            }
        }
        at = batch.revision;
        batches.push(batch);
    }
    Ok(batches)
}

/// "P key=value" or "D key" of everything in some batches.
fn events(batches: &[WatchBatch]) -> Vec<String> {
    let events = batches.iter().flat_map(|b| &b.events);
    events
        .map(|e| match e.kind {
            crate::EventKind::Put => format!("P {}={}", e.kv.key, String::from_utf8_lossy(&e.kv.value)),
            crate::EventKind::Delete => format!("D {}", e.kv.key),
        })
        .collect()
}
