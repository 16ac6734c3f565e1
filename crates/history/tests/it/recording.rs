//! What is recorded of a store: every revision, those of a time without a recorder too, gaps where the store has forgotten, and what is
//! left out.

use kaji_engine::Attributions;
use kaji_history::{Archive, Change, History, HistoryOptions, Limits, Record, Sources};
use kaji_meta::{GroupResource, SystemClock, time::Clock};
use kaji_store::{Store, Txn, memory::MemoryStore};
use std::{path::Path, sync::Arc};
use tokio::{sync::watch, task::JoinHandle};

pub struct Recording {
    pub history: Arc<History>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Records over a directory.
fn start(dir: &Path, store: &Arc<dyn Store>) -> Recording {
    start_with(dir, store, Arc::new(SystemClock), false)
}

pub fn start_with(
    dir: &Path,
    store: &Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    whole_secrets: bool,
) -> Recording {
    let options = HistoryOptions {
        dir: dir.join("history"),
        limits: Limits::default(),
        excluded: vec![GroupResource::new("", "events")],
        whole_secrets,
    };
    let sources = Sources {
        store: store.clone(),
        attributions: Arc::new(Attributions::default()),
        clock,
        encrypts: Arc::new(|key| key.contains("/closed/")),
    };
    let history = History::new(options, sources);
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(history.clone().run(stopped.clone(), stopped));
    Recording { history, stop, task }
}

impl Recording {
    /// Ends it.
    pub async fn stop(self) {
        self.history.fresh().await;
        self.stop.send_replace(true);
        self.task.await.unwrap();
    }
}

pub fn records(dir: &Path, key: &str) -> Vec<Record> {
    let archive = Archive::open(&dir.join("history"), Limits::default()).unwrap();
    let found = archive.records(key, 0, usize::MAX, usize::MAX);
    assert!(found.lost.is_empty());
    found.records
}

fn changes(dir: &Path, key: &str) -> String {
    let line = |record: &Record| {
        let value = String::from_utf8_lossy(&record.value);
        let value = if record.change == Change::Gap { record.since.to_string() } else { value.into_owned() };
        format!("{} {} {value}", record.revision, record.change.as_str())
    };
    records(dir, key).iter().map(line).collect::<Vec<_>>().join("\n")
}

const KEY: &str = "/registry/core/configmaps/d/a";

pub async fn put(store: &Arc<dyn Store>, key: &str, value: &str) {
    store.txn(Txn::put(key, value.to_owned())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_revision_is_recorded_also_those_of_a_time_without_a_recorder() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    put(&store, KEY, "{\"v\":1}").await;
    let recording = start(dir.path(), &store);
    put(&store, KEY, "{\"v\":2}").await;
    put(&store, "/registry/core/events/d/e", "{}").await;
    recording.stop().await;
    put(&store, KEY, "{\"v\":3}").await;
    let recording = start(dir.path(), &store);
    let revision = store.revision().await.unwrap();
    store.txn(Txn::delete(KEY, revision)).await.unwrap();
    recording.stop().await;
    expect_test::expect![[r#"
        2 Created {"v":1}
        3 Modified {"v":2}
        5 Modified {"v":3}
        6 Deleted {"v":3}"#]]
    .assert_eq(&changes(dir.path(), KEY));
    assert_eq!(changes(dir.path(), "/registry/core/events/d/e"), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_has_forgotten_is_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    put(&store, KEY, "{\"v\":1}").await;
    start(dir.path(), &store).stop().await;
    for version in 2..5 {
        put(&store, KEY, &format!("{{\"v\":{version}}}")).await;
    }
    store.compact(store.revision().await.unwrap()).await.unwrap();
    let recording = start(dir.path(), &store);
    put(&store, KEY, "{\"v\":5}").await;
    recording.stop().await;
    expect_test::expect![[r#"
        2 Created {"v":1}
        5 Gap 3
        6 Modified {"v":5}"#]]
    .assert_eq(&changes(dir.path(), KEY));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_before_the_archive_is_recorded_when_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    put(&store, KEY, "{\"v\":1}").await;
    put(&store, KEY, "{\"v\":2}").await;
    store.compact(store.revision().await.unwrap()).await.unwrap();
    let recording = start(dir.path(), &store);
    put(&store, KEY, "{\"v\":3}").await;
    recording.stop().await;
    expect_test::expect![[r#"
        3 Former {"v":2}
        4 Modified {"v":3}"#]]
    .assert_eq(&changes(dir.path(), KEY));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_and_encrypted_kinds_are_not_kept_in_the_clear() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    let recording = start(dir.path(), &store);
    put(&store, "/registry/core/secrets/d/s", "{\"kind\":\"Secret\",\"data\":{\"p\":\"hunter2\"}}").await;
    put(
        &store,
        "/registry/core/configmaps/closed/c",
        "{\"kind\":\"ConfigMap\",\"data\":{\"p\":\"hunter2\"}}",
    )
    .await;
    recording.stop().await;
    for key in ["/registry/core/secrets/d/s", "/registry/core/configmaps/closed/c"] {
        let text = changes(dir.path(), key);
        assert!(text.contains("redacted:"), "{text}");
    }
    for entry in std::fs::read_dir(dir.path().join("history")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(7).any(|window| window == b"hunter2"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_kept_whole_if_asked_for_and_not_encrypted() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    let recording = start_with(dir.path(), &store, Arc::new(SystemClock), true);
    let secret = "{\"kind\":\"Secret\",\"data\":{\"p\":\"hunter2\"}}";
    put(&store, "/registry/core/secrets/d/s", secret).await;
    put(&store, "/registry/core/secrets/closed/s", secret).await;
    put(&store, "/registry/core/configmaps/closed/c", secret).await;
    recording.stop().await;
    assert_eq!(changes(dir.path(), "/registry/core/secrets/d/s"), format!("2 Created {secret}"));
    for key in ["/registry/core/secrets/closed/s", "/registry/core/configmaps/closed/c"] {
        let text = changes(dir.path(), key);
        assert!(text.contains("redacted:") && !text.contains("hunter2"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_of_leases_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    let recording = start(dir.path(), &store);
    let key = "/registry/coordination.k8s.io/leases/d/l";
    let lease = |holder: &str, second: u32| {
        format!(
            "{{\"kind\":\"Lease\",\"spec\":{{\"holderIdentity\":\"{holder}\",\"renewTime\":\"2026-01-01T00:00:{second:02}.000000Z\"}}}}"
        )
    };
    for second in 0..50 {
        put(&store, key, &lease(if second < 30 { "a" } else { "b" }, second)).await;
    }
    recording.stop().await;
    let kept: Vec<_> =
        records(dir.path(), key).iter().map(|record| (record.revision, record.change)).collect();
    assert_eq!(kept, [(2, Change::Created), (32, Change::Modified)]);
    // The next start goes on where this one ended, although nothing of it was recorded.
    store.compact(store.revision().await.unwrap()).await.unwrap();
    start(dir.path(), &store).stop().await;
    assert_eq!(records(dir.path(), key).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_of_another_store_is_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    for version in 0..5 {
        put(&store, KEY, &format!("{{\"v\":{version}}}")).await;
    }
    start(dir.path(), &store).stop().await;
    let other: Arc<dyn Store> = Arc::new(MemoryStore::new().unwrap());
    put(&other, KEY, "{\"v\":9}").await;
    start(dir.path(), &other).stop().await;
    assert_eq!(changes(dir.path(), KEY), "2 Created {\"v\":9}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    assert_eq!(kaji_history::erase_below(dir.path()).unwrap(), 2);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
