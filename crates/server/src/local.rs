//! The in-process transport: a tower service that carries requests of the cluster's own parts straight to the stack,
//! each with its identity. No socket, no TLS, the same authorization.

use crate::{body::ResponseBody, identity::Peer, stack::Stack};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, header};
use http_body_util::Empty;
use kaji_resource::UserInfo;
use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

/// In the extensions of a request from inside the process: its objects and events may be pieces of the body by themselves,
/// with [`SEPARATE_OBJECTS`](kaji_engine::SEPARATE_OBJECTS) as the content type. A request from a socket has no extensions
/// of its client's.
#[derive(Clone, Copy)]
pub(crate) struct SeparateObjects;

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

    /// Lists or watches a collection, if possible in pieces that share the cache's memory: one object or event each, the
    /// first of a list being its metadata. The content type of the response says whether it is so.
    ///
    /// # Errors
    /// When `uri` or a header is malformed; refusals are responses.
    pub async fn collection(
        &self,
        agent: &str,
        accept: &str,
        uri: &str,
    ) -> Result<Response<ResponseBody>, http::Error> {
        let request = Request::get(uri).header(header::USER_AGENT, agent).header(header::ACCEPT, accept);
        let mut request = request.body(Empty::<Bytes>::new())?;
        request.extensions_mut().insert(SeparateObjects);
        Ok(self.serve(request).await)
    }

    /// What requests come from that have this `User-Agent`.
    pub(crate) fn peer(&self, agent: &str) -> Peer {
        Peer::trusted((self.identities)(agent))
    }

    pub(crate) fn stack(&self) -> Arc<Stack> {
        self.stack.clone()
    }

    async fn serve<B>(&self, mut request: Request<B>) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let agent = request.headers().get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let peer = self.peer(agent.unwrap_or_default());
        request.extensions_mut().insert(peer);
        self.stack.clone().serve(request).await
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

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.serve(request).await) })
    }
}
