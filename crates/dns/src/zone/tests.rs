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
        &[],
    )
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
    zone
}

fn text(answer: Answer) -> String {
    let line = |record: &Record| format!("{} {:?}\n", record.name, record.data);
    match answer {
        Answer::NoSuchName => "no such name\n".into(),
        Answer::NotAuthoritative => "not in the zone\n".into(),
        Answer::Records { answers, .. } if answers.is_empty() => "no data\n".into(),
        Answer::Records { answers, additionals } => {
            let additional = |record: &Record| format!("+ {}", line(record));
            answers.iter().map(line).chain(additionals.iter().map(additional)).collect()
        }
    }
}

fn check(questions: &[(&str, Kind)], expected: Expect) {
    let zone = zone();
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
        &[("outside.shop.svc.cluster.local", Kind::A), ("alias.shop.svc.cluster.local", Kind::A)],
        expect![[r#"
            outside.shop.svc.cluster.local A:
             Alias("db.example.com")
            alias.shop.svc.cluster.local A:
             Alias("web.shop.svc.cluster.local")
            web.shop.svc.cluster.local Address(10.96.0.20)
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
            ("0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa", Kind::Ptr),
            ("256.0.0.1.in-addr.arpa", Kind::Ptr),
            ("20.0.96.10.in-addr.arpa", Kind::A),
        ],
        expect![[r#"
            20.0.96.10.in-addr.arpa Ptr:
             Pointer("web.shop.svc.cluster.local")
            1.0.1.10.in-addr.arpa Ptr:
             Pointer("db-0.db.shop.svc.cluster.local")
            2.0.1.10.in-addr.arpa Ptr:
            not in the zone
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
    for service in ["web", "db", "outside", "alias"] {
        assert!(zone.set_service(&ServiceKey::new("shop", service), None));
        assert!(!zone.set_service(&ServiceKey::new("shop", service), None));
    }
    assert!(zone.services.is_empty() && zone.reverse.is_empty());
    assert!(zone.serial() > before.serial());
    assert_eq!(text(before.answer("web.shop.svc.cluster.local", Kind::A)), " Address(10.96.0.20)\n");
    assert!(!zone.clone().set_service(&ServiceKey::new("shop", "new"), None));
}
