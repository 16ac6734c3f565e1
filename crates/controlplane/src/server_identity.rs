//! The identity of an API server: the Lease `kube-system/apiserver-<hash>`, which it renews, and the removal of those of servers
//! that are gone. Source: KEP-1965; upstream's `controlplane/apiserver/server.go` and `apiserverleasegc`.
//!
//! Invariants: names, labels and durations are upstream's, so that a server of either kind on the same host and port has the same
//! lease; a lease is removed only after it has expired.

use jiff::{SignedDuration, Timestamp};
use kaji_engine::Engine;
use kaji_meta::{Clock, GroupResource, Random, Status, object};
use kaji_resource::{Api, DeleteOptions, FieldManagement, UpdateOptions};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

/// How often the lease is renewed.
const RENEW: Duration = Duration::from_secs(10);
/// How long it lasts, and how often others are looked at.
const DURATION: Duration = Duration::from_secs(3600);
/// The label of such leases, and its value.
const LABEL: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
const NAMESPACE: &str = "kube-system";
/// The port with which a host's server has upstream's name.
const PORT: u16 = 6443;

/// This server.
pub struct Identity {
    hostname: String,
    name: String,
    holder: String,
    clock: Arc<dyn Clock>,
}

fn leases() -> GroupResource {
    GroupResource::new("coordination.k8s.io", "leases")
}

/// The name of the lease, and of the server in traces. Other ports than the usual one are part of it: a host may have several
/// servers.
pub fn name(hostname: &str, port: u16) -> String {
    let mut hash = Sha256::new();
    let port = (port != PORT).then(|| port.to_string());
    for part in [Some(hostname), Some(LABEL.1), port.as_deref()].into_iter().flatten() {
        hash.update(u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    format!("apiserver-{}", base32(&hash.finalize()[..16]))
}

/// RFC 4648 without padding, in lower case.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let digit = |first: usize| (first..first + 5).fold(0_usize, |digit, at| digit * 2 + usize::from(bit(at)));
    (0..bytes.len() * 8).step_by(5).map(|first| char::from(ALPHABET[digit(first)])).collect()
}

impl Identity {
    /// A server on a host, with a port.
    pub fn new(hostname: String, port: u16, random: &dyn Random, clock: Arc<dyn Clock>) -> Identity {
        let name = name(&hostname, port);
        let holder = format!("{name}_{}", kaji_meta::random::uid(random));
        Identity { hostname, name, holder, clock }
    }

    fn renewed(&self, lease: &mut Value) {
        let now = format!("{:.6}", self.clock.now());
        lease["metadata"]["labels"][LABEL.0] = LABEL.1.into();
        lease["metadata"]["labels"]["kubernetes.io/hostname"] = self.hostname.as_str().into();
        lease["spec"]["holderIdentity"] = self.holder.as_str().into();
        lease["spec"]["leaseDurationSeconds"] = DURATION.as_secs().into();
        lease["spec"]["renewTime"] = now.into();
    }

    async fn renew(&self, api: &dyn Api) -> Result<(), Status> {
        let change = |lease: &mut Value| {
            self.renewed(lease);
            Ok(())
        };
        let options = UpdateOptions::new("", FieldManagement::Record);
        match api.update(&leases(), NAMESPACE, &self.name, options, &change).await {
            Err(status) if status.code == 404 => {}
            other => return other.map(drop),
        }
        let mut lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self.name, "namespace": NAMESPACE, "labels": {}}, "spec": {}});
        self.renewed(&mut lease);
        api.create(&leases(), NAMESPACE, lease, false).await.map(drop)
    }

    /// Removes leases of servers that are gone.
    async fn collect(&self, api: &dyn Api) -> Result<(), Status> {
        for lease in api.list(&leases(), Some(NAMESPACE)) {
            if !has_expired(&lease, self.clock.now()) {
                continue;
            }
            let options = DeleteOptions {
                resource_version: Some(object::resource_version(&lease).to_owned()),
                ..DeleteOptions::default()
            };
            match api.delete(&leases(), NAMESPACE, object::name(&lease), options).await {
                // Another server was faster, or it was renewed.
                Err(status) if matches!(status.code, 404 | 409) => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Renews until `stop` turns true. The lease stays, as upstream's, until it has expired.
    pub async fn run(self, engine: Weak<Engine>, mut stop: watch::Receiver<bool>) {
        let (mut renewals, mut collections) = (interval(RENEW), interval(DURATION));
        renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        collections.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let collects = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                _ = renewals.tick() => false,
                _ = collections.tick() => true,
            };
            let Some(engine) = engine.upgrade() else { return };
            let done = if collects { self.collect(&*engine).await } else { self.renew(&*engine).await };
            if let Err(status) = done {
                tracing::warn!(error = %status.message, lease = self.name, "leases of API servers are not up to date");
            }
        }
    }
}

/// Whether a lease is an API server's, and was not renewed for longer than it lasts.
fn has_expired(lease: &Value, now: Timestamp) -> bool {
    let spec = &lease["spec"];
    if lease["metadata"]["labels"][LABEL.0] != LABEL.1 {
        return false;
    }
    // A lease without a time is not one that a server renewed.
    let (Some(renewed), Some(seconds)) = (
        spec["renewTime"].as_str().and_then(|t| t.parse::<Timestamp>().ok()),
        spec["leaseDurationSeconds"].as_i64(),
    ) else {
        return true;
    };
    renewed.checked_add(SignedDuration::from_secs(seconds)).is_ok_and(|end| end < now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_upstreams() {
        assert_eq!(base32(b"fooba"), "mzxw6ytb");
        assert_eq!(base32(b"foob"), "mzxw6yq");
        let (usual, other) = (name("vm", PORT), name("vm", 6444));
        // What upstream computes for this host.
        assert_eq!(usual, "apiserver-wlv32tlttr4jl3gtroqexyxapa");
        assert_ne!(usual, other);
    }

    #[test]
    fn only_expired_leases_of_servers_are_removed() {
        let now: Timestamp = "2026-01-01T02:00:00Z".parse().unwrap();
        let lease = |label: &str, renewed: &str| {
            json!({"metadata": {"labels": {LABEL.0: label}},
                "spec": {"renewTime": renewed, "leaseDurationSeconds": 3600}})
        };
        assert!(has_expired(&lease(LABEL.1, "2026-01-01T00:59:59.000000Z"), now));
        assert!(!has_expired(&lease(LABEL.1, "2026-01-01T01:00:01.000000Z"), now));
        assert!(!has_expired(&lease("other", "2026-01-01T00:00:00.000000Z"), now));
    }
}
