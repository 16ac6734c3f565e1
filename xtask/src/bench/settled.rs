//! The phases `deployment` and `settled`: a Deployment of 1,000 replicas made ready and rolled to another image, and what all
//! loops take while nothing happens. Both need a server with nodes that run pods: `--nodes sim:100`, `--nodes sim:1000`.
//!
//! Invariants: every wait is bounded; a server without ready nodes is an error, not a figure.

use super::{
    Bench, Error,
    client::{Call, Client},
    fixture,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How long a Deployment may take to become ready, and to roll.
const LIMIT: Duration = Duration::from_secs(600);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long nodes may take until all of them are ready.
const READY: Duration = Duration::from_secs(180);
/// What happens after the last node became ready is over by then.
const CALM: Duration = Duration::from_secs(30);
/// How long processor time is measured: several periods of leases.
const MEASURED: Duration = Duration::from_secs(60);

/// Runs the phase `deployment`.
pub async fn deployment(bench: &mut Bench) -> Result<(), Error> {
    all_ready(&mut bench.control).await?;
    let namespace = format!("bench-{}-deployment", bench.run);
    fixture::namespace(&mut bench.control, &namespace).await?;
    let outcome = roll(bench, &namespace).await;
    let cleared = fixture::remove_namespaces(&mut bench.control, &[namespace]).await;
    fixture::both(outcome, cleared)
}

async fn roll(bench: &mut Bench, namespace: &str) -> Result<(), Error> {
    let replicas = bench.report.counts.replicas;
    let collection = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let path = format!("{collection}/web");
    let labels = json!({"app": "web"});
    let container = json!({"name": "main", "image": "registry.example/web:1",
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}});
    let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}}});
    let began = Instant::now();
    bench.control.call(&Call::post(&collection, body.to_string())).await?;
    until(&mut bench.control, &path, |status| status["readyReplicas"] == replicas).await?;
    bench.report.time("deployment_ready", began.elapsed());
    let began = Instant::now();
    let image = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "main", "image": "registry.example/web:2"}]}}}});
    bench.control.call(&Call::merge(&path, &image)).await?;
    let rolled = |status: &Value| {
        let all = ["replicas", "updatedReplicas", "availableReplicas"];
        status["observedGeneration"] == 2 && all.iter().all(|field| status[field] == replicas)
    };
    until(&mut bench.control, &path, rolled).await?;
    bench.report.time("deployment_rolled", began.elapsed());
    Ok(())
}

async fn until(client: &mut Client, path: &str, done: impl Fn(&Value) -> bool) -> Result<(), Error> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let deployment = client.json(&Call::get(path)).await?;
        if done(&deployment["status"]) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::Timeout(format!("a Deployment, now at {}", deployment["status"]), LIMIT));
        }
        sleep(LOOK).await;
    }
}

/// Waits until every node is ready; how many there are.
async fn all_ready(client: &mut Client) -> Result<usize, Error> {
    let deadline = Instant::now() + READY;
    loop {
        let nodes = client.json(&Call::get("/api/v1/nodes")).await?;
        let nodes = nodes["items"].as_array().cloned().unwrap_or_default();
        let ready = |node: &&Value| {
            let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
            node["spec"]["taints"].is_null()
                && conditions.filter(|c| c["type"] == "Ready").any(|c| c["status"] == "True")
        };
        let count = nodes.iter().filter(ready).count();
        if count > 0 && count == nodes.len() {
            return Ok(count);
        }
        if Instant::now() >= deadline {
            let text =
                format!("{count} of {} nodes are ready: start the server with --nodes sim:N", nodes.len());
            return Err(Error::Answer(text));
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Runs the phase `settled`.
pub async fn settled(bench: &mut Bench) -> Result<(), Error> {
    let nodes = all_ready(&mut bench.control).await?;
    sleep(CALM).await;
    let Some(before) = bench.server.cpu() else {
        return Err(Error::Answer("the processor time is unknown: give --pid or --exec".into()));
    };
    let began = Instant::now();
    sleep(MEASURED).await;
    let (took, after) = (began.elapsed(), bench.server.cpu().unwrap_or(before));
    let share = after.saturating_sub(before).as_secs_f64() / took.as_secs_f64().max(1e-9);
    bench.report.set("settled_cpu", share);
    bench.report.notes.push(format!("settled: {nodes} nodes, which renew their leases"));
    Ok(())
}
