//! Compaction, on which the servers of an etcd agree by one key, as upstream's do.
//!
//! The key's version counts compactions. A server that expects the version that is there writes the revision that it saw one
//! interval ago, and compacts to it; the others find another version, and expect that one an interval later. So history of at
//! least one interval is kept, and another server takes over from one that ends.
//!
//! Source: upstream's `storage/etcd3/compact.go`.

use crate::client::{Client, Repeat};
use crate::error::Failure;
use crate::messages::{
    CompactionRequest, Compare, CompareResult, CompareTarget, Expected, HeaderResponse, PutRequest,
    RangeRequest, Request, RequestOp, Response, TxnRequest, TxnResponse,
};
use kaji_store::{Revision, StoreError};

/// Upstream's key, which is below no prefix.
pub const KEY: &str = "compact_rev_key";

/// What one server knows of the compactions of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compactor {
    /// The expected version of the key.
    time: i64,
    /// etcd's revision one interval ago; 0 before the first.
    revision: i64,
}

impl Compactor {
    /// One round, to be run once an interval. Answers with the revision that etcd is compacted to, if that is known.
    ///
    /// # Errors
    /// When etcd cannot be asked. The next round goes on from what is known.
    pub async fn round(&mut self, client: &Client) -> Result<Option<Revision>, StoreError> {
        let failed = |error| match Failure::from(error) {
            Failure::Store(error) => error,
            other => StoreError::Unavailable(format!("etcd: {other:?}")),
        };
        let answer: TxnResponse =
            client.call("/etcdserverpb.KV/Txn", self.request(), Repeat::Never).await.map_err(failed)?;
        let target = std::mem::replace(&mut self.revision, answer.header.map_or(0, |h| h.revision));
        if !answer.succeeded {
            let found = answer.responses.into_iter().find_map(|op| match op.response {
                Some(Response::Range(range)) => range.kvs.into_iter().next(),
                _ => None,
            });
            let Some(found) = found else { return Ok(None) };
            self.time = found.version;
            let compacted: Option<i64> = std::str::from_utf8(&found.value).ok().and_then(|v| v.parse().ok());
            return Ok(compacted.and_then(|r| Revision::try_from(r).ok()).filter(|r| *r > 0));
        }
        self.time += 1;
        if target == 0 {
            return Ok(None);
        }
        compact(client, target).await.map_err(failed_compaction)?;
        Ok(Revision::try_from(target).ok())
    }

    fn request(&self) -> TxnRequest {
        let key = KEY.as_bytes().to_vec();
        let put =
            PutRequest { key: key.clone(), value: self.revision.to_string().into(), ..PutRequest::default() };
        TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal as i32,
                target: CompareTarget::Version as i32,
                key: key.clone(),
                expected: Some(Expected::Version(self.time)),
            }],
            success: vec![RequestOp { request: Some(Request::Put(put)) }],
            failure: vec![RequestOp {
                request: Some(Request::Range(RangeRequest { key, ..RangeRequest::default() })),
            }],
        }
    }
}

/// Compacts etcd to a revision. One that it is compacted to already is no error.
pub(crate) async fn compact(client: &Client, revision: i64) -> Result<(), Failure> {
    let request = CompactionRequest { revision };
    let outcome = client.call::<_, HeaderResponse>("/etcdserverpb.KV/Compact", request, Repeat::Safe).await;
    match outcome.map_err(Failure::from) {
        Ok(_) | Err(Failure::Compacted) => Ok(()),
        Err(other) => Err(other),
    }
}

fn failed_compaction(failure: Failure) -> StoreError {
    match failure {
        Failure::Store(error) => error,
        other => StoreError::Unavailable(format!("etcd was not compacted: {other:?}")),
    }
}
