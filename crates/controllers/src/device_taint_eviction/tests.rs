//! Tests of the eviction by taints of devices: what is deleted, when, what cancels it, and what rules say of it.

use super::*;
use crate::testing::{ago, now, object, observed, snapshot, text};
use expect_test::expect;
use jiff::Timestamp;
use kaji_meta::random::SeededRandom;
use serde_json::Value;

fn slice(generation: i64, taints: Value) -> Value {
    json!({"metadata": {"name": format!("s{generation}"), "uid": "s"}, "spec": {"driver": "gpu.example.com",
        "pool": {"name": "n", "generation": generation, "resourceSliceCount": 1}, "devices": [{"name": "other"}, {"name": "d0", "taints": taints}]}})
}

fn taint(effect: &str) -> Value {
    json!({"key": "sick", "value": "yes", "effect": effect, "timeAdded": ago(60)})
}

fn claim(tolerations: &Value) -> Value {
    let result = json!({"request": "r", "driver": "gpu.example.com", "pool": "n", "device": "d0", "tolerations": tolerations});
    json!({"metadata": {"name": "c", "namespace": "ns", "uid": "c"}, "status": {
        "allocation": {"devices": {"results": [result]}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}})
}

fn pod() -> Value {
    json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 2},
        "spec": {"nodeName": "n", "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}})
}

fn rule(effect: &str, selector: &Value, conditions: Value) -> Value {
    json!({"metadata": {"name": "r", "uid": "rule", "generation": 3}, "spec": {"deviceSelector": selector, "taint": taint(effect)},
        "status": {"conditions": conditions}})
}

/// What there is; members that a test does not give are empty.
#[derive(Default)]
struct World {
    slices: Vec<Value>,
    rules: Vec<Value>,
    claims: Vec<Value>,
    pods: Vec<Value>,
}

impl World {
    /// A pod that uses the device.
    fn with(slices: Vec<Value>, rules: Vec<Value>, tolerations: &Value) -> World {
        World { slices, rules, claims: vec![claim(tolerations)], pods: vec![pod()] }
    }

    fn view(&self) -> View {
        View::default()
            .with(snapshot::<ResourceSlice>(self.slices.clone()))
            .with(snapshot::<DeviceTaintRule>(self.rules.clone()))
            .with(snapshot::<ResourceClaim>(self.claims.clone()))
            .with(snapshot::<Pod>(self.pods.clone()))
    }

    /// The plan for the pod, or for the rule, so many seconds after [`now`].
    fn plan(&self, evictions: &Evictions, key: &Key, seconds: i64) -> String {
        let random = SeededRandom::new(1);
        let now = Timestamp::from_second(now().as_second() + seconds).unwrap();
        text(&evictions.reconcile(&self.view(), key, &Cx { now, random: &random, failures: &[] }))
    }

    fn of_pod(&self) -> String {
        self.plan(&evictions(), &Key::new("ns", "p"), 0)
    }

    fn of_rule(&self) -> String {
        self.plan(&evictions(), &Key::new("", "r"), 0)
    }
}

fn evictions() -> Evictions {
    Evictions { memory: Memory::default() }
}

fn tolerate(effect: &str, seconds: Option<i64>) -> Value {
    json!([{"key": "sick", "operator": "Exists", "effect": effect, "tolerationSeconds": seconds}])
}

#[test]
fn deletes_the_users_of_a_tainted_device() {
    let tainted = |effect| vec![slice(1, json!([taint(effect)]))];
    expect![[r#"
        strategic /api/v1/namespaces/ns/pods/p/status {"metadata":{"uid":"u"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"Device Taint manager: deleting due to NoExecute taint","observedGeneration":2,"reason":"DeletionByDeviceTaintManager","status":"True","type":"DisruptionTarget"}]}}
        --
        delete /api/v1/namespaces/ns/pods/p {"preconditions":{"uid":"u"}}
        event: Normal DeviceTaintManagerEviction: Marking for deletion
    "#]]
    .assert_eq(&World::with(tainted("NoExecute"), vec![], &json!([])).of_pod());
    assert_eq!(World::with(tainted("NoSchedule"), vec![], &json!([])).of_pod(), "");
    assert_eq!(World::with(tainted("NoExecute"), vec![], &tolerate("NoExecute", None)).of_pod(), "");
    // A toleration for all effects is none of eviction, as upstream.
    assert_ne!(World::with(tainted("NoExecute"), vec![], &tolerate("", None)).of_pod(), "");
    // A newer generation of the pool has no taint.
    let renewed = [tainted("NoExecute"), vec![slice(2, json!([]))]].concat();
    assert_eq!(World::with(renewed, vec![], &json!([])).of_pod(), "");
    let mut marked = World::with(tainted("NoExecute"), vec![], &json!([]));
    marked.pods[0]["status"] =
        json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": REASON}]});
    expect![[r#"
        delete /api/v1/namespaces/ns/pods/p {"preconditions":{"uid":"u"}}
        event: Normal DeviceTaintManagerEviction: Marking for deletion
    "#]]
    .assert_eq(&marked.of_pod());
}

#[test]
fn deletions_are_counted_and_measured() {
    let world = World::with(vec![slice(1, json!([taint("NoExecute")]))], vec![], &json!([]));
    let cx = Cx { now: now(), random: &SeededRandom::new(1), failures: &[] };
    let plan = evictions().reconcile(&world.view(), &Key::new("ns", "p"), &cx);
    // The taint was added a minute ago.
    expect![[r#"
        written /api/v1/namespaces/ns/pods/p: device_taint_eviction_controller_pod_deletions_total = 1
        written /api/v1/namespaces/ns/pods/p: device_taint_eviction_controller_pod_deletion_duration_seconds = 60 + elapsed
    "#]]
    .assert_eq(&observed(&plan));
}

#[test]
fn leaves_pods_that_do_not_use_the_device() {
    let tainted = || World::with(vec![slice(1, json!([taint("NoExecute")]))], vec![], &json!([]));
    let unbound = |world: &mut World| world.pods[0]["spec"]["nodeName"] = "".into();
    let leaving = |world: &mut World| world.pods[0]["metadata"]["deletionTimestamp"] = ago(1).into();
    let unreserved = |world: &mut World| world.claims[0]["status"]["reservedFor"][0]["uid"] = "former".into();
    let unallocated = |world: &mut World| world.claims[0]["status"]["allocation"] = Value::Null;
    let of_another = |world: &mut World| {
        // Made of a template, for another pod of the name.
        world.pods[0]["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
        world.pods[0]["status"] =
            json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]});
    };
    let changes: [fn(&mut World); 5] = [unbound, leaving, unreserved, unallocated, of_another];
    for (i, change) in changes.iter().enumerate() {
        let mut world = tainted();
        change(&mut world);
        assert_eq!(world.of_pod(), "", "{i}");
    }
}

#[test]
fn a_rule_taints_the_devices_that_it_selects() {
    let world = |selector: Value| {
        World::with(vec![slice(1, json!([]))], vec![rule("NoExecute", &selector, json!([]))], &json!([]))
    };
    for selector in [json!({}), json!({"device": "d0"}), json!({"driver": "gpu.example.com", "pool": "n"})] {
        assert!(world(selector.clone()).of_pod().contains("delete "), "{selector}");
    }
    for selector in [Value::Null, json!({"device": "other"}), json!({"pool": "n", "device": "d1"})] {
        assert_eq!(world(selector.clone()).of_pod(), "", "{selector}");
    }
}

#[test]
fn a_toleration_runs_from_when_the_taint_was_added_and_ends_with_it() {
    let tolerant = |taints| World::with(vec![slice(1, taints)], vec![], &tolerate("NoExecute", Some(100)));
    let (tainted, clean) = (tolerant(json!([taint("NoExecute")])), tolerant(json!([])));
    let (evictions, key) = (evictions(), Key::new("ns", "p"));
    let all = [
        tainted.plan(&evictions, &key, 0),
        tainted.plan(&evictions, &key, 30),
        clean.plan(&evictions, &key, 31),
        clean.plan(&evictions, &key, 32),
        tainted.plan(&evictions, &key, 40),
        // It was requested: nothing is cancelled.
        clean.plan(&evictions, &key, 41),
    ];
    expect![[r#"
        again after 40s
        =
        again after 10s
        =
        event: Normal DeviceTaintManagerEviction: Cancelling deletion
        =
        =
        strategic /api/v1/namespaces/ns/pods/p/status {"metadata":{"uid":"u"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:40Z","message":"Device Taint manager: deleting due to NoExecute taint","observedGeneration":2,"reason":"DeletionByDeviceTaintManager","status":"True","type":"DisruptionTarget"}]}}
        --
        delete /api/v1/namespaces/ns/pods/p {"preconditions":{"uid":"u"}}
        event: Normal DeviceTaintManagerEviction: Marking for deletion
        =
    "#]]
    .assert_eq(&all.join("=\n"));
    // However long it is, or negative.
    let limited = |seconds| {
        let tainted = vec![slice(1, json!([taint("NoExecute")]))];
        World::with(tainted, vec![], &tolerate("NoExecute", Some(seconds))).of_pod()
    };
    assert_eq!(limited(i64::MAX), "again after 86400s\n");
    assert!(limited(-1).contains("delete "));
}

#[test]
fn a_rule_says_what_it_does_and_would_do() {
    let world = |effect: &str, selector: Value| {
        World::with(vec![slice(1, json!([]))], vec![rule(effect, &selector, json!([]))], &json!([]))
    };
    let mut crowd = world("NoExecute", json!({}));
    for namespace in ["ns", "b"] {
        let (mut pod, mut claim) = (pod(), claim(&json!([])));
        for object in [&mut pod, &mut claim] {
            object["metadata"]["namespace"] = namespace.into();
            object["metadata"]["name"] = format!("c-{namespace}").into();
        }
        pod["spec"]["resourceClaims"][0]["resourceClaimName"] = format!("c-{namespace}").into();
        claim["status"]["reservedFor"][0]["name"] = format!("c-{namespace}").into();
        crowd.pods.push(pod);
        crowd.claims.push(claim);
    }
    let all = [
        world("NoExecute", json!({})).of_rule(),
        crowd.of_rule(),
        world("NoExecute", json!({"device": "d7"})).of_rule(),
        world("None", json!({})).of_rule(),
        world("NoSchedule", json!({})).of_rule(),
    ];
    expect![[r#"
        apply /apis/resource.k8s.io/v1/devicetaintrules/r/status {"apiVersion":"resource.k8s.io/v1","kind":"DeviceTaintRule","metadata":{"name":"r","uid":"rule"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"1 pod needs to be evicted in 1 namespace.","observedGeneration":3,"reason":"PodsPendingEviction","status":"True","type":"EvictionInProgress"}]}}
        again after 10s
        =
        apply /apis/resource.k8s.io/v1/devicetaintrules/r/status {"apiVersion":"resource.k8s.io/v1","kind":"DeviceTaintRule","metadata":{"name":"r","uid":"rule"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"3 pods need to be evicted in 2 different namespaces.","observedGeneration":3,"reason":"PodsPendingEviction","status":"True","type":"EvictionInProgress"}]}}
        again after 10s
        =
        apply /apis/resource.k8s.io/v1/devicetaintrules/r/status {"apiVersion":"resource.k8s.io/v1","kind":"DeviceTaintRule","metadata":{"name":"r","uid":"rule"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"","observedGeneration":3,"reason":"NotStarted","status":"False","type":"EvictionInProgress"}]}}
        =
        apply /apis/resource.k8s.io/v1/devicetaintrules/r/status {"apiVersion":"resource.k8s.io/v1","kind":"DeviceTaintRule","metadata":{"name":"r","uid":"rule"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"2 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.","observedGeneration":3,"reason":"NoEffect","status":"False","type":"EvictionInProgress"}]}}
        =
        apply /apis/resource.k8s.io/v1/devicetaintrules/r/status {"apiVersion":"resource.k8s.io/v1","kind":"DeviceTaintRule","metadata":{"name":"r","uid":"rule"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"Eviction only happens for the NoExecute effect.","observedGeneration":3,"reason":"OtherEffect","status":"False","type":"EvictionInProgress"}]}}
    "#]]
    .assert_eq(&all.join("=\n"));
}

