//! Fixtures: configurations, questions and decisions; the service itself is called by the server's integration tests.

use super::*;
use crate::test_support::{Request, deps};
use expect_test::expect;
use kaji_resource::Scope;

const KUBECONFIG: &str = "
current-context: c
contexts: [{name: c, context: {cluster: b}}]
clusters: [{name: b, cluster: {server: 'https://127.0.0.1:1'}}]
";

fn plugin(fields: Value) -> Result<ImagePolicyWebhook, String> {
    let read = |_: &std::path::Path| Ok::<_, std::io::Error>(KUBECONFIG.to_owned());
    let value = json!({"imagePolicy": fields});
    ImagePolicyWebhook::configured(Some(Configuration::reading(value, &read)), &deps())
}

#[test]
fn configurations_are_checked() {
    let read = |mut fields: Value| {
        fields["kubeConfigFile"] = json!("/k");
        plugin(fields).map_or_else(|error| error, |plugin| format!("{:?}", plugin.periods))
    };
    let seen = [
        read(json!({})),
        read(json!({"allowTTL": -1, "denyTTL": 1800, "retryBackoff": 300_000})),
        read(json!({"allowTTL": 1801})),
        read(json!({"denyTTL": -2})),
        read(json!({"retryBackoff": 300_001})),
        read(json!({"retryBackoff": -3})),
        read(json!({"allowTTL": "1"})),
        read(json!({"huh": 1})),
        plugin(Value::Null).map(|_| ()).unwrap_err(),
        ImagePolicyWebhook::configured(None, &deps()).map(|_| ()).unwrap_err(),
    ];
    expect![[r#"
        Periods { allow: 300s, deny: 30s, retry: 500ms }
        Periods { allow: 0ns, deny: 1800s, retry: 300s }
        valid value is between 1s and 30m0s, got 30m1s
        valid value is between 1s and 30m0s, got -2s
        valid value is between 1ns and 5m0s, got 5m0.001s
        valid value is between 1ns and 5m0s, got -3ms
        imagePolicy: invalid type: string "1", expected i64
        imagePolicy: unknown field `huh`, expected one of `kubeConfigFile`, `allowTTL`, `denyTTL`, `retryBackoff`, `defaultAllow`
        invalid configuration: no configuration has been provided
        no config specified"#]].assert_eq(&seen.join("\n"));
}

fn pod(subresource: &'static str) -> Request {
    let mut request = Request::of("", "v1", "Pod", "pods", Scope::Namespaced);
    request.subresource = subresource;
    request.object = Some(json!({"metadata": {"name": "p", "annotations": {
            "alpha.image-policy.k8s.io/ticket": "1", "image-policy.k8s.io/x": "2", "other": "3"}},
        "spec": {"initContainers": [{"image": "init"}], "containers": [{"image": "a"}, {"image": "b"}],
            "ephemeralContainers": [{"image": "debug"}]}}));
    request
}

#[tokio::test]
async fn the_service_sees_images_and_annotations_about_them() {
    let whole = pod("").with(async |a| question(a).to_string()).await;
    let ephemeral = pod("ephemeralcontainers").with(async |a| question(a).to_string()).await;
    expect![[r#"
        {"annotations":{"alpha.image-policy.k8s.io/ticket":"1"},"containers":[{"image":"a"},{"image":"b"},{"image":"init"}],"namespace":"n"}
        {"annotations":{"alpha.image-policy.k8s.io/ticket":"1"},"containers":[{"image":"debug"}],"namespace":"n"}"#]].assert_eq(&format!("{whole}\n{ephemeral}"));
}

#[test]
fn answers_are_reviews() {
    let read = |answer: &str| decision(answer.as_bytes());
    let review =
        |status: Value| json!({"apiVersion": VERSION, "kind": "ImageReview", "status": status}).to_string();
    assert_eq!(
        read(&review(json!({"allowed": true}))),
        Ok(Decision { allowed: true, ..Decision::default() })
    );
    assert_eq!(read(&review(json!({}))), Ok(Decision::default()));
    let seen = [read("{"), read("{}"), read(&review(json!({"allowed": "yes"})))];
    expect![[r#"
        EOF while parsing an object at line 1 column 1
        no kind "" is registered for version ""
        invalid type: string "yes", expected a boolean"#]]
    .assert_eq(&seen.map(Result::unwrap_err).join("\n"));
}

#[tokio::test]
async fn decisions_are_kept_for_their_time() {
    let plugin = plugin(json!({"kubeConfigFile": "/k", "allowTTL": 10, "denyTTL": -1})).unwrap();
    let at = |second| Timestamp::from_second(second).unwrap();
    let allowed = Decision { allowed: true, ..Decision::default() };
    plugin.keep("a".into(), &allowed, at(0));
    plugin.keep("d".into(), &Decision::default(), at(0));
    plugin.keep("x".repeat(LONGEST + 1), &allowed, at(0));
    let known = |question: &str, second| plugin.known(question, at(second));
    assert_eq!((known("a", 10), known("a", 11), known("a", 0)), (Some(allowed), None, None));
    assert_eq!((known("d", 0), known(&"x".repeat(LONGEST + 1), 0)), (None, None));
}

#[tokio::test]
async fn refusals_say_why_and_failures_are_what_the_configuration_says() {
    let answered = async |decision: Option<Decision>, default_allow: bool| {
        let plugin = plugin(json!({"kubeConfigFile": "/k", "defaultAllow": default_allow})).unwrap();
        let mut request = pod("");
        let result = request
            .with(async |a| {
                if let Some(decision) = decision {
                    plugin.keep(question(a).to_string(), &decision, a.now);
                }
                plugin.validate(a).await
            })
            .await;
        let text = result.map_or_else(|status| format!("{} {status}", status.code), |()| "admitted".into());
        format!("{text} {:?}", request.annotations.take())
    };
    let audit = BTreeMap::from([("k".to_owned(), "v".to_owned()), ("not valid".to_owned(), "v".to_owned())]);
    let denied = |reason: &str| Decision { reason: reason.into(), ..Decision::default() };
    let seen = [
        answered(
            Some(Decision { allowed: true, audit_annotations: Some(audit), ..Decision::default() }),
            false,
        )
        .await,
        answered(Some(denied("")), true).await,
        answered(Some(denied("not signed")), true).await,
        // Nothing listens there.
        answered(None, false).await,
        answered(None, true).await,
    ];
    expect![[r#"
        admitted {"imagepolicywebhook.image-policy.k8s.io/k": "v"}
        403 pods "c" is forbidden: one or more images rejected by webhook backend {}
        403 pods "c" is forbidden: image policy webhook backend denied one or more images: not signed {}
        403 pods "c" is forbidden: Post "https://127.0.0.1:1/?timeout=30s": dial tcp 127.0.0.1:1: connect: connection refused {}
        admitted {"imagepolicywebhook.image-policy.k8s.io/failed-open": "true"}"#]].assert_eq(&seen.join("\n"));
}
