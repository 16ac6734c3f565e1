//! Components that run alone, over HTTPS: they take their lease, do their work, show health and metrics to clients that may see them,
//! and give the lease back.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok},
    until,
};
use kaji_components::{controller_manager, scheduler};
use kaji_controllers::Selection;
use kaji_options::{
    ControllerManagerFlags, SchedulerFlags,
    component::{ControllerManagerOptions, SchedulerOptions},
};
use kaji_testing::{ports, text_format};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;

#[derive(clap::Parser)]
struct Manager {
    #[command(flatten)]
    flags: ControllerManagerFlags,
}

#[derive(clap::Parser)]
struct Scheduler {
    #[command(flatten)]
    flags: SchedulerFlags,
}

fn arguments(cluster: &TestCluster, port: u16, more: &[&str]) -> Vec<String> {
    let own = [
        "kaji".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig.display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
    ];
    own.into_iter().chain(more.iter().map(|flag| (*flag).to_owned())).collect()
}

fn manager(cluster: &TestCluster, port: u16, more: &[&str]) -> ControllerManagerOptions {
    use clap::Parser;
    Manager::try_parse_from(arguments(cluster, port, more)).unwrap().flags.into_options().unwrap()
}

fn scheduler_options(cluster: &TestCluster, port: u16) -> SchedulerOptions {
    use clap::Parser;
    Scheduler::try_parse_from(arguments(cluster, port, &[])).unwrap().flags.into_options().unwrap()
}

/// A cluster with nodes and no loops of its own.
async fn without_loops() -> TestCluster {
    let dir = tempfile::tempdir().unwrap();
    TestCluster::start_over(dir, 2, kaji::StoreKind::Memory, |options| options.selection = Selection::none())
        .await
}

/// A client of a component's port, with the administrator's certificate or without any credentials.
async fn observer(cluster: &TestCluster, port: u16, credentials: bool) -> Client {
    let config = kube::config::Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    config.cluster_url = format!("https://127.0.0.1:{port}").parse().unwrap();
    config.accept_invalid_certs = true;
    if !credentials {
        config.auth_info = kube::config::AuthInfo::default();
    }
    Client::try_from(config).unwrap()
}

async fn page(client: &Client, path: &str) -> (u16, String) {
    let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect_bytes().await.unwrap();
    (code, String::from_utf8_lossy(&body).into_owned())
}

async fn holder(cluster: &TestCluster, lease: &str) -> String {
    let path = format!("GET /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{lease}");
    let (_, lease) = ask(cluster, &admin(), &path, &Value::Null).await;
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_and_scheduler_run_over_https() {
    let cluster = without_loops().await;
    let (stop, stopped) = watch::channel(false);
    let (managing, scheduling) = (ports::outside_ephemeral_range(), ports::outside_ephemeral_range());
    let options = manager(&cluster, managing, &["--use-service-account-credentials", "--kube-api-qps=-1"]);
    let controllers = tokio::spawn(controller_manager::run(options, stopped.clone()));
    let pods = tokio::spawn(scheduler::run(scheduler_options(&cluster, scheduling), stopped));
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 3,
        "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    ok(&cluster, &admin(), &format!("POST {path}"), deployment).await;
    until("the deployment is available", async || {
        let found = ok(&cluster, &admin(), &format!("GET {path}/web"), Value::Null).await;
        found["status"]["availableReplicas"] == 3
    })
    .await;
    // Each controller acted as its own account, which did not exist before.
    let accounts = "GET /api/v1/namespaces/kube-system/serviceaccounts/replicaset-controller";
    ok(&cluster, &admin(), accounts, Value::Null).await;
    let (known, unknown) =
        (observer(&cluster, managing, true).await, observer(&cluster, managing, false).await);
    assert_eq!(page(&unknown, "/healthz").await, (200, "ok".into()));
    let (code, refused) = page(&unknown, "/metrics").await;
    let message = "forbidden: User \\\"system:anonymous\\\" cannot get path \\\"/metrics\\\"";
    assert!(code == 403 && refused.contains(message), "{refused}");
    let (code, metrics) = page(&known, "/metrics").await;
    assert_eq!(code, 200, "{metrics}");
    assert!(
        metrics.contains("leader_election_master_status{name=\"kube-controller-manager\"} 1"),
        "{metrics}"
    );
    let families = text_format::parse(&metrics).unwrap();
    assert!(families["workqueue_adds_total"].sum(&[("name", "replicaset")]) > 0.0, "{metrics}");
    assert!(
        families["rest_client_requests_total"].sum(&[("method", "GET"), ("code", "200")]) > 0.0,
        "{metrics}"
    );
    assert!(families.contains_key("process_cpu_seconds_total"), "{metrics}");
    let (code, slis) = page(&known, "/metrics/slis").await;
    let slis = text_format::parse(&slis).unwrap();
    assert_eq!(
        (code, slis["kubernetes_healthchecks_total"].sum(&[("name", "ping"), ("type", "healthz")])),
        (200, 1.0)
    );
    let (_, metrics) = page(&observer(&cluster, scheduling, true).await, "/metrics").await;
    let families = text_format::parse(&metrics).unwrap();
    assert!(
        families["scheduler_schedule_attempts_total"].sum(&[("result", "scheduled")]) >= 3.0,
        "{metrics}"
    );
    assert!(!holder(&cluster, "kube-scheduler").await.is_empty());
    stop.send_replace(true);
    controllers.await.unwrap().unwrap();
    pods.await.unwrap().unwrap();
    let leases =
        [holder(&cluster, "kube-controller-manager").await, holder(&cluster, "kube-scheduler").await];
    assert_eq!(leases, [String::new(), String::new()]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_managers_leads() {
    let cluster = without_loops().await;
    let timing = [
        "--leader-elect-lease-duration=3s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=100ms",
        "--leader-elect-resource-name=mine",
    ];
    let options = |port| manager(&cluster, port, &timing);
    let (stop_first, stopped) = watch::channel(false);
    let first = tokio::spawn(controller_manager::run(options(0), stopped));
    until("the first one leads", async || !holder(&cluster, "mine").await.is_empty()).await;
    let leader = holder(&cluster, "mine").await;
    let (stop_second, stopped) = watch::channel(false);
    let second = tokio::spawn(controller_manager::run(options(0), stopped));
    stop_first.send_replace(true);
    first.await.unwrap().unwrap();
    until("the second one leads", async || {
        let holder = holder(&cluster, "mine").await;
        !holder.is_empty() && holder != leader
    })
    .await;
    stop_second.send_replace(true);
    second.await.unwrap().unwrap();
    cluster.stop().await;
}
