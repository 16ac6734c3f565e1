//! HTTPS clients: documents of identity providers, and webhooks that review tokens and access.
//!
//! Invariants: requests have a timeout, responses are bounded, and only a certificate of the given authorities (or, without
//! any, the machine's) is trusted.

use crate::webhook_config::WebhookClientConfig;
use http_body_util::{BodyExt, Limited};
use kaji_auth::{
    authn::{Fetch, Review},
    authz::webhook::{Failure, Service},
};
use kaji_resource::BoxFuture;
use kube::client::Body;
use serde_json::Value;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the largest document.
const LARGEST: usize = 1 << 20;

/// Fetches over HTTPS.
pub struct Https {
    /// DER; `None` for the machine's authorities.
    authorities: Option<Vec<Vec<u8>>>,
}

impl Https {
    /// Trusting these certificates, PEM; empty for the machine's own.
    pub fn new(authorities: &str) -> Result<Https, String> {
        if authorities.is_empty() {
            return Ok(Https { authorities: None });
        }
        let der = kaji_server::pki::certificates(authorities).map_err(|e| e.to_string())?;
        if der.is_empty() { Err("no certificates".into()) } else { Ok(Https { authorities: Some(der) }) }
    }

    async fn fetch(&self, url: &str) -> Result<Vec<u8>, String> {
        let uri: http::Uri = url.parse().map_err(|e| format!("{url}: {e}"))?;
        let authority = uri.authority().ok_or_else(|| format!("{url}: no host"))?;
        let origin = format!("https://{authority}").parse().map_err(|e| format!("{url}: {e}"))?;
        let mut config = kube::Config::new(origin);
        config.root_cert = self.authorities.clone();
        let client = kube::Client::try_from(config).map_err(|e| e.to_string())?;
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        let request = http::Request::get(path).header("accept", "application/json").body(Body::empty());
        let answer = client.send(request.map_err(|e| e.to_string())?).await.map_err(|e| e.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("{url}: {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(|e| e.to_string())?;
        Ok(body.to_bytes().to_vec())
    }
}

impl Fetch for Https {
    fn get<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Vec<u8>, String>> {
        Box::pin(async move {
            let fetched = tokio::time::timeout(TIMEOUT, self.fetch(url)).await;
            fetched.unwrap_or_else(|_| Err(format!("{url}: no answer in time")))
        })
    }
}

/// Attempts of a review, with growing pauses. Source: upstream's `DefaultRetryBackoff`.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Concurrent reviews; further ones wait.
const MAX_CONCURRENT: usize = 64;

/// Observes each attempt: its result (`success`, `timeout`, `error`, `canceled`) and its duration.
pub type AttemptObserver = Arc<dyn Fn(&'static str, Duration) + Send + Sync>;

/// An attempt, which is observed when it is dropped, also if it was canceled.
struct Attempt<'a> {
    observer: Option<&'a AttemptObserver>,
    began: Instant,
    result: &'static str,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(observer) = self.observer {
            observer(self.result, self.began.elapsed());
        }
    }
}

/// Why an attempt failed.
struct AttemptError {
    failure: Failure,
    /// Whether to retry.
    retry: bool,
}

impl AttemptError {
    fn new(retry: bool, text: impl ToString) -> AttemptError {
        AttemptError { failure: Failure { text: text.to_string(), timeout: false }, retry }
    }
}

/// A service that answers reviews: of tokens, or of access.
pub struct Reviewer {
    client: kube::Client,
    path: String,
    timeout: Duration,
    observer: Option<AttemptObserver>,
    /// Bounds the connections that requests with unknown tokens open.
    slots: Semaphore,
}

impl Reviewer {
    /// The reviewer that a kubeconfig file's current context names.
    pub async fn new(kubeconfig: &Path) -> Result<Reviewer, String> {
        Self::timed(kubeconfig, TIMEOUT, None).await
    }

    /// The same, with a timeout of attempts and an observer of them.
    pub async fn timed(
        kubeconfig: &Path,
        timeout: Duration,
        observer: Option<AttemptObserver>,
    ) -> Result<Reviewer, String> {
        let WebhookClientConfig { config, path } = WebhookClientConfig::read(kubeconfig).await?;
        let client = kube::Client::try_from(config).map_err(|e| format!("{}: {e}", kubeconfig.display()))?;
        Ok(Reviewer { client, path, timeout, observer, slots: Semaphore::new(MAX_CONCURRENT) })
    }

    async fn post(&self, body: String) -> Result<Value, AttemptError> {
        let request = http::Request::post(&self.path)
            .header("accept", "application/json")
            .header("content-type", "application/json")
            .body(Body::from(body.into_bytes()));
        let request = request.map_err(|e| AttemptError::new(false, e))?;
        let answer = self.client.send(request).await.map_err(|e| AttemptError::new(was_reset(&e), e))?;
        let status = answer.status();
        if !status.is_success() {
            // As upstream's `DefaultShouldRetry`: transient statuses.
            let retry =
                matches!(status.as_u16(), 429 | 500 | 504) || answer.headers().contains_key("retry-after");
            return Err(AttemptError::new(retry, format!("{} answered {status}", self.path)));
        }
        let body = Limited::new(answer.into_body(), LARGEST).collect().await;
        let body = body.map_err(|e| AttemptError::new(was_reset(&*e), e))?.to_bytes();
        serde_json::from_slice(&body).map_err(|e| AttemptError::new(false, e))
    }

    async fn attempt(&self, body: String) -> Result<Value, AttemptError> {
        let mut attempt =
            Attempt { observer: self.observer.as_ref(), began: Instant::now(), result: "canceled" };
        let answer = tokio::time::timeout(self.timeout, self.post(body)).await.unwrap_or_else(|_| {
            let failure = Failure { text: format!("no answer within {:?}", self.timeout), timeout: true };
            Err(AttemptError { failure, retry: false })
        });
        attempt.result = match &answer {
            Ok(_) => "success",
            Err(error) if error.failure.timeout => "timeout",
            Err(_) => "error",
        };
        answer
    }

    /// The review with its status; retries.
    async fn answer(&self, review: Value) -> Result<Value, Failure> {
        let failure = |text: String| Failure { text, timeout: false };
        let _slot = self.slots.acquire().await.map_err(|e| failure(e.to_string()))?;
        let body = review.to_string();
        let mut wait = FIRST_WAIT;
        for last in (0..TRIES).map(|i| i + 1 == TRIES) {
            match self.attempt(body.clone()).await {
                Ok(review) => return Ok(review),
                Err(error) if error.retry && !last => {
                    tokio::time::sleep(wait).await;
                    wait = wait * 3 / 2;
                }
                Err(error) => return Err(error.failure),
            }
        }
        Err(failure("no answer".into()))
    }
}

/// Whether an open connection was reset.
fn was_reset(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if kind == Some(std::io::ErrorKind::ConnectionReset) {
            return true;
        }
        cause = error.source();
    }
    false
}

impl Review for Reviewer {
    fn review(&self, review: Value) -> BoxFuture<'_, Result<Value, String>> {
        Box::pin(async move { self.answer(review).await.map_err(|failure| failure.text) })
    }
}

impl Service for Reviewer {
    fn review(&self, review: Value) -> BoxFuture<'_, Result<Value, Failure>> {
        Box::pin(self.answer(review))
    }
}