#[test]
fn the_status_of_a_rule_is_written_when_it_changes_and_every_ten_seconds_at_most() {
    let condition = |seconds: i64, generation: i64, message: &str| {
        let condition = json!([{"type": "EvictionInProgress", "status": "True", "reason": "PodsPendingEviction", "message": message,
            "observedGeneration": generation, "lastTransitionTime": ago(seconds)}]);
        let rule = rule("NoExecute", &json!({}), condition);
        World::with(vec![], vec![rule], &json!([])).of_rule()
    };
    let current = "1 pod needs to be evicted in 1 namespace.";
    assert_eq!(condition(4, 3, "2 pods need to be evicted in 1 namespace."), "again after 6s\n");
    assert_eq!(condition(10, 3, current), "again after 10s\n");
    assert!(condition(4, 2, current).starts_with("apply "), "another spec");
    assert!(condition(10, 3, "2 pods need to be evicted in 1 namespace.").starts_with("apply "));
    assert!(!condition(-5, 3, current).contains("apply"), "a time of the future");
}

#[test]
fn counts_the_pods_that_a_rule_has_evicted() {
    let mut world = World::with(vec![], vec![rule("NoExecute", &json!({}), json!([]))], &json!([]));
    let evictions = evictions();
    assert!(world.plan(&evictions, &Key::new("ns", "p"), 0).contains("delete "));
    let pod: Arc<Pod> = Arc::new(object(pod()));
    let gone = Change { old: Some(pod.clone()), new: None };
    let keys = keys_of_pod(&gone, &world.view(), &evictions.memory);
    assert_eq!(keys, [Key::new("", "r"), Key::new("ns", "p")]);
    (world.pods, world.claims) = (vec![], vec![]);
    expect![[r#"
        apply /apis/resource.k8s.io/v1/devicetaintrules/r/status {"apiVersion":"resource.k8s.io/v1","kind":"DeviceTaintRule","metadata":{"name":"r","uid":"rule"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"1 pod evicted since starting the controller.","observedGeneration":3,"reason":"Completed","status":"False","type":"EvictionInProgress"}]}}
    "#]]
    .assert_eq(&world.plan(&evictions, &Key::new("", "r"), 0));
    // The numbers go with the rule.
    let rule: Arc<DeviceTaintRule> = Arc::new(object(world.rules.remove(0)));
    keys_of_rule(&Change { old: Some(rule), new: None }, &world.view(), &evictions.memory);
    let memory = evictions.memory.lock();
    assert!(memory.evicted.is_empty() && memory.deletions.is_empty());
}

