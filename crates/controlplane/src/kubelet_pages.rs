//! The resource metrics API of this server: kubelets are asked over the connections and with the certificate that this
//! server has for nodes; simulated ones in this process that have no listener are asked directly.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use kaji_builtins::shared::connect;
use kaji_engine::Engine;
use kaji_kubelet::simulated::ResourcePages;
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::{LocationQuery, ObjectReader};
use kaji_resource_metrics::{NodePages, PageError};
use kaji_runtime::objects::{Node, Pod};
use kaji_server::Connector;
use serde_json::Value;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};

/// The longest page that is read: some 300 bytes a container, in some ten thousand of them.
const MAX_PAGE: usize = 4 << 20;

/// The kubelets of all nodes.
pub struct Kubelets {
    /// Where their Nodes are.
    engine: Weak<Engine>,
    /// Opens connections to nodes.
    connector: Arc<Connector>,
    /// The pages of nodes without a listener.
    simulated: Option<ResourcePages>,
}

impl Kubelets {
    /// Those of the nodes in an engine. With `simulated` none of them has a listener.
    #[must_use]
    pub fn new(
        engine: &Arc<Engine>,
        connector: &Arc<Connector>,
        simulated: Option<ResourcePages>,
    ) -> Kubelets {
        Kubelets { engine: Arc::downgrade(engine), connector: connector.clone(), simulated }
    }
}

/// The page of a node of this process.
fn simulated(engine: &Engine, pages: &ResourcePages, node: &Value) -> Result<Bytes, PageError> {
    let failed = |error: serde_json::Error| PageError(error.to_string());
    let name = object::name(node);
    let pods = engine.list(&GroupResource::new("", "pods"), None);
    let pods = pods.iter().filter(|pod| pod["spec"]["nodeName"] == name);
    let pods: Vec<Pod> =
        pods.map(|pod| serde_json::from_value((**pod).clone())).collect::<Result<_, _>>().map_err(failed)?;
    let page = pages.page(&serde_json::from_value::<Node>(node.clone()).map_err(failed)?, &pods);
    page.map(Bytes::from).ok_or_else(|| PageError(format!("node {name} is down")))
}

fn nodes() -> GroupResource {
    GroupResource::new("", "nodes")
}

impl NodePages for Kubelets {
    fn nodes(&self) -> Vec<String> {
        let Some(engine) = self.engine.upgrade() else { return vec![] };
        engine.list(&nodes(), None).iter().map(|node| object::name(node).to_owned()).collect()
    }

    fn page<'a>(&'a self, node: &'a str, timeout: Duration) -> BoxFuture<'a, Result<Bytes, PageError>> {
        Box::pin(async move {
            let failed = |status: Status| PageError(status.message);
            let engine = self.engine.upgrade().ok_or_else(|| PageError("the server ends".into()))?;
            let found = engine.get(&nodes(), "", node).ok_or_else(|| PageError("the node is gone".into()))?;
            if let Some(pages) = &self.simulated {
                return simulated(&engine, pages, &found);
            }
            let query = LocationQuery::Pairs(vec![]);
            let location = connect::kubelet(&found, true, "/metrics/resource".into(), query);
            self.connector.read_document(&location, timeout, MAX_PAGE).await.map_err(failed)
        })
    }
}
