//! Webhooks that lie, fail or hang: the answers that clients get, and that other requests are not harmed.

use super::*;
use crate::common::access::{admin, ask};
use expect_test::expect;

/// Each verb in a version that is not stored, and what becomes of it.
async fn refusals(ground: &Ground) -> Vec<(String, u16, String)> {
    let api = ground.api();
    let mut seen = vec![];
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": 2}});
    let mut object = multi("v1beta2", "a");
    object["metadata"]["resourceVersion"] =
        ground.get("v1beta1", "a").await["metadata"]["resourceVersion"].clone();
    let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {"x": "y"}}]);
    for (verb, name, body) in [
        (Verb::Get, "a", Value::Null),
        (Verb::List, "", Value::Null),
        (Verb::Create, "", multi("v1beta2", "b")),
        (Verb::Update, "a", object.clone()),
        (Verb::Patch, "a", patch.clone()),
        (Verb::Delete, "a", Value::Null),
        (Verb::DeleteCollection, "", Value::Null),
        (Verb::Get, "a/status", Value::Null),
        (Verb::Update, "a/status", object),
        (Verb::Patch, "a/status", patch.clone()),
        (Verb::Get, "a/scale", Value::Null),
        (Verb::Update, "a/scale", scale),
        (Verb::Patch, "a/scale", patch),
    ] {
        let (code, text) = api.refused(verb, &path("v1beta2", name), body).await;
        seen.push((format!("{verb:?} {name}"), code, text));
    }
    seen
}

