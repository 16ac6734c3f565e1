//! A cache of clients, by configuration.
//!
//! Invariant: no more than `MOST` clients are cached; the least recently used is evicted, with its idle connections.

use crate::{CallError, Client, ClientConfig, Endpoint, RequestBody, RequestClass, StreamedBody, resolve};
use bytes::Bytes;
use kaji_meta::{Random, Status, SystemRandom};
use kaji_resource::Api;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

/// Cached clients. Upstream's `defaultCacheSize`.
const MOST: usize = 200;

#[derive(Default)]
struct Kept {
    clients: HashMap<Arc<ClientConfig>, (Arc<Client>, u64)>,
    /// Counts look-ups.
    clock: u64,
}

/// Resolves services to endpoints.
pub(crate) struct ServiceResolver {
    api: Option<Weak<dyn Api>>,
    random: Arc<dyn Random>,
}

impl ServiceResolver {
    /// An endpoint of a service, as of now.
    pub async fn find(&self, place: (&str, &str), port: u16) -> Result<Endpoint, CallError> {
        let api = self.api.as_ref().and_then(Weak::upgrade);
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

/// The clients of a process.
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
    /// A cache with this randomness, which chooses among endpoints.
    pub fn new(random: Arc<dyn Random>) -> ClientCache {
        ClientCache { kept: Mutex::default(), finder: Arc::new(ServiceResolver { api: None, random }) }
    }

    /// A cache of clients that resolve services by the objects of this API. Without one, services cannot be called.
    pub fn with_services_of(api: Weak<dyn Api>) -> ClientCache {
        let finder = ServiceResolver { api: Some(api), random: Arc::new(SystemRandom) };
        ClientCache { kept: Mutex::default(), finder: Arc::new(finder) }
    }

    /// The client of a configuration.
    ///
    /// # Errors
    /// The configuration is unusable: a bad URL, certificates that cannot be read.
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
    /// No successful response arrives in time.
    pub async fn post_json(
        &self,
        config: &ClientConfig,
        body: Bytes,
        timeout: Duration,
        limit: usize,
    ) -> Result<Bytes, CallError> {
        self.client(config)?.post_json(body, timeout, limit).await
    }

    /// Sends a request and returns the response whatever its code. See [`Client::send`].
    ///
    /// # Errors
    /// There is no response.
    pub async fn send(
        &self,
        config: &ClientConfig,
        request: http::Request<RequestBody>,
        class: RequestClass,
    ) -> Result<http::Response<StreamedBody>, CallError> {
        self.client(config)?.send(request, class).await
    }
}
