//! Tests of the plan applier against a server that the test plays, in paused time.

use super::*;
use crate::{
    ControllerMetrics, EventRecord, Moment, PatchKind,
    metrics::Buckets,
    testing::{Exchange, FakeServer, Item, WatchStream, client, item},
};
use http::Method;
use kaji_meta::{random::SeededRandom, time::ManualClock};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

static SEEN: Metric = Metric::counter("seen", "Changes", &[]);
static ITEMS: Metric = Metric::gauge("items", "Items", &[]);
static MOMENTS: Metric = Metric::counter("moments", "Moments", &["moment"]);
static TOOK: Metric = Metric::histogram("took", "Times", &[], Buckets::Bounds(&[1.0, 5.0]));

static ENDED: Metric = Metric::counter("ended", "Seconds", &["failures"]);

type Decide = Box<dyn Fn(&View, &Key, &Cx<'_>) -> Plan + Send + Sync>;

/// Calls a function and reports each call: the key, and what failed before.
struct Scripted {
    decide: Decide,
    calls: mpsc::UnboundedSender<(String, Vec<u16>)>,
    /// What became of each write: its object's revision, or the error's code.
    outcomes: mpsc::UnboundedSender<String>,
}

impl Reconciler for Scripted {
    fn name(&self) -> &'static str {
        "test-controller"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let codes = cx.failures.iter().filter_map(|f| f.error.code()).collect();
        self.calls.send((key.name.to_string(), codes)).unwrap();
        (self.decide)(view, key, cx)
    }

    fn written(&self, key: &Key, write: &Write, outcome: Result<&Value, &Error>) {
        let outcome = match outcome {
            Ok(object) => format!("revision {}", object["metadata"]["resourceVersion"]),
            Err(error) => format!("error {:?}", error.code()),
        };
        self.outcomes.send(format!("{key} {} {outcome}", write.target().name)).unwrap();
    }

    fn ended(&self, failures: &[Failure], seconds: f64) -> Vec<Sample> {
        let eventful = !failures.is_empty() || seconds > 0.0;
        eventful.then(|| ENDED.sample([failures.len().to_string().into()], seconds)).into_iter().collect()
    }
}

struct Fixture {
    server: FakeServer,
    watch: WatchStream,
    calls: mpsc::UnboundedReceiver<(String, Vec<u16>)>,
    outcomes: mpsc::UnboundedReceiver<String>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    decisions: Arc<Decisions>,
    metrics: ControllerMetrics,
}

impl Fixture {
    /// Runs a controller over items; each item is a key.
    async fn new(
        items: &[Value],
        decide: impl Fn(&View, &Key, &Cx<'_>) -> Plan + Send + Sync + 'static,
    ) -> Self {
        Self::batched(Duration::ZERO, items, decide).await
    }

    /// The same with changes that wait.
    async fn batched(
        wait: Duration,
        items: &[Value],
        decide: impl Fn(&View, &Key, &Cx<'_>) -> Plan + Send + Sync + 'static,
    ) -> Self {
        let (client, mut server) = client();
        let informers = Informers::new(client.clone());
        let (sender, calls) = mpsc::unbounded_channel();
        let (reported, outcomes) = mpsc::unbounded_channel();
        let metrics = informers.metrics().clone();
        let scripted = Scripted { decide: Box::new(decide), calls: sender, outcomes: reported };
        let controller = Controller::new(scripted, &informers)
            .reads_after::<Item>(wait, |change, _| vec![change.any().metadata.key()])
            .counts::<Item>(|change| change.new.as_ref().map(|_| SEEN.one([])))
            .gauges(|view| vec![ITEMS.count([], view.get::<Item>().len())])
            .workers(2);
        let (stop, stopped) = watch::channel(false);
        let decisions = Arc::<Decisions>::default();
        let shared = Shared {
            client,
            clock: Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap())),
            random: Arc::new(SeededRandom::new(1)),
            decisions: Some(decisions.clone()),
        };
        let task = tokio::spawn(async move {
            run(controller, shared, stopped).await;
            drop(informers);
        });
        let watch = server.sync("10", items).await;
        Fixture { server, watch, calls, outcomes, decisions, metrics, stop, task }
    }

