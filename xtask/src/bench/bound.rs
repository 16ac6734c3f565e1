//! The phase `bound`: pods created and bound by the cluster's scheduler to nodes that no kubelet serves.
//!
//! Invariants: the nodes are this run's own and stay alive (leases are renewed) while pods are placed; the pods may go
//! nowhere else; a pod counts as bound when a watcher has seen `spec.nodeName`.

use super::{
    Bench, Error,
    bindings::{BoundPods, LEASES, clear, heartbeats, now},
    client::Call,
    fixture::{self, collection},
    load::{self, Each, Until},
    objects,
};
use jiff::Timestamp;
use std::time::{Duration, Instant};
use tokio::{task::JoinSet, time::sleep};

const NODES: usize = 100;
/// Room on a node besides its share.
const SPARE: usize = 100;
const CLIENTS: usize = 64;
const LIMIT: Duration = Duration::from_secs(600);
/// How long no pod at all may be bound before that is a failure.
const QUIET: Duration = Duration::from_secs(30);
/// How long a node may keep the taint that every new node gets.
const TAINTED: Duration = Duration::from_secs(15);
/// Half of what kubelets take, a quarter of what makes a node suspect.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Runs the phase.
pub async fn run(bench: &mut Bench) -> Result<(), Error> {
    let namespace = format!("bench-{}-bound", bench.run);
    let names: Vec<String> = (0..NODES).map(|i| format!("bench-{}-{i:03}", bench.run)).collect();
    let outcome = measure(bench, &namespace, &names).await;
    let cleared = clear(bench, namespace, &names).await;
    fixture::both(outcome, cleared)
}

async fn measure(bench: &mut Bench, namespace: &str, names: &[String]) -> Result<(), Error> {
    let pods = bench.report.counts.bound;
    fixture::namespace(&mut bench.control, namespace).await?;
    nodes(bench, names, pods.div_ceil(NODES) + SPARE).await?;
    let mut background = JoinSet::new();
    background.spawn(heartbeats(bench.target.clone(), names.to_vec(), HEARTBEAT));

    let path = collection(namespace, "pods");
    let mut watched = BoundPods::watch(bench, &path, pods).await?;
    let template = objects::small_pod(&bench.run);
    let create = Each(move |i: usize| template.create(&path, &format!("p-{i:05}")));
    let created = load::run(&bench.target, CLIENTS, Until::Count(pods), LIMIT, create).await?;
    let (_, last) = watched.all(QUIET, LIMIT).await?;
    let elapsed = last.duration_since(created.began);
    bench.report.set("bound", pods as f64 / elapsed.as_secs_f64().max(1e-9));
    Ok(())
}

/// Makes the nodes and waits until pods may go there.
async fn nodes(bench: &mut Bench, names: &[String], room: usize) -> Result<(), Error> {
    let client = &mut bench.control;
    let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    for name in names {
        client.call(&Call::post(LEASES, objects::lease(name, &now()).to_string())).await?;
        client.call(&Call::post("/api/v1/nodes", objects::node(name, &bench.run).to_string())).await?;
        let status = objects::node_status(room, &time);
        client.call(&Call::merge(format!("/api/v1/nodes/{name}/status"), &status)).await?;
    }
    let deadline = Instant::now() + TAINTED;
    for name in names {
        let path = format!("/api/v1/nodes/{name}");
        loop {
            let node = client.json(&Call::get(&path)).await?;
            if node["spec"]["taints"].as_array().is_none_or(Vec::is_empty) {
                break;
            }
            if Instant::now() >= deadline {
                // No controller handles nodes here: what admission added must be removed by hand.
                client.call(&Call::merge(&path, &serde_json::json!({"spec": {"taints": null}}))).await?;
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}
