//! What is asked, what is made of the answers, and how long they count.

use super::*;
use crate::authz::tests::ready;
use jiff::Timestamp;
use serde_json::json;
use std::time::Duration;

struct Hand(Mutex<Timestamp>);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

/// Answers with the next status, and notes the questions.
#[derive(Default)]
struct Remote {
    answers: Mutex<Vec<Result<Value, Failure>>>,
    asked: Mutex<Vec<Value>>,
}

impl Service for Remote {
    fn review(&self, review: Value) -> BoxFuture<'_, Result<Value, Failure>> {
        self.asked.lock().unwrap().push(review);
        Box::pin(std::future::ready(self.answers.lock().unwrap().remove(0)))
    }
}

struct Heard(Arc<Mutex<Vec<String>>>);

impl Witness for Heard {
    fn failed_open(&self, name: &str, result: &'static str) {
        self.0.lock().unwrap().push(format!("{name} {result}"));
    }

    fn conditions(&self, name: &str, took: Duration, excluded: bool, failed: bool) {
        let text = format!("{name} took {took:?}, excluded {excluded}, failed {failed}");
        self.0.lock().unwrap().push(text);
    }
}

struct World {
    remote: Arc<Remote>,
    clock: Arc<Hand>,
    open: Arc<Mutex<Vec<String>>>,
    webhook: Webhook,
}

fn world(change: impl FnOnce(&mut WebhookConfig)) -> World {
    let mut config = WebhookConfig {
        name: "w".into(),
        timeout: Duration::from_secs(1),
        authorized_ttl: Duration::from_secs(10),
        unauthorized_ttl: Duration::from_secs(2),
        version: "v1",
        on_failure: OnFailure::NoOpinion,
        kubeconfig: "/x".into(),
        conditions: Conditions::default(),
    };
    change(&mut config);
    let (remote, clock) = (Arc::new(Remote::default()), Arc::new(Hand(Mutex::new(Timestamp::UNIX_EPOCH))));
    let open = Arc::new(Mutex::new(vec![]));
    let witness = Arc::new(Heard(open.clone()));
    let webhook = Webhook::new(remote.clone(), config, clock.clone(), witness);
    World { remote, clock, open, webhook }
}

