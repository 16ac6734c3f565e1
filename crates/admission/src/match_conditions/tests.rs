//! Conditions in, verdicts out.

use super::*;
use crate::test_support::Request;
use expect_test::expect;
use kaji_auth::{Outcome, Rules};
use kaji_resource::BoxFuture;

/// Allows what is about `yes`, and records the checks.
#[derive(Default)]
struct RecordingAuthorizer(Mutex<Vec<String>>);

impl Authorizer for RecordingAuthorizer {
    fn authorize<'a>(&'a self, a: &'a Access<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            // An answer that takes time.
            tokio::task::yield_now().await;
            let about =
                format!("{} {} {}{}{} {}", a.user.name, a.verb, a.path, a.resource, a.subresource, a.name);
            lock(&self.0).push(about.trim().to_owned());
            if a.name == "yes" { Outcome::allow("because") } else { Outcome::default() }
        })
    }

    fn rules<'a>(&'a self, _: &'a UserInfo, _: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(std::future::ready(Rules::default()))
    }
}

/// How many conditions failed, and whether the time was taken.
fn counted(metrics: &ConditionMetrics) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let page = kaji_exposition::encode(&registry);
    let labels = r#"{kind="webhook",name="w",operation="CREATE",type="admit"}"#;
    let timed = format!("apiserver_admission_match_condition_evaluation_seconds_count{labels} 1");
    let timed = if page.contains(&timed) { "" } else { " (not timed)" };
    let errors = format!("apiserver_admission_match_condition_evaluation_errors_total{labels} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&errors));
    line.map(|n| format!(" ({n} failed)")).unwrap_or_default() + timed
}

async fn match_request(webhook: Value, authorizer: &RecordingAuthorizer) -> String {
    let conditions = MatchConditions::of_webhook(&webhook);
    let mut request = Request::new();
    request
        .with(async |a| {
            let a: &Attributes<'_> = a;
            let authority = RequestAuthority::new(a.user, authorizer);
            let object = a.new_object().unwrap();
            let activation =
                Activation::new(a, (a.kind, a.resource), (object, &Value::Null), None, &authority);
            let metrics = ConditionMetrics::default();
            let metric_labels = MetricLabels { metrics: &metrics, name: "w", kind: "webhook", step: "admit" };
            let verdict = conditions.matches(&activation, None, &metric_labels).await;
            format!("{verdict:?}{}", counted(&metrics))
        })
        .await
}

fn conditions(list: &[&str]) -> Value {
    let list = list.iter().enumerate().map(|(i, e)| json!({"name": format!("c{i}"), "expression": e}));
    Value::Array(list.collect())
}

#[tokio::test]
async fn evaluates_match_conditions() {
    let authorizer = RecordingAuthorizer::default();
    let ignore = |list| json!({"failurePolicy": "Ignore", "matchConditions": conditions(list)});
    let fail = |list| json!({"failurePolicy": "Fail", "matchConditions": conditions(list)});
    let mut out = String::new();
    for webhook in [
        fail(&[]),
        fail(&["request.operation == 'CREATE'", "request.userInfo.username == 'alice' && oldObject == null"]),
        fail(&["object.data.k == 'v'", "object.data.k == 'w'"]),
        fail(&["object.data.nothing == 1", "object.data.k == 'w'"]),
        fail(&["object.data.nothing == 1", "object.data.k == 'v'"]),
        fail(&["object.data.nothing == 1", "object.data.nil"]),
        ignore(&["object.data.nothing == 1", "object.data.k == 'v'"]),
        fail(&["[1, 2, 3].all(i, [1, 2, 3].all(j, !authorizer.path('/x').check('get').allowed()))"]),
        fail(&["!has(request.subResource) && request.resource.resource == 'configmaps' && !request.dryRun"]),
    ] {
        out.push_str(&match_request(webhook, &authorizer).await);
        out.push('\n');
    }
    expect![[r#"
        Matches (not timed)
        Matches
        Excluded("c1")
        Excluded("c1") (1 failed)
        Failed("expression 'object.data.nothing == 1' resulted in error: no such key: nothing") (1 failed)
        Failed("[expression 'object.data.nothing == 1' resulted in error: no such key: nothing, compilation error: must evaluate to bool but got dyn]") (2 failed)
        Excluded("") (1 failed)
        Failed("expression '[1, 2, 3].all(i, [1, 2, 3].all(j, !authorizer.path('/x').check('get').allowed()))' resulted in error: operation cancelled: actual cost limit exceeded") (1 failed)
        Matches
    "#]]
    .assert_eq(&out);
}

/// A slow authorizer gets each check once, and only when an expression needs it.
#[tokio::test]
async fn makes_each_authorization_check_once() {
    let authorizer = RecordingAuthorizer::default();
    let webhook = json!({"failurePolicy": "Fail", "matchConditions": conditions(&[
        "authorizer.group('').resource('configmaps').name('yes').check('update').allowed()",
        "authorizer.group('').resource('configmaps').name('yes').check('update').reason() == 'because'",
        "!authorizer.requestResource.check('create').allowed()",
        "!authorizer.serviceAccount('ns', 'sa').path('/healthz').check('get').allowed()",
        "true || authorizer.path('/never').check('get').allowed()",
    ])});
    assert_eq!(match_request(webhook, &authorizer).await, "Matches");
    expect![[r#"
        alice update configmaps yes
        alice create configmaps c
        system:serviceaccount:ns:sa get /healthz"#]]
    .assert_eq(&lock(&authorizer.0).join("\n"));
}
