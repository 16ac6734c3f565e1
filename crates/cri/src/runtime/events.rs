//! Events of a runtime, where it has any.
//!
//! Invariant: a runtime without events says so at once; one that has some may answer the call as late as with the first event.

use super::Inner;
use crate::connection;
use crate::convert::status;
use crate::messages::{ContainerEventResponse, GetEventsRequest};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use kaji_containers::{RuntimeError, RuntimeEvent};
use kaji_grpc::{CallError, Messages};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What a runtime without events is given to say so.
const REFUSAL: Duration = Duration::from_millis(500);
/// How long a runtime that had no events is not asked for them: it may be replaced by a newer one, and logs each such call.
const UPGRADE: Duration = Duration::from_secs(600);
/// How long a call may go without an event before it is made anew.
const QUIET: Duration = Duration::from_secs(24 * 3600);

type Opened = Result<Messages<ContainerEventResponse>, CallError>;

enum State {
    Opening(BoxFuture<'static, Opened>),
    Open(Box<Messages<ContainerEventResponse>>),
    Ended,
}

impl Inner {
    pub(super) async fn events(
        self: Arc<Inner>,
    ) -> Result<BoxStream<'static, Result<RuntimeEvent, RuntimeError>>, RuntimeError> {
        let lacking = || self.without_events.lock().unwrap_or_else(PoisonError::into_inner);
        if lacking().is_some_and(|since| since.elapsed() < UPGRADE) {
            return Err(RuntimeError::Unimplemented("the container runtime has no events".to_owned()));
        }
        let inner = self.clone();
        let mut opening: BoxFuture<'static, Opened> = Box::pin(async move {
            let method = "/runtime.v1.RuntimeService/GetContainerEvents";
            inner.events.server_streaming(method, GetEventsRequest {}, QUIET).await
        });
        let state = match tokio::time::timeout(REFUSAL, &mut opening).await {
            Ok(Ok(messages)) => State::Open(Box::new(messages)),
            Ok(Err(error)) => {
                if error.unimplemented() {
                    *lacking() = Some(Instant::now());
                }
                return Err(connection::error(error));
            }
            Err(_) => State::Opening(opening),
        };
        Ok(stream::unfold(state, next).boxed())
    }
}

/// The next event; an error in its place when the call fails, after which the stream ends.
async fn next(state: State) -> Option<(Result<RuntimeEvent, RuntimeError>, State)> {
    let mut messages = match state {
        State::Ended => return None,
        State::Open(messages) => messages,
        State::Opening(opening) => match opening.await {
            Ok(messages) => Box::new(messages),
            Err(error) => return Some((Err(connection::error(error)), State::Ended)),
        },
    };
    match messages.next().await {
        Ok(Some(event)) => Some((Ok(status::event(event)), State::Open(messages))),
        Ok(None) => None,
        Err(error) => Some((Err(connection::error(error)), State::Ended)),
    }
}
