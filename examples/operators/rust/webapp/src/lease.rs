//! Leader election as client-go does it: the holder of the lease leads. The holder renews it; when a lease has not changed for as
//! long as it says, by the clock of the observer, any candidate may take it. Clocks of different machines are never compared.

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// A candidate for leadership.
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// How long a lease counts that is not renewed.
    duration: Duration,
    /// The lease as it was seen last, and since when it is like that.
    seen: Option<(Option<LeaseSpec>, Instant)>,
}

impl Candidate {
    /// One of this identity, which no other may have.
    pub fn new(leases: Api<Lease>, name: &str, identity: &str, duration: Duration) -> Candidate {
        Candidate { leases, name: name.into(), identity: identity.into(), duration, seen: None }
    }

    /// Waits until it leads.
    pub async fn lead(&mut self) {
        let mut waits = false;
        loop {
            match self.attempt().await {
                Ok(None) => return,
                Ok(Some(holder)) if !waits => {
                    tracing::info!(%holder, "standing by");
                    waits = true;
                }
                Ok(Some(_)) => {}
                Err(error) => tracing::warn!(%error, "cannot get the lease"),
            }
            sleep(self.pause()).await;
        }
    }

    /// Renews the lease for as long as that works; returns when it leads no longer.
    pub async fn keep(&mut self) {
        let mut renewed = Instant::now();
        loop {
            // Others take over after the whole duration: by then this one has to have stopped.
            let deadline = renewed + self.duration * 2 / 3;
            let pause = sleep(self.pause());
            let attempt = async {
                pause.await;
                (Instant::now(), self.attempt().await)
            };
            match timeout_at(deadline, attempt).await {
                Ok((at, Ok(None))) => renewed = at,
                Ok((_, Ok(Some(_)))) => return,
                Ok((_, Err(error))) => tracing::warn!(%error, "cannot renew the lease"),
                Err(_) => return,
            }
        }
    }

    /// Lets another lead without waiting for the lease to run out.
    pub async fn step_down(&mut self) -> kube::Result<()> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() == Some(&self.identity) {
            spec.holder_identity = None;
            self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }

    fn pause(&self) -> Duration {
        (self.duration / 6).min(Duration::from_secs(2))
    }

    /// Takes or renews the lease; returns the holder if that is another process.
    async fn attempt(&mut self) -> kube::Result<Option<String>> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.held(None)) };
            return self.leases.create(&PostParams::default(), &lease).await.map(|_| None);
        };
        if self.seen.as_ref().is_none_or(|(spec, _)| *spec != lease.spec) {
            self.seen = Some((lease.spec.clone(), Instant::now()));
        }
        if let Some(holder) = self.other(lease.spec.as_ref()) {
            return Ok(Some(holder));
        }
        lease.spec = Some(self.held(lease.spec.as_ref()));
        // It carries the resource version that was read: of two candidates that take it at once, one gets a conflict.
        self.leases.replace(&self.name, &PostParams::default(), &lease).await.map(|_| None)
    }

    /// The other holder, if the lease has not run out.
    fn other(&self, spec: Option<&LeaseSpec>) -> Option<String> {
        let spec = spec?;
        let holder = spec.holder_identity.clone().filter(|h| !h.is_empty() && *h != self.identity)?;
        let lasts = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0);
        let since = self.seen.as_ref().map_or(Duration::ZERO, |(_, at)| at.elapsed());
        (since < Duration::from_secs(lasts)).then_some(holder)
    }

    /// The lease as it is when this one holds it.
    fn held(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let old = old.cloned().unwrap_or_default();
        let stays = old.holder_identity.as_ref() == Some(&self.identity);
        let transitions = old.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.duration.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: if stays { old.acquire_time } else { now.clone() },
            renew_time: now,
            lease_transitions: Some(if stays { transitions } else { transitions.saturating_add(1) }),
            ..LeaseSpec::default()
        }
    }
}
