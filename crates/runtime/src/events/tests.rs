//! Tests of the recorder against a server that the test plays.

use super::*;
use crate::testing::{FakeServer, client};
use http::Method;
use jiff::SignedDuration;
use kaji_meta::{random::SeededRandom, time::ManualClock};

const EVENTS: &str = "/api/v1/namespaces/ns/events";

fn start() -> (Recorder, FakeServer, Arc<ManualClock>) {
    let (client, server) = client();
    let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
    let recorder = Recorder::start(client, "component", clock.clone(), Arc::new(SeededRandom::new(1)));
    (recorder, server, clock)
}

fn event(message: &str) -> EventRecord {
    EventRecord::normal(json!({"kind": "Pod", "namespace": "ns", "name": "p", "uid": "u"}), "Reason", message)
}

#[tokio::test(start_paused = true)]
async fn creates_an_event_and_patches_its_count_afterwards() {
    let (recorder, mut server, clock) = start();
    recorder.record(event("text"));
    let created = server.expect(Method::POST, EVENTS).await;
    let name = created.body["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("p."), "{name}");
    assert_eq!(created.body["source"]["component"], "component");
    assert_eq!(created.body["count"], 1);
    created.json(201, &json!({}));
    clock.advance(SignedDuration::from_secs(60));
    recorder.record(event("text"));
    let patched = server.expect(Method::PATCH, &format!("{EVENTS}/{name}")).await;
    assert_eq!(patched.body, json!({"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z", "message": "text"}));
    patched.json(200, &json!({}));
}

#[tokio::test(start_paused = true)]
async fn creates_an_expired_event_again_with_its_count() {
    let (recorder, mut server, clock) = start();
    recorder.record(event("text"));
    server.next().await.json(201, &json!({}));
    clock.advance(SignedDuration::from_hours(2));
    recorder.record(event("text"));
    server.next().await.status(404, "NotFound");
    let created = server.expect(Method::POST, EVENTS).await;
    assert_eq!(created.body["count"], 2);
    assert_eq!(created.body["firstTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(created.body["lastTimestamp"], "2026-01-01T02:00:00Z");
    created.json(201, &json!({}));
}

#[tokio::test(start_paused = true)]
async fn continues_after_a_failed_write_and_drops_events_when_the_queue_is_full() {
    let (recorder, mut server, _clock) = start();
    recorder.record(event("first"));
    let first = server.next().await;
    // The writer waits for the response; one event more than the queue holds is dropped.
    for n in 0..=QUEUE {
        recorder.record(EventRecord::normal(
            json!({"kind": "Pod", "namespace": "ns", "name": n.to_string()}),
            "R",
            "m",
        ));
    }
    first.status(500, "InternalError");
    for n in 0..QUEUE {
        let created = server.next().await;
        assert_eq!(created.body["involvedObject"]["name"], n.to_string());
        created.json(201, &json!({}));
    }
    recorder.record(event("last"));
    assert_eq!(server.next().await.body["message"], "last");
}

#[tokio::test(start_paused = true)]
async fn truncates_long_messages_between_characters() {
    let (recorder, mut server, _clock) = start();
    recorder.record(event(&"\u{e9}".repeat(600).replacen('\u{e9}', "e", 1)));
    let created = server.next().await;
    assert_eq!(created.body["message"].as_str().unwrap().len(), 1023);
}
