//! Lists: resourceVersion and match, chunks, selectors.

use super::*;
use expect_test::expect;

/// Three objects at 2, 3, 4; `b` changes at 5; 6 is another resource's.
async fn world() -> World {
    let w = World::new().await;
    w.put("x", "a", "app=web", &[("color", "red")]).await;
    w.put("x", "b", "app=db", &[("color", "blue")]).await;
    w.put("y", "c", "app=web,tier=1", &[("size", "3")]).await;
    w.put("x", "b", "app=db", &[("color", "green")]).await;
    w.tick().await;
    w
}

#[tokio::test]
async fn lists_at_the_requested_resource_version() {
    let w = world().await;
    let mut out = String::new();
    for query in [
        "",
        "resourceVersion=0",
        "resourceVersion=3",
        "resourceVersion=9",
        "resourceVersion=0&resourceVersionMatch=NotOlderThan",
        "resourceVersion=3&resourceVersionMatch=NotOlderThan",
        "resourceVersion=9&resourceVersionMatch=NotOlderThan",
        "resourceVersion=3&resourceVersionMatch=Exact",
        "resourceVersion=4&resourceVersionMatch=Exact",
        "resourceVersion=5&resourceVersionMatch=Exact",
        "resourceVersion=6&resourceVersionMatch=Exact",
        "resourceVersion=9&resourceVersionMatch=Exact",
        "limit=1",
        "limit=2&resourceVersion=0",
        "limit=1&resourceVersion=3",
        "limit=1&resourceVersion=3&resourceVersionMatch=NotOlderThan",
        "limit=1&resourceVersion=3&resourceVersionMatch=Exact",
        "limit=1&resourceVersion=9",
        "limit=3",
    ] {
        let _ = writeln!(out, "{query}: {}", w.listed("", query).await);
    }
    expect![[r#"
        : @6 [x/a x/b y/c]
        resourceVersion=0: @6 [x/a x/b y/c]
        resourceVersion=3: @6 [x/a x/b y/c]
        resourceVersion=9: 504 Timeout Timeout: Too large resource version: 9, current: 6
        resourceVersion=0&resourceVersionMatch=NotOlderThan: @6 [x/a x/b y/c]
        resourceVersion=3&resourceVersionMatch=NotOlderThan: @6 [x/a x/b y/c]
        resourceVersion=9&resourceVersionMatch=NotOlderThan: 504 Timeout Timeout: Too large resource version: 9, current: 6
        resourceVersion=3&resourceVersionMatch=Exact: @3 [x/a x/b]
        resourceVersion=4&resourceVersionMatch=Exact: @4 [x/a x/b y/c]
        resourceVersion=5&resourceVersionMatch=Exact: @5 [x/a x/b y/c]
        resourceVersion=6&resourceVersionMatch=Exact: @6 [x/a x/b y/c]
        resourceVersion=9&resourceVersionMatch=Exact: 504 Timeout Timeout: Too large resource version: 9, current: 6
        limit=1: @6 [x/a] more 2
        limit=2&resourceVersion=0: @6 [x/a x/b y/c]
        limit=1&resourceVersion=3: @3 [x/a] more 1
        limit=1&resourceVersion=3&resourceVersionMatch=NotOlderThan: @6 [x/a] more 2
        limit=1&resourceVersion=3&resourceVersionMatch=Exact: @3 [x/a] more 1
        limit=1&resourceVersion=9: 504 Timeout Timeout: Too large resource version: 9, current: 6
        limit=3: @6 [x/a x/b y/c]
    "#]].assert_eq(&out);
}

#[tokio::test]
async fn rejects_exact_lists_of_compacted_revisions() {
    let w = world().await;
    w.store.compact(4).await.unwrap();
    assert_eq!(
        w.listed("", "resourceVersion=3&resourceVersionMatch=Exact").await,
        "410 Expired The resourceVersion for the provided list is too old."
    );
    assert_eq!(w.listed("", "resourceVersion=4&resourceVersionMatch=Exact").await, "@4 [x/a x/b y/c]");
}

async fn token(w: &World, ns: &str, query: &str) -> String {
    let (_, v) = w.list(ns, query).await;
    v["metadata"]["continue"].as_str().unwrap_or_else(|| panic!("no token in {v}")).to_owned()
}

#[tokio::test]
async fn chunks_show_one_state() {
    let w = World::new().await;
    for i in 0..7 {
        w.put("x", &format!("n{i}"), "", &[]).await;
    }
    w.put("y", "z", "", &[]).await;
    assert_eq!(w.listed("", "limit=3").await, "@9 [x/n0 x/n1 x/n2] more 5");
    assert_eq!(w.listed("x", "limit=3").await, "@9 [x/n0 x/n1 x/n2] more 4");
    let first = token(&w, "x", "limit=3").await;
    w.delete("x", "n4").await;
    w.put("x", "n3a", "", &[]).await;
    assert_eq!(w.listed("x", &format!("limit=2&continue={first}")).await, "@9 [x/n3 x/n4] more 2");
    let second = token(&w, "x", &format!("limit=2&continue={first}")).await;
    assert_eq!(w.listed("x", &format!("limit=2&continue={second}")).await, "@9 [x/n5 x/n6]");
    assert_eq!(w.listed("x", &format!("continue={second}")).await, "@9 [x/n5 x/n6]");
    assert_eq!(w.listed("x", "").await, "@11 [x/n0 x/n1 x/n2 x/n3 x/n3a x/n5 x/n6]");
}

#[tokio::test]
async fn continues_at_the_revision_of_the_first_chunk() {
    let w = World::new().await;
    for i in 0..5 {
        w.put("x", &format!("n{i}"), "", &[]).await;
    }
    let first = token(&w, "x", "limit=2").await;
    // More lists than snapshots are kept.
    for i in 0..40 {
        w.put("x", &format!("later{i}"), "", &[]).await;
        w.list("x", "limit=1").await;
    }
    assert_eq!(w.listed("x", &format!("limit=2&continue={first}")).await, "@6 [x/n2 x/n3] more 1");
    assert_eq!(w.listed("x", &format!("continue={first}")).await, "@6 [x/n2 x/n3 x/n4]");
}

#[tokio::test]
async fn a_token_expires_with_its_revision() {
    let w = World::new().await;
    for i in 0..4 {
        w.put("x", &format!("n{i}"), "", &[]).await;
    }
    let first = token(&w, "x", "limit=2").await;
    w.delete("x", "n3").await;
    w.put("x", "n5", "", &[]).await;
    let now = w.engine.store().revision().await.unwrap();
    w.store.compact(now).await.unwrap();
    let (code, v) = w.list("x", &format!("limit=2&continue={first}")).await;
    expect!["410 Expired The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list. +token"].assert_eq(&short_list(code, &v));
    let second = v["metadata"]["continue"].as_str().unwrap();
    assert_eq!(w.listed("x", &format!("continue={second}")).await, "@7 [x/n2 x/n5]");
    assert_eq!(w.listed("x", &format!("limit=1&continue={second}")).await, "@7 [x/n2] more 1");
    assert!(w.listed("x", "continue=nonsense").await.starts_with("400 BadRequest invalid continue token: "));
}

#[tokio::test]
async fn lists_what_selectors_match() {
    let w = world().await;
    let mut out = String::new();
    for (ns, query) in [
        ("", "labelSelector=app=web"),
        ("x", "labelSelector=app=web"),
        ("", "labelSelector=app in (db,web),!tier"),
        ("", "labelSelector=app=web&limit=1"),
        ("", "labelSelector=tier=1&limit=1"),
        ("", "labelSelector=a b"),
        ("", "fieldSelector=metadata.name=b"),
        ("x", "fieldSelector=metadata.name=b"),
        ("y", "fieldSelector=metadata.name=b"),
        ("x", "fieldSelector=metadata.name!=b"),
        ("", "fieldSelector=metadata.namespace=y"),
        ("x", "fieldSelector=metadata.namespace=y"),
        ("", "fieldSelector=data.color=green"),
        ("", "fieldSelector=data.color=,metadata.name!=q"),
        ("", "fieldSelector=data.size=none"),
        ("", "fieldSelector=foo.bar=1"),
        ("", "resourceVersion=4&resourceVersionMatch=Exact&fieldSelector=data.color=blue"),
    ] {
        let _ = writeln!(out, "{ns} {query}: {}", w.listed(ns, query).await);
    }
    let unknown =
        ApiRequest { resource: "nodes".into(), query: pairs("fieldSelector=foo.bar=1"), ..request() };
    let (code, v) = w.send(unknown).await;
    out.push_str(&short_list(code, &v));
    expect![[r#"
         labelSelector=app=web: @6 [x/a y/c]
        x labelSelector=app=web: @6 [x/a]
         labelSelector=app in (db,web),!tier: @6 [x/a x/b]
         labelSelector=app=web&limit=1: @6 [x/a] more
         labelSelector=tier=1&limit=1: @6 [y/c]
         labelSelector=a b: 400 BadRequest unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt
         fieldSelector=metadata.name=b: @6 [x/b]
        x fieldSelector=metadata.name=b: @6 [x/b]
        y fieldSelector=metadata.name=b: @6 []
        x fieldSelector=metadata.name!=b: @6 [x/a]
         fieldSelector=metadata.namespace=y: @6 [y/c]
        x fieldSelector=metadata.namespace=y: @6 []
         fieldSelector=data.color=green: @6 [x/b]
         fieldSelector=data.color=,metadata.name!=q: @6 [y/c]
         fieldSelector=data.size=none: @6 [x/a x/b]
         fieldSelector=foo.bar=1: 400 BadRequest field label not supported: foo.bar
         resourceVersion=4&resourceVersionMatch=Exact&fieldSelector=data.color=blue: @4 [x/b]
        400 BadRequest "foo.bar" is not a known field selector: only "metadata.name", "metadata.namespace""#]].assert_eq(&out);
}

#[tokio::test]
async fn gets_at_the_requested_resource_version() {
    let w = world().await;
    let mut out = String::new();
    for (name, query) in [
        ("b", ""),
        ("b", "resourceVersion=0"),
        ("b", "resourceVersion=6"),
        ("b", "resourceVersion=9"),
        ("b", "resourceVersion=x"),
        ("q", ""),
    ] {
        let req = ApiRequest {
            verb: Verb::Get,
            namespace: "x".into(),
            name: name.into(),
            query: pairs(query),
            ..request()
        };
        let (code, v) = w.send(req).await;
        let _ = writeln!(out, "{name} {query}: {code} {v}");
    }
    expect![[r#"
        b : 200 {"apiVersion":"v1","data":{"color":"green"},"kind":"ConfigMap","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"db"},"name":"b","namespace":"x","resourceVersion":"5"}}
        b resourceVersion=0: 200 {"apiVersion":"v1","data":{"color":"green"},"kind":"ConfigMap","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"db"},"name":"b","namespace":"x","resourceVersion":"5"}}
        b resourceVersion=6: 200 {"apiVersion":"v1","data":{"color":"green"},"kind":"ConfigMap","metadata":{"creationTimestamp":"2024-01-01T00:00:00Z","labels":{"app":"db"},"name":"b","namespace":"x","resourceVersion":"5"}}
        b resourceVersion=9: 504 {"apiVersion":"v1","code":504,"details":{"causes":[{"message":"Too large resource version","reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1},"kind":"Status","message":"Timeout: Too large resource version: 9, current: 6","metadata":{},"reason":"Timeout","status":"Failure"}
        b resourceVersion=x: 500 {"apiVersion":"v1","code":500,"kind":"Status","message":"resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax","metadata":{},"status":"Failure"}
        q : 404 {"apiVersion":"v1","code":404,"details":{"kind":"configmaps","name":"q"},"kind":"Status","message":"configmaps \"q\" not found","metadata":{},"reason":"NotFound","status":"Failure"}
    "#]].assert_eq(&out);
}

#[tokio::test]
async fn large_lists_come_in_pieces() {
    let w = World::new().await;
    let filler = "f".repeat(3000);
    for i in 0..100 {
        w.put("x", &format!("n{i:03}"), "", &[("f", &filler)]).await;
    }
    w.put("x", "n050", "", &[("f", &"g".repeat(40_000))]).await;
    let response = w.engine.handle(request()).await;
    let Body::Lazy(chunks) = response.body else { panic!("not lazy") };
    let chunks: Vec<_> = chunks.collect();
    assert!(chunks.len() > 4 && chunks.iter().all(|c| c.len() < 100_000));
    let entry = w
        .engine
        .registry()
        .lookup("", "v1", "configmaps")
        .unwrap()
        .cache
        .get("/registry/core/configmaps/x/n050");
    let object = entry.unwrap().object().as_ptr_range();
    assert!(chunks.iter().any(|c| object.contains(&c.as_ptr())), "large objects are shared");
    let v: Value = serde_json::from_slice(&chunks.concat()).unwrap();
    assert_eq!(names(&v).len(), 100);
    assert_eq!(v["kind"], "ConfigMapList");
    assert!(v["items"].as_array().unwrap().iter().all(|item| item.get("kind").is_none()));
}

#[tokio::test]
async fn elements_do_not_repeat_their_kind() {
    let w = World::new().await;
    w.put("x", "a", "", &[]).await;
    // Laid out as another program would: its kind goes too.
    let odd = r#"{"kind":"ConfigMap","metadata":{"name":"b","namespace":"x"},"apiVersion":"v1"}"#;
    let put = Op::Put { key: "/registry/core/configmaps/x/b".into(), value: odd.into(), lease: None };
    w.commit(put).await;
    let mut out = String::new();
    for encoding in [Encoding::Json, Encoding::Yaml] {
        let accept = Accept { encoding, ..Accept::default() };
        let _ = write!(out, "{}", w.send_text(ApiRequest { accept, ..request() }).await.1);
    }
    expect![[r#"
        {"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"3"},"items":[{"metadata":{"name":"a","namespace":"x","resourceVersion":"2","creationTimestamp":"2024-01-01T00:00:00Z","labels":{}},"data":{}},{"metadata":{"name":"b","namespace":"x","resourceVersion":"3"}}]}
        apiVersion: v1
        items:
        - data: {}
          metadata:
            creationTimestamp: "2024-01-01T00:00:00Z"
            labels: {}
            name: a
            namespace: x
            resourceVersion: "2"
        - metadata:
            name: b
            namespace: x
            resourceVersion: "3"
        kind: ConfigMapList
        metadata:
          resourceVersion: "3"
    "#]].assert_eq(&out);
}

/// Tokens are no secret and can be made by clients: where they lead is bounded by the request that they come with.
#[tokio::test]
async fn a_continue_token_does_not_lead_out_of_a_namespace() {
    let w = World::new().await;
    for ns in ["a-team", "other", "tea", "team", "team2"] {
        for name in ["a", "other", "team", "z"] {
            w.put(ns, name, "", &[]).await;
        }
    }
    let mut tokens = vec![];
    for ns in ["", "other", "team2"] {
        let mut query = "limit=1".to_owned();
        while let Some(token) = w.list(ns, &query).await.1["metadata"]["continue"].as_str() {
            tokens.push(token.to_owned());
            query = format!("limit=1&continue={token}");
        }
    }
    assert_eq!(tokens.len(), 19 + 3 + 3);
    for ns in ["a-team", "tea", "team", "team2"] {
        for token in &tokens {
            let (code, v) = w.list(ns, &format!("limit=500&continue={token}")).await;
            let found = names(&v);
            assert!(code == 200 && found.iter().all(|n| n.starts_with(&format!("{ns}/"))), "{ns}: {found:?}");
        }
    }
}
