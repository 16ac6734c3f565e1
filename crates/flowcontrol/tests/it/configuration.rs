//! From configuration objects to routes and limits: matching, precedence, borrowing, levels that come and go.

use kaji_flowcontrol::{
    Controller, Digest, Estimate, FlowSchema, PriorityLevel, QueueSet, Queuing, Reason, Request,
    ResourceDigest, Settings, Started, bootstrap,
};
use serde_json::{Value, json};

type Gate = Controller<()>;
const SECOND: u64 = 1_000_000_000;

fn levels() -> Vec<PriorityLevel> {
    bootstrap::priority_levels().iter().map(|(v, _)| PriorityLevel::parse(v).unwrap()).collect()
}

fn schemas() -> Vec<FlowSchema> {
    bootstrap::flow_schemas().iter().map(|(v, _)| FlowSchema::parse(v)).collect()
}

fn gate() -> Gate {
    let gate = Gate::new(600, 0);
    gate.configure(0, levels(), schemas());
    gate
}

/// `user[,group..] verb target`, the target a path or `group/resource[/subresource] [namespace]`.
fn classify(gate: &Gate, text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let (user, groups) = words[0].split_once(',').unwrap_or((words[0], ""));
    let groups: Vec<String> = groups.split(',').map(str::to_owned).collect();
    let mut parts = words[2].split('/');
    let resource = (!words[2].starts_with('/')).then(|| ResourceDigest {
        group: parts.next().unwrap().trim_start_matches("core"),
        version: "v1",
        resource: parts.next().unwrap(),
        subresource: parts.next().unwrap_or_default(),
        namespace: words.get(3).copied().unwrap_or_default(),
        name: "",
    });
    let digest = Digest { user, groups: &groups, verb: words[1], path: words[2], resource };
    let active = gate.active();
    let route = active.classify(&digest);
    format!("{text} -> {} {} {:?}", route.schema.name, route.level.name, route.schema.distinguish(&digest))
}

