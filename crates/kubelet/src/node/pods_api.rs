//! The pods API of a node: which pods it shows.

use super::FullPod;
use super::static_pods::{self, StaticPods};
use crate::plugins::pods_api::{self, LocalPods};
use crate::pods::context::NodeContext;
use crate::pods::model;
use kaji_runtime::Informer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Serves it. Until the API's pods are known it refuses, since what is missing would look gone.
pub(super) fn start(
    cx: &Arc<NodeContext>,
    pods: &Arc<Informer<FullPod>>,
    statics: &watch::Receiver<StaticPods>,
    tasks: &mut JoinSet<()>,
) {
    let known = Arc::new(AtomicBool::new(false));
    let (informer, complete) = (pods.clone(), known.clone());
    tasks.spawn(async move {
        informer.synced().await;
        complete.store(true, Ordering::Relaxed);
    });
    let (node, pods, statics) = (cx.config.node_name.clone(), pods.clone(), statics.clone());
    let local: LocalPods = Arc::new(move || {
        if !known.load(Ordering::Relaxed) {
            return None;
        }
        let (snapshot, statics) = (pods.snapshot(), statics.borrow().clone());
        let own = snapshot.iter().map(|p| &p.pod);
        let own = own.filter(|pod| model::spec(pod).node_name.as_ref() == Some(&node));
        // Mirror pods stand for static ones.
        let own = own.filter(|pod| static_pods::mirrored(pod).is_none());
        Some(own.chain(statics.iter()).cloned().collect())
    });
    tasks.spawn(pods_api::run(cx.clone(), local));
}