    async fn called(&mut self) -> (String, Vec<u16>) {
        self.calls.recv().await.unwrap()
    }

    /// The next request other than an event's.
    async fn write(&mut self) -> Exchange {
        self.server.next().await
    }
}

fn target(name: &str) -> Target {
    Target::of::<Item>("ns", name)
}

fn patch(name: &str) -> Write {
    Write::Patch { target: target(name), kind: PatchKind::Merge, body: json!({"value": 2}) }
}

fn value(view: &View, key: &Key) -> i64 {
    view.get::<Item>().by_key(key).map_or(-1, |item| item.value)
}

#[tokio::test(start_paused = true)]
async fn retries_a_conflict_with_the_failure_in_the_context_and_without_an_event() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |view, key, _| {
        if value(view, key) == 2 {
            return Plan::nothing();
        }
        let event = |reason| Some(EventRecord::warning(json!({"name": "a"}), reason, "{error}"));
        let step = Step { write: patch(&key.name), on_success: None, on_failure: event("Failed") };
        Plan::nothing().stage(vec![step])
    })
    .await;
    assert_eq!(f.called().await, ("a".into(), vec![]));
    f.server.expect(Method::PATCH, "/apis/test/v1/namespaces/ns/items/a").await.status(409, "Conflict");
    assert_eq!(f.called().await, ("a".into(), vec![409]));
    // No event in between: the next request is the patch again.
    let retried = f.server.expect(Method::PATCH, "/apis/test/v1/namespaces/ns/items/a").await;
    retried.json(200, &item("a", 11, 2));
    f.watch.send(&[("MODIFIED", item("a", 11, 2))]);
    assert_eq!(f.called().await, ("a".into(), vec![]));
}

#[tokio::test(start_paused = true)]
async fn remembers_what_a_key_failed_with_until_its_writes_succeed() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |view, key, _| match value(view, key) {
        2 => Plan::nothing(),
        _ => {
            Plan::nothing().stage(vec![Step { write: patch(&key.name), on_success: None, on_failure: None }])
        }
    })
    .await;
    f.called().await;
    f.server.expect(Method::PATCH, "/apis/test/v1/namespaces/ns/items/a").await.status(403, "Forbidden");
    assert_eq!(f.called().await, ("a".into(), vec![403]));
    let kept = f.decisions.entries(Some("ns"));
    let [kept] = kept.as_slice() else { panic!("{kept:?}") };
    let about = &kept.decision.about;
    assert_eq!((about.resource.as_str(), about.name.as_str()), ("items", "a"));
    assert_eq!((kept.decision.key.as_str(), kept.decision.reason.as_str()), ("ns/a", "Forbidden"));
    f.server.expect(Method::PATCH, "/apis/test/v1/namespaces/ns/items/a").await.json(200, &item("a", 11, 2));
    f.watch.send(&[("MODIFIED", item("a", 11, 2))]);
    f.called().await;
    assert_eq!(f.decisions.entries(None), vec![]);
}