#[test]
fn requests_find_their_levels() {
    let gate = gate();
    let cases = [
        "admin,system:masters,system:authenticated delete core/pods ns",
        "u,system:authenticated get /livez",
        "u,system:authenticated get /livez/etcd",
        "u,system:authenticated post /livez",
        "u,system:unauthenticated get /version",
        "system:node:n,system:nodes,system:authenticated update core/nodes/status",
        "system:node:n,system:nodes,system:authenticated update coordination.k8s.io/leases kube-node-lease",
        "system:node:n,system:nodes,system:authenticated list coordination.k8s.io/leases",
        "system:node:n,system:nodes,system:authenticated list core/pods",
        "system:kube-scheduler,system:authenticated update coordination.k8s.io/leases kube-system",
        "system:kube-scheduler,system:authenticated delete coordination.k8s.io/leases kube-system",
        "system:kube-controller-manager,system:authenticated create core/pods ns",
        "system:serviceaccount:kube-system:a,system:serviceaccounts,system:authenticated list core/secrets ns",
        "system:serviceaccount:kube-systems:a,system:serviceaccounts,system:authenticated list core/secrets ns",
        "u,system:authenticated list core/secrets ns",
        "nobody,nothing list core/secrets ns",
    ];
    let got: Vec<String> = cases.iter().map(|c| classify(&gate, c)).collect();
    expect_test::expect![[r#"
        admin,system:masters,system:authenticated delete core/pods ns -> exempt exempt ""
        u,system:authenticated get /livez -> probes exempt ""
        u,system:authenticated get /livez/etcd -> probes exempt ""
        u,system:authenticated post /livez -> global-default global-default "u"
        u,system:unauthenticated get /version -> global-default global-default "u"
        system:node:n,system:nodes,system:authenticated update core/nodes/status -> system-node-high node-high "system:node:n"
        system:node:n,system:nodes,system:authenticated update coordination.k8s.io/leases kube-node-lease -> system-node-high node-high "system:node:n"
        system:node:n,system:nodes,system:authenticated list coordination.k8s.io/leases -> system-nodes system "system:node:n"
        system:node:n,system:nodes,system:authenticated list core/pods -> system-nodes system "system:node:n"
        system:kube-scheduler,system:authenticated update coordination.k8s.io/leases kube-system -> system-leader-election leader-election "system:kube-scheduler"
        system:kube-scheduler,system:authenticated delete coordination.k8s.io/leases kube-system -> kube-scheduler workload-high "kube-system"
        system:kube-controller-manager,system:authenticated create core/pods ns -> kube-controller-manager workload-high "ns"
        system:serviceaccount:kube-system:a,system:serviceaccounts,system:authenticated list core/secrets ns -> kube-system-service-accounts workload-high "ns"
        system:serviceaccount:kube-systems:a,system:serviceaccounts,system:authenticated list core/secrets ns -> service-accounts workload-low "system:serviceaccount:kube-systems:a"
        u,system:authenticated list core/secrets ns -> global-default global-default "u"
        nobody,nothing list core/secrets ns -> catch-all catch-all "nobody""#]].assert_eq(&got.join("\n"));
}

#[test]
fn a_subresource_is_named_with_its_resource() {
    let rule = |resources: Value, urls: Value| {
        let schema = json!({"metadata": {"name": "s"}, "spec": {
            "priorityLevelConfiguration": {"name": "system"}, "matchingPrecedence": 1,
            "rules": [{"subjects": [{"kind": "User", "user": {"name": "*"}}],
                "resourceRules": [{"verbs": ["get"], "apiGroups": ["apps"], "resources": resources, "namespaces": ["a"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": urls}]}]}});
        let gate = Gate::new(600, 0);
        gate.configure(0, levels(), vec![FlowSchema::parse(&schema)]);
        gate
    };
    let gate = rule(json!(["deployments/status", "daemonsets"]), json!(["/logs/*", "/a"]));
    let cases = [
        "u get apps/deployments/status a",
        "u get apps/deployments a",
        "u get apps/daemonsets a",
        "u get apps/daemonsets/status a",
        "u get apps/daemonsets b",
        "u get apps/daemonsets",
        "u list apps/daemonsets a",
        "u get core/daemonsets a",
        "u get /logs/x",
        "u get /logs",
        "u get /a",
        "u get /a/b",
        "u get /ab",
    ];
    let ours: Vec<&str> = cases.iter().copied().filter(|c| classify(&gate, c).contains("-> s ")).collect();
    expect_test::expect![[r#"
        u get apps/deployments/status a
        u get apps/daemonsets a
        u get /logs/x
        u get /a
        u get /a/b"#]]
    .assert_eq(&ours.join("\n"));
}

#[test]
fn seats_are_divided_by_shares() {
    let gate = gate();
    let got: Vec<String> = levels()
        .iter()
        .map(|l| {
            let limits = gate.limits(&l.name).unwrap();
            format!("{} {} {} {}", l.name, limits.nominal, limits.least, limits.most)
        })
        .collect();
    // As kube-apiserver shows them in apiserver_flowcontrol_nominal_limit_seats and its kin.
    expect_test::expect![[r#"
        system 74 50 674
        node-high 98 73 698
        leader-election 25 25 625
        workload-high 98 49 698
        workload-low 245 24 845
        global-default 49 24 649
        catch-all 13 13 613
        exempt 0 0 600"#]]
    .assert_eq(&got.join("\n"));
}

/// Starts so many requests on a level's first route.
fn start(gate: &Gate, now: u64, level: &str, count: u64) -> Vec<Started> {
    let active = gate.active();
    let route = active.routes.iter().find(|r| r.level.name == level).unwrap();
    let request = |hash| Request {
        estimate: Estimate::ONE,
        hash,
        metrics: route.metrics.clone(),
        detail: None,
        busy: false,
    };
    (0..count)
        .map(|i| route.level.queues().start(now, request(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)), &mut vec![]))
        .collect()
}

#[test]
fn idle_levels_lend_to_busy_ones() {
    let gate = gate();
    let quiet = gate.limits("workload-low").unwrap().current;
    let started = start(&gate, SECOND, "workload-low", 400);
    let running = started.iter().filter(|s| matches!(s, Started::Running(_))).count() as i64;
    assert_eq!(running, quiet);
    let woken = gate.adjust(10 * SECOND);
    let busy = gate.limits("workload-low").unwrap();
    assert!(busy.current > busy.nominal, "{busy:?}");
    assert!(busy.current <= busy.most);
    // Tokens come back only from requests that were given one.
    assert!(woken.is_empty());
    let system = gate.limits("system").unwrap();
    assert_eq!(system.current.max(system.least), system.current, "what is not lent stays");
    let active = gate.active();
    let route = active.routes.iter().find(|r| r.level.name == "workload-low").unwrap();
    let mut set = route.level.queues();
    for started in started {
        if let Started::Running(id) | Started::Waiting(id) = started {
            set.finish(11 * SECOND, id, &mut vec![]);
        }
    }
}

#[test]
fn a_level_that_is_gone_drains_first() {
    let gate = gate();
    let [Started::Running(id)] = start(&gate, SECOND, "system", 1)[..] else { panic!() };
    let level = gate.active().routes.iter().find(|r| r.level.name == "system").unwrap().level.clone();
    let without: Vec<PriorityLevel> = levels().into_iter().filter(|l| l.name != "system").collect();
    let (markings, _) = gate.configure(2 * SECOND, without, schemas());
    let marking = markings.iter().find(|m| m.schema == "system-nodes").unwrap();
    assert_eq!((marking.condition.status.as_str(), marking.condition.reason.as_str()), ("True", "NotFound"));
    assert!(gate.dump_priority_levels().lines().any(|l| l.starts_with("system,") && l.contains("true,")));
    assert!(
        classify(&gate, "n,system:nodes,system:authenticated get core/pods").contains("-> global-default")
    );
    level.queues().finish(3 * SECOND, id, &mut vec![]);
    gate.adjust(10 * SECOND);
    assert_eq!(gate.limits("system"), None);
}

#[test]
fn the_mandatory_levels_are_there_without_any_object() {
    let gate = Gate::new(600, 0);
    assert!(classify(&gate, "a,system:masters get core/pods").contains("-> exempt exempt"));
    assert!(classify(&gate, "a,system:authenticated get core/pods").contains("-> catch-all catch-all"));
    assert_eq!(gate.limits("catch-all").unwrap().nominal, 600);
}

#[test]
fn broken_levels_are_refused() {
    let broken = |spec: Value| {
        PriorityLevel::parse(&json!({"metadata": {"name": "x"}, "spec": spec})).unwrap_err().to_string()
    };
    let got = [
        broken(json!({"type": "Limited"})),
        broken(json!({"type": "Exempt", "exempt": {}})),
        broken(json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue"}}})),
        broken(json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing":
            {"queues": 4, "handSize": 5, "queueLengthLimit": 1}}}})),
    ];
    expect_test::expect![[r#"
        broken union structure at the top, for Limited
        non-alignment between name and type
        broken union structure for limit response
        the QueueSetConfig implies an invalid shuffle sharding config"#]]
    .assert_eq(&got.join("\n"));
}

#[test]
fn lingering_seats_come_back_in_time() {
    let gate = gate();
    let active = gate.active();
    let route = active.routes.iter().find(|r| r.level.name == "leader-election").unwrap();
    let mut set = route.level.queues();
    let limit = gate.limits("leader-election").unwrap().current as u32;
    let estimate = Estimate { initial: 1, last: limit, linger: 5_000_000 };
    let request = |estimate, hash| Request {
        estimate,
        hash,
        metrics: route.metrics.clone(),
        detail: None,
        busy: false,
    };
    let Started::Running(wide) = set.start(SECOND, request(estimate, 1), &mut vec![]) else { panic!() };
    let Started::Waiting(thin) = set.start(SECOND, request(Estimate::ONE, 2), &mut vec![]) else { panic!() };
    set.set_token(thin, ());
    let mut woken = vec![];
    assert_eq!(set.finish(SECOND, wide, &mut woken).later, Some(SECOND + 5_000_000));
    assert!(woken.is_empty(), "its event still goes out");
    set.advance(SECOND + 4_999_999, &mut woken);
    assert!(woken.is_empty());
    set.advance(SECOND + 5_000_000, &mut woken);
    assert_eq!((woken.len(), set.next_release()), (1, None));
    set.finish(2 * SECOND, thin, &mut woken);
    assert!(set.idle());
}

/// Without a free seat nothing starts: not in a level without any (`nominalConcurrencyShares: 0`), and nothing that is wider
/// than its level while seats linger.
#[test]
fn queues_requests_wider_than_all_seats() {
    let gate = gate();
    let active = gate.active();
    let metrics = &active.routes.iter().find(|r| r.level.name == "leader-election").unwrap().metrics;
    let request =
        |estimate| Request { estimate, hash: 1, metrics: metrics.clone(), detail: None, busy: false };
    let queuing = Some(Queuing { queues: 1, hand: 1, length: 1 });
    let level = |limit| {
        let mut set = QueueSet::<()>::new(0);
        set.configure(0, Settings { exempt: false, queuing, limit, denominator: 1 }, &mut vec![]);
        set
    };
    let mut jail = level(0);
    assert!(matches!(jail.start(1, request(Estimate::ONE), &mut vec![]), Started::Waiting(_)));
    let second = jail.start(1, request(Estimate::ONE), &mut vec![]);
    assert_eq!(second, Started::Rejected(Reason::QueueFull));

    let mut small = level(2);
    let lingers = Estimate { initial: 1, last: 2, linger: 5 };
    let Started::Running(first) = small.start(1, request(lingers), &mut vec![]) else { panic!() };
    assert_eq!(small.finish(2, first, &mut vec![]).later, Some(7));
    let wider = Estimate { initial: 3, last: 0, linger: 0 };
    let Started::Waiting(wide) = small.start(3, request(wider), &mut vec![]) else { panic!() };
    small.set_token(wide, ());
    let mut woken = vec![];
    small.advance(7, &mut woken);
    assert_eq!(woken.len(), 1);
}
