//! Nodes that no kubelet serves, and pods that are bound to them: what the phases `bound` and `scheduler` have in common.
//!
//! Invariants: leases are renewed as long as the task of [`heartbeats`] runs; a pod counts as bound when a watcher has seen
//! `spec.nodeName`, once.

use super::{
    Bench, Error,
    client::{Call, Client, Target},
    fixture::{self, collection},
    stream::{Stream, reaches},
};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::interval};

/// The leases of nodes.
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// A time as leases have it.
pub fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Removes the pods of a namespace, this run's nodes and their leases, and the namespace.
pub async fn clear(bench: &mut Bench, namespace: String, nodes: &[String]) -> Result<(), Error> {
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

/// Renews the nodes' leases once a period, until dropped. A failure shows as nodes that are not ready, and so as pods not bound.
pub async fn heartbeats(target: Arc<Target>, names: Vec<String>, period: Duration) {
    let mut client = Client::new(&target);
    let mut ticks = interval(period);
    loop {
        ticks.tick().await;
        for name in &names {
            let renewed = json!({"spec": {"renewTime": now()}});
            let _ = client.call(&Call::merge(format!("{LEASES}/{name}"), &renewed)).await;
        }
    }
}

/// What a watch has seen of the pods.
struct Tally {
    began: Instant,
    bound: AtomicU64,
    /// When a tenth of them was bound, in nanoseconds after `began`.
    tenth: AtomicU64,
    /// When the last of them was.
    last: AtomicU64,
}

/// A watch that counts bound pods.
pub struct BoundPods {
    tally: Arc<Tally>,
    reader: JoinSet<Result<(), Error>>,
    goal: u64,
}

impl BoundPods {
    /// Watches a collection from now on, until this many pods are bound.
    ///
    /// # Errors
    /// When no watch can be opened.
    pub async fn watch(bench: &mut Bench, path: &str, pods: usize) -> Result<BoundPods, Error> {
        let revision = fixture::revision(&mut bench.control, path).await?;
        let stream = Stream::open(&bench.target, path, &revision).await?;
        let zero = || AtomicU64::new(0);
        let tally = Arc::new(Tally { began: Instant::now(), bound: zero(), tenth: zero(), last: zero() });
        let mut reader = JoinSet::new();
        reader.spawn(follow(stream, tally.clone(), pods as u64 / 10));
        Ok(BoundPods { tally, reader, goal: pods as u64 })
    }

    /// Waits until all pods are bound, `limit` at most, or until none was for `quiet`: when a tenth was bound, and when the last.
    ///
    /// # Errors
    /// Those of the watch, and when not all were bound.
    pub async fn all(&mut self, quiet: Duration, limit: Duration) -> Result<(Instant, Instant), Error> {
        let bound = || self.tally.bound.load(Ordering::Relaxed);
        if !reaches(self.goal, bound, quiet, limit).await {
            if let Some(Ok(Err(error))) = self.reader.try_join_next() {
                return Err(error);
            }
            let (bound, goal) = (bound(), self.goal);
            let text =
                format!("{bound} of {goal} pods were bound, then none for {quiet:?}: is there a scheduler?");
            return Err(Error::Answer(text));
        }
        let at = |nanos: &AtomicU64| self.tally.began + Duration::from_nanos(nanos.load(Ordering::Relaxed));
        Ok((at(&self.tally.tenth), at(&self.tally.last)))
    }
}

async fn follow(mut stream: Stream, tally: Arc<Tally>, tenth: u64) -> Result<(), Error> {
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
                let (count, elapsed) = (seen.len() as u64, tally.began.elapsed().as_nanos() as u64);
                tally.last.store(elapsed, Ordering::Relaxed);
                if count == tenth {
                    tally.tenth.store(elapsed, Ordering::Relaxed);
                }
                tally.bound.store(count, Ordering::Relaxed);
            }
            partial.clear();
        }
        partial.extend_from_slice(rest);
    }
}

/// The name of the pod that an event shows as bound.
fn bound(line: &[u8]) -> Result<Option<String>, Error> {
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
