//! Encryption by a KMS plugin (API v2): a seed, which the plugin encrypts, makes the keys that encrypt values.
//!
//! Invariants:
//! - Writing needs no call: the seed is made and encrypted ahead (`probe.rs`), and again when the plugin's key changes.
//! - Nothing is written with a seed after three minutes without the plugin's confirmation of its key: the
//!   administrator that changed the key may rely on it that every later write uses the new one, or fails.
//! - Reading needs a call once per seed. Seeds stay in memory while the process runs, so a plugin that becomes unavailable does not make
//!   unreadable what was read.
//!
//! Source: KEP-3299.

mod api;
mod client;
mod dek;
mod probe;

use crate::{
    TransformError,
    config::{ConfigError, Kms},
    metrics::{Metrics, Used},
    transform::Opened,
};
use api::EncryptedObject;
pub(crate) use api::hash;
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use client::Client;
use dek::{Dek, Keys, Known, OVERHEAD};
use jiff::Timestamp;
use kaji_meta::{Clock, random::Random};
use probe::Probe;
use prost::Message;
use std::sync::Arc;

/// What plugins need of the process.
#[derive(Clone)]
pub struct Deps {
    /// Makes seeds and nonces, and so must be cryptographic.
    pub random: Arc<dyn Random>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where it is counted what happens.
    pub metrics: Arc<Metrics>,
    /// The keys that values are bound to, where they are not the keys of requests.
    pub stored_keys: Option<StoredKeys>,
    /// Keys with values that no rule encrypts. One that was encrypted before is still read, as stale.
    pub unencrypted: fn(&str) -> bool,
}

/// The key under which the inner store has a value; `None` for a key that it cannot have.
pub type StoredKeys = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What writes, made ahead.
struct Writer {
    dek: Arc<Dek>,
    key_id: String,
    /// The fields of what is stored after the data.
    tail: Vec<u8>,
    used: Used,
}

/// The writer of now, and when it ends unless the plugin confirms it.
struct Current {
    writer: Arc<Writer>,
    expires: Timestamp,
}

/// A key that has to be decrypted before a value can be.
pub struct Locked {
    plugin: Arc<Plugin>,
    fingerprint: [u8; 32],
    object: EncryptedObject,
}

/// Why a value was not opened.
pub enum NotOpened {
    /// It cannot be.
    Failed(TransformError),
    /// Its key is not known yet: [`Locked::unlock`], and try again.
    Locked(Box<Locked>),
}

impl From<TransformError> for NotOpened {
    fn from(error: TransformError) -> Self {
        NotOpened::Failed(error)
    }
}

/// One plugin.
pub struct Plugin {
    name: String,
    prefix: String,
    client: Client,
    deps: Deps,
    current: ArcSwapOption<Current>,
    keys: Keys,
    probe: tokio::sync::Mutex<Probe>,
}

impl Plugin {
    /// Asks nothing of the plugin yet.
    pub fn new(config: &Kms, deps: &Deps) -> Result<Arc<Plugin>, ConfigError> {
        let bad = |reason: String| {
            let name = &config.name;
            ConfigError::Build(format!("could not configure KMSv2-Plugin's probe {name:?}, error: {reason}"))
        };
        let endpoint = &config.endpoint;
        let timeout = config.timeout().ok_or_else(|| bad(format!("invalid timeout {:?}", config.timeout)))?;
        let client = Client::new(&config.name, endpoint, timeout, deps.metrics.clone())
            .ok_or_else(|| bad(format!("invalid endpoint {endpoint:?} for remote KMS provider")))?;
        Ok(Arc::new(Plugin {
            name: config.name.clone(),
            prefix: format!("k8s:enc:kms:v2:{}:", config.name),
            client,
            deps: deps.clone(),
            current: ArcSwapOption::empty(),
            keys: Keys::default(),
            probe: tokio::sync::Mutex::default(),
        }))
    }

    /// Begins what it stores.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What to store for a value. Upstream's texts when that cannot be done now.
    pub fn seal(&self, context: &[u8], value: &[u8]) -> Result<Bytes, TransformError> {
        let current = self.current.load();
        let Some(current) = current.as_ref() else {
            return Err(TransformError::new("got unexpected nil transformer"));
        };
        let now = self.deps.clock.now();
        if now > current.expires {
            let text = format!(
                "encryptedDEKSource with keyID hash {:?} expired at {} (current time is {})",
                hash(&current.writer.key_id),
                rfc3339(current.expires),
                rfc3339(now)
            );
            return Err(TransformError::new(&text));
        }
        let Writer { dek, tail, used, .. } = &*current.writer;
        let size = value.len() + OVERHEAD;
        let mut out = Vec::with_capacity(self.prefix.len() + 11 + size + tail.len());
        out.extend_from_slice(self.prefix.as_bytes());
        // The first field, written in place: values may be large.
        prost::encoding::encode_key(1, prost::encoding::WireType::LengthDelimited, &mut out);
        prost::encoding::encode_varint(size as u64, &mut out);
        dek.seal(&*self.deps.random, context, value, &mut out)?;
        out.extend_from_slice(tail);
        used.record(now);
        Ok(out.into())
    }

    /// The value of what is stored, without the prefix.
    pub fn open(self: &Arc<Self>, context: &[u8], stored: Bytes) -> Result<Opened, NotOpened> {
        let mut object = EncryptedObject::decode(stored)
            .map_err(|e| TransformError::new(&format!("proto: cannot parse what is stored: {e}")))?;
        object.validate().map_err(|e| TransformError::new(&e))?;
        let fingerprint = object.fingerprint();
        let Some(known) = self.keys.get(&fingerprint) else {
            object.data = Bytes::new();
            return Err(NotOpened::Locked(Box::new(Locked { plugin: self.clone(), fingerprint, object })));
        };
        let value = known.dek.open(context, &object.data)?;
        known.used.record(self.deps.clock.now());
        let current = self.current.load();
        let stale = current.as_ref().is_some_and(|current| {
            current.writer.key_id != object.key_id || object.source_type != api::SOURCE_SEED
        });
        Ok(Opened { value: value.into(), stale })
    }

    fn learn(&self, fingerprint: [u8; 32], key_id: &str, dek: Arc<Dek>) {
        let used = self.deps.metrics.used("from_storage", &self.name, key_id);
        let count = self.keys.insert(fingerprint, Known { dek, used });
        self.deps.metrics.known(&self.name, count);
    }
}

impl Locked {
    /// What the value begins with.
    pub fn prefix(&self) -> &str {
        &self.plugin.prefix
    }

    /// Has the plugin decrypt the key. It is known from then on.
    ///
    /// # Errors
    /// When the plugin does not, or what it answers is no key.
    pub async fn unlock(self) -> Result<(), TransformError> {
        let Locked { plugin, fingerprint, object } = self;
        let Deps { random, metrics, .. } = &plugin.deps;
        metrics.missed();
        let request = api::DecryptRequest {
            ciphertext: object.source,
            uid: kaji_meta::random::uid(&**random),
            key_id: object.key_id.clone(),
            annotations: object.annotations,
        };
        let clear = plugin.client.decrypt(request).await;
        let clear = clear.map_err(|e| {
            TransformError::of_call(&format!("failed to decrypt DEK, error: {e}"), e.code_name())
        });
        let clear = clear?.plaintext;
        let dek = Dek::new(object.source_type, &clear)?;
        plugin.learn(fingerprint, &object.key_id, Arc::new(dek));
        Ok(())
    }
}

fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