#[tokio::test(start_paused = true)]
async fn records_the_event_of_a_failed_step_and_skips_later_stages() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |_, key, cx| {
        if !cx.failures.is_empty() {
            return Plan::nothing();
        }
        let event = EventRecord::warning(
            json!({"kind": "Item", "namespace": "ns", "name": "a"}),
            "FailedPatch",
            "{name}: {error}",
        );
        let step = Step { write: patch(&key.name), on_success: None, on_failure: Some(event) };
        Plan::nothing().stage(vec![step]).then(patch("later"))
    })
    .await;
    f.write().await.status(403, "Forbidden");
    let event = f.server.expect(Method::POST, "/api/v1/namespaces/ns/events").await;
    assert_eq!(event.body["reason"], "FailedPatch");
    assert_eq!(event.body["message"], "a: Forbidden by the test");
    event.json(201, &json!({}));
    assert_eq!(f.called().await, ("a".into(), vec![]));
    assert_eq!(f.called().await, ("a".into(), vec![403]));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(f.server.idle());
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_an_independent_stage_holds_back_only_later_writes_to_its_object() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |_, _, cx| {
        if !cx.failures.is_empty() {
            return Plan::nothing();
        }
        let quiet = |write| Step { write, on_success: None, on_failure: None };
        let mark = |name: &str| {
            let body = json!({"value": 2});
            let target = target(name).subresource("status");
            quiet(Write::Patch { target, kind: PatchKind::Merge, body })
        };
        let delete = |name: &str| quiet(Write::Delete { target: target(name), options: json!({}) });
        let both = ["refused", "other"];
        Plan::nothing()
            .independent(both.map(mark).into())
            .stage(both.map(delete).into())
            .then(patch("last"))
            .then(patch("refused"))
    })
    .await;
    for _ in 0..2 {
        let mark = f.write().await;
        if mark.uri == "/apis/test/v1/namespaces/ns/items/refused/status" {
            mark.status(403, "Forbidden");
        } else {
            assert_eq!(mark.uri, "/apis/test/v1/namespaces/ns/items/other/status");
            mark.json(200, &json!({}));
        }
    }
    f.server.expect(Method::DELETE, "/apis/test/v1/namespaces/ns/items/other").await.json(200, &json!({}));
    f.server.expect(Method::PATCH, "/apis/test/v1/namespaces/ns/items/last").await.json(200, &json!({}));
    // The key is retried with what failed.
    assert_eq!(f.called().await, ("a".into(), vec![]));
    assert_eq!(f.called().await, ("a".into(), vec![403]));
    assert!(f.server.idle());
}

#[tokio::test(start_paused = true)]
async fn a_panic_retries_its_key_and_leaves_other_keys_alone() {
    let panicked = std::sync::atomic::AtomicBool::new(false);
    let mut f = Fixture::new(&[item("a", 5, 1), item("b", 6, 1)], move |_, key, _| {
        let first = key.name == "a" && !panicked.swap(true, std::sync::atomic::Ordering::Relaxed);
        assert!(!first, "this panic is part of the test");
        Plan::nothing()
    })
    .await;
    let mut calls = [f.called().await.0, f.called().await.0, f.called().await.0];
    calls.sort();
    assert_eq!(calls, ["a", "a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn observes_its_own_write_before_it_works_on_the_key_again() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |view, key, _| match value(view, key) {
        1 => Plan::nothing().then(patch(&key.name)),
        _ => Plan::nothing(),
    })
    .await;
    assert_eq!(f.called().await.0, "a");
    f.write().await.json(200, &item("a", 20, 2));
    // A change of the same key that is older than the write must not be reconciled: it would patch again, however late the
    // watch is.
    f.watch.send(&[("MODIFIED", item("a", 11, 1))]);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(f.calls.try_recv().is_err() && f.server.idle());
    f.watch.send(&[("MODIFIED", item("a", 20, 2))]);
    assert_eq!(f.called().await.0, "a");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(f.calls.try_recv().is_err() && f.server.idle());
}

#[tokio::test(start_paused = true)]
async fn goes_on_after_a_while_when_its_own_write_is_not_observed() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |_, key, _| Plan::nothing().then(patch(&key.name))).await;
    f.write().await.json(200, &item("a", 20, 2));
    f.called().await;
    let began = Instant::now();
    f.watch.send(&[("MODIFIED", item("a", 11, 1))]);
    f.called().await;
    assert!(began.elapsed() >= OBSERVE && began.elapsed() < OBSERVE + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_of_an_absent_object_succeeds() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |view, key, _| match value(view, key) {
        1 => Plan::nothing()
            .then(Write::Delete { target: target("absent"), options: json!({}) })
            .then(patch("a")),
        _ => Plan::nothing(),
    })
    .await;
    f.server.expect(Method::DELETE, "/apis/test/v1/namespaces/ns/items/absent").await.status(404, "NotFound");
    f.server.expect(Method::PATCH, "/apis/test/v1/namespaces/ns/items/a").await.json(200, &item("a", 11, 2));
}

