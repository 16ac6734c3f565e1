//! The annotation by which a Node says that its machine serves cluster DNS, so that the `kube-dns` service leads there.
//!
//! Invariant: the annotation is set while DNS is served, also on a Node object that was created anew, and taken away when the node
//! ends cleanly.

use kaji_dns::SERVED_ANNOTATION;
use kaji_kubelet::node::FullNode;
use kaji_runtime::{Client, Error, Informers, PatchKind, Target, objects::Node};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};

/// Before a write that failed is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// How long a node that ends waits for the API server.
const WITHDRAWAL: Duration = Duration::from_secs(2);

/// Keeps the annotation of the informers' one Node, once `served` is true.
pub async fn follow(informers: Arc<Informers>, client: Client, mut served: watch::Receiver<bool>) {
    let (sender, mut changes) = mpsc::channel(1);
    let nodes = informers.get::<FullNode>();
    nodes.handle(move |_| {
        // A queue that is full leads to the same look at the newest state.
        let _ = sender.try_send(());
    });
    if served.wait_for(|served| *served).await.is_err() {
        // DNS is not served: nothing to announce.
        return;
    }
    loop {
        let node = nodes.snapshot().iter().next().map(|found| found.node.clone());
        let unannounced = node.filter(|node| {
            let annotations = node.metadata.annotations.as_ref();
            annotations.and_then(|a| a.get(SERVED_ANNOTATION)).map(String::as_str) != Some("true")
        });
        if let Some(name) = unannounced.and_then(|node| node.metadata.name.clone())
            && let Err(error) = write(&client, &name, "true".into()).await
        {
            tracing::warn!(%error, "the node cannot announce its cluster DNS");
            tokio::time::sleep(RETRY).await;
            continue;
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

/// Takes the annotation away, or gives up after a short while.
pub async fn withdraw(client: &Client, name: &str) {
    match tokio::time::timeout(WITHDRAWAL, write(client, name, Value::Null)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "the announcement of the node's cluster DNS could not be removed")
        }
        Err(_) => tracing::debug!(
            "the announcement of the node's cluster DNS could not be removed: the API server did not answer in time"
        ),
    }
}

async fn write(client: &Client, name: &str, value: Value) -> Result<(), Error> {
    let patch = json!({"metadata": {"annotations": {SERVED_ANNOTATION: value}}});
    let target = Target::of::<Node>("", name);
    client.patch(&target, PatchKind::Merge.content_type(), "", &patch).await.map(drop)
}
