//! Ranges: read in pages of one revision; their size adapts to what an answer may hold.

use super::{Inner, revision, signed};
use crate::client::Repeat;
use crate::error::Failure;
use crate::keys::Interval;
use crate::messages::{RangeRequest, RangeResponse};
use kaji_store::{Range, RangeResult, StoreError};

/// Keys of a page.
const PAGE: usize = 1000;
/// By how much a page is made smaller when its answer is too large.
const SHRINK: usize = 8;

impl Inner {
    pub(super) async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        self.check_open()?;
        let Interval { mut start, end } = self.keys.interval(&range.start, &range.end)?;
        let mut result = RangeResult { revision: range.revision, kvs: vec![], more: false, count: 0 };
        let (mut taken, mut page) = (0, PAGE);
        loop {
            let left = if range.limit == 0 { usize::MAX } else { range.limit - taken };
            let request = RangeRequest {
                key: start.clone(),
                range_end: end.clone(),
                limit: signed(page.min(left) as u64),
                revision: signed(result.revision),
                ..RangeRequest::default()
            };
            let answer: Result<RangeResponse, _> =
                self.client.call("/etcdserverpb.KV/Range", request, Repeat::Safe).await;
            let answer = match answer.map_err(Failure::from) {
                Ok(answer) => answer,
                Err(Failure::AnswerTooLarge) if page > 1 => {
                    page = (page / SHRINK).max(1);
                    continue;
                }
                Err(failure) => return Err(self.store_error(failure, result.revision).await),
            };
            let current = self.header(answer.header)?;
            if result.revision == 0 {
                result.revision = current;
            }
            if taken == 0 {
                result.count = usize::try_from(revision(answer.count)).unwrap_or(usize::MAX);
            }
            taken += answer.kvs.len();
            if let Some(last) = answer.kvs.last() {
                start.clone_from(&last.key);
                start.push(0);
            }
            for kv in answer.kvs {
                match self.kv(kv) {
                    Some(kv) => result.kvs.push(kv),
                    None => result.count = result.count.saturating_sub(1),
                }
            }
            result.more = answer.more;
            if !answer.more || taken == range.limit {
                return Ok(result);
            }
        }
    }
}
