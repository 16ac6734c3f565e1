//! Health answers over HTTP.

use expect_test::expect;
use jiff::{SignedDuration, Timestamp};
use kaji_meta::time::Clock;
use kaji_proxy::{
    endpoints::LocalReady,
    health::{Health, Subject, serve},
};
use std::sync::{Arc, Mutex};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

struct Hands(Mutex<Timestamp>);

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

async fn get(health: &Arc<Health>, subject: Subject, path: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(listener, health.clone(), subject));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    server.abort();
    text.lines().filter(|line| !line.starts_with("date:")).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn services_and_the_proxy_answer_as_upstream() {
    let clock = Arc::new(Hands(Mutex::new("2026-01-01T00:00:00Z".parse().unwrap())));
    let health = Health::new(clock.clone());
    let subject = || Subject::Service { namespace: "n".into(), name: "s".into() };
    let two = Some(LocalReady { v4: 2, v6: 0 });
    health.set_service("n", "s", two);
    expect![[r#"
        HTTP/1.1 200 OK
        content-type: application/json
        x-content-type-options: nosniff
        x-load-balancing-endpoint-weight: 2
        connection: close
        content-length: 106

        {
        	"service": {
        		"namespace": "n",
        		"name": "s"
        	},
        	"localEndpoints": 2,
        	"serviceProxyHealthy": true
        }"#]]
    .assert_eq(&get(&health, subject(), "/").await);
    // Endpoints of IPv6 are nothing to a client of IPv4.
    health.set_service("n", "s", Some(LocalReady { v4: 0, v6: 2 }));
    let answer = get(&health, subject(), "/").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("x-load-balancing-endpoint-weight: 0"), "{answer}");
    // The node is not eligible before it is known.
    assert!(get(&health, Subject::Proxy, "/healthz").await.starts_with("HTTP/1.1 503 "));
    assert!(get(&health, Subject::Proxy, "/livez").await.starts_with("HTTP/1.1 200 "));
    health.set_eligible(true);
    health.updated();
    let healthy = get(&health, Subject::Proxy, "/healthz").await;
    let body: serde_json::Value = serde_json::from_str(healthy.lines().last().unwrap()).unwrap();
    assert_eq!(body["nodeEligible"], true);
    assert_eq!(body["status"]["IPv4"]["healthy"], true);
    // A change that is not in force for a minute.
    health.queued();
    *clock.0.lock().unwrap() += SignedDuration::from_secs(59);
    assert!(get(&health, Subject::Proxy, "/livez").await.starts_with("HTTP/1.1 200 "));
    *clock.0.lock().unwrap() += SignedDuration::from_secs(1);
    assert!(get(&health, Subject::Proxy, "/livez").await.starts_with("HTTP/1.1 503 "));
    health.set_service("n", "s", two);
    assert!(get(&health, subject(), "/").await.starts_with("HTTP/1.1 503 "));
}

#[tokio::test]
async fn metrics_are_prometheus_text() {
    let health = Health::new(Arc::new(Hands(Mutex::new("2026-01-01T00:00:00Z".parse().unwrap()))));
    let page = async |path: &str| {
        let answer = get(&health, Subject::Metrics, path).await;
        let (head, body) = answer.split_once("\n\n").unwrap();
        let kind = "content-type: text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
        assert!(head.contains(kind), "{head}");
        kaji_testing::text_format::parse(&format!("{body}\n")).unwrap()
    };
    get(&health, Subject::Proxy, "/livez").await;
    let families = page("/metrics").await;
    assert_eq!(families["kubeproxy_proxy_livez_total"].sum(&[("code", "200")]), 1.0);
    assert!(families.contains_key("kubernetes_build_info") && families.contains_key("process_open_fds"));
    assert!(get(&health, Subject::Metrics, "/healthz").await.ends_with("\nok"));
    let checks = page("/metrics/slis").await;
    assert_eq!(checks["kubernetes_healthchecks_total"].sum(&[("status", "success")]), 2.0);
}
