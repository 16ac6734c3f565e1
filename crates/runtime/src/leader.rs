//! Leader election by a Lease, as client-go's: of several processes with the same loops, one runs them.
//!
//! Invariants: a lease is taken over only when it was seen unchanged for its whole duration, by this process' own monotonic
//! clock; a leader that could not renew its lease until the deadline ends its loops before the lease can be taken; a
//! process that stops gives the lease back, so that the next one need not wait, and starts no loops any more.
//!
//! Source: `tools/leaderelection` in client-go, with upstream's default durations.

mod metrics;

pub use metrics::LeaseMetrics;

use crate::{Client, Error, Target};
use kaji_meta::time::Clock;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinSet, time::Instant};

/// The longest that a server gets to take a lease back.
const GIVE_BACK: Duration = Duration::from_secs(4);

/// The durations of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    /// How long a lease lasts: whole seconds.
    pub duration: Duration,
    /// For how long a leader tries to renew its lease before it gives up; less than `duration`.
    pub renew_deadline: Duration,
    /// How often the lease is looked at or renewed; less than `renew_deadline`.
    pub retry_period: Duration,
}

impl Default for LeaseTiming {
    /// Those of upstream's components.
    fn default() -> Self {
        LeaseTiming {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl LeaseTiming {
    /// How long loops may take to end: the lease is not another's before that.
    fn end(&self) -> Duration {
        self.duration.saturating_sub(self.renew_deadline).mul_f64(0.8)
    }
}

/// One of the processes that compete.
#[derive(Clone)]
pub struct Election {
    /// Acts as the component.
    pub client: Client,
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// This process, as no other one.
    pub identity: String,
    /// How long the lease lasts, and how often it is renewed.
    pub timing: LeaseTiming,
    /// What the lease is stamped with.
    pub clock: Arc<dyn Clock>,
    /// Says whether this process holds the lease.
    pub metrics: LeaseMetrics,
}

/// The lease as it was last seen changed, and when.
#[derive(Default)]
struct Observed {
    spec: Value,
    at: Option<Instant>,
}

impl Observed {
    fn note(&mut self, spec: &Value, now: Instant) {
        if self.at.is_none() || self.spec != *spec {
            (self.spec, self.at) = (spec.clone(), Some(now));
        }
    }

    /// Whether the lease may be taken by `identity`.
    fn is_free(&self, identity: &str, now: Instant) -> bool {
        let holder = self.spec["holderIdentity"].as_str().unwrap_or_default();
        let seconds = self.spec["leaseDurationSeconds"].as_u64().unwrap_or_default();
        let over = self.at.is_some_and(|at| now >= at + Duration::from_secs(seconds));
        holder.is_empty() || holder == identity || over
    }
}

/// The spec of a lease that `identity` takes or renews.
fn taken(former: &Value, identity: &str, duration: Duration, now: &str) -> Value {
    let renewed = former["holderIdentity"] == identity;
    let transitions = former["leaseTransitions"].as_u64().unwrap_or(0);
    let first = former["holderIdentity"].is_null();
    json!({
        "holderIdentity": identity,
        "leaseDurationSeconds": duration.as_secs(),
        "acquireTime": if renewed { former["acquireTime"].clone() } else { now.into() },
        "renewTime": now,
        "leaseTransitions": if renewed || first { transitions } else { transitions + 1 },
    })
}

impl Election {
    fn target(&self, name: &str) -> Target {
        Target {
            group: "coordination.k8s.io".into(),
            version: "v1".into(),
            resource: "leases".into(),
            namespace: self.namespace.clone(),
            name: name.into(),
            subresource: String::new(),
        }
    }

    fn now(&self) -> String {
        format!("{:.6}", self.clock.now())
    }

    /// The lease's spec once this process has it.
    fn spec_after(&self, former: &Value) -> Value {
        taken(former, &self.identity, self.timing.duration, &self.now())
    }

    /// Takes or renews the lease. Answers whether this process holds it.
    async fn attempt(&self, observed: &mut Observed) -> Result<bool, Error> {
        let mut lease: Value = match self.client.get(&self.target(&self.name).path()).await {
            Ok(lease) => lease,
            Err(error) if error.not_found() => {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": self.name, "namespace": self.namespace},
                    "spec": self.spec_after(&Value::Null)});
                let created = self.client.create(&self.target(""), &lease).await?;
                observed.note(&created["spec"], Instant::now());
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        observed.note(&lease["spec"], Instant::now());
        if !observed.is_free(&self.identity, Instant::now()) {
            return Ok(false);
        }
        // With the resourceVersion that was read: of two processes, one gets it.
        lease["spec"] = self.spec_after(&lease["spec"]);
        let written = self.client.update(&self.target(&self.name), &lease).await?;
        observed.note(&written["spec"], Instant::now());
        Ok(true)
    }

    async fn give_back(&self) -> Result<(), Error> {
        let mut lease: Value = self.client.get(&self.target(&self.name).path()).await?;
        if lease["spec"]["holderIdentity"] != *self.identity {
            return Ok(());
        }
        lease["spec"]["holderIdentity"] = "".into();
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        self.client.update(&self.target(&self.name), &lease).await.map(drop)
    }

    /// Runs what `start` spawns whenever this process is the leader, until `stop` turns true. Then tasks are asked to end, and
    /// aborted when they do not.
    pub async fn run(
        self,
        mut stop: watch::Receiver<bool>,
        mut start: impl FnMut(&mut JoinSet<()>, &watch::Receiver<bool>) + Send,
    ) {
        let mut observed = Observed::default();
        self.metrics.set(&self.name, false);
        while !*stop.borrow() {
            if !self.lead(&mut observed, &mut stop).await {
                continue;
            }
            if *stop.borrow() {
                // It was taken by a request that was under way.
                self.stop_leading().await;
                continue;
            }
            tracing::info!(lease = %self.name, identity = self.identity, "became the leader");
            let (ends, ending) = watch::channel(false);
            let mut tasks = JoinSet::new();
            self.metrics.set(&self.name, true);
            start(&mut tasks, &ending);
            self.keep(&mut observed, &mut stop).await;
            ends.send_replace(true);
            self.metrics.set(&self.name, false);
            let ended = async { while tasks.join_next().await.is_some() {} };
            if tokio::time::timeout(self.timing.end(), ended).await.is_err() {
                tasks.abort_all();
            }
            if *stop.borrow() {
                self.stop_leading().await;
            } else {
                tracing::warn!(lease = %self.name, identity = self.identity, "lost the lease; its loops ended");
            }
        }
    }

    /// Releases the lease once the loops have ended; in vain at worst, for it expires.
    async fn stop_leading(&self) {
        tracing::info!(lease = %self.name, identity = self.identity, "stopped leading");
        let given = tokio::time::timeout(GIVE_BACK, self.give_back()).await;
        tracing::debug!(lease = %self.name, ?given, "tried to release the lease");
    }

    /// Waits to be the leader; false when it is stopped.
    async fn lead(&self, observed: &mut Observed, stop: &mut watch::Receiver<bool>) -> bool {
        loop {
            match tokio::time::timeout(self.timing.renew_deadline, self.attempt(observed)).await {
                Ok(Ok(true)) => return true,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::debug!(lease = %self.name, %error, "the lease was not taken"),
                Err(_) => tracing::debug!(lease = %self.name, "the lease was not taken in time"),
            }
            if stopped_within(self.timing.retry_period, stop).await {
                return false;
            }
        }
    }

    /// Renews the lease until it is lost or the process is to stop.
    async fn keep(&self, observed: &mut Observed, stop: &mut watch::Receiver<bool>) {
        let mut renewed = Instant::now();
        while !stopped_within(self.timing.retry_period, stop).await {
            let began = Instant::now();
            let left = (renewed + self.timing.renew_deadline).saturating_duration_since(began);
            match tokio::time::timeout(left, self.attempt(observed)).await {
                Ok(Ok(true)) => renewed = began,
                // Another process has it.
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(lease = %self.name, %error, "the lease was not renewed"),
                Err(_) => {}
            }
            if renewed.elapsed() >= self.timing.renew_deadline {
                return;
            }
        }
    }
}

/// Waits; true when `stop` turned true meanwhile.
async fn stopped_within(time: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    // A sender that is gone has nothing left that could run.
    tokio::time::timeout(time, stop.wait_for(|stop| *stop)).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Exchange};
    use kaji_meta::time::SystemClock;
    use tokio::sync::mpsc;

    const TIMING: LeaseTiming = LeaseTiming {
        duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    fn election(client: Client) -> Election {
        let (identity, clock) = ("me".to_owned(), Arc::new(SystemClock));
        let (namespace, name, timing) = ("kube-system".into(), "loops".into(), TIMING);
        Election { client, namespace, name, identity, timing, clock, metrics: LeaseMetrics::default() }
    }

    fn lease(holder: &str, renewed: &str) -> Value {
        json!({"metadata": {"name": "loops", "resourceVersion": "7"}, "spec": {"holderIdentity": holder,
            "leaseDurationSeconds": 15, "acquireTime": "a", "renewTime": renewed, "leaseTransitions": 2}})
    }

    /// Answers the next request with what it wrote, and tells the holder.
    fn accept(exchange: Exchange) -> (String, u64) {
        let body = exchange.body.clone();
        let seen = body["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let transitions = body["spec"]["leaseTransitions"].as_u64().unwrap_or(99);
        exchange.json(200, &body);
        (seen, transitions)
    }

    /// The series of the metric.
    fn status(metrics: &LeaseMetrics) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        metrics.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        page.lines().filter(|line| !line.starts_with('#')).collect()
    }

    /// What happens to the loops, as text.
    fn recorded(
        events: mpsc::UnboundedSender<&'static str>,
    ) -> impl FnMut(&mut JoinSet<()>, &watch::Receiver<bool>) + Send {
        move |tasks, ending| {
            let (events, mut ending) = (events.clone(), ending.clone());
            tasks.spawn(async move {
                let _ = events.send("began");
                let _ = ending.wait_for(|ending| *ending).await;
                let _ = events.send("ended");
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_made_renewed_and_given_back() {
        let (client, mut requests) = testing::client();
        let (stop, stopped) = watch::channel(false);
        let (events, mut seen) = mpsc::unbounded_channel();
        let election = election(client);
        let metrics = election.metrics.clone();
        let running = tokio::spawn(election.run(stopped, recorded(events)));
        let request = requests.next().await;
        assert_eq!(status(&metrics), "leader_election_master_status{name=\"loops\"} 0");
        request.status(404, "NotFound");
        assert_eq!(accept(requests.next().await), ("me".into(), 0));
        assert_eq!(seen.recv().await, Some("began"));
        assert_eq!(status(&metrics), "leader_election_master_status{name=\"loops\"} 1");
        requests.next().await.json(200, &lease("me", "t1"));
        assert_eq!(accept(requests.next().await), ("me".into(), 2));
        stop.send_replace(true);
        assert_eq!(seen.recv().await, Some("ended"));
        requests.next().await.json(200, &lease("me", "t2"));
        assert_eq!(accept(requests.next().await), (String::new(), 2));
        running.await.unwrap();
        assert_eq!(status(&metrics), "leader_election_master_status{name=\"loops\"} 0");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_taken_after_the_stop_is_given_back_without_starting_loops() {
        let (client, mut requests) = testing::client();
        let (stop, stopped) = watch::channel(false);
        let (events, mut seen) = mpsc::unbounded_channel();
        let running = tokio::spawn(election(client).run(stopped, recorded(events)));
        requests.next().await.json(200, &lease("", "t0"));
        let under_way = requests.next().await;
        stop.send_replace(true);
        assert_eq!(accept(under_way), ("me".into(), 3));
        requests.next().await.json(200, &lease("me", "t1"));
        assert_eq!(accept(requests.next().await), (String::new(), 2));
        running.await.unwrap();
        assert_eq!(seen.recv().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_taken_over_when_it_was_not_renewed_for_its_duration() {
        let (client, mut requests) = testing::client();
        let (_stop, stopped) = watch::channel(false);
        let (events, mut seen) = mpsc::unbounded_channel();
        tokio::spawn(election(client).run(stopped, recorded(events)));
        let begun = Instant::now();
        let mut renewals = 0;
        loop {
            let next = requests.next().await;
            if next.method == http::Method::PUT {
                assert_eq!(accept(next), ("me".into(), 3));
                break;
            }
            // Its holder renews it once, and then no more.
            renewals += u32::from(renewals < 2);
            next.json(200, &lease("other", &renewals.to_string()));
        }
        assert!(begun.elapsed() >= TIMING.duration + TIMING.retry_period, "{:?}", begun.elapsed());
        assert_eq!(seen.recv().await, Some("began"));
    }

    #[tokio::test(start_paused = true)]
    async fn loops_end_before_a_lease_that_cannot_be_renewed_expires() {
        let (client, mut requests) = testing::client();
        let (_stop, stopped) = watch::channel(false);
        let (events, mut seen) = mpsc::unbounded_channel();
        tokio::spawn(election(client).run(stopped, recorded(events)));
        requests.next().await.json(200, &lease("", "t0"));
        accept(requests.next().await);
        let taken = Instant::now();
        assert_eq!(seen.recv().await, Some("began"));
        tokio::spawn(async move {
            loop {
                requests.next().await.status(503, "ServiceUnavailable");
            }
        });
        assert_eq!(seen.recv().await, Some("ended"));
        assert!(taken.elapsed() < TIMING.duration, "{:?}", taken.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_for_long_ends_its_loops_when_it_wakes_up() {
        let (client, mut requests) = testing::client();
        let (_stop, stopped) = watch::channel(false);
        let (events, mut seen) = mpsc::unbounded_channel();
        tokio::spawn(election(client).run(stopped, recorded(events)));
        requests.next().await.json(200, &lease("", "t0"));
        accept(requests.next().await);
        assert_eq!(seen.recv().await, Some("began"));
        tokio::time::advance(Duration::from_secs(30)).await;
        let woken = Instant::now();
        // No request was answered: it need not be told that the lease is over.
        assert_eq!(seen.recv().await, Some("ended"));
        assert!(woken.elapsed() < Duration::from_millis(10), "{:?}", woken.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn loops_end_when_another_process_has_the_lease() {
        let (client, mut requests) = testing::client();
        let (_stop, stopped) = watch::channel(false);
        let (events, mut seen) = mpsc::unbounded_channel();
        tokio::spawn(election(client).run(stopped, recorded(events)));
        requests.next().await.json(200, &lease("", "t0"));
        accept(requests.next().await);
        requests.next().await.json(200, &lease("other", "t1"));
        assert_eq!([seen.recv().await, seen.recv().await], [Some("began"), Some("ended")]);
    }
}
