//! Explanations of the API server: what `kaji why` says, by reads on behalf of the caller.
//!
//! Invariant: a server has more memory to share than a command: what one explanation reads is bounded here, and what it did not read for
//! that reason it reports as unknown.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use kaji_explain::{ApiServer, ExplainError, PARAMETERS};
use kaji_meta::{Clock, Query, Reason, Status};
use kaji_server::{CallerReads, Explain, Explanations};
use std::sync::Arc;

/// Bytes that one explanation reads. As values they take several times as much.
const MOST_BYTES: usize = 16 << 20;
/// The namespace of objects where none is named.
const NAMESPACE: &str = "default";

struct Explainer(Arc<dyn Clock>);

/// Explanations by the clock of objects.
pub fn explanations(clock: Arc<dyn Clock>) -> Explanations {
    Explanations::new(Arc::new(Explainer(clock)))
}

impl Explain for Explainer {
    fn parameters(&self) -> &'static [&'static str] {
        PARAMETERS
    }

    fn explain(&self, reads: CallerReads, query: Query) -> BoxFuture<'static, Result<Bytes, Status>> {
        let now = self.0.now();
        Box::pin(async move {
            let server = ApiServer::bounded(kube::Client::new(reads, NAMESPACE), MOST_BYTES);
            let report = kaji_explain::answer(&server, &query, NAMESPACE, now).await.map_err(refusal)?;
            serde_json::to_vec(&report).map(Bytes::from).map_err(Status::internal)
        })
    }
}

/// With the message of the read that failed: what the server says to such a read it says here.
fn refusal(error: ExplainError) -> Status {
    match error {
        ExplainError::Subject(message) => Status::bad_request(message),
        ExplainError::NotFound(message) => Status::new(404, Reason::NotFound, message),
        ExplainError::Unreadable(message) => Status::new(403, Reason::Forbidden, message),
    }
}