#[test]
fn looks_only_at_pods_and_rules_that_a_change_concerns() {
    let names = |keys: Vec<Key>| keys.iter().map(Key::to_string).collect::<Vec<_>>().join(" ");
    let world = World::with(vec![], vec![rule("NoExecute", &json!({}), json!([]))], &json!([]));
    let changed = |old: Option<Value>, new: Option<Value>| {
        let slice = |value: Option<Value>| value.map(|v| Arc::new(object::<ResourceSlice>(v)));
        let slices =
            World { slices: new.clone().into_iter().collect(), ..World::with(vec![], vec![], &json!([])) };
        names(keys_of_slice(&Change { old: slice(old), new: slice(new) }, &slices.view()))
    };
    let (clean, tainted) = (slice(1, json!([])), slice(1, json!([taint("NoExecute")])));
    assert_eq!(changed(None, Some(clean.clone())), "");
    assert_eq!(changed(Some(clean.clone()), Some(tainted.clone())), "ns/p");
    assert_eq!(changed(Some(tainted.clone()), Some(clean)), "ns/p");
    assert_eq!(changed(Some(tainted.clone()), Some(tainted)), "");
    let rule =
        |effect: &str, conditions| Arc::new(object::<DeviceTaintRule>(rule(effect, &json!({}), conditions)));
    let of_rule = |old: Option<Arc<_>>, new| {
        names(keys_of_rule(&Change { old, new }, &world.view(), &Memory::default()))
    };
    assert_eq!(of_rule(None, Some(rule("NoExecute", json!([])))), "r ns/p");
    assert_eq!(of_rule(None, Some(rule("NoSchedule", json!([])))), "r");
    assert_eq!(of_rule(Some(rule("NoExecute", json!([]))), Some(rule("NoSchedule", json!([])))), "r ns/p");
    // What this loop wrote itself.
    assert_eq!(of_rule(Some(rule("None", json!([]))), Some(rule("None", json!([{"type": "x"}])))), "");
    let claim = |value: Value| Some(Arc::new(object::<ResourceClaim>(value)));
    let of_claim = |old, new| names(keys_of_claim(&Change { old, new }, &world.view()));
    let mut labelled = super::tests::claim(&json!([]));
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(of_claim(None, claim(super::tests::claim(&json!([])))), "r ns/p");
    assert_eq!(of_claim(claim(super::tests::claim(&json!([]))), claim(labelled)), "");
    let plain: Arc<Pod> =
        Arc::new(object(json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": {"nodeName": "n"}})));
    assert_eq!(
        names(keys_of_pod(&Change { old: None, new: Some(plain) }, &world.view(), &Memory::default())),
        ""
    );
}
