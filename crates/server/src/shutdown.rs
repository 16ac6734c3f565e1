//! The end of a server, in upstream's stages: it is not ready any more and serves on, so that load balancers turn away; it takes no
//! new requests; those in flight end; then watches do.
//!
//! Invariants: before the last stage no request that was accepted is cut off, unless it takes longer than a request may; a client that
//! is refused gets an answer that it may try again, and where its connection leads to has ended by then.
//!
//! Source: `RunWithContext` in `pkg/server/genericapiserver.go` of apiserver, `filters/with_retry_after.go`, `filters/goaway.go`.

use crate::{body::ResponseBody, plain};
use http::{HeaderMap, HeaderValue, Response, header};
use kaji_meta::Random;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// What is served on after the server takes no new requests.
const SERVED_ON: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];
/// The client of upstream's API server for itself.
const LOOPBACK_AGENT: &str = "kube-apiserver/";
/// How long no request may have been in flight before there are none: a connection that was just made has not sent its own yet.
const QUIET: Duration = Duration::from_millis(200);
/// How often requests in flight are counted meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How a server ends, by upstream's flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownOptions {
    /// For how long it serves on while it is not ready (`--shutdown-delay-duration`).
    pub delay: Duration,
    /// Whether new requests are answered with 429 while those in flight end (`--shutdown-send-retry-after`); if not, the listener is
    /// closed before.
    pub send_retry_after: bool,
    /// Within which time watches end one after another once no new requests are taken (`--shutdown-watch-termination-grace-period`);
    /// zero if they end all at once, after requests in flight.
    pub watch_termination: Duration,
}

/// Whether new requests are refused.
#[derive(Debug, Default)]
pub struct Shutdown(AtomicBool);

impl Shutdown {
    /// From now on new requests are refused, except questions after the server's health.
    pub fn refuse(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// The answer to a request that comes too late; `Connection: close` ends its connection.
    pub fn refusal(&self, path: &str, headers: &HeaderMap) -> Option<Response<ResponseBody>> {
        if !self.0.load(Ordering::Acquire) {
            return None;
        }
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        if SERVED_ON.iter().any(|served| path.starts_with(served))
            || agent.is_some_and(|agent| agent.starts_with(LOOPBACK_AGENT))
        {
            return None;
        }
        let text = "The apiserver is shutting down, please try again later.\n";
        let mut response = plain::text(429, "text/plain; charset=utf-8", text);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        Some(response)
    }
}

/// Resolves when no request has been in flight for a moment, or after `limit`.
pub(crate) async fn quiet(in_flight: impl Fn() -> i64, limit: Duration) {
    let begun = Instant::now();
    let mut busy = begun;
    while busy.elapsed() < QUIET && begun.elapsed() < limit {
        sleep(POLL_INTERVAL).await;
        if in_flight() > 0 {
            busy = Instant::now();
        }
    }
}

/// The share of requests over h2 after which their connection is to be made anew, so that load balancers can move clients
/// (`--goaway-chance`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoawayChance {
    /// Of 2^32 requests.
    share: u32,
}

impl GoawayChance {
    /// A share between 0 and 0.02.
    ///
    /// # Errors
    /// Upstream's, for another number.
    pub fn new(share: f64) -> Result<GoawayChance, String> {
        if !(0.0..=0.02).contains(&share) {
            return Err("--goaway-chance can not be less than 0 or greater than 0.02".into());
        }
        // At most a fiftieth of the numbers that there are.
        Ok(GoawayChance { share: (share * f64::from(u32::MAX)) as u32 })
    }

    /// Whether this request's connection is to end.
    pub(crate) fn draw(self, random: &dyn Random) -> bool {
        self.share > 0 && (random.u64() >> 32) < u64::from(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::SeededRandom;
    use std::sync::atomic::AtomicI64;

    #[test]
    fn requests_are_refused_except_those_about_health() {
        let (shutdown, mut headers) = (Shutdown::default(), HeaderMap::new());
        assert!(shutdown.refusal("/api", &headers).is_none());
        shutdown.refuse();
        let refusal = shutdown.refusal("/api/v1/pods", &headers).unwrap();
        assert_eq!(refusal.status(), 429);
        assert_eq!(refusal.headers()[header::RETRY_AFTER], "5");
        assert_eq!(refusal.headers()[header::CONNECTION], "close");
        assert!(shutdown.refusal("/readyz", &headers).is_none());
        assert!(shutdown.refusal("/livez/ping", &headers).is_none());
        headers.insert(header::USER_AGENT, HeaderValue::from_static("kube-apiserver/v1.37"));
        assert!(shutdown.refusal("/api/v1/pods", &headers).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_is_when_no_request_has_been_in_flight_for_a_moment() {
        let (begun, asked) = (Instant::now(), AtomicI64::new(0));
        // The third to the hundredth look find a request.
        quiet(|| i64::from((3..=100).contains(&asked.fetch_add(1, Ordering::Relaxed))), Duration::MAX).await;
        let took = begun.elapsed();
        assert!(took > POLL_INTERVAL * 100 + QUIET && took < POLL_INTERVAL * 110 + QUIET, "{took:?}");
        let begun = Instant::now();
        quiet(|| 1, Duration::from_secs(60)).await;
        assert!(begun.elapsed() >= Duration::from_secs(60) && begun.elapsed() < Duration::from_secs(61));
    }

    #[test]
    fn connections_end_after_a_share_of_their_requests() {
        let drawn = |share: f64| {
            let (chance, random) = (GoawayChance::new(share).unwrap(), SeededRandom::new(1));
            (0..100_000).filter(|_| chance.draw(&random)).count()
        };
        assert_eq!(drawn(0.0), 0);
        assert!((1_800..2_200).contains(&drawn(0.02)), "{}", drawn(0.02));
        for wrong in [-0.1, 0.021, f64::NAN] {
            assert!(GoawayChance::new(wrong).is_err());
        }
    }
}
