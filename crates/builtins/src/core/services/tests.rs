//! Tests of `services`: fixtures in, expectations out.

use super::*;
use crate::shared::testing::{TestContext, create_errors, created, deps, row, update, update_errors};
use expect_test::expect;

fn def1() -> ResourceDef {
    def(&deps())
}

fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec})
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).expect("the fake API never waits")
}

/// Defaults, validates and reserves as the engine does; the result's spec, or the error.
fn put_in(
    fixture: &TestContext,
    def: &ResourceDef,
    mut new: Value,
    old: Option<&Value>,
    commit: bool,
) -> Result<Value, String> {
    def.hooks.default("v1", &mut new);
    let seen = new.clone();
    let ctx = fixture.ctx(&seen, "", "v1");
    match old {
        None => def.hooks.prepare_create(&ctx, &mut new),
        Some(old) => def.hooks.prepare_update(&ctx, &mut new, old),
    }
    let taken = wait(def.hooks.reserve(&ctx, &mut new, old)).map_err(|s| s.message)?;
    if let Some(r) = taken {
        wait(if commit { r.commit } else { r.rollback });
    }
    Ok(new)
}

#[test]
fn fills_in_defaults() {
    expect![[r#"
        {
          "spec": {
            "internalTrafficPolicy": "Cluster",
            "ports": [
              {
                "port": 80,
                "protocol": "TCP",
                "targetPort": 80
              }
            ],
            "sessionAffinity": "None",
            "type": "ClusterIP"
          },
          "status": {
            "loadBalancer": {}
          }
        }"#]]
    .assert_eq(&created(&def1(), json!({"spec": {"ports": [{"port": 80}]}})));
    expect![[r#"
        {
          "spec": {
            "allocateLoadBalancerNodePorts": true,
            "externalTrafficPolicy": "Cluster",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {
              "clientIP": {
                "timeoutSeconds": 10800
              }
            },
            "type": "LoadBalancer"
          },
          "status": {
            "loadBalancer": {}
          }
        }"#]]
    .assert_eq(&created(&def1(), json!({"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"}})));
}

#[test]
fn rejects_invalid_fields() {
    let bad = json!({"spec": {
        "type": "NodePort", "clusterIP": "None", "sessionAffinity": "x", "externalIPs": ["127.0.0.1"],
        "ports": [{"port": 0, "protocol": "X", "nodePort": 1}, {"port": 0, "protocol": "X", "nodePort": 1, "name": "A"}],
        "healthCheckNodePort": 5, "loadBalancerClass": "a", "loadBalancerSourceRanges": ["x"],
    }});
    expect![[r#"
        spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services
        spec.ports[0].name: Required value
        spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive
        spec.ports[0].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"
        spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive
        spec.ports[1].name: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
        spec.ports[1].port: Invalid value: 0: must be between 1 and 65535, inclusive
        spec.ports[1].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"
        spec.ports[1].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive
        spec.sessionAffinity: Unsupported value: "x": supported values: "ClientIP", "None"
        spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)
        spec.ports[1].nodePort: Duplicate value: 1
        spec.ports[1]: Duplicate value: {"Name":"","Protocol":"X","AppProtocol":null,"Port":0,"TargetPort":0,"NodePort":0}
        spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'
        spec.LoadBalancerSourceRanges[0]: Invalid value: "x": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)
        spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'
        spec.healthCheckNodePort: Invalid value: 5: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"#]]
    .assert_eq(&create_errors(&def1(), bad));
    expect!["spec.externalName: Required value"]
        .assert_eq(&create_errors(&def1(), json!({"spec": {"type": "ExternalName"}})));
}

#[test]
fn cluster_ip_may_not_change() {
    let spec = |ip: &str| json!({"clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "ports": [{"port": 1}]});
    let old = service("a", spec("10.96.0.9"));
    expect![[r#"spec.clusterIPs[0]: Invalid value: ["10.96.0.8"]: may not change once set"#]]
        .assert_eq(&update_errors(&def1(), "", service("a", spec("10.96.0.8")), old.clone()));
    assert_eq!(update_errors(&def1(), "", service("a", json!({"ports": [{"port": 2}]})), old), "");
}

#[test]
fn addresses_are_unique_and_released() {
    let (fixture, mut deps) = (TestContext::default(), deps());
    deps.api = crate::ApiHandle::new(Arc::downgrade(&fixture.api) as std::sync::Weak<dyn kaji_resource::Api>);
    let def = def(&deps);
    let ports = || json!([{"port": 80}]);
    let a =
        put_in(&fixture, &def, service("a", json!({"ports": ports(), "clusterIP": "10.96.0.7"})), None, true)
            .unwrap();
    assert_eq!((families(&a), policy(&a)), (vec!["IPv4"], "SingleStack"));
    let all = [
        put_in(&fixture, &def, service("b", json!({"ports": ports(), "clusterIP": "10.96.0.7"})), None, true),
        put_in(&fixture, &def, service("b", json!({"ports": ports(), "clusterIP": "1.2.3.4"})), None, true),
        put_in(&fixture, &def, service("b", json!({"ports": ports(), "clusterIP": "10.96.0.0"})), None, true),
    ];
    expect![[r#"
        Service "b" is invalid: spec.clusterIPs: Invalid value: ["10.96.0.7"]: failed to allocate IP 10.96.0.7: provided IP is already allocated
        Service "b" is invalid: spec.clusterIPs: Invalid value: ["1.2.3.4"]: failed to allocate IP 1.2.3.4: the provided network does not match the current range
        Service "b" is invalid: spec.clusterIPs: Invalid value: ["10.96.0.0"]: failed to allocate IP 10.96.0.0: the provided IP (10.96.0.0) is not in the valid range. The range of valid IPs is 10.96.0.0/12"#]]
    .assert_eq(&all.map(|r| r.unwrap_err()).join("\n"));
    let b = put_in(&fixture, &def, service("b", json!({"ports": ports()})), None, true).unwrap();
    let ip = cluster_ips(&b)[0].to_owned();
    assert_eq!(b["spec"]["clusterIP"], ip.as_str());
    assert_eq!(fixture.api.names(&addresses::resource()).len(), 2);
    // A failed write releases its address.
    put_in(&fixture, &def, service("c", json!({"ports": ports()})), None, false).unwrap();
    assert_eq!(fixture.api.names(&addresses::resource()).len(), 2);
    // So does a deletion, and a change to ExternalName.
    wait(def.hooks.deleted(&fixture.ctx(&a, "", "v1"), &a));
    assert_eq!(fixture.api.names(&addresses::resource()), [ip]);
    let mut named = b.clone();
    named["spec"]["type"] = "ExternalName".into();
    named["spec"]["externalName"] = "example.com".into();
    let named = put_in(&fixture, &def, named, Some(&b), true).unwrap();
    assert_eq!(named["spec"].get("clusterIP"), None);
    assert_eq!(named["spec"].get("ipFamilies"), None);
    assert!(fixture.api.names(&addresses::resource()).is_empty());
}

#[test]
fn node_ports_are_allocated_and_released() {
    let (fixture, def) = (TestContext::default(), def1());
    let spec = json!({"type": "NodePort", "ports": [{"name": "u", "port": 53, "protocol": "UDP"}, {"name": "t", "port": 53}]});
    let a = put_in(&fixture, &def, service("a", spec), None, true).unwrap();
    let got = node_ports(&a);
    assert_eq!(got[0], got[1]);
    assert!((30086..=32767).contains(&got[0]));
    let wish = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": got[0]}]});
    let taken = put_in(&fixture, &def, service("b", wish.clone()), None, true).unwrap_err();
    assert_eq!(
        taken,
        format!(
            "Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: {}: provided port is already allocated",
            got[0]
        )
    );
    let (plain, _) =
        update(&def, "", service("a", json!({"type": "ClusterIP", "ports": a["spec"]["ports"]})), a.clone());
    assert!(node_ports(&plain).is_empty());
    put_in(&fixture, &def, plain, Some(&a), true).unwrap();
    assert!(put_in(&fixture, &def, service("b", wish), None, true).is_ok());
}

#[test]
fn validates_the_health_check_port() {
    let (fixture, def) = (TestContext::default(), def1());
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    assert_eq!(create_errors(&def, json!({"spec": spec})), "");
    let a = put_in(&fixture, &def, service("a", spec), None, true).unwrap();
    assert!(a["spec"]["healthCheckNodePort"].as_i64().unwrap() >= 30086);
}

#[test]
fn prints_a_row() {
    let svc = json!({"metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "clusterIPs": ["10.0.0.1"], "selector": {"a": "b"},
        "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
    assert_eq!(
        row(&def1(), &svc),
        "s | LoadBalancer | 10.0.0.1 | <pending> | 80:30080/TCP,53/UDP | <unknown> | a=b"
    );
}

/// One step of a service's life.
#[derive(Clone, Debug)]
enum Step {
    /// Creates or changes the service of this number to this type; the write may fail.
    Write { which: usize, ty: usize, commit: bool },
    /// Deletes it; the engine may call the hook twice.
    Delete { which: usize, twice: bool },
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    use proptest::prelude::*;
    prop_oneof![
        3 => (0..6usize, 0..4usize, any::<bool>()).prop_map(|(which, ty, commit)| Step::Write { which, ty, commit }),
        1 => (0..6usize, any::<bool>()).prop_map(|(which, twice)| Step::Delete { which, twice }),
    ]
}

fn spec_of(ty: usize) -> Value {
    match ty {
        0 => json!({"ports": [{"port": 80}]}),
        1 => json!({"type": "NodePort", "ports": [{"port": 80}, {"port": 81, "name": "b"}]}),
        2 => json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]}),
        _ => json!({"type": "ExternalName", "externalName": "example.com"}),
    }
}

proptest::proptest! {
    /// After any sequence of writes and deletions, every live service holds its own addresses and ports, no other service
    /// holds them, and nothing else is held.
    #[test]
    fn nothing_is_held_twice_or_lost(steps in proptest::collection::vec(step(), 1..40)) {
        let fixture = TestContext::default();
        let mut deps = deps();
        // Ranges so small that they run full: 14 addresses, 8 ports.
        deps.service_cidrs = vec!["10.0.0.0/28".into()];
        deps.node_port_range = 30000..=30007;
        deps.api = crate::ApiHandle::new(Arc::downgrade(&fixture.api) as std::sync::Weak<dyn kaji_resource::Api>);
        let def = def(&deps);
        let mut live: std::collections::BTreeMap<usize, Value> = Default::default();
        for step in steps {
            match step {
                Step::Write { which, ty, commit } => {
                    let old = live.get(&which).cloned();
                    let new = service(&format!("s{which}"), spec_of(ty));
                    if let Ok(made) = put_in(&fixture, &def, new, old.as_ref(), commit)
                        && commit
                    {
                        live.insert(which, made);
                    }
                }
                Step::Delete { which, twice } => {
                    let Some(gone) = live.remove(&which) else { continue };
                    for _ in 0..=usize::from(twice) {
                        wait(def.hooks.deleted(&fixture.ctx(&gone, "", "v1"), &gone));
                    }
                }
            }
            let mut ips: Vec<String> = live.values().flat_map(|s| cluster_ips(s).into_iter().map(str::to_owned).collect::<Vec<_>>()).collect();
            ips.sort();
            proptest::prop_assert_eq!(&fixture.api.names(&addresses::resource()), &ips);
            let mut held: Vec<u16> = live.values().flat_map(ports::ports_of).collect();
            held.sort_unstable();
            let count = held.len();
            held.dedup();
            proptest::prop_assert_eq!(held.len(), count, "a port is held twice");
        }
        // What is not held can be taken: as many ports as are free.
        let used = live.values().flat_map(ports::ports_of).count();
        let free = (0..8).filter(|i| {
            let new = service(&format!("probe{i}"), json!({"type": "NodePort", "clusterIP": "", "ports": [{"port": 1, "nodePort": 30000 + i}]}));
            let probed = put_in(&fixture, &def, new, None, false);
            probed.is_ok()
        }).count();
        proptest::prop_assert_eq!(free, 8 - used);
    }
}
