//! Events of fixtures: lists, families, and watches that end in every way.

use super::*;
use crate::testing::{Fixture, fixture};
use bytes::Bytes;
use expect_test::expect;
use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use kaji_runtime::feed::{ObjectEvent, ObjectEvents};
use serde_json::json;
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

fn event(name: &str, revision: u32, of: Value, more: Value) -> Value {
    let mut event = json!({"kind": "Event", "apiVersion": "v1", "type": "Normal", "involvedObject": of, "message": format!("about {name}"),
        "reason": "Tested", "reportingComponent": "test",
        "metadata": {"name": name, "namespace": "d", "uid": format!("uid-{name}"), "resourceVersion": revision.to_string(),
            "creationTimestamp": format!("2026-01-01T00:00:{revision:02}Z")}});
    for (key, value) in more.as_object().into_iter().flatten() {
        event[key] = value.clone();
    }
    event
}

fn about(kind: &str, name: &str) -> Value {
    json!({"kind": kind, "name": name, "namespace": "d", "uid": format!("{kind}-{name}"),
        "apiVersion": if kind == "Pod" { "v1" } else { "apps/v1" }})
}

fn owned(kind: &str, name: &str) -> Value {
    json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true}]})
}

/// What a server does with one request after the other.
enum Answer {
    List(Vec<Value>),
    Watch(Vec<ObjectEvent>),
    Error(Error),
}

/// A script of answers, and then a refusal, after which nothing may be asked.
struct Script(Mutex<VecDeque<Answer>>);

impl Script {
    fn next(&self) -> Answer {
        let next = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        next.expect("a request after the server's refusal")
    }
}

fn script(answers: Vec<Answer>) -> Script {
    let over = Answer::Error(code(403, "the script is over"));
    Script(Mutex::new(answers.into_iter().chain([over]).collect()))
}

fn code(code: u16, message: &str) -> Error {
    Error::of_response(
        code,
        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": message})
            .to_string()
            .as_bytes(),
    )
}

fn bytes(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

impl ObjectFeed for Script {
    fn list<'a>(&'a self, _: &'a str, _: &'a Collection) -> BoxFuture<'a, Result<ObjectList, Error>> {
        let answer = match self.next() {
            Answer::List(events) => {
                let revision = bytes(&json!({"resourceVersion": "1000"}));
                let parts = std::iter::once(Listed::Metadata(revision))
                    .chain(events.iter().map(|event| Listed::Object(bytes(event))).collect::<Vec<_>>());
                Ok(stream::iter(parts.map(Ok)).boxed())
            }
            Answer::Error(error) => Err(error),
            Answer::Watch(_) => panic!("a list where the script has a watch"),
        };
        std::future::ready(answer).boxed()
    }

    fn watch<'a>(
        &'a self,
        _: &'a str,
        _: &'a Collection,
        from: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        assert!(!from.is_empty());
        let answer: Result<BoxStream<'static, _>, Error> = match self.next() {
            Answer::Watch(events) => Ok(stream::iter([Ok(events)]).boxed()),
            Answer::Error(error) => Err(error),
            Answer::List(_) => panic!("a watch where the script has a list"),
        };
        std::future::ready(answer).boxed()
    }
}

fn objects() -> Fixture {
    fixture(&[
        json!({"kind": "Deployment", "name": "web"}),
        json!({"kind": "ReplicaSet", "name": "web-1", "metadata": owned("Deployment", "web")}),
        json!({"kind": "Pod", "name": "web-1-a", "metadata": owned("ReplicaSet", "web-1")}),
        json!({"kind": "Pod", "name": "other"}),
    ])
}

fn of_web(types: &[&str]) -> EventQuery {
    EventQuery {
        subject: Some(Subject { kind: "deployment".into(), name: "web".into() }),
        namespace: "d".into(),
        types: types.iter().map(|one| (*one).to_owned()).collect(),
    }
}

