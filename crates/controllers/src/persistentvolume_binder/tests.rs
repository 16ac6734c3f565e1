//! Decisions about claims and volumes as text, and the laws of binding on a small API in memory.

use super::*;
use crate::testing::{now, object, reconcile, snapshot, text};
use expect_test::expect;
use kaji_meta::{Status, random::SeededRandom};
use kaji_runtime::{Error, Failure, PatchKind, Write};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut into[key], value);
        }
    }
}

pub(super) fn claim(name: &str, more: Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "5"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": ""},
        "status": {"phase": "Pending"},
    });
    merge(&mut claim, &more);
    claim
}

pub(super) fn volume(name: &str, more: Value) -> Value {
    let mut volume = json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "6"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain"},
        "status": {"phase": "Available"},
    });
    merge(&mut volume, &more);
    volume
}

pub(super) fn bound_to(name: &str) -> Value {
    json!({"namespace": "ns", "name": name, "uid": format!("uid-{name}")})
}

pub(super) fn binder() -> Binder {
    Binder { provisions: true, operations: Operations::default() }
}

/// An API of claims and volumes.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct World {
    claims: BTreeMap<String, Value>,
    volumes: BTreeMap<String, Value>,
    pub(super) classes: Vec<Value>,
    pods: Vec<Value>,
    revision: u64,
}

impl World {
    pub(super) fn of(
        claims: impl IntoIterator<Item = Value>,
        volumes: impl IntoIterator<Item = Value>,
    ) -> World {
        let by_name = |v: Value| (v["metadata"]["name"].as_str().unwrap().to_owned(), v);
        World {
            claims: claims.into_iter().map(by_name).collect(),
            volumes: volumes.into_iter().map(by_name).collect(),
            revision: 100,
            ..World::default()
        }
    }

    pub(super) fn view(&self) -> View {
        View::default()
            .with(snapshot::<PersistentVolumeClaim>(self.claims.values().cloned()))
            .with(snapshot::<PersistentVolume>(self.volumes.values().cloned()))
            .with(snapshot::<StorageClass>(self.classes.iter().cloned()))
            .with(snapshot::<Pod>(self.pods.iter().cloned()))
    }

    fn plan(&self, namespace: &str, name: &str) -> String {
        text(&reconcile(&binder(), &self.view(), namespace, name, &[]))
    }

    /// Carries out a write as the API server would; how it failed, if it did.
    fn apply(&mut self, write: &Write) -> Option<Failure> {
        let Write::Patch { target, kind: PatchKind::Merge, body } = write else { panic!("{write:?}") };
        let objects =
            if target.resource == "persistentvolumes" { &mut self.volumes } else { &mut self.claims };
        let fails = |code: u16| {
            let status = Status { code, ..Status::internal("refused") };
            Some(Failure { target: target.clone(), error: Error::Api(Box::new(status)) })
        };
        let Some(found) = objects.get_mut(&target.name) else { return fails(404) };
        for field in ["uid", "resourceVersion"] {
            let wanted = &body["metadata"][field];
            if !wanted.is_null() && *wanted != found["metadata"][field] {
                return fails(409);
            }
        }
        let (mut new, mut patch) = (found.clone(), body.clone());
        if target.subresource.is_empty() {
            patch.as_object_mut().unwrap().remove("status");
        } else {
            patch = json!({"status": body["status"]});
        }
        merge(&mut new, &patch);
        if new != *found {
            self.revision += 1;
            new["metadata"]["resourceVersion"] = self.revision.to_string().into();
            *found = new;
        }
        None
    }

    fn keys(&self) -> Vec<Key> {
        let claims = self.claims.keys().map(|name| Key::new("ns", name.as_str()));
        claims.chain(self.volumes.keys().map(|name| Key::new("", name.as_str()))).collect()
    }

