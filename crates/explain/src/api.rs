//! The requests that an explanation makes.

use futures_util::future::BoxFuture;
use serde_json::Value;

/// Why a request gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// 401 or 403, with the server's message.
    Forbidden(String),
    /// 404, with the server's message.
    NotFound(String),
    /// Another status, or no answer.
    Failed(String),
}

/// An API server, with the credentials of the caller.
pub trait Api: Send + Sync {
    /// GETs a path with its query; the answer as JSON. Discovery documents are asked for in the aggregated form.
    fn get<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Value, RequestError>>;

    /// GETs a path; the answer as text, of at most `limit` bytes (logs of containers).
    fn text<'a>(&'a self, path: &'a str, limit: usize) -> BoxFuture<'a, Result<String, RequestError>>;
}
