//! Attaching and detaching, as text.

use super::*;
use crate::testing::{ago, now, object, observed, sample, snapshot, text};
use expect_test::expect;
use kaji_meta::random::SeededRandom;

const DRIVER: &str = "csi.example.com";

struct World {
    nodes: Vec<Value>,
    pods: Vec<Value>,
    attachments: Vec<Value>,
    mode: &'static str,
    driver: Value,
}

fn node(name: &str, ready: &str, in_use: bool, attached: bool) -> Value {
    let unique = format!("kubernetes.io/csi/{DRIVER}^h1");
    json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "3", "annotations": {MANAGED: "true"}},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "volumesInUse": if in_use { json!([unique]) } else { json!([]) },
            "volumesAttached": if attached { json!([{"name": unique, "devicePath": ""}]) } else { json!([]) },
        },
    })
}

fn pod(name: &str, node: &str, phase: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        "status": {"phase": phase}})
}

fn attachment(node: &str, status: Value) -> Value {
    let csi = CsiSource { driver: DRIVER.into(), volume_handle: "h1".into() };
    json!({"metadata": {"name": attachment_name(&csi, node), "uid": format!("va-{node}")},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": "pv"}}, "status": status})
}

impl World {
    fn of(nodes: Vec<Value>, pods: Vec<Value>, attachments: Vec<Value>) -> World {
        World { nodes, pods, attachments, mode: "ReadWriteOnce", driver: json!({}) }
    }

    fn view(&self) -> View {
        let claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "c1"}, "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"}});
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"accessModes": [self.mode],
            "claimRef": {"namespace": "ns", "name": "c", "uid": "c1"}, "csi": {"driver": DRIVER, "volumeHandle": "h1"}}});
        let driver = json!({"metadata": {"name": DRIVER}, "spec": self.driver});
        View::default()
            .with(snapshot::<Node>(self.nodes.clone()))
            .with(snapshot::<Pod>(self.pods.clone()))
            .with(snapshot::<PersistentVolumeClaim>([claim]))
            .with(snapshot::<PersistentVolume>([volume]))
            .with(snapshot::<CsiDriver>([driver]))
            .with(snapshot::<VolumeAttachment>(self.attachments.clone()))
    }

    fn decide(&self, controller: &AttachDetach, node: &str, at: Timestamp) -> Plan {
        let random = SeededRandom::new(1);
        let cx = Cx { now: at, random: &random, failures: &[] };
        controller.reconcile(&self.view(), &node_key(node), &cx)
    }

    fn plan_at(&self, controller: &AttachDetach, node: &str, at: Timestamp) -> String {
        text(&self.decide(controller, node, at))
    }

    fn plan(&self, node: &str) -> String {
        self.plan_at(&attach_detach(), node, now())
    }
}

fn attach_detach() -> AttachDetach {
    AttachDetach { requests: Requests::default(), force_on_timeout: true }
}

