//! The API server of a connection, as explanations and histories ask it.
//!
//! Invariants: an answer is read up to a bound, and so are all answers together where their reader has little memory; an answer that is
//! no success is a refusal with the server's own message.

use crate::{Api, RequestError};
use futures_util::future::BoxFuture;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;
use std::{
    fmt::Display,
    sync::atomic::{AtomicUsize, Ordering},
};

/// The longest answer that is read: a page of a list.
const LONGEST_ANSWER: usize = 256 << 20;
const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;q=0.1";
const JSON: &str = "application/json";

/// An API server, with a client's credentials.
pub struct ApiServer {
    client: kube::Client,
    /// Bytes that may still be read, of all answers together.
    left: AtomicUsize,
}

/// Why an answer is not read to its end.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("the answer has more than {0} bytes")]
    Long(usize),
    #[error("all answers together have more bytes than are read here")]
    Spent,
    #[error(transparent)]
    Broken(#[from] kube::Error),
}

impl ApiServer {
    /// That of a client.
    pub fn new(client: kube::Client) -> Self {
        Self::bounded(client, usize::MAX)
    }

    /// That of a client; so many bytes are read at most, of all answers together.
    pub fn bounded(client: kube::Client, bytes: usize) -> Self {
        ApiServer { client, left: AtomicUsize::new(bytes) }
    }

    /// Writes an object: a POST or a PUT. The answer is the object as it is then.
    ///
    /// # Errors
    /// What the server refuses, and a server that does not answer: then it is not known whether it was written.
    pub async fn write(&self, method: Method, path: &str, object: &Value) -> Result<Value, RequestError> {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::ACCEPT, JSON).header(header::CONTENT_TYPE, JSON);
        let request = request.body(Body::from(object.to_string().into_bytes()));
        let bytes = self.send(path, request, LONGEST_ANSWER).await?;
        decoded(path, &bytes)
    }

    async fn bytes(&self, path: &str, limit: usize) -> Result<Vec<u8>, RequestError> {
        let accept =
            if matches!(path, "/api" | "/apis") { AGGREGATED } else { "application/json, */*;q=0.1" };
        let request = Request::get(path).header(header::ACCEPT, accept).body(Body::empty());
        self.send(path, request, limit).await
    }

    async fn send(
        &self,
        path: &str,
        request: Result<Request<Body>, http::Error>,
        limit: usize,
    ) -> Result<Vec<u8>, RequestError> {
        let request = request.map_err(|error| failed(path, &error))?;
        let response = self.client.send(request).await.map_err(|error| failed(path, &error))?;
        let status = response.status();
        let body = self.read(response.into_body(), limit).await.map_err(|error| failed(path, &error))?;
        if status.is_success() {
            return Ok(body);
        }
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = match answer["message"].as_str() {
            Some(message) => message.to_owned(),
            None => format!("{path}: {status}"),
        };
        Err(match status.as_u16() {
            401 | 403 => RequestError::Forbidden(message),
            404 => RequestError::NotFound(message),
            _ => RequestError::Failed(message),
        })
    }

    async fn read(&self, mut body: Body, limit: usize) -> Result<Vec<u8>, Unread> {
        let mut bytes = vec![];
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame?.into_data() else { continue };
            if piece.len() > limit - bytes.len() {
                return Err(Unread::Long(limit));
            }
            let left = |left: usize| left.checked_sub(piece.len());
            // Reads run side by side: each piece is counted before it is kept.
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).map_err(|_| Unread::Spent)?;
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}

fn failed(path: &str, error: &dyn Display) -> RequestError {
    RequestError::Failed(format!("{path}: {error}"))
}

fn decoded(path: &str, bytes: &[u8]) -> Result<Value, RequestError> {
    serde_json::from_slice(bytes).map_err(|error| failed(path, &error))
}

impl Api for ApiServer {
    fn get<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Value, RequestError>> {
        Box::pin(async move { decoded(path, &self.bytes(path, LONGEST_ANSWER).await?) })
    }

    fn text<'a>(&'a self, path: &'a str, limit: usize) -> BoxFuture<'a, Result<String, RequestError>> {
        Box::pin(async move { Ok(String::from_utf8_lossy(&self.bytes(path, limit).await?).into_owned()) })
    }
}

#[cfg(test)]
mod tests;
