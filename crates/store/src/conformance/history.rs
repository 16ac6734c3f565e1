//! Laws of ranges, old revisions and compaction.

use super::{Outcome, Subject, delete, ensure, ensure_eq, put, show};
use crate::{Range, StoreError};

pub(super) async fn ranges_select_and_limit(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    for key in ["/r/b", "/r/a", "/r/c/d", "/r", "/r0", "/r/c", "/q/z"] {
        put(store, key, "v").await?;
    }
    let all = ["/r/a=v", "/r/b=v", "/r/c=v", "/r/c/d=v"];
    ensure_eq!(show(store, Range::prefix("/r/")).await?, all);
    ensure_eq!(show(store, Range::key("/r")).await?, ["/r=v"]);
    ensure_eq!(show(store, Range::key("/r/")).await?, Vec::<String>::new());
    let page = store.range(Range::prefix("/r/").limit(3)).await?;
    ensure_eq!((page.kvs.len(), page.more, page.count), (3, true, 4));
    ensure_eq!(page.revision, store.revision().await?);
    // Going on after the last key of a page.
    let rest =
        Range { start: format!("{}\0", page.kvs[2].key), ..Range::prefix("/r/").limit(3).at(page.revision) };
    let page = store.range(rest).await?;
    ensure_eq!((page.kvs.len(), page.more, page.count), (1, false, 1));
    let page = store.range(Range::prefix("/r/").limit(4)).await?;
    ensure_eq!((page.kvs.len(), page.more, page.count), (4, false, 4));
    let backwards = Range { start: "/r/c".into(), end: "/r/a".into(), ..Range::default() };
    ensure_eq!(show(store, backwards).await?, Vec::<String>::new());
    for i in 0..200 {
        put(store, &format!("/many/{i:03}"), &format!("{i}")).await?;
    }
    let many = show(store, Range::prefix("/many/")).await?;
    ensure_eq!(many, (0..200).map(|i| format!("/many/{i:03}={i}")).collect::<Vec<_>>());
    Ok(())
}

pub(super) async fn old_revisions_stay_readable(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let first = put(store, "/old/a", "1").await?;
    let second = put(store, "/old/b", "1").await?;
    let third = put(store, "/old/a", "2").await?;
    let fourth = delete(store, "/old/b").await?;
    let fifth = put(store, "/old/b", "3").await?;
    let at = |revision| Range::prefix("/old/").at(revision);
    ensure_eq!(show(store, at(first)).await?, ["/old/a=1"]);
    ensure_eq!(show(store, at(second)).await?, ["/old/a=1", "/old/b=1"]);
    ensure_eq!(show(store, at(third)).await?, ["/old/a=2", "/old/b=1"]);
    ensure_eq!(show(store, at(fourth)).await?, ["/old/a=2"]);
    ensure_eq!(show(store, at(fifth)).await?, ["/old/a=2", "/old/b=3"]);
    let old = store.range(at(second).limit(1)).await?;
    ensure_eq!((old.revision, old.more, old.count), (second, true, 2));
    ensure_eq!((old.kvs[0].mod_revision, old.kvs[0].version), (first, 1));
    Ok(())
}

pub(super) async fn future_is_refused(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let current = put(store, "/future/a", "1").await?;
    let refused = store.range(Range::prefix("/future/").at(current + 1)).await;
    ensure_eq!(refused, Err(StoreError::FutureRevision { current }));
    ensure_eq!(store.compact(current + 1).await, Err(StoreError::FutureRevision { current }));
    Ok(())
}

pub(super) async fn compaction_ends_history(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    put(store, "/gc/a", "1").await?;
    put(store, "/gc/gone", "1").await?;
    let old = put(store, "/gc/a", "2").await?;
    let compacted = delete(store, "/gc/gone").await?;
    let newer = put(store, "/gc/a", "3").await?;
    store.compact(compacted).await?;
    ensure_eq!(store.compacted(), compacted);
    // Again, and further back, is no error and changes nothing.
    store.compact(compacted).await?;
    store.compact(old).await?;
    ensure_eq!(store.compacted(), compacted);
    let at = |revision| Range::prefix("/gc/").at(revision);
    ensure_eq!(store.range(at(old)).await, Err(StoreError::Compacted { compacted }));
    ensure_eq!(show(store, at(compacted)).await?, ["/gc/a=2"]);
    ensure_eq!(show(store, at(newer)).await?, ["/gc/a=3"]);
    ensure!(matches!(store.watch("/gc/", old).await, Err(StoreError::Compacted { .. })));
    let mut watch = store.watch("/gc/", newer).await?;
    let batches = super::drain(&mut watch, newer, newer).await?;
    ensure_eq!(super::events(&batches), ["P /gc/a=3"]);
    // The version before is still there, although it can no longer be watched itself.
    let previous = batches.last().and_then(|b| b.events[0].previous.as_ref()).map(|kv| kv.value.clone());
    ensure_eq!(previous.as_deref(), Some(&b"2"[..]));
    Ok(())
}