/// Without what differs from run to run: uids and ports.
fn masked(text: &str) -> String {
    let word = |c: char| c.is_ascii_hexdigit() || c == '-';
    let mut out = String::new();
    for piece in text.split_inclusive(|c| !word(c)) {
        let (known, end) = piece.split_at(piece.trim_end_matches(|c| !word(c)).len());
        let uid = known.len() == 36 && known.matches('-').count() == 4;
        let port = known.len() >= 4 && out.ends_with("127.0.0.1:");
        out.push_str(if uid {
            "UID"
        } else if port {
            "PORT"
        } else {
            known
        });
        out.push_str(end);
    }
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_responses_of_hostile_webhooks() {
    let ground = Ground::new(json!(["v1", "v1beta1"])).await;
    ground.make("v1beta1", "a").await;
    let text = |code: u16, body: &str| -> Behaviour {
        let body = body.to_owned();
        Box::new(move |_| Reply::Text(code, body.clone()))
    };
    let garbage = "x".repeat(10 << 20);
    let rows: Vec<(&str, Behaviour)> = vec![
        ("no objects", answer(|a| a["response"]["convertedObjects"] = json!([]))),
        (
            "failure",
            answer(|a| {
                a["response"]["result"] =
                    json!({"status": "Failure", "message": "custom webhook conversion error"})
            }),
        ),
        ("no message", answer(|a| a["response"]["result"] = json!({"status": "Failure"}))),
        ("another uid", answer(|a| a["response"]["uid"] = "x".into())),
        (
            "another version of the review",
            answer(|a| a["apiVersion"] = "apiextensions.k8s.io/v1beta1".into()),
        ),
        ("no response", answer(|a| a["response"] = Value::Null)),
        ("unconverted", each(|o, _| o)),
        (
            "another uid of the object",
            each(|o, w| {
                let mut o = good(o, w);
                o["metadata"]["uid"] = "x".into();
                o
            }),
        ),
        (
            "another kind",
            each(|o, w| {
                let mut o = good(o, w);
                o["kind"] = "Other".into();
                o
            }),
        ),
        (
            "no metadata",
            each(|o, w| {
                let mut o = good(o, w);
                o["metadata"] = Value::Null;
                o
            }),
        ),
        (
            "bad label",
            each(|o, w| {
                let mut o = good(o, w);
                o["metadata"]["labels"] = json!({"a b": "c"});
                o
            }),
        ),
        ("not found", text(404, "no such thing")),
        ("server error", text(500, "unwell")),
        ("not JSON", text(200, "<html>hello</html>")),
        ("empty", text(200, "")),
        ("10 MB", text(200, &garbage)),
        (
            "10 MB of an object",
            each(move |o, w| {
                let mut o = good(o, w);
                o["numv2"]["x"] = garbage.clone().into();
                o
            }),
        ),
        ("broken off", Box::new(|_| Reply::Broken("{\"kind\":\"ConversionReview\",".into()))),
    ];
    let mut seen = String::new();
    for (row, behaviour) in rows {
        ground.behave(behaviour);
        let all = refusals(&ground).await;
        let get = &all[0];
        seen.push_str(&format!("{row}: {} {}\n", get.1, masked(&get.2)));
        // Every verb fails, and by the same failure.
        for (what, code, text) in &all {
            assert_eq!(*code, 500, "{row}: {what}: {text}");
            assert!(
                text.starts_with("conversion webhook for stable.example.com/v1beta"),
                "{row}: {what}: {text}"
            );
        }
        // Other requests are not harmed, nor is the stored object.
        assert_eq!(num(&ground.get("v1beta1", "a").await), num(&multi("v1beta1", "")));
    }
    expect![[r#"
        no objects: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi returned 0 objects, expected 1
        failure: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: custom webhook conversion error
        no message: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: response.result.status was 'Failure', not 'Success'
        another uid: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: expected response.uid="UID", got "x"
        another version of the review: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got apiextensions.k8s.io/v1beta1, Kind=ConversionReview
        no response: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: no response provided
        unconverted: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi returned invalid object at index 0: invalid groupVersion (expected stable.example.com/v1beta2, received stable.example.com/v1beta1)
        another uid of the object: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi returned invalid object: must have the same UID: UID != x
        another kind: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi returned invalid object at index 0: invalid kind (expected Multi, received Other)
        no metadata: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi returned invalid object: must have the same name: a != 
        bad label: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi returned invalid metadata: metadata.labels: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
        not found: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: the server could not find the requested resource
        server error: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: an error on the server ("unknown") has prevented the request from succeeding
        not JSON: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: couldn't get version/kind; json parse error: expected value at line 1 column 1
        empty: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: 0-length response with status code: 200 and content type: 
        10 MB: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: the response body is larger than 4194304 bytes
        10 MB of an object: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: the response body is larger than 4194304 bytes
        broken off: 500 conversion webhook for stable.example.com/v1beta1, Kind=Multi failed: unexpected error when reading response body. Please retry. Original error: unexpected EOF
    "#]].assert_eq(&seen);
    // Of two objects, those that come back in another order are not those that were sent.
    ground.make("v1beta1", "b").await;
    ground.behave(answer(|a| a["response"]["convertedObjects"].as_array_mut().unwrap().reverse()));
    expect!["conversion webhook for stable.example.com/v1beta2, Kind=MultiList returned invalid converted object at index 0: must have the same name: a != b"].assert_eq(&ground.api().refused(Verb::List, &path("v1beta2", ""), Value::Null).await.1);
    ground.behave(answer(|a| drop(a["response"]["convertedObjects"].as_array_mut().unwrap().pop())));
    expect![
        "conversion webhook for stable.example.com/v1beta2, Kind=MultiList returned 1 objects, expected 2"
    ]
    .assert_eq(&ground.api().refused(Verb::List, &path("v1beta2", ""), Value::Null).await.1);
    // When it is well again, so is everything.
    ground.behave(each(good));
    assert_eq!(num(&ground.get("v1beta2", "a").await), num(&multi("v1beta2", "")));
    ground.cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_webhook_does_not_delay_other_requests() {
    let ground = Ground::new(json!(["v1"])).await;
    ground.make("v1beta1", "a").await;
    ground.calls();
    ground.behave(Box::new(|_| Reply::Never));
    // No longer than the client asks for.
    let get = "GET /apis/stable.example.com/v1beta2/namespaces/default/multis/a?timeout=1s";
    let (code, said) = ask(&ground.cluster, &admin(), get, &Value::Null).await;
    expect![[r#"504 "Timeout" "Timeout: request did not complete within the allotted timeout""#]]
        .assert_eq(&format!("{code} {} {}", said["reason"], said["message"]));
    ground.calls();
    let (api, at) = (ground.api(), path("v1beta2", "a"));
    let list = path("v1beta2", "");
    let (get, listed) =
        (api.raw(Verb::Get, &at, "", &Value::Null), api.raw(Verb::List, &list, "", &Value::Null));
    let others = async {
        while ground.calls.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
        ground.get("v1beta1", "a").await;
        ground.make("v1beta1", "b").await;
        // Not even the definition: it goes with all that it has, though some of it would have to be converted.
        ground.store_in("v1beta2").await;
        api.ok(Verb::Delete, &format!("{CRDS}/{NAME}"), Value::Null).await;
        api.until(CRDS, NAME, |d| d.is_none()).await;
    };
    tokio::select! {
        _ = get => panic!("an answer out of nothing"),
        _ = listed => panic!("an answer out of nothing"),
        () = others => {}
    }
    ground.cluster.stop().await;
}
