//! What the webhooks of these tests say, by path, and what becomes of requests when that is nonsense.

use super::*;
use crate::common::access::{admin, ask};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

/// The answer to a review. `/add/KEY` adds to a config map's data, `/if/KEY` makes it wait for another; `/no` refuses.
pub fn answer(path: &str, review: &Value) -> (u16, String) {
    let request = &review["request"];
    let path = path.split('?').next().unwrap();
    let steps: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let after = |word: &str| steps.iter().position(|s| *s == word).map(|at| steps[at + 1]);
    let has = |key: &str| request["object"]["data"].get(key).is_some();
    let mut response = json!({"uid": request["uid"], "allowed": true});
    let mut patch = |ops: Value| {
        response["patch"] = json!(STANDARD.encode(ops.to_string()));
        response["patchType"] = json!("JSONPatch");
    };
    let due = after("if").is_none_or(has);
    match steps[0] {
        "add" if due && !has(steps[1]) => {
            patch(json!([{"op": "add", "path": format!("/data/{}", steps[1]), "value": "1"}]));
        }
        "no" if steps.len() == 1 => response["allowed"] = json!(false),
        "no" if due => {
            response["allowed"] = json!(false);
            response["status"] = json!({"code": 403, "reason": "Forbidden", "message": "it is bad"});
        }
        "warn" => {
            response["warnings"] = json!(["be careful"]);
            response["auditAnnotations"] = json!({"seen": "yes", "not a name!": "x"});
        }
        "patch" => patch(match steps[1] {
            "missing" => json!([{"op": "remove", "path": "/data/missing"}]),
            "nonsense" => json!({"op": "add"}),
            "name" => json!([{"op": "replace", "path": "/metadata/name", "value": "other"}]),
            "uid" => json!([{"op": "replace", "path": "/metadata/uid", "value": "other"}]),
            "namespace" => json!([{"op": "add", "path": "/metadata/namespace", "value": "kube-system"}]),
            "kind" => json!([{"op": "replace", "path": "/kind", "value": "Secret"}]),
            "type" => json!([{"op": "replace", "path": "/data", "value": "text"}]),
            "managed" => {
                json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{"operation": "x"}]}])
            }
            "unknown" => json!([{"op": "add", "path": "/unknown", "value": 1},
                {"op": "add", "path": "/data/known", "value": "1"}]),
            // Each copy doubles what is there.
            "bomb" => {
                let double =
                    json!({"op": "copy", "from": "/metadata/annotations", "path": "/metadata/annotations/x"});
                let mut all =
                    vec![json!({"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}})];
                all.extend(vec![double; 1000]);
                Value::from(all)
            }
            other => panic!("{other}"),
        }),
        "uid" => response["uid"] = json!("another"),
        "garbage" => return (200, "hello".into()),
        "empty" => return (200, String::new()),
        "null" => return (200, "null".into()),
        "failing" => return (500, "oops".into()),
        "elsewhere" => return (302, String::new()),
        "large" => return (200, "x".repeat(10 << 20)),
        _ => {}
    }
    let mut answer =
        json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response});
    if steps[0] == "kind" {
        answer["kind"] = json!("Pod");
    }
    (200, answer.to_string())
}

/// The refusal of a creation, without what differs each time.
async fn refused(api: &Api<'_>, hooks: &Hooks) -> String {
    let (code, message) = api.refused(Verb::Create, MAPS, map("m")).await;
    let uid = hooks.take().first().map(|(_, r)| r["uid"].as_str().unwrap().to_owned()).unwrap_or_default();
    format!("{code} {}", message.replace(&hooks.url, "https://here").replace(&uid, "UID"))
}

async fn remove(api: &Api<'_>, kind: &str) {
    api.ok(Verb::Delete, &format!("{GROUP}/{}/x", kind.to_lowercase() + "s"), Value::Null).await;
}

