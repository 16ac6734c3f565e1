//! The phase `bound`: pods created and bound by the cluster's scheduler to nodes that no kubelet serves.
//!
//! Invariants: the nodes are this run's own and stay alive (leases are renewed) while pods are placed; the pods may go
//! nowhere else; a pod counts as bound when a watcher has seen `spec.nodeName`.

use super::{
    Bench, Error,
    client::{Call, Client, Target},
    fixture::{self, collection},
    load::{self, Each, Until},
    objects,
    stream::{Stream, reaches},
};
use jiff::Timestamp;
use serde::Deserialize;
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    task::JoinSet,
    time::{interval, sleep},
};

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
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Runs the phase.
pub async fn run(bench: &mut Bench) -> Result<(), Error> {
    let namespace = format!("bench-{}-bound", bench.run);
    let names: Vec<String> = (0..NODES).map(|i| format!("bench-{}-{i:03}", bench.run)).collect();
    let outcome = measure(bench, &namespace, &names).await;
    let cleared = clear(bench, namespace, &names).await;
    fixture::both(outcome, cleared)
}

async fn clear(bench: &mut Bench, namespace: String, nodes: &[String]) -> Result<(), Error> {
    fixture::empty(&mut bench.control, &collection(&namespace, "pods")).await?;
    let ours = format!("/api/v1/nodes?labelSelector={}", bench.selector());
    fixture::empty(&mut bench.control, &ours).await?;
    for node in nodes {
        match bench.control.call(&Call::delete(format!("{LEASES}/{node}"))).await {
            // Garbage collection may have been here first.
            Ok(_) | Err(Error::Status { code: 404, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    fixture::remove_namespaces(&mut bench.control, &[namespace]).await
}

async fn measure(bench: &mut Bench, namespace: &str, names: &[String]) -> Result<(), Error> {
    let pods = bench.report.counts.bound;
    fixture::namespace(&mut bench.control, namespace).await?;
    nodes(bench, names, pods.div_ceil(NODES) + SPARE).await?;
    let mut background = JoinSet::new();
    background.spawn(heartbeats(bench.target.clone(), names.to_vec()));

    let path = collection(namespace, "pods");
    let revision = fixture::revision(&mut bench.control, &path).await?;
    let stream = Stream::open(&bench.target, &path, &revision).await?;
    let began = Instant::now();
    let tally = Arc::new(Tally { began, bound: AtomicU64::new(0), last: AtomicU64::new(0) });
    let mut reader = JoinSet::new();
    reader.spawn(follow(stream, tally.clone()));

    let template = objects::small_pod(&bench.run);
    let create = Each(move |i: usize| template.create(&path, &format!("p-{i:05}")));
    let created = load::run(&bench.target, CLIENTS, Until::Count(pods), LIMIT, create).await?;
    let goal = pods as u64;
    let all = reaches(goal, || tally.bound.load(Ordering::Relaxed), QUIET, LIMIT).await;
    if !all {
        if let Some(Ok(Err(error))) = reader.try_join_next() {
            return Err(error);
        }
        let bound = tally.bound.load(Ordering::Relaxed);
        return Err(Error::Answer(format!(
            "{bound} of {pods} pods were bound, then none for {} s: is there a scheduler?",
            QUIET.as_secs()
        )));
    }
    let elapsed = (began + Duration::from_nanos(tally.last.load(Ordering::Relaxed))) - created.began;
    bench.report.set("bound", pods as f64 / elapsed.as_secs_f64().max(1e-9));
    Ok(())
}

pub(super) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
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

/// Renews the nodes' leases until dropped. A failure shows as nodes that are not ready, and so as pods not bound.
async fn heartbeats(target: Arc<Target>, names: Vec<String>) {
    let mut client = Client::new(&target);
    let mut ticks = interval(HEARTBEAT);
    loop {
        ticks.tick().await;
        for name in &names {
            let renewed = serde_json::json!({"spec": {"renewTime": now()}});
            let _ = client.call(&Call::merge(format!("{LEASES}/{name}"), &renewed)).await;
        }
    }
}

struct Tally {
    began: Instant,
    bound: AtomicU64,
    /// When the last pod was seen bound, in nanoseconds after `began`.
    last: AtomicU64,
}

async fn follow(mut stream: Stream, tally: Arc<Tally>) -> Result<(), Error> {
    let (mut partial, mut seen) = (Vec::new(), HashSet::new());
    loop {
        let piece = stream.next().await?;
        let mut rest: &[u8] = &piece;
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            partial.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            if let Some(name) = bound(&partial)?
                && seen.insert(name)
            {
                tally.bound.store(seen.len() as u64, Ordering::Relaxed);
                tally.last.store(tally.began.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
            partial.clear();
        }
        partial.extend_from_slice(rest);
    }
}

/// The name of the pod that an event shows as bound.
pub(super) fn bound(line: &[u8]) -> Result<Option<String>, Error> {
    #[derive(Deserialize)]
    struct Event {
        object: Pod,
    }
    #[derive(Deserialize)]
    struct Pod {
        metadata: Metadata,
        spec: Option<Spec>,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: Option<String>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        node_name: Option<String>,
    }
    let event: Event = serde_json::from_slice(line).map_err(|e| Error::Json("a watch event".into(), e))?;
    let placed = event.object.spec.and_then(|s| s.node_name).is_some_and(|n| !n.is_empty());
    Ok(event.object.metadata.name.filter(|_| placed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_pods_are_recognised() {
        let name = |line: &str| bound(line.as_bytes()).unwrap();
        assert_eq!(
            name(r#"{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"containers":[]}}}"#),
            None
        );
        let line =
            r#"{"type":"MODIFIED","object":{"kind":"Pod","metadata":{"name":"a"},"spec":{"nodeName":"n"}}}"#;
        assert_eq!(name(line).as_deref(), Some("a"));
        assert_eq!(name(r#"{"type":"ERROR","object":{"metadata":{},"code":410}}"#), None);
        assert!(bound(b"{").is_err());
    }

    #[test]
    fn times_are_as_the_api_wants_them() {
        let now = now();
        assert!(now.len() == 27 && now.ends_with('Z') && now.parse::<Timestamp>().is_ok(), "{now}");
    }
}
