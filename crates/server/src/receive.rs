//! Reads request bodies whole, bounded in size, in time, and in the memory of all of them.
//!
//! Invariant: a client that is still sending a refused body can read the response. The rest of the body is discarded
//! meanwhile, up to a limit: a connection that is closed with unread bytes loses the response.

use crate::body_memory::{BodyMemory, Reservation};
use bytes::{Bytes, BytesMut};
use http::{Method, header, request::Parts};
use http_body::Body;
use http_body_util::BodyExt;
use kaji_meta::Status;
use std::{pin::Pin, sync::Arc, time::Duration};

/// Upstream's `MaxRequestBodyBytes`.
pub const MAX_BODY: usize = 3 * 1024 * 1024;
/// How long a client may take to send its body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of a refused body is discarded, and for how long.
const PASSED_OVER: usize = 16 << 20;
const PASSING_TIME: Duration = Duration::from_secs(10);

/// A body, and what it has reserved.
pub type Received = (Bytes, Option<Arc<Reservation>>);

/// Reads a body.
///
/// # Errors
/// 413 for one that is too large, 429 while others take too much memory, 400 for one that ends early.
pub async fn receive<B>(parts: &Parts, body: B, body_memory: &Arc<BodyMemory>) -> Result<Received, Status>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if matches!(parts.method, Method::GET | Method::HEAD) || body.is_end_stream() {
        return Ok((Bytes::new(), None));
    }
    let expected = body.size_hint().lower();
    // A client that waits for `100 Continue` has not sent anything yet.
    let waits = parts.headers.contains_key(header::EXPECT);
    let mut body: Pin<Box<B>> = Box::pin(body);
    let refuse = |body: Pin<Box<B>>, status: Status| {
        if !waits {
            tokio::spawn(tokio::time::timeout(PASSING_TIME, pass_over(body)));
        }
        Err(status)
    };
    let length = match usize::try_from(expected) {
        Ok(length) if length <= MAX_BODY => length,
        _ => return refuse(body, too_large()),
    };
    // A body of unknown length may have any that is allowed.
    let exact = body.size_hint().exact().is_some();
    let reservation = match body_memory.reserve(if exact { length } else { MAX_BODY }) {
        Ok(reservation) => reservation,
        Err(status) => return refuse(body, status),
    };
    let whole = match tokio::time::timeout(BODY_TIMEOUT, collect(&mut body)).await {
        Ok(Ok(Some(whole))) => whole,
        Ok(Ok(None)) => return refuse(body, too_large()),
        Ok(Err(error)) => {
            let error: Box<dyn std::error::Error + Send + Sync> = error.into();
            return Err(Status::bad_request(format!("unable to read the request body: {error}")));
        }
        Err(_) => return Err(Status::timeout("the request body did not arrive in time", 0)),
    };
    reservation.decoded(&whole)?;
    Ok((whole, Some(Arc::new(reservation))))
}

fn too_large() -> Status {
    Status::request_entity_too_large(format!("limit is {MAX_BODY}"))
}

/// All of a body; `None` as soon as it is too large.
async fn collect<B: Body<Data = Bytes>>(body: &mut Pin<Box<B>>) -> Result<Option<Bytes>, B::Error> {
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if first.len() + rest.len() + data.len() > MAX_BODY {
            return Ok(None);
        }
        if first.is_empty() && rest.is_empty() {
            // Most bodies come in one piece.
            first = data;
            continue;
        }
        if !first.is_empty() {
            rest.extend_from_slice(&std::mem::take(&mut first));
        }
        rest.extend_from_slice(&data);
    }
    Ok(Some(if rest.is_empty() { first } else { rest.freeze() }))
}

async fn pass_over<B: Body<Data = Bytes>>(mut body: Pin<Box<B>>) {
    let mut passed = 0;
    while let Some(Ok(frame)) = body.frame().await {
        passed += frame.data_ref().map_or(0, Bytes::len);
        if passed > PASSED_OVER {
            return;
        }
    }
}
