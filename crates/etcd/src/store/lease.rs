//! Leases. etcd deletes the keys of one that has expired in one transaction.

use super::{Inner, plain};
use crate::client::Repeat;
use crate::error::Failure;
use crate::messages::{
    HeaderResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest,
};
use futures_util::stream;
use kaji_store::{LeaseId, StoreError};
use std::time::Duration;

/// How long the answer of a keep-alive may take.
const ANSWER: Duration = Duration::from_secs(8);

impl Inner {
    pub(super) async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.check_open()?;
        // In whole seconds: an object may live longer, but not shorter.
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let request = LeaseGrantRequest { ttl: i64::try_from(seconds.max(1)).unwrap_or(i64::MAX) };
        // If the answer is lost, the lease has no keys, and expires.
        let answer: Result<LeaseGrantResponse, _> =
            self.client.call("/etcdserverpb.Lease/LeaseGrant", request, Repeat::Safe).await;
        let answer = answer.map_err(|error| plain(error.into()))?;
        if !answer.error.is_empty() {
            return Err(StoreError::Unavailable(answer.error));
        }
        Ok(LeaseId(answer.id))
    }

    pub(super) async fn keep_alive(&self, lease: LeaseId) -> Result<Duration, StoreError> {
        self.check_open()?;
        let once = stream::iter([LeaseRequest { id: lease.0 }]);
        let failed = |error: kaji_grpc::CallError| plain(Failure::from(error));
        let mut answers =
            self.client.exchange("/etcdserverpb.Lease/LeaseKeepAlive", once).await.map_err(failed)?;
        let answer = tokio::time::timeout(ANSWER, answers.messages.next()).await;
        let answer: Option<LeaseKeepAliveResponse> = answer
            .map_err(|_| StoreError::Unavailable("etcd did not keep the lease alive in time".into()))?
            .map_err(failed)?;
        match answer.map_or(0, |answer| answer.ttl) {
            ttl if ttl > 0 => Ok(Duration::from_secs(ttl.unsigned_abs())),
            _ => Err(StoreError::LeaseNotFound),
        }
    }

    pub(super) async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.check_open()?;
        let request = LeaseRequest { id: lease.0 };
        let answer: Result<HeaderResponse, _> =
            self.client.call("/etcdserverpb.Lease/LeaseRevoke", request, Repeat::Never).await;
        let answer = answer.map_err(|error| plain(error.into()))?;
        self.header(answer.header).map(drop)
    }
}
