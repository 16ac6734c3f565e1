//! What services become, without a kernel.

use crate::support::{config, service, slice};
use expect_test::{Expect, expect};
use kaji_netfilter::{Expr, Family};
use kaji_proxy::{
    changes::{Changes, Elements, Ruleset, Value},
    endpoints::LocalReady,
    service::compile,
    tables::{SetId, Spread, SpreadKind, TrafficPolicy},
};
use kaji_runtime::objects::EndpointSlice;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::{fmt::Write, sync::Arc};

fn address(bytes: &[u8]) -> String {
    bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(".")
}

/// IPv4 elements as text: set, key, value.
fn shown(elements: &Elements) -> String {
    elements.iter().fold(String::new(), |mut text, ((set, key), value)| {
        let port = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
        let key = match set {
            SetId::ClusterIps => address(key),
            SetId::Hairpin => format!("{} {}", address(&key[..4]), address(&key[4..])),
            _ => {
                let mut shown = format!("{} {} {}", address(&key[..4]), key[4], port(&key[8..]));
                match set {
                    SetId::Endpoints | SetId::LocalEndpoints => {
                        write!(shown, " {}", u32::from_ne_bytes(key[12..].try_into().unwrap())).unwrap();
                    }
                    SetId::AllowedSources => write!(shown, " {}", address(&key[12..])).unwrap(),
                    SetId::AffinityEndpoints | SetId::LocalAffinityEndpoints => {
                        write!(shown, " {} {}", address(&key[12..16]), port(&key[16..])).unwrap();
                    }
                    _ => {}
                }
                shown
            }
        };
        let value = match value {
            Value::Present => String::new(),
            Value::Spread(spread) => format!(" -> {spread}"),
            Value::Refuse { silently: true } => " -> drop".into(),
            Value::Refuse { silently: false } => " -> reject".into(),
            Value::Endpoint(bytes) => format!(" -> {} {}", address(&bytes[..4]), port(&bytes[4..])),
            Value::ServicePort(bytes) => {
                format!(" -> {} {} {}", address(&bytes[..4]), bytes[4], port(&bytes[8..]))
            }
            Value::Until(bytes) => format!(" to {}", address(&bytes[12..])),
        };
        writeln!(text, "{} {key}{value}", set.name()).unwrap();
        text
    })
}

fn check(spec: &Json, endpoints: &[&str], expected: Expect) {
    let slices: Vec<Arc<EndpointSlice>> = vec![slice("s", "TCP", 8080, endpoints)];
    expected.assert_eq(&shown(&compile(&service("s", spec), &slices, &config()).v4));
}

