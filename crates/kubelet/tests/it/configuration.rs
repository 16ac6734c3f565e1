//! What the runtime is configured with: resolvers, hosts files, limits, users, environment.

use crate::fake::{Fake, Objects};
use kaji_containers::DnsConfig;
use kaji_kubelet::pods::core::{Node, Pod};
use kaji_kubelet::pods::environment::{self, EnvironmentInputs, VolumeFile};
use kaji_kubelet::pods::network::{self, DnsSettings, NodeDns};
use kaji_kubelet::pods::security::{self, ImageUser};
use kaji_kubelet::pods::{admission, model, resources};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

fn pod(spec: Value) -> Pod {
    let meta = json!({"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "1"}});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

fn with(mut spec: Value, more: Value) -> Pod {
    spec["containers"] = json!([{"name": "c", "image": "i"}]);
    for (k, v) in more.as_object().unwrap() {
        spec[k] = v.clone();
    }
    pod(spec)
}

#[test]
fn resolvers_follow_the_policy() {
    let settings = DnsSettings {
        servers: vec![IpAddr::from([10, 96, 0, 10])],
        domain: "cluster.local".into(),
        node: NodeDns::fixed(DnsConfig {
            servers: vec!["1.1.1.1".into()],
            searches: vec!["example.com".into()],
            options: vec!["timeout:1".into()],
        }),
    };
    let options =
        json!({"nameservers": ["8.8.8.8"], "searches": ["s"], "options": [{"name": "ndots", "value": "2"}]});
    let shown: Vec<String> = [
        json!({}),
        json!({"hostNetwork": true}),
        json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
        json!({"dnsPolicy": "Default"}),
        json!({"dnsPolicy": "None", "dnsConfig": options}),
        json!({"dnsConfig": options}),
    ]
    .into_iter()
    .map(|spec| {
        let (dns, warnings) = network::dns(&with(json!({}), spec), &settings);
        format!("{:?} {:?} {:?} {warnings:?}", dns.servers, dns.searches, dns.options)
    })
    .collect();
    expect_test::expect![[r#"
        ["10.96.0.10"] ["n.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com"] ["ndots:5"] []
        ["1.1.1.1"] ["example.com"] ["timeout:1"] []
        ["10.96.0.10"] ["n.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com"] ["ndots:5"] []
        ["1.1.1.1"] ["example.com"] ["timeout:1"] []
        ["8.8.8.8"] ["s"] ["ndots:2"] []
        ["10.96.0.10", "8.8.8.8"] ["n.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com", "s"] ["ndots:2"] []"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn hosts_files_have_upstreams_form() {
    let aliases = json!([{"ip": "1.2.3.4", "hostnames": ["x", "y"]}]);
    let pod = with(json!({}), json!({"hostname": "h", "subdomain": "s", "hostAliases": aliases}));
    let (name, domain) = network::hostname(&pod, "cluster.local").unwrap();
    let text = network::hosts_file(&pod, &[IpAddr::from([10, 0, 0, 7])], &name, &domain, None);
    expect_test::expect![[r#"
        # Kubernetes-managed hosts file.
        127.0.0.1	localhost
        ::1	localhost ip6-localhost ip6-loopback
        fe00::0	ip6-localnet
        fe00::0	ip6-mcastprefix
        fe00::1	ip6-allnodes
        fe00::2	ip6-allrouters
        10.0.0.7	h.s.n.svc.cluster.local	h

        # Entries added by HostAliases.
        1.2.3.4	x	y
    "#]]
    .assert_eq(&text);
}

#[test]
fn limits_follow_requests_and_quality_of_service() {
    let shown: Vec<String> = [
        json!({}),
        json!({"requests": {"cpu": "100m", "memory": "1Gi"}}),
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}),
    ]
    .into_iter()
    .map(|r| {
        let pod = pod(json!({"containers": [{"name": "c", "image": "i", "resources": r}]}));
        let c = resources::of_container(&pod, &model::containers(&pod)[0], 4 << 30);
        let p = resources::of_pod(&pod);
        format!(
            "{} shares={} quota={} memory={} oom={:?}; pod {} {} {}",
            resources::cgroup_path(&pod),
            c.cpu_shares,
            c.cpu_quota,
            c.memory_limit_bytes,
            c.oom_score_adj.unwrap(),
            p.cpu_shares,
            p.cpu_quota,
            p.memory_limit_bytes
        )
    })
    .collect();
    expect_test::expect![[r#"
        /kubepods/besteffort/podu shares=2 quota=0 memory=0 oom=1000; pod 2 -1 -1
        /kubepods/burstable/podu shares=102 quota=0 memory=0 oom=750; pod 102 -1 -1
        /kubepods/podu shares=1024 quota=100000 memory=1073741824 oom=-997; pod 1024 100000 1073741824"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn a_pod_s_own_resources_decide_its_quality_of_service_only_when_they_name_any() {
    let all = json!({"cpu": "1", "memory": "1Gi"});
    let (guaranteed, none) = (json!({"limits": all}), json!({}));
    let shown: Vec<String> = [
        (json!({"requests": {}, "limits": {}}), vec![&guaranteed]),
        (json!({"limits": {"example.com/x": "1"}}), vec![&guaranteed, &guaranteed]),
        (json!({"claims": []}), vec![&guaranteed, &none]),
        (json!({"limits": {"hugepages-2Mi": "4Mi"}}), vec![&guaranteed]),
        (json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": all}), vec![&none]),
        (json!({"requests": {"cpu": "1"}}), vec![&guaranteed]),
        (json!({"limits": {"cpu": "1"}}), vec![&guaranteed]),
        (json!({"limits": {"cpu": "0", "memory": "0"}}), vec![&guaranteed]),
    ]
    .into_iter()
    .map(|(own, containers)| {
        let containers: Vec<Value> = containers
            .iter()
            .enumerate()
            .map(|(i, r)| json!({"name": format!("c{i}"), "image": "i", "resources": r}))
            .collect();
        let pod = pod(json!({"containers": containers, "resources": own}));
        format!("{own} {}", model::qos(&pod).name())
    })
    .collect();
    expect_test::expect![[r#"
        {"limits":{},"requests":{}} Guaranteed
        {"limits":{"example.com/x":"1"}} Guaranteed
        {"claims":[]} Burstable
        {"limits":{"hugepages-2Mi":"4Mi"}} BestEffort
        {"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1000m","memory":"1024Mi"}} Guaranteed
        {"requests":{"cpu":"1"}} Burstable
        {"limits":{"cpu":"1"}} Burstable
        {"limits":{"cpu":"0","memory":"0"}} BestEffort"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn users_that_break_the_policy_are_refused() {
    let pod = with(json!({}), json!({"securityContext": {"runAsNonRoot": true, "fsGroup": 9}}));
    let container = &model::containers(&pod)[0];
    let shown: Vec<String> = [
        ImageUser { uid: Some(0), name: String::new() },
        ImageUser { uid: None, name: "nginx".into() },
        ImageUser { uid: Some(7), name: String::new() },
    ]
    .iter()
    .map(|user| match security::of_container(&pod, container, user, None, Path::new("/")) {
        Ok(made) => format!("{:?} {:?}", made.run_as_user, made.supplemental_groups),
        Err(error) => error.to_string(),
    })
    .collect();
    expect_test::expect![[r#"
        container has runAsNonRoot and image will run as root (pod: "p_n(u)", container: c)
        container has runAsNonRoot and image has non-numeric user (nginx), cannot verify user is non-root (pod: "p_n(u)", container: c)
        Some(7) [9]"#]]
    .assert_eq(&shown.join("\n"));
}

#[tokio::test]
async fn environments_expand_references() {
    let env = json!([
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)-$(NONE)-$$(A)"},
        {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
        {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "E", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "key"}}},
        {"name": "F", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "key", "optional": true}}},
        {"name": "G", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "0", "value": "$(S_SERVICE_PORT)"},
        {"name": "A", "value": "2"},
        {"name": "S_SERVICE_HOST", "value": "own"},
    ]);
    let from = json!([{"prefix": "P_", "configMapRef": {"name": "map"}}]);
    let pod = pod(json!({"containers": [{"name": "c", "image": "i", "env": env, "envFrom": from}]}));
    let fake = Fake::new();
    let (addresses, allocatable) = ([IpAddr::from([10, 0, 0, 7])], fake.cx.facts.allocatable());
    let service = json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}});
    let services = [std::sync::Arc::new(serde_json::from_value(service).unwrap())];
    let inputs = EnvironmentInputs {
        pod: &pod,
        container: &model::containers(&pod)[0],
        pod_addresses: &addresses,
        host_addresses: &[],
        services: &services,
        allocatable: &allocatable,
        volume_files: None,
    };
    let (made, invalid) = environment::make(&inputs, &Objects::default()).await.unwrap();
    let shown: Vec<String> = made.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert!(invalid.is_empty());
    expect_test::expect!["P_key=value A=2 B=1-$(NONE)-$(A) C=1 D=2 E=value G=10.0.0.7 0=80 S_SERVICE_HOST=own S_PORT=tcp://10.0.0.1:80 S_PORT_80_TCP=tcp://10.0.0.1:80 S_PORT_80_TCP_ADDR=10.0.0.1 S_PORT_80_TCP_PORT=80 S_PORT_80_TCP_PROTO=tcp S_SERVICE_PORT=80"]
        .assert_eq(&shown.join(" "));
}

#[test]
fn a_node_refuses_what_does_not_fit() {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "node-1", "labels": {"zone": "a"}},
        "spec": {"taints": [{"key": "t", "effect": "NoExecute"}]},
        "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "2"}},
    }))
    .unwrap();
    let tolerations = json!([{"operator": "Exists"}]);
    let asks = |cpu: &str| json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]);
    let other = pod(json!({"containers": asks("1500m")}));
    let shown: Vec<String> = [
        json!({"containers": asks("500m"), "tolerations": tolerations}),
        json!({"containers": asks("501m"), "tolerations": tolerations}),
        json!({"containers": asks("500m")}),
        json!({"containers": asks("500m"), "nodeSelector": {"zone": "b"}, "tolerations": tolerations}),
    ]
    .into_iter()
    .map(|spec| match admission::admit(&pod(spec), &[&other], &node) {
        Ok(()) => "admitted".to_owned(),
        Err(refusal) => format!("{}: {}", refusal.reason, refusal.message),
    })
    .collect();
    expect_test::expect![[r#"
        admitted
        OutOfcpu: Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000
        TaintToleration: Predicate TaintToleration failed: node(s) had untolerated taint(s)
        NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"#]]
    .assert_eq(&shown.join("\n"));
    assert_eq!(admission::pod_requests(&other), BTreeMap::from([("cpu".to_owned(), 1500)]));
}

#[tokio::test]
async fn variables_come_from_files_of_volumes() {
    let read = |volume: &str, path: &str| {
        let text = match path {
            "good" => Ok("A='1'\n".to_owned()),
            "bad" => Ok("A=1".to_owned()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        };
        (volume == "v").then(|| VolumeFile { path: Path::new("/pods/v").join(path), text })
    };
    let mut shown = vec![];
    for (volume, path, key, optional) in [
        ("v", "good", "A", false),
        ("v", "good", "B", true),
        ("v", "good", "B", false),
        ("v", "bad", "A", true),
        ("v", "absent", "A", true),
        ("other", "good", "A", true),
    ] {
        let selector = json!({"volumeName": volume, "path": path, "key": key, "optional": optional});
        let env = json!([{"name": "E", "valueFrom": {"fileKeyRef": selector}}]);
        let pod = pod(json!({"containers": [{"name": "c", "image": "i", "env": env}]}));
        let inputs = EnvironmentInputs {
            pod: &pod,
            container: &model::containers(&pod)[0],
            pod_addresses: &[],
            host_addresses: &[],
            services: &[],
            allocatable: &BTreeMap::new(),
            volume_files: Some(&read),
        };
        let made = environment::make(&inputs, &Objects::default()).await;
        shown.push(format!("{:?}", made.map(|(variables, _)| variables)));
    }
    expect_test::expect![[r#"
        Ok([("E", "1")])
        Ok([])
        Err("environment variable key \"B\" not found in file \"/pods/v/good\"")
        Err("couldn't parse env file")
        Err("couldn't parse env file")
        Err("cannot find the volume \"other\" referenced by FileKeyRef")"#]]
    .assert_eq(&shown.join("\n"));
}
