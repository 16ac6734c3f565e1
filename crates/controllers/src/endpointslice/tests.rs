//! Tests of `slices`: fixtures in, expectations out.

use super::*;
use crate::testing::{ago, now, observed, reconcile, sample, snapshot, text};
use expect_test::expect;
use kaji_meta::Status;
use kaji_runtime::{Error, Failure};

fn service() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "s1", "labels": {"team": "a"}, "creationTimestamp": ago(60)},
        "spec": {
            "selector": {"app": "web"}, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
        },
    })
}

fn pod(name: &str, ip: &str, ready: Option<i64>) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "h", "containerPort": 8081, "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": ready.map(|s| json!([{"type": "Ready", "status": "True", "lastTransitionTime": ago(s)}]))
                .unwrap_or_else(|| json!([]))},
    })
}

fn node() -> Value {
    json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z1"}}})
}

fn view(service: Value, pods: Vec<Value>, slices: Vec<Value>) -> View {
    View::default()
        .with(snapshot::<Service>([service]))
        .with(snapshot::<Pod>(pods))
        .with(snapshot::<EndpointSlice>(slices))
        .with(snapshot::<Node>([node()]))
}

fn plan(service: Value, pods: Vec<Value>, slices: Vec<Value>) -> String {
    short(&text(&reconcile(&Slices::new(100), &view(service, pods, slices), "ns", "web", &[])))
}

/// Without the lines of events for failures, which all steps have.
fn short(text: &str) -> String {
    text.lines().filter(|l| !l.starts_with("    failed:")).map(|l| format!("{l}\n")).collect()
}

/// What the API server would hold after the creates of a plan.
fn created(service: Value, pods: Vec<Value>) -> Vec<Value> {
    let plan = reconcile(&Slices::new(100), &view(service, pods, vec![]), "ns", "web", &[]);
    let writes = plan.writes().enumerate();
    let created = writes.filter_map(|(i, w)| match w {
        Write::Create { body, .. } => {
            let mut body = body.clone();
            body["metadata"]["name"] = format!("web-{i}").into();
            body["metadata"]["uid"] = format!("slice{i}").into();
            body["metadata"]["resourceVersion"] = "9".into();
            Some(body)
        }
        _ => None,
    });
    created.collect()
}

