//! The phase `scheduler`: how fast pods with spreading and affinity are bound to 1,000 and to 5,000 nodes that no kubelet serves.
//!
//! *Created and bound* counts from the first creation. *Bound alone*: the pods are there already, and every node has a taint; it
//! counts from the tenth part of the pods on, after the taints were taken away.
//!
//! Invariants: those of the phase `bound`.

use super::{
    Bench, Error,
    bindings::{BoundPods, LEASES, clear, heartbeats, now},
    client::Call,
    fixture::{self, collection},
    load::{self, Each, Until},
    objects::{self, Template},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::sleep};

/// Nodes, and the figures: created and bound, bound alone.
const SIZES: [(usize, &str, &str); 2] =
    [(1_000, "scheduled_1000", "bind_1000"), (5_000, "scheduled_5000", "bind_5000")];
const ZONES: usize = 10;
const CLIENTS: usize = 64;
const LIMIT: Duration = Duration::from_secs(600);
/// How long no pod at all may be bound before that is a failure.
const QUIET: Duration = Duration::from_secs(60);
/// Half of a node's grace.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// Longer than the longest backoff of a pod.
const BACKOFF: Duration = Duration::from_secs(12);
const HOLD: &str = "bench.kaji.example/hold";

/// Runs the phase.
pub async fn run(bench: &mut Bench) -> Result<(), Error> {
    for (nodes, created, alone) in SIZES {
        let nodes = ((nodes as f64 * bench.report.counts.scale) as usize).max(10);
        let namespace = format!("bench-{}-scheduler-{nodes}", bench.run);
        let names: Vec<String> = (0..nodes).map(|i| format!("bench-{}-{i:04}", bench.run)).collect();
        let outcome = measure(bench, &namespace, &names, (created, alone)).await;
        let cleared = clear(bench, namespace, &names).await;
        fixture::both(outcome, cleared)?;
    }
    Ok(())
}

async fn measure(
    bench: &mut Bench,
    namespace: &str,
    names: &[String],
    (created, alone): (&'static str, &'static str),
) -> Result<(), Error> {
    let pods = bench.report.counts.bound;
    fixture::namespace(&mut bench.control, namespace).await?;
    nodes(bench, names, pods).await?;
    let mut background = JoinSet::new();
    background.spawn(heartbeats(bench.target.clone(), names.to_vec(), HEARTBEAT));
    let path = collection(namespace, "pods");
    let template = pod(&bench.run);

    let mut watched = BoundPods::watch(bench, &path, pods).await?;
    let began = Instant::now();
    create(bench, &template, &path, "a", pods).await?;
    let (_, last) = watched.all(QUIET, LIMIT).await?;
    bench.report.set(created, rate(pods, last.duration_since(began)));
    fixture::empty(&mut bench.control, &path).await?;

    taint(bench, names, json!([{"key": HOLD, "effect": "NoSchedule"}])).await?;
    create(bench, &template, &path, "b", pods).await?;
    sleep(BACKOFF).await;
    let mut watched = BoundPods::watch(bench, &path, pods).await?;
    taint(bench, names, Value::Null).await?;
    let (tenth, last) = watched.all(QUIET, LIMIT).await?;
    bench.report.set(alone, rate(pods - pods / 10, last.duration_since(tenth)));
    Ok(())
}

fn rate(pods: usize, took: Duration) -> f64 {
    pods as f64 / took.as_secs_f64().max(1e-9)
}

/// Small pods that spread over zones, and rather not share a node.
fn pod(run: &str) -> Template {
    let selector = json!({"matchLabels": {"app": "bound"}});
    let mut pod: Value = serde_json::from_str(&objects::small_pod(run).named("x")).unwrap_or_default();
    pod["metadata"]["name"] = objects::HOLE.into();
    pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]);
    let term = json!({"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"});
    pod["spec"]["affinity"] = json!({"podAntiAffinity":
        {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "podAffinityTerm": term}]}});
    Template::new(&pod)
}

async fn create(
    bench: &Bench,
    template: &Template,
    path: &str,
    prefix: &'static str,
    pods: usize,
) -> Result<(), Error> {
    let (template, path) = (template.clone(), path.to_owned());
    let job = Each(move |i: usize| template.create(&path, &format!("{prefix}-{i:05}")));
    load::run(&bench.target, CLIENTS, Until::Count(pods), LIMIT, job).await.map(drop)
}

/// Makes the nodes, ready and without a taint.
async fn nodes(bench: &mut Bench, names: &[String], pods: usize) -> Result<(), Error> {
    let (room, run) = (pods.div_ceil(names.len()) + 100, bench.run.clone());
    let names: Arc<[String]> = names.into();
    let of = names.clone();
    let lease = Each(move |i: usize| Call::post(LEASES, objects::lease(&of[i], &now()).to_string()));
    load::run(&bench.target, CLIENTS, Until::Count(names.len()), LIMIT, lease).await?;
    let of = names.clone();
    let node = Each(move |i: usize| {
        let mut node = objects::node(&of[i], &run);
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = format!("z{}", i % ZONES).into();
        Call::post("/api/v1/nodes", node.to_string())
    });
    load::run(&bench.target, CLIENTS, Until::Count(names.len()), LIMIT, node).await?;
    let of = names.clone();
    let ready = Each(move |i: usize| {
        let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Call::merge(format!("/api/v1/nodes/{}/status", of[i]), &objects::node_status(room, &time))
    });
    load::run(&bench.target, CLIENTS, Until::Count(names.len()), LIMIT, ready).await?;
    // Those that admission adds go when a controller has seen the node ready; where none runs, by this.
    sleep(Duration::from_secs(3)).await;
    taint(bench, &names, Value::Null).await
}

async fn taint(bench: &Bench, names: &[String], taints: Value) -> Result<(), Error> {
    let names: Arc<[String]> = names.into();
    let count = names.len();
    let patch = json!({"spec": {"taints": taints}});
    let job = Each(move |i: usize| Call::merge(format!("/api/v1/nodes/{}", names[i]), &patch));
    load::run(&bench.target, CLIENTS, Until::Count(count), LIMIT, job).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_spread_and_repel_each_other() {
        let made = pod("r1").named("p-1");
        let pod: Value = serde_json::from_str(&made).unwrap();
        assert_eq!(pod["metadata"]["name"], "p-1");
        assert_eq!(pod["spec"]["nodeSelector"][objects::LABEL], "r1");
        assert!(pod["spec"]["topologySpreadConstraints"].is_array() && pod["spec"]["affinity"].is_object());
    }
}
