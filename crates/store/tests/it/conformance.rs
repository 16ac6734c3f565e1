//! Both backends keep the laws, with ordinary limits and with limits so small that every fallback is taken.
use futures_util::FutureExt;
use kaji_store::conformance::{self, Subject};
use kaji_store::disk::{DiskOptions, DiskStore};
use kaji_store::memory::{MemoryOptions, MemoryStore};
use kaji_store::{ManualClock, Store};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const START: u64 = 1_700_000_000_000;

fn memory(recent_bytes: usize, watch_queue_bytes: usize, inline: bool) -> Subject {
    let clock = Arc::new(ManualClock::new(START));
    // Time passing must not end history in these laws.
    let history_age = Duration::from_secs(86_400);
    let options = MemoryOptions {
        clock: clock.clone(),
        recent_bytes,
        watch_queue_bytes,
        history_age,
        inline,
        ..Default::default()
    };
    let store = Arc::new(MemoryStore::with_options(options).unwrap());
    let ticking = store.clone();
    let advance = Box::new(move |by| {
        let (store, clock) = (ticking.clone(), clock.clone());
        async move {
            clock.advance(by);
            store.tick().await.unwrap();
        }
        .boxed()
    });
    Subject { store, advance: Some(advance), reopen: None, keep: None }
}

fn disk(recent_bytes: usize, watch_queue_bytes: usize) -> Subject {
    let temp = Arc::new(tempfile::tempdir().unwrap());
    let clock = Arc::new(ManualClock::new(START));
    let options = DiskOptions {
        clock: clock.clone(),
        recent_bytes,
        watch_queue_bytes,
        cache_bytes: 1 << 20,
        history_age: Duration::from_secs(86_400),
        ..Default::default()
    };
    let current = Arc::new(Mutex::new(Arc::new(DiskStore::open(temp.path(), options.clone()).unwrap())));
    let store: Arc<dyn Store> = current.lock().unwrap().clone();
    let (opened, path) = (current.clone(), temp.clone());
    let reopen = Box::new(move || {
        let (current, path, options) = (opened.clone(), path.clone(), options.clone());
        async move {
            let store = Arc::new(DiskStore::open(path.path(), options)?);
            *current.lock().unwrap() = store.clone();
            Ok(store as Arc<dyn Store>)
        }
        .boxed()
    });
    let advance = Box::new(move |by| {
        let (current, clock) = (current.clone(), clock.clone());
        async move {
            clock.advance(by);
            let store = current.lock().unwrap().clone();
            store.tick().await.unwrap();
        }
        .boxed()
    });
    Subject { store, advance: Some(advance), reopen: Some(reopen), keep: Some(Box::new(temp)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_the_laws() {
    assert_eq!(conformance::run(|| memory(4 << 20, 4 << 20, false)).await, []);
}

#[tokio::test]
async fn memory_keeps_the_laws_with_tiny_limits() {
    assert_eq!(conformance::run(|| memory(0, 1, false)).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inline_memory_keeps_the_laws() {
    assert_eq!(conformance::run(|| memory(4 << 20, 4 << 20, true)).await, []);
}

#[tokio::test]
async fn inline_memory_keeps_the_laws_with_tiny_limits() {
    assert_eq!(conformance::run(|| memory(0, 1, true)).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_keeps_the_laws() {
    assert_eq!(conformance::run(|| disk(4 << 20, 4 << 20)).await, []);
}

#[tokio::test]
async fn disk_keeps_the_laws_with_tiny_limits() {
    assert_eq!(conformance::run(|| disk(2048, 1)).await, []);
}
