//! The controller of one APIService with an extension server: probes the server, writes the Available condition, fetches the
//! server's discovery documents.
//!
//! Invariants:
//! - A condition is written only when it differs from the stored one.
//! - A server that hangs delays its controller alone; the number of concurrent probes is bounded.
//! - A change of the service, its endpoints or the APIService is processed at once, and everything again after half a
//!   minute; failures are retried with exponential backoff.

use crate::{
    Aggregator, Route,
    availability::{self, OWNER},
    changes::{Changes, Watched},
    service::{Backend, Condition, api_services},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use kaji_meta::{GroupResource, Status, time::Time};
use kaji_outbound::{CallError, Client, RequestClass};
use kaji_resource::{FieldManagement, ObjectReader, ObjectWriter, UpdateOptions, UserInfo};
use serde_json::Value;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// The user of probes, as the server sees it.
const PROBER: &str = "system:kube-aggregator";
/// Tries at once, of which one has to succeed: there may be bad endpoints among the good.
const ATTEMPTS: usize = 5;
/// How long a try may take.
pub(crate) const PROBE: Duration = Duration::from_secs(5);
/// How often it is looked at while nothing happens.
const RESYNC: Duration = Duration::from_secs(30);
/// Between failures, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), RESYNC);
/// How often discovery documents are fetched.
const REFRESH: Duration = Duration::from_secs(60);
/// Between failures to find that out.
const REFETCH: (Duration, Duration) = (Duration::from_millis(500), REFRESH);

/// A delay that doubles.
pub(crate) struct Delay {
    bounds: (Duration, Duration),
    next: Duration,
}

impl Delay {
    pub fn new(bounds: (Duration, Duration)) -> Delay {
        Delay { bounds, next: bounds.0 }
    }

    pub fn grow(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(self.bounds.1);
        now
    }

    pub fn reset(&mut self) {
        self.next = self.bounds.0;
    }
}

/// The identity of probes, which servers authorize for everything.
pub(crate) fn prober() -> UserInfo {
    UserInfo { name: PROBER.into(), groups: vec!["system:masters".into()], ..UserInfo::default() }
}

/// Runs the controller of an APIService until it is aborted.
pub(crate) async fn keep(aggregator: Weak<Aggregator>, routes: watch::Receiver<Arc<Route>>) {
    let route = routes.borrow().clone();
    let mut controller = AvailabilityController {
        aggregator,
        route,
        routes,
        said: None,
        probe: Delay::new(RETRY),
        fetch: Delay::new(REFETCH),
        look_at: Instant::now(),
        fetch_at: None,
    };
    while controller.follow().await.is_some() {}
}

struct AvailabilityController {
    aggregator: Weak<Aggregator>,
    route: Arc<Route>,
    routes: watch::Receiver<Arc<Route>>,
    /// The condition that was found last.
    said: Option<Condition>,
    probe: Delay,
    fetch: Delay,
    look_at: Instant,
    /// When to fetch discovery documents; `None` while the server is unavailable.
    fetch_at: Option<Instant>,
}

/// What happened.
enum Next {
    /// A time has come.
    Due,
    /// Something changed.
    Changed,
    /// The APIService is another.
    Other,
    /// Watches have to be begun anew.
    Over,
}

impl AvailabilityController {
    async fn watch(&self, backend: &Backend) -> Option<Changes> {
        let aggregator = self.aggregator.upgrade()?;
        let Backend { namespace, name, .. } = backend;
        let services = ("fieldSelector", format!("metadata.name={name}"));
        let slices = ("labelSelector", format!("{OWNER}={name}"));
        let all = [
            Watched::some("", "services", "v1", namespace, services),
            Watched::some("discovery.k8s.io", "endpointslices", "v1", namespace, slices),
        ];
        Changes::of(&aggregator.engine, all).await
    }

    /// Follows one service until another stands behind the APIService, or a watch ends. `None` at the end of everything.
    async fn follow(&mut self) -> Option<()> {
        let backend = self.route.service.backend.clone();
        let mut changes = self.watch(&backend).await?;
        changes.drain();
        self.look_at = Instant::now();
        loop {
            let aggregator = self.aggregator.upgrade()?;
            if self.look_at <= Instant::now() {
                let after = self.sync(&aggregator).await;
                self.look_at = Instant::now() + after;
            }
            if self.fetch_at.is_some_and(|at| at <= Instant::now()) {
                let after = self.ask(&aggregator).await;
                self.fetch_at = Some(Instant::now() + after);
            }
            drop(aggregator);
            match self.next(&mut changes).await? {
                Next::Due => {}
                Next::Changed => self.look_at = Instant::now(),
                Next::Other => {
                    let now = &self.route.service.backend;
                    if (&now.namespace, &now.name) != (&backend.namespace, &backend.name) {
                        self.fetch_at = None;
                        return Some(());
                    }
                    self.look_at = Instant::now();
                    self.fetch_at = self.fetch_at.map(|_| Instant::now());
                }
                Next::Over => return Some(()),
            }
        }
    }

    async fn next(&mut self, changes: &mut Changes) -> Option<Next> {
        loop {
            let wake = self.fetch_at.map_or(self.look_at, |at| at.min(self.look_at));
            tokio::select! {
                biased;
                more = changes.next() => return Some(if more { Next::Changed } else { Next::Over }),
                () = tokio::time::sleep_until(wake) => return Some(Next::Due),
                changed = self.routes.changed() => {
                    changed.ok()?;
                    let new = self.routes.borrow_and_update().clone();
                    let old = std::mem::replace(&mut self.route, new);
                    let now = &self.route.service;
                    // What was written here is no news.
                    if !now.same_but_for_condition(&old.service) || now.available != self.said {
                        return Some(Next::Other);
                    }
                }
            }
        }
    }

    /// Finds out whether the server can be reached and says so. How long to wait until the next time.
    async fn sync(&mut self, aggregator: &Arc<Aggregator>) -> Duration {
        let route = self.route.clone();
        let found = {
            let _slot = aggregator.looks.acquire().await;
            check(aggregator, &route).await
        };
        let (condition, mut again) = match found {
            Ok(()) => (Condition::passed(), false),
            Err(Found { condition, again }) => (condition, again),
        };
        let available = condition.is_true();
        if let Err(error) = write(aggregator, &route.service.name, &condition).await {
            tracing::warn!(name = route.service.name, %error, "an APIService's condition could not be written");
            again = true;
        }
        self.said = Some(condition);
        match (available, self.fetch_at) {
            (true, None) => self.fetch_at = Some(Instant::now()),
            (true, Some(_)) => {}
            (false, _) => {
                self.fetch_at = None;
                self.fetch.reset();
                aggregator.documents.stale(&route.service);
            }
        }
        if again {
            return self.probe.grow();
        }
        self.probe.reset();
        RESYNC
    }

    /// Asks the server what it serves. How long to wait until the next time.
    async fn ask(&mut self, aggregator: &Arc<Aggregator>) -> Duration {
        let route = self.route.clone();
        match aggregator.documents.ask(&route, &aggregator.routes.table(), &aggregator.clients).await {
            Ok(()) => {
                self.fetch.reset();
                REFRESH
            }
            Err(error) => {
                tracing::info!(
                    name = route.service.name,
                    error,
                    "the discovery documents of an extension server cannot be read"
                );
                self.fetch.grow()
            }
        }
    }
}

/// What is wrong, and whether only trying again will tell that it is not any more.
struct Found {
    condition: Condition,
    again: bool,
}

async fn check(aggregator: &Aggregator, route: &Route) -> Result<(), Found> {
    let backend = &route.service.backend;
    let engine = &aggregator.engine;
    let service = engine.get(&GroupResource::new("", "services"), &backend.namespace, &backend.name);
    let slices = match service {
        Some(_) => {
            engine.list(&GroupResource::new("discovery.k8s.io", "endpointslices"), Some(&backend.namespace))
        }
        None => vec![],
    };
    if let Some(condition) = availability::unavailable_reason(backend, service.as_deref(), &slices) {
        return Err(Found { condition, again: false });
    }
    drop((service, slices));
    let failed =
        |text: String| Found { condition: Condition::unavailable("FailedDiscoveryCheck", text), again: true };
    let client = route.client(&aggregator.clients).map_err(|e| failed(e.to_string()))?;
    let mut attempts: FuturesUnordered<_> = (0..ATTEMPTS).map(|_| probe(&client, route)).collect();
    let mut last = String::new();
    while let Some(outcome) = attempts.next().await {
        match outcome {
            Ok(()) => return Ok(()),
            Err(text) => last = text,
        }
    }
    Err(failed(last))
}

/// One try to get the document that every such server has.
async fn probe(client: &Client, route: &Route) -> Result<(), String> {
    let path = route.service.path();
    let url = format!("https://{}{path}", route.authority());
    let missing = |why: String| format!("failing or missing response from {url}: {why}");
    // Without an Accept header, as upstream's: a server may have the document in forms that none of ours would name.
    let request = crate::forwarded_request::own_request(&path, &prober());
    match tokio::time::timeout(PROBE, client.send(request, RequestClass::Internal)).await {
        Err(_) => {
            let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
            Err(missing(format!("Get {url:?}: {late}")))
        }
        Ok(Err(CallError::Service { status, .. })) => Err(status.message),
        Ok(Err(error)) => Err(missing(error.to_string())),
        Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
        Ok(Ok(answer)) => Err(missing(format!("bad status from {url}: {}", answer.status().as_u16()))),
    }
}

/// Writes a condition if it is another than the one that is there.
pub(crate) async fn write(aggregator: &Aggregator, name: &str, condition: &Condition) -> Result<(), Status> {
    let services = api_services();
    let Some(current) = aggregator.engine.get(&services, "", name) else { return Ok(()) };
    let before = Condition::of(&current);
    aggregator.metrics.is(name, condition.is_true());
    if before.as_ref() == Some(condition) {
        return Ok(());
    }
    let now = Time::new(aggregator.clock.now()).to_string();
    let change = |object: &mut Value| {
        condition.put(object, &now);
        Ok(())
    };
    match aggregator
        .engine
        .update(&services, "", name, UpdateOptions::new("status", FieldManagement::Record), &change)
        .await
    {
        Err(status) if status.code == 404 => return Ok(()),
        other => other?,
    };
    if before.is_some_and(|b| b.is_true()) && !condition.is_true() {
        aggregator.metrics.lost(name, condition);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound() {
        let mut delay = Delay::new((Duration::from_millis(5), Duration::from_millis(30)));
        let seen: Vec<_> = (0..5).map(|_| delay.grow().as_millis()).collect();
        assert_eq!(seen, [5, 10, 20, 30, 30]);
        delay.reset();
        assert_eq!(delay.grow().as_millis(), 5);
    }
}
