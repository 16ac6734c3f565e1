//! Tests of what is measured of volumes and claims.

use super::{
    tests::{World, binder, bound_to, claim, volume},
    *,
};
use crate::testing::{now, observed, sample, text};
use expect_test::expect;
use jiff::SignedDuration;
use kaji_meta::random::SeededRandom;
use serde_json::{Value, json};

/// What is observed of a key some seconds later.
fn later(binder: &Binder, world: &World, key: &Key, seconds: i64) -> String {
    let random = SeededRandom::new(1);
    let cx = Cx { now: now() + SignedDuration::from_secs(seconds), random: &random, failures: &[] };
    observed(&binder.reconcile(&world.view(), key, &cx))
}

fn class(name: &str, provisioner: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": provisioner})
}

#[test]
fn volumes_and_claims_are_counted() {
    let bound = json!({"status": {"phase": "Bound"}, "spec": {"storageClassName": "fast"}});
    let attributes = json!({"spec": {"volumeAttributesClassName": "gold"}});
    let world = World::of(
        [claim("a", bound.clone()), claim("b", bound.clone()), claim("c", attributes)],
        [
            volume("a", bound),
            volume("b", json!({"spec": {"hostPath": {"path": "/x"}, "volumeMode": "Block"}})),
            volume("c", json!({"spec": {"nfs": {"server": "s", "path": "/x"}}})),
        ],
    );
    let samples = metrics::gauges(&world.view().get(), &world.view().get());
    expect![[r#"
        total_pv_count "N/A" "Filesystem" = 1
        total_pv_count "kubernetes.io/host-path" "Block" = 1
        total_pv_count "kubernetes.io/nfs" "Filesystem" = 1
        unbound_pv_count "" = 2
        bound_pv_count "fast" = 1
        unbound_pvc_count "ns" "" "gold" = 1
        bound_pvc_count "ns" "fast" "" = 2
    "#]]
    .assert_eq(&samples.iter().map(|s| sample(s).replace("pv_collector_", "") + "\n").collect::<String>());
}

#[test]
fn the_making_of_volumes_is_measured_until_they_are_bound() {
    let (binder, key) = (binder(), Key::new("ns", "c"));
    let of_class = json!({"spec": {"storageClassName": "fast"}});
    let mut world = World::of([claim("c", of_class.clone())], []);
    world.classes = vec![class("fast", "example.com/disk")];
    let asked = later(&binder, &world, &key, 0);
    let again = later(&binder, &world, &key, 3);
    let made = json!({"spec": {"storageClassName": "fast", "claimRef": bound_to("c")}});
    let mut world = World::of([claim("c", of_class)], [volume("v", made)]);
    let bound = later(&binder, &world, &key, 5);
    // A claim that has its volume is not waited for.
    world = World::of([claim("c", json!({"spec": {"volumeName": "v"}}))], []);
    let named = later(&binder, &world, &key, 6);
    world = World::of([claim("c", json!({}))], [volume("v", json!({}))]);
    let plain = later(&binder, &world, &key, 7);
    expect![[r#"
        failed: volume_operation_errors_total "example.com/disk" "provision" = 1
        .
        failed: volume_operation_errors_total "example.com/disk" "provision" = 1
        .
        succeeded: volume_operation_total_seconds "example.com/disk" "provision" = 5
        failed: volume_operation_errors_total "example.com/disk" "provision" = 1
        .
        .
    "#]]
    .assert_eq(&[asked, again, bound, named, plain].join(".\n"));
}

#[test]
fn the_deletion_of_volumes_is_measured() {
    let binder = binder();
    let released = |provisioner: &str| {
        json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": provisioner}},
            "spec": {"storageClassName": "fast", "persistentVolumeReclaimPolicy": "Delete", "claimRef": bound_to("c")},
            "status": {"phase": "Released"}})
    };
    let volumes = [volume("v", released("example.com/disk")), volume("w", released("kubernetes.io/gone"))];
    let mut world = World::of([], volumes);
    world.classes = vec![class("fast", "example.com/disk")];
    let all =
        [("v", &world, 0), ("w", &world, 0), ("v", &World::of([], []), 4), ("v", &World::of([], []), 5)]
            .map(|(name, world, seconds)| later(&binder, world, &Key::new("", name), seconds));
    expect![[r#"
        .
        decided: volume_operation_errors_total "N/A" "delete" = 1
        .
        decided: volume_operation_total_seconds "example.com/disk" "delete" = 4
        .
    "#]]
    .assert_eq(&all.join(".\n"));
}

#[test]
fn classes_that_claims_are_given_are_counted() {
    let mut world = World::of([claim("c", json!({"spec": {"storageClassName": null}}))], []);
    world.classes = vec![class("fast", "example.com/disk")];
    expect![[r#"
        succeeded: retroactive_storageclass_total = 1
        failed: retroactive_storageclass_total = 1
        failed: retroactive_storageclass_errors_total = 1
    "#]]
    .assert_eq(&later(&binder(), &world, &Key::new("ns", "c"), 0));
}

#[test]
fn provisioners_are_not_asked_where_a_flag_forbids_it() {
    let mut world = World::of([claim("c", json!({"spec": {"storageClassName": "fast"}}))], []);
    world.classes = vec![class("fast", "example.com/disk")];
    let plan = |binder: &Binder| text(&crate::testing::reconcile(binder, &world.view(), "ns", "c", &[]));
    assert!(plan(&binder()).contains("storage-provisioner"));
    let binder = Binder { provisions: false, ..binder() };
    assert_eq!(plan(&binder), "again after 300s\n");
}
