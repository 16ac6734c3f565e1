//! The resource metrics API of this server: kubelets are asked over the connections and with the certificate that this
//! server has for nodes.

use futures_util::future::BoxFuture;
use kaji_builtins::shared::connect;
use kaji_engine::Engine;
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::{LocationQuery, ObjectReader};
use kaji_resource_metrics::{NodePages, PageError};
use kaji_server::Connector;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};

/// The longest page that is read: some 300 bytes a container, in some ten thousand of them.
const MAX_PAGE: usize = 4 << 20;

/// The kubelets of all nodes.
pub struct Kubelets {
    /// Where their Nodes are.
    pub engine: Weak<Engine>,
    /// Opens connections to nodes.
    pub connector: Arc<Connector>,
}

fn nodes() -> GroupResource {
    GroupResource::new("", "nodes")
}

impl NodePages for Kubelets {
    fn nodes(&self) -> Vec<String> {
        let Some(engine) = self.engine.upgrade() else { return vec![] };
        engine.list(&nodes(), None).iter().map(|node| object::name(node).to_owned()).collect()
    }

    fn page<'a>(
        &'a self,
        node: &'a str,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<bytes::Bytes, PageError>> {
        Box::pin(async move {
            let failed = |status: Status| PageError(status.message);
            let found = self.engine.upgrade().and_then(|engine| engine.get(&nodes(), "", node));
            let found = found.ok_or_else(|| PageError("the node is gone".into()))?;
            let query = LocationQuery::Pairs(vec![]);
            let location = connect::kubelet(&found, true, "/metrics/resource".into(), query);
            self.connector.read_document(&location, timeout, MAX_PAGE).await.map_err(failed)
        })
    }
}
