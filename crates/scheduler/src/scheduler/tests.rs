//! Pods that are not bound yet: as victims, deleted, nominated, or not bound at all.

use super::group::tests::{World, nodes};
use crate::{
    framework::Status,
    schedule_one::Decision,
    testing::{answering, pod},
};
use kaji_meta::ManualClock;
use kaji_runtime::objects::Pod;
use std::sync::Arc;

/// A pod changes.
fn change(world: &World, pod: &Arc<Pod>, change: impl FnOnce(&mut Pod)) -> Arc<Pod> {
    let mut new = Pod::clone(pod);
    change(&mut new);
    let new = Arc::new(new);
    world.changes.pod(pod.metadata.key(), (Some(pod.clone()), Some(new.clone())));
    new
}

#[tokio::test]
async fn a_victim_that_is_not_bound_yet_is_not_deleted() {
    for (binds, expected) in [(false, "low=a high=(a)"), (true, "low=a high=(a)!")] {
        let mut world = World::new(&nodes(&["a"]), &[]);
        world.add("low", "", 3, 0, "");
        assert_eq!(world.run().await, "low=a");
        let hold = world.scheduler.bindings["low"].clone();
        if binds {
            hold.begin_to_bind().unwrap();
        }
        world.add("high", "", 3, 5, "");
        assert_eq!(world.run().await, expected);
        assert_eq!(hold.begin_to_bind().is_ok(), binds);
    }
}

#[tokio::test]
async fn what_a_pod_takes_that_is_deleted_while_it_is_bound_is_free() {
    let mut world = World::new(&nodes(&["a"]), &[]);
    let first = world.add("first", "", 3, 0, "");
    assert_eq!(world.run().await, "first=a");
    world.add("second", "", 3, 0, "");
    assert_eq!(world.run().await, "first=a second=-");
    change(&world, &first, |pod| pod.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(world.run().await, "first=- second=a");
    world.scheduler.bindings["first"].begin_to_bind().unwrap_err();
}

#[tokio::test]
async fn room_that_is_not_kept_any_more_is_given_to_others() {
    let mut world = World::new(&nodes(&["a"]), &[]);
    world.add("running", "", 2, 9, "a");
    let kept = world.add("kept", "", 3, 5, "");
    let kept = change(&world, &kept, |pod| pod.status.nominated_node_name = "a".into());
    // Its victims are being deleted.
    world.scheduler.preempting.insert("kept".to_owned());
    world.add("waiting", "", 2, 0, "");
    assert_eq!(world.run().await, "running=a kept=(a)! waiting=-");
    change(&world, &kept, |pod| pod.status.nominated_node_name = "".into());
    assert_eq!(world.run().await, "running=a kept=-! waiting=a");
}

#[tokio::test]
async fn a_nomination_ends_with_the_last_node() {
    let mut world = World::new(&nodes(&["a"]), &[]);
    let low = world.add("low", "", 3, 0, "a");
    world.add("high", "", 3, 5, "");
    assert_eq!(world.run().await, "low=a high=(a)!");
    world.scheduler.preempting.clear();
    let gone = crate::testing::node(&serde_json::json!({"name": "a"}));
    world.changes.node(gone.metadata.key(), (Some(gone), None));
    world.changes.pod(low.metadata.key(), (Some(low), None));
    assert_eq!(world.run().await, "low=- high=-");
}

/// What becomes of a pod when a plugin answers so at a point: the status with which its attempt ends.
async fn ended_by(point: &'static str, status: Status) -> String {
    let mut world = World::new(&nodes(&["a"]), &[]);
    world.scheduler.update(&world.changes);
    world.scheduler.profiles = Arc::new(vec![answering::profile(point, status)]);
    // It has its node's name in its status already: nothing is written before it is bound.
    let pod = pod(&serde_json::json!({"name": "p", "status": {"nominatedNodeName": "a"}}));
    let now = world.scheduler.now();
    world.scheduler.queue.add(pod, 0, now);
    let popped = world.scheduler.queue.pop().unwrap();
    let profiles = world.scheduler.profiles.clone();
    let Decision::Bind(chosen) = world.scheduler.decide(&profiles[0], &popped).await else {
        panic!("{point}")
    };
    let assumed = world.scheduler.assume(&profiles[0], &popped, &chosen.node, chosen.state);
    let ended = match assumed {
        Err(status) => status,
        Ok((state, waits)) => {
            let mut cycle = world.scheduler.binding_cycle(&popped, chosen.node, state, waits);
            cycle.run(&profiles[0], &ManualClock::new(jiff::Timestamp::UNIX_EPOCH)).await.unwrap_err()
        }
    };
    format!("{point}: {:?} {ended} by {:?}", ended.code, ended.plugin)
}

#[tokio::test]
async fn the_texts_of_failures_and_rejections_are_those_of_upstream() {
    let mut lines = vec![];
    for point in ["Reserve", "Permit", "WaitOnPermit", "PreBind", "Bind"] {
        lines.push(ended_by(point, Status::error("no answer")).await);
        lines.push(ended_by(point, Status::unschedulable("no")).await);
    }
    lines.push(ended_by("Timeout", Status::error("unused")).await);
    expect_test::expect![[r#"
        Reserve: Error running Reserve plugin "Answering": no answer by "Answering"
        Reserve: Unschedulable 0/1 nodes are available: 1 no. by "Answering"
        Permit: Error running Permit plugin "Answering": no answer by "Answering"
        Permit: Unschedulable 0/1 nodes are available: 1 no. by "Answering"
        WaitOnPermit: Error waiting on permit for pod: no answer by "Answering"
        WaitOnPermit: Unschedulable 0/1 nodes are available: 1 no. by "Answering"
        PreBind: Error running PreBind plugin "Answering": no answer by ""
        PreBind: Unschedulable no by ""
        Bind: Error running Bind plugin "Answering": no answer by ""
        Bind: Unschedulable no by ""
        Timeout: Unschedulable 0/1 nodes are available: 1 rejected due to timeout after waiting 0s at plugin Answering. by "Answering""#]]
    .assert_eq(&lines.join("\n"));
}
