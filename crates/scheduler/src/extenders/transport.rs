//! One call to an extender: JSON by POST, answered with 200 and JSON.
//!
//! Invariants: a call takes no longer than `httpTimeout`; an answer has [`LIMIT`] bytes at most.

use super::ExtenderConfig;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kaji_outbound::{CallError, Client, ClientCache, ClientConfig, RequestClass, Target, body};
use serde::Serialize;
use std::{fmt, sync::Arc, time::Duration};

/// Room for the nodes of a large cluster.
const LIMIT: usize = 64 << 20;

/// Why a call failed; the texts are those of Go's client and of upstream's extender.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// What is to be sent.
    #[error("{0}")]
    Encode(#[from] serde_json::Error),
    /// No answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Not in time.
    #[error("Post {0:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Late(String),
    /// Not 200.
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Code {
        /// What was asked for.
        verb: String,
        /// Where.
        url: String,
        /// The answer's code.
        code: u16,
    },
    /// An answer that is cut off, or larger than the limit.
    #[error("failed to read the answer of {url}: {reason}")]
    Read {
        /// Where from.
        url: String,
        /// What is wrong.
        reason: String,
    },
}

/// Arguments as JSON.
///
/// # Errors
/// They are none that JSON has.
pub fn encode(args: &impl Serialize) -> Result<Bytes, TransportError> {
    Ok(serde_json::to_vec(args)?.into())
}

/// The way to an extender.
pub struct Transport {
    client: Arc<Client>,
    /// The URL without a slash at the end.
    prefix: String,
    /// Its path.
    path: String,
    timeout: Duration,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Transport {
    /// # Errors
    /// For a URL that is neither http nor https, and certificates that cannot be used.
    pub fn new(config: &ExtenderConfig) -> Result<Self, String> {
        let prefix = config.url_prefix.trim_end_matches('/').to_owned();
        let wrong = |why: &dyn fmt::Display| format!("extender {:?}: {why}", config.url_prefix);
        let uri: http::Uri =
            config.url_prefix.parse().map_err(|error: http::uri::InvalidUri| wrong(&error))?;
        let host = uri.host().ok_or_else(|| wrong(&"no Host in request URL"))?;
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let target = match uri.scheme_str() {
            Some("http") => Target::Plain { host: bare, port: uri.port_u16().unwrap_or(80) },
            Some("https") => Target::Url(config.url_prefix.clone()),
            other => {
                return Err(wrong(&format!("unsupported protocol scheme {:?}", other.unwrap_or_default())));
            }
        };
        let tls = &config.tls;
        let client = ClientCache::default()
            .client(&ClientConfig {
                target,
                ca_bundle: tls.authorities.clone(),
                insecure: tls.insecure,
                server_name: tls.server_name.clone(),
                identity: tls.identity.clone(),
                authorization: None,
            })
            .map_err(|error| wrong(&error))?;
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Transport { client, prefix, path, timeout: config.timeout })
    }

    /// Sends arguments to `PREFIX/VERB`.
    ///
    /// # Errors
    /// There is no answer of a success.
    pub async fn call(&self, verb: &str, args: Bytes) -> Result<Vec<u8>, TransportError> {
        let url = format!("{}/{verb}", self.prefix);
        let called = self.exchange(verb, &url, args);
        let called = tokio::time::timeout(self.timeout, called).await;
        called.unwrap_or_else(|_| Err(TransportError::Late(url.clone())))
    }

    async fn exchange(&self, verb: &str, url: &str, bytes: Bytes) -> Result<Vec<u8>, TransportError> {
        let path = format!("{}/{verb}", self.path);
        let mut request = Request::new(body(bytes));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().map_err(|e| CallError::Config(format!("{path:?}: {e}")))?;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static("kube-scheduler"));
        let response = self.client.send(request, RequestClass::Regular).await?;
        if response.status() != StatusCode::OK {
            let code = response.status().as_u16();
            return Err(TransportError::Code { verb: verb.to_owned(), url: url.to_owned(), code });
        }
        let read = Limited::new(response.into_body(), LIMIT).collect().await;
        let read =
            read.map_err(|error| TransportError::Read { url: url.to_owned(), reason: error.to_string() })?;
        Ok(read.to_bytes().into())
    }
}
