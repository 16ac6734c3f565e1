//! The in-process transport: a tower service that carries requests of the cluster's own parts straight to the stack,
//! with an identity of their own. No socket, no TLS, the same authorization.

use crate::{body::ResponseBody, identity::Peer, stack::Stack};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use kaji_resource::UserInfo;
use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

/// A client's transport for one identity.
#[derive(Clone)]
pub struct LocalService {
    stack: Arc<Stack>,
    peer: Peer,
}

impl LocalService {
    /// Requests through this service come from `user`.
    pub fn new(stack: Arc<Stack>, user: UserInfo) -> Self {
        LocalService { stack, peer: Peer::trusted(user) }
    }
}

impl<B> tower_service::Service<Request<B>> for LocalService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(self.peer.clone());
        let stack = self.stack.clone();
        Box::pin(async move { Ok(stack.serve(request).await) })
    }
}
