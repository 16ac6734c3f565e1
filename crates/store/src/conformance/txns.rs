//! Laws of transactions: revisions, compares, atomicity.

use super::{Broken, Outcome, Subject, commit, delete, ensure, ensure_eq, get, put, show};
use crate::{Compare, Op, Range, StoreError, Txn, TxnOutcome};
use bytes::Bytes;

pub(super) async fn revisions_and_versions_count(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let start = store.revision().await?;
    ensure!(start >= 1);
    ensure_eq!(put(store, "/count/a", "1").await?, start + 1);
    ensure_eq!(put(store, "/count/b", "1").await?, start + 2);
    ensure_eq!(put(store, "/count/a", "2").await?, start + 3);
    let a = get(store, "/count/a").await?.ok_or(Broken("a is gone".into()))?;
    ensure_eq!((a.create_revision, a.mod_revision, a.version), (start + 1, start + 3, 2));
    ensure_eq!((&*a.key, &a.value[..], a.lease), ("/count/a", &b"2"[..], None));
    ensure_eq!(delete(store, "/count/a").await?, start + 4);
    ensure_eq!(get(store, "/count/a").await?, None);
    // Deleting what does not exist changes nothing, so it takes no revision.
    ensure_eq!(delete(store, "/count/a").await?, start + 4);
    ensure_eq!(commit(store, Txn::default()).await?, (start + 4, Vec::new()));
    ensure_eq!(put(store, "/count/a", "3").await?, start + 5);
    let a = get(store, "/count/a").await?.ok_or(Broken("a is gone".into()))?;
    ensure_eq!((a.create_revision, a.mod_revision, a.version), (start + 5, start + 5, 1));
    ensure_eq!(store.revision().await?, start + 5);
    ensure!(store.current_revision_hint().is_none_or(|hint| hint == start + 5));
    Ok(())
}

pub(super) async fn compare_and_set(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let (created, previous) = commit(store, Txn::create("/cas/a", "1")).await?;
    ensure_eq!(previous, [None]);
    let first = get(store, "/cas/a").await?;
    let conflict = TxnOutcome::Conflict { revision: created, current: vec![first.clone()] };
    ensure_eq!(store.txn(Txn::create("/cas/a", "2")).await?, conflict);
    ensure_eq!(store.txn(Txn::update("/cas/a", created - 1, "2")).await?, conflict);
    ensure_eq!(store.txn(Txn::delete("/cas/a", created + 1)).await?, conflict);
    let absent = TxnOutcome::Conflict { revision: created, current: vec![None] };
    ensure_eq!(store.txn(Txn::update("/cas/b", created, "2")).await?, absent);
    let (updated, previous) = commit(store, Txn::update("/cas/a", created, "2")).await?;
    ensure_eq!((updated, previous), (created + 1, vec![first]));
    let second = get(store, "/cas/a").await?;
    let (deleted, previous) = commit(store, Txn::delete("/cas/a", updated)).await?;
    ensure_eq!((deleted, previous), (updated + 1, vec![second]));
    commit(store, Txn::create("/cas/a", "3")).await?;
    ensure_eq!(show(store, Range::prefix("/cas/")).await?, ["/cas/a=3"]);
    Ok(())
}

pub(super) async fn transactions_are_atomic(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    put(store, "/atomic/old", "1").await?;
    let put_op = |key: &str| Op::Put { key: key.into(), value: Bytes::from_static(b"2"), lease: None };
    let ops = vec![
        put_op("/atomic/x"),
        Op::Delete { key: "/atomic/old".into() },
        Op::Delete { key: "/atomic/never".into() },
        put_op("/atomic/y"),
    ];
    let compare = vec![
        Compare { key: "/atomic/x".into(), mod_revision: 0 },
        Compare { key: "/atomic/old".into(), mod_revision: 1 },
    ];
    let before = store.revision().await?;
    match store.txn(Txn { compare, ops: ops.clone() }).await? {
        TxnOutcome::Conflict { revision, current } => {
            ensure_eq!(revision, before);
            ensure_eq!(current, [None, get(store, "/atomic/old").await?]);
        }
        other => return Err(Broken(format!("one compare was false: {other:?}"))),
    }
    ensure_eq!(show(store, Range::prefix("/atomic/")).await?, ["/atomic/old=1"]);
    let old = get(store, "/atomic/old").await?;
    let (revision, previous) = commit(store, Txn { compare: Vec::new(), ops }).await?;
    ensure_eq!((revision, previous), (before + 1, vec![None, old, None, None]));
    let kvs = store.range(Range::prefix("/atomic/")).await?.kvs;
    let seen: Vec<_> = kvs.iter().map(|kv| (&*kv.key, kv.mod_revision, kv.version)).collect();
    ensure_eq!(seen, [("/atomic/x", revision, 1), ("/atomic/y", revision, 1)]);
    Ok(())
}

pub(super) async fn mistakes_are_refused(subject: &Subject) -> Outcome {
    let store = &*subject.store;
    let before = store.revision().await?;
    let twice = vec![
        Op::Put { key: "/bad/a".into(), value: Bytes::new(), lease: None },
        Op::Delete { key: "/bad/a".into() },
    ];
    let refused = store.txn(Txn { compare: Vec::new(), ops: twice }).await;
    ensure!(matches!(refused, Err(StoreError::Invalid(_))));
    ensure!(matches!(store.txn(Txn::put("", "x")).await, Err(StoreError::Invalid(_))));
    let put = Op::Put { key: "/bad/a".into(), value: Bytes::new(), lease: Some(crate::LeaseId(4711)) };
    let refused = store.txn(Txn { compare: Vec::new(), ops: vec![put] }).await;
    ensure_eq!(refused, Err(StoreError::LeaseNotFound));
    ensure_eq!(show(store, Range::prefix("/bad/")).await?, Vec::<String>::new());
    ensure_eq!(store.revision().await?, before);
    Ok(())
}

pub(super) async fn one_creator_wins(subject: &Subject) -> Outcome {
    let tries = (0..32).map(|i| subject.store.txn(Txn::create("/race/a", format!("{i}"))));
    let outcomes = futures_util::future::join_all(tries).await;
    let mut winner = None;
    for (i, outcome) in outcomes.into_iter().enumerate() {
        if let TxnOutcome::Committed { .. } = outcome? {
            ensure_eq!(winner, None);
            winner = Some(format!("/race/a={i}"));
        }
    }
    let seen = show(&*subject.store, Range::prefix("/race/")).await?;
    ensure_eq!(seen.into_iter().next(), winner);
    Ok(())
}

pub(super) async fn concurrent_updates_are_serial(subject: &Subject) -> Outcome {
    let store = &subject.store;
    put(&**store, "/counter", "0").await?;
    let adders = (0..8).map(|_| async {
        for _ in 0..10 {
            loop {
                let now = get(&**store, "/counter").await?.ok_or(Broken("the counter is gone".into()))?;
                let value: u64 = String::from_utf8_lossy(&now.value).parse().unwrap_or(u64::MAX);
                let txn = Txn::update("/counter", now.mod_revision, format!("{}", value + 1));
                if let TxnOutcome::Committed { .. } = store.txn(txn).await? {
                    break;
                }
            }
        }
        Ok::<(), Broken>(())
    });
    for outcome in futures_util::future::join_all(adders).await {
        outcome?;
    }
    let counter = get(&**store, "/counter").await?.ok_or(Broken("the counter is gone".into()))?;
    ensure_eq!((&counter.value[..], counter.version), (&b"80"[..], 81));
    Ok(())
}
