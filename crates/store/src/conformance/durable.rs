//! Laws of closing and restarting.

use super::{Broken, Outcome, Subject, delete, drain, ensure, ensure_eq, events, get, leases, put, show};
use crate::{Range, StoreError, Txn};
use futures_util::StreamExt;
use std::time::Duration;

pub(super) async fn everything_survives_a_restart(subject: &Subject) -> Outcome {
    let Some(reopen) = &subject.reopen else { return Ok(()) };
    let store = &*subject.store;
    let first = put(store, "/d/a", "1").await?;
    put(store, "/d/a", "2").await?;
    put(store, "/d/b", "1").await?;
    let last = delete(store, "/d/b").await?;
    let before = store.range(Range::prefix("/d/")).await?;
    store.close().await;
    let store = &*reopen().await?;
    ensure_eq!(store.revision().await?, last);
    ensure_eq!(store.range(Range::prefix("/d/")).await?, before);
    ensure_eq!(show(store, Range::prefix("/d/").at(first)).await?, ["/d/a=1"]);
    ensure_eq!(put(store, "/d/b", "2").await?, last + 1);
    let b = get(store, "/d/b").await?.ok_or(Broken("b is gone".into()))?;
    ensure_eq!((b.create_revision, b.version), (last + 1, 1));
    store.compact(last).await?;
    store.close().await;
    let store = &*reopen().await?;
    ensure_eq!(store.compacted(), last);
    let refused = store.range(Range::prefix("/d/").at(first)).await;
    ensure_eq!(refused, Err(StoreError::Compacted { compacted: last }));
    ensure_eq!(show(store, Range::prefix("/d/")).await?, ["/d/a=2", "/d/b=2"]);
    store.close().await;
    Ok(())
}

pub(super) async fn watches_resume_after_a_restart(subject: &Subject) -> Outcome {
    let Some(reopen) = &subject.reopen else { return Ok(()) };
    let store = &*subject.store;
    let start = put(store, "/resume/a", "1").await?;
    put(store, "/resume/a", "2").await?;
    let mut cut = store.watch("/resume/", start).await?;
    let seen = drain(&mut cut, start, start).await?;
    let at = seen.last().map_or(0, |b| b.revision);
    delete(store, "/resume/a").await?;
    store.close().await;
    let store = &*reopen().await?;
    let mut watch = store.watch("/resume/", at + 1).await?;
    let mut full = store.watch("/resume/", start).await?;
    let last = put(store, "/resume/a", "3").await?;
    let all = ["P /resume/a=1", "P /resume/a=2", "D /resume/a", "P /resume/a=3"];
    let mut resumed = events(&seen);
    resumed.extend(events(&drain(&mut watch, at + 1, last).await?));
    ensure_eq!(resumed, all);
    let batches = drain(&mut full, start, last).await?;
    ensure_eq!(events(&batches), all);
    let previous: Vec<_> = batches.iter().flat_map(|b| &b.events).map(|e| e.previous.is_some()).collect();
    ensure_eq!(previous, [false, true, true, false]);
    store.close().await;
    Ok(())
}

pub(super) async fn leases_keep_their_time(subject: &Subject) -> Outcome {
    let (Some(reopen), Some(advance)) = (&subject.reopen, &subject.advance) else { return Ok(()) };
    let store = &*subject.store;
    let lease = store.grant_lease(Duration::from_secs(60)).await?;
    leases::put_leased(store, "/ttl/a", lease).await?;
    advance(Duration::from_secs(40)).await;
    store.close().await;
    let store = &*reopen().await?;
    advance(Duration::from_secs(15)).await;
    ensure_eq!(show(store, Range::prefix("/ttl/")).await?, ["/ttl/a=v"]);
    let next = store.grant_lease(Duration::from_secs(60)).await?;
    ensure!(next != lease);
    let revision = store.revision().await?;
    let mut watch = store.watch("/ttl/", 0).await?;
    advance(Duration::from_secs(5)).await;
    ensure_eq!(events(&drain(&mut watch, revision + 1, revision + 1).await?), ["D /ttl/a"]);
    store.close().await;
    Ok(())
}

pub(super) async fn closed_is_closed(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    put(store, "/c/a", "1").await?;
    let mut watch = store.watch("/c/", 0).await?;
    store.close().await;
    store.close().await;
    ensure_eq!(watch.next().await, Some(Err(StoreError::Closed)));
    ensure_eq!(watch.next().await, None);
    ensure_eq!(store.txn(Txn::put("/c/a", "2")).await, Err(StoreError::Closed));
    ensure_eq!(store.range(Range::prefix("/c/")).await, Err(StoreError::Closed));
    ensure_eq!(store.revision().await, Err(StoreError::Closed));
    ensure_eq!(store.grant_lease(Duration::from_secs(1)).await, Err(StoreError::Closed));
    ensure!(matches!(store.watch("/c/", 0).await, Err(StoreError::Closed)));
    Ok(())
}
