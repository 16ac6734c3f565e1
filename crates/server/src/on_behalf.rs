//! Reads that the server makes on behalf of a caller, to answer one of its requests.
//!
//! Invariants:
//! - A read is a request on the path of all others: it is recorded, impersonation is authorized anew for it, flow control holds it, and it
//!   is authorized. A caller that impersonates a user for one verb alone reads nothing by others.
//! - Its user is the one of the credentials that were checked for the request ([`Caller`]): nothing is added to it, and nothing is lost.
//! - Reads are GETs, as many as [`MAX_READS`], without a body and without any header but those named here.

use crate::{
    audit::{ID_HEADER, RemoteAddress},
    body::ResponseBody,
    identity::Caller,
    impersonate,
    stack::Stack,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header, request::Parts};
use http_body_util::Empty;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

/// Reads for one request of a caller.
pub const MAX_READS: usize = 500;

/// Why a read is not made.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Another method than GET.
    #[error("{0} is no read")]
    Method(Method),
    /// There were as many as may be.
    #[error("more than {MAX_READS} reads are made for one request")]
    TooMany,
    /// A URI that is none of a request.
    #[error(transparent)]
    Malformed(#[from] http::Error),
}

/// What reads have of the request that they are made for.
pub(crate) struct OnBehalf {
    caller: Caller,
    /// Impersonation, and what the audit log says of a request's origin.
    headers: HeaderMap,
    remote: Option<RemoteAddress>,
}

impl OnBehalf {
    /// Of a request that is authenticated, with its headers for impersonation. Its reads have its audit id.
    pub fn of(caller: &Caller, parts: &Parts, audit_id: &HeaderValue) -> OnBehalf {
        let mut headers = HeaderMap::new();
        for (name, value) in &parts.headers {
            if impersonate::is_ours(name) || says_origin(name) {
                headers.append(name.clone(), value.clone());
            }
        }
        headers.insert(ID_HEADER, audit_id.clone());
        OnBehalf { caller: caller.clone(), headers, remote: parts.extensions.get().copied() }
    }
}

fn says_origin(name: &HeaderName) -> bool {
    *name == header::USER_AGENT || matches!(name.as_str(), "x-forwarded-for" | "x-real-ip")
}

/// A client's transport: reads on behalf of the caller of one request.
#[derive(Clone)]
pub struct CallerReads {
    stack: Arc<Stack>,
    of: Arc<OnBehalf>,
    left: Arc<AtomicUsize>,
}

impl CallerReads {
    pub(crate) fn new(stack: Arc<Stack>, of: OnBehalf) -> CallerReads {
        CallerReads { stack, of: Arc::new(of), left: Arc::new(AtomicUsize::new(MAX_READS)) }
    }

    async fn read(self, asked: Parts) -> Result<Response<ResponseBody>, ReadError> {
        if asked.method != Method::GET {
            return Err(ReadError::Method(asked.method));
        }
        let fewer = |left: usize| left.checked_sub(1);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
            .map_err(|_| ReadError::TooMany)?;
        let mut request = Request::get(asked.uri).body(Empty::<Bytes>::new())?;
        *request.headers_mut() = self.of.headers.clone();
        if let Some(accept) = asked.headers.get(header::ACCEPT) {
            request.headers_mut().insert(header::ACCEPT, accept.clone());
        }
        let extensions = request.extensions_mut();
        extensions.insert(self.of.caller.clone());
        if let Some(remote) = self.of.remote {
            extensions.insert(remote);
        }
        Ok(self.stack.clone().serve(request).await)
    }
}

impl<B> tower_service::Service<Request<B>> for CallerReads {
    type Response = Response<ResponseBody>;
    type Error = ReadError;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, ReadError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(self.clone().read(request.into_parts().0))
    }
}
