//! What a node does for claims beside its pods' workers: it serves the API that shows them, removes ResourceSlices of drivers
//! that are gone, shows the health of devices, and unprepares claims of pods that were removed while no kubelet ran.

use super::static_pods::{self, StaticPods};
use super::{DispatcherEvent, FullPod, pod_directories};
use crate::metrics::KubeletMetrics;
use crate::plugins::dra::{DraManager, SliceApi, WIPING_DELAY};
use crate::plugins::pod_resources::{self, ActivePods};
use crate::pods::context::{NodeConfig, NodeContext};
use crate::pods::core::Pod;
use crate::pods::model;
use futures_util::future::BoxFuture;
use http::Method;
use kaji_runtime::{Client, Informer, Shared, Target, client::escape};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Upstream's `defaultReconcilePeriod`.
const RECONCILE: Duration = Duration::from_secs(60);

/// The ResourceSlices of a node.
struct NodeSlices {
    client: Client,
    node: String,
}

/// The claims of a node, with what a kubelet before this one knew of them.
pub(super) fn manager(
    config: &NodeConfig,
    client: &Client,
    shared: &Shared,
    metrics: &Arc<KubeletMetrics>,
) -> Arc<DraManager> {
    let slices = Arc::new(NodeSlices { client: client.clone(), node: config.node_name.clone() });
    let (clock, metrics) = (shared.clock.clone(), metrics.clone());
    Arc::new(DraManager::new(&config.root_dir, slices, clock, metrics, WIPING_DELAY))
}

/// Begins what is done for claims, and serves the API that shows them.
pub(super) fn start(
    cx: &Arc<NodeContext>,
    pods: &Arc<Informer<FullPod>>,
    statics: &watch::Receiver<StaticPods>,
    events: mpsc::Sender<DispatcherEvent>,
    tasks: &mut JoinSet<()>,
) {
    tasks.spawn(follow_health(cx.clone(), events));
    tasks.spawn(keep_claims(cx.clone(), pods.clone()));
    let active = active_pods(&cx.config.node_name, pods.clone(), statics.clone());
    tasks.spawn(pod_resources::run(cx.clone(), active));
}

impl SliceApi for NodeSlices {
    fn delete_slices<'a>(&'a self, driver: Option<&'a str>) -> BoxFuture<'a, Result<(), String>> {
        let mut selector = format!("spec.nodeName={}", self.node);
        if let Some(driver) = driver {
            selector += &format!(",spec.driver={driver}");
        }
        let target = Target {
            group: "resource.k8s.io".into(),
            version: "v1".into(),
            resource: "resourceslices".into(),
            ..Target::default()
        };
        let uri = format!("{}?fieldSelector={}", target.path(), escape(&selector));
        Box::pin(async move {
            let options = serde_json::json!({}).to_string().into();
            match self.client.call(Method::DELETE, &uri, "application/json", options).await {
                Ok(_) => Ok(()),
                Err(error) if error.not_found() => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}

/// Has the status of pods written anew that have a device of another health.
async fn follow_health(cx: Arc<NodeContext>, events: mpsc::Sender<DispatcherEvent>) {
    let Some(mut changed) = cx.dra.changed_pods() else { return };
    while let Some(pod) = changed.recv().await {
        if events.send(DispatcherEvent::Pod(pod)).await.is_err() {
            return;
        }
    }
}

/// Unprepares, now and then, claims of pods that neither the API nor the node has any more.
async fn keep_claims(cx: Arc<NodeContext>, pods: Arc<Informer<FullPod>>) {
    pods.synced().await;
    loop {
        kaji_runtime::time::sleep(&*cx.clock, RECONCILE).await;
        // Directories before pods: a pod that ends has one until it is over.
        let mut active: BTreeSet<String> = pod_directories(&cx.config.root_dir).into_iter().collect();
        active.extend(pods.snapshot().iter().map(|p| model::uid(&p.pod).to_owned()));
        cx.dra.reconcile(&active).await;
    }
}

/// The pods of the node that run or are about to. Mirror pods are not: the static pods that they stand for are.
fn active_pods(node: &str, pods: Arc<Informer<FullPod>>, statics: watch::Receiver<StaticPods>) -> ActivePods {
    let node = node.to_owned();
    Arc::new(move || {
        let (snapshot, statics) = (pods.snapshot(), statics.borrow().clone());
        let bound = |pod: &&Arc<Pod>| model::spec(pod).node_name.as_ref() == Some(&node);
        let own = snapshot.iter().map(|p| &p.pod).filter(bound);
        let own = own.filter(|pod| static_pods::mirrored(pod).is_none());
        own.chain(statics.iter()).filter(|pod| !model::is_terminal(pod)).cloned().collect()
    })
}
