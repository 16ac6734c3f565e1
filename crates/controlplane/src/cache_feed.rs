//! The feed of the control loops in the server's process: objects and events share the watch cache's memory.
//!
//! Invariant: a list or watch is a request like any other. It is authenticated as the loop's account, recorded, held by flow
//! control, authorized and counted by the server's request path; only its answer is not encoded into a stream of bytes.

use futures_util::{StreamExt, TryStreamExt, future::BoxFuture};
use http::header;
use http_body_util::BodyExt;
use kaji_engine::SEPARATE_OBJECTS;
use kaji_runtime::{
    Collection, Error, ObjectFeed,
    feed::{self, Frames, ObjectEvents, ObjectList},
};
use kaji_server::LocalService;

/// A feed over the in-process transport.
pub struct CacheFeed(LocalService);

impl CacheFeed {
    /// Requests have the users that the transport gives them.
    pub fn new(service: LocalService) -> Self {
        CacheFeed(service)
    }

    /// The pieces of a successful answer, and whether each is an object or event by itself. It is not so for resources of
    /// extension servers, and where the audit log records responses.
    async fn open(&self, agent: &str, accept: &str, uri: &str) -> Result<(bool, Frames), Error> {
        let response = self.0.collection(agent, accept, uri).await;
        let response = response.map_err(|error| Error::Transport(error.to_string()))?;
        let (head, body) = response.into_parts();
        let separate = head.headers.get(header::CONTENT_TYPE).is_some_and(|t| t == SEPARATE_OBJECTS);
        let frames = body.into_data_stream().map_err(|error| Error::Transport(error.to_string())).boxed();
        if !head.status.is_success() {
            return Err(feed::refusal(head.status.as_u16(), frames).await);
        }
        Ok((separate, frames))
    }
}

impl ObjectFeed for CacheFeed {
    fn list<'a>(
        &'a self,
        agent: &'a str,
        collection: &'a Collection,
    ) -> BoxFuture<'a, Result<ObjectList, Error>> {
        Box::pin(async move {
            let answer = self.open(agent, collection.list_accept(), &collection.list_uri()).await?;
            Ok(match answer {
                (true, frames) => feed::separate_list(frames),
                (false, frames) => feed::split_list(frames),
            })
        })
    }

    fn watch<'a>(
        &'a self,
        agent: &'a str,
        collection: &'a Collection,
        from: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        Box::pin(async move {
            let answer = self.open(agent, collection.watch_accept(), &collection.watch_uri(from)).await?;
            Ok(match answer {
                (true, frames) => feed::separate_events(frames),
                (false, frames) => feed::split_events(frames),
            })
        })
    }
}