#[tokio::test]
async fn nonsense_is_refused_in_upstreams_words() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let mut seen = String::new();
    for path in [
        "/hang",
        "/uid",
        "/kind",
        "/garbage",
        "/empty",
        "/null",
        "/failing",
        "/elsewhere",
        "/large",
        "/patch/missing",
        "/patch/nonsense",
        "/patch/namespace",
        "/patch/kind",
        "/patch/type",
        "/patch/bomb",
    ] {
        let hook = hooks.hook(path, json!({"timeoutSeconds": 1}));
        mutating(&api, "x", vec![hook]).await;
        seen += &format!("{path}: {}\n", refused(&api, &hooks).await);
        // Nothing else suffers.
        api.ok(
            Verb::Create,
            "/v1/secrets?namespace=default&dryRun=All",
            json!({"apiVersion": "v1",
            "kind": "Secret", "metadata": {"name": "s"}}),
        )
        .await;
        remove(&api, "MutatingWebhookConfiguration").await;
    }
    // A validating webhook changes nothing.
    validating(&api, "x", vec![hooks.hook("/add/one", json!({}))]).await;
    seen += &format!("validating: {}\n", refused(&api, &hooks).await);
    remove(&api, "ValidatingWebhookConfiguration").await;
    // Nor does a deletion.
    api.ok(Verb::Create, MAPS, map("m")).await;
    mutating(&api, "x", vec![hooks.hook("/patch/name", json!({}))]).await;
    let (code, message) = api.refused(Verb::Delete, &one("m"), Value::Null).await;
    seen += &format!("deletion: {code} {message}\n");
    expect_test::expect![[r#"
        /hang: 500 Internal error occurred: failed calling webhook "hang.example.com": failed to call webhook: Post "https://here/hang?timeout=1s": context deadline exceeded
        /uid: 500 Internal error occurred: failed calling webhook "uid.example.com": received invalid webhook response: expected response.uid="UID", got "another"
        /kind: 500 Internal error occurred: failed calling webhook "kind.example.com": failed to call webhook: no kind "Pod" is registered for version "admission.k8s.io/v1" in scheme "k8s.io/apiserver/pkg/util/webhook"
        /garbage: 500 Internal error occurred: failed calling webhook "garbage.example.com": failed to call webhook: couldn't get version/kind; json parse error: invalid character 'h' looking for beginning of value
        /empty: 500 Internal error occurred: failed calling webhook "empty.example.com": failed to call webhook: 0-length response with status code: 200 and content type: 
        /null: 500 Internal error occurred: failed calling webhook "null.example.com": received invalid webhook response: webhook response was absent
        /failing: 500 Internal error occurred: failed calling webhook "failing.example.com": failed to call webhook: an error on the server ("unknown") has prevented the request from succeeding
        /elsewhere: 500 Internal error occurred: failed calling webhook "elsewhere.example.com": failed to call webhook: the server responded with the status code 302 but did not return more information
        /large: 500 Internal error occurred: failed calling webhook "large.example.com": failed to call webhook: the response body is larger than 8388608 bytes
        /patch/missing: 500 Internal error occurred: error in remove for path: '/data/missing': Unable to remove nonexistent key: missing: missing value
        /patch/nonsense: 500 Internal error occurred: failed calling webhook "patch-nonsense.example.com": received undecodable patch in webhook response: json: cannot unmarshal into Go value of type jsonpatch.Patch
        /patch/namespace: 400 the namespace of the provided object does not match the namespace sent on the request
        /patch/kind: 500 Internal error occurred: no kind "Secret" of version "v1" can be taken for a /v1, Kind=ConfigMap
        /patch/type: 500 Internal error occurred: json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string
        /patch/bomb: 500 Internal error occurred: Unable to complete the copy, the accumulated size increase of copies exceeds the limit 3145728
        validating: 500 Internal error occurred: failed calling webhook "add-one.example.com": received invalid webhook response: validating webhook may not return response.patch
        deletion: 500 Internal error occurred: admission webhook "patch-name.example.com" attempted to modify the object, which is not supported for this operation
    "#]].assert_eq(&seen);
    cluster.stop().await;
}

/// What a webhook begins to say and does not finish; where there is none at all.
#[tokio::test]
async fn answers_that_are_not_finished() {
    let cluster = TestCluster::start(0).await;
    let (api, dir) = (Api(&cluster), tempfile::tempdir().unwrap());
    let server = Https::bind(dir.path()).await;
    let (url, asked) = (server.url.clone(), Asked::default());
    let pki = server.serve_with(|path, _| async move {
        let piece = || Ok(Frame::data(Bytes::from_static(b"{\"kind\":\"AdmissionReview\",")));
        let broken = || std::io::Error::other("broken");
        let body = match path.split('?').next().unwrap() {
            // What came before is sent first.
            "/broken" => stream::once(async move { piece() })
                .chain(stream::once(async move {
                    tokio::task::yield_now().await;
                    Err(broken())
                }))
                .boxed(),
            "/stops" => stream::once(async move { piece() }).chain(stream::pending()).boxed(),
            "/endless" => stream::repeat_with(|| Ok(Frame::data(Bytes::from(vec![b' '; 1 << 20])))).boxed(),
            _ => stream::once(async move { Err(broken()) }).boxed(),
        };
        Response::new(StreamBody::new(body).boxed_unsync())
    });
    let hooks = Hooks { url, bundle: STANDARD.encode(&pki.ca.certificate), asked, _dir: dir };
    let free = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let gone = Hooks {
        url: format!("https://{}", free.local_addr().unwrap()),
        bundle: hooks.bundle.clone(),
        asked: Asked::default(),
        _dir: tempfile::tempdir().unwrap(),
    };
    drop(free);
    let mut seen = String::new();
    for (path, hooks) in [("/broken", &hooks), ("/stops", &hooks), ("/endless", &hooks), ("/gone", &gone)] {
        for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
            // It has begun to answer by then, wherever this runs.
            let time = if path == "/stops" { 4 } else { 30 };
            configure(&api, kind, "x", vec![hooks.hook(path, json!({"timeoutSeconds": time}))]).await;
            let (code, said) = api.refused(Verb::Create, MAPS, map("m")).await;
            let address = hooks.url.strip_prefix("https://").unwrap();
            let said = said.replace("Internal error occurred: failed calling webhook ", "");
            seen += &format!("{code} {}\n", said.replace(address, "here"));
            // Nothing else suffers.
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
            api.ok(Verb::Create, "/v1/secrets?namespace=default&dryRun=All", secret).await;
            remove(&api, kind).await;
        }
    }
    expect_test::expect![[r#"
        500 "broken.example.com": failed to call webhook: unexpected error when reading response body. Please retry. Original error: unexpected EOF
        500 "broken.example.com": failed to call webhook: unexpected error when reading response body. Please retry. Original error: unexpected EOF
        500 "stops.example.com": failed to call webhook: unexpected error when reading response body. Please retry. Original error: context deadline exceeded
        500 "stops.example.com": failed to call webhook: unexpected error when reading response body. Please retry. Original error: context deadline exceeded
        500 "endless.example.com": failed to call webhook: the response body is larger than 8388608 bytes
        500 "endless.example.com": failed to call webhook: the response body is larger than 8388608 bytes
        500 "gone.example.com": failed to call webhook: Post "https://here/gone?timeout=30s": dial tcp here: connect: connection refused
        500 "gone.example.com": failed to call webhook: Post "https://here/gone?timeout=30s": dial tcp here: connect: connection refused
    "#]].assert_eq(&seen);
    cluster.stop().await;
}

/// Failures to call a webhook may be ignored; refusals and patches that cannot be applied may not.
#[tokio::test]
async fn failures_may_be_ignored() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let mut seen = String::new();
    for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
        for path in
            ["/hang", "/garbage", "/uid", "/large", "/failing", "/no", "/patch/nonsense", "/patch/missing"]
        {
            let hook = hooks.hook(path, json!({"timeoutSeconds": 1, "failurePolicy": "Ignore"}));
            configure(&api, kind, "x", vec![hook]).await;
            let answer =
                api.raw(Verb::Create, &format!("{MAPS}&dryRun=All"), "application/json", &map("m")).await;
            let open = answer.annotations.iter().find(|(key, _)| key.starts_with("failed-open."));
            let key = open.map(|(key, value)| format!("{key}={value}"));
            seen += &format!("{path}: {} {}\n", answer.code, key.unwrap_or_default());
            remove(&api, kind).await;
        }
    }
    expect_test::expect![[r#"
        /hang: 201 failed-open.validating.webhook.admission.k8s.io/round_0_index_0=hang.example.com
        /garbage: 201 failed-open.validating.webhook.admission.k8s.io/round_0_index_0=garbage.example.com
        /uid: 201 failed-open.validating.webhook.admission.k8s.io/round_0_index_0=uid.example.com
        /large: 201 failed-open.validating.webhook.admission.k8s.io/round_0_index_0=large.example.com
        /failing: 201 failed-open.validating.webhook.admission.k8s.io/round_0_index_0=failing.example.com
        /no: 400 
        /patch/nonsense: 201 failed-open.validating.webhook.admission.k8s.io/round_0_index_0=patch-nonsense.example.com
        /patch/missing: 201 failed-open.validating.webhook.admission.k8s.io/round_0_index_0=patch-missing.example.com
        /hang: 201 failed-open.mutation.webhook.admission.k8s.io/round_0_index_0=hang.example.com
        /garbage: 201 failed-open.mutation.webhook.admission.k8s.io/round_0_index_0=garbage.example.com
        /uid: 201 failed-open.mutation.webhook.admission.k8s.io/round_0_index_0=uid.example.com
        /large: 201 failed-open.mutation.webhook.admission.k8s.io/round_0_index_0=large.example.com
        /failing: 201 failed-open.mutation.webhook.admission.k8s.io/round_0_index_0=failing.example.com
        /no: 400 
        /patch/nonsense: 201 failed-open.mutation.webhook.admission.k8s.io/round_0_index_0=patch-nonsense.example.com
        /patch/missing: 500 
    "#]].assert_eq(&seen);
    cluster.stop().await;
}

/// What only the server may change stays; what does not exist goes.
#[tokio::test]
async fn patches_do_not_reach_everywhere() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let made = api.ok(Verb::Create, MAPS, map("m")).await;
    let mut seen = String::new();
    for path in ["/patch/name", "/patch/uid"] {
        mutating(&api, "x", vec![hooks.hook(path, json!({}))]).await;
        let (code, message) = api.refused(Verb::Update, &one("m"), made.clone()).await;
        seen += &format!(
            "{path}: {code} {}\n",
            message.replace(made["metadata"]["uid"].as_str().unwrap(), "UID")
        );
        remove(&api, "MutatingWebhookConfiguration").await;
    }
    mutating(
        &api,
        "x",
        vec![hooks.hook("/patch/unknown", json!({})), hooks.hook("/patch/managed", json!({}))],
    )
    .await;
    let answer = api.raw(Verb::Create, MAPS, "application/json", &map("n")).await;
    let warned = answer.warnings.join("\n");
    let object: Value = serde_json::from_slice(&answer.body.into_bytes().unwrap()).unwrap();
    assert_eq!((object.get("unknown"), &object["data"]["known"]), (None, &json!("1")));
    seen += &format!("managed: {warned}\n");
    expect_test::expect![[r#"
        /patch/name: 422 ConfigMap "other" is invalid: metadata.name: Invalid value: "other": field is immutable
        /patch/uid: 422 ConfigMap "m" is invalid: metadata.uid: Invalid value: "other": field is immutable
        managed: .metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: operation must be `Apply` or `Update`
    "#]].assert_eq(&seen);
    cluster.stop().await;
}

/// Hundreds of requests that wait for a hanging webhook do not delay others.
#[tokio::test]
async fn a_hanging_webhook_does_not_delay_other_requests() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    validating(&api, "x", vec![hooks.hook("/hang", json!({"timeoutSeconds": 2}))]).await;
    let held = async {
        let all = (0..200).map(|i| {
            let api = &api;
            async move { api.refused(Verb::Create, MAPS, map(&format!("m{i}"))).await.0 }
        });
        futures_util::future::join_all(all).await
    };
    let secrets = async {
        for i in 0..20 {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("s{i}")}});
            api.ok(Verb::Create, "/v1/secrets?namespace=default", secret).await;
        }
        // They were made while the others still waited.
        api.ok(Verb::List, "/v1/configmaps?namespace=default", Value::Null).await
    };
    let (held, _) = tokio::join!(held, secrets);
    assert!(held.iter().all(|code| *code == 500), "{held:?}");
    cluster.stop().await;
}