fn status(status: Value) -> Result<Value, Failure> {
    Ok(json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": status}))
}

fn jane() -> UserInfo {
    UserInfo {
        name: "jane".into(),
        uid: "7".into(),
        groups: vec!["a".into(), "b".into()],
        extra: [("k".to_owned(), vec!["v".to_owned()])].into_iter().collect(),
    }
}

impl World {
    /// Each answer to a question of its own.
    fn answers(&self, answers: Vec<Result<Value, Failure>>) -> Vec<Outcome> {
        let user = jane();
        let paths: Vec<String> = (0..answers.len()).map(|i| format!("/{i}")).collect();
        *self.remote.answers.lock().unwrap() = answers;
        paths
            .iter()
            .map(|path| ready(self.webhook.authorize(&Attributes::path(&user, "get", path))))
            .collect()
    }

    /// The decision about this now; `None` if the service had to be asked and was not there.
    fn decide(&self, path: &str) -> Option<Decision> {
        let user = jane();
        let outcome = ready(self.webhook.authorize(&Attributes::path(&user, "get", path)));
        (outcome.error.is_none()).then_some(outcome.decision)
    }
}

#[test]
fn writes_access_reviews() {
    let user = jane();
    let fields = fields::Selector::parse("spec.nodeName=a,status.phase!=b").unwrap();
    let labels = labels::Selector::parse("a in (b,c),d!=e,!f,g,h>1").unwrap();
    let mut all = vec![];
    for version in ["v1", "v1beta1"] {
        let world = world(|c| c.version = version);
        *world.remote.answers.lock().unwrap() = vec![status(json!({})); 3];
        let list = Attributes {
            namespace: "n",
            version: "v1",
            subresource: "log",
            name: "p",
            field_selector: Some(&fields),
            label_selector: Some(&labels),
            ..Attributes::resource(&user, "list", "apps", "pods")
        };
        let plain = Attributes::resource(&user, "get", "", "pods");
        for question in [list, plain, Attributes::path(&user, "get", "/healthz")] {
            assert_eq!(ready(world.webhook.authorize(&question)), Outcome::default());
        }
        all.extend(world.remote.asked.lock().unwrap().iter().map(Value::to_string));
    }
    expect_test::expect![[r#"
        {"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","metadata":{},"spec":{"extra":{"k":["v"]},"groups":["a","b"],"resourceAttributes":{"fieldSelector":{"requirements":[{"key":"spec.nodeName","operator":"In","values":["a"]},{"key":"status.phase","operator":"NotIn","values":["b"]}]},"group":"apps","labelSelector":{"requirements":[{"key":"a","operator":"In","values":["b","c"]},{"key":"d","operator":"NotIn","values":["e"]},{"key":"f","operator":"DoesNotExist"},{"key":"g","operator":"Exists"}]},"name":"p","namespace":"n","resource":"pods","subresource":"log","verb":"list","version":"v1"},"uid":"7","user":"jane"},"status":{"allowed":false}}
        {"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","metadata":{},"spec":{"extra":{"k":["v"]},"groups":["a","b"],"resourceAttributes":{"resource":"pods","verb":"get","version":"*"},"uid":"7","user":"jane"},"status":{"allowed":false}}
        {"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","metadata":{},"spec":{"extra":{"k":["v"]},"groups":["a","b"],"nonResourceAttributes":{"path":"/healthz","verb":"get"},"uid":"7","user":"jane"},"status":{"allowed":false}}
        {"apiVersion":"authorization.k8s.io/v1beta1","kind":"SubjectAccessReview","metadata":{},"spec":{"extra":{"k":["v"]},"group":["a","b"],"resourceAttributes":{"fieldSelector":{"requirements":[{"key":"spec.nodeName","operator":"In","values":["a"]},{"key":"status.phase","operator":"NotIn","values":["b"]}]},"group":"apps","labelSelector":{"requirements":[{"key":"a","operator":"In","values":["b","c"]},{"key":"d","operator":"NotIn","values":["e"]},{"key":"f","operator":"DoesNotExist"},{"key":"g","operator":"Exists"}]},"name":"p","namespace":"n","resource":"pods","subresource":"log","verb":"list","version":"v1"},"uid":"7","user":"jane"},"status":{"allowed":false}}
        {"apiVersion":"authorization.k8s.io/v1beta1","kind":"SubjectAccessReview","metadata":{},"spec":{"extra":{"k":["v"]},"group":["a","b"],"resourceAttributes":{"resource":"pods","verb":"get","version":"*"},"uid":"7","user":"jane"},"status":{"allowed":false}}
        {"apiVersion":"authorization.k8s.io/v1beta1","kind":"SubjectAccessReview","metadata":{},"spec":{"extra":{"k":["v"]},"group":["a","b"],"nonResourceAttributes":{"path":"/healthz","verb":"get"},"uid":"7","user":"jane"},"status":{"allowed":false}}"#]].assert_eq(&all.join("\n"));
}

#[test]
fn decides_by_the_status_of_the_review() {
    let answers = vec![
        status(json!({"allowed": true, "reason": "yes"})),
        status(json!({"allowed": false, "reason": "unknown"})),
        status(json!({"denied": true, "reason": "no"})),
        status(json!({"denied": true, "allowed": true})),
        Ok(json!({"status": {"allowed": true}})),
        Ok(json!({})),
    ];
    let outcomes = world(|_| {}).answers(answers);
    let shown: Vec<_> =
        outcomes.iter().map(|o| format!("{:?} {:?} {:?}", o.decision, o.reason, o.error)).collect();
    expect_test::expect![[r#"
        Allow "yes" None
        NoOpinion "unknown" None
        Deny "no" None
        Deny "" Some("webhook subject access review returned both allow and deny response")
        Allow "" None
        NoOpinion "" None"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn applies_failure_policy_without_answer() {
    let failures = || {
        vec![
            Err(Failure { text: "late".into(), timeout: true }),
            Err(Failure { text: "down".into(), timeout: false }),
            status(json!({"allowed": "true"})),
            Ok(json!({"apiVersion": "v1", "kind": "Status", "status": "Success"})),
            Ok(
                json!({"apiVersion": "authorization.k8s.io/v2", "kind": "SubjectAccessReview", "status": {"allowed": true}}),
            ),
            Ok(json!("yes")),
        ]
    };
    let mut shown = vec![];
    for policy in [OnFailure::NoOpinion, OnFailure::Deny] {
        let world = world(|c| c.on_failure = policy);
        let outcomes = world.answers(failures());
        assert!(!outcomes.iter().any(Outcome::allowed));
        shown.extend(outcomes.iter().map(|o| format!("{:?} {:?}", o.decision, o.error)));
        shown.push(format!("{:?}", world.open.lock().unwrap()));
        // Nothing of it is kept.
        *world.remote.answers.lock().unwrap() = vec![status(json!({"allowed": true}))];
        assert_eq!(world.decide("/0"), Some(Decision::Allow));
    }
    expect_test::expect![[r#"
        NoOpinion Some("late")
        NoOpinion Some("down")
        NoOpinion Some("status.allowed of the answer is \"true\"")
        NoOpinion Some("no SubjectAccessReview was answered, but \"Status\" of \"v1\"")
        NoOpinion Some("no SubjectAccessReview was answered, but \"SubjectAccessReview\" of \"authorization.k8s.io/v2\"")
        NoOpinion Some("no SubjectAccessReview was answered, but \"\" of \"\"")
        ["w timeout", "w error", "w error", "w error", "w error", "w error"]
        Deny Some("late")
        Deny Some("down")
        Deny Some("status.allowed of the answer is \"true\"")
        Deny Some("no SubjectAccessReview was answered, but \"Status\" of \"v1\"")
        Deny Some("no SubjectAccessReview was answered, but \"SubjectAccessReview\" of \"authorization.k8s.io/v2\"")
        Deny Some("no SubjectAccessReview was answered, but \"\" of \"\"")
        []"#]].assert_eq(&shown.join("\n"));
}

#[test]
fn caches_decisions_for_their_ttl() {
    let yes_and_no = || vec![status(json!({"allowed": true})), status(json!({"allowed": false}))];
    let down = || vec![Err(Failure { text: "down".into(), timeout: false }); 9];
    let world_of = |authorized: u64, unauthorized: u64| {
        world(|c| {
            c.authorized_ttl = Duration::from_secs(authorized);
            c.unauthorized_ttl = Duration::from_secs(unauthorized);
        })
    };
    let mut shown = vec![];
    for world in [world_of(10, 2), world_of(0, 2), world_of(10, 0)] {
        world.answers(yes_and_no());
        *world.remote.answers.lock().unwrap() = down();
        for second in [0, 1, 2, 9, 10] {
            *world.clock.0.lock().unwrap() = Timestamp::from_second(second).unwrap();
            shown.push(format!("{second}: {:?} {:?}", world.decide("/0"), world.decide("/1")));
        }
    }
    expect_test::expect![[r#"
        0: Some(Allow) Some(NoOpinion)
        1: Some(Allow) Some(NoOpinion)
        2: Some(Allow) None
        9: Some(Allow) None
        10: None None
        0: None Some(NoOpinion)
        1: None Some(NoOpinion)
        2: None None
        9: None None
        10: None None
        0: Some(Allow) None
        1: Some(Allow) None
        2: Some(Allow) None
        9: Some(Allow) None
        10: None None"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn does_not_cache_oversized_requests() {
    for (length, kept) in [(LONGEST - 4, true), (LONGEST - 3, false)] {
        let world = world(|_| {});
        let path = "x".repeat(length);
        *world.remote.answers.lock().unwrap() = vec![status(json!({"allowed": true})); 2];
        assert_eq!([world.decide(&path), world.decide(&path)], [Some(Decision::Allow); 2]);
        assert_eq!(world.remote.asked.lock().unwrap().len(), if kept { 1 } else { 2 });
    }
}

#[test]
fn match_conditions_prevent_calls() {
    let ask = |on_failure, text: &str| {
        let mut errors = vec![];
        let conditions =
            Conditions::compile(&[text], &kaji_meta::field::Path::new("matchConditions"), &mut errors);
        assert_eq!(errors, []);
        let world = world(|config| (config.conditions, config.on_failure) = (conditions, on_failure));
        let outcome = world.answers(vec![status(json!({"allowed": true}))]).remove(0);
        let asked = world.remote.asked.lock().unwrap().len();
        let heard = world.open.lock().unwrap().join("; ");
        format!("{:?} {:?} asked {asked}; {heard}", outcome.decision, outcome.error)
    };
    let broken = "request.resourceAttributes.verb == 'get'";
    let all = [
        ask(OnFailure::Deny, "request.user == 'jane'"),
        ask(OnFailure::Deny, "request.user == 'joe'"),
        ask(OnFailure::NoOpinion, broken),
        ask(OnFailure::Deny, broken),
    ];
    expect_test::expect![[r#"
        Allow None asked 1; w took 0ns, excluded false, failed false
        NoOpinion None asked 0; w took 0ns, excluded true, failed false
        NoOpinion Some("cel evaluation error: expression 'request.resourceAttributes.verb == 'get'' resulted in error: no such key: resourceAttributes") asked 0; w took 0ns, excluded false, failed true
        Deny Some("cel evaluation error: expression 'request.resourceAttributes.verb == 'get'' resulted in error: no such key: resourceAttributes") asked 0; w took 0ns, excluded false, failed true"#]].assert_eq(&all.join("\n"));
}