#[test]
fn attaches_the_volumes_of_pods() {
    let ready = || vec![node("n", "True", false, false)];
    let running = || vec![pod("p", "n", "Running")];
    let mut unmanaged = ready();
    unmanaged[0]["metadata"]["annotations"] = json!({});
    let all = [
        World::of(ready(), running(), vec![]).plan("n"),
        World::of(ready(), running(), vec![attachment("n", json!({"attached": false}))]).plan("n"),
        World::of(ready(), running(), vec![attachment("n", json!({"attachError": {"message": "no disk"}}))])
            .plan("n"),
        World::of(ready(), running(), vec![attachment("n", json!({"attached": true}))]).plan("n"),
        World { driver: json!({"attachRequired": false}), ..World::of(ready(), running(), vec![]) }.plan("n"),
        World::of(unmanaged, running(), vec![]).plan("n"),
        World::of(ready(), vec![pod("p", "n", "Succeeded")], vec![]).plan("n"),
    ];
    expect![[r#"
        create /apis/storage.k8s.io/v1/volumeattachments {"apiVersion":"storage.k8s.io/v1","kind":"VolumeAttachment","metadata":{"name":"csi-d698e2f756b73b0cc0e45b075c30045cc735daf35a64668c0eee96f73f820091"},"spec":{"attacher":"csi.example.com","nodeName":"n","source":{"persistentVolumeName":"pv"}}}
        .
        .
        event: Warning FailedAttachVolume: AttachVolume.Attach failed for volume "pv" : no disk
        .
        merge /api/v1/nodes/n/status {"metadata":{"uid":"n"},"status":{"volumesAttached":[{"devicePath":"","name":"kubernetes.io/csi/csi.example.com^h1"}]}}
        event: Normal SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume "pv" 
        .
        .
        .
    "#]].assert_eq(&all.join(".\n"));
}

#[test]
fn attaches_to_one_node_at_a_time() {
    let nodes = || vec![node("n", "True", false, false), node("m", "True", true, true)];
    let pods = || vec![pod("p", "n", "Pending"), pod("q", "m", "Running")];
    let on_another = || vec![attachment("m", json!({"attached": true}))];
    let all = [
        World::of(nodes(), pods(), on_another()).plan("n"),
        World::of(nodes(), vec![pod("p", "n", "Pending")], on_another()).plan("n"),
        World { mode: "ReadWriteMany", ..World::of(nodes(), pods(), on_another()) }.plan("n"),
    ];
    expect![[r#"
        event: Warning FailedAttachVolume: Multi-Attach error for volume "pv" Volume is already used by pod(s) q
        .
        event: Warning FailedAttachVolume: Multi-Attach error for volume "pv" Volume is already exclusively attached to one node and can't be attached to another
        .
        create /apis/storage.k8s.io/v1/volumeattachments {"apiVersion":"storage.k8s.io/v1","kind":"VolumeAttachment","metadata":{"name":"csi-d698e2f756b73b0cc0e45b075c30045cc735daf35a64668c0eee96f73f820091"},"spec":{"attacher":"csi.example.com","nodeName":"n","source":{"persistentVolumeName":"pv"}}}
    "#]].assert_eq(&all.join(".\n"));
}

#[test]
fn detaches_what_the_kubelet_does_not_use() {
    let attached = || vec![attachment("n", json!({"attached": true}))];
    let plan = |ready: &str, in_use: bool, taint: bool| {
        let mut node = node("n", ready, in_use, true);
        if taint {
            node["spec"] =
                json!({"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]});
        }
        World::of(vec![node], vec![], attached()).plan("n")
    };
    let all = [
        plan("True", false, false),
        plan("True", true, false),
        plan("Unknown", true, false),
        plan("Unknown", true, true),
    ];
    expect![[r#"
        merge /api/v1/nodes/n/status {"metadata":{"resourceVersion":"3","uid":"n"},"status":{"volumesAttached":null}}
        --
        delete /apis/storage.k8s.io/v1/volumeattachments/csi-d698e2f756b73b0cc0e45b075c30045cc735daf35a64668c0eee96f73f820091 {"preconditions":{"uid":"va-n"}}
        .
        .
        again after 360s
        .
        merge /api/v1/nodes/n/status {"metadata":{"uid":"n"},"status":{"volumesAttached":null}}
        --
        delete /apis/storage.k8s.io/v1/volumeattachments/csi-d698e2f756b73b0cc0e45b075c30045cc735daf35a64668c0eee96f73f820091 {"preconditions":{"uid":"va-n"}}
    "#]].assert_eq(&all.join(".\n"));
}

#[test]
fn detaches_by_force_after_six_minutes_of_an_unhealthy_node() {
    let attached = || vec![attachment("n", json!({"attached": true}))];
    let controller = attach_detach();
    let sick = World::of(vec![node("n", "Unknown", true, true)], vec![], attached());
    let minutes = |n: i64| now() + SignedMinutes::from_mins(n);
    assert_eq!(sick.plan_at(&controller, "n", minutes(0)), "again after 360s\n");
    assert_eq!(sick.plan_at(&controller, "n", minutes(5)), "again after 60s\n");
    assert!(
        sick.plan_at(&controller, "n", minutes(6))
            .contains("delete /apis/storage.k8s.io/v1/volumeattachments/")
    );
    // A node that has come back is waited for.
    let well = World::of(vec![node("n", "True", true, true)], vec![], attached());
    assert_eq!(well.plan_at(&controller, "n", minutes(7)), "");
    // A pod that needs the volume again ends the wait.
    let used = World::of(vec![node("n", "Unknown", true, true)], vec![pod("p", "n", "Running")], attached());
    assert_eq!(used.plan_at(&controller, "n", minutes(8)), "");
    assert_eq!(sick.plan_at(&controller, "n", minutes(9)), "again after 360s\n");
}

use jiff::SignedDuration as SignedMinutes;

#[test]
fn does_not_detach_by_force_where_a_flag_forbids_it() {
    let attached = || vec![attachment("n", json!({"attached": true}))];
    let controller = AttachDetach { force_on_timeout: false, ..attach_detach() };
    let mut sick = World::of(vec![node("n", "Unknown", true, true)], vec![], attached());
    let minutes = |n: i64| now() + SignedMinutes::from_mins(n);
    assert_eq!(sick.plan_at(&controller, "n", minutes(0)), "");
    assert_eq!(sick.plan_at(&controller, "n", minutes(60)), "");
    sick.nodes[0]["spec"] =
        json!({"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]});
    let plan = sick.plan_at(&controller, "n", minutes(61));
    assert!(plan.contains("delete /apis/storage.k8s.io/v1/volumeattachments/"), "{plan}");
}

#[test]
fn forced_detachments_are_counted() {
    let attached = || vec![attachment("n", json!({"attached": true}))];
    let controller = attach_detach();
    let sick = World::of(vec![node("n", "Unknown", true, true)], vec![], attached());
    let mut taken_out = World::of(vec![node("n", "True", true, true)], vec![], attached());
    taken_out.nodes[0]["spec"] =
        json!({"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]});
    let safe = World::of(vec![node("n", "True", false, true)], vec![], attached());
    let all = [
        observed(&sick.decide(&controller, "n", now())),
        observed(&sick.decide(&controller, "n", now() + SignedMinutes::from_mins(6))),
        observed(&taken_out.decide(&controller, "n", now())),
        observed(&safe.decide(&controller, "n", now())),
    ];
    expect![[r#"
        .
        written /apis/storage.k8s.io/v1/volumeattachments/csi-d698e2f756b73b0cc0e45b075c30045cc735daf35a64668c0eee96f73f820091: attach_detach_controller_attachdetach_controller_forced_detaches "timeout" = 1
        .
        written /apis/storage.k8s.io/v1/volumeattachments/csi-d698e2f756b73b0cc0e45b075c30045cc735daf35a64668c0eee96f73f820091: attach_detach_controller_attachdetach_controller_forced_detaches "out-of-service" = 1
        .
    "#]]
    .assert_eq(&all.join(".\n"));
}

#[test]
fn volumes_are_counted_by_node_and_by_state() {
    let pods = vec![pod("p", "n", "Running"), pod("over", "n", "Succeeded"), pod("q", "m", "Running")];
    // One node is not there; on another, attaching has failed.
    let attachments = vec![
        attachment("n", json!({"attached": true})),
        attachment("m", json!({"attachError": {"message": "no"}})),
        attachment("gone", json!({"attached": true})),
        attachment("new", json!({})),
    ];
    let nodes = vec![node("n", "True", false, false), node("m", "True", false, false)];
    let world = World::of(nodes, pods, attachments);
    let samples = metrics::gauges(&world.view());
    expect![[r#"
        storage_count_attachable_volumes_in_use "m" "kubernetes.io/csi:csi.example.com" = 1
        storage_count_attachable_volumes_in_use "n" "kubernetes.io/csi:csi.example.com" = 2
        attachdetach_controller_total_volumes "kubernetes.io/csi:csi.example.com" "actual_state_of_world" = 3
        attachdetach_controller_total_volumes "kubernetes.io/csi:csi.example.com" "desired_state_of_world" = 2
    "#]]
    .assert_eq(&samples.iter().map(|s| sample(s) + "\n").collect::<String>());
}

#[test]
fn leaves_the_attachments_of_others_alone() {
    let mut foreign = attachment("n", json!({"attached": true}));
    foreign["metadata"]["name"] = "by-hand".into();
    let world = World::of(vec![node("n", "True", false, false)], vec![], vec![foreign]);
    assert_eq!(world.plan("n"), "");
    let mut deleted = attachment("n", json!({"attached": true}));
    deleted["metadata"]["deletionTimestamp"] = ago(1).into();
    let world =
        World::of(vec![node("n", "True", false, false)], vec![pod("p", "n", "Running")], vec![deleted]);
    assert_eq!(world.plan("n"), "", "it is attached again once the former attachment is gone");
}

#[test]
fn changes_name_the_nodes_that_they_concern() {
    let world = World::of(vec![], vec![pod("p", "n", "Running"), pod("q", "m", "Running")], vec![]);
    let change =
        Change { old: None, new: Some(Arc::new(object::<VolumeAttachment>(attachment("o", json!({}))))) };
    assert_eq!(keys_of_attachment(&change, &world.view()), [node_key("o"), node_key("n"), node_key("m")]);
    let pod = |phase: &str| Some(Arc::new(object::<Pod>(pod("p", "n", phase))));
    assert!(keys_of_pod(&Change { old: pod("Pending"), new: pod("Running") }, &world.view()).is_empty());
    assert!(!keys_of_pod(&Change { old: pod("Running"), new: pod("Failed") }, &world.view()).is_empty());
}
