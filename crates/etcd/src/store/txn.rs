//! Transactions: compares of `mod_revision`, puts and deletes that answer with what was there, and reads where a compare fails.
//!
//! Invariant: a transaction has its effect once at most. One that expects what it changes is sent again when its answer is lost, since
//! the first then leaves the second nothing that it expects; a creation is not, since what it has made may have been deleted again.

use super::{Inner, plain, signed};
use crate::client::{Answer, Repeat};
use crate::error::{Failure, malformed};
use crate::messages::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, Expected, KeyValue as Kv, PutRequest,
    RangeRequest, Request, RequestOp, Response, TxnRequest, TxnResponse,
};
use kaji_store::{KeyValue, Op, StoreError, Txn, TxnOutcome};
use std::{collections::HashSet, sync::Arc};

/// Bytes of a request that etcd takes unless configured otherwise.
const REQUEST_LIMIT: usize = 1_572_864;

impl Inner {
    pub(super) async fn txn(self: &Arc<Self>, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.check_open()?;
        check(&txn)?;
        if txn.compare.is_empty() && txn.ops.is_empty() {
            return Ok(TxnOutcome::Committed { revision: self.current().await?, previous: vec![] });
        }
        let (size, operations) = (txn.size(), txn.ops.len().max(txn.compare.len()));
        let repeat = if expects_what_it_changes(&txn) { Repeat::OnceAtMost } else { Repeat::Never };
        let request = self.request(txn)?;
        let answer: Result<Answer<TxnResponse>, _> =
            self.client.attempts("/etcdserverpb.KV/Txn", request, repeat).await;
        let Answer { message: answer, after_loss } = answer.map_err(|unanswered| {
            if unanswered.uncertain {
                return StoreError::Uncertain(unanswered.error.to_string());
            }
            match Failure::from(unanswered.error) {
                Failure::RequestTooLarge => {
                    StoreError::TooLarge { size, limit: REQUEST_LIMIT.min(size.saturating_sub(1)) }
                }
                Failure::TooManyOperations => StoreError::Invalid(format!(
                    "etcd takes no transaction of {operations} operations; 128 unless its flag --max-txn-ops says otherwise"
                )),
                other => plain(other),
            }
        })?;
        let revision = self.header(answer.header)?;
        if after_loss && !answer.succeeded {
            return Err(StoreError::Uncertain(
                "its answer was lost, and what it expected has changed".into(),
            ));
        }
        let kvs = answer.responses.into_iter().map(|op| self.answered(op.response));
        let kvs: Vec<Option<KeyValue>> = kvs.collect::<Result<_, _>>()?;
        Ok(match answer.succeeded {
            true => TxnOutcome::Committed { revision, previous: kvs },
            false => TxnOutcome::Conflict { revision, current: kvs },
        })
    }

    fn request(&self, txn: Txn) -> Result<TxnRequest, StoreError> {
        let mut request = TxnRequest::default();
        let mut absent = HashSet::new();
        for compare in txn.compare {
            let key = self.keys.key(&compare.key)?.into_bytes();
            if compare.mod_revision == 0 {
                absent.insert(key.clone());
            }
            request.compare.push(Compare {
                result: CompareResult::Equal as i32,
                target: CompareTarget::Mod as i32,
                key: key.clone(),
                expected: Some(Expected::ModRevision(signed(compare.mod_revision))),
            });
            let range = RangeRequest { key, ..RangeRequest::default() };
            request.failure.push(RequestOp { request: Some(Request::Range(range)) });
        }
        for op in txn.ops {
            let key = self.keys.key(op.key())?.into_bytes();
            let prev_kv = !absent.contains(&key);
            request.success.push(RequestOp {
                request: Some(match op {
                    Op::Put { value, lease, .. } => Request::Put(PutRequest {
                        key,
                        value,
                        lease: lease.map_or(0, |lease| lease.0),
                        prev_kv,
                    }),
                    Op::Delete { .. } => Request::Delete(DeleteRangeRequest { key, prev_kv }),
                }),
            });
        }
        Ok(request)
    }

    /// The version of a key in an answer.
    fn answered(&self, response: Option<Response>) -> Result<Option<KeyValue>, StoreError> {
        let kv: Option<Kv> = match response.ok_or_else(|| malformed("an operation's answer"))? {
            Response::Range(range) => range.kvs.into_iter().next(),
            Response::Put(put) => put.prev_kv,
            Response::Delete(delete) => delete.prev_kvs.into_iter().next(),
        };
        Ok(kv.and_then(|kv| self.kv(kv)))
    }
}

/// Whether a transaction can succeed once at most, however often it is sent: a version that it replaces or deletes does not come back.
fn expects_what_it_changes(txn: &Txn) -> bool {
    txn.compare
        .iter()
        .any(|compare| compare.mod_revision > 0 && txn.ops.iter().any(|op| op.key() == compare.key))
}

/// Refuses what no store takes.
fn check(txn: &Txn) -> Result<(), StoreError> {
    let mut seen = HashSet::new();
    for op in &txn.ops {
        if op.key().is_empty() {
            return Err(StoreError::Invalid("a key is empty".into()));
        }
        if !seen.insert(op.key()) {
            return Err(StoreError::Invalid(format!("key {:?} appears twice", op.key())));
        }
    }
    if txn.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(StoreError::Invalid("a key is empty".into()));
    }
    Ok(())
}
