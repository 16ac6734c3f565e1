//! Questions of every sort to a small zone.

use super::*;
use expect_test::{Expect, expect};
use kaji_runtime::objects::{EndpointSlice, Service};
use serde_json::{Value, json};

fn records(service: Value, slices: &[Value]) -> Option<ServiceRecords> {
    let service: Service = serde_json::from_value(service).unwrap();
    let slices: Vec<EndpointSlice> =
        slices.iter().map(|slice| serde_json::from_value(slice.clone()).unwrap()).collect();
    ServiceRecords::of(&service, &slices)
}

fn web() -> Option<ServiceRecords> {
    records(
        json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.20", "clusterIPs": ["10.96.0.20", "fd00::20"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}, {"name": "dns", "protocol": "UDP", "port": 53}]
        }}),
        &[
            json!({"metadata": {"name": "web-4", "namespace": "shop"}, "addressType": "IPv4",
                "endpoints": [
                    {"addresses": ["10.1.0.1"], "conditions": {"ready": true}, "hostname": "Web-0"},
                    {"addresses": ["10.1.0.5"], "conditions": {"ready": true}},
                    {"addresses": ["10.1.0.6"], "conditions": {"ready": false, "serving": true}}
                ],
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]}),
            json!({"metadata": {"name": "web-6", "namespace": "shop"}, "addressType": "IPv6",
                "endpoints": [{"addresses": ["fd01:0:0:1::"]}],
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]}),
        ],
    )
}

fn headless(slices: &[Value]) -> Option<ServiceRecords> {
    records(json!({"spec": {"type": "ClusterIP", "clusterIP": "None"}}), slices)
}

