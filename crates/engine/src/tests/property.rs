//! The law of lists and watches: a state that is kept up to date by events from a list's revision on is, at every
//! revision, what a list at that revision shows; whatever the queue, the window, and the pace of reading.

use super::*;
use kaji_meta::{Random, SeededRandom};
use std::collections::BTreeMap;

type Seen = BTreeMap<String, String>;

fn state(v: &Value) -> Seen {
    let items = v["items"].as_array().unwrap().iter();
    items
        .map(|o| (kaji_meta::object::name(o).to_owned(), kaji_meta::object::resource_version(o).to_owned()))
        .collect()
}

/// The object that a follower of a selector waits for.
fn stop(selector: &str) -> &'static str {
    if selector.contains("!=") { "stop2" } else { "stop" }
}

/// Follows a selector until its last object appears, listing anew when the watch ends.
async fn follow(w: Arc<World>, selector: &'static str, seed: u64) -> Seen {
    let random = SeededRandom::new(seed);
    'list: loop {
        let (_, list) = w.list("", &format!("resourceVersion=0&{selector}")).await;
        let mut seen = state(&list);
        let rv = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let mut last: u64 = rv.parse().unwrap();
        if seen.contains_key(stop(selector)) {
            return seen;
        }
        let mut watch = w.watch("", &format!("resourceVersion={rv}&{selector}")).await;
        loop {
            if random.u64().is_multiple_of(4) {
                tokio::task::yield_now().await;
            }
            let Some(event) = watch.next().await else { continue 'list };
            let object = &event["object"];
            assert_ne!(event["type"], "ERROR", "{event}");
            let name = kaji_meta::object::name(object).to_owned();
            let rv: u64 = kaji_meta::object::resource_version(object).parse().unwrap();
            assert!(rv > last, "events come in order and once: {rv} after {last}");
            last = rv;
            let known = seen.contains_key(&name);
            match event["type"].as_str().unwrap() {
                "ADDED" => assert!(!known, "{name} was there"),
                "MODIFIED" | "DELETED" => assert!(known, "{name} was not there"),
                other => panic!("{other}"),
            }
            if event["type"] == "DELETED" {
                seen.remove(&name);
            } else {
                seen.insert(name.clone(), rv.to_string());
            }
            if name == stop(selector) {
                return seen;
            }
        }
    }
}

async fn law(queue: usize, window: usize, seed: u64) {
    let options = EngineOptions {
        watch_queue: queue,
        watch_window: window,
        read_wait: Duration::from_secs(20),
        ..options()
    };
    let w = Arc::new(World::with(options).await);
    let selectors = ["", "labelSelector=app=web", "fieldSelector=data.color=red", "labelSelector=app!=web"];
    let followers: Vec<_> =
        (0..8).map(|i| tokio::spawn(follow(w.clone(), selectors[i % 4], seed + i as u64))).collect();
    let writers = (0..4).map(|writer| {
        let w = w.clone();
        tokio::spawn(async move {
            let random = SeededRandom::new(seed * 31 + writer);
            for _ in 0..150 {
                let name = format!("n{writer}-{}", random.u64() % 6);
                let labels = if random.u64().is_multiple_of(2) { "app=web" } else { "app=db" };
                let color = if random.u64().is_multiple_of(2) { "red" } else { "blue" };
                match random.u64() % 4 {
                    0 => w.delete("x", &name).await,
                    _ => w.put("x", &name, labels, &[("color", color)]).await,
                };
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let at = w.put("z", "stop", "app=web", &[("color", "red")]).await;
    w.put("z", "stop2", "app=db", &[]).await;
    for (i, follower) in followers.into_iter().enumerate() {
        let selector = selectors[i % 4];
        let mut seen = follower.await.unwrap();
        // The last list may have returned one more.
        seen.remove("stop2");
        let (_, list) =
            w.list("", &format!("resourceVersion={at}&resourceVersionMatch=Exact&{selector}")).await;
        assert_eq!(seen, state(&list), "{selector}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_missed() {
    law(1024, 10_000, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_missed_when_lagging() {
    law(2, 10_000, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_missed_with_a_short_window() {
    law(4, 16, 3).await;
}
