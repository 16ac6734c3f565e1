//! Tests of informers against a server that the test plays, in paused time.

use super::{reflector::NOT_SERVED, *};
use crate::testing::{FakeServer, Item, client, item, list};
use futures_util::FutureExt;
use http::Method;
use serde_json::{Value, json};
use std::{sync::mpsc as sync_mpsc, time::Duration};
use tokio::time::Instant;

/// An informer with a handler that reports each change as text.
struct Fixture {
    informers: Arc<Informers>,
    informer: Arc<Informer<Item>>,
    server: FakeServer,
    changes: sync_mpsc::Receiver<String>,
}

impl Fixture {
    fn new() -> Self {
        Self::resyncing(None)
    }

    fn resyncing(resync: Option<Resync>) -> Self {
        let (client, server) = client();
        let metrics = ControllerMetrics::default();
        let informers =
            Informers::resyncing(client, Selected::default(), Arc::new(SystemClock), metrics, resync);
        let informer = informers.get::<Item>();
        let (sender, changes) = sync_mpsc::channel();
        informer.handle(move |change: &Change<Item>| {
            let side = |item: &Option<Arc<Item>>| item.as_ref().map_or("-".into(), |i| i.value.to_string());
            let name = &change.any().metadata.name;
            sender.send(format!("{name}: {} to {}", side(&change.old), side(&change.new))).unwrap();
        });
        Fixture { informers, informer, server, changes }
    }

    /// Waits until the informer has observed a revision; the changes until then.
    async fn changes_until(&self, revision: u64) -> Vec<String> {
        self.informer.reached(revision).await;
        self.changes.try_iter().collect()
    }
}

fn bookmark(revision: &str) -> (&'static str, Value) {
    ("BOOKMARK", json!({"metadata": {"resourceVersion": revision}}))
}

fn expired() -> (&'static str, Value) {
    (
        "ERROR",
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "message": "too old", "code": 410}),
    )
}

#[tokio::test(start_paused = true)]
async fn lists_and_then_applies_watch_events() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[item("a", 5, 1), item("b", 6, 1)]).await;
    f.informer.synced().await;
    assert_eq!(f.changes_until(10).await, ["a: - to 1", "b: - to 1"]);
    watch.send(&[("MODIFIED", item("a", 11, 2)), ("DELETED", item("b", 12, 1)), ("ADDED", item("c", 13, 1))]);
    let mut changes = f.changes_until(13).await;
    changes.sort();
    assert_eq!(changes, ["a: 1 to 2", "b: 1 to -", "c: - to 1"]);
    assert_eq!(f.informer.snapshot().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn reports_existing_objects_to_a_late_handler_once() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[item("a", 5, 1)]).await;
    f.informer.synced().await;
    let (sender, late) = sync_mpsc::channel();
    f.informer.handle(move |change: &Change<Item>| sender.send(change.any().value).unwrap());
    watch.send(&[("MODIFIED", item("a", 11, 2))]);
    f.informer.reached(11).await;
    assert_eq!(late.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn handlers_see_every_object_again_between_one_and_two_periods() {
    let hour = Duration::from_secs(3600);
    let resync = Resync::every(hour, Arc::new(kaji_meta::random::SeededRandom::new(1)));
    let mut f = Fixture::resyncing(resync);
    let _watch = f.server.sync("10", &[item("a", 5, 1), item("b", 6, 2)]).await;
    let began = Instant::now();
    f.changes_until(10).await;
    // The time passes when nothing else is to do, and the server says nothing meanwhile.
    tokio::time::sleep_until(began + hour - Duration::from_secs(1)).await;
    assert_eq!(f.changes.try_iter().collect::<Vec<_>>(), [""; 0]);
    tokio::time::sleep_until(began + hour * 2 + Duration::from_secs(1)).await;
    assert_eq!(f.changes.try_iter().collect::<Vec<_>>(), ["a: 1 to 1", "b: 2 to 2"]);
    assert!(f.server.idle(), "nothing is asked");
    assert!(Resync::every(Duration::ZERO, Arc::new(kaji_meta::random::SystemRandom)).is_none());
}

#[tokio::test(start_paused = true)]
async fn shares_one_informer_per_resource() {
    let mut f = Fixture::new();
    assert!(Arc::ptr_eq(&f.informer, &f.informers.get::<Item>()));
    let _watch = f.server.sync("10", &[]).await;
    f.informer.synced().await;
    assert!(f.server.idle());
}

#[tokio::test(start_paused = true)]
async fn resumes_a_lost_watch_from_the_last_revision() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[]).await;
    watch.send(&[("ADDED", item("a", 11, 1)), bookmark("15")]);
    f.informer.reached(15).await;
    drop(watch);
    let watch = f.server.watch("15").await;
    watch.send(&[("MODIFIED", item("a", 16, 2))]);
    assert_eq!(f.changes_until(16).await, ["a: - to 1", "a: 1 to 2"]);
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_rest_of_a_split_event() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[]).await;
    let line = format!("{}\n", json!({"type": "ADDED", "object": item("a", 11, 1)}));
    let (first, rest) = line.split_at(30);
    watch.raw(first);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(f.informer.snapshot().is_empty());
    watch.raw(rest);
    assert_eq!(f.changes_until(11).await, ["a: - to 1"]);
}

