//! The client of registries: the distribution API of OCI and Docker, read only.
//!
//! Invariants:
//! - Credentials are sent to the registry that they are for and to the token service that it names, never to where a redirect
//!   leads on another host; and never without TLS after a request with TLS.
//! - Documents are bounded and verified by digest before they are used. Blobs are verified while they stream, by the reader.
//! - Attempts and redirects are bounded.

mod challenge;
mod config;
mod download;
mod source;
mod transport;

pub use config::{Endpoint, RegistryConfig};
pub(crate) use download::Download;
pub use download::{Delay, TokioDelay};
pub use source::RegistrySource;

use crate::digest::Digest;
use crate::error::ImageError;
use crate::manifest::{DOCKER_INDEX, DOCKER_MANIFEST, MAX_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use crate::reference::Reference;
use challenge::Challenge;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use kaji_containers::RegistryAuth;
use serde::Deserialize;
use std::sync::{Arc, Mutex, PoisonError};
use transport::{Answer, Transport, Url};

const MAX_REDIRECTS: usize = 10;
/// Bytes of a token service's answer.
const MAX_TOKEN: usize = 1 << 20;
const CLIENT_ID: &str = "kaji";

/// Clients of registries; they share connections.
pub struct Registries {
    transport: Transport,
    source: RegistrySource,
    pub(crate) delay: Arc<dyn Delay>,
}

/// One repository on one endpoint, with credentials.
pub(crate) struct Repository {
    registries: Arc<Registries>,
    endpoint: Endpoint,
    reference: Reference,
    auth: Option<RegistryAuth>,
    /// Value of the `Authorization` header that the registry has accepted.
    authorization: Mutex<Option<HeaderValue>>,
}

/// A manifest or an index as it came.
pub(crate) struct Fetched {
    pub bytes: Vec<u8>,
    pub media_type: String,
    pub digest: Digest,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl Registries {
    /// Clients with a configuration.
    #[must_use]
    pub fn new(source: RegistrySource, delay: Arc<dyn Delay>) -> Registries {
        Registries { transport: Transport::default(), source, delay }
    }

    /// The endpoints of a reference's registry: mirrors first, itself last. Only the last gets the pod's credentials.
    pub(crate) async fn repositories(
        self: &Arc<Self>,
        reference: &Reference,
        auth: Option<&RegistryAuth>,
    ) -> Result<Vec<Repository>, ImageError> {
        let endpoints = self.source.present().await?.endpoints(reference)?;
        let last = endpoints.len() - 1;
        let repository = |(at, endpoint): (usize, Endpoint)| Repository {
            auth: if at == last {
                auth.cloned().or_else(|| endpoint.auth.clone())
            } else {
                endpoint.auth.clone()
            },
            registries: self.clone(),
            endpoint,
            reference: reference.clone(),
            authorization: Mutex::new(None),
        };
        Ok(endpoints.into_iter().enumerate().map(repository).collect())
    }
}

impl Repository {
    /// Fetches a manifest or an index by tag or digest.
    pub async fn manifest(&self, object: &str) -> Result<Fetched, ImageError> {
        let mut headers = HeaderMap::new();
        let accept = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST, "*/*"].join(", ");
        headers.insert(header::ACCEPT, value(&accept)?);
        let url = self.url(&format!("manifests/{object}"))?;
        let answer = self.get_patiently(&url, &headers).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Err(ImageError::NotFound(format!("{}: not found", self.reference)));
        }
        let answer = self.succeeded(answer, &url).await?;
        let media_type = answer.header(header::CONTENT_TYPE).to_owned();
        let bytes = answer.read(MAX_MANIFEST).await?;
        let digest = Digest::of(&bytes);
        if let Ok(wanted) = Digest::parse(object)
            && wanted != digest
        {
            return Err(ImageError::Digest(format!(
                "failed commit on ref \"manifest-{wanted}\": unexpected commit digest {digest}, expected {wanted}: \
                 failed precondition"
            )));
        }
        Ok(Fetched { bytes, media_type, digest })
    }

    /// Fetches a small blob.
    pub async fn document(&self, digest: &Digest, limit: usize) -> Result<Vec<u8>, ImageError> {
        let url = self.url(&format!("blobs/{digest}"))?;
        let answer = self.get_patiently(&url, &HeaderMap::new()).await?;
        let answer = self.succeeded(answer, &url).await?;
        let bytes = answer.read(limit).await?;
        let found = Digest::of(&bytes);
        if found != *digest {
            return Err(ImageError::Digest(format!(
                "failed commit on ref \"config-{digest}\": unexpected commit digest {found}, expected {digest}: \
                 failed precondition"
            )));
        }
        Ok(bytes)
    }

    /// Begins a blob, at an offset. Answers where it really begins.
    pub async fn blob(&self, digest: &Digest, offset: u64) -> Result<(Answer, u64), ImageError> {
        let url = self.url(&format!("blobs/{digest}"))?;
        let mut headers = HeaderMap::new();
        if offset > 0 {
            headers.insert(header::RANGE, value(&format!("bytes={offset}-"))?);
        }
        let answer = self.get(&url, &headers).await?;
        let answer = self.succeeded(answer, &url).await?;
        if answer.status != StatusCode::PARTIAL_CONTENT {
            return Ok((answer, 0));
        }
        let range = answer.header(header::CONTENT_RANGE);
        let begin =
            range.strip_prefix("bytes ").and_then(|range| range.split('-').next()?.parse::<u64>().ok());
        if begin != Some(offset) {
            return Err(ImageError::Unavailable(format!("unexpected content range {range:?} of {url}")));
        }
        Ok((answer, offset))
    }

    fn url(&self, rest: &str) -> Result<Url, ImageError> {
        let namespace =
            if self.endpoint.mirror { format!("?ns={}", self.reference.registry()) } else { String::new() };
        Url::parse(&format!("{}/v2/{}/{rest}{namespace}", self.endpoint.url, self.reference.path()))
    }

    /// A request that is repeated while the registry is unavailable.
    async fn get_patiently(&self, url: &Url, headers: &HeaderMap) -> Result<Answer, ImageError> {
        let mut attempt = 0;
        loop {
            match self.get(url, headers).await {
                Ok(answer) if download::may_pass(answer.status) && attempt < download::ATTEMPTS => {}
                Err(ImageError::Unavailable(_)) if attempt < download::ATTEMPTS => {}
                result => return result,
            }
            attempt += 1;
            self.registries.delay.wait(download::pause(attempt)).await;
        }
    }

    /// A request, with the credentials that the registry asks for.
    async fn get(&self, url: &Url, headers: &HeaderMap) -> Result<Answer, ImageError> {
        let known = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = self.follow(url, headers, known.as_ref()).await?;
        if answer.status != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let challenges = challenge::parse(answer.headers.get_all(header::WWW_AUTHENTICATE));
        let Some(authorization) = self.authorize(&challenges).await? else { return Ok(answer) };
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization.clone());
        self.follow(url, headers, Some(&authorization)).await
    }

    async fn follow(
        &self,
        url: &Url,
        headers: &HeaderMap,
        authorization: Option<&HeaderValue>,
    ) -> Result<Answer, ImageError> {
        let mut at = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut headers = headers.clone();
            if let Some(authorization) = authorization
                && at.same_origin(url)
            {
                headers.insert(header::AUTHORIZATION, authorization.clone());
            }
            let answer =
                self.registries.transport.send(&self.endpoint, Method::GET, &at, headers, None).await?;
            if !matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let next = at.join(answer.header(header::LOCATION))?;
            if at.tls && !next.tls {
                return Err(ImageError::Denied(format!("refusing a redirect from {at} to plain HTTP")));
            }
            at = next;
        }
        Err(ImageError::Unavailable(format!("Get \"{url}\": stopped after {MAX_REDIRECTS} redirects")))
    }

    /// What the registry asks for; `None` if there is nothing to offer.
    async fn authorize(&self, challenges: &[Challenge]) -> Result<Option<HeaderValue>, ImageError> {
        let auth = self.auth.as_ref();
        if let Some(token) = auth.map(|auth| &auth.registry_token).filter(|token| !token.is_empty()) {
            return secret(&format!("Bearer {token}")).map(Some);
        }
        for challenge in challenges {
            match challenge {
                Challenge::Bearer { realm, service, scope } => {
                    let token = self.token(realm, service, scope).await?;
                    return secret(&format!("Bearer {token}")).map(Some);
                }
                Challenge::Basic => {
                    if let Some(basic) = auth.and_then(config::basic) {
                        return secret(&basic).map(Some);
                    }
                }
            }
        }
        Ok(None)
    }

    async fn token(&self, realm: &str, service: &str, scope: &str) -> Result<String, ImageError> {
        let url = Url::parse(realm)?;
        if self.endpoint.url.starts_with("https:") && !url.tls && self.auth.is_some() {
            return Err(ImageError::Denied(format!("refusing to send credentials to {realm} without TLS")));
        }
        let own = format!("repository:{}:pull", self.reference.path());
        let scope = if scope.is_empty() { &own } else { scope };
        let query = challenge::query(&[("service", service), ("scope", scope)]);
        let identity = self.auth.as_ref().map(|auth| &auth.identity_token).filter(|token| !token.is_empty());
        let (method, url, body, headers, what) = if let Some(identity) = identity {
            let form =
                [("grant_type", "refresh_token"), ("client_id", CLIENT_ID), ("refresh_token", identity)];
            let mut headers = HeaderMap::new();
            headers
                .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
            let body = format!("{}&{query}", challenge::query(&form));
            (Method::POST, url, Some(body), headers, "oauth")
        } else {
            let mut headers = HeaderMap::new();
            let basic = self.auth.as_ref().and_then(config::basic);
            if let Some(basic) = &basic {
                headers.insert(header::AUTHORIZATION, secret(basic)?);
            }
            let what = if basic.is_some() { "oauth" } else { "anonymous" };
            (Method::GET, url.with_query(&query)?, None, headers, what)
        };
        let context = format!("failed to authorize: failed to fetch {what} token");
        let sent = self.registries.transport.send(&self.endpoint, method.clone(), &url, headers, body).await;
        let answer = sent.map_err(|error| error.within(&context))?;
        if !answer.status.is_success() {
            let text = format!(
                "{context}: unexpected status from {method} request to {url}: {}",
                shown(answer.status)
            );
            return Err(match answer.status {
                status if download::may_pass(status) => ImageError::Unavailable(text),
                _ => ImageError::Denied(text),
            });
        }
        let bytes = answer.read(MAX_TOKEN).await?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|error| {
            ImageError::Unavailable(format!("{context}: unable to decode token response: {error}"))
        })?;
        let token = if token.token.is_empty() { token.access_token } else { token.token };
        if token.is_empty() {
            return Err(ImageError::Denied(format!("{context}: no token in the response")));
        }
        Ok(token)
    }

    /// An answer of success, or containerd's error.
    async fn succeeded(&self, answer: Answer, url: &Url) -> Result<Answer, ImageError> {
        let status = answer.status;
        if status.is_success() {
            return Ok(answer);
        }
        let unexpected = format!("unexpected status from GET request to {url}: {}", shown(status));
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ImageError::Denied(format!(
                "pull access denied, repository does not exist or may require authorization: authorization failed: {}",
                match status {
                    StatusCode::UNAUTHORIZED => "no basic auth credentials",
                    _ => unexpected.as_str(),
                }
            )),
            StatusCode::NOT_FOUND => ImageError::NotFound(format!("content at {url} not found: not found")),
            _ => ImageError::Unavailable(unexpected),
        })
    }
}

fn shown(status: StatusCode) -> String {
    format!("{} {}", status.as_str(), status.canonical_reason().unwrap_or_default()).trim_end().to_owned()
}

fn value(text: &str) -> Result<HeaderValue, ImageError> {
    HeaderValue::from_str(text).map_err(|error| ImageError::Invalid(format!("header: {error}")))
}

fn secret(text: &str) -> Result<HeaderValue, ImageError> {
    let mut value = value(text)?;
    value.set_sensitive(true);
    Ok(value)
}
