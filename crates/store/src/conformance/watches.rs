//! Laws of watches: in order, no gap, no repeat, whole transactions, wherever they start and however slow they are.

use super::{Broken, Outcome, Subject, commit, delete, drain, ensure, ensure_eq, events, put};
use crate::{EventKind, Op, StoreError, Txn};
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

pub(super) async fn from_now_and_from_history(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let first = put(store, "/w/a", "1").await?;
    let second = put(store, "/w/a", "2").await?;
    let mut now = store.watch("/w/", 0).await?;
    let mut past = store.watch("/w/", first).await?;
    let mut later = store.watch("/w/", second).await?;
    delete(store, "/w/a").await?;
    let last = put(store, "/w/b", "3").await?;
    let all = ["P /w/a=1", "P /w/a=2", "D /w/a", "P /w/b=3"];
    ensure_eq!(events(&drain(&mut past, first, last).await?), all);
    ensure_eq!(events(&drain(&mut later, second, last).await?), all[1..]);
    ensure_eq!(events(&drain(&mut now, second + 1, last).await?), all[2..]);
    Ok(())
}

pub(super) async fn no_gap_no_repeat_in_order(subject: &Subject) -> Outcome {
    let store = &subject.store;
    let start = store.revision().await?;
    let writers = (0..8).map(|task| async move {
        for i in 0..25 {
            put(&**store, &format!("/flow/{task}"), &format!("{i}")).await?;
        }
        Ok::<(), Broken>(())
    });
    // Watches that start from the beginning, at different moments of the writing.
    let watchers = (0..8).map(|delay: u64| async move {
        while store.revision().await? < start + delay * 20 {
            put(&**store, "/flow-other", "").await?;
        }
        let mut watch = store.watch("/flow/", start + 1).await?;
        let (mut seen, mut batches) = (0, Vec::new());
        let mut at = start;
        while seen < 200 {
            let batch = watch.next().await.ok_or(Broken("the watch ended".into()))??;
            ensure!(batch.revision > at);
            at = batch.revision;
            seen += batch.events.len();
            batches.push(batch);
        }
        let mut revisions = batches.iter().flat_map(|b| &b.events).map(|e| e.kv.mod_revision);
        ensure!(revisions.clone().is_sorted_by(|a, b| a < b));
        ensure!(revisions.all(|r| r > start));
        Ok::<_, Broken>(batches)
    });
    let (written, watched) = futures_util::future::join(
        futures_util::future::join_all(writers),
        futures_util::future::join_all(watchers),
    )
    .await;
    for outcome in written {
        outcome?;
    }
    let mut expected = None;
    for outcome in watched {
        let seen: Vec<_> = outcome?.into_iter().flat_map(|b| b.events).collect();
        for task in 0..8 {
            let key = format!("/flow/{task}");
            let values: Vec<_> =
                seen.iter().filter(|e| *e.kv.key == *key).map(|e| e.kv.value.clone()).collect();
            ensure_eq!(values, (0..25).map(|i| Bytes::from(i.to_string())).collect::<Vec<_>>());
        }
        let expected = expected.get_or_insert_with(|| seen.clone());
        ensure_eq!(&seen, &*expected);
    }
    Ok(())
}

pub(super) async fn whole_transactions_with_previous(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let start = put(store, "/whole/a", "0").await? + 1;
    let mut live = store.watch("/whole/", start).await?;
    let mut last = start;
    for i in 1..=50 {
        let put = |key: &str| Op::Put { key: key.into(), value: Bytes::from(i.to_string()), lease: None };
        last =
            commit(store, Txn { compare: Vec::new(), ops: vec![put("/whole/a"), put("/whole/b")] }).await?.0;
    }
    let deleted = delete(store, "/whole/a").await?;
    let mut replay = store.watch("/whole/", start).await?;
    for watch in [&mut live, &mut replay] {
        let batches = drain(watch, start, deleted).await?;
        for batch in &batches {
            for revision in (start..=last).filter(|r| batch.events.iter().any(|e| e.kv.mod_revision == *r)) {
                let keys = batch.events.iter().filter(|e| e.kv.mod_revision == revision).map(|e| &*e.kv.key);
                ensure_eq!(keys.collect::<Vec<_>>(), ["/whole/a", "/whole/b"]);
            }
        }
        let events: Vec<_> = batches.into_iter().flat_map(|b| b.events).collect();
        ensure_eq!(events.len(), 101);
        let values: Vec<_> = events.iter().filter(|e| &*e.kv.key == "/whole/a").collect();
        for pair in values.windows(2) {
            let previous = pair[1].previous.as_ref().ok_or(Broken("no previous version".into()))?;
            ensure_eq!(previous, &pair[0].kv);
        }
        ensure_eq!(events[1].previous, None);
        let gone = &events[100];
        ensure_eq!((gone.kind, gone.kv.mod_revision, gone.kv.version), (EventKind::Delete, deleted, 0));
        ensure_eq!((gone.kv.create_revision, gone.kv.value.len()), (0, 0));
    }
    Ok(())
}

