//! Creations that a part of this process sends together. Each is a request on the path of all others: it is authenticated,
//! recorded, authorized, admitted, committed and counted by itself. They share one task, one seat of flow control and one CPU
//! permit.
//!
//! Invariants:
//! - A creation uses the shared seat only where flow control cannot distinguish it from the one that acquired the seat: it has the
//!   same user, verb, resource and namespace. Others, and all of them if that one was rejected, acquire their own.
//! - A creation that is refused does not concern the others. All are carried out, even if the future of their answers is dropped.

use crate::{
    body::ResponseBody,
    cpu_fairness::with_permit,
    flowcontrol::{Classification, Seat},
    identity::Peer,
    local::LocalService,
    route::{RequestInfo, Target},
    stack::Stack,
};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, header, request::Parts};
use http_body_util::{BodyExt, Full};
use kaji_meta::{Query, query::unescape};
use kaji_resource::UserInfo;
use std::{panic::resume_unwind, sync::Arc};

/// An object to be created.
#[derive(Clone, Debug)]
pub struct Creation {
    /// The path.
    pub uri: String,
    /// In JSON.
    pub body: Bytes,
}

/// The outcome of a creation: HTTP code and body.
pub type CreationAnswer = (u16, Bytes);

/// In the extensions of a creation: what the seat was acquired for that it may use.
#[derive(Clone)]
pub(crate) struct SharedSeat(Arc<(UserInfo, RequestInfo)>);

impl SharedSeat {
    /// Whether flow control would treat this request as the one that acquired the seat.
    pub fn covers(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        let (other_user, other) = &*self.0;
        let same_target = match (&info.resource, &other.resource) {
            (Some(target), Some(other)) => flow(target) == flow(other),
            _ => false,
        };
        same_target && user == other_user && info.verb == other.verb
    }
}

/// What flow control sees of a target: schemas select no names.
fn flow(target: &Target) -> [&str; 6] {
    let Target { group, version, namespace, resource, name: _, subresource, subpath } = target;
    [group, version, namespace, resource, subresource, subpath]
}

impl LocalService {
    /// Creates objects as the user of `agent`; their outcomes are in the same order.
    pub async fn create_all(&self, agent: &str, creations: Vec<Creation>) -> Vec<CreationAnswer> {
        let peer = self.peer(agent);
        let request = |creation: Creation| request(agent, &peer, creation);
        let requests: Vec<_> = creations.into_iter().map(request).collect();
        let count = requests.len();
        let stack = self.stack();
        match tokio::spawn(stack.create_together(requests))
            .await
            .map_err(tokio::task::JoinError::try_into_panic)
        {
            Ok(answers) => answers,
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(_)) => vec![(503, Bytes::from_static(b"the server is shutting down")); count],
        }
    }
}

type CreationRequest = Result<Request<Full<Bytes>>, http::Error>;

fn request(agent: &str, peer: &Peer, Creation { uri, body }: Creation) -> CreationRequest {
    let request = Request::post(uri)
        .header(header::USER_AGENT, agent)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, "application/json")
        .extension(peer.clone());
    request.body(Full::new(body))
}

impl Stack {
    async fn create_together(self: Arc<Self>, mut requests: Vec<CreationRequest>) -> Vec<CreationAnswer> {
        let shared = match requests.iter().flatten().next() {
            Some(first) => self.share(first).await,
            None => None,
        };
        let (seat, permit) = match shared {
            Some((shared, seat)) => {
                for request in requests.iter_mut().flatten() {
                    request.extensions_mut().insert(shared.clone());
                }
                let permit = self.flow.cpu_permit(seat.as_ref(), None).await;
                (seat, permit)
            }
            None => (None, None),
        };
        let all = join_all(requests.into_iter().map(|request| answer(self.clone(), request)));
        let answers = with_permit(permit, all).await;
        drop(seat);
        answers
    }

    /// Acquires the seat that creations like this one may use.
    async fn share(&self, first: &Request<Full<Bytes>>) -> Option<(SharedSeat, Option<Seat>)> {
        let parts = parts(first);
        // A refusal is each request's own.
        let user = self.authentication.authenticate(&parts).await.ok()?.user;
        let query = parts.uri.query().map(Query::parse).unwrap_or_default();
        let info = RequestInfo::parse(&parts.method, &unescape(parts.uri.path(), false), query).ok()?;
        info.resource.as_ref()?;
        let (timeout, mut classification) = (self.request_timeout, Classification::default());
        let seat =
            self.flow.acquire_seats(&self.engine, &user, &info, timeout, &mut classification).await.ok()?;
        Some((SharedSeat(Arc::new((user, info))), seat))
    }
}

fn parts(request: &Request<Full<Bytes>>) -> Parts {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = request.method().clone();
    parts.uri = request.uri().clone();
    parts.headers = request.headers().clone();
    parts.extensions = request.extensions().clone();
    parts
}

async fn answer(stack: Arc<Stack>, request: CreationRequest) -> CreationAnswer {
    let response: Response<ResponseBody> = match request {
        Ok(request) => stack.serve(request).await,
        Err(error) => return (400, error.to_string().into()),
    };
    let code = response.status().as_u16();
    match response.into_body().collect().await {
        Ok(body) => (code, body.to_bytes()),
        Err(error) => (502, error.to_string().into()),
    }
}
