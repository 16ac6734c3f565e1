//! The webhook backend: lists of events are posted to a server, with retries.
//!
//! Invariants: a list has a bounded size; attempts, their time and the posts in flight are bounded; shutdown ends retries.
//!
//! Source: upstream's `plugin/pkg/audit/webhook`, which retries after every error.

use super::buffer::{Backend, LossReporter, Phase};
use crate::{Backoff, Event, Fit, TruncateOptions, fit};
use bytes::Bytes;
use kaji_meta::Random;
use kaji_resource::BoxFuture;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// Time limit of a post. Source: upstream's `defaultRequestTimeout`.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Posts in flight.
const PARALLEL: usize = 16;

/// The HTTP client of the webhook.
pub trait Post: Send + Sync + 'static {
    /// Posts a list; the error says why it was not accepted.
    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), String>>;
}

/// The webhook.
pub(super) struct Webhook {
    pub post: Arc<dyn Post>,
    pub initial: Duration,
    pub truncate: TruncateOptions,
    pub random: Arc<dyn Random>,
    pub phases: watch::Receiver<Phase>,
    pub losses: LossReporter,
}

/// A list of events, with their encoded items.
#[derive(Default)]
struct EventList {
    events: Vec<Arc<Event>>,
    items: Vec<Vec<u8>>,
    bytes: u64,
}

impl Backend for Webhook {
    fn parallel(&self) -> usize {
        PARALLEL
    }

    fn deliver(&self, events: Vec<Arc<Event>>) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let mut delivered = true;
            for list in self.lists(events) {
                if let Err(error) = self.send(crate::events(&list.items)).await {
                    self.losses.report(self.losses.plugin, &error, &list.events);
                    delivered = false;
                }
            }
            delivered
        })
    }
}

impl Webhook {
    /// Encodes events into lists of the configured size.
    fn lists(&self, events: Vec<Arc<Event>>) -> Vec<EventList> {
        let (mut lists, mut list) = (vec![], EventList::default());
        for event in events {
            let Fit::Encoded(item) = fit(&event, &self.truncate, Event::item) else {
                let error = "event is too large even after truncating";
                self.losses.report("truncate", error, &[event]);
                continue;
            };
            let size = item.len() as u64;
            let limit = self.truncate.max_batch_size;
            if self.truncate.enabled && !list.items.is_empty() && list.bytes + size > limit {
                lists.push(std::mem::take(&mut list));
            }
            list.bytes += size;
            list.items.push(item);
            list.events.push(event);
        }
        if !list.items.is_empty() {
            lists.push(list);
        }
        lists
    }

    async fn send(&self, body: Bytes) -> Result<(), String> {
        let mut backoff = Backoff::new(self.initial);
        let mut phases = self.phases.clone();
        loop {
            let attempt = tokio::time::timeout(TIMEOUT, self.post.post(body.clone()));
            let error = tokio::select! {
                // What has been delivered is not reported as lost.
                biased;
                outcome = attempt => match outcome {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => error,
                    Err(_) => "the server did not answer in time".into(),
                },
                _ = phases.wait_for(|p| *p == Phase::GivenUp) => return Err("the server is ending".into()),
            };
            let Some(wait) = backoff.next(&*self.random) else { return Err(error) };
            tracing::debug!(error, ?wait, "audit events were not accepted");
            tokio::select! {
                biased;
                _ = phases.wait_for(|p| *p == Phase::GivenUp) => return Err(error),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}
