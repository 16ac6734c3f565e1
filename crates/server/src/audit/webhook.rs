//! Events by HTTP: lists of them, posted to a server, again and again for a while if it does not take them.
//!
//! Source: `plugin/pkg/audit/webhook`: whatever goes wrong is worth another try.

use super::sink::{Backend, Lost, Phase};
use bytes::Bytes;
use kaji_audit::{Backoff, Event, Fit, TruncateOptions, fit};
use kaji_meta::Random;
use kaji_resource::BoxFuture;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// How long a server may take. Source: upstream's `defaultRequestTimeout`.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Posts that may be under way.
const PARALLEL: usize = 16;

/// Sends documents to a server.
pub trait Post: Send + Sync + 'static {
    /// Sends one; in words why it was not taken.
    fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), String>>;
}

/// The webhook.
pub(super) struct Webhook {
    pub post: Arc<dyn Post>,
    pub initial: Duration,
    pub truncate: TruncateOptions,
    pub random: Arc<dyn Random>,
    pub phases: watch::Receiver<Phase>,
    pub lost: Lost,
}

/// Events and what is sent of them.
#[derive(Default)]
struct Parcel {
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
            for parcel in self.parcels(events) {
                if let Err(error) = self.send(kaji_audit::events(&parcel.items)).await {
                    self.lost.tell(self.lost.plugin, &error, &parcel.events);
                    delivered = false;
                }
            }
            delivered
        })
    }
}

impl Webhook {
    /// Encoded events, in lists of a size that the server takes.
    fn parcels(&self, events: Vec<Arc<Event>>) -> Vec<Parcel> {
        let (mut parcels, mut parcel) = (vec![], Parcel::default());
        for event in events {
            let Fit::Encoded(item) = fit(&event, &self.truncate, Event::item) else {
                let error = "event is too large even after truncating";
                self.lost.tell("truncate", error, &[event]);
                continue;
            };
            let size = item.len() as u64;
            let most = self.truncate.max_batch_size;
            if self.truncate.enabled && !parcel.items.is_empty() && parcel.bytes + size > most {
                parcels.push(std::mem::take(&mut parcel));
            }
            parcel.bytes += size;
            parcel.items.push(item);
            parcel.events.push(event);
        }
        if !parcel.items.is_empty() {
            parcels.push(parcel);
        }
        parcels
    }

    async fn send(&self, body: Bytes) -> Result<(), String> {
        let mut backoff = Backoff::new(self.initial);
        let mut phases = self.phases.clone();
        loop {
            let attempt = tokio::time::timeout(TIMEOUT, self.post.post(body.clone()));
            let error = tokio::select! {
                outcome = attempt => match outcome {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => error,
                    Err(_) => "the server did not answer in time".into(),
                },
                _ = phases.wait_for(|p| *p == Phase::GivenUp) => return Err("the server is ending".into()),
            };
            let Some(wait) = backoff.next(&*self.random) else { return Err(error) };
            tracing::debug!(error, ?wait, "audit events were not taken");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = phases.wait_for(|p| *p == Phase::GivenUp) => return Err(error),
            }
        }
    }
}