#[tokio::test(start_paused = true)]
async fn lists_again_after_an_expired_watch_and_reports_the_differences() {
    let mut f = Fixture::new();
    let watch =
        f.server.sync("10", &[item("same", 5, 1), item("changed", 6, 1), item("deleted", 7, 1)]).await;
    f.changes_until(10).await;
    watch.send(&[expired()]);
    let _watch =
        f.server.sync("20", &[item("same", 5, 1), item("changed", 19, 2), item("created", 18, 1)]).await;
    let mut changes = f.changes_until(20).await;
    changes.sort();
    assert_eq!(changes, ["changed: 1 to 2", "created: - to 1", "deleted: 1 to -"]);
}

#[tokio::test(start_paused = true)]
async fn lists_again_when_a_watch_is_refused_as_expired() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[]).await;
    f.informer.synced().await;
    drop(watch);
    let refused = f.server.next().await;
    assert!(refused.uri.ends_with("resourceVersion=10"), "{}", refused.uri);
    refused.status(410, "Expired");
    let _watch = f.server.sync("30", &[item("a", 25, 1)]).await;
    assert_eq!(f.changes_until(30).await, ["a: - to 1"]);
}

#[tokio::test(start_paused = true)]
async fn keeps_its_objects_while_the_server_fails_and_backs_off() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[item("a", 5, 1)]).await;
    f.informer.synced().await;
    drop(watch);
    let mut waits = vec![];
    let mut before = Instant::now();
    for _ in 0..12 {
        let request = f.server.next().await;
        waits.push(before.elapsed().as_millis());
        before = Instant::now();
        request.status(500, "InternalError");
    }
    // Tokio's timers have a resolution of one millisecond.
    let doubled = waits[1..].iter().zip([10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 5120]);
    assert!(doubled.clone().all(|(wait, expected)| wait.abs_diff(expected) <= 1), "{waits:?}");
    assert_eq!(f.informer.snapshot().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn gives_up_on_a_list_without_response_and_lists_again() {
    let mut f = Fixture::new();
    let slow = f.server.next().await;
    let began = Instant::now();
    let retried = f.server.next().await;
    assert!(began.elapsed() >= Duration::from_secs(60), "{:?}", began.elapsed());
    // The late response changes nothing.
    slow.json(200, &list("9", &[item("late", 9, 1)]));
    retried.json(200, &list("10", &[item("a", 5, 1)]));
    assert_eq!(f.changes_until(10).await, ["a: - to 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_a_deletion_and_a_recreation_ends_with_the_new_object() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[item("a", 5, 1)]).await;
    f.changes_until(10).await;
    watch.send(&[("MODIFIED", item("a", 11, 2)), ("DELETED", item("a", 12, 2)), ("ADDED", item("a", 13, 3))]);
    assert_eq!(f.changes_until(13).await, ["a: 1 to -", "a: - to 3"]);
    watch.send(&[("ADDED", item("b", 14, 1)), ("DELETED", item("b", 15, 1))]);
    assert_eq!(f.changes_until(15).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn lists_again_after_an_event_that_cannot_be_decoded() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[]).await;
    f.informer.synced().await;
    watch.raw("{\"type\":\"ADDED\"}\n");
    let watch = f.server.sync("11", &[]).await;
    let mut wrong = item("b", 13, 1);
    wrong["value"] = json!("no number");
    watch.send(&[("ADDED", item("a", 12, 1)), ("ADDED", wrong), ("ADDED", item("c", 14, 1))]);
    let _watch = f.server.sync("20", &[item("a", 12, 1), item("b", 15, 2), item("c", 14, 1)]).await;
    let mut changes = f.changes_until(20).await;
    changes.sort();
    assert_eq!(changes, ["a: - to 1", "b: - to 2", "c: - to 1"]);
}

#[tokio::test(start_paused = true)]
async fn resumes_after_what_was_published_before_a_failure() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[]).await;
    watch.send(&[("ADDED", item("a", 11, 1))]);
    f.informer.reached(11).await;
    let failed = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "InternalError",
        "message": "failed", "code": 500});
    watch.send(&[("MODIFIED", item("a", 12, 2)), ("ERROR", failed)]);
    let watch = f.server.watch("12").await;
    watch.send(&[("MODIFIED", item("a", 13, 3))]);
    assert_eq!(f.changes_until(13).await, ["a: - to 1", "a: 1 to 2", "a: 2 to 3"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_counts_as_observed_when_the_object_is_absent_or_replaced() {
    let mut f = Fixture::new();
    let watch = f.server.sync("10", &[item("a", 5, 1)]).await;
    f.informer.synced().await;
    let key = Key::new("ns", "a");
    f.informer.gone(&key, Some("another uid")).await;
    let waits = tokio::time::timeout(Duration::from_secs(1), f.informer.gone(&key, Some("a")));
    assert!(waits.await.is_err());
    watch.send(&[("DELETED", item("a", 11, 1))]);
    f.informer.gone(&key, Some("a")).await;
}

#[tokio::test(start_paused = true)]
async fn selects_by_field_selector() {
    let (client, mut server) = client();
    let informers = Informers::selecting(client, Selected::default().of::<Item>("spec.nodeName=a"));
    let informer = informers.get::<Item>();
    let uri = "/apis/test/v1/items?fieldSelector=spec.nodeName%3Da";
    server.expect(Method::GET, uri).await.json(200, &list("10", &[]));
    let watch = server.next().await;
    assert!(watch.uri.starts_with(&format!("{uri}&watch=true")), "{}", watch.uri);
    informer.synced().await;
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_the_server_does_not_have_is_empty_until_it_does() {
    let mut f = Fixture::new();
    for _ in 0..NOT_SERVED {
        let request = f.server.next().await;
        assert!(f.informer.synced().now_or_never().is_none());
        request.status(404, "NotFound");
    }
    f.server.next().await.status(404, "NotFound");
    f.informer.synced().await;
    assert_eq!(f.informer.snapshot().len(), 0);
    let _watch = f.server.sync("10", &[item("a", 5, 1)]).await;
    assert_eq!(f.changes_until(10).await, ["a: - to 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_resource_is_empty_if_discovery_does_not_have_it() {
    let mut f = Fixture::new();
    for _ in 0..=NOT_SERVED {
        f.server.next().await.status(403, "Forbidden");
    }
    let served =
        json!({"kind": "APIResourceList", "resources": [{"name": "items"}, {"name": "items/status"}]});
    f.server.next().await.json(200, &served);
    f.server.next().await.status(403, "Forbidden");
    assert!(f.informer.synced().now_or_never().is_none());
    let discovery = f.server.next().await;
    assert_eq!(discovery.uri, "/apis/test/v1");
    discovery.json(200, &json!({"kind": "APIResourceList", "resources": [{"name": "items/status"}]}));
    f.informer.synced().await;
    assert_eq!(f.informer.snapshot().len(), 0);
}