pub(super) async fn prefixes_are_kept_apart(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let start = store.revision().await? + 1;
    let mut pods = store.watch("/p/pods/", 0).await?;
    let mut both = store.watch("/p/", 0).await?;
    put(store, "/p/pods/a", "1").await?;
    put(store, "/p/pods", "2").await?;
    put(store, "/p/podsx/a", "3").await?;
    put(store, "/p/nodes/a", "4").await?;
    let last = put(store, "/p/pods/b", "5").await?;
    ensure_eq!(events(&drain(&mut pods, start, last).await?), ["P /p/pods/a=1", "P /p/pods/b=5"]);
    ensure_eq!(events(&drain(&mut both, start, last).await?).len(), 5);
    Ok(())
}

pub(super) async fn progress_follows_other_keys(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let start = store.revision().await? + 1;
    let mut progress = store.watch("/quiet/", 0).await?;
    let last = put(store, "/noise", "1").await?;
    store.request_progress();
    ensure_eq!(events(&drain(&mut progress, start, last).await?), Vec::<String>::new());
    if store.current_revision_hint().is_some() {
        // In one process progress comes by itself, also to a watch that sleeps already: this polls only what was
        // woken.
        let mut both = FuturesUnordered::new();
        let waiting = &mut progress;
        both.push(async move { drain(waiting, start + 1, start + 1).await.map(|b| events(&b)) }.boxed());
        both.push(async { put(store, "/noise", "2").await.map(|_| Vec::new()) }.boxed());
        while let Some(seen) = both.next().await {
            ensure_eq!(seen?, Vec::<String>::new());
        }
    }
    let end = put(store, "/quiet/a", "1").await?;
    ensure_eq!(events(&drain(&mut progress, end, end).await?), ["P /quiet/a=1"]);
    Ok(())
}

pub(super) async fn slow_watch_catches_up(subject: &Subject) -> Outcome {
    let store = &subject.store;
    let start = store.revision().await? + 1;
    let mut slow = store.watch("/slow/", 0).await?;
    let value = "x".repeat(1024);
    let mut expected = Vec::new();
    for round in 0..40 {
        let puts = (0..64).map(|i| {
            let key = format!("/slow/{round}/{i}");
            let value = &value;
            async move { put(&**store, &key, value).await.map(|revision| (revision, key)) }
        });
        for outcome in futures_util::future::join_all(puts).await {
            expected.push(outcome?);
        }
    }
    expected.sort();
    let last = store.revision().await?;
    let batches = drain(&mut slow, start, last).await?;
    let seen: Vec<_> =
        batches.iter().flat_map(|b| &b.events).map(|e| (e.kv.mod_revision, e.kv.key.to_string())).collect();
    ensure!(seen == expected);
    // And it is live again.
    let next = put(&**store, "/slow/end", "").await?;
    ensure_eq!(events(&drain(&mut slow, next, next).await?), ["P /slow/end="]);
    Ok(())
}

pub(super) async fn events_come_no_later_than_answers(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    if store.current_revision_hint().is_none() {
        return Ok(());
    }
    let mut watch = store.watch("/prompt/", 0).await?;
    for i in 0..20 {
        let revision = put(store, "/prompt/a", &format!("{i}")).await?;
        // No waiting: it has to be there already.
        let batch = watch.next().now_or_never().flatten().ok_or(Broken("the event is late".into()))??;
        ensure_eq!((batch.revision, batch.events.len()), (revision, 1));
        put(store, "/prompt-other", "").await?;
        if let Some(progress) = watch.next().now_or_never().flatten() {
            ensure_eq!(progress?.events.len(), 0);
        }
    }
    Ok(())
}

pub(super) async fn future_start_waits(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let start = store.revision().await? + 3;
    let mut watch = store.watch("/ahead/", start).await?;
    for i in 1..=4 {
        put(store, "/ahead/a", &format!("{i}")).await?;
    }
    let batches = drain(&mut watch, start, start + 1).await?;
    ensure_eq!(events(&batches), ["P /ahead/a=3", "P /ahead/a=4"]);
    Ok(())
}

pub(super) async fn large_transactions_stay_whole(subject: &Subject) -> Outcome {
    const KEYS: usize = 700;
    let store = &*subject.store;
    let start = store.revision().await? + 1;
    for _ in 0..3 {
        let put = |i| Op::Put { key: format!("/large/{i}"), value: Bytes::new(), lease: None };
        commit(store, Txn { compare: Vec::new(), ops: (0..KEYS).map(put).collect() }).await?;
    }
    let mut watch = store.watch("/large/", start).await?;
    for batch in drain(&mut watch, start, start + 2).await? {
        ensure_eq!(batch.events.len() % KEYS, 0);
        ensure_eq!(batch.events.last().map(|e| e.kv.mod_revision), Some(batch.revision));
    }
    Ok(())
}

pub(super) async fn a_watch_that_compaction_overtakes_says_so(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let mut watch = store.watch("/late/", 0).await?;
    let mut expected = Vec::new();
    for i in 0..3 {
        expected.push(put(store, "/late/a", &format!("{i}")).await?);
    }
    store.compact(expected[2]).await?;
    // Compaction only begins then; a write makes it go on.
    expected.push(delete(store, "/late/a").await?);
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        match watch.next().await.ok_or(Broken("the watch ended without a reason".into()))? {
            Ok(batch) => seen.extend(batch.events.iter().map(|e| e.kv.mod_revision)),
            Err(StoreError::Compacted { .. }) => break,
            Err(other) => return Err(other.into()),
        }
        ensure_eq!(seen[..], expected[..seen.len().min(expected.len())]);
    }
    Ok(())
}
