//! Watches: where they begin, what selectors make of events, bookmarks, limits.

use super::*;
use expect_test::expect;

#[tokio::test]
async fn begins_at_the_requested_resource_version() {
    let w = World::new().await;
    w.put("x", "a", "", &[]).await; // 2
    w.put("x", "b", "", &[]).await; // 3
    w.delete("x", "a").await; // 4
    let mut out = String::new();
    for query in [
        "",
        "resourceVersion=0",
        "resourceVersion=1",
        "resourceVersion=2",
        "resourceVersion=4",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=4",
        "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99",
    ] {
        let mut watch = w.watch("", query).await;
        let rv = w.put("x", "b", "", &[("n", "1")]).await;
        let mut events = vec![];
        while !events
            .last()
            .is_some_and(|e: &String| e.contains(&format!("b@{rv}")) || e.starts_with("ERROR"))
        {
            events.push(watch.short().await);
        }
        // The tick's revision differs from line to line.
        let _ = writeln!(out, "{query}: {}", events.join(", "));
    }
    expect![[r#"
        : ADDED b@3, MODIFIED b@5 n=1
        resourceVersion=0: ADDED b@5 n=1, MODIFIED b@6 n=1
        resourceVersion=1: ADDED a@2, ADDED b@3, DELETED a@4, MODIFIED b@5 n=1, MODIFIED b@6 n=1, MODIFIED b@7 n=1
        resourceVersion=2: ADDED b@3, DELETED a@4, MODIFIED b@5 n=1, MODIFIED b@6 n=1, MODIFIED b@7 n=1, MODIFIED b@8 n=1
        resourceVersion=4: MODIFIED b@5 n=1, MODIFIED b@6 n=1, MODIFIED b@7 n=1, MODIFIED b@8 n=1, MODIFIED b@9 n=1
        sendInitialEvents=true&resourceVersionMatch=NotOlderThan: ADDED b@9 n=1, MODIFIED b@10 n=1
        sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true: ADDED b@10 n=1, BOOKMARK end @10, MODIFIED b@11 n=1
        sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=4: ADDED b@11 n=1, BOOKMARK end @11, MODIFIED b@12 n=1
        sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true: MODIFIED b@13 n=1
        sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99: ERROR 504 Timeout: Too large resource version: 99, current: 13
    "#]].assert_eq(&out);
}

#[tokio::test]
async fn rejects_invalid_options() {
    let w = World::new().await;
    for (query, text) in [
        (
            "resourceVersion=x",
            r#"resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax"#,
        ),
        ("fieldSelector=a=b", "field label not supported: a"),
        ("timeoutSeconds=x", r#"strconv.ParseInt: parsing "x": invalid syntax"#),
    ] {
        let (_, v) = w.send(ApiRequest { verb: Verb::Watch, query: pairs(query), ..request() }).await;
        assert_eq!(v["message"], text);
    }
}

#[tokio::test]
async fn selectors_turn_changes_into_additions_and_deletions() {
    let w = World::new().await;
    let mut by_label = w.watch("", "labelSelector=app=web").await;
    let mut by_set = w.watch("", "labelSelector=app in (web,shop),!hidden").await;
    let mut by_index = w.watch("x", "fieldSelector=data.color=red").await;
    let mut by_field = w.watch("", "fieldSelector=data.size=none").await;
    let mut by_name = w.watch("x", "fieldSelector=metadata.name=a").await;
    let mut other_namespace = w.watch("y", "").await;
    w.put("x", "a", "app=db", &[("color", "red")]).await; // 2
    w.put("x", "a", "app=web", &[("color", "blue")]).await; // 3
    w.put("x", "a", "app=web", &[("color", "red"), ("size", "1")]).await; // 4
    w.put("x", "a", "app=db", &[("color", "red")]).await; // 5
    w.put("x", "b", "app=web", &[]).await; // 6
    w.delete("x", "a").await; // 7
    w.put("y", "z", "app=shop", &[("color", "red"), ("size", "2")]).await; // 8
    w.delete("x", "b").await; // 9
    w.put("y", "end", "app=web", &[]).await; // 10
    w.put("x", "end", "", &[("color", "red")]).await; // 11
    let mut out = String::new();
    for (name, watch, n) in [
        ("by_label", &mut by_label, 6),
        ("by_set", &mut by_set, 7),
        ("by_index", &mut by_index, 6),
        ("by_field", &mut by_field, 9),
        ("by_name", &mut by_name, 5),
        ("other_namespace", &mut other_namespace, 2),
    ] {
        let _ = writeln!(out, "{name}: {}", watch.shorts(n).await.join(", "));
    }
    expect![[r#"
        by_label: ADDED a@3 color=blue, MODIFIED a@4 color=red size=1, DELETED a@5 color=red size=1, ADDED b@6, DELETED b@9, ADDED end@10
        by_set: ADDED a@3 color=blue, MODIFIED a@4 color=red size=1, DELETED a@5 color=red size=1, ADDED b@6, ADDED z@8 color=red size=2, DELETED b@9, ADDED end@10
        by_index: ADDED a@2 color=red, DELETED a@3 color=red, ADDED a@4 color=red size=1, MODIFIED a@5 color=red, DELETED a@7 color=red, ADDED end@11 color=red
        by_field: ADDED a@2 color=red, MODIFIED a@3 color=blue, DELETED a@4 color=blue, ADDED a@5 color=red, ADDED b@6, DELETED a@7 color=red, DELETED b@9, ADDED end@10, ADDED end@11 color=red
        by_name: ADDED a@2 color=red, MODIFIED a@3 color=blue, MODIFIED a@4 color=red size=1, MODIFIED a@5 color=red, DELETED a@7 color=red
        other_namespace: ADDED z@8 color=red size=2, ADDED end@10
    "#]].assert_eq(&out);
}

#[tokio::test]
async fn history_serves_what_the_window_has_lost() {
    let w = World::with(EngineOptions { watch_window: 4, ..options() }).await;
    for i in 0..10 {
        w.put("x", "a", "", &[("n", &i.to_string())]).await;
    }
    w.delete("x", "a").await; // 12
    let mut watch = w.watch("", "resourceVersion=2").await;
    w.put("x", "b", "", &[]).await; // 13
    let events = watch.shorts(11).await;
    assert_eq!(events[0], "MODIFIED a@3 n=1");
    assert_eq!(events[8..], ["MODIFIED a@11 n=9", "DELETED a@12 n=9", "ADDED b@13"]);

    // Selectors see changes in history as they do live.
    let mut watch = w.watch("", "resourceVersion=1&fieldSelector=data.color=red").await;
    w.put("x", "c", "", &[("color", "red")]).await; // 14
    w.put("x", "c", "", &[]).await; // 15
    assert_eq!(watch.shorts(2).await, ["ADDED c@14 color=red", "DELETED c@15 color=red"]);
    for i in 0..6 {
        w.put("x", "d", "", &[("n", &i.to_string())]).await;
    }
    w.engine.wait_applied(21).await;
    let mut watch = w.watch("", "resourceVersion=13&fieldSelector=data.color=red").await;
    assert_eq!(watch.shorts(2).await, ["ADDED c@14 color=red", "DELETED c@15 color=red"]);

    w.store.compact(6).await.unwrap();
    let mut watch = w.watch("", "resourceVersion=5").await;
    assert_eq!(watch.shorts(2).await, ["ERROR 410 too old resource version: 5 (6)", "end"]);
    let mut watch = w.watch("", "resourceVersion=6").await;
    assert_eq!(watch.short().await, "MODIFIED a@7 n=5");
}

#[tokio::test]
async fn resumes_over_a_restart() {
    let w = World::new().await;
    w.put("x", "a", "", &[]).await; // 2
    w.put("x", "b", "", &[]).await; // 3
    w.engine.shutdown().await;
    let engine = Engine::open(w.store.clone(), options()).await.unwrap();
    engine.register(vec![config_maps()]).await.unwrap();
    let w = World { store: w.store.clone(), engine };
    assert_eq!(w.listed("", "").await, "@3 [x/a x/b]");
    let mut watch = w.watch("", "resourceVersion=2").await;
    w.put("x", "c", "", &[]).await; // 4
    assert_eq!(watch.shorts(2).await, ["ADDED b@3", "ADDED c@4"]);
}

#[tokio::test]
async fn bookmarks_follow_the_store() {
    let w = World::new().await;
    let mut watch = w.watch("", "resourceVersion=1&allowWatchBookmarks=true").await;
    w.put("x", "a", "", &[]).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let rv = w.put_value("/registry/core/nodes/n", &node).await.to_string();
    loop {
        let event = watch.next().await.unwrap();
        if event["type"] == "BOOKMARK" && event["object"]["metadata"]["resourceVersion"] == *rv {
            expect![[r#"{"object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"3"}},"type":"BOOKMARK"}"#]].assert_eq(&event.to_string());
            break;
        }
    }
}

#[tokio::test]
async fn ends_at_its_timeout() {
    let w = World::with(EngineOptions { min_request_timeout: Duration::from_millis(1), ..options() }).await;
    let cache = w.engine.registry().lookup("", "v1", "configmaps").unwrap().cache.clone();
    let mut watch = w.watch("", "resourceVersion=1&timeoutSeconds=60").await;
    assert_eq!(cache.watcher_count(), 1);
    drop(watch);
    assert_eq!(cache.watcher_count(), 0);
    watch = w.watch("", "resourceVersion=1").await;
    assert_eq!(watch.short().await, "end");
    assert_eq!(cache.watcher_count(), 0);
}

#[tokio::test]
async fn ends_in_time_although_events_are_queued() {
    let w = World::with(EngineOptions { min_request_timeout: Duration::from_millis(1), ..options() }).await;
    let put = async |n: usize| {
        for _ in 0..n {
            w.put("x", "a", "", &[]).await;
        }
    };
    put(600).await;
    let mut watch = w.watch("", "resourceVersion=1").await;
    // As many events come as are read.
    for _ in 0..100 {
        let Some(chunk) = watch.stream.next().await else { return };
        put(chunk.iter().filter(|b| **b == b'\n').count()).await;
    }
    panic!("the watch goes on");
}

#[tokio::test]
async fn a_slow_watcher_catches_up_from_the_window() {
    let w = World::with(EngineOptions { watch_queue: 3, watch_window: 100, ..options() }).await;
    let mut watch = w.watch("", "labelSelector=app=web").await;
    let mut want = vec![];
    for i in 0..50 {
        let rv = w.put("x", &format!("n{i}"), if i % 2 == 0 { "app=web" } else { "" }, &[]).await;
        if i % 2 == 0 {
            want.push(format!("ADDED n{i}@{rv}"));
        }
    }
    w.engine.wait_applied(51).await;
    assert_eq!(watch.shorts(25).await, want);
    // It is live again.
    w.put("x", "last", "app=web", &[]).await;
    assert_eq!(watch.short().await, "ADDED last@52");
}

/// Objects in a namespace and in others with names that begin or end alike, in turn.
async fn put_in_namespaces(w: &World, rounds: usize) -> Revision {
    let mut last = 0;
    for i in 0..rounds {
        for ns in ["team", "other", "team2", "tea", "a-team"] {
            last = w.put(ns, &format!("n{i}"), "app=web", &[("color", "red")]).await;
        }
        if i % 3 == 2 {
            for ns in ["other", "team", "team2"] {
                last = w.delete(ns, &format!("n{i}")).await;
            }
        }
    }
    w.engine.wait_applied(last).await;
    last
}

/// The namespaces in the events of a watch, up to an object of the name `end`.
async fn namespaces_of(watch: &mut Watch) -> Vec<String> {
    let mut found = vec![];
    loop {
        let event = watch.next().await.expect("an event");
        let object = &event["object"];
        for object in
            object["rows"].as_array().map_or(vec![object], |r| r.iter().map(|r| &r["object"]).collect())
        {
            if kaji_meta::object::name(object) == "end" {
                return found;
            }
            if event["type"] != "BOOKMARK" {
                found.push(kaji_meta::object::namespace(object).to_owned());
            }
        }
    }
}

fn forms() -> [Accept; 3] {
    [Form::Object, Form::PartialMetadata, Form::Table].map(|form| Accept { form, ..Accept::default() })
}

#[tokio::test]
async fn a_namespaced_watch_replays_only_its_namespace() {
    // The window reaches back to the beginning, or does not.
    for watch_window in [1000, 8] {
        let w = World::with(EngineOptions { watch_window, ..options() }).await;
        let last = put_in_namespaces(&w, 10).await;
        for accept in forms() {
            for query in [
                "resourceVersion=1".to_owned(),
                "resourceVersion=2&allowWatchBookmarks=true".into(),
                format!("resourceVersion={}", last - 7),
                "resourceVersion=1&labelSelector=app=web".into(),
                "resourceVersion=1&fieldSelector=data.color=red".into(),
                "resourceVersion=1&fieldSelector=metadata.namespace=team".into(),
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".into(),
            ] {
                let mut watch = w.watch_as("team", &query, accept).await;
                w.put("team", "end", "app=web", &[("color", "red")]).await;
                let found = namespaces_of(&mut watch).await;
                assert!(
                    !found.is_empty() && found.iter().all(|ns| ns == "team"),
                    "{query} {accept:?}: {found:?}"
                );
                w.delete("team", "end").await;
            }
        }
    }
}

#[tokio::test]
async fn a_slow_namespaced_watcher_catches_up_with_its_namespace_only() {
    let w = World::with(EngineOptions { watch_queue: 3, ..options() }).await;
    for accept in forms() {
        let mut watches = vec![w.watch_as("team", "", accept).await];
        let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        watches.push(w.watch_as("team", initial, accept).await);
        watches.push(w.watch_as("", "fieldSelector=metadata.namespace=team", accept).await);
        put_in_namespaces(&w, 20).await;
        w.put("team", "end", "", &[]).await;
        for watch in &mut watches {
            let found = namespaces_of(watch).await;
            assert!(found.len() >= 20 && found.iter().all(|ns| ns == "team"), "{accept:?}: {found:?}");
        }
        w.delete("team", "end").await;
    }
}

#[tokio::test]
async fn a_watcher_too_slow_is_cut_off() {
    let w = World::with(EngineOptions { watch_queue: 3, watch_window: 10, ..options() }).await;
    let mut slow = w.watch("", "").await;
    let mut other = w.watch("", "").await;
    for i in 0..50 {
        w.put("x", &format!("n{i}"), "", &[]).await;
        assert_eq!(other.short().await, format!("ADDED n{i}@{}", i + 2));
    }
    assert_eq!(slow.shorts(4).await, ["ADDED n0@2", "ADDED n1@3", "ADDED n2@4", "end"]);
    // What it had is enough to resume.
    let mut resumed = w.watch("", "resourceVersion=4").await;
    assert_eq!(resumed.short().await, "ADDED n3@5");
}

#[tokio::test]
async fn many_events_come_in_few_pieces() {
    let w = World::new().await;
    for i in 0..100 {
        w.put("x", &format!("n{i}"), "", &[]).await;
    }
    let mut watch = w.watch("", "resourceVersion=1").await;
    w.engine.wait_applied(101).await;
    let first = watch.stream.next().await.unwrap();
    assert_eq!(first.iter().filter(|b| **b == b'\n').count(), 100);
}

#[tokio::test]
async fn a_server_that_ends_drains_its_watches() {
    let w = World::new().await;
    let mut watches = vec![w.watch("", "").await, w.watch("x", "").await];
    watches.push(w.watch("x", "fieldSelector=metadata.name=a").await);
    watches.push(w.watch("", "labelSelector=app=web").await);
    w.put("x", "a", "app=web", &[]).await; // 2
    w.engine.wait_applied(2).await;
    assert_eq!(w.engine.drain_watches(Duration::from_secs(20)).await, (4, 0));
    for watch in &mut watches {
        // What had happened before is sent.
        assert_eq!([watch.short().await, watch.short().await], ["ADDED a@2", "end"]);
    }
    let req = ApiRequest { verb: Verb::Watch, ..request() };
    let (code, refused) = w.send(req).await;
    assert_eq!((code, refused["details"]["retryAfterSeconds"].as_u64()), (503, Some(1)));
    // Other requests are served on.
    assert_eq!(w.listed("", "").await, "@2 [x/a]");
}
