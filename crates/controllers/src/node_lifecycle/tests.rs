//! Tests of the life cycle of nodes: taints by condition, silent nodes, zones, and clocks that jump.

use super::*;
use crate::testing::{now, object, observed, reconcile, sample, snapshot, text};
use crate::{EvictionRates, NodeMonitorConfig};
use expect_test::expect;
use health::Health;
use jiff::{SignedDuration, Timestamp};
use kaji_meta::random::SeededRandom;
use kaji_runtime::objects::{Lease, Pod};
use leases::Live;
use monitor::Monitor;
use proptest::prelude::*;
use std::{collections::BTreeMap, fmt::Write as _, time::Duration};
use zones::{Counts, Disruption, Turn, Zones};

const PERIOD: Duration = Duration::from_secs(5);

fn plan(spec: Value, conditions: &[(&str, &str)]) -> String {
    let conditions: Vec<Value> =
        conditions.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect();
    let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}, "spec": spec,
        "status": {"conditions": conditions}});
    text(&reconcile(&Taints, &View::default().with(snapshot::<Node>([node])), "", "n", &[]))
}

#[test]
fn sets_taints_from_conditions() {
    let new = json!({"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, {"key": "mine", "value": "v", "effect": "NoSchedule"}]});
    let all = [
        plan(new.clone(), &[]),
        plan(new.clone(), &[("Ready", "False")]),
        plan(new.clone(), &[("Ready", "True")]),
        plan(new, &[("Ready", "Unknown"), ("DiskPressure", "True"), ("MemoryPressure", "False")]),
        plan(json!({"unschedulable": true}), &[("Ready", "True")]),
        plan(json!({}), &[("Ready", "True"), ("PIDPressure", "True"), ("NetworkUnavailable", "True")]),
    ];
    expect![[r#"
        =
        =
        merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoExecute","key":"node.kubernetes.io/not-ready"},{"effect":"NoSchedule","key":"mine","value":"v"}]}}
        =
        merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoExecute","key":"node.kubernetes.io/not-ready"},{"effect":"NoSchedule","key":"mine","value":"v"},{"effect":"NoSchedule","key":"node.kubernetes.io/unreachable","timeAdded":"2025-01-01T12:00:00Z"},{"effect":"NoSchedule","key":"node.kubernetes.io/disk-pressure","timeAdded":"2025-01-01T12:00:00Z"}]}}
        =
        merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoSchedule","key":"node.kubernetes.io/unschedulable","timeAdded":"2025-01-01T12:00:00Z"}]}}
        =
        merge /api/v1/nodes/n {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"effect":"NoSchedule","key":"node.kubernetes.io/network-unavailable","timeAdded":"2025-01-01T12:00:00Z"},{"effect":"NoSchedule","key":"node.kubernetes.io/pid-pressure","timeAdded":"2025-01-01T12:00:00Z"}]}}
    "#]].assert_eq(&all.join("=\n"));
}

/// A cluster in which writes succeed at once: what a monitor plans is applied to the nodes.
struct Cluster {
    monitor: Monitor,
    nodes: BTreeMap<String, Value>,
    renewed: BTreeMap<String, Timestamp>,
    /// Leases that the server has in another state than the monitor's view.
    live: BTreeMap<String, Live>,
    pods: Vec<Value>,
    now: Timestamp,
    /// What was counted of evictions.
    evictions: String,
}

impl Cluster {
    /// Nodes of one zone that have just renewed their leases, with a ready pod each.
    fn of(names: &[&str]) -> Self {
        let condition =
            |kind: &str, status: &str| json!({"type": kind, "status": status, "lastHeartbeatTime": now()});
        let node = |name: &str| {
            json!({"metadata": {"name": name, "uid": format!("u-{name}"), "resourceVersion": "1", "creationTimestamp": now()},
                "status": {"conditions": [condition("Ready", "True"), condition("MemoryPressure", "False"),
                    condition("DiskPressure", "False"), condition("PIDPressure", "False")]}})
        };
        let pod = |name: &&str| {
            json!({"metadata": {"name": format!("on-{name}"), "namespace": "ns", "uid": "p", "resourceVersion": "2"},
                "spec": {"nodeName": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        };
        Cluster {
            monitor: Monitor::new(NodeMonitorConfig::default()),
            nodes: names.iter().map(|name| ((*name).to_owned(), node(name))).collect(),
            renewed: names.iter().map(|name| ((*name).to_owned(), now())).collect(),
            live: BTreeMap::new(),
            pods: names.iter().map(pod).collect(),
            now: now(),
            evictions: String::new(),
        }
    }

    fn renew(&mut self, name: &str) {
        self.renewed.insert(name.to_owned(), self.now);
    }

    fn ready(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        node["status"]["conditions"][0] =
            json!({"type": "Ready", "status": "True", "lastHeartbeatTime": self.now});
        self.renew(name);
    }

    /// One look, after some time; its writes as text.
    fn observe(&mut self, after: Duration) -> String {
        self.now = self.now.saturating_add(SignedDuration::try_from(after).unwrap()).unwrap();
        let lease = |(name, at): (&String, &Timestamp)| {
            json!({"metadata": {"name": name, "namespace": Lease::OF_NODES, "resourceVersion": at.as_second().to_string()},
                "spec": {"renewTime": at}})
        };
        for name in self.monitor.take_wanted() {
            let shown = self.renewed.get(&name).map(|at| Live::At(at.as_second().unsigned_abs()));
            let live = self.live.get(&name).copied().or(shown).unwrap_or(Live::Missing);
            self.monitor.note(name, live);
        }
        let view = View::default()
            .with(snapshot::<Node>(self.nodes.values().cloned()))
            .with(snapshot::<Lease>(self.renewed.iter().map(lease)))
            .with(snapshot::<Pod>(self.pods.iter().cloned()));
        let random = SeededRandom::new(1);
        let cx = Cx { now: self.now, random: &random, failures: &[] };
        let plan = self.monitor.reconcile(&view, &Key::default(), &cx);
        for write in plan.writes() {
            self.apply(write);
        }
        let counted = observed(&plan);
        self.evictions.extend(counted.lines().filter(|l| l.ends_with("= 1")).map(|l| format!("{l}\n")));
        text(&plan)
    }

    fn apply(&mut self, write: &Write) {
        let Write::Patch { target, body, .. } = write else { panic!("{write:?}") };
        let conditions = body.pointer("/status/conditions").and_then(Value::as_array);
        let object = match target.resource.as_str() {
            "nodes" => self.nodes.get_mut(&target.name).unwrap(),
            _ => self.pods.iter_mut().find(|pod| pod["metadata"]["name"] == *target.name).unwrap(),
        };
        for new in conditions.into_iter().flatten() {
            let all = object["status"]["conditions"].as_array_mut().unwrap();
            match all.iter_mut().find(|old| old["type"] == new["type"]) {
                Some(old) => new.as_object().unwrap().iter().for_each(|(k, v)| old[k] = v.clone()),
                None => all.push(new.clone()),
            }
        }
        if let Some(taints) = body.pointer("/spec/taints") {
            object["spec"]["taints"] = taints.clone();
        }
    }

    /// Looks for so long, every period; those that write, with the seconds since the start. `alive` nodes renew their leases.
    fn run(&mut self, seconds: u64, alive: &[&str]) -> String {
        let mut out = String::new();
        let mut wait = PERIOD;
        let end = self.now.as_second() + i64::try_from(seconds).unwrap();
        while self.now.as_second() < end {
            alive.iter().for_each(|name| self.renew(name));
            let plan = self.observe(wait);
            let soon = plan.contains("again after 100ms");
            wait = if soon { Duration::from_millis(100) } else { PERIOD };
            if soon {
                let _ = write!(out, "{}s: {plan}", self.now.as_second() - now().as_second());
            }
        }
        out
    }

    /// The nodes with a taint that evicts.
    fn tainted(&self) -> String {
        let evicts = |node: &Value| {
            let taints = node.pointer("/spec/taints").and_then(Value::as_array);
            taints.is_some_and(|all| all.iter().any(|t| t["effect"] == "NoExecute"))
        };
        let names: Vec<&str> =
            self.nodes.iter().filter(|(_, node)| evicts(node)).map(|(name, _)| name.as_str()).collect();
        names.join(" ")
    }
}

#[test]
fn a_silent_node_is_marked_tainted_and_comes_back() {
    let mut cluster = Cluster::of(&["a", "b"]);
    let first = cluster.observe(Duration::ZERO);
    let lost = cluster.run(70, &["b"]);
    cluster.ready("a");
    let back = cluster.run(10, &["a", "b"]);
    expect![[r#"
        event: Normal RegisteredNode: Node a event: Registered Node a in Controller
        event: Normal RegisteredNode: Node b event: Registered Node b in Controller
        again after 5s
        =
        55s: again after 100ms
        55s: strategic /api/v1/nodes/a/status {"metadata":{"resourceVersion":"1","uid":"u-a"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:55Z","message":"Kubelet stopped posting node status.","reason":"NodeStatusUnknown","status":"Unknown","type":"Ready"},{"lastTransitionTime":"2025-01-01T12:00:55Z","message":"Kubelet stopped posting node status.","reason":"NodeStatusUnknown","status":"Unknown","type":"MemoryPressure"},{"lastTransitionTime":"2025-01-01T12:00:55Z","message":"Kubelet stopped posting node status.","reason":"NodeStatusUnknown","status":"Unknown","type":"DiskPressure"},{"lastTransitionTime":"2025-01-01T12:00:55Z","message":"Kubelet stopped posting node status.","reason":"NodeStatusUnknown","status":"Unknown","type":"PIDPressure"}]}}
            ok: Normal NodeNotReady: Node a status is now: NodeNotReady
        again after 100ms
        55s: merge /api/v1/nodes/a {"metadata":{"resourceVersion":"1","uid":"u-a"},"spec":{"taints":[{"effect":"NoExecute","key":"node.kubernetes.io/unreachable","timeAdded":"2025-01-01T12:00:55Z"}]}}
        strategic /api/v1/namespaces/ns/pods/on-a/status {"metadata":{"uid":"p"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:55Z","status":"False","type":"Ready"}]}}
            ok: Warning NodeNotReady: Node is not ready
        again after 100ms
        =
        75s: merge /api/v1/nodes/a {"metadata":{"resourceVersion":"1","uid":"u-a"},"spec":{"taints":[]}}
        again after 100ms
    "#]].assert_eq(&[first, lost, back].join("=\n"));
}

#[test]
fn looks_evictions_and_zones_are_measured() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    for (name, zone) in [("a", "z"), ("b", "z")] {
        let labels = json!({"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": zone});
        cluster.nodes.get_mut(name).unwrap()["metadata"]["labels"] = labels;
    }
    cluster.run(70, &["b", "c"]);
    expect![[r#"
        written /api/v1/nodes/a: node_collector_evictions_total "r:\0:z" = 1
    "#]]
    .assert_eq(&cluster.evictions);
    let view = View::default()
        .with(snapshot::<Node>(cluster.nodes.values().cloned()))
        .with(snapshot::<Lease>([]))
        .with(snapshot::<Pod>([]));
    expect![[r#"
        decided: node_collector_evictions_total "" = 0
        decided: node_collector_evictions_total "r:\0:z" = 0
        succeeded: node_collector_update_all_nodes_health_duration_seconds = 0 + elapsed
        failed: node_collector_update_all_nodes_health_duration_seconds = 0 + elapsed
    "#]]
    .assert_eq(&observed(&reconcile(&Monitor::default(), &view, "", "", &[])));
    let gauges: Vec<String> = metrics::gauges(&view.get()).iter().map(sample).collect();
    expect![[r#"
        node_collector_zone_health "" = 100
        node_collector_zone_size "" = 1
        node_collector_unhealthy_nodes_in_zone "" = 0
        node_collector_zone_health "r:\0:z" = 50
        node_collector_zone_size "r:\0:z" = 2
        node_collector_unhealthy_nodes_in_zone "r:\0:z" = 1"#]]
    .assert_eq(&gauges.join("\n"));
}

#[test]
fn a_node_that_never_posted_a_status_is_waited_for_longer() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.nodes.get_mut("a").unwrap()["status"] = json!({"conditions": []});
    cluster.renewed.remove("a");
    cluster.observe(Duration::ZERO);
    assert_eq!(cluster.run(60, &["b"]), "");
    assert_eq!(cluster.run(5, &["b"]), "65s: again after 100ms\n");
    expect![[r#"
        strategic /api/v1/nodes/a/status {"metadata":{"resourceVersion":"1","uid":"u-a"},"status":{"conditions":[{"lastHeartbeatTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:01:05Z","message":"Kubelet never posted node status.","reason":"NodeStatusNeverUpdated","status":"Unknown","type":"Ready"},{"lastHeartbeatTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:01:05Z","message":"Kubelet never posted node status.","reason":"NodeStatusNeverUpdated","status":"Unknown","type":"MemoryPressure"},{"lastHeartbeatTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:01:05Z","message":"Kubelet never posted node status.","reason":"NodeStatusNeverUpdated","status":"Unknown","type":"DiskPressure"},{"lastHeartbeatTime":"2025-01-01T12:00:00Z","lastTransitionTime":"2025-01-01T12:01:05Z","message":"Kubelet never posted node status.","reason":"NodeStatusNeverUpdated","status":"Unknown","type":"PIDPressure"}]}}
        again after 100ms
    "#]].assert_eq(&cluster.observe(Duration::from_millis(100)));
}

#[test]
fn no_node_is_lost_while_the_view_of_leases_is_behind() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.observe(Duration::ZERO);
    cluster.live.insert("a".to_owned(), Live::At(u64::MAX));
    // Neither is `b`, of which the server has what the view shows.
    assert_eq!(cluster.run(300, &["c"]), "55s: again after 100ms\n");
    cluster.live.clear();
    cluster.renew("a");
    cluster.run(60, &["a", "c"]);
    assert_eq!(cluster.tainted(), "b");
}

#[test]
fn a_node_of_which_the_lease_cannot_be_read_stays_as_it_is() {
    let mut cluster = Cluster::of(&["a", "b", "c"]);
    cluster.observe(Duration::ZERO);
    cluster.live.insert("a".to_owned(), Live::Unread);
    cluster.run(120, &["c"]);
    assert_eq!(cluster.tainted(), "b");
    cluster.live.insert("a".to_owned(), Live::Missing);
    cluster.run(120, &["c"]);
    assert_eq!(cluster.nodes["a"]["status"]["conditions"][0]["status"], "Unknown");
}

#[test]
fn a_cluster_without_ready_nodes_evicts_nothing() {
    for names in [&["a"][..], &["a", "b", "c"]] {
        let mut cluster = Cluster::of(names);
        cluster.observe(Duration::ZERO);
        cluster.run(3600, &[]);
        assert!(cluster.nodes.values().all(|node| node["status"]["conditions"][0]["status"] == "Unknown"));
        assert_eq!(cluster.tainted(), "");
    }
    // Taints of before are lifted when the last node goes.
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.observe(Duration::ZERO);
    cluster.run(70, &["b"]);
    assert_eq!(cluster.tainted(), "a");
    cluster.run(70, &[]);
    assert_eq!(cluster.tainted(), "");
    // When one is back, the others that are lost get theirs again.
    cluster.ready("b");
    cluster.run(40, &["b"]);
    assert_eq!(cluster.tainted(), "a");
}

#[test]
fn nodes_of_a_zone_are_tainted_at_its_rate() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let mut cluster = Cluster::of(&names);
    cluster.observe(Duration::ZERO);
    let mut seen = String::new();
    for _ in 0..10 {
        cluster.run(10, &["d", "e", "f", "g"]);
        let _ = write!(seen, "[{}]", cluster.tainted());
    }
    expect!["[][][][][][a][a b][a b c][a b c][a b c]"].assert_eq(&seen);
    // With more than half of a small zone lost, no more nodes are tainted.
    cluster.run(300, &["f", "g"]);
    expect!["a b c"].assert_eq(&cluster.tainted());
}

#[test]
fn new_and_removed_nodes_are_reported() {
    let mut cluster = Cluster::of(&["a", "b"]);
    cluster.observe(Duration::ZERO);
    cluster.nodes.remove("b");
    expect![[r#"
        event: Normal RemovingNode: Node b event: Removing Node b from Controller
        again after 5s
    "#]]
    .assert_eq(&cluster.observe(PERIOD));
}

#[test]
fn computes_the_states_of_zones() {
    let state = |ready, unready| Counts { ready, unready }.disruption(&EvictionRates::default());
    assert_eq!(state(0, 0), Disruption::Normal);
    assert_eq!(state(0, 1), Disruption::Full);
    assert_eq!(state(1, 2), Disruption::Normal);
    assert_eq!(state(2, 3), Disruption::Partial);
    assert_eq!(state(46, 54), Disruption::Normal);
    assert_eq!(state(45, 55), Disruption::Partial);
}

#[test]
fn a_zone_that_is_lost_beside_others_keeps_the_normal_rate() {
    let zone = |name: &str| (String::new(), name.to_owned());
    let both = |a: (usize, usize), b: (usize, usize)| {
        let counts = |(ready, unready)| Counts { ready, unready };
        BTreeMap::from([(zone("a"), counts(a)), (zone("b"), counts(b))])
    };
    let mut zones = Zones::default();
    assert_eq!(zones.update(&both((5, 0), (5, 0)), now()), Turn::None);
    assert_eq!(zones.update(&both((0, 5), (5, 0)), now()), Turn::None);
    assert!(zones.accepts(&zone("a"), now()));
    assert!(!zones.accepts(&zone("a"), now()));
    assert_eq!(zones.update(&both((0, 5), (0, 5)), now()), Turn::Stopped);
    assert_eq!(zones.next_token(&zone("b"), now()), None);
    assert_eq!(zones.update(&both((0, 5), (0, 5)), now()), Turn::None);
    assert_eq!(zones.update(&both((0, 5), (1, 4)), now()), Turn::Resumed);
    let after = |seconds: i64| Timestamp::from_second(now().as_second() + seconds).unwrap();
    assert_eq!(zones.next_token(&zone("a"), now()), Some(after(10)));
    // A small zone that is lost in part gives none.
    assert_eq!(zones.next_token(&zone("b"), now()), None);
    // A clock that is set back delays by one interval at most.
    assert!(!zones.accepts(&zone("a"), after(-7200)));
    assert!(zones.next_token(&zone("a"), after(-7200)) <= Some(after(-7190)));
}

proptest! {
    /// However the clock jumps, a kubelet that renews its lease between any ten looks is never taken for lost.
    #[test]
    fn jumps_of_the_clock_lose_no_node(jumps in prop::collection::vec((0u64..100_000, 1usize..10), 1..30)) {
        let node: Node = object(json!({"metadata": {"name": "n"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        let lease = |n: usize| -> Lease {
            let at = Timestamp::from_second(i64::try_from(n).unwrap()).unwrap();
            object(json!({"spec": {"renewTime": at}}))
        };
        let mut health = Health::new(&node, None);
        for (n, (jump, looks)) in jumps.into_iter().enumerate() {
            for _ in 0..looks {
                health.observe(&node, Some(&lease(n)), Duration::from_secs(jump), &NodeMonitorConfig::default());
                prop_assert!(!health.silent(&NodeMonitorConfig::default()));
            }
        }
    }

    /// A zone never gives more tokens than its rate allows.
    #[test]
    fn tokens_come_at_the_rate(steps in prop::collection::vec(0i64..30, 1..60)) {
        let key = (String::new(), String::new());
        let mut zones = Zones::default();
        let (mut at, mut given) = (now(), 0);
        zones.add(&key, at);
        for step in &steps {
            at = Timestamp::from_second(at.as_second() + step).unwrap();
            given += i64::from(zones.accepts(&key, at));
        }
        prop_assert!(given <= steps.iter().sum::<i64>() / 10 + 1);
        prop_assert!(given > 0);
    }
}

#[test]
fn grace_and_rates_are_configured() {
    let node: Node = object(json!({"metadata": {"name": "n"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    let second = Duration::from_secs(1);
    let config = NodeMonitorConfig { period: second, grace: second * 3, ..NodeMonitorConfig::default() };
    let mut health = Health::new(&node, None);
    let silent = |health: &mut Health| {
        health.observe(&node, None, second * 9, &config);
        health.silent(&config)
    };
    // A look counts for a period at most.
    assert_eq!([(); 5].map(|()| silent(&mut health)), [false, false, false, true, true]);
    let rates = EvictionRates { rate: 0.5, secondary_rate: 0.25, unhealthy: 0.3, large: 4 };
    let zone = (String::new(), "a".to_owned());
    let wait = |ready, unready| {
        let mut zones = Zones::new(rates);
        zones.update(&BTreeMap::from([(zone.clone(), Counts { ready, unready })]), now());
        zones
            .accepts(&zone, now())
            .then(|| zones.next_token(&zone, now()).unwrap().as_second() - now().as_second())
    };
    assert_eq!((wait(9, 1), wait(7, 3)), (Some(2), Some(4)));
    // A zone that is not large gives none.
    assert_eq!(wait(1, 3), None);
    let none = EvictionRates { rate: 0.0, ..rates };
    let mut zones = Zones::new(none);
    zones.add(&zone, now());
    assert!(!zones.accepts(&zone, now()));
}