    /// Reconciles a key as seen in `seen`, and carries out at most `most` of the writes.
    fn step(&mut self, seen: &World, key: &Key, failures: &[Failure], most: usize) -> Vec<Failure> {
        let random = SeededRandom::new(1);
        let cx = Cx { now: now(), random: &random, failures };
        let plan = binder().reconcile(&seen.view(), key, &cx);
        let mut left = most;
        for stage in &plan.stages {
            let mut failed = vec![];
            for step in &stage.steps {
                if left == 0 {
                    return vec![];
                }
                left -= 1;
                failed.extend(self.apply(&step.write));
                self.check();
            }
            if !failed.is_empty() {
                return failed;
            }
        }
        vec![]
    }

    /// Until nothing changes any more.
    fn settle(&mut self) {
        for _ in 0..50 {
            let before = self.clone();
            for key in self.keys() {
                let seen = self.clone();
                let failures = self.step(&seen, &key, &[], usize::MAX);
                if !failures.is_empty() {
                    let seen = self.clone();
                    self.step(&seen, &key, &failures, usize::MAX);
                }
            }
            if before == *self {
                return;
            }
        }
        panic!("the binder does not come to rest: {self:#?}");
    }

    /// No volume has two claims.
    fn check(&self) {
        for (name, volume) in &self.volumes {
            let owner = &volume["spec"]["claimRef"]["uid"];
            for claim in self.claims.values() {
                let complete =
                    claim["metadata"]["annotations"].get("pv.kubernetes.io/bind-completed").is_some();
                if complete && claim["spec"]["volumeName"] == name.as_str() {
                    assert_eq!(*owner, claim["metadata"]["uid"], "{self:#?}");
                }
            }
        }
    }

    /// Without revisions.
    fn shape(&self) -> String {
        let mut world = self.clone();
        world.revision = 0;
        for object in world.claims.values_mut().chain(world.volumes.values_mut()) {
            object["metadata"]["resourceVersion"] = Value::Null;
            if let Some(reference) = object["spec"].get_mut("claimRef") {
                reference["resourceVersion"] = Value::Null;
            }
        }
        serde_json::to_string_pretty(&json!([world.claims, world.volumes])).unwrap()
    }
}

#[test]
fn binds_the_smallest_volume_with_the_fewest_access_modes() {
    let volumes = [
        volume("small", json!({"spec": {"capacity": {"storage": "500Mi"}}})),
        volume("fits", json!({"spec": {"capacity": {"storage": "2Gi"}}})),
        volume("big", json!({"spec": {"capacity": {"storage": "9Gi"}}})),
        volume("many", json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}})),
        volume("block", json!({"spec": {"volumeMode": "Block"}})),
        volume("class", json!({"spec": {"storageClassName": "other"}})),
        volume("taken", json!({"spec": {"claimRef": bound_to("another")}})),
        volume("pending", json!({"status": {"phase": "Pending"}})),
    ];
    let world = World::of([claim("c", json!({}))], volumes);
    expect![[r#"
        merge /api/v1/persistentvolumes/fits {"metadata":{"annotations":{"pv.kubernetes.io/bound-by-controller":"yes"},"resourceVersion":"6","uid":"uid-fits"},"spec":{"claimRef":{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"c","namespace":"ns","resourceVersion":"5","uid":"uid-c"}}}
        --
        merge /api/v1/persistentvolumes/fits/status {"metadata":{"uid":"uid-fits"},"status":{"message":null,"phase":"Bound"}}
        merge /api/v1/namespaces/ns/persistentvolumeclaims/c {"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes","pv.kubernetes.io/bound-by-controller":"yes"},"resourceVersion":"5","uid":"uid-c"},"spec":{"volumeName":"fits"}}
        --
        merge /api/v1/namespaces/ns/persistentvolumeclaims/c/status {"metadata":{"uid":"uid-c"},"status":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"2Gi"},"phase":"Bound"}}
    "#]].assert_eq(&world.plan("ns", "c"));
    let mut selecting = world.clone();
    let selector = json!({"spec": {"selector": {"matchLabels": {"disk": "ssd"}}}});
    merge(selecting.claims.get_mut("c").unwrap(), &selector);
    merge(selecting.volumes.get_mut("big").unwrap(), &json!({"metadata": {"labels": {"disk": "ssd"}}}));
    assert!(selecting.plan("ns", "c").starts_with("merge /api/v1/persistentvolumes/big "));
    let mut reserved = world;
    reserved.volumes.insert(
        "mine".into(),
        volume(
            "mine",
            json!({"spec": {"capacity": {"storage": "5Gi"}, "claimRef": {"namespace": "ns", "name": "c"}}}),
        ),
    );
    assert!(reserved.plan("ns", "c").starts_with("merge /api/v1/persistentvolumes/mine "));
}

