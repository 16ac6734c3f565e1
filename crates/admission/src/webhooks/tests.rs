//! Fixtures: reviews as they are sent, and answers that are accepted or refused.

use super::{
    review::{Wrong, answer, question, refusal},
    source::{ReviewVersion, Source},
    *,
};
use crate::test_support::Request;
use base64::{Engine, prelude::BASE64_STANDARD};
use expect_test::expect;
use kaji_meta::GroupVersionResource;
use serde_json::json;

#[tokio::test]
async fn writes_admission_review() {
    let mut request = Request::new();
    request.user.groups = vec!["g".into()];
    request.user.extra = [("k".to_owned(), vec!["v".to_owned()])].into();
    request.old = Some(json!({"kind": "ConfigMap"}));
    let matched = Matched {
        resource: GroupVersionResource::new("other", "v2", "configmaps"),
        kind: GroupVersionKind::new("other", "v2", "ConfigMap"),
    };
    let text = request
        .with(async |a| question(ReviewVersion::V1beta1, "u", a, &matched, (a.new_object(), a.old)).unwrap())
        .await;
    expect![[r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u","kind":{"group":"other","version":"v2","kind":"ConfigMap"},"resource":{"group":"other","version":"v2","resource":"configmaps"},"requestKind":{"group":"","version":"v1","kind":"ConfigMap"},"requestResource":{"group":"","version":"v1","resource":"configmaps"},"name":"c","namespace":"n","operation":"CREATE","userInfo":{"username":"alice","groups":["g"],"extra":{"k":["v"]}},"object":{"apiVersion":"v1","data":{"k":"v"},"kind":"ConfigMap","metadata":{"labels":{"app":"x"},"name":"c","namespace":"n"}},"oldObject":{"kind":"ConfigMap"},"dryRun":false,"options":null}}"#]]
    .assert_eq(&String::from_utf8(text).unwrap());
}

fn read(version: ReviewVersion, mutating: bool, review: Value) -> String {
    let body = if let Value::String(text) = &review { text.clone() } else { review.to_string() };
    match answer(version, "u", mutating, body.as_bytes()) {
        Ok(a) => {
            format!("{} {:?} {}", a.allowed, a.patch.map(|p| String::from_utf8(p).unwrap()), a.patch_type)
        }
        Err(Wrong::Unreadable(text)) => format!("unreadable: {text}"),
        Err(Wrong::Invalid(text)) => format!("invalid: {text}"),
        Err(Wrong::Failure(status)) => format!("failure: {}", status.message),
    }
}

#[test]
fn reads_admission_responses() {
    let review = |response: Value| json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
    let patch = BASE64_STANDARD.encode("[]");
    let v1 = |mutating, review| read(ReviewVersion::V1, mutating, review);
    let beta = |mutating, review| read(ReviewVersion::V1beta1, mutating, review);
    let with = |field: &str, value: Value| {
        let mut review = review(json!({"uid": "u", "allowed": true}));
        review["response"][field] = value;
        review
    };
    let mut other = review(json!({"uid": "u", "allowed": true}));
    other["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let seen = [
        v1(true, review(json!({"uid": "u", "allowed": true}))),
        v1(true, review(json!({"uid": "u"}))),
        v1(true, review(json!({"uid": "u", "allowed": true, "patch": patch, "patchType": "JSONPatch"}))),
        v1(true, with("patch", json!(patch))),
        v1(true, with("patchType", json!("JSONPatch"))),
        v1(true, review(json!({"uid": "u", "patch": patch, "patchType": ""}))),
        v1(false, with("patch", json!(patch))),
        v1(false, with("patchType", json!("JSONPatch"))),
        v1(true, with("patch", json!("%"))),
        v1(true, review(json!({"uid": "u", "patch": [91, 93], "patchType": "JSONPatch"}))),
        v1(true, with("patch", json!([91, 300]))),
        v1(true, with("patch", json!([91, "a"]))),
        v1(true, with("patch", json!({}))),
        v1(true, with("uid", json!("w"))),
        v1(true, with("allowed", json!("yes"))),
        v1(true, with("warnings", json!([1]))),
        v1(true, review(Value::Null)),
        v1(true, json!({"response": {"uid": "u", "allowed": true}})),
        v1(true, other.clone()),
        v1(true, json!({"kind": "Pod", "apiVersion": "v1"})),
        v1(true, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no"})),
        v1(true, json!("hello")),
        v1(true, json!("[]")),
        v1(true, json!("")),
        // The older version was never strict.
        beta(true, json!({"response": {"allowed": true, "patch": patch}})),
        beta(false, json!({"response": {"uid": "w", "allowed": true, "patch": patch}})),
        beta(true, other),
        beta(true, review(json!({"allowed": true}))),
    ];
    expect![[r#"
        true None 
        false None 
        true Some("[]") JSONPatch
        invalid: webhook returned response.patch but not response.patchType
        invalid: webhook returned response.patchType but not response.patch
        invalid: webhook returned invalid response.patchType of ""
        invalid: validating webhook may not return response.patch
        invalid: validating webhook may not return response.patchType
        unreadable: illegal base64 data in response.patch: Invalid symbol 37, offset 0.
        false Some("[]") JSONPatch
        unreadable: json: cannot unmarshal number 300 into Go struct field AdmissionReview.response.patch of type uint8
        unreadable: json: cannot unmarshal string into Go struct field AdmissionReview.response.patch of type uint8
        unreadable: json: cannot unmarshal object into Go struct field AdmissionReview.response.patch of type []uint8
        invalid: expected response.uid="u", got "w"
        unreadable: json: cannot unmarshal string into Go struct field AdmissionReview.response.allowed of type bool
        unreadable: json: cannot unmarshal array into Go struct field AdmissionReview.response.warnings of type string
        invalid: webhook response was absent
        invalid: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=
        invalid: webhook response was absent
        unreadable: no kind "Pod" is registered for version "v1" in scheme "k8s.io/apiserver/pkg/util/webhook"
        failure: no
        unreadable: couldn't get version/kind; json parse error: invalid character 'h' looking for beginning of value
        unreadable: couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string; Kind string }
        unreadable: 0-length response with status code: 200 and content type: 
        true Some("[]") JSONPatch
        true None 
        true None JSONPatch
        invalid: webhook response was absent"#]].assert_eq(&seen.join("\n"));
}

#[test]
fn words_refusals_as_upstream() {
    let say = |result: Value| {
        let status = refusal("h", Some(&result).filter(|r| !r.is_null()));
        format!("{} {:?} {}", status.code, status.reason, status.message)
    };
    let seen = [
        say(Value::Null),
        say(json!({"message": "no", "reason": "Forbidden", "code": 403})),
        say(json!({"reason": "Custom", "code": 200, "status": "Success"})),
        say(json!({"message": "no", "code": 70000})),
    ];
    expect![[r#"
        400 Unknown admission webhook "h" denied the request without explanation
        403 Forbidden admission webhook "h" denied the request: no
        400 Other("Custom") admission webhook "h" denied the request: Custom
        400 Unknown admission webhook "h" denied the request: no"#]]
    .assert_eq(&seen.join("\n"));
}

/// Webhooks come by the names of their configurations, then by place; what did not change is not read again.
#[tokio::test]
async fn orders_webhooks_by_configuration_and_index() {
    let configuration = |name: &str, version: &str, hooks: &[&str]| {
        let hooks: Vec<Value> = hooks.iter().map(|name| json!({"name": name})).collect();
        json!({"metadata": {"name": name, "resourceVersion": version}, "webhooks": hooks})
    };
    let mut request = Request::new();
    let put = |request: &mut Request, object: Value| {
        let resource =
            kaji_meta::GroupResource::new("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
        request.api.put(&resource, object);
    };
    put(&mut request, configuration("b", "1", &["x", "y", "x"]));
    put(&mut request, configuration("a", "2", &["z"]));
    let source = Source::new(true, Auth::default());
    let first = source.hooks(&request.api);
    let uids = |hooks: &[Arc<Hook>]| hooks.iter().map(|h| h.uid.clone()).collect::<Vec<_>>().join(" ");
    assert_eq!(uids(&first), "a/z/0 b/x/0 b/y/0 b/x/1");
    put(&mut request, configuration("a", "3", &["z", "w"]));
    put(&mut request, configuration("c", "4", &["v"]));
    let second = source.hooks(&request.api);
    assert_eq!(uids(&second), "a/z/0 a/w/0 b/x/0 b/y/0 b/x/1 c/v/0");
    assert!(Arc::ptr_eq(&first[1], &second[2]) && !Arc::ptr_eq(&first[0], &second[0]));
}

/// A webhook that refuses or does not answer must not lock a cluster out of its own authentication and authorization.
#[tokio::test]
async fn leaves_reviews_of_access_alone() {
    let configuration = json!({"metadata": {"name": "all", "resourceVersion": "1"}, "webhooks": [{"name": "all.b.c",
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]}]});
    for (mutating, plural) in
        [(true, "mutatingwebhookconfigurations"), (false, "validatingwebhookconfigurations")]
    {
        for (group, resource, concerned) in [
            ("authentication.k8s.io", "selfsubjectreviews", false),
            ("authentication.k8s.io", "tokenreviews", false),
            ("authorization.k8s.io", "localsubjectaccessreviews", false),
            ("authorization.k8s.io", "selfsubjectaccessreviews", false),
            ("authorization.k8s.io", "selfsubjectrulesreviews", false),
            ("authorization.k8s.io", "subjectaccessreviews", false),
            ("", "tokenreviews", true),
            ("example.com", "subjectaccessreviews", true),
        ] {
            let mut request = Request::new();
            let place = kaji_meta::GroupResource::new("admissionregistration.k8s.io", plural);
            request.api.put(&place, configuration.clone());
            request.resource = GroupVersionResource::new(group, "v1", resource);
            let webhooks = Webhooks::new(mutating, Auth::default(), crate::test_support::deps());
            assert_eq!(request.with(async |a| webhooks.concerns(a)).await, concerned, "{group} {resource}");
        }
    }
}