#[tokio::test]
async fn shows_the_events_of_an_object_and_of_what_it_owns_in_order() {
    let all = || {
        Answer::List(vec![
            event(
                "pod",
                7,
                about("Pod", "web-1-a"),
                json!({"series": {"count": 3, "lastObservedTime": "2026-01-01T00:01:00.000001Z"},
                "eventTime": "2026-01-01T00:00:07.000000Z", "reportingComponent": "default-scheduler"}),
            ),
            event(
                "set",
                6,
                about("ReplicaSet", "web-1"),
                json!({"type": "Warning", "count": 2, "reportingComponent": "",
                "source": {"component": "replicaset-controller"}, "firstTimestamp": "2026-01-01T00:00:05Z", "lastTimestamp": "2026-01-01T00:00:08Z"}),
            ),
            event("other", 5, about("Pod", "other"), json!({})),
            // One of a deployment that had the name before, with a line break.
            event(
                "old",
                4,
                json!({"kind": "Deployment", "name": "web", "namespace": "d", "uid": "gone", "apiVersion": "apps/v1"}),
                json!({"message": "two\nlines\u{1b}[2J"}),
            ),
        ])
    };
    let server = objects();
    let now = "2026-01-01T00:02:00Z".parse().unwrap();
    let feed = script(vec![all(), all()]);
    let mut events = Events::open(&server, &feed, &of_web(&[])).await.unwrap();
    let mut text = event_table(&events.list().await.unwrap(), true, now);
    assert_eq!(events.list().await.unwrap(), [], "what was shown is not shown again");
    let feed = script(vec![all()]);
    let mut events = Events::open(&server, &feed, &of_web(&["Warning"])).await.unwrap();
    let warnings = events.list().await.unwrap();
    text += &event_table(&warnings, false, now);
    text += &format!("{}\n", serde_json::to_string(&warnings).unwrap());
    expect![[r#"
        NAMESPACE   LAST SEEN             TYPE      REASON   OBJECT             FROM                    MESSAGE
        d           116s                  Normal    Tested   deployment/web     test                    two lines [2J
        d           112s (x2 over 115s)   Warning   Tested   replicaset/web-1   replicaset-controller   about set
        d           59s (x3 over 113s)    Normal    Tested   pod/web-1-a        default-scheduler       about pod
        LAST SEEN             TYPE      REASON   OBJECT             FROM                    MESSAGE
        112s (x2 over 115s)   Warning   Tested   replicaset/web-1   replicaset-controller   about set
        [{"time":"2026-01-01T00:00:08Z","firstTime":"2026-01-01T00:00:05Z","count":2,"type":"Warning","reason":"Tested","note":"about set","regarding":{"apiVersion":"apps/v1","kind":"ReplicaSet","namespace":"d","name":"web-1","uid":"ReplicaSet-web-1"},"reportingController":"replicaset-controller","namespace":"d","name":"set","uid":"uid-set","resourceVersion":"6"}]
    "#]].assert_eq(&text);
}

#[tokio::test]
async fn an_object_that_is_not_there_has_events_and_a_kind_that_is_not_known_has_none() {
    let gone = json!({"kind": "Pod", "name": "gone", "namespace": "d", "uid": "u", "apiVersion": "v1"});
    let feed = script(vec![Answer::List(vec![event("last", 3, gone, json!({}))])]);
    let server = objects();
    let of = |kind: &str| EventQuery {
        subject: Some(Subject { kind: kind.into(), name: "gone".into() }),
        ..of_web(&[])
    };
    let found = Events::open(&server, &feed, &of("pod")).await.unwrap().list().await.unwrap();
    assert_eq!(found.len(), 1);
    assert!(Events::open(&server, &feed, &of("pdo")).await.is_err());
}

/// The lines and notes of a script that is followed to its end.
async fn follow(server: &Fixture, query: &EventQuery, answers: Vec<Answer>) -> String {
    let feed = script(answers);
    let text = Mutex::new(String::new());
    let add = |line: &str| {
        let mut text = text.lock().unwrap();
        text.push_str(line);
        text.push('\n');
    };
    let mut events = Events::open(server, &feed, query).await.unwrap();
    let end = events
        .follow(
            &mut |event| {
                add(&event.line(false));
                Ok(())
            },
            &mut |note| add(&format!("note: {note}")),
        )
        .await
        .unwrap_err();
    add(&format!("end: {end}"));
    text.into_inner().unwrap()
}

#[tokio::test(start_paused = true)]
async fn follows_through_ends_failures_and_forgotten_revisions() {
    let pod = |name: &str, revision: u32| event(name, revision, about("Pod", "web-1-a"), json!({}));
    let changed = |event: Value| ObjectEvent::Changed(bytes(&event));
    let expired = bytes(
        &json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}),
    );
    let (a, b, c, d, e) = (pod("a", 1), pod("b", 2), pod("c", 3), pod("d", 4), pod("e", 5));
    let a_again = event(
        "a",
        6,
        about("Pod", "web-1-a"),
        json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:06.000000Z"}}),
    );
    let text = follow(
        &objects(),
        &of_web(&[]),
        vec![
            Answer::List(vec![a.clone()]),
            Answer::Watch(vec![changed(b.clone()), ObjectEvent::Failed(expired)]),
            Answer::List(vec![a, b, c.clone()]),
            Answer::Error(code(410, "too old")),
            Answer::List(vec![c, d.clone()]),
            // Ends as every watch does, and goes on without a list.
            Answer::Watch(vec![changed(a_again)]),
            Answer::Watch(vec![]),
            Answer::Error(Error::Transport("connection refused".into())),
            Answer::Error(Error::Transport("connection refused".into())),
            Answer::List(vec![d, e]),
            Answer::Error(code(503, "starting")),
        ],
    )
    .await;
    expect![[r#"
        2026-01-01T00:00:01Z  Normal   Tested                pod/web-1-a                       test: about a
        2026-01-01T00:00:02Z  Normal   Tested                pod/web-1-a                       test: about b
        2026-01-01T00:00:03Z  Normal   Tested                pod/web-1-a                       test: about c
        2026-01-01T00:00:04Z  Normal   Tested                pod/web-1-a                       test: about d
        2026-01-01T00:00:06Z  Normal   Tested                pod/web-1-a                       test: about a (x2)
        note: transport: connection refused; trying again
        2026-01-01T00:00:05Z  Normal   Tested                pod/web-1-a                       test: about e
        note: starting; trying again
        end: the script is over
    "#]].assert_eq(&text);
}

#[tokio::test(start_paused = true)]
async fn learns_of_dependents_that_are_made_meanwhile() {
    let server = fixture(&[
        json!({"kind": "Deployment", "name": "web"}),
        json!({"kind": "ReplicaSet", "name": "web-2", "metadata": owned("Deployment", "web")}),
        json!({"kind": "Pod", "name": "new", "metadata": owned("ReplicaSet", "web-2")}),
        json!({"kind": "Pod", "name": "other"}),
    ])
    // So that all that is learned is from the objects of events.
    .forbidding("?limit");
    let text = follow(
        &server,
        &of_web(&[]),
        vec![
            Answer::List(vec![]),
            Answer::Watch(vec![
                ObjectEvent::Changed(bytes(&event("pod", 2, about("Pod", "new"), json!({})))),
                ObjectEvent::Changed(bytes(&event("other", 3, about("Pod", "other"), json!({})))),
                ObjectEvent::Changed(bytes(&event("gone", 4, about("Pod", "gone"), json!({})))),
                ObjectEvent::Bookmark(bytes(&json!({"metadata": {"resourceVersion": "5"}}))),
            ]),
        ],
    )
    .await;
    expect![[r#"
        2026-01-01T00:00:02Z  Normal   Tested                pod/new                           test: about pod
        note: /api/v1/namespaces/d/configmaps is forbidden
        note: /api/v1/namespaces/d/persistentvolumeclaims is forbidden
        note: /api/v1/namespaces/d/pods is forbidden
        note: /api/v1/namespaces/d/resourcequotas is forbidden
        note: /api/v1/namespaces/d/secrets is forbidden
        note: /api/v1/namespaces/d/services is forbidden
        note: /apis/acme.example.com/v1/namespaces/d/guards is forbidden
        note: /apis/apps/v1/namespaces/d/deployments is forbidden
        note: /apis/apps/v1/namespaces/d/replicasets is forbidden
        note: /apis/autoscaling/v2/namespaces/d/horizontalpodautoscalers is forbidden
        note: /apis/discovery.k8s.io/v1/namespaces/d/endpointslices is forbidden
        note: /apis/history.kaji.dev/v1alpha1/namespaces/d/revisions is forbidden
        note: /apis/kaji.dev/v1alpha1/namespaces/d/decisions is forbidden
        note: /apis/kaji.dev/v1alpha1/namespaces/d/refusals is forbidden
        note: /apis/metrics.k8s.io/v1beta1/namespaces/d/pods is forbidden
        note: /apis/policy/v1/namespaces/d/poddisruptionbudgets is forbidden
        note: /apis/rbac.authorization.k8s.io/v1/namespaces/d/rolebindings is forbidden
        note: /apis/rbac.authorization.k8s.io/v1/namespaces/d/roles is forbidden
        note: /apis/scheduling.k8s.io/v1beta1/namespaces/d/podgroups is forbidden
        end: the script is over
    "#]]
    .assert_eq(&text);
}

#[tokio::test(start_paused = true)]
async fn ends_when_it_may_not_read_and_narrows_to_the_namespace_of_the_clusters_events() {
    let server = fixture(&[json!({"kind": "Node", "name": "a"})]);
    let of_node = EventQuery {
        subject: Some(Subject { kind: "node".into(), name: "a".into() }),
        ..EventQuery::default()
    };
    let node = json!({"kind": "Node", "name": "a", "uid": "a", "apiVersion": "v1"});
    let answers = vec![
        Answer::Error(code(403, "events is forbidden")),
        Answer::List(vec![event("ready", 1, node, json!({}))]),
    ];
    let mut text = follow(&server, &of_node, answers).await;
    text += &follow(&server, &of_all(), vec![Answer::Error(code(403, "events is forbidden"))]).await;
    expect![[r#"
        2026-01-01T00:00:01Z  Normal   Tested                node/a                            test: about ready
        note: events is forbidden; these are the events of the namespace default
        end: the script is over
        end: events is forbidden
    "#]].assert_eq(&text);
}

fn of_all() -> EventQuery {
    EventQuery { namespace: "d".into(), ..EventQuery::default() }
}
