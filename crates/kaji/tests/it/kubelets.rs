//! What simulated nodes answer to direct requests, and to which clients: certificates and tokens of the cluster, rights on
//! `nodes/metrics` and the like, figures of the pods that run there.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use kaji::StoreKind;
use kaji_server::pki::{Identity, Pki};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

/// Where a node says that it is.
async fn door(test: &TestCluster, node: &str) -> SocketAddr {
    let mut found = None;
    until("a node reports where it is", async || {
        let (_, node) = ask(test, &admin(), &format!("GET /api/v1/nodes/{node}"), &Value::Null).await;
        let address = node["status"]["addresses"][0].clone();
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        found = port
            .zip(address["address"].as_str().map(str::to_owned))
            .filter(|_| address["type"] == "InternalIP");
        found.is_some()
    })
    .await;
    let (port, address) = found.unwrap();
    SocketAddr::new(address.parse().unwrap(), u16::try_from(port).unwrap())
}

/// One request over a connection that trusts the cluster's authority alone: code and body.
async fn get(
    test: &TestCluster,
    at: SocketAddr,
    request: &str,
    certificate: Option<&Identity>,
    token: Option<&str>,
) -> (u16, String) {
    let mut roots = RootCertStore::empty();
    let authority = &test.cluster.pki.ca.certificate;
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        None => config.with_no_client_auth(),
        Some(Identity { certificate, key }) => config
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    let tcp = TcpStream::connect(at).await.unwrap();
    let name = ServerName::IpAddress(at.ip().into());
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
    let authorization = token.map(|t| format!("authorization: Bearer {t}\r\n")).unwrap_or_default();
    let head = format!("{request} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n{authorization}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![];
    // A server need not say goodbye.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A token of `default/NAME`, which is allowed to get these subresources of nodes.
async fn account(test: &TestCluster, name: &str, subresources: &[&str]) -> String {
    let core = "POST /api/v1/namespaces/default/serviceaccounts";
    ok(test, &admin(), core, json!({"metadata": {"name": name}})).await;
    let rbac = "POST /apis/rbac.authorization.k8s.io/v1";
    let rules: Vec<Value> = subresources
        .iter()
        .map(|s| json!({"apiGroups": [""], "resources": [format!("nodes/{s}")], "verbs": ["get"]}))
        .collect();
    ok(test, &admin(), &format!("{rbac}/clusterroles"), json!({"metadata": {"name": name}, "rules": rules}))
        .await;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": name}],
    });
    ok(test, &admin(), &format!("{rbac}/clusterrolebindings"), binding).await;
    let order = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let made = ok(test, &admin(), &format!("{core}/{name}/token"), order).await;
    made["status"]["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn authorizes_requests_to_the_kubelet() {
    let test = TestCluster::start(2).await;
    let at = door(&test, "sim-1").await;
    assert!(at.ip().is_loopback());
    assert_ne!(at, door(&test, "sim-2").await);
    let foreign = Pki::in_memory(None, &[], jiff::Timestamp::now()).unwrap().admin;
    let none = account(&test, "none", &[]).await;
    let metrics = account(&test, "metrics", &["metrics"]).await;
    let health = account(&test, "health", &["healthz"]).await;
    let proxy = account(&test, "proxy", &["proxy"]).await;
    let admin = &test.cluster.pki.admin;
    let page = "GET /metrics/resource";
    let asked = [
        ("nobody", page, None, None),
        ("admin", page, Some(admin), None),
        ("admin", "GET /healthz", Some(admin), None),
        ("admin", "GET /nowhere", Some(admin), None),
        ("admin", "POST /metrics/resource", Some(admin), None),
        ("another cluster's admin", page, Some(&foreign), None),
        ("no token", page, None, Some("x")),
        ("none", page, None, Some(&*none)),
        ("none", "POST /healthz", None, Some(&*none)),
        ("metrics", page, None, Some(&*metrics)),
        ("metrics", "GET /healthz", None, Some(&*metrics)),
        ("health", "GET /healthz/ping", None, Some(&*health)),
        ("health", page, None, Some(&*health)),
        ("proxy", "GET /healthz", None, Some(&*proxy)),
        ("proxy", page, None, Some(&*proxy)),
        ("proxy", "GET /%6detrics/resource", None, Some(&*proxy)),
    ];
    let mut seen = String::new();
    for (name, request, certificate, token) in asked {
        let (code, body) = get(&test, at, request, certificate, token).await;
        let line = if body.starts_with('#') { "(metrics)" } else { body.trim_end() };
        seen += &format!("{name}, {request}: {code} {line}\n");
    }
    expect_test::expect![[r#"
        nobody, GET /metrics/resource: 401 Unauthorized
        admin, GET /metrics/resource: 200 (metrics)
        admin, GET /healthz: 200 ok
        admin, GET /nowhere: 404 404: Page Not Found
        admin, POST /metrics/resource: 405 405: Method Not Allowed
        another cluster's admin, GET /metrics/resource: 401 Unauthorized
        no token, GET /metrics/resource: 401 Unauthorized
        none, GET /metrics/resource: 403 Forbidden (user=system:serviceaccount:default:none, verb=get, resource=nodes, subresource(s)=[metrics])
        none, POST /healthz: 403 Forbidden (user=system:serviceaccount:default:none, verb=create, resource=nodes, subresource(s)=[healthz proxy])
        metrics, GET /metrics/resource: 200 (metrics)
        metrics, GET /healthz: 403 Forbidden (user=system:serviceaccount:default:metrics, verb=get, resource=nodes, subresource(s)=[healthz proxy])
        health, GET /healthz/ping: 200 ok
        health, GET /metrics/resource: 403 Forbidden (user=system:serviceaccount:default:health, verb=get, resource=nodes, subresource(s)=[metrics])
        proxy, GET /healthz: 200 ok
        proxy, GET /metrics/resource: 403 Forbidden (user=system:serviceaccount:default:proxy, verb=get, resource=nodes, subresource(s)=[metrics])
        proxy, GET /%6detrics/resource: 403 Forbidden (user=system:serviceaccount:default:proxy, verb=get, resource=nodes, subresource(s)=[metrics])
    "#]]
    .assert_eq(&seen);
    // A right that was taken away counts for as long as a kubelet caches the decision.
    ok(
        &test,
        &crate::common::access::admin(),
        "DELETE /apis/rbac.authorization.k8s.io/v1/clusterroles/metrics",
        Value::Null,
    )
    .await;
    assert_eq!(get(&test, at, page, None, Some(&metrics)).await.0, 200);
    assert_eq!(get(&test, door(&test, "sim-2").await, page, None, Some(&metrics)).await.0, 403);
    test.stop().await;
}

/// An authority, and a client that it signed for.
fn authority(client: &str) -> (String, Identity) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, format!("{client}'s authority"));
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(DnType::CommonName, client);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    (issuer.pem(), Identity { certificate, key: key.serialize_pem() })
}

#[tokio::test]
async fn clients_of_other_authorities() {
    let dir = tempfile::tempdir().unwrap();
    let ((one, alice), (two, bob)) = (authority("alice"), authority("bob"));
    let file = dir.path().join("clients.pem");
    std::fs::write(&file, &one).unwrap();
    let path = file.clone();
    let test = TestCluster::start_over(dir, 1, StoreKind::Memory, |options| {
        options.authn.client_ca_file = Some(path);
    })
    .await;
    let at = door(&test, "sim-1").await;
    let code = async |user| get(&test, at, "GET /metrics/resource", Some(user), None).await.0;
    assert_eq!((code(&alice).await, code(&bob).await), (403, 401));
    let draft = file.with_extension("new");
    std::fs::write(&draft, &two).unwrap();
    std::fs::rename(&draft, &file).unwrap();
    until("the other authority counts", async || code(&bob).await == 403).await;
    assert_eq!((code(&alice).await, code(&test.cluster.pki.admin).await), (401, 200));
    test.stop().await;
}

#[tokio::test]
async fn pods_use_what_they_ask_for() {
    let test = TestCluster::start(1).await;
    let at = door(&test, "sim-1").await;
    let account = "GET /api/v1/namespaces/default/serviceaccounts/default";
    until("the account", async || ask(&test, &admin(), account, &Value::Null).await.0 == 200).await;
    let pod = json!({
        "metadata": {"name": "busy"},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]},
    });
    ok(&test, &admin(), "POST /api/v1/namespaces/default/pods", pod).await;
    let labels = r#"{container="main",namespace="default",pod="busy"}"#;
    let sample = async |name: &str| {
        let (_, page) = get(&test, at, "GET /metrics/resource", Some(&test.cluster.pki.admin), None).await;
        let line =
            page.lines().find_map(|l| l.strip_prefix(&format!("{name}{labels} ")).map(str::to_owned))?;
        let mut fields = line.split(' ').map(|n| n.parse::<f64>().unwrap());
        Some((fields.next().unwrap(), fields.next()))
    };
    until("figures of the pod", async || sample("container_memory_working_set_bytes").await.is_some()).await;
    let (memory, at_ms) = sample("container_memory_working_set_bytes").await.unwrap();
    let gib = f64::from(1 << 30);
    assert!((0.25 * gib..=0.75 * gib).contains(&memory) && at_ms.is_some(), "{memory}");
    let (first, _) = sample("container_cpu_usage_seconds_total").await.unwrap();
    until("time is used", async || sample("container_cpu_usage_seconds_total").await.unwrap().0 > first)
        .await;
    assert!(sample("container_start_time_seconds").await.unwrap().1.is_none());
    test.stop().await;
}

#[tokio::test]
async fn many_nodes_do_without() {
    let test = TestCluster::start(130).await;
    let node = |n: u16| format!("GET /api/v1/nodes/sim-{n}");
    let mut seen = vec![];
    until("all nodes report", async || {
        seen.clear();
        for n in [1, 128, 129, 130] {
            let (_, node) = ask(&test, &admin(), &node(n), &Value::Null).await;
            let addresses = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
            let kinds: Vec<String> =
                addresses.iter().map(|a| a["type"].as_str().unwrap_or_default().to_owned()).collect();
            seen.push((
                n,
                kinds.join(" "),
                node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250,
            ));
        }
        seen.iter().all(|(_, kinds, _)| !kinds.is_empty())
    })
    .await;
    let with = |n| (n, "InternalIP InternalIP Hostname".to_owned(), false);
    let without = |n| (n, "InternalIP Hostname".to_owned(), true);
    assert_eq!(seen, [with(1), with(128), without(129), without(130)]);
    test.stop().await;
}
