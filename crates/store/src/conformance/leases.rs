//! Laws of leases.

use super::{Outcome, Subject, commit, drain, ensure_eq, events, put, show};
use crate::{LeaseId, Op, Range, Revision, Store, StoreError, Txn};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(60);

pub(super) async fn put_leased(
    store: &dyn Store,
    key: &str,
    lease: LeaseId,
) -> Result<Revision, super::Broken> {
    let put = Op::Put { key: key.into(), value: "v".into(), lease: Some(lease) };
    Ok(commit(store, Txn { compare: Vec::new(), ops: vec![put] }).await?.0)
}

pub(super) async fn expiry_deletes_and_tells(subject: &Subject) -> Outcome {
    let Some(advance) = &subject.advance else { return Ok(()) };
    let store = &*subject.store;
    let lease = store.grant_lease(TTL).await?;
    let start = put_leased(store, "/l/a", lease).await?;
    put_leased(store, "/l/b", lease).await?;
    let last = put(store, "/l/c", "v").await?;
    let kv = super::get(store, "/l/a").await?;
    ensure_eq!(kv.and_then(|kv| kv.lease), Some(lease));
    advance(TTL - Duration::from_secs(1)).await;
    ensure_eq!(show(store, Range::prefix("/l/")).await?.len(), 3);
    advance(Duration::from_secs(1)).await;
    ensure_eq!(show(store, Range::prefix("/l/")).await?, ["/l/c=v"]);
    // Both went in one transaction.
    ensure_eq!(store.revision().await?, last + 1);
    let mut watch = store.watch("/l/", start).await?;
    let batches = drain(&mut watch, start, last + 1).await?;
    ensure_eq!(events(&batches)[3..], ["D /l/a", "D /l/b"]);
    ensure_eq!(store.keep_alive(lease).await, Err(StoreError::LeaseNotFound));
    ensure_eq!(store.revoke(lease).await, Err(StoreError::LeaseNotFound));
    Ok(())
}

pub(super) async fn keep_alive_and_revoke(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let lease = store.grant_lease(TTL).await?;
    let other = store.grant_lease(TTL).await?;
    super::ensure!(lease != other);
    put_leased(store, "/k/a", lease).await?;
    put_leased(store, "/k/b", other).await?;
    if let Some(advance) = &subject.advance {
        for _ in 0..3 {
            advance(TTL / 2).await;
            ensure_eq!(store.keep_alive(lease).await?, TTL);
        }
        ensure_eq!(show(store, Range::prefix("/k/")).await?, ["/k/a=v"]);
    }
    let before = store.revision().await?;
    store.revoke(lease).await?;
    ensure_eq!(store.revision().await?, before + 1);
    ensure_eq!(super::get(store, "/k/a").await?, None);
    // A lease without keys goes without a trace.
    let empty = store.grant_lease(TTL).await?;
    store.revoke(empty).await?;
    ensure_eq!(store.revision().await?, before + 1);
    Ok(())
}

pub(super) async fn the_last_put_decides_the_lease(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let first = store.grant_lease(TTL).await?;
    let second = store.grant_lease(TTL).await?;
    for key in ["/m/moved", "/m/freed", "/m/kept", "/m/again"] {
        put_leased(store, key, first).await?;
    }
    put_leased(store, "/m/moved", second).await?;
    put(store, "/m/freed", "v").await?;
    super::delete(store, "/m/again").await?;
    put(store, "/m/again", "v").await?;
    store.revoke(first).await?;
    ensure_eq!(show(store, Range::prefix("/m/")).await?, ["/m/again=v", "/m/freed=v", "/m/moved=v"]);
    store.revoke(second).await?;
    ensure_eq!(show(store, Range::prefix("/m/")).await?, ["/m/again=v", "/m/freed=v"]);
    Ok(())
}
