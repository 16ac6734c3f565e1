//! The batches of the control loops in the server's process: creations that are sent together, over the in-process transport.
//!
//! Invariant: each creation is a request like any other, as the loop's account; see the server's `create_all`.

use futures_util::future::BoxFuture;
use kaji_runtime::{
    Error,
    batch::{BatchTransport, Creation},
};
use kaji_server::LocalService;

/// Batches over the in-process transport.
pub struct LocalBatches(LocalService);

impl LocalBatches {
    /// Creations have the users that the transport gives them.
    pub fn new(service: LocalService) -> Self {
        LocalBatches(service)
    }
}

impl BatchTransport for LocalBatches {
    fn create_all<'a>(
        &'a self,
        agent: &'a str,
        creations: Vec<Creation>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        Box::pin(async move {
            let sent = |Creation { uri, body }: Creation| kaji_server::Creation { uri, body };
            let answers = self.0.create_all(agent, creations.into_iter().map(sent).collect()).await;
            let outcome = |(code, body): kaji_server::CreationAnswer| match code {
                200..300 => Ok(()),
                code => Err(Error::of_response(code, &body)),
            };
            answers.into_iter().map(outcome).collect()
        })
    }
}