/// A webhook is waited for no longer than the request that it is asked about, and what it was asked about is not written
/// when it is done, not even if its failures are ignored.
#[tokio::test]
async fn a_webhook_outlives_no_request() {
    let cluster = TestCluster::start(0).await;
    let (api, hooks) = (Api(&cluster), Hooks::start().await);
    let patient = json!({"timeoutSeconds": 30, "failurePolicy": "Ignore"});
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        configure(&api, kind, "x", vec![hooks.hook("/hang", patient.clone())]).await;
        let post = "POST /api/v1/namespaces/default/configmaps?timeout=5s";
        let (code, answer) = ask(&cluster, &admin(), post, &map("late")).await;
        assert_eq!(code, 504, "{kind}: {answer}");
        let (asked, _) = hooks.take().remove(0);
        let told = asked.strip_prefix("/hang?timeout=").and_then(|t| t.strip_suffix('s')).unwrap();
        assert!((1..=5).contains(&told.parse::<u64>().unwrap()), "{kind}: {asked}");
        // It holds nothing any more: all seats are free.
        crate::common::until("the write is over", async || {
            let page = cluster
                .cluster
                .stack
                .metrics
                .render(&cluster.cluster.stack.engine, &cluster.cluster.stack.flow);
            let seats =
                page.lines().filter(|l| l.starts_with("apiserver_flowcontrol_current_executing_seats{"));
            seats.filter_map(|l| l.rsplit(' ').next()).all(|n| n == "0")
        })
        .await;
        let (code, _) = api.refused(Verb::Get, &one("late"), Value::Null).await;
        assert_eq!(code, 404, "{kind}");
        remove(&api, kind).await;
    }
    cluster.stop().await;
}
