//! The search on fixtures, and its laws on random devices and claims.

use super::*;
use expect_test::expect;
use kaji_meta::{Quantity, random::SeededRandom};
use kaji_runtime::{
    ObjectSnapshot,
    objects::{DeviceAllocation, DeviceClass, DeviceTaintRule, Node, ResourceSlice},
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What there is: slices, rules and classes.
#[derive(Clone, Default)]
struct World {
    slices: Vec<Value>,
    rules: Vec<Value>,
    classes: Vec<Value>,
    usage: Usage,
}

fn node(name: &str) -> Node {
    let labels = json!({"rack": "r1"});
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
}

/// A slice of the pool `p` of the driver `d.io`, the only one of its generation.
fn slice(name: &str, spec: Value) -> Value {
    let mut whole = json!({"driver": "d.io", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n"});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": whole})
}

/// A slice of devices of these names.
fn devices(names: &[&str]) -> Value {
    let devices: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    slice("s", json!({"devices": devices}))
}

fn exactly(name: &str, more: Value) -> Value {
    let mut requirements = json!({"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1});
    for (key, value) in more.as_object().unwrap() {
        requirements[key] = value.clone();
    }
    json!({"name": name, "exactly": requirements})
}

fn decode<T: serde::de::DeserializeOwned>(all: &[Value]) -> Vec<T> {
    all.iter().map(|value| serde_json::from_value(value.clone()).unwrap()).collect()
}

impl World {
    fn of(slices: Vec<Value>) -> Self {
        let classes = vec![json!({"metadata": {"name": "any"}})];
        World { slices, classes, ..World::default() }
    }

    /// Claims by their specs' `devices`.
    fn allocate(&self, claims: &[Value]) -> Result<Option<Vec<DeviceAllocation>>, AllocationError> {
        let claims = claims.iter().enumerate().map(|(place, spec)| Claim {
            name: format!("ns/c{place}"),
            spec: Arc::new(serde_json::from_value(spec.clone()).unwrap()),
        });
        let classes = ObjectSnapshot::of(decode::<DeviceClass>(&self.classes));
        let requested = DeviceRequests::new(claims.collect(), &classes, &Selectors::default()).unwrap();
        let mut inventory = Inventory::default();
        inventory.update(
            ObjectSnapshot::of(decode::<ResourceSlice>(&self.slices)),
            ObjectSnapshot::of(decode::<DeviceTaintRule>(&self.rules)),
        );
        let limit = Limit { steps: 100_000, expired: &|| false };
        allocate(&requested, &inventory, &self.usage, &node("n"), &SeededRandom::new(1), &limit)
    }

    /// The devices of each request, or why there are none.
    fn show(&self, claims: &[Value]) -> String {
        let device = |r: &kaji_runtime::objects::DeviceResult| format!("{}={}", r.request, r.device);
        match self.allocate(claims) {
            Ok(None) => "none".to_owned(),
            Err(error) => error.to_string(),
            Ok(Some(found)) => {
                let claim =
                    |a: &DeviceAllocation| a.devices.results.iter().map(device).collect::<Vec<_>>().join(" ");
                found.iter().map(claim).collect::<Vec<_>>().join("; ")
            }
        }
    }

    /// With what one allocation takes.
    fn after(mut self, claims: &[Value]) -> Self {
        for allocation in self.allocate(claims).unwrap().unwrap() {
            self.usage.add(&allocation);
        }
        self
    }
}

fn claim(requests: Value) -> Value {
    json!({"requests": requests})
}

#[test]
fn allocates_counts_and_all_devices() {
    let world = World::of(vec![devices(&["a", "b", "c"])]);
    assert_eq!(world.show(&[claim(json!([exactly("r", json!({"count": 2}))]))]), "r=a r=b");
    let all = claim(json!([exactly("r", json!({"allocationMode": "All"}))]));
    assert_eq!(world.show(std::slice::from_ref(&all)), "r=a r=b r=c");
    let one = || claim(json!([exactly("r", json!({}))]));
    assert_eq!(world.show(&[one(), one(), one()]), "r=a; r=b; r=c");
    assert_eq!(world.show(&[one(), one(), one(), one()]), "none");
    assert_eq!(world.clone().after(&[one()]).show(&[one()]), "r=b");
    assert_eq!(world.clone().after(&[one()]).show(std::slice::from_ref(&all)), "none");
    // Admin access takes what is in use, once a claim, and keeps nothing from others.
    let admin = claim(json!([exactly("r", json!({"count": 3, "adminAccess": true}))]));
    let after = world.clone().after(&[all]).after(std::slice::from_ref(&admin));
    assert_eq!(after.show(&[admin]), "r=a r=b r=c");
    let many = claim(json!([exactly("r", json!({"count": 33}))]));
    assert_eq!(
        world.show(&[many]),
        "claim ns/c0: number of requested devices 33 exceeds the claim limit of 32"
    );
    assert_eq!(
        World::of(vec![]).show(&[claim(json!([exactly("r", json!({"allocationMode": "All"}))]))]),
        "none"
    );
}

#[test]
fn too_few_devices_are_noticed_early() {
    let names: Vec<String> = (0..24).map(|n| format!("d{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = World::of(vec![devices(&names)]);
    let many = |count: usize| claim(json!([exactly("r", json!({"count": count}))]));
    assert_eq!(world.show(&[many(25)]), "none");
    // Some devices do not do.
    let selectors = json!([{"cel": {"expression": "device.attributes['d.io'].good"}}]);
    let of_names =
        names.iter().map(|name| json!({"name": name, "attributes": {"good": {"bool": *name < "d5"}}}));
    let world = World::of(vec![slice("s", json!({"devices": of_names.collect::<Vec<_>>()}))]);
    let good = names.iter().filter(|name| **name < "d5").count();
    let wanted = |count: usize| claim(json!([exactly("r", json!({"count": count, "selectors": selectors}))]));
    assert_eq!(world.show(&[wanted(good + 1)]), "none");
    assert_eq!(world.show(&[wanted(good), many(24 - good)]).matches('=').count(), 24);
    assert_eq!(world.show(&[wanted(good), many(25 - good)]), "none");
}

#[test]
fn pools_that_are_incomplete_or_invalid() {
    let incomplete = slice(
        "s",
        json!({"pool": {"name": "p", "generation": 1, "resourceSliceCount": 2}, "devices": [{"name": "a"}]}),
    );
    let one = [claim(json!([exactly("r", json!({}))]))];
    let all = [claim(json!([exactly("r", json!({"allocationMode": "All"}))]))];
    let world = World::of(vec![incomplete.clone()]);
    assert_eq!(world.show(&one), "none");
    assert_eq!(
        world.show(&all),
        "claim ns/c0, request r: asks for all devices, but resource pool d.io/p is currently being updated"
    );
    let world = World::of(vec![devices(&["a", "a"])]);
    assert_eq!(world.show(&one), "invalid resource pools were encountered");
    // A newer generation replaces an older one.
    let newer = slice(
        "t",
        json!({"pool": {"name": "p", "generation": 2, "resourceSliceCount": 1}, "devices": [{"name": "b"}]}),
    );
    assert_eq!(World::of(vec![incomplete, newer]).show(&one), "r=b");
    // Another node's devices, devices of a selector, and devices that say it themselves.
    let of = |name: &str, pool: &str, reach: Value| {
        let mut spec =
            json!({"pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}, "nodeName": null});
        for (key, value) in reach.as_object().unwrap() {
            spec[key] = value.clone();
        }
        slice(name, spec)
    };
    let rack = |value: &str| json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": [value]}]}]});
    let world = World::of(vec![
        of("1", "1", json!({"nodeName": "m", "devices": [{"name": "far"}]})),
        of("2", "2", json!({"nodeSelector": rack("r2"), "devices": [{"name": "wrong"}]})),
        of("3", "3", json!({"nodeSelector": rack("r1"), "devices": [{"name": "right"}]})),
        of(
            "4",
            "4",
            json!({"perDeviceNodeSelection": true, "devices": [{"name": "m", "nodeName": "m"}, {"name": "n", "nodeName": "n"}, {"name": "e", "allNodes": true}]}),
        ),
    ]);
    assert_eq!(world.show(&all), "r=right r=n r=e");
    let found = world.allocate(&one).unwrap().unwrap();
    assert_eq!(found[0].node_selector, Some(rack("r1")));
    let found = world.allocate(&[claim(json!([exactly("r", json!({"count": 2}))]))]).unwrap().unwrap();
    let only = json!({"key": "metadata.name", "operator": "In", "values": ["n"]});
    assert_eq!(found[0].node_selector, Some(json!({"nodeSelectorTerms": [{"matchFields": [only]}]})));
}

fn numa(name: &str, numa: i64) -> Value {
    json!({"name": name, "attributes": {"numa": {"int": numa}, "model": {"string": name}}})
}

#[test]
fn allocates_by_selectors_and_constraints() {
    let devices = json!([numa("a", 0), numa("b", 1), numa("c", 1), {"name": "d"}]);
    let mut world = World::of(vec![slice("s", json!({"devices": devices}))]);
    let cel = |text: &str| json!([{"cel": {"expression": text}}]);
    let of = |text: &str| claim(json!([exactly("r", json!({"selectors": cel(text)}))]));
    assert_eq!(world.show(&[of(r#"device.attributes["d.io"].?numa == optional.of(1)"#)]), "r=b");
    assert_eq!(world.show(&[of(r#"!("numa" in device.attributes["d.io"])"#)]), "r=d");
    assert_eq!(
        world.show(&[of(r#"device.attributes["d.io"].nope == 1"#)]),
        "claim ns/c0: selector #0: CEL runtime error: no such key: nope"
    );
    let two = |constraint: &str| {
        let constraint = json!({"requests": ["x", "y"], constraint: "d.io/numa"});
        json!({"requests": [exactly("x", json!({})), exactly("y", json!({}))], "constraints": [constraint]})
    };
    assert_eq!(world.show(&[two("matchAttribute")]), "x=b y=c");
    assert_eq!(world.show(&[two("distinctAttribute")]), "x=a y=b");
    let three = json!({"requests": [exactly("x", json!({"count": 3}))], "constraints": [{"distinctAttribute": "d.io/numa"}]});
    assert_eq!(world.show(&[three]), "none");
    let all = json!({"requests": [exactly("x", json!({"allocationMode": "All"}))], "constraints": [{"matchAttribute": "d.io/numa"}]});
    assert_eq!(
        world.show(&[all]),
        "claim ns/c0, request x: cannot add device d.io/p/b because a claim constraint would not be satisfied"
    );
    world.classes.push(json!({"metadata": {"name": "second"}, "spec": {"selectors": cel(r#"device.attributes["d.io"].?numa == optional.of(1)"#),
        "config": [{"opaque": {"driver": "d.io", "parameters": {"k": "class"}}}]}}));
    let config = json!([{"requests": ["r"], "opaque": {"driver": "d.io", "parameters": {"k": "claim"}}}]);
    let configured =
        json!({"requests": [exactly("r", json!({"deviceClassName": "second"}))], "config": config});
    let found = world.allocate(&[configured]).unwrap().unwrap();
    expect![[r#"[{"opaque":{"driver":"d.io","parameters":{"k":"class"}},"requests":["r"],"source":"FromClass"},{"opaque":{"driver":"d.io","parameters":{"k":"claim"}},"requests":["r"],"source":"FromClaim"}]"#]]
        .assert_eq(&json!(found[0].devices.config).to_string());
}

#[test]
fn tries_alternatives_in_order() {
    let world = World::of(vec![devices(&["a", "b", "c"])]);
    let either = |name: &str, counts: &[i64]| {
        let all: Vec<Value> = counts
            .iter()
            .map(|count| json!({"name": format!("n{count}"), "deviceClassName": "any", "allocationMode": "ExactCount", "count": count}))
            .collect();
        json!({"name": name, "firstAvailable": all})
    };
    assert_eq!(world.show(&[claim(json!([either("r", &[4, 2, 1])]))]), "r/n2=a r/n2=b");
    // What comes later has a say.
    let both = claim(json!([either("r", &[3, 2]), exactly("x", json!({}))]));
    assert_eq!(world.show(&[both]), "r/n2=a r/n2=b x=c");
    // A claim holds 32 devices at most.
    let names: Vec<String> = (0..60).map(|number| format!("d{number}")).collect();
    let many = World::of(vec![devices(&names.iter().map(String::as_str).collect::<Vec<_>>())]);
    let large = claim(json!([either("r", &[30, 2]), exactly("x", json!({"count": 20}))]));
    assert!(many.show(&[large]).starts_with("r/n2=d0 r/n2=d1 x=d2"));
}

#[test]
fn taints_of_drivers_and_rules() {
    let tainted = json!({"name": "a", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
    let mut world = World::of(vec![slice("s", json!({"devices": [tainted, {"name": "b"}]}))]);
    let with = |tolerations: Value| claim(json!([exactly("r", json!({"tolerations": tolerations}))]));
    assert_eq!(world.show(&[with(json!([]))]), "r=b");
    assert_eq!(world.show(&[with(json!([{"key": "k", "operator": "Exists"}]))]), "r=a");
    assert_eq!(world.show(&[with(json!([{"key": "k", "operator": "Equal", "value": "w"}]))]), "r=b");
    // Without a selector a rule is about no device.
    world
        .rules
        .push(json!({"metadata": {"name": "any"}, "spec": {"taint": {"key": "x", "effect": "NoExecute"}}}));
    assert_eq!(world.show(&[with(json!([]))]), "r=b");
    world.rules.push(json!({"metadata": {"name": "rule"}, "spec": {"deviceSelector": {"device": "b"}, "taint": {"key": "x", "effect": "NoExecute"}}}));
    assert_eq!(world.show(&[with(json!([]))]), "none");
    assert_eq!(world.show(&[with(json!([{"operator": "Exists", "effect": "NoExecute"}]))]), "r=b");
}

#[test]
fn counters_and_capacity_are_shared() {
    let takes = |name: &str, memory: &str| json!({"name": name, "consumesCounters": [{"counterSet": "gpu", "counters": {"memory": {"value": memory}}}]});
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 2});
    let counters = json!([{"name": "gpu", "counters": {"memory": {"value": "40Gi"}}}]);
    let world = World::of(vec![
        slice("c", json!({"pool": pool, "sharedCounters": counters})),
        slice(
            "d",
            json!({"pool": pool, "devices": [takes("whole", "40Gi"), takes("h1", "20Gi"), takes("h2", "20Gi")]}),
        ),
    ]);
    let count = |count: i64| claim(json!([exactly("r", json!({"count": count}))]));
    assert_eq!(world.show(&[count(1)]), "r=whole");
    assert_eq!(world.show(&[count(2)]), "r=h1 r=h2");
    assert_eq!(world.show(&[count(3)]), "none");
    assert_eq!(world.clone().after(&[count(1)]).show(&[count(1)]), "none");
    let policy = json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}});
    let shared = json!({"name": "s", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "4Gi", "requestPolicy": policy}}});
    let world = World::of(vec![slice("s", json!({"devices": [shared]}))]);
    let wants =
        |memory: &str| claim(json!([exactly("r", json!({"capacity": {"requests": {"memory": memory}}}))]));
    let found = world.allocate(&[wants("1500Mi"), count(1)]).unwrap().unwrap();
    let taken: Vec<String> =
        found.iter().map(|a| a.devices.results[0].consumed_capacity["memory"].to_string()).collect();
    assert_eq!(taken, ["\"2Gi\"", "\"1Gi\""]);
    assert!(found[0].devices.results[0].share_id != found[1].devices.results[0].share_id);
    assert_eq!(world.show(&[wants("3Gi"), wants("2Gi")]), "none");
    assert_eq!(world.clone().after(&[wants("3Gi")]).show(&[count(1)]), "r=s");
    assert_eq!(world.clone().after(&[wants("3Gi")]).show(&[wants("2Gi")]), "none");
    let unknown = claim(json!([exactly("r", json!({"capacity": {"requests": {"cores": "1"}}}))]));
    assert_eq!(world.show(&[unknown]), "none");
}

/// A device of 4 cores that is shared, with this range of requests.
fn shared(range: &Value) -> World {
    let policy = json!({"default": range["min"], "validRange": range});
    let device = json!({"name": "s", "allowMultipleAllocations": true, "capacity": {"cores": {"value": "4", "requestPolicy": policy}}});
    World::of(vec![slice("s", json!({"devices": [device]}))])
}

fn cores(amount: &str, mode: &str) -> Value {
    let more = json!({"allocationMode": mode, "capacity": {"requests": {"cores": amount}}});
    claim(json!([exactly("r", more)]))
}

#[test]
fn ranges_with_fractions_count_in_thousandths() {
    let world = shared(&json!({"min": "100m", "max": "2500m", "step": "250m"}));
    let taken = |amount: &str| match world.allocate(&[cores(amount, "ExactCount")]) {
        Ok(Some(found)) => found[0].devices.results[0].consumed_capacity["cores"].to_string(),
        Ok(None) => "none".to_owned(),
        Err(error) => error.to_string(),
    };
    let all = ["50m", "100m", "101m", "850m", "2350m", "2351m", "1u", "100001u"].map(taken);
    expect![[r#"
        "100m"
        "100m"
        "350m"
        "850m"
        "2350m"
        none
        "100m"
        claim ns/c0, request r: checking capacity for device d.io/p/s: capacity "cores": capacity request cannot be represented in the device's range arithmetic: request 100001u is not a representable milli value"#]]
    .assert_eq(&all.join("\n"));
    let whole = shared(&json!({"min": "500m", "step": "500m"}));
    let found = whole.allocate(&[cores("1600m", "ExactCount")]).unwrap().unwrap();
    assert_eq!(found[0].devices.results[0].consumed_capacity["cores"].to_string(), "\"2\"");
    let long = shared(&json!({"min": "1", "step": "1"}));
    assert_eq!(
        long.show(&[cores("10P", "ExactCount")]),
        r#"claim ns/c0, request r: checking capacity for device d.io/p/s: capacity "cores": capacity request cannot be represented in the device's range arithmetic: request 10P is not a representable milli value"#
    );
}

#[test]
fn a_request_for_all_devices_fails_when_one_is_used_up() {
    let world = shared(&json!({"min": "1", "step": "1"}));
    assert_eq!(world.show(&[cores("3", "All")]), "r=s");
    assert_eq!(world.show(&[cores("5", "All")]), "none");
    assert_eq!(world.clone().after(&[cores("3", "ExactCount")]).show(&[cores("3", "All")]), "none");
}

/// Whether there is a solution, by trying everything: each request's devices are a set, the sets are disjoint.
fn solvable(
    numas: &[Option<i64>],
    requests: &[(usize, Option<i64>)],
    kind: usize,
    used: &BTreeSet<usize>,
) -> bool {
    fn go(
        numas: &[Option<i64>],
        requests: &[(usize, Option<i64>)],
        kind: usize,
        taken: &mut Vec<usize>,
        used: &BTreeSet<usize>,
        from: usize,
    ) -> bool {
        let Some(((count, wanted), rest)) = requests.split_first() else { return true };
        if *count == 0 {
            return go(numas, rest, kind, taken, used, 0);
        }
        for device in from..numas.len() {
            let free = !used.contains(&device) && !taken.contains(&device);
            let selected = wanted.is_none_or(|wanted| numas[device] == Some(wanted));
            let constrained = match kind {
                0 => true,
                1 => numas[device].is_some() && taken.iter().all(|t| numas[*t] == numas[device]),
                _ => numas[device].is_some() && taken.iter().all(|t| numas[*t] != numas[device]),
            };
            if free && selected && constrained {
                taken.push(device);
                let mut left = vec![(*count - 1, *wanted)];
                left.extend_from_slice(rest);
                if go(numas, &left, kind, taken, used, device + 1) {
                    return true;
                }
                taken.pop();
            }
        }
        false
    }
    go(numas, requests, kind, &mut vec![], used, 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn finds_a_solution_if_there_is_one_and_it_holds(
        numas in proptest::collection::vec(proptest::option::of(0..3_i64), 0..7),
        requests in proptest::collection::vec((1..3_usize, proptest::option::of(0..3_i64)), 1..4),
        kind in 0..3_usize,
        used in proptest::collection::btree_set(0..7_usize, 0..3),
    ) {
        let device = |(place, numa): (usize, &Option<i64>)| match numa {
            Some(numa) => json!({"name": format!("d{place}"), "attributes": {"numa": {"int": numa}}}),
            None => json!({"name": format!("d{place}")}),
        };
        let list: Vec<Value> = numas.iter().enumerate().map(device).collect();
        let mut world = World::of(vec![slice("s", json!({"devices": list}))]);
        let results: Vec<Value> = used.iter().map(|d| json!({"driver": "d.io", "pool": "p", "device": format!("d{d}")})).collect();
        world.usage.add(&serde_json::from_value(json!({"devices": {"results": results}})).unwrap());
        let request = |(place, (count, numa)): (usize, &(usize, Option<i64>))| {
            let text = numa.map_or("true".to_owned(), |n| format!("device.attributes[\"d.io\"].?numa == optional.of({n})"));
            exactly(&format!("r{place}"), json!({"count": count, "selectors": [{"cel": {"expression": text}}]}))
        };
        let wanted: Vec<Value> = requests.iter().enumerate().map(request).collect();
        let constraints = match kind {
            0 => json!([]),
            1 => json!([{"matchAttribute": "d.io/numa"}]),
            _ => json!([{"distinctAttribute": "d.io/numa"}]),
        };
        let found = world.allocate(&[json!({"requests": wanted, "constraints": constraints})]).unwrap();
        prop_assert_eq!(found.is_some(), solvable(&numas, &requests, kind, &used));
        let Some(found) = found else { return Ok(()) };
        let results = &found[0].devices.results;
        let place = |r: &kaji_runtime::objects::DeviceResult| r.device[1..].parse::<usize>().unwrap();
        let all: BTreeSet<usize> = results.iter().map(place).collect();
        prop_assert_eq!(all.len(), results.len(), "a device was handed out twice");
        prop_assert!(all.is_disjoint(&used));
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for result in results {
            *counts.entry(&result.request).or_default() += 1;
            let of: usize = result.request[1..].parse().unwrap();
            prop_assert!(requests[of].1.is_none_or(|wanted| numas[place(result)] == Some(wanted)));
        }
        for (at, (count, _)) in requests.iter().enumerate() {
            prop_assert_eq!(counts[format!("r{at}").as_str()], *count);
        }
        let values: BTreeSet<Option<i64>> = all.iter().map(|d| numas[*d]).collect();
        prop_assert!(kind == 0 || !values.contains(&None));
        prop_assert!(kind != 1 || values.len() <= 1);
        prop_assert!(kind != 2 || values.len() == all.len());
    }

    #[test]
    fn shared_capacity_and_counters_suffice(
        wants in proptest::collection::vec(0..5_i64, 1..8),
        capacity in 1..9_i64,
        counters in 1..9_i64,
        costs in proptest::collection::vec(1..5_i64, 1..6),
    ) {
        let q = |amount: i64| format!("{amount}Gi");
        let shared = json!({"name": "s", "allowMultipleAllocations": true, "capacity": {"m": {"value": q(capacity)}}});
        let mut world = World::of(vec![slice("s", json!({"devices": [shared]}))]);
        let mut sum = 0;
        for want in &wants {
            let one = claim(json!([exactly("r", json!({"capacity": {"requests": {"m": q(*want)}}}))]));
            let fits = sum + want <= capacity;
            let found = world.allocate(&[one]).unwrap();
            prop_assert_eq!(found.is_some(), fits);
            if let Some(found) = found {
                sum += want;
                world.usage.add(&found[0]);
                let taken = Quantity::from_value(&found[0].devices.results[0].consumed_capacity["m"]).unwrap();
                prop_assert_eq!(taken, Quantity::parse(&q(*want)).unwrap());
            }
        }
        let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 2});
        let set = json!([{"name": "c", "counters": {"m": {"value": q(counters)}}}]);
        let device = |(place, cost): (usize, &i64)| {
            json!({"name": format!("d{place}"), "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": q(*cost)}}}]})
        };
        let list: Vec<Value> = costs.iter().enumerate().map(device).collect();
        let mut world = World::of(vec![slice("a", json!({"pool": pool, "sharedCounters": set})), slice("b", json!({"pool": pool, "devices": list}))]);
        let mut left = counters;
        while let Some(found) = world.allocate(&[claim(json!([exactly("r", json!({}))]))]).unwrap() {
            let device: usize = found[0].devices.results[0].device[1..].parse().unwrap();
            left -= costs[device];
            prop_assert!(left >= 0);
            world.usage.add(&found[0]);
        }
    }
}
