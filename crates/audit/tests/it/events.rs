//! Events: what is written, how much of it, and when.

use expect_test::expect;
use kaji_audit::{
    Backoff, Batcher, EncodedHead, Event, Fit, Head, Level, Metrics, ObjectRef, Options, ResponseStatus,
    Stage, Throttle, TruncateOptions, compact, events, fit, source_ips, user_agent, without_managed_fields,
};
use kaji_meta::{GroupResource, SeededRandom, Status};
use kaji_resource::UserInfo;
use prometheus_client::registry::Registry;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

fn head() -> Head {
    Head {
        audit_id: "a-1".into(),
        request_uri: "/api/v1/namespaces/ns/pods?dryRun=All".into(),
        verb: "create".into(),
        user: UserInfo {
            name: "jane".into(),
            uid: "7".into(),
            groups: vec!["dev".into(), "say \"hi\"".into()],
            extra: [("scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()])].into(),
        },
        source_ips: vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
        user_agent: "kubectl/v1.37".into(),
        received: "2026-01-02T03:04:05.123456789Z".parse().unwrap(),
        encoded: EncodedHead::default(),
    }
}

fn event() -> Event {
    Event {
        level: Level::RequestResponse,
        stage: Stage::ResponseComplete,
        head: Arc::new(head()),
        impersonated: Some(Arc::new((
            UserInfo { name: "joe".into(), ..UserInfo::default() },
            "impersonate-on:user-info:create".into(),
        ))),
        object: Some(Arc::new(ObjectRef {
            resource: "pods".into(),
            namespace: "ns".into(),
            name: "p".into(),
            api_version: "v1".into(),
            ..ObjectRef::default()
        })),
        status: Some(Arc::new((&Status::already_exists(&GroupResource::new("", "pods"), "p")).into())),
        request_object: Some(r#"{"kind":"Pod"}"#.into()),
        response_object: Some(r#"{"kind":"Status"}"#.into()),
        at: "2026-01-02T03:04:06Z".parse().unwrap(),
        annotations: Arc::new([("authorization.k8s.io/decision".to_owned(), "allow".to_owned())].into()),
    }
}

/// The event RequestReceived of a request before it is authenticated.
fn bare() -> Event {
    let head = Head { user: UserInfo::default(), source_ips: vec![], user_agent: String::new(), ..head() };
    Event {
        level: Level::Metadata,
        stage: Stage::RequestReceived,
        head: Arc::new(head),
        impersonated: None,
        object: None,
        status: None,
        request_object: None,
        response_object: None,
        annotations: Arc::default(),
        ..event()
    }
}

fn string(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8(bytes.as_ref().to_vec()).unwrap()
}

#[test]
fn events_are_lines_of_json() {
    expect![[r#"
        {"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"a-1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/ns/pods?dryRun=All","verb":"create","user":{"username":"jane","uid":"7","groups":["dev","say \"hi\""],"extra":{"scopes":["a","b"]}},"impersonatedUser":{"username":"joe"},"authenticationMetadata":{"impersonationConstraint":"impersonate-on:user-info:create"},"sourceIPs":["10.0.0.1","::1"],"userAgent":"kubectl/v1.37","objectRef":{"resource":"pods","namespace":"ns","name":"p","apiVersion":"v1"},"responseStatus":{"metadata":{},"status":"Failure","message":"pods \"p\" already exists","reason":"AlreadyExists","details":{"kind":"pods","name":"p"},"code":409},"requestObject":{"kind":"Pod"},"responseObject":{"kind":"Status"},"requestReceivedTimestamp":"2026-01-02T03:04:05.123456Z","stageTimestamp":"2026-01-02T03:04:06.000000Z","annotations":{"authorization.k8s.io/decision":"allow"}}
    "#]].assert_eq(&string(event().json()));
    expect![[r#"
        {"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a-1","stage":"RequestReceived","requestURI":"/api/v1/namespaces/ns/pods?dryRun=All","verb":"create","user":{},"requestReceivedTimestamp":"2026-01-02T03:04:05.123456Z","stageTimestamp":"2026-01-02T03:04:06.000000Z"}
    "#]].assert_eq(&string(bare().json()));
    expect![[r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[{},{"level":"Metadata","auditID":"a-1","stage":"RequestReceived","requestURI":"/api/v1/namespaces/ns/pods?dryRun=All","verb":"create","user":{},"requestReceivedTimestamp":"2026-01-02T03:04:05.123456Z","stageTimestamp":"2026-01-02T03:04:06.000000Z"}]}"#]].assert_eq(&string(events(&[b"{}".to_vec(), bare().item()])));
}

#[test]
fn changed_copies_of_a_head_are_encoded_anew() {
    let first = event();
    let before = String::from_utf8(first.json()).unwrap();
    let head = Head { verb: "patch".into(), ..(*first.head).clone() };
    let after = String::from_utf8(Event { head: Arc::new(head), ..first }.json()).unwrap();
    assert!(!before.contains(r#""verb":"patch""#) && after.contains(r#""verb":"patch""#), "{after}");
}

#[test]
fn texts_are_escaped_as_gos_encoder_does() {
    let head = Head { request_uri: "/api?a=<1>&b=\"\u{2028}".into(), ..head() };
    let json = String::from_utf8(Event { head: Arc::new(head), ..bare() }.json()).unwrap();
    assert!(json.contains(r#""requestURI":"/api?a=\u003c1\u003e\u0026b=\"\u2028""#), "{json}");
}

#[test]
fn writes_the_legacy_format() {
    expect![[r#"
        2026-01-02T03:04:05.123456Z AUDIT: id="a-1" stage="ResponseComplete" ip="10.0.0.1" method="create" user="jane" groups="\"dev\",\"say \\\"hi\\\"\"" as="joe" asgroups="<lookup>" user-agent="kubectl/v1.37" namespace="ns" uri="/api/v1/namespaces/ns/pods?dryRun=All" response="409"
        2026-01-02T03:04:05.123456Z AUDIT: id="a-1" stage="RequestReceived" ip="<unknown>" method="create" user="<none>" groups="<none>" as="<self>" asgroups="<lookup>" user-agent="" namespace="<none>" uri="/api/v1/namespaces/ns/pods?dryRun=All" response="<deferred>""#]].assert_eq(&[event().line(), bare().line()].join("\n"));
}

#[test]
fn an_answer_that_is_an_object_has_a_code_only() {
    let event =
        Event { status: Some(Arc::new(ResponseStatus { code: 200, ..ResponseStatus::default() })), ..bare() };
    let value: Value = serde_json::from_slice(&event.json()).unwrap();
    assert_eq!(value["responseStatus"], json!({"metadata": {}, "code": 200}));
}

#[test]
fn large_events_lose_their_bodies_then_go() {
    let large = Event { request_object: Some(format!("\"{}\"", "x".repeat(5000)).into()), ..event() };
    let show = |event: &Event, enabled: bool, max_event_size: u64| {
        let limits = TruncateOptions { enabled, max_event_size, ..TruncateOptions::default() };
        match fit(event, &limits, Event::json) {
            Fit::Encoded(json) => {
                let value: Value = serde_json::from_slice(&json).unwrap();
                let bodies = ["requestObject", "responseObject"].map(|b| value.get(b).is_some());
                format!("{bodies:?} {}", value["annotations"])
            }
            Fit::TooLarge => "too large".into(),
        }
    };
    let metadata = Event { level: Level::Metadata, ..bare() };
    let got = [
        show(&large, false, 1000),
        show(&large, true, 100_000),
        // The bodies alone are too large, or only all together is.
        show(&large, true, 1500),
        show(&large, true, 5100),
        show(&large, true, 100),
        show(&metadata, true, 100),
        show(&metadata, true, 1000),
    ];
    expect![[r#"
        [true, true] {"authorization.k8s.io/decision":"allow"}
        [true, true] {"authorization.k8s.io/decision":"allow"}
        [false, false] {"audit.k8s.io/truncated":"true","authorization.k8s.io/decision":"allow"}
        [false, false] {"audit.k8s.io/truncated":"true","authorization.k8s.io/decision":"allow"}
        too large
        too large
        [false, false] null"#]]
    .assert_eq(&got.join("\n"));
}

#[test]
fn managed_fields_are_left_out_everywhere() {
    let object = || json!({"metadata": {"name": "a", "managedFields": [1]}, "managedFields": "kept"});
    let got = without_managed_fields(json!({
        "metadata": {"managedFields": []},
        "items": [object(), 1],
        "rows": [{"object": object()}, {"object": null}],
    }));
    expect![[r#"{"items":[{"managedFields":"kept","metadata":{"name":"a"}},1],"metadata":{},"rows":[{"object":{"managedFields":"kept","metadata":{"name":"a"}}},{"object":null}]}"#]].assert_eq(&got.to_string());
    assert_eq!(without_managed_fields(object())["metadata"], json!({"name": "a"}));
}

#[test]
fn bodies_are_compact() {
    let show = |text: &'static str| compact(text.into()).map_or("-".into(), string);
    assert_eq!(show("{\n \"a\": \"b\\nc\"\n}\n"), r#"{"a":"b\nc"}"#);
    assert_eq!(show(r#"{"a": 1}"#), r#"{"a": 1}"#);
    assert_eq!(show("{\n"), "-");
}

#[test]
fn records_source_addresses() {
    let show = |forwarded: &str, real: &str, remote: &str| {
        let given = |text| Some(text).filter(|t: &&str| !t.is_empty());
        format!("{:?}", source_ips(given(forwarded), given(real), remote.parse().unwrap()))
    };
    let got = [
        show("", "", "10.0.0.1"),
        show("1.1.1.1, nonsense,2.2.2.2", "", "10.0.0.1"),
        show("1.1.1.1", "1.1.1.1", "1.1.1.1"),
        show("1.1.1.1", "3.3.3.3", "::ffff:3.3.3.3"),
        show("::1", "fe80::1", "10.0.0.1"),
    ];
    expect![[r#"
        [10.0.0.1]
        [1.1.1.1, 2.2.2.2, 10.0.0.1]
        [1.1.1.1]
        [1.1.1.1, 3.3.3.3]
        [::1, fe80::1, 10.0.0.1]"#]]
    .assert_eq(&got.join("\n"));
}

#[test]
fn long_user_agents_are_cut() {
    assert_eq!(user_agent("curl/8"), "curl/8");
    assert_eq!(user_agent(&"x".repeat(1024)).len(), 1024);
    let cut = user_agent(&"ä".repeat(600));
    assert_eq!(cut, format!("{}...TRUNCATED", "ä".repeat(512)));
}

#[test]
fn what_is_lost_is_counted() {
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let now = "2026-01-02T03:04:05Z".parse().unwrap();
    let lost: Vec<Arc<Event>> = (0..150).map(|_| Arc::new(bare())).collect();
    metrics.lost("webhook", "no route", &lost, now);
    assert_eq!(metrics.kept_back(), 50);
    metrics.lost("buffered", "audit buffer queue blocked", &lost[..1], now);
    assert_eq!(metrics.kept_back(), 51);
    metrics.lost(
        "buffered",
        "audit buffer queue blocked",
        &lost[..1],
        now + jiff::SignedDuration::from_secs(1),
    );
    assert_eq!(metrics.kept_back(), 0);
    metrics.event();
    metrics.level(Level::Request);
    metrics.rejected();
    let page = kaji_exposition::encode(&registry);
    let mut lines: Vec<&str> = page.lines().filter(|l| !l.starts_with('#')).collect();
    lines.sort_unstable();
    expect![[r#"
        apiserver_audit_error_total{plugin="buffered"} 2
        apiserver_audit_error_total{plugin="webhook"} 150
        apiserver_audit_event_total 1
        apiserver_audit_level_total{level="Metadata"} 0
        apiserver_audit_level_total{level="None"} 0
        apiserver_audit_level_total{level="Request"} 1
        apiserver_audit_level_total{level="RequestResponse"} 0
        apiserver_audit_requests_rejected_total 1"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn flags_that_make_no_sense() {
    let mut options = Options::default();
    options.log.format = "xml".into();
    // Without a path there is no log, whatever else is said about it.
    assert_eq!(options.validate(), Vec::<String>::new());
    options.log.path = "-".into();
    (options.log.max_age, options.log.max_size) = (-1, -2);
    options.log.version = "audit.k8s.io/v1beta1".into();
    options.log.truncate.max_batch_size = 5;
    options.log.batch.buffer_size = 0;
    let mut got = options.validate();
    // A mode without batches has no use for their size.
    options = Options::default();
    options.log.path = "-".into();
    options.log.batch.mode = "batch".into();
    options.log.batch.buffer_size = 0;
    options.webhook.config_file = Some("file".into());
    options.webhook.batch.throttle_qps = 0.0;
    options.webhook.truncate.max_event_size = 0;
    got.extend(options.validate());
    options.webhook.batch.throttle_burst = -1;
    options.webhook.batch.throttle_qps = 1.0;
    options.log.batch.mode = "sometimes".into();
    got.extend(options.validate());
    expect![[r#"
        invalid audit truncate log max batch size 5, must be greater than max event size (102400)
        invalid group version, allowed versions are ["audit.k8s.io/v1"]
        invalid audit log format xml, allowed formats are "legacy,json"
        --audit-log-maxage -1 can't be a negative number
        --audit-log-maxsize -2 can't be a negative number
        invalid audit batch log buffer size 0, must be a positive number
        invalid audit batch webhook throttle QPS 0, must be a positive number
        invalid audit truncate webhook max event size 0, must be a positive number
        invalid audit log mode sometimes, allowed modes are "batch,blocking,blocking-strict"
        invalid audit batch webhook throttle burst -1, must be a positive number
        invalid audit truncate webhook max event size 0, must be a positive number"#]]
    .assert_eq(&got.join("\n"));
}

#[test]
fn tries_are_further_and_further_apart() {
    let random = SeededRandom::new(1);
    let mut backoff = Backoff::new(Duration::from_secs(10));
    let waits: Vec<f64> = std::iter::from_fn(|| backoff.next(&random)).map(|w| w.as_secs_f64()).collect();
    assert_eq!(waits.len(), 4);
    for (wait, least) in waits.iter().zip([10.0, 15.0, 22.5, 33.75]) {
        assert!((least..=least * 1.2).contains(wait), "{waits:?}");
    }
}

#[test]
fn batches_go_when_full_or_due() {
    let mut batcher = Batcher::new(2, Duration::from_secs(30));
    let at = Duration::from_secs;
    assert_eq!((batcher.due(), batcher.push("a", at(5))), (None, None));
    assert_eq!(batcher.due(), Some(at(35)));
    assert_eq!(batcher.push("b", at(6)), Some(vec!["a", "b"]));
    assert_eq!((batcher.due(), batcher.take()), (None, None));
    assert_eq!(batcher.push("c", at(7)), None);
    assert_eq!((batcher.due(), batcher.take()), (Some(at(37)), Some(vec!["c"])));
}

#[test]
fn batches_are_paced() {
    let mut throttle = Throttle::new(10.0, 3);
    let ms = Duration::from_millis;
    let waits: Vec<Duration> = [0, 0, 0, 0, 0, 100, 1000].map(|now| throttle.take(ms(now))).to_vec();
    assert_eq!(waits, [ms(0), ms(0), ms(0), ms(100), ms(200), ms(200), ms(0)]);
}

proptest! {
    /// Whatever a client sends, an event is one line that says it.
    #[test]
    fn nothing_breaks_the_line(uri in ".*", agent in ".*", name in ".*") {
        let user = UserInfo { name: name.clone(), ..UserInfo::default() };
        let head = Head { request_uri: uri.clone(), user_agent: agent, user, ..head() };
        let event = Event { head: Arc::new(head), ..event() };
        let json = event.json();
        prop_assert_eq!(json.iter().filter(|b| **b == b'\n').count(), 1);
        prop_assert_eq!(event.line().lines().count(), 1);
        let value: Value = serde_json::from_slice(&json).unwrap();
        prop_assert_eq!(value["requestURI"].as_str(), Some(uri.as_str()));
        prop_assert_eq!(value["user"]["username"].as_str().unwrap_or_default(), name);
    }

    /// Nothing is lost, repeated or put out of order, and no batch is too large.
    #[test]
    fn batches_keep_everything(steps in prop::collection::vec(any::<bool>(), 0..64), most in 1..8_usize) {
        let mut batcher = Batcher::new(most, Duration::from_secs(1));
        let (mut out, mut count) = (vec![], 0);
        for push in steps {
            let batch = if push {
                count += 1;
                batcher.push(count, Duration::ZERO)
            } else {
                batcher.take()
            };
            prop_assert!(batch.as_ref().is_none_or(|b| !b.is_empty() && b.len() <= most));
            out.extend(batch.into_iter().flatten());
        }
        out.extend(batcher.take().into_iter().flatten());
        prop_assert_eq!(out, (1..=count).collect::<Vec<_>>());
    }
}