fn database() -> Option<ServiceRecords> {
    records(
        json!({"metadata": {"name": "db", "namespace": "shop"}, "spec": {"type": "ClusterIP", "clusterIP": "None"}}),
        &[
            json!({"metadata": {"name": "db-4", "namespace": "shop"}, "addressType": "IPv4",
                "endpoints": [
                    {"addresses": ["10.1.0.1"], "conditions": {"ready": true}, "hostname": "db-0"},
                    {"addresses": ["10.1.0.2"], "conditions": {}},
                    {"addresses": ["10.1.0.3"], "conditions": {"ready": false}, "hostname": "db-2"}
                ],
                "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}]}),
            json!({"metadata": {"name": "db-6", "namespace": "shop"}, "addressType": "IPv6",
                "endpoints": [{"addresses": ["fd01::1"], "hostname": "db-0"}],
                "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}]}),
        ],
    )
}

fn zone() -> Zone {
    let mut zone = Zone::new("Cluster.Local.", vec!["10.96.0.10".parse().unwrap()]);
    zone.set_namespace("shop", true);
    zone.set_service(&ServiceKey::new("shop", "web"), web());
    zone.set_service(&ServiceKey::new("shop", "db"), database());
    let external = json!({"spec": {"type": "ExternalName", "externalName": "Db.Example.COM."}});
    zone.set_service(&ServiceKey::new("shop", "outside"), records(external, &[]));
    let alias = json!({"spec": {"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"}});
    zone.set_service(&ServiceKey::new("shop", "alias"), records(alias, &[]));
    let unready = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.7"], "conditions": {"ready": false}}]});
    zone.set_service(&ServiceKey::new("shop", "empty"), headless(&[unready]));
    let without_ports = json!({"addressType": "IPv6", "endpoints": [{"addresses": ["fd01::8"]}]});
    zone.set_service(&ServiceKey::new("shop", "six"), headless(&[without_ports]));
    zone
}

/// Adds services that are aliases.
fn with_aliases(mut zone: Zone, aliases: impl IntoIterator<Item = (String, String)>) -> Zone {
    for (name, target) in aliases {
        zone.set_service(&ServiceKey::new("shop", &name), Some(ServiceRecords::ExternalName(target)));
    }
    zone
}

fn text(answer: Answer) -> String {
    let line = |record: &Record| format!("{} {:?}\n", record.name, record.data);
    match answer {
        Answer::NoSuchName => "no such name\n".into(),
        Answer::NotAuthoritative => "not in the zone\n".into(),
        Answer::Alias { aliases, target } => {
            aliases.iter().map(line).collect::<String>() + &format!("asks for {target}\n")
        }
        Answer::Records { answers, .. } if answers.is_empty() => "no data\n".into(),
        Answer::Records { answers, additionals } => {
            let additional = |record: &Record| format!("+ {}", line(record));
            answers.iter().map(line).chain(additionals.iter().map(additional)).collect()
        }
    }
}

fn check(questions: &[(&str, Kind)], expected: Expect) {
    check_in(&zone(), questions, expected);
}

fn check_in(zone: &Zone, questions: &[(&str, Kind)], expected: Expect) {
    let answer =
        |(name, kind): &(&str, Kind)| format!("{name} {kind:?}:\n{}", text(zone.answer(name, *kind)));
    expected.assert_eq(&questions.iter().map(answer).collect::<String>());
}

#[test]
fn a_service_has_its_cluster_ips_by_family() {
    check(
        &[
            ("web.shop.svc.cluster.local", Kind::A),
            ("web.shop.svc.cluster.local", Kind::Aaaa),
            ("web.shop.svc.cluster.local", Kind::Txt),
            ("web.other.svc.cluster.local", Kind::A),
            ("x.web.shop.svc.cluster.local", Kind::A),
        ],
        expect![[r#"
            web.shop.svc.cluster.local A:
             Address(10.96.0.20)
            web.shop.svc.cluster.local Aaaa:
             Address(fd00::20)
            web.shop.svc.cluster.local Txt:
            no data
            web.other.svc.cluster.local A:
            no such name
            x.web.shop.svc.cluster.local A:
            no such name
        "#]],
    );
}

#[test]
fn ports_with_names_have_srv_records() {
    check(
        &[
            ("_http._tcp.web.shop.svc.cluster.local", Kind::Srv),
            ("_http._udp.web.shop.svc.cluster.local", Kind::Srv),
            ("_dns._udp.web.shop.svc.cluster.local", Kind::A),
            ("_sql._tcp.db.shop.svc.cluster.local", Kind::Srv),
        ],
        expect![[r#"
            _http._tcp.web.shop.svc.cluster.local Srv:
             Service { weight: 100, port: 80, target: "web.shop.svc.cluster.local" }
            + web.shop.svc.cluster.local Address(10.96.0.20)
            + web.shop.svc.cluster.local Address(fd00::20)
            _http._udp.web.shop.svc.cluster.local Srv:
            no such name
            _dns._udp.web.shop.svc.cluster.local A:
            no data
            _sql._tcp.db.shop.svc.cluster.local Srv:
             Service { weight: 50, port: 5432, target: "10-1-0-2.db.shop.svc.cluster.local" }
             Service { weight: 50, port: 5432, target: "db-0.db.shop.svc.cluster.local" }
            + 10-1-0-2.db.shop.svc.cluster.local Address(10.1.0.2)
            + db-0.db.shop.svc.cluster.local Address(10.1.0.1)
            + db-0.db.shop.svc.cluster.local Address(fd01::1)
        "#]],
    );
}

#[test]
fn a_headless_service_has_its_ready_endpoints() {
    check(
        &[
            ("db.shop.svc.cluster.local", Kind::A),
            ("db-0.db.shop.svc.cluster.local", Kind::Aaaa),
            ("10-1-0-2.db.shop.svc.cluster.local", Kind::A),
            ("db-2.db.shop.svc.cluster.local", Kind::A),
        ],
        expect![[r#"
            db.shop.svc.cluster.local A:
             Address(10.1.0.1)
             Address(10.1.0.2)
            db-0.db.shop.svc.cluster.local Aaaa:
             Address(fd01::1)
            10-1-0-2.db.shop.svc.cluster.local A:
             Address(10.1.0.2)
            db-2.db.shop.svc.cluster.local A:
            no such name
        "#]],
    );
}

#[test]
fn external_names_are_aliases() {
    check(
        &[
            ("outside.shop.svc.cluster.local", Kind::A),
            ("outside.shop.svc.cluster.local", Kind::Other),
            ("alias.shop.svc.cluster.local", Kind::A),
            ("alias.shop.svc.cluster.local", Kind::Srv),
            ("x.alias.shop.svc.cluster.local", Kind::A),
        ],
        expect![[r#"
            outside.shop.svc.cluster.local A:
             Alias("db.example.com")
            asks for db.example.com
            outside.shop.svc.cluster.local Other:
             Alias("db.example.com")
            alias.shop.svc.cluster.local A:
             Alias("web.shop.svc.cluster.local")
            web.shop.svc.cluster.local Address(10.96.0.20)
            alias.shop.svc.cluster.local Srv:
             Alias("web.shop.svc.cluster.local")
            x.alias.shop.svc.cluster.local A:
            no such name
        "#]],
    );
}

#[test]
fn aliases_of_any_name_of_the_zone_are_followed() {
    let below = |name: &str| format!("{name}.shop.svc.cluster.local");
    let aliases = [
        ("twice", below("alias")),
        ("far", below("outside")),
        ("endpoint", below("db-0.db")),
        ("pod", "10-1-0-9.shop.pod.cluster.local".to_owned()),
        ("absent", below("no")),
        ("no-data", below("six")),
    ];
    let zone = with_aliases(zone(), aliases.map(|(name, target)| (name.to_owned(), target)));
    check_in(
        &zone,
        &[
            ("twice.shop.svc.cluster.local", Kind::Aaaa),
            ("far.shop.svc.cluster.local", Kind::Aaaa),
            ("endpoint.shop.svc.cluster.local", Kind::A),
            ("pod.shop.svc.cluster.local", Kind::A),
            ("absent.shop.svc.cluster.local", Kind::A),
            ("no-data.shop.svc.cluster.local", Kind::A),
        ],
        expect![[r#"
            twice.shop.svc.cluster.local Aaaa:
             Alias("alias.shop.svc.cluster.local")
            alias.shop.svc.cluster.local Alias("web.shop.svc.cluster.local")
            web.shop.svc.cluster.local Address(fd00::20)
            far.shop.svc.cluster.local Aaaa:
             Alias("outside.shop.svc.cluster.local")
            outside.shop.svc.cluster.local Alias("db.example.com")
            asks for db.example.com
            endpoint.shop.svc.cluster.local A:
             Alias("db-0.db.shop.svc.cluster.local")
            db-0.db.shop.svc.cluster.local Address(10.1.0.1)
            pod.shop.svc.cluster.local A:
             Alias("10-1-0-9.shop.pod.cluster.local")
            10-1-0-9.shop.pod.cluster.local Address(10.1.0.9)
            absent.shop.svc.cluster.local A:
             Alias("no.shop.svc.cluster.local")
            no-data.shop.svc.cluster.local A:
             Alias("six.shop.svc.cluster.local")
        "#]],
    );
}

#[test]
fn loops_and_long_chains_of_aliases_end() {
    let below = |name: &str| format!("{name}.shop.svc.cluster.local");
    let loops = [("self", "self"), ("a", "b"), ("b", "a")];
    let mut zone = with_aliases(zone(), loops.map(|(name, target)| (name.to_owned(), below(target))));
    for name in ["self", "a", "b"] {
        assert_eq!(text(zone.answer(&below(name), Kind::A)), "no data\n", "{name}");
    }
    // `step1` leads to the service, `step2` to `step1`, and so on.
    let step = |i: usize| if i == 0 { "web".to_owned() } else { format!("step{i}") };
    let steps = (1..=MAX_ALIASES + 1).map(|i| (step(i), below(&step(i - 1))));
    zone = with_aliases(zone, steps);
    match zone.answer(&below(&step(MAX_ALIASES)), Kind::A) {
        Answer::Records { answers, .. } => assert_eq!(answers.len(), MAX_ALIASES + 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(zone.answer(&below(&step(MAX_ALIASES + 1)), Kind::A), Answer::no_data());
}

#[test]
fn endpoints_have_names_in_services_with_cluster_ips_too() {
    check(
        &[
            ("web-0.web.shop.svc.cluster.local", Kind::A),
            ("web-0.web.shop.svc.cluster.local", Kind::Aaaa),
            ("web-0.web.shop.svc.cluster.local", Kind::Srv),
            ("10-1-0-5.web.shop.svc.cluster.local", Kind::A),
            ("10-1-0-1.web.shop.svc.cluster.local", Kind::A),
            ("10-1-0-6.web.shop.svc.cluster.local", Kind::A),
            ("fd01-0-0-1--0.web.shop.svc.cluster.local", Kind::Aaaa),
            ("fd01-0-0-1--.web.shop.svc.cluster.local", Kind::Aaaa),
            ("fd01-0-0-1-0-0-0-0.web.shop.svc.cluster.local", Kind::Aaaa),
        ],
        expect![[r#"
            web-0.web.shop.svc.cluster.local A:
             Address(10.1.0.1)
            web-0.web.shop.svc.cluster.local Aaaa:
            no data
            web-0.web.shop.svc.cluster.local Srv:
             Service { weight: 100, port: 8080, target: "web-0.web.shop.svc.cluster.local" }
            + web-0.web.shop.svc.cluster.local Address(10.1.0.1)
            10-1-0-5.web.shop.svc.cluster.local A:
             Address(10.1.0.5)
            10-1-0-1.web.shop.svc.cluster.local A:
            no such name
            10-1-0-6.web.shop.svc.cluster.local A:
            no such name
            fd01-0-0-1--0.web.shop.svc.cluster.local Aaaa:
             Address(fd01:0:0:1::)
            fd01-0-0-1--.web.shop.svc.cluster.local Aaaa:
            no such name
            fd01-0-0-1-0-0-0-0.web.shop.svc.cluster.local Aaaa:
            no such name
        "#]],
    );
}

#[test]
fn a_headless_service_exists_while_it_has_endpoints() {
    check(
        &[
            ("empty.shop.svc.cluster.local", Kind::A),
            ("empty.shop.svc.cluster.local", Kind::Srv),
            ("empty.shop.svc.cluster.local", Kind::Other),
            ("10-1-0-7.empty.shop.svc.cluster.local", Kind::A),
            ("_sql._tcp.empty.shop.svc.cluster.local", Kind::Srv),
            ("six.shop.svc.cluster.local", Kind::A),
            ("six.shop.svc.cluster.local", Kind::Aaaa),
            ("six.shop.svc.cluster.local", Kind::Srv),
        ],
        expect![[r#"
            empty.shop.svc.cluster.local A:
            no such name
            empty.shop.svc.cluster.local Srv:
            no such name
            empty.shop.svc.cluster.local Other:
            no such name
            10-1-0-7.empty.shop.svc.cluster.local A:
            no such name
            _sql._tcp.empty.shop.svc.cluster.local Srv:
            no such name
            six.shop.svc.cluster.local A:
            no data
            six.shop.svc.cluster.local Aaaa:
             Address(fd01::8)
            six.shop.svc.cluster.local Srv:
            no data
        "#]],
    );
}

#[test]
fn addresses_have_names_and_those_of_others_are_forwarded() {
    check(
        &[
            ("20.0.96.10.in-addr.arpa", Kind::Ptr),
            ("1.0.1.10.in-addr.arpa", Kind::Ptr),
            ("2.0.1.10.in-addr.arpa", Kind::Ptr),
            ("3.0.1.10.in-addr.arpa", Kind::Ptr),
            ("5.0.1.10.in-addr.arpa", Kind::Ptr),
            ("0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.0.0.0.0.0.0.0.1.0.d.f.ip6.arpa", Kind::Ptr),
            ("0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa", Kind::Ptr),
            ("256.0.0.1.in-addr.arpa", Kind::Ptr),
            ("20.0.96.10.in-addr.arpa", Kind::A),
        ],
        expect![[r#"
            20.0.96.10.in-addr.arpa Ptr:
             Pointer("web.shop.svc.cluster.local")
            1.0.1.10.in-addr.arpa Ptr:
             Pointer("db-0.db.shop.svc.cluster.local")
             Pointer("web-0.web.shop.svc.cluster.local")
            2.0.1.10.in-addr.arpa Ptr:
             Pointer("10-1-0-2.db.shop.svc.cluster.local")
            3.0.1.10.in-addr.arpa Ptr:
            not in the zone
            5.0.1.10.in-addr.arpa Ptr:
             Pointer("10-1-0-5.web.shop.svc.cluster.local")
            0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.0.0.0.0.0.0.0.1.0.d.f.ip6.arpa Ptr:
             Pointer("fd01-0-0-1--0.web.shop.svc.cluster.local")
            0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa Ptr:
             Pointer("web.shop.svc.cluster.local")
            256.0.0.1.in-addr.arpa Ptr:
            not in the zone
            20.0.96.10.in-addr.arpa A:
            no data
        "#]],
    );
}

#[test]
fn the_zone_itself_pods_and_names_outside() {
    check(
        &[
            ("cluster.local", Kind::Ns),
            ("ns.dns.cluster.local", Kind::A),
            ("dns-version.cluster.local", Kind::Txt),
            ("shop.svc.cluster.local", Kind::A),
            ("other.svc.cluster.local", Kind::A),
            ("10-1-0-9.shop.pod.cluster.local", Kind::A),
            ("fd01--9.shop.pod.cluster.local", Kind::Aaaa),
            ("10-1-0-9.other.pod.cluster.local", Kind::A),
            ("mycluster.local", Kind::A),
            ("example.com", Kind::A),
            ("nonsense.cluster.local", Kind::A),
        ],
        expect![[r#"
            cluster.local Ns:
             NameServer("ns.dns.cluster.local")
            + ns.dns.cluster.local Address(10.96.0.10)
            ns.dns.cluster.local A:
             Address(10.96.0.10)
            dns-version.cluster.local Txt:
             Text("1.1.0")
            shop.svc.cluster.local A:
            no data
            other.svc.cluster.local A:
            no such name
            10-1-0-9.shop.pod.cluster.local A:
             Address(10.1.0.9)
            fd01--9.shop.pod.cluster.local Aaaa:
             Address(fd01::9)
            10-1-0-9.other.pod.cluster.local A:
            no such name
            mycluster.local A:
            not in the zone
            example.com A:
            not in the zone
            nonsense.cluster.local A:
            no such name
        "#]],
    );
}

#[test]
fn a_removed_service_leaves_nothing() {
    let mut zone = zone();
    let before = zone.clone();
    for service in ["web", "db", "outside", "alias", "empty", "six"] {
        assert!(zone.set_service(&ServiceKey::new("shop", service), None));
        assert!(!zone.set_service(&ServiceKey::new("shop", service), None));
    }
    assert!(zone.services.is_empty() && zone.reverse.is_empty());
    assert!(zone.serial() > before.serial());
    assert_eq!(text(before.answer("web.shop.svc.cluster.local", Kind::A)), " Address(10.96.0.20)\n");
    assert!(!zone.clone().set_service(&ServiceKey::new("shop", "new"), None));
}

#[test]
fn reverse_names_follow_the_endpoints_of_their_services() {
    let pointers = |zone: &Zone| text(zone.answer("1.0.1.10.in-addr.arpa", Kind::Ptr));
    let database = " Pointer(\"db-0.db.shop.svc.cluster.local\")\n";
    let mut zone = zone();
    assert!(zone.set_service(&ServiceKey::new("shop", "web"), headless(&[])));
    assert_eq!(pointers(&zone), database);
    // Sorted, whichever service came first.
    let same = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"]}]});
    assert!(zone.set_service(&ServiceKey::new("shop", "a"), headless(std::slice::from_ref(&same))));
    // In two slices while endpoints move between them.
    assert!(!zone.set_service(&ServiceKey::new("shop", "a"), headless(&[same.clone(), same])));
    assert_eq!(pointers(&zone), format!(" Pointer(\"10-1-0-1.a.shop.svc.cluster.local\")\n{database}"));
    // A cluster IP comes before endpoints.
    let taken = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.1.0.1"}});
    assert!(zone.set_service(&ServiceKey::new("shop", "taken"), records(taken, &[])));
    assert_eq!(pointers(&zone), " Pointer(\"taken.shop.svc.cluster.local\")\n");
    assert!(zone.set_service(&ServiceKey::new("shop", "taken"), None));
    assert!(zone.set_service(&ServiceKey::new("shop", "a"), None));
    assert_eq!(pointers(&zone), database);
}