#[test]
fn writes_rules_for_a_cluster_ip() {
    check(
        &json!({"clusterIP": "10.96.0.1"}),
        &["10.244.1.3 node", "10.244.2.3 other", "10.244.2.4 other?"],
        expect![[r#"
        service-ips 10.96.0.1 6 80 -> cluster-2
        cluster-ips 10.96.0.1
        endpoints 10.96.0.1 6 80 0 -> 10.244.1.3 8080
        endpoints 10.96.0.1 6 80 1 -> 10.244.2.3 8080
        hairpin 10.244.1.3 10.244.1.3
    "#]],
    );
}

#[test]
fn no_endpoints_reject_and_local_policies_drop() {
    let spec = json!({"clusterIP": "10.96.0.1", "externalIPs": ["203.0.113.5"]});
    check(
        &spec,
        &[],
        expect![[r#"
        no-endpoints 10.96.0.1 6 80 -> reject
        no-endpoints 203.0.113.5 6 80 -> reject
        cluster-ips 10.96.0.1
    "#]],
    );
    let spec = json!({"clusterIP": "10.96.0.1", "internalTrafficPolicy": "Local"});
    check(
        &spec,
        &["10.244.2.3 other"],
        expect![[r#"
        no-endpoints 10.96.0.1 6 80 -> drop
        cluster-ips 10.96.0.1
    "#]],
    );
}

#[test]
fn terminating_endpoints_serve_when_no_others_do() {
    check(
        &json!({"clusterIP": "10.96.0.1"}),
        &["10.244.1.3 node!", "10.244.2.4 other?"],
        expect![[r#"
        service-ips 10.96.0.1 6 80 -> cluster-1
        cluster-ips 10.96.0.1
        endpoints 10.96.0.1 6 80 0 -> 10.244.1.3 8080
        hairpin 10.244.1.3 10.244.1.3
    "#]],
    );
}

#[test]
fn load_balancer_with_local_policy_source_ranges_and_affinity() {
    let spec = json!({
        "clusterIP": "10.96.0.1",
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 31000,
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "loadBalancerSourceRanges": ["198.51.100.0/24", " 198.51.100.0/28"],
        "ports": [{"port": 80, "nodePort": 30080}],
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}, {"ip": "203.0.113.8", "ipMode": "Proxy"}]}},
    });
    let slices = [slice("s", "TCP", 8080, &["10.244.1.3 node", "10.244.2.3 other"])];
    let compiled = compile(&service("s", &spec), &slices, &config());
    assert_eq!(compiled.health_check, Some((31000, LocalReady { v4: 1, v6: 0 })));
    expect![[r#"
        service-ips 0.0.0.0 6 30080 -> external-local-2-1-node-port-affinity-60
        service-ips 10.96.0.1 6 80 -> cluster-2-affinity-60
        service-ips 203.0.113.9 6 80 -> external-local-2-1-affinity-60
        cluster-ips 10.96.0.1
        endpoints 0.0.0.0 6 30080 0 -> 10.244.1.3 8080
        endpoints 0.0.0.0 6 30080 1 -> 10.244.2.3 8080
        endpoints 10.96.0.1 6 80 0 -> 10.244.1.3 8080
        endpoints 10.96.0.1 6 80 1 -> 10.244.2.3 8080
        endpoints 203.0.113.9 6 80 0 -> 10.244.1.3 8080
        endpoints 203.0.113.9 6 80 1 -> 10.244.2.3 8080
        local-endpoints 0.0.0.0 6 30080 0 -> 10.244.1.3 8080
        local-endpoints 203.0.113.9 6 80 0 -> 10.244.1.3 8080
        service-ports 0.0.0.0 6 30080 -> 10.96.0.1 6 80
        service-ports 10.96.0.1 6 80 -> 10.96.0.1 6 80
        service-ports 203.0.113.9 6 80 -> 10.96.0.1 6 80
        affinity-endpoints 10.96.0.1 6 80 10.244.1.3 8080
        affinity-endpoints 10.96.0.1 6 80 10.244.2.3 8080
        local-affinity-endpoints 10.96.0.1 6 80 10.244.1.3 8080
        hairpin 10.244.1.3 10.244.1.3
        firewalled 203.0.113.9 6 80
        allowed-sources 203.0.113.9 6 80 198.51.100.0 to 198.51.100.255
    "#]]
    .assert_eq(&shown(&compiled.v4));
}

#[test]
fn headless_external_names_and_other_proxies_are_left_out() {
    for spec in [
        json!({"clusterIP": "None"}),
        json!({"clusterIP": ""}),
        json!({"clusterIP": "10.96.0.1", "type": "ExternalName"}),
    ] {
        check(&spec, &["10.244.1.3"], expect![""]);
    }
}

#[test]
fn slices_of_headless_services_are_left_out() {
    let service = service("s", &json!({"clusterIP": "10.96.0.1"}));
    let mut old = EndpointSlice::clone(&slice("s", "TCP", 8080, &["10.244.1.3"]));
    old.metadata.labels.modify(|labels| {
        labels.insert("service.kubernetes.io/headless".into(), String::new());
    });
    let slices = [Arc::new(old), slice("s", "TCP", 8080, &["10.244.1.4"])];
    expect![[r#"
        service-ips 10.96.0.1 6 80 -> cluster-1
        cluster-ips 10.96.0.1
        endpoints 10.96.0.1 6 80 0 -> 10.244.1.4 8080
    "#]]
    .assert_eq(&shown(&compile(&service, &slices, &config()).v4));
}

#[test]
fn local_endpoints_are_counted_by_family() {
    let spec = json!({
        "clusterIP": "10.96.0.1",
        "clusterIPs": ["10.96.0.1", "fd00:10:96::1"],
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 31000,
    });
    let slices = [
        slice("s", "TCP", 8080, &["10.244.1.3 node", "10.244.1.4 node", "10.244.2.3 other"]),
        slice("s", "TCP", 8080, &["fd00:10:244:1::3 node", "fd00:10:244:1::4 node?"]),
    ];
    let compiled = compile(&service("s", &spec), &slices, &config());
    assert_eq!(compiled.health_check, Some((31000, LocalReady { v4: 2, v6: 1 })));
    // Without an address of IPv6, it is no load balancer of IPv6.
    let mut single = spec;
    single["clusterIPs"] = json!(["10.96.0.1"]);
    let compiled = compile(&service("s", &single), &slices, &config());
    assert_eq!(compiled.health_check, Some((31000, LocalReady { v4: 2, v6: 0 })));
}

/// The maps that a rule reads and adds to.
fn maps(rule: &[Expr]) -> String {
    let name = |expr: &Expr| match expr {
        Expr::Map { map, .. } | Expr::Contains(_, map) => Some(map.clone()),
        Expr::Remember { map, .. } => Some(format!("+{map}")),
        _ => None,
    };
    rule.iter().filter_map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn affinity_is_no_condition_of_a_connection() {
    for family in [Family::V4, Family::V6] {
        for kind in [SpreadKind::Cluster(3), SpreadKind::Local(3)] {
            let without = Spread { any: true, affinity: None, kind };
            let with = Spread { affinity: Some(60), ..without };
            let (without, with) = (without.rules(family, &config()), with.rules(family, &config()));
            assert_eq!(without.len(), 1);
            assert_eq!(with.last(), without.last());
        }
    }
    let rules = |kind| {
        let spread = Spread { any: false, affinity: Some(60), kind };
        let rules = spread.rules(Family::V4, &config());
        rules.iter().fold(String::new(), |text, rule| text + &maps(rule) + "\n")
    };
    expect![[r#"
        service-ports affinity affinity-endpoints +affinity
        service-ports local-affinity affinity-endpoints +local-affinity
        endpoints service-ports +affinity
        endpoints
    "#]]
    .assert_eq(&rules(SpreadKind::Cluster(3)));
    expect![[r#"
        service-ports local-affinity local-affinity-endpoints +local-affinity
        service-ports affinity local-affinity-endpoints +affinity
        local-endpoints service-ports +local-affinity
        local-endpoints
    "#]]
    .assert_eq(&rules(SpreadKind::Local(3)));
}

#[test]
fn affinity_does_not_depend_on_the_destination() {
    let spec = |ports: Json| {
        json!({
            "clusterIP": "10.96.0.1",
            "type": "NodePort",
            "externalIPs": ["203.0.113.5"],
            "sessionAffinity": "ClientIP",
            "ports": ports,
        })
    };
    let slices = [slice("s", "TCP", 8080, &["10.244.1.3"])];
    let kept = |ports: Json| -> Elements {
        let all = compile(&service("s", &spec(ports)), &slices, &config()).v4;
        let set = TrafficPolicy::Cluster.affinity_endpoints();
        all.into_iter().filter(|((id, _), _)| *id == set).collect()
    };
    // One service port has one entry an endpoint, however many destinations it has.
    let one = kept(json!([{"port": 80}]));
    assert_eq!(one.len(), 1);
    assert_eq!(kept(json!([{"port": 80, "nodePort": 30080}])), one);
}

#[test]
fn topology_hints_count_when_every_endpoint_has_them() {
    let mut node = config();
    node.zone = "a".into();
    let hinted = |zones: [Option<&str>; 2]| {
        let mut slice = EndpointSlice::clone(&slice("s", "TCP", 8080, &["10.244.1.3", "10.244.2.3"]));
        for (endpoint, zone) in slice.endpoints.iter_mut().zip(zones) {
            endpoint.hints = zone.map_or(Json::Null, |zone| json!({"forZones": [{"name": zone}]}));
        }
        let compiled = compile(&service("s", &json!({"clusterIP": "10.96.0.1"})), &[Arc::new(slice)], &node);
        compiled.v4.keys().filter(|(set, _)| *set == SetId::Endpoints).count()
    };
    assert_eq!(hinted([Some("a"), Some("b")]), 1);
    assert_eq!(hinted([Some("b"), Some("b")]), 2);
    assert_eq!(hinted([Some("a"), None]), 2);
}

fn elements(numbers: &[(u8, u8)]) -> Elements {
    let element = |(key, value): &(u8, u8)| ((SetId::Endpoints, vec![*key]), Value::Endpoint(vec![*value]));
    numbers.iter().map(element).collect()
}

proptest! {
    /// Changes, applied one after the other or merged, lead from nothing to what the services need.
    #[test]
    fn changes_lead_to_what_services_need(
        updates in prop::collection::vec((0_u8..4, prop::collection::vec((0_u8..6, 0_u8..3), 0..4)), 0..20),
    ) {
        let mut ruleset = Ruleset::default();
        let mut kernel = Elements::new();
        let mut merged = Changes::default();
        for (service, numbers) in updates {
            let changes = ruleset.update(&service.to_string(), elements(&numbers));
            changes.apply(&mut kernel).unwrap();
            Ruleset::merge(&mut merged, changes);
        }
        let mut at_once = Elements::new();
        merged.apply(&mut at_once).unwrap();
        prop_assert_eq!(&kernel, &ruleset.effective());
        prop_assert_eq!(&at_once, &ruleset.effective());
    }
}
