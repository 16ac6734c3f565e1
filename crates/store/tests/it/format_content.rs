//! What the directories of former formats hold: the writes that made them. The example `format_fixture` makes one of the current format.

use kaji_store::{Op, Store, Txn};
use std::time::Duration;

/// A lease that is there whenever the directory is opened.
const LONG: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Creates, updates, deletions, a lease, and a compaction in the middle.
pub async fn write(store: &dyn Store) {
    let lease = store.grant_lease(LONG).await.expect("a lease");
    for i in 0..60_usize {
        let key = format!("/registry/core/configmaps/default/map-{:02}", i % 20);
        let value = format!("{{\"data\":{{\"k\":\"{}\"}}}}", "v".repeat(i * 3));
        let lease = (i % 7 == 0).then_some(lease);
        let put = Op::Put { key, value: value.into(), lease };
        let delete = Op::Delete { key: format!("/registry/core/configmaps/default/map-{:02}", (i + 9) % 20) };
        let ops = if i % 4 == 0 { vec![put, delete] } else { vec![put] };
        store.txn(Txn { compare: vec![], ops }).await.expect("a write");
        if i == 30 {
            store.compact(store.revision().await.expect("a revision")).await.expect("a compaction");
        }
    }
}
