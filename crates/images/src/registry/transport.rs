//! Requests to registries: with TLS by the project's client, without it on a connection each.

use super::config::Endpoint;
use crate::error::ImageError;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use kaji_outbound::{ClientCache, ClientConfig, RequestClass, Target, networks};
use std::error::Error;
use std::fmt;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Until the head of an answer is there.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Without any byte of a body.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_HEAD: usize = 64 << 10;

/// A URL of a registry or of what it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub tls: bool,
    /// Host, and port where it is not the scheme's.
    authority: String,
    path_and_query: String,
}

impl Url {
    pub fn parse(text: &str) -> Result<Url, ImageError> {
        let invalid = || ImageError::Invalid(format!("invalid URL {text:?}"));
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid()),
        };
        let authority = uri.authority().map(|authority| authority.as_str()).ok_or_else(invalid)?;
        if authority.contains('@') || authority.is_empty() {
            return Err(invalid());
        }
        let path_and_query = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Url { tls, authority: authority.to_ascii_lowercase(), path_and_query })
    }

    /// Where a `Location` leads.
    pub fn join(&self, location: &str) -> Result<Url, ImageError> {
        if location.contains("://") {
            return Url::parse(location);
        }
        let scheme = if self.tls { "https" } else { "http" };
        if let Some(rest) = location.strip_prefix("//") {
            return Url::parse(&format!("{scheme}://{rest}"));
        }
        if location.is_empty() {
            return Err(ImageError::Unavailable(format!("redirect from {self} without a location")));
        }
        let base = self.path_and_query.split('?').next().unwrap_or_default();
        let folder = base.rfind('/').map_or("/", |at| &base[..=at]);
        let folder = if location.starts_with('/') { "" } else { folder };
        Url::parse(&format!("{scheme}://{}{folder}{location}", self.authority))
    }

    pub fn same_origin(&self, other: &Url) -> bool {
        self.tls == other.tls && self.authority == other.authority
    }

    pub fn with_query(&self, query: &str) -> Result<Url, ImageError> {
        let joint = if self.path_and_query.contains('?') { '&' } else { '?' };
        Url::parse(&format!("{self}{joint}{query}"))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, self.authority, self.path_and_query)
    }
}

/// The head of an answer, and its body as it comes.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: BoxStream<'static, Result<Bytes, ImageError>>,
}

impl Answer {
    fn new<B>(response: Response<B>) -> Answer
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Error + Send + Sync + 'static,
    {
        let (parts, body) = response.into_parts();
        let broken = |error: B::Error| {
            ImageError::Unavailable(format!("failed to read the response: {}", chain(&error)))
        };
        let body = TryStreamExt::map_err(body.into_data_stream(), broken).boxed();
        Answer { status: parts.status, headers: parts.headers, body: idle(body).boxed() }
    }

    pub fn header(&self, name: HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The next part of the body.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, ImageError>> {
        self.body.next().await
    }

    /// The whole body, no more than `limit` bytes of it.
    pub async fn read(mut self, limit: usize) -> Result<Vec<u8>, ImageError> {
        let mut bytes = vec![];
        while let Some(chunk) = self.chunk().await {
            let chunk = chunk?;
            if bytes.len() + chunk.len() > limit {
                return Err(ImageError::Limit(format!("the response has more than {limit} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

/// Ends a body that stalls.
fn idle(
    body: BoxStream<'static, Result<Bytes, ImageError>>,
) -> impl Stream<Item = Result<Bytes, ImageError>> + Send + 'static {
    futures_util::stream::unfold(Some(body), |state| async move {
        let mut body = state?;
        match timeout(IDLE_TIMEOUT, body.next()).await {
            Ok(chunk) => chunk.map(|chunk| (chunk, Some(body))),
            Err(_) => {
                let text = "failed to read the response: i/o timeout".to_owned();
                Some((Err(ImageError::Unavailable(text)), None))
            }
        }
    })
}

/// Sends requests.
#[derive(Default)]
pub(super) struct Transport {
    clients: ClientCache,
}

impl Transport {
    /// Sends one request and answers whatever its status.
    pub async fn send(
        &self,
        endpoint: &Endpoint,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Option<String>,
    ) -> Result<Answer, ImageError> {
        let mut request = Request::new(kaji_outbound::body(body.unwrap_or_default()));
        *request.method_mut() = method.clone();
        *request.uri_mut() = url
            .path_and_query
            .parse()
            .map_err(|error| ImageError::Invalid(format!("invalid URL {:?}: {error}", url.to_string())))?;
        *request.headers_mut() = headers;
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static("kaji"));
        let sent = timeout(HEAD_TIMEOUT, async {
            if url.tls { self.secure(endpoint, url, request).await } else { plain(url, request).await }
        });
        let verb = if method == Method::POST { "Post" } else { "Get" };
        let failed = |why: String| {
            let about = format!("{verb} \"{url}\": ");
            // The project's client says it itself.
            let why = if why.starts_with(verb) { why } else { format!("{about}{why}") };
            ImageError::Unavailable(format!("failed to do request: {why}"))
        };
        match sent.await {
            Ok(answer) => answer.map_err(failed),
            Err(_) => Err(failed("context deadline exceeded".into())),
        }
    }

    async fn secure(
        &self,
        endpoint: &Endpoint,
        url: &Url,
        request: Request<kaji_outbound::RequestBody>,
    ) -> Result<Answer, String> {
        let mut config = ClientConfig::new(Target::Url(format!("https://{}/", url.authority)), vec![]);
        // The endpoint's certificates say nothing about hosts that it redirects to.
        if Url::parse(&endpoint.url).is_ok_and(|own| own.same_origin(url)) {
            config.ca_bundle.clone_from(&endpoint.ca_bundle);
            config.insecure = endpoint.insecure;
        }
        let sent = self.clients.send(&config, request, RequestClass::Regular).await;
        sent.map(Answer::new).map_err(|error| error.to_string())
    }
}

async fn plain(url: &Url, mut request: Request<kaji_outbound::RequestBody>) -> Result<Answer, String> {
    let host = HeaderValue::from_str(&url.authority).map_err(|error| error.to_string())?;
    request.headers_mut().insert(header::HOST, host);
    let named =
        url.authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let (host, port) = named.unwrap_or((&url.authority, 80));
    let stream = dial(host.trim_matches(['[', ']']), port).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            format!("dial tcp {host}:{port}: connect: connection refused")
        }
        _ => format!("dial tcp {host}:{port}: {error}"),
    })?;
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(MAX_HEAD * 4);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|e| chain(&e))?;
    // It ends with the body of the answer.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a registry ended");
        }
    });
    sender.send_request(request).await.map(Answer::new).map_err(|error| chain(&error))
}

/// Connects to the first of the host's addresses that answers.
async fn dial(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("no such host");
    for address in networks::lookup_host(host, port).await? {
        match networks::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// An error with its causes.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_joined() {
        let base = Url::parse("https://r.example:5000/v2/a/blobs/x?ns=y").unwrap();
        let join = |location: &str| base.join(location).unwrap().to_string();
        assert_eq!(join("/other?x=1"), "https://r.example:5000/other?x=1");
        assert_eq!(join("z"), "https://r.example:5000/v2/a/blobs/z");
        assert_eq!(join("//cdn.example/z"), "https://cdn.example/z");
        assert_eq!(join("http://cdn.example/z"), "http://cdn.example/z");
        assert!(base.join("ftp://x/").is_err() && base.join("").is_err());
        assert!(Url::parse("https://user:password@r.example/").is_err());
        assert!(!base.same_origin(&Url::parse("https://r.example/").unwrap()));
    }
}
