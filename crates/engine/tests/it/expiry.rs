//! Kinds with a time to live, as events are.

use super::Env;
use futures_util::StreamExt;
use kaji_engine::Body;
use kaji_resource::Verb;
use kaji_store::{
    ManualClock,
    memory::{MemoryOptions, MemoryStore},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn deletes_expired_objects_an_hour_after_their_last_write_with_events() {
    let clock = Arc::new(ManualClock::new(0));
    let options = MemoryOptions { clock: clock.clone(), ..MemoryOptions::default() };
    let store = Arc::new(MemoryStore::with_options(options).unwrap());
    let env = Env::over(store.clone(), vec![]).await;
    let pass = async |minutes: u32| {
        // Objects written within one minute go together; here each has a separate minute.
        env.clock.advance(jiff::SignedDuration::from_mins(minutes.into()));
        clock.advance(MINUTE * minutes);
        store.tick().await.unwrap();
    };
    let names = async || {
        let list = env.send(env.request(Verb::List, "v1/events/default", "")).await.body;
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["metadata"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let event = |name: &str| json!({"metadata": {"name": name}, "count": 1});
    for name in ["a", "b", "c"] {
        assert_eq!(env.create("v1/events/default", event(name)).await.code, 201);
        pass(10).await;
    }
    let Body::Watch(mut watch) = env
        .engine
        .handle(env.request(Verb::Watch, "v1/events/default?watch=true&fieldSelector=metadata.name=b", ""))
        .await
        .body
    else {
        panic!("no watch")
    };
    // At minute 30 `a` is written again: its hour begins anew.
    assert_eq!(env.patch("merge", "v1/events/default/a", json!({"count": 2})).await.code, 200);
    pass(39).await;
    assert_eq!(names().await, ["a", "b", "c"]);
    // An hour, and the minute for which a lease is shared.
    pass(2).await;
    assert_eq!(names().await, ["a", "c"]);
    pass(10).await;
    assert_eq!(names().await, ["a"]);
    pass(10).await;
    assert_eq!(names().await, Vec::<String>::new());
    assert_eq!(env.get("v1/events/default/a").await.brief(), "404 NotFound: events \"a\" not found");
    // Nothing of the lease is left to the name: a new object has a new hour.
    assert_eq!(env.create("v1/events/default", event("a")).await.code, 201);
    pass(59).await;
    assert_eq!(names().await, ["a"]);
    let mut seen = vec![];
    while seen.len() < 2 {
        let piece = watch.next().await.unwrap();
        for event in serde_json::Deserializer::from_slice(&piece).into_iter::<Value>() {
            seen.push(event.unwrap()["type"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(seen, ["ADDED", "DELETED"]);
}
