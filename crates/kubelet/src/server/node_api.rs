//! The kubelet's HTTPS API of a real node: which path is answered by what.
//!
//! A route is a line in [`NodeApi::route`]: the path's first segment, and the function that answers all below it. What a client needs
//! to be allowed for a path is in `auth`.
//!
//! Source: upstream's `pkg/kubelet/server/server.go`.

use super::lookup::NodePods;
use super::request::{self, Handler, KubeletRequest, PLAIN, ServerBody};
use super::{logs, streams};
use crate::pods::context::NodeContext;
use futures_util::future::BoxFuture;
use http::{Method, Response, StatusCode};
use std::sync::Arc;

/// Answers the requests of a real node.
pub struct NodeApi {
    /// The node.
    pub cx: Arc<NodeContext>,
    /// Its pods.
    pub pods: Arc<dyn NodePods>,
}

impl NodeApi {
    /// Of a node with these pods.
    pub fn new(cx: Arc<NodeContext>, pods: Arc<dyn NodePods>) -> NodeApi {
        NodeApi { cx, pods }
    }

    async fn route(&self, request: KubeletRequest) -> Response<ServerBody> {
        let root = request.segments().first().copied().unwrap_or_default().to_owned();
        match root.as_str() {
            "healthz" => only_get(&request).unwrap_or_else(|| healthz(&request)),
            "containerLogs" => match only_get(&request) {
                Some(refusal) => refusal,
                None => logs::handle(self, request).await,
            },
            "exec" | "attach" | "portForward" | "run" => streams::handle(self, request).await,
            _ => request::not_found(),
        }
    }
}

impl Handler for NodeApi {
    fn handle(self: Arc<Self>, request: KubeletRequest) -> BoxFuture<'static, Response<ServerBody>> {
        Box::pin(async move { self.route(request).await })
    }
}

/// The refusal of what is not a GET.
fn only_get(request: &KubeletRequest) -> Option<Response<ServerBody>> {
    (request.method != Method::GET).then(request::method_not_allowed)
}

fn healthz(request: &KubeletRequest) -> Response<ServerBody> {
    match request.path.as_str() {
        "/healthz" | "/healthz/ping" | "/healthz/log" | "/healthz/syncloop" => {
            request::respond(StatusCode::OK, PLAIN, "ok")
        }
        _ => request::not_found(),
    }
}
