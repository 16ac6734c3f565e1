//! `/exec`, `/attach`, `/portForward` and `/run` of a real node.
//!
//! A path's segments are `root/{namespace}/{pod}[/{uid}][/{container}]`. [`super::lookup`] finds the pod, the container and the sandbox;
//! the request has the upgrade, and runs the session that follows it.

use super::node_api::NodeApi;
use super::request::{self, KubeletRequest, ServerBody};
use http::{Response, StatusCode};

/// Answers a request to one of the roots above.
pub(super) async fn handle(_api: &NodeApi, request: KubeletRequest) -> Response<ServerBody> {
    let root = request.segments().first().copied().unwrap_or_default().to_owned();
    request::error(StatusCode::NOT_IMPLEMENTED, format!("/{root} is not served by this kubelet"))
}
