//! Documents of identity providers and answers of those who review tokens and access, fetched over HTTPS.
//!
//! Invariants: a fetch ends in time, its answer is bounded, and only a certificate of the given authorities (or, without
//! any, the machine's) is trusted.

use http_body_util::{BodyExt, Limited};
use kaji_auth::{
    authn::{Fetch, Review},
    authz::webhook::{Failure, Service},
};
use kaji_resource::BoxFuture;
use kube::{
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// A provider that takes longer is taken for one that is down.
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

/// Tries before a reviewer counts as down, each later than the one before. Source: upstream's `DefaultRetryBackoff`.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Most questions that are open at once; further ones wait.
const AT_ONCE: usize = 64;

/// Hears of each try: how it ended (`success`, `timeout`, `error`, `canceled`), and how long it took.
pub type Trips = Arc<dyn Fn(&'static str, Duration) + Send + Sync>;

/// A try that nobody waits for any more is told, too.
struct Trip<'a> {
    trips: Option<&'a Trips>,
    began: Instant,
    result: &'static str,
}

impl Drop for Trip<'_> {
    fn drop(&mut self) {
        if let Some(trips) = self.trips {
            trips(self.result, self.began.elapsed());
        }
    }
}

/// Why a try failed.
struct Trouble {
    failure: Failure,
    /// Whether trying again may help.
    again: bool,
}

impl Trouble {
    fn new(again: bool, text: impl ToString) -> Trouble {
        Trouble { failure: Failure { text: text.to_string(), timeout: false }, again }
    }
}

/// A service that answers reviews: of tokens, or of access.
pub struct Reviewer {
    client: kube::Client,
    path: String,
    timeout: Duration,
    trips: Option<Trips>,
    /// Strangers must not open more connections than this.
    slots: Semaphore,
}

impl Reviewer {
    /// The reviewer that a kubeconfig file's current context names.
    pub async fn new(kubeconfig: &Path) -> Result<Reviewer, String> {
        Self::timed(kubeconfig, TIMEOUT, None).await
    }

    /// The same, with this much time for a try, and with somebody who hears of tries.
    pub async fn timed(
        kubeconfig: &Path,
        timeout: Duration,
        trips: Option<Trips>,
    ) -> Result<Reviewer, String> {
        let error = |e: &dyn std::fmt::Display| format!("{}: {e}", kubeconfig.display());
        let file = Kubeconfig::read_from(kubeconfig).map_err(|e| error(&e))?;
        let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(|e| error(&e))?;
        // Reviews go to the very URL that the file names: the client must not add a slash to its path.
        let path = config.cluster_url.path_and_query().map_or("/", |p| p.as_str()).to_owned();
        let mut origin = config.cluster_url.into_parts();
        origin.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        config.cluster_url = http::Uri::from_parts(origin).map_err(|e| error(&e))?;
        let client = kube::Client::try_from(config).map_err(|e| error(&e))?;
        Ok(Reviewer { client, path, timeout, trips, slots: Semaphore::new(AT_ONCE) })
    }

    async fn ask(&self, body: String) -> Result<Value, Trouble> {
        let request = http::Request::post(&self.path)
            .header("accept", "application/json")
            .header("content-type", "application/json")
            .body(Body::from(body.into_bytes()));
        let request = request.map_err(|e| Trouble::new(false, e))?;
        let answer = self.client.send(request).await.map_err(|e| Trouble::new(was_reset(&e), e))?;
        let status = answer.status();
        if !status.is_success() {
            // As upstream's `DefaultShouldRetry`: those that say that it is for a moment.
            let again =
                matches!(status.as_u16(), 429 | 500 | 504) || answer.headers().contains_key("retry-after");
            return Err(Trouble::new(again, format!("{} answered {status}", self.path)));
        }
        let body = Limited::new(answer.into_body(), LARGEST).collect().await;
        let body = body.map_err(|e| Trouble::new(was_reset(&*e), e))?.to_bytes();
        serde_json::from_slice(&body).map_err(|e| Trouble::new(false, e))
    }

    async fn timely(&self, body: String) -> Result<Value, Trouble> {
        let mut trip = Trip { trips: self.trips.as_ref(), began: Instant::now(), result: "canceled" };
        let answer = tokio::time::timeout(self.timeout, self.ask(body)).await.unwrap_or_else(|_| {
            let failure = Failure { text: format!("no answer within {:?}", self.timeout), timeout: true };
            Err(Trouble { failure, again: false })
        });
        trip.result = match &answer {
            Ok(_) => "success",
            Err(trouble) if trouble.failure.timeout => "timeout",
            Err(_) => "error",
        };
        answer
    }

    /// The review with its status, after as many tries as it takes.
    async fn answer(&self, review: Value) -> Result<Value, Failure> {
        let failure = |text: String| Failure { text, timeout: false };
        let _slot = self.slots.acquire().await.map_err(|e| failure(e.to_string()))?;
        let body = review.to_string();
        let mut wait = FIRST_WAIT;
        for last in (0..TRIES).map(|i| i + 1 == TRIES) {
            match self.timely(body.clone()).await {
                Ok(review) => return Ok(review),
                Err(trouble) if trouble.again && !last => {
                    tokio::time::sleep(wait).await;
                    wait = wait * 3 / 2;
                }
                Err(trouble) => return Err(trouble.failure),
            }
        }
        Err(failure("no answer".into()))
    }
}

/// Whether a connection was there and broke.
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
