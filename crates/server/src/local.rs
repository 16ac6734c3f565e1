//! The in-process transport: a tower service that carries requests of the cluster's own parts straight to the stack,
//! each with its identity. No socket, no TLS, the same authorization.

use crate::{body::ResponseBody, identity::Peer, stack::Stack};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, header};
use kaji_resource::UserInfo;
use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

/// The user of a request, by its `User-Agent`.
pub type Identities = Arc<dyn Fn(&str) -> Arc<UserInfo> + Send + Sync>;

/// A client's transport for one identity, or for several that the client's parts go by.
#[derive(Clone)]
pub struct LocalService {
    stack: Arc<Stack>,
    identities: Identities,
}

impl LocalService {
    /// Requests through this service come from `user`.
    pub fn new(stack: Arc<Stack>, user: UserInfo) -> Self {
        let user = Arc::new(user);
        Self::by_agent(stack, Arc::new(move |_| user.clone()))
    }

    /// Each request has the user of its `User-Agent`. Only for clients inside this process: a client may choose any agent,
    /// and so any of these users.
    pub fn by_agent(stack: Arc<Stack>, identities: Identities) -> Self {
        LocalService { stack, identities }
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
        let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let peer = Peer::trusted((self.identities)(agent.unwrap_or_default()));
        request.extensions_mut().insert(peer);
        let stack = self.stack.clone();
        Box::pin(async move { Ok(stack.serve(request).await) })
    }
}
