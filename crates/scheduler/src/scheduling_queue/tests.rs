//! Orders, backoffs, events and gates of the queue.

use super::*;
use crate::{
    configuration::Configuration,
    framework::{Actions, Change, Reads, Resource},
    testing::{node, pod},
};
use serde_json::{Value, json};

fn queue() -> SchedulingQueue {
    let profiles = Configuration::new(kaji_meta::Features::default()).unwrap().profiles;
    let mut reads = Reads::nothing();
    profiles.iter().flat_map(Profile::points).for_each(|p| p.plugin.reads(&mut reads));
    SchedulingQueue::new(Arc::new(profiles), Backoffs::default(), reads.finish().0)
}

fn key(name: &str) -> Key {
    Key::new("d", name)
}

fn event(old: Option<Value>, new: Option<Value>) -> Option<Event> {
    Event::of_node(old.as_ref().map(node), new.as_ref().map(node))
}

fn reject(queue: &mut SchedulingQueue, name: &str, plugin: &'static str, now: Instant) {
    queue.rejected(&key(name), [plugin].into(), [].into(), now);
}

#[tokio::test(start_paused = true)]
async fn orders_by_priority_and_age() {
    let (mut queue, now) = (queue(), Instant::now());
    for (name, priority) in [("a", 0), ("b", 5), ("c", 0)] {
        let pod = pod(&json!({"name": name, "priority": priority}));
        queue.add(pod.clone(), 0, now);
        queue.add(pod, 0, now);
    }
    let order: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|p| p.key.name).collect();
    assert_eq!(order, ["b", "a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn backs_off_longer_with_each_failure_and_keeps_it_over_events() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add(pod(&json!({"name": "a"})), 0, now);
    let more = event(Some(json!({"name": "n"})), Some(json!({"name": "n", "allocatable": {"pods": "200"}})))
        .unwrap();
    let mut waited = vec![];
    let mut at = now;
    for _ in 0..6 {
        queue.flush_due(at);
        assert_eq!(queue.pop().unwrap().key, key("a"));
        reject(&mut queue, "a", "NodeResourcesFit", at);
        assert_eq!(queue.next_due(), Some(at + FLUSH));
        queue.event(&more, at);
        let due = queue.next_due().unwrap();
        waited.push((due - at).as_secs());
        at = due;
    }
    assert_eq!(waited, [1, 2, 4, 8, 10, 10]);
}

#[tokio::test(start_paused = true)]
async fn wakes_only_pods_that_an_event_may_help() {
    let (mut queue, now) = (queue(), Instant::now());
    for name in ["fit", "taint"] {
        queue.add(pod(&json!({"name": name, "cpu": "1"})), 0, now);
    }
    while queue.pop().is_some() {}
    reject(&mut queue, "fit", "NodeResourcesFit", now);
    reject(&mut queue, "taint", "TaintToleration", now);
    let woken = |queue: &mut SchedulingQueue, event: Event| {
        let before = queue.pending().unschedulable;
        queue.event(&event, now);
        before - queue.pending().unschedulable
    };
    let tainted = json!({"name": "n", "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    let heartbeat =
        event(Some(json!({"name": "n"})), Some(json!({"name": "n", "images": [{"names": ["i"]}]})));
    assert!(heartbeat.is_none());
    let less =
        event(Some(json!({"name": "n"})), Some(json!({"name": "n", "allocatable": {"cpu": "3"}}))).unwrap();
    assert_eq!(woken(&mut queue, less), 0);
    assert_eq!(woken(&mut queue, event(Some(json!({"name": "n"})), Some(tainted.clone())).unwrap()), 0);
    assert_eq!(woken(&mut queue, event(Some(tainted), Some(json!({"name": "n"}))).unwrap()), 1);
    let gone = pod(&json!({"name": "other", "node": "n", "cpu": "1"})).pod.clone();
    assert_eq!(woken(&mut queue, Event::of_assigned_pod(Some(gone), None).unwrap()), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_during_an_attempt_counts() {
    let (mut queue, now) = (queue(), Instant::now());
    let new = event(None, Some(json!({"name": "n"}))).unwrap();
    queue.add(pod(&json!({"name": "a"})), 0, now);
    queue.event(&new, now);
    queue.pop().unwrap();
    queue.event(&new, now);
    reject(&mut queue, "a", "NodeResourcesFit", now);
    assert_eq!(queue.pending(), Pending { backoff: 1, ..Pending::default() });
    // One before the attempt does not.
    queue.flush_due(now + Duration::from_secs(1));
    queue.pop().unwrap();
    reject(&mut queue, "a", "NodeResourcesFit", now);
    assert_eq!(queue.pending(), Pending { unschedulable: 1, ..Pending::default() });
    // More events than are kept: the pod is tried again.
    queue.activate_now(&key("a"));
    queue.pop().unwrap();
    let other =
        Event { resource: Resource::Other("x"), actions: Actions::ADD, change: Change::Other(None, None) };
    (0..=in_flight::EVENTS).for_each(|_| queue.event(&other, now));
    reject(&mut queue, "a", "NodeResourcesFit", now);
    assert_eq!(queue.pending(), Pending { backoff: 1, ..Pending::default() });
}

#[tokio::test(start_paused = true)]
async fn gated_pods_wait_for_the_end_of_their_gates() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add(pod(&json!({"name": "a", "spec": {"schedulingGates": [{"name": "g"}]}})), 0, now);
    assert_eq!((queue.pop().is_none(), queue.pending().gated), (true, 1));
    queue.flush_due(now + 2 * FLUSH);
    assert_eq!(queue.pending().gated, 1);
    queue.add(pod(&json!({"name": "a"})), 0, now);
    assert_eq!(queue.pop().unwrap().key, key("a"));
    queue.remove(&key("a"));
    assert_eq!(queue.pending(), Pending::default());
}

#[tokio::test(start_paused = true)]
async fn pods_that_wait_for_long_are_tried_again_and_failed_ones_after_their_backoff() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add(pod(&json!({"name": "a"})), 0, now);
    queue.pop().unwrap();
    reject(&mut queue, "a", "NodeResourcesFit", now);
    queue.flush_due(now + FLUSH);
    assert_eq!(queue.pop().unwrap().attempts, 2);
    queue.failed(&key("a"), now);
    assert_eq!(queue.next_due(), Some(now + Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn failures_and_rejections_back_off_by_their_own_numbers() {
    let (mut queue, mut now) = (queue(), Instant::now());
    queue.add(pod(&json!({"name": "a"})), 0, now);
    let more = event(Some(json!({"name": "n"})), Some(json!({"name": "n", "allocatable": {"pods": "200"}})))
        .unwrap();
    let mut waited = vec![];
    for rejected in [true, true, false, false, true, false] {
        queue.flush_due(now);
        queue.pop().unwrap();
        match rejected {
            true => {
                reject(&mut queue, "a", "NodeResourcesFit", now);
                queue.event(&more, now);
            }
            false => queue.failed(&key("a"), now),
        }
        let due = queue.next_due().unwrap();
        waited.push((due - now).as_secs());
        now = due;
    }
    assert_eq!(waited, [1, 2, 1, 2, 4, 1]);
}

#[tokio::test(start_paused = true)]
async fn what_comes_in_is_counted_by_cause() {
    let metrics = QueueMetrics::default();
    let (mut queue, now) = (queue().measured(metrics.clone()), Instant::now());
    for name in ["a", "b", "c"] {
        queue.add(pod(&json!({"name": name})), 0, now);
    }
    queue.add(pod(&json!({"name": "gated", "spec": {"schedulingGates": [{"name": "g"}]}})), 0, now);
    while queue.pop().is_some() {}
    reject(&mut queue, "a", "NodeResourcesFit", now);
    reject(&mut queue, "b", "NodeResourcesFit", now);
    queue.failed(&key("c"), now);
    queue.event(&event(None, Some(json!({"name": "n"}))).unwrap(), now);
    queue.flush_due(queue.next_due().unwrap());
    queue.activate_now(&key("a"));
    expect_test::expect![[r#"
        {event="BackoffComplete",queue="active"} 3
        {event="NodeAdd",queue="backoff"} 2
        {event="ScheduleAttemptFailure",queue="backoff"} 1
        {event="ScheduleAttemptFailure",queue="unschedulable"} 2
        {event="UnscheduledPodAdd",queue="active"} 3
        {event="UnscheduledPodAdd",queue="unschedulable"} 1"#]]
    .assert_eq(&metrics.shown("queue_incoming_pods_total"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_backs_off_after_a_rejection_is_popped_when_no_pod_is_active() {
    let metrics = QueueMetrics::default();
    let (mut queue, now) = (queue().measured(metrics.clone()), Instant::now());
    for (name, priority) in [("low", 0), ("high", 5), ("broken", 9)] {
        queue.add(pod(&json!({"name": name, "priority": priority})), 0, now);
    }
    while queue.pop().is_some() {}
    // The window of the backoffs is the same, and the more important pod is not the first to come back.
    reject(&mut queue, "low", "NodeResourcesFit", now);
    reject(&mut queue, "high", "NodeResourcesFit", now + Duration::from_millis(10));
    queue.failed(&key("broken"), now);
    queue.event(&event(None, Some(json!({"name": "n"}))).unwrap(), now + Duration::from_millis(20));
    assert_eq!(queue.pending(), Pending { backoff: 3, ..Pending::default() });
    queue.add(pod(&json!({"name": "new"})), 0, now);
    let order: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|p| p.key.name).collect();
    assert_eq!(order, ["new", "high", "low"]);
    assert_eq!(queue.pending(), Pending { backoff: 1, ..Pending::default() });
    let shown = metrics.shown("queue_incoming_pods_total");
    assert!(shown.contains("{event=\"PopFromBackoffQ\",queue=\"active\"} 2"), "{shown}");
    // One that failed waits for its time.
    queue.flush_due(now + Duration::from_secs(1));
    assert_eq!(queue.pop().unwrap().key, key("broken"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_back_ranks_behind_those_that_came_before() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add(pod(&json!({"name": "a"})), 0, now);
    queue.pop().unwrap();
    queue.add(pod(&json!({"name": "b"})), 0, now);
    reject(&mut queue, "a", "NodeResourcesFit", now);
    queue.activate_now(&key("a"));
    queue.add(pod(&json!({"name": "c"})), 0, now);
    let order: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|p| p.key.name).collect();
    assert_eq!(order, ["b", "a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn pods_count_for_the_plugins_that_reject_them_until_they_are_tried_again_or_gone() {
    let metrics = QueueMetrics::default();
    let (mut queue, now) = (queue().measured(metrics.clone()), Instant::now());
    let numbers = || -> Vec<i64> {
        let shown = metrics.shown("unschedulable_pods{");
        shown.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    };
    queue.add(pod(&json!({"name": "gated", "spec": {"schedulingGates": [{"name": "g"}]}})), 0, now);
    for name in ["a", "b"] {
        queue.add(pod(&json!({"name": name})), 0, now);
    }
    while queue.pop().is_some() {}
    for name in ["a", "b"] {
        queue.rejected(&key(name), ["NodeResourcesFit"].into(), ["VolumeBinding"].into(), now);
    }
    expect_test::expect![[r#"
        plugin="NodeResourcesFit",profile="default-scheduler"} 2
        plugin="SchedulingGates",profile="default-scheduler"} 1
        plugin="VolumeBinding",profile="default-scheduler"} 2"#]]
    .assert_eq(&metrics.shown("unschedulable_pods{"));
    queue.activate_now(&key("a"));
    assert_eq!(numbers(), [2, 1, 2], "it was not tried yet");
    assert_eq!(queue.pop().unwrap().key, key("a"));
    assert_eq!(numbers(), [1, 1, 1]);
    queue.remove(&key("b"));
    queue.add(pod(&json!({"name": "gated"})), 0, now);
    queue.pop().unwrap();
    assert_eq!(numbers(), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn events_in_flight_are_counted_by_name() {
    let (mut queue, now) = (queue(), Instant::now());
    let counts = |queue: &SchedulingQueue| -> Vec<String> {
        queue.in_flight().iter().map(|(event, count)| format!("{event} {count}")).collect()
    };
    queue.add(pod(&json!({"name": "a"})), 0, now);
    queue.pop().unwrap();
    (0..2).for_each(|_| queue.event(&event(None, Some(json!({"name": "n"}))).unwrap(), now));
    assert_eq!(counts(&queue), ["NodeAdd 2", "PodPopped 1"]);
    queue.failed(&key("a"), now);
    assert_eq!(counts(&queue), ["NodeAdd 0", "PodPopped 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_put_back_has_made_no_attempt() {
    let (mut queue, now) = (queue(), Instant::now());
    queue.add(pod(&json!({"name": "a"})), 0, now);
    queue.pop().unwrap();
    queue.put_back(&key("a"), "DefaultPreemption", now);
    assert!(queue.is_rejected_by(&key("a"), "DefaultPreemption"));
    queue.event(&event(None, Some(json!({"name": "n"}))).unwrap(), now);
    assert!(queue.pop().is_none());
    queue.activate_now(&key("a"));
    let popped = queue.pop().unwrap();
    assert_eq!((popped.attempts, popped.flushed), (1, false));
    reject(&mut queue, "a", "NodeResourcesFit", now);
    queue.flush_due(now + FLUSH);
    assert!(queue.pop().unwrap().flushed);
}