#[test]
fn says_what_claims_wait_for() {
    let class = |name: &str, mode: &str, provisioner: &str| json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
    let of = |class: &str| json!({"spec": {"storageClassName": class}});
    let mut selected = claim("selected", of("late"));
    selected["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "n1"});
    let mut asked = claim("asked", of("now"));
    asked["metadata"]["annotations"] = json!({"volume.kubernetes.io/storage-provisioner": "csi.example.com"});
    let mut world = World::of(
        [
            claim("none", json!({})),
            claim("late", of("late")),
            claim("used", of("late")),
            selected,
            claim("now", of("now")),
            asked,
            claim("old", of("old")),
            claim("hand", of("hand")),
            claim("unknown", of("unknown")),
            claim("named", json!({"spec": {"volumeName": "nothing"}})),
        ],
        [volume("free", of("late"))],
    );
    world.classes = vec![
        class("late", "WaitForFirstConsumer", "csi.example.com"),
        class("now", "Immediate", "csi.example.com"),
        class("old", "Immediate", "kubernetes.io/gce-pd"),
        class("hand", "Immediate", "kubernetes.io/no-provisioner"),
    ];
    let pod = |name: &str| {
        json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "used"}}]}})
    };
    world.pods = vec![pod("a"), pod("b")];
    let names = ["none", "late", "used", "selected", "now", "asked", "old", "hand", "unknown", "named"];
    let all: String = names.iter().map(|name| format!("{name}:\n{}", world.plan("ns", name))).collect();
    expect![[r#"
        none:
        event: Normal FailedBinding: no persistent volumes available for this claim and no storage class is set
        again after 300s
        late:
        event: Normal WaitForFirstConsumer: waiting for first consumer to be created before binding
        again after 300s
        used:
        event: Normal WaitForPodScheduled: waiting for pods a,b to be scheduled
        again after 300s
        selected:
        merge /api/v1/namespaces/ns/persistentvolumeclaims/selected {"metadata":{"annotations":{"volume.beta.kubernetes.io/storage-provisioner":"csi.example.com","volume.kubernetes.io/storage-provisioner":"csi.example.com"},"resourceVersion":"5","uid":"uid-selected"}}
            ok: Normal ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'csi.example.com' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.
            failed: Warning ProvisioningFailed: Error saving claim: {error}
        again after 300s
        now:
        merge /api/v1/namespaces/ns/persistentvolumeclaims/now {"metadata":{"annotations":{"volume.beta.kubernetes.io/storage-provisioner":"csi.example.com","volume.kubernetes.io/storage-provisioner":"csi.example.com"},"resourceVersion":"5","uid":"uid-now"}}
            ok: Normal ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'csi.example.com' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.
            failed: Warning ProvisioningFailed: Error saving claim: {error}
        again after 300s
        asked:
        event: Normal ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'csi.example.com' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.
        again after 300s
        old:
        merge /api/v1/namespaces/ns/persistentvolumeclaims/old {"metadata":{"annotations":{"volume.beta.kubernetes.io/storage-provisioner":"pd.csi.storage.gke.io","volume.kubernetes.io/storage-provisioner":"pd.csi.storage.gke.io"},"resourceVersion":"5","uid":"uid-old"}}
            ok: Normal ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'pd.csi.storage.gke.io' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.
            failed: Warning ProvisioningFailed: Error saving claim: {error}
        again after 300s
        hand:
        event: Warning ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner
        again after 300s
        unknown:
        event: Warning ProvisioningFailed: storageclass.storage.k8s.io "unknown" not found
        again after 300s
        named:
    "#]].assert_eq(&all);
}

#[test]
fn gives_claims_without_a_class_the_default_one() {
    let mut world = World::of([claim("c", json!({"spec": {"storageClassName": null}}))], []);
    let class = |name: &str, created: &str, default: &str| {
        json!({"metadata": {"name": name, "creationTimestamp": created,
            "annotations": {"storageclass.kubernetes.io/is-default-class": default}}})
    };
    world.classes = vec![
        class("older", "2024-01-01T00:00:00Z", "true"),
        class("newer", "2024-01-02T00:00:00Z", "true"),
        class("newest", "2024-01-03T00:00:00Z", "false"),
    ];
    expect![[r#"
        merge /api/v1/namespaces/ns/persistentvolumeclaims/c {"metadata":{"resourceVersion":"5","uid":"uid-c"},"spec":{"storageClassName":"newer"}}
    "#]].assert_eq(&world.plan("ns", "c"));
}

#[test]
fn refuses_volumes_that_do_not_fit_the_claim_that_names_them() {
    let named = || claim("c", json!({"spec": {"volumeName": "v"}}));
    let plan = |more: Value| World::of([named()], [volume("v", more)]).plan("ns", "c");
    let all = [
        plan(json!({"spec": {"capacity": {"storage": "1Mi"}}})),
        plan(json!({"spec": {"storageClassName": "x"}})),
        plan(json!({"spec": {"volumeMode": "Block"}})),
        plan(json!({"spec": {"accessModes": ["ReadOnlyMany"]}})),
        plan(json!({"spec": {"claimRef": bound_to("another")}})),
    ];
    expect![[r#"
        event: Warning VolumeMismatch: Cannot bind to requested volume "v": requested PV is too small
        event: Warning VolumeMismatch: Cannot bind to requested volume "v": storageClassName does not match
        event: Warning VolumeMismatch: Cannot bind to requested volume "v": incompatible volumeMode
        event: Warning VolumeMismatch: Cannot bind to requested volume "v": incompatible accessMode
        event: Warning FailedBinding: volume "v" already bound to a different claim.
        again after 300s
    "#]]
    .assert_eq(&all.concat());
}

#[test]
fn releases_volumes_after_the_api_server_said_that_the_claim_is_gone() {
    let of = |policy: &str, phase: &str, more: Value| {
        let mut v = volume(
            "v",
            json!({
            "spec": {"persistentVolumeReclaimPolicy": policy, "claimRef": bound_to("c")}, "status": {"phase": phase}}),
        );
        merge(&mut v, &more);
        World::of([], [v])
    };
    let bound = of("Delete", "Bound", json!({}));
    let ask = bound.plan("", "v");
    let mut carried = bound.clone();
    let failures = carried.step(&bound, &Key::new("", "v"), &[], usize::MAX);
    let released = text(&reconcile(&binder(), &bound.view(), "", "v", &failures));
    let by = |provisioner: &str| json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": provisioner}}});
    let all = [
        ask,
        released,
        of("Retain", "Released", json!({})).plan("", "v"),
        of("Recycle", "Released", json!({})).plan("", "v"),
        of("Delete", "Released", json!({})).plan("", "v"),
        of("Delete", "Released", by("csi.example.com")).plan("", "v"),
        of("Delete", "Released", by("kubernetes.io/rbd")).plan("", "v"),
        of("Delete", "Released", json!({"spec": {"csi": {"driver": "d"}}})).plan("", "v"),
        of("Burn", "Released", json!({})).plan("", "v"),
    ];
    expect![[r#"
        merge /api/v1/namespaces/ns/persistentvolumeclaims/c {"metadata":{"uid":"uid-c"}}
        .
        merge /api/v1/persistentvolumes/v/status {"metadata":{"uid":"uid-v"},"status":{"message":null,"phase":"Released"}}
        .
        .
        merge /api/v1/persistentvolumes/v/status {"metadata":{"uid":"uid-v"},"status":{"message":null,"phase":"Failed"}}
            ok: Warning VolumeFailedRecycle: No recycler plugin found for the volume!
        .
        merge /api/v1/persistentvolumes/v/status {"metadata":{"uid":"uid-v"},"status":{"message":null,"phase":"Failed"}}
            ok: Warning VolumeFailedDelete: error getting deleter volume plugin for volume "v": no deletable volume plugin matched
        .
        .
        merge /api/v1/persistentvolumes/v/status {"metadata":{"uid":"uid-v"},"status":{"message":null,"phase":"Failed"}}
            ok: Warning VolumeFailedDelete: no volume plugin matched name: kubernetes.io/rbd
        .
        .
        merge /api/v1/persistentvolumes/v/status {"metadata":{"uid":"uid-v"},"status":{"message":null,"phase":"Failed"}}
            ok: Warning VolumeUnknownReclaimPolicy: Volume has unrecognized PersistentVolumeReclaimPolicy
    "#]].assert_eq(&all.join(".\n"));
}

#[test]
fn keeps_phases_and_frees_volumes_of_claims_that_have_another() {
    let bound = claim("c", json!({"spec": {"volumeName": "mine"}}));
    let reserved = json!({"spec": {"claimRef": bound_to("c")}, "status": {"phase": "Bound"}});
    let by_us = json!({"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}});
    let mut ours = volume("ours", reserved.clone());
    merge(&mut ours, &by_us);
    let mut made = volume("made", reserved.clone());
    let by_provisioner = json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "d"}},
        "spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    merge(&mut made, &by_provisioner);
    let volumes = [
        volume("free", json!({"status": {"phase": "Pending"}})),
        volume("mine", json!({"spec": {"claimRef": bound_to("c")}})),
        volume("theirs", reserved),
        ours,
        made,
    ];
    let world = World::of([bound], volumes);
    let all: String = ["free", "mine", "theirs", "ours", "made"].map(|name| world.plan("", name)).join(".\n");
    expect![[r#"
        merge /api/v1/persistentvolumes/free/status {"metadata":{"uid":"uid-free"},"status":{"message":null,"phase":"Available"}}
        .
        merge /api/v1/persistentvolumes/mine/status {"metadata":{"uid":"uid-mine"},"status":{"message":null,"phase":"Bound"}}
        .
        merge /api/v1/persistentvolumes/theirs {"metadata":{"resourceVersion":"6","uid":"uid-theirs"},"spec":{"claimRef":{"resourceVersion":null,"uid":null}}}
        --
        merge /api/v1/persistentvolumes/theirs/status {"metadata":{"uid":"uid-theirs"},"status":{"message":null,"phase":"Available"}}
        .
        merge /api/v1/persistentvolumes/ours {"metadata":{"annotations":{"pv.kubernetes.io/bound-by-controller":null},"resourceVersion":"6","uid":"uid-ours"},"spec":{"claimRef":null}}
        --
        merge /api/v1/persistentvolumes/ours/status {"metadata":{"uid":"uid-ours"},"status":{"message":null,"phase":"Available"}}
        .
        merge /api/v1/persistentvolumes/made/status {"metadata":{"uid":"uid-made"},"status":{"message":null,"phase":"Released"}}
    "#]].assert_eq(&all);
}

#[test]
fn loses_claims_of_volumes_that_are_gone() {
    let bound = claim(
        "c",
        json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}}}),
    );
    let world = World::of([bound.clone()], []);
    let mut after = world.clone();
    let failures = after.step(&world, &Key::new("ns", "c"), &[], usize::MAX);
    let lost = text(&reconcile(&binder(), &world.view(), "ns", "c", &failures));
    let misbound = World::of([bound], [volume("v", json!({"spec": {"claimRef": bound_to("another")}}))]);
    expect![[r#"
        merge /api/v1/persistentvolumes/v {}
        .
        merge /api/v1/namespaces/ns/persistentvolumeclaims/c/status {"metadata":{"uid":"uid-c"},"status":{"accessModes":null,"capacity":null,"phase":"Lost"}}
            ok: Warning ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!
        .
        merge /api/v1/namespaces/ns/persistentvolumeclaims/c/status {"metadata":{"uid":"uid-c"},"status":{"accessModes":null,"capacity":null,"phase":"Lost"}}
            ok: Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly
    "#]].assert_eq(&[world.plan("ns", "c"), lost, misbound.plan("ns", "c")].join(".\n"));
}

#[test]
fn changes_name_the_keys_that_they_concern() {
    let world = World::of(
        [claim("c", json!({})), claim("d", json!({"spec": {"volumeName": "w"}}))],
        [volume("v", json!({"spec": {"claimRef": bound_to("c")}})), volume("w", json!({}))],
    );
    let change = |name: &str| {
        let new = Some(Arc::new(object::<PersistentVolume>(world.volumes[name].clone())));
        keys_of_volume(&Change { old: None, new }, &world.view())
            .iter()
            .map(Key::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(change("v"), ["v", "ns/c"]);
    assert_eq!(change("w"), ["w", "ns/c", "ns/d"]);
    let gone = Change { old: Some(Arc::new(object(world.claims["c"].clone()))), new: None };
    assert_eq!(keys_of_claim(&gone, &world.view()), [Key::new("", "v"), Key::new("ns", "c")]);
}

/// A binding is four writes. Cut off after any of them, it ends the same.
#[test]
fn a_binding_that_was_interrupted_ends_the_same() {
    let start = World::of([claim("c", json!({}))], [volume("v", json!({})), volume("w", json!({}))]);
    let mut whole = start.clone();
    whole.settle();
    assert_eq!(whole.claims["c"]["status"]["phase"], "Bound");
    for most in 0..4 {
        let mut cut = start.clone();
        cut.step(&start, &Key::new("ns", "c"), &[], most);
        cut.settle();
        assert_eq!(cut.shape(), whole.shape(), "after {most} writes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever workers see late, and wherever they are cut off.
    #[test]
    fn no_volume_is_bound_to_two_claims(
        sizes in proptest::collection::vec(1_u8..4, 1..5),
        requests in proptest::collection::vec(1_u8..4, 1..6),
        steps in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_usize..5), 0..40),
    ) {
        let gi = |n: &u8| format!("{n}Gi");
        let claims = requests.iter().enumerate().map(|(i, size)| {
            claim(&format!("c{i}"), json!({"spec": {"resources": {"requests": {"storage": gi(size)}}}}))
        });
        let volumes = sizes.iter().enumerate().map(|(i, size)| {
            volume(&format!("v{i}"), json!({"spec": {"capacity": {"storage": gi(size)}}}))
        });
        let mut world = World::of(claims, volumes);
        let mut history = vec![world.clone()];
        for (key, seen, most) in steps {
            let key = key.get(&world.keys()).clone();
            let seen = seen.get(&history).clone();
            world.step(&seen, &key, &[], most);
            history.push(world.clone());
        }
        world.settle();
        let bound: Vec<&Value> = world.claims.values().filter(|c| c["status"]["phase"] == "Bound").collect();
        let used: std::collections::BTreeSet<&str> =
            bound.iter().map(|c| c["spec"]["volumeName"].as_str().unwrap()).collect();
        prop_assert_eq!(used.len(), bound.len());
        // Nothing that fits stays free while a claim waits for it.
        for waiting in world.claims.values().filter(|c| c["status"]["phase"] != "Bound") {
            let request: PersistentVolumeClaim = object(waiting.clone());
            for free in world.volumes.values().filter(|v| v["status"]["phase"] == "Available") {
                let free: PersistentVolume = object(free.clone());
                prop_assert!(free.storage().unwrap() < request.spec.request());
            }
        }
    }
}
