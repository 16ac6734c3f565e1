//! The clients of everybody who is called, by configuration.
//!
//! Invariant: no more clients are kept than `MOST`; who was called longest ago goes first, its idle connections with it.

use crate::{CallError, Client, ClientConfig, Endpoint, RequestBody, RequestClass, StreamedBody, resolve};
use bytes::Bytes;
use kaji_meta::{Random, Status, SystemRandom};
use kaji_resource::Api;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

/// Clients that are kept. Upstream's `defaultCacheSize`.
const MOST: usize = 200;

#[derive(Default)]
struct Kept {
    clients: HashMap<Arc<ClientConfig>, (Arc<Client>, u64)>,
    /// Counts look-ups.
    clock: u64,
}

/// What finds services.
pub(crate) struct ServiceResolver {
    api: OnceLock<Weak<dyn Api>>,
    random: Arc<dyn Random>,
}

impl ServiceResolver {
    /// Somebody behind a service, as of now.
    pub async fn find(&self, place: (&str, &str), port: u16) -> Result<Endpoint, CallError> {
        let api = self.api.get().and_then(Weak::upgrade);
        let missing = || Status::service_unavailable("services cannot be looked up yet");
        let found = match api {
            Some(api) => match api.sync().await {
                Ok(()) => resolve(&*api, &*self.random, place, port),
                Err(status) => Err(status),
            },
            None => Err(missing()),
        };
        found.map_err(|status| CallError::Service { text: status.message.clone(), status: Box::new(status) })
    }
}

/// Everybody who is called. One of these serves a whole process.
pub struct ClientCache {
    kept: Mutex<Kept>,
    finder: Arc<ServiceResolver>,
}

impl Default for ClientCache {
    fn default() -> Self {
        ClientCache::new(Arc::new(SystemRandom))
    }
}

impl ClientCache {
    /// With this randomness, which chooses among endpoints.
    pub fn new(random: Arc<dyn Random>) -> ClientCache {
        ClientCache {
            kept: Mutex::default(),
            finder: Arc::new(ServiceResolver { api: OnceLock::new(), random }),
        }
    }

    /// Says where services are looked up. Until then they cannot be called; later calls change nothing.
    pub fn set_service_lookup(&self, api: Weak<dyn Api>) {
        drop(self.finder.api.set(api));
    }

    /// The client of a configuration.
    ///
    /// # Errors
    /// The configuration is no way to call anybody: a bad URL, certificates that cannot be read.
    pub fn client(&self, config: &ClientConfig) -> Result<Arc<Client>, CallError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let now = kept.clock;
        if let Some((client, used)) = kept.clients.get_mut(config) {
            *used = now;
            return Ok(client.clone());
        }
        let config = Arc::new(config.clone());
        let client = Arc::new(Client::new(config.clone(), self.finder.clone())?);
        if kept.clients.len() >= MOST {
            let oldest = kept.clients.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            oldest.iter().for_each(|key| drop(kept.clients.remove(key)));
        }
        kept.clients.insert(config, (client.clone(), now));
        Ok(client)
    }

    /// Posts JSON to the target itself and reads the answer. See [`Client::post_json`].
    ///
    /// # Errors
    /// Whatever keeps the answer of a success from being there in time.
    pub async fn post_json(
        &self,
        config: &ClientConfig,
        body: Bytes,
        timeout: Duration,
        limit: usize,
    ) -> Result<Bytes, CallError> {
        self.client(config)?.post_json(body, timeout, limit).await
    }

    /// Sends a request and gives the answer whatever its code. See [`Client::send`].
    ///
    /// # Errors
    /// There is no answer.
    pub async fn send(
        &self,
        config: &ClientConfig,
        request: http::Request<RequestBody>,
        class: RequestClass,
    ) -> Result<http::Response<StreamedBody>, CallError> {
        self.client(config)?.send(request, class).await
    }
}
