//! Health and key of a plugin, from its Status call; the seed for writes is created and renewed here.
//!
//! Invariants: one probe of a plugin at a time. A probe that fails leaves the seed as it is; it may be used until it
//! expires. Intervals are upstream's.

use super::{Current, Dek, Plugin, Writer, api, hash, rfc3339};
use jiff::{SignedDuration, Timestamp};
use kaji_meta::random;
use prost::Message;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Between probes of a plugin that is well, and of one that is not.
const WELL: Duration = Duration::from_secs(60);
const ILL: Duration = Duration::from_secs(10);
/// Between probes while a start waits.
const STARTING: Duration = Duration::from_millis(250);
/// How long an answer holds for health checks.
const WELL_HOLDS: SignedDuration = SignedDuration::from_secs(20);
const ILL_HOLDS: SignedDuration = SignedDuration::from_secs(3);
/// How long a seed may write after its key was last confirmed.
const WRITE_TIME: SignedDuration = SignedDuration::from_secs(180);

/// What was found out last.
#[derive(Default)]
pub struct Probe {
    last: Option<(Timestamp, Result<(), String>)>,
    /// Of the first answer that had one that is known: a plugin does not change it.
    version: String,
}

/// Words as one error, as upstream's aggregates print.
fn all(errors: Vec<String>) -> Option<String> {
    match errors.len() {
        0 => None,
        1 => errors.into_iter().next(),
        _ => Some(format!("[{}]", errors.join(", "))),
    }
}

impl Plugin {
    /// Whether it is well, as found out a moment ago or now.
    pub async fn check(&self) -> Result<(), String> {
        let mut probe = self.probe.lock().await;
        if let Some((at, result)) = &probe.last {
            let holds = if result.is_ok() { WELL_HOLDS } else { ILL_HOLDS };
            if self.deps.clock.now().duration_since(*at) < holds {
                return result.clone();
            }
        }
        self.check_status(&mut probe).await
    }

    /// Asks until it is well, but no longer than `patience`.
    pub async fn prime(&self, patience: Duration) {
        let started = Instant::now();
        loop {
            let result = self.check_status(&mut *self.probe.lock().await).await;
            let Err(error) = result else { return };
            if started.elapsed() >= patience {
                tracing::warn!(name = self.name, error, "kms plugin failed health check probe");
                return;
            }
            tokio::time::sleep(STARTING).await;
        }
    }

    /// Keeps asking, for as long as it is polled.
    pub async fn follow(self: Arc<Self>) {
        loop {
            let well = self.probe.lock().await.last.as_ref().is_some_and(|(_, result)| result.is_ok());
            tokio::time::sleep(if well { WELL } else { ILL }).await;
            if let Err(error) = self.check().await {
                tracing::warn!(name = self.name, error, "kms plugin failed health check probe");
            }
        }
    }

    async fn check_status(&self, probe: &mut Probe) -> Result<(), String> {
        // Before the call: the seed's time counts from here.
        let requested_at = self.deps.clock.now();
        let result = match self.client.status().await {
            Err(error) => Err(format!(
                "failed to perform status section of the healthz check for KMS Provider {}, error: {error}",
                self.name
            )),
            Ok(status) => self.handle_status(probe, &status, requested_at).await,
        };
        probe.last = Some((self.deps.clock.now(), result.clone()));
        result
    }

    async fn handle_status(
        &self,
        probe: &mut Probe,
        status: &api::StatusResponse,
        requested_at: Timestamp,
    ) -> Result<(), String> {
        let mut errors = vec![];
        if status.healthz != "ok" {
            errors.push(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !api::VERSIONS.contains(&status.version.as_str()) {
            errors.push(format!("expected KMSv2 API version v2, got {}", status.version));
        } else if probe.version.is_empty() {
            probe.version.clone_from(&status.version);
        } else if probe.version != status.version {
            errors.push(format!(
                "KMSv2 API version should not change after the initial status response version {}, got {}",
                probe.version, status.version
            ));
        }
        match api::validate_key_id(&status.key_id) {
            Err((word, error)) => {
                self.deps.metrics.invalid(&self.name, word);
                errors.push(format!("got invalid KMSv2 KeyID hash {:?}: {error}", hash(&status.key_id)));
            }
            Ok(()) => {
                self.deps.metrics.seen(&self.name, &status.key_id, requested_at);
                errors.extend(self.renew(&status.key_id, requested_at).await.err());
            }
        }
        match all(errors) {
            None => Ok(()),
            Some(error) => Err(format!("kmsv2 Provider {} is not healthy, error: {error}", self.name)),
        }
    }

    /// Gives the seed more time if its key is still the plugin's; else replaces it.
    async fn renew(&self, key_id: &str, requested_at: Timestamp) -> Result<(), String> {
        let expires = requested_at.checked_add(WRITE_TIME).unwrap_or(Timestamp::MAX);
        let current = self.current.load_full();
        if let Some(current) = current.as_ref().filter(|c| c.writer.key_id == key_id) {
            let writer = current.writer.clone();
            self.current.store(Some(Arc::new(Current { writer, expires })));
            return Ok(());
        }
        let uid = random::uid(&*self.deps.random);
        let (encrypted, error) = match self.generate(&uid).await {
            Ok((writer, fingerprint)) if writer.key_id == key_id => {
                self.learn(fingerprint, key_id, writer.dek.clone());
                self.current.store(Some(Arc::new(Current { writer: Arc::new(writer), expires })));
                tracing::debug!(
                    name = self.name,
                    uid,
                    key = hash(key_id),
                    "a new seed encrypts what is written"
                );
                return Ok(());
            }
            // Upstream prints the absence of an error as Go does.
            Ok((writer, _)) => (writer.key_id, "<nil>".to_owned()),
            Err(error) => (String::new(), error),
        };
        let (state, former, until) = match &current {
            Some(c) => ("<nil>", hash(&c.writer.key_id), rfc3339(c.expires)),
            None => ("got unexpected nil transformer", String::new(), "0001-01-01T00:00:00Z".into()),
        };
        Err(format!(
            "failed to rotate DEK uid={uid:?}, useSeed=true, errState={state}, errGen={error}, statusKeyIDHash={:?}, \
             encryptKeyIDHash={:?}, stateKeyIDHash={former:?}, expirationTimestamp={until}",
            hash(key_id),
            hash(&encrypted)
        ))
    }

    /// A new seed that the plugin has encrypted, and the fingerprint of that.
    async fn generate(&self, uid: &str) -> Result<(Writer, [u8; 32]), String> {
        let started = Instant::now();
        let (dek, seed) = Dek::generate(&*self.deps.random);
        self.deps.metrics.generated(started.elapsed());
        let request = api::EncryptRequest { plaintext: seed.to_vec().into(), uid: uid.to_owned() };
        let answer =
            self.client.encrypt(request).await.map_err(|e| format!("failed to encrypt DEK, error: {e}"))?;
        let object = api::EncryptedObject {
            data: Default::default(),
            key_id: answer.key_id,
            source: answer.ciphertext,
            annotations: answer.annotations,
            source_type: api::SOURCE_SEED,
        };
        object.validate_source()?;
        let (tail, fingerprint) = (object.encode_to_vec(), object.fingerprint());
        let used = self.deps.metrics.used("to_storage", &self.name, &object.key_id);
        Ok((Writer { dek: Arc::new(dek), key_id: object.key_id, tail, used }, fingerprint))
    }
}