#[tokio::test(start_paused = true)]
async fn reconciles_again_after_the_requested_delay() {
    let mut f =
        Fixture::new(&[item("a", 5, 1)], |_, _, _| Plan::nothing().again_after(Duration::from_secs(90)))
            .await;
    f.called().await;
    let began = Instant::now();
    f.called().await;
    assert!(began.elapsed().abs_diff(Duration::from_secs(90)) < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn changes_that_wait_are_reconciled_together() {
    let wait = Duration::from_secs(5);
    let began = Instant::now();
    let mut f = Fixture::batched(wait, &[item("a", 5, 1)], |_, _, _| Plan::nothing()).await;
    f.watch.send(&[("MODIFIED", item("a", 11, 2))]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    f.watch.send(&[("MODIFIED", item("a", 12, 3))]);
    f.called().await;
    assert!(began.elapsed() >= wait && began.elapsed() < wait + Duration::from_millis(500));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(f.calls.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_reconciler_learns_what_became_of_its_writes() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |view, key, _| match value(view, key) {
        1 => Plan::nothing().then(patch("other")),
        _ => Plan::nothing(),
    })
    .await;
    f.write().await.status(409, "Conflict");
    f.write().await.json(200, &item("other", 11, 2));
    assert_eq!(f.outcomes.recv().await.unwrap(), "ns/a other error Some(409)");
    assert_eq!(f.outcomes.recv().await.unwrap(), "ns/a other revision \"11\"");
}

#[tokio::test(start_paused = true)]
async fn a_plan_counts_what_it_observes_at_each_moment() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |view, key, _| {
        if value(view, key) == 2 {
            return Plan::nothing();
        }
        let moments = [
            ("decided", Moment::Decided),
            ("succeeded", Moment::Succeeded),
            ("failed", Moment::Failed),
            ("written a", Moment::Written(target("a"))),
            ("written b", Moment::Written(target("b"))),
            ("not written b", Moment::NotWritten(target("b"))),
        ];
        let plan = Plan::nothing().then(patch("a")).then(patch("b"));
        moments
            .into_iter()
            .fold(plan, |plan, (name, moment)| plan.observe(moment, MOMENTS.one([name.into()])))
            .observe_elapsed(Moment::Succeeded, TOOK.sample([], 0.0))
    })
    .await;
    let page = |f: &Fixture| {
        let mut registry = prometheus_client::registry::Registry::default();
        f.metrics.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        let own = ["seen", "items", "moments", "took", "ended"];
        let lines = page.lines().filter(|line| own.iter().any(|name| line.starts_with(name)));
        lines.collect::<Vec<_>>().join("\n")
    };
    // Of the first plan a write fails.
    f.server.expect(Method::PATCH, "/apis/test/v1/namespaces/ns/items/a").await.json(200, &json!({}));
    f.write().await.status(409, "Conflict");
    let second = f.write().await;
    expect_test::expect![[r#"
        ended{failures="1"} 0
        items 1
        moments{moment="decided"} 2
        moments{moment="failed"} 1
        moments{moment="not written b"} 1
        moments{moment="written a"} 1
        seen 1"#]]
    .assert_eq(&page(&f));
    // The second one takes two seconds.
    second.json(200, &json!({}));
    let last = f.write().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    last.json(200, &item("b", 11, 2));
    f.watch.send(&[("ADDED", item("b", 11, 2)), ("MODIFIED", item("a", 12, 2))]);
    for _ in 0..4 {
        f.called().await;
    }
    expect_test::expect![[r#"
        ended{failures="0"} 2
        ended{failures="1"} 0
        items 2
        moments{moment="decided"} 2
        moments{moment="failed"} 1
        moments{moment="not written b"} 1
        moments{moment="succeeded"} 1
        moments{moment="written a"} 2
        moments{moment="written b"} 1
        seen 3
        took_bucket{le="1"} 0
        took_bucket{le="5"} 1
        took_bucket{le="+Inf"} 1
        took_sum 2
        took_count 1"#]]
    .assert_eq(&page(&f));
    f.stop.send(true).unwrap();
    f.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stops_while_a_write_is_in_flight() {
    let mut f = Fixture::new(&[item("a", 5, 1)], |_, key, _| Plan::nothing().then(patch(&key.name))).await;
    let unanswered = f.write().await;
    f.stop.send(true).unwrap();
    f.task.await.unwrap();
    drop(unanswered);
}