#[test]
fn creates_slices_of_a_service() {
    let mut leaving = pod("c", "10.1.0.3", Some(90));
    leaving["metadata"]["deletionTimestamp"] = now().to_string().into();
    let mut over = pod("d", "10.1.0.4", None);
    over["status"]["phase"] = "Succeeded".into();
    let mut foreign = pod("e", "10.1.0.5", Some(1));
    foreign["metadata"]["labels"] = json!({"app": "other"});
    let mut lost = pod("f", "10.1.0.6", Some(1));
    lost["spec"]["nodeName"] = "gone".into();
    let mut named = pod("g", "10.1.0.7", Some(5));
    named["spec"]["hostname"] = "g-0".into();
    named["spec"]["subdomain"] = "web".into();
    let pods = vec![
        pod("a", "10.1.0.1", Some(30)),
        pod("b", "10.1.0.2", None),
        leaving,
        over,
        foreign,
        lost,
        named,
        pod("h", "", None),
    ];
    let text = text(&reconcile(&Slices::new(100), &view(service(), pods, vec![]), "ns", "web", &[]));
    expect![[r#"
        create /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices {"addressType":"IPv4","apiVersion":"discovery.k8s.io/v1","endpoints":[{"addresses":["10.1.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"n1","targetRef":{"kind":"Pod","name":"a","namespace":"ns","uid":"uid-a"},"zone":"z1"},{"addresses":["10.1.0.2"],"conditions":{"ready":false,"serving":false,"terminating":false},"nodeName":"n1","targetRef":{"kind":"Pod","name":"b","namespace":"ns","uid":"uid-b"},"zone":"z1"},{"addresses":["10.1.0.3"],"conditions":{"ready":false,"serving":true,"terminating":true},"nodeName":"n1","targetRef":{"kind":"Pod","name":"c","namespace":"ns","uid":"uid-c"},"zone":"z1"},{"addresses":["10.1.0.7"],"conditions":{"ready":true,"serving":true,"terminating":false},"hostname":"g-0","nodeName":"n1","targetRef":{"kind":"Pod","name":"g","namespace":"ns","uid":"uid-g"},"zone":"z1"}],"kind":"EndpointSlice","metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2025-01-01T11:59:00Z"},"generateName":"web-","labels":{"endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","kubernetes.io/service-name":"web","team":"a"},"namespace":"ns","ownerReferences":[{"apiVersion":"v1","blockOwnerDeletion":true,"controller":true,"kind":"Service","name":"web","uid":"s1"}]},"ports":[{"name":"http","port":8080,"protocol":"TCP"}]}
            failed: Warning FailedToUpdateEndpointSlices: Error updating Endpoint Slices for Service ns/web: failed to create EndpointSlice for Service ns/web: {error}
    "#]].assert_eq(&text);
}

#[test]
fn writes_nothing_when_slices_are_current() {
    let pods = || vec![pod("a", "10.1.0.1", Some(30)), pod("b", "10.1.0.2", None)];
    expect![""].assert_eq(&plan(service(), pods(), created(service(), pods())));
    expect![""].assert_eq(&plan(service(), vec![], created(service(), vec![])));
}

#[test]
fn fills_the_placeholder_slice_first() {
    expect![[r#"
        merge /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/web-0 {"endpoints":[{"addresses":["10.1.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"n1","targetRef":{"kind":"Pod","name":"a","namespace":"ns","uid":"uid-a"},"zone":"z1"}],"metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2025-01-01T11:59:30Z"},"resourceVersion":"9","uid":"slice0"},"ports":[{"name":"http","port":8080,"protocol":"TCP"}]}
    "#]].assert_eq(&plan(
        service(),
        vec![pod("a", "10.1.0.1", Some(30))],
        created(service(), vec![]),
    ));
}

#[test]
fn updates_after_changes_of_pods_and_labels() {
    let slices = created(service(), vec![pod("a", "10.1.0.1", None), pod("b", "10.1.0.2", Some(50))]);
    // One becomes ready, one goes.
    expect![[r#"
        merge /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/web-0 {"endpoints":[{"addresses":["10.1.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"n1","targetRef":{"kind":"Pod","name":"a","namespace":"ns","uid":"uid-a"},"zone":"z1"}],"metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2025-01-01T11:59:57Z"},"resourceVersion":"9","uid":"slice0"},"ports":[{"name":"http","port":8080,"protocol":"TCP"}]}
    "#]].assert_eq(&plan(service(), vec![pod("a", "10.1.0.1", Some(3))], slices.clone()));
    // All go.
    expect![[r#"
        merge /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/web-0 {"endpoints":[],"metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":null},"resourceVersion":"9","uid":"slice0"},"ports":[]}
    "#]].assert_eq(&plan(service(), vec![], slices.clone()));
    let mut renamed = service();
    renamed["metadata"]["labels"] = json!({"team": "b"});
    let pods = vec![pod("a", "10.1.0.1", None), pod("b", "10.1.0.2", Some(50))];
    let text = plan(renamed, pods, slices);
    assert!(text.contains(r#""labels":{"team":"b"}"#), "{text}");
}

#[test]
fn splits_slices_by_named_ports_and_families() {
    let mut dual = service();
    dual["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    dual["spec"]["clusterIP"] = "None".into();
    dual["spec"]["publishNotReadyAddresses"] = true.into();
    dual["spec"]["ports"][0]["targetPort"] = "h".into();
    let mut two = pod("b", "10.1.0.2", None);
    two["status"]["podIPs"] = json!([{"ip": "10.1.0.2"}, {"ip": "fd00:0::2"}]);
    two["spec"]["containers"][0]["ports"][0]["containerPort"] = 9000.into();
    let slices = created(dual.clone(), vec![pod("a", "10.1.0.1", None), two]);
    let line = |s: &Value| {
        let addresses: Vec<&Value> =
            s["endpoints"].as_array().unwrap().iter().map(|e| &e["addresses"][0]).collect();
        format!("{} {} {addresses:?} {}\n", s["addressType"], s["ports"][0]["port"], s["metadata"]["labels"])
    };
    expect![[r#"
        "IPv4" 8081 [String("10.1.0.1")] {"endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","kubernetes.io/service-name":"web","service.kubernetes.io/headless":"","team":"a"}
        "IPv4" 9000 [String("10.1.0.2")] {"endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","kubernetes.io/service-name":"web","service.kubernetes.io/headless":"","team":"a"}
        "IPv6" 9000 [String("fd00::2")] {"endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","kubernetes.io/service-name":"web","service.kubernetes.io/headless":"","team":"a"}
    "#]].assert_eq(&slices.iter().map(line).collect::<String>());
}

#[test]
fn limits_endpoints_per_slice() {
    let pods: Vec<Value> =
        (0..250).map(|i| pod(&format!("p{i:03}"), &format!("10.1.0.{i}"), Some(1))).collect();
    let sizes = |slices: &[Value]| {
        slices.iter().map(|s| s["endpoints"].as_array().unwrap().len()).collect::<Vec<_>>()
    };
    let slices = created(service(), pods.clone());
    assert_eq!(sizes(&slices), [100, 100, 50]);
    assert_eq!(plan(service(), pods, slices), "");
}

#[test]
fn sets_hints_for_zones_and_nodes() {
    let mut near = service();
    near["spec"]["trafficDistribution"] = "PreferSameNode".into();
    let pods = || vec![pod("a", "10.1.0.1", Some(3)), pod("b", "10.1.0.2", None)];
    let slices = created(near.clone(), pods());
    expect![[r#"{"forNodes":[{"name":"n1"}],"forZones":[{"name":"z1"}]} null"#]]
        .assert_eq(&format!("{} {}", slices[0]["endpoints"][0]["hints"], slices[0]["endpoints"][1]["hints"]));
    assert_eq!(plan(near, pods(), slices.clone()), "");
    assert!(plan(service(), pods(), slices).starts_with("merge "));
}

#[test]
fn deletes_slices_of_services_without_endpoints() {
    let slices = created(service(), vec![pod("a", "10.1.0.1", Some(3))]);
    let gone = View::default()
        .with(ObjectSnapshot::<Service>::default())
        .with(snapshot::<EndpointSlice>(slices.clone()));
    expect![[r#"
        delete /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/web-0 {"preconditions":{"uid":"slice0"}}
    "#]]
    .assert_eq(&text(&reconcile(&Slices::new(100), &gone, "ns", "web", &[])));
    let mut external = service();
    external["spec"]["type"] = "ExternalName".into();
    assert_eq!(plan(external, vec![pod("a", "10.1.0.1", Some(3))], vec![]), "");
    // Slices of a former service of the same name are not taken over.
    let mut again = service();
    again["metadata"]["uid"] = "s2".into();
    let text = plan(again, vec![pod("a", "10.1.0.1", Some(3))], slices);
    let verbs: Vec<&str> = text.lines().map(|l| l.split(' ').next().unwrap()).collect();
    assert_eq!(verbs, ["create", "--", "delete"]);
}

#[test]
fn creates_nothing_in_a_terminating_namespace() {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no",
        "details": {"causes": [{"reason": "NamespaceTerminating"}]}});
    let error = Error::Api(Box::new(Status::from_value(&status).unwrap()));
    let failures = [Failure { target: Target::of::<EndpointSlice>("ns", ""), error }];
    let view = view(service(), vec![], vec![]);
    assert_eq!(text(&reconcile(&Slices::new(100), &view, "ns", "web", &failures)), "");
}

#[test]
fn a_changed_node_enqueues_the_services_of_its_pods() {
    let view = view(service(), vec![pod("a", "10.1.0.1", Some(3))], vec![]);
    let node = |zone: &str| {
        let value = json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": zone}}});
        Some(Arc::new(crate::testing::object::<Node>(value)))
    };
    let keys = |old, new| keys_of_node(&Change { old, new }, &view).len();
    assert_eq!((keys(None, node("a")), keys(node("a"), node("b")), keys(node("a"), node("a"))), (1, 1, 0));
}

/// A service with topology-aware hints, its pods by zone, and what is there.
fn allotted(reconciler: &Slices, zones: &[&str], annotated: bool, slices: Vec<Value>) -> Plan {
    let mut service = service();
    if annotated {
        service["metadata"]["annotations"] = json!({"service.kubernetes.io/topology-mode": "Auto"});
    }
    let node = |zone: &&str| {
        json!({"metadata": {"name": format!("n-{zone}"), "labels": {ZONE_LABEL: zone}},
        "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    let pod = |(i, zone): (usize, &&str)| {
        let mut pod = pod(&format!("p{i}"), &format!("10.1.0.{}", i + 1), Some(9));
        pod["spec"]["nodeName"] = format!("n-{zone}").into();
        pod
    };
    let view = View::default()
        .with(snapshot::<Service>([service]))
        .with(snapshot::<Pod>(zones.iter().enumerate().map(pod)))
        .with(snapshot::<EndpointSlice>(slices))
        .with(snapshot::<Node>(["a", "b"].iter().map(node)));
    reconcile(reconciler, &view, "ns", "web", &[])
}

/// The slices after a plan, of which only the first is known.
fn applied(plan: &Plan, slices: &[Value]) -> Vec<Value> {
    let mut all = slices.to_vec();
    for write in plan.writes() {
        match write {
            Write::Create { body, .. } => {
                let mut body = body.clone();
                body["metadata"]["name"] = "web-0".into();
                all.push(body);
            }
            Write::Patch { body, .. } => all[0]["endpoints"] = body["endpoints"].clone(),
            _ => {}
        }
    }
    all
}

/// The zones of hints, and the events.
fn hints_of(plan: &Plan, slices: &[Value]) -> String {
    let endpoints = slices.iter().flat_map(|s| s["endpoints"].as_array().unwrap());
    let zones: Vec<&str> =
        endpoints.map(|e| e["hints"]["forZones"][0]["name"].as_str().unwrap_or("-")).collect();
    let events: String =
        plan.events.iter().map(|e| format!("\n{:?} {} {}", e.kind, e.reason, e.message)).collect();
    format!("{} writes: {}{events}\n", plan.writes().count(), zones.join(" "))
}

#[test]
fn topology_aware_hints_come_and_go_with_the_annotation_and_the_endpoints() {
    let reconciler = Slices::new(100);
    let (mut slices, mut shown) = (vec![], String::new());
    let steps: [(&[&str], bool); 7] = [
        (&["a", "a", "a", "b"], false),
        (&["a", "a", "a", "b"], true),
        (&["a", "a", "a", "b"], true),
        (&["a", "a", "a", "b", "b"], true),
        (&["a"], true),
        (&["a", "b"], true),
        (&["a", "b"], false),
    ];
    for (zones, annotated) in steps {
        let plan = allotted(&reconciler, zones, annotated, slices.clone());
        slices = applied(&plan, &slices);
        shown += &hints_of(&plan, &slices);
    }
    expect![[r#"
        1 writes: - - - -
        1 writes: b a a b
        Normal TopologyAwareHintsEnabled Topology Aware Hints has been enabled, addressType: IPv4
        0 writes: b a a b
        1 writes: - - - - -
        Warning TopologyAwareHintsDisabled Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (5 endpoints, 2 zones), addressType: IPv4
        1 writes: -
        Warning TopologyAwareHintsDisabled Insufficient number of endpoints (1 endpoints, 2 zones), addressType: IPv4
        1 writes: a b
        Normal TopologyAwareHintsEnabled Topology Aware Hints has been enabled, addressType: IPv4
        1 writes: - -
        Warning TopologyAwareHintsDisabled Topology Aware Hints has been disabled, addressType: IPv4
    "#]].assert_eq(&shown);
}

#[test]
fn a_node_that_overloads_a_zone_enqueues_services_with_topology_aware_hints() {
    let zones = ["a", "a", "b", "b"];
    let slices = applied(&allotted(&Slices::new(100), &zones, true, vec![]), &[]);
    let node = |name: &str, zone: &str, cpu: &str, ready: &str| {
        json!({"metadata": {"name": name, "labels": {ZONE_LABEL: zone}},
            "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": ready}]}})
    };
    let mut auto = service();
    auto["metadata"]["annotations"] = json!({"service.kubernetes.io/topology-mode": "auto"});
    let keys = |service: &Value, ready: &str| {
        let big = || node("n-big", "a", "64", ready);
        let nodes = [node("n-a", "a", "4", "True"), node("n-b", "b", "4", "True"), big()];
        let view = View::default()
            .with(snapshot::<Service>([service.clone()]))
            .with(snapshot::<Pod>([]))
            .with(snapshot::<EndpointSlice>(slices.clone()))
            .with(snapshot::<Node>(nodes));
        let object = |value: Value| Some(Arc::new(crate::testing::object::<Node>(value)));
        let old = node("n-big", "a", "64", "False");
        keys_of_node(&Change { old: object(old), new: object(big()) }, &view).len()
    };
    assert_eq!((keys(&auto, "True"), keys(&auto, "False"), keys(&service(), "True")), (1, 0, 0));
}

#[test]
fn syncs_and_sizes_are_measured() {
    let slices = Slices::new(2);
    let counted = |service: Value, pods: Vec<Value>, existing: Vec<Value>| {
        let text = observed(&reconcile(&slices, &view(service, pods, existing), "ns", "web", &[]));
        text.replace("endpoint_slice_controller_", "").replace("/apis/discovery.k8s.io/v1/namespaces/ns/", "")
    };
    let gauges = || {
        let all = slices.sizes.gauges();
        all.iter()
            .map(|gauge| sample(gauge).replace("endpoint_slice_controller_", "") + "\n")
            .collect::<String>()
    };
    let of = |count: usize| (0..count).map(|i| pod(&format!("p{i}"), &format!("10.1.0.{}", i + 1), Some(5)));
    expect![[r#"
        written endpointslices: changes "create" = 1
        decided: endpoints_added_per_sync = 3
        decided: endpoints_removed_per_sync = 0
        succeeded: endpointslices_changed_per_sync "Disabled" "" = 2
        succeeded: syncs "success" = 1
        failed: syncs "error" = 1
    "#]]
    .assert_eq(&counted(service(), of(3).collect(), vec![]));
    expect![[r#"
        endpoints_desired = 3
        num_endpoint_slices = 2
        desired_endpoint_slices = 2
    "#]]
    .assert_eq(&gauges());
    // A pod of three went, and another one came.
    let plan = reconcile(&slices, &view(service(), of(3).collect(), vec![]), "ns", "web", &[]);
    let bodies = plan.writes().enumerate().filter_map(|(i, write)| {
        let Write::Create { body, .. } = write else { return None };
        let mut body = body.clone();
        body["metadata"]["name"] = format!("web-{i}").into();
        Some(body)
    });
    let mut near = service();
    near["spec"]["trafficDistribution"] = "PreferClose".into();
    let pods = of(2).chain([pod("q", "10.1.0.9", Some(1))]).collect();
    expect![[r#"
        written endpointslices/web-0: changes "update" = 1
        written endpointslices/web-1: changes "update" = 1
        decided: endpoints_added_per_sync = 1
        decided: endpoints_removed_per_sync = 1
        succeeded: endpointslices_changed_per_sync "Disabled" "PreferClose" = 2
        succeeded: syncs "success" = 1
        failed: syncs "error" = 1
    "#]]
    .assert_eq(&counted(near.clone(), pods, bodies.collect()));
    assert!(
        gauges().ends_with("services_count_by_traffic_distribution \"PreferClose\" = 1\n"),
        "{}",
        gauges()
    );
    // Without endpoints there is a placeholder, and nothing of a service that is gone.
    counted(near.clone(), vec![], vec![]);
    assert!(
        gauges().starts_with("endpoints_desired = 0\nnum_endpoint_slices = 1\ndesired_endpoint_slices = 1\n"),
        "{}",
        gauges()
    );
    near["metadata"]["name"] = "other".into();
    assert_eq!(
        counted(near, vec![], vec![]),
        "succeeded: syncs \"success\" = 1\nfailed: syncs \"error\" = 1\n"
    );
    assert!(gauges().starts_with("endpoints_desired = 0\nnum_endpoint_slices = 0\n"), "{}", gauges());
}
