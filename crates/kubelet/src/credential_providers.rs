//! Credentials for image registries from plug-ins: programs that the kubelet runs with a request on standard input. Upstream's
//! `pkg/credentialprovider/plugin`.
//!
//! Invariants: a plug-in runs only for images that its configuration names; requests for one image at one time share a run; what
//! a plug-in answers is kept as long as it says, by image, by registry or for all images, and apart for each service account where
//! its tokens are handed over; no credential and no token is in an error or a log.

mod cache;
pub mod config;
mod exec;
mod service_account;

use crate::keyring::{self, Credential, CredentialSource, Keyring};
use crate::metrics::KubeletMetrics;
use crate::pods::core::Pod;
use crate::pods::model;
use crate::pods::sources::Sources;
use cache::Cache;
use config::{ConfigError, Provider};
use exec::{Plugin, Response};
use kaji_containers::RegistryAuth;
use kaji_meta::Clock;
use service_account::{Identity, ServiceAccount};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use tokio::sync::OnceCell;

/// What a plug-in's answer is kept by when it is for all images; no image has such a name.
const ALL_IMAGES: &str = "<global>";

/// Why a plug-in gave no credentials.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProvideError {
    /// The service account of the pod.
    #[error("failed to get service account: {0}")]
    ServiceAccount(String),
    /// Its token.
    #[error("failed to get service account token: {0}")]
    Token(String),
    /// The program.
    #[error("failed to get credential from external registry credential provider: {0}")]
    Plugin(String),
    /// What it answered.
    #[error(
        "credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'"
    )]
    TokenAsPassword,
}

type Shared = Arc<OnceCell<Result<Response, String>>>;

/// A plug-in with what it has answered.
struct PluginProvider {
    config: Provider,
    plugin: Plugin,
    cache: Mutex<Cache>,
    /// Runs that have not ended, by what they are asked.
    runs: Mutex<HashMap<String, Shared>>,
}

/// The plug-ins of a node.
pub struct CredentialProviders {
    providers: Vec<PluginProvider>,
    clock: Arc<dyn Clock>,
    /// `sha256:...` of the configuration.
    hash: String,
    times: Arc<KubeletMetrics>,
}

impl CredentialProviders {
    /// None.
    #[must_use]
    pub fn none(clock: Arc<dyn Clock>) -> CredentialProviders {
        CredentialProviders { providers: vec![], clock, hash: String::new(), times: Arc::default() }
    }

    /// Those of `--image-credential-provider-config` (a file, or a directory of them) and `--image-credential-provider-bin-dir`.
    ///
    /// # Errors
    /// A configuration that cannot be read or has violations, or a program that is absent.
    pub fn open(
        path: &Path,
        programs: &Path,
        clock: Arc<dyn Clock>,
    ) -> Result<CredentialProviders, ConfigError> {
        let read = config::read(path)?;
        config::check_programs(programs, &read.providers)?;
        let times = Arc::new(KubeletMetrics::default());
        let of = |config: Provider| PluginProvider {
            plugin: Plugin::new(programs, &config, times.clone()),
            config,
            cache: Mutex::default(),
            runs: Mutex::default(),
        };
        let providers = read.providers.into_iter().map(of).collect();
        Ok(CredentialProviders { providers, clock, hash: read.hash, times })
    }

    /// `sha256:...` of the configuration's files; empty without one.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// By plug-in: how often it has failed, and how often it ran.
    #[must_use]
    pub fn runs(&self) -> Vec<(String, u64, u64)> {
        self.providers.iter().map(|p| p.plugin.counted()).collect()
    }

    /// How long runs took.
    pub(crate) fn times(&self) -> &KubeletMetrics {
        &self.times
    }

    /// Credentials for an image's repository (`docker.io/library/nginx`), the most specific first. A plug-in that fails is logged,
    /// and the others' are used.
    pub async fn lookup(&self, sources: &dyn Sources, pod: &Pod, repository: &str) -> Vec<Credential> {
        let mut found = Keyring::default();
        for provider in &self.providers {
            match provider.provide(sources, &*self.clock, pod, repository).await {
                Ok((credentials, source)) => {
                    for (location, auth) in credentials {
                        found.add_credentials(&location, Credential { auth, source: source.clone() });
                    }
                }
                Err(error) => tracing::error!(
                    %error,
                    provider = provider.config.name,
                    image = repository,
                    pod = model::display(pod),
                    "Failed to provide credentials for image"
                ),
            }
        }
        found.lookup(repository)
    }
}

impl PluginProvider {
    async fn provide(
        &self,
        sources: &dyn Sources,
        clock: &dyn Clock,
        pod: &Pod,
        image: &str,
    ) -> Result<(BTreeMap<String, RegistryAuth>, CredentialSource), ProvideError> {
        let nothing = || (BTreeMap::new(), CredentialSource::Node);
        if !self.config.match_images.iter().any(|glob| keyring::matches(glob, image)) {
            return Ok(nothing());
        }
        let account = match &self.config.token_attributes {
            None => None,
            Some(attributes) => match ServiceAccount::of(sources, attributes, pod).await? {
                Identity::NotForThisPod => return Ok(nothing()),
                Identity::None => None,
                Identity::Account(account) => Some(account),
            },
        };
        let owner = account.as_ref().map(ServiceAccount::cache_key).unwrap_or_default();
        let source = account.as_ref().map(|account| CredentialSource::ServiceAccount(account.object_name()));
        let source = source.unwrap_or_default();
        let registry = image.split('/').next().unwrap_or_default();
        let kept = [image, registry, ALL_IMAGES];
        if let Some(found) = self.cache().get(&kept, &owner, clock.now()) {
            return Ok((found, source));
        }
        let response = self.run(image, account.as_ref()).await.map_err(ProvideError::Plugin)?;
        if let Some(account) = account.as_ref().filter(|account| !account.token_is_key)
            && response.auth.values().any(|auth| auth.password == account.token)
        {
            return Err(ProvideError::TokenAsPassword);
        }
        let key = match response.cache_key_type {
            exec::CacheKeyType::Image => image,
            exec::CacheKeyType::Registry => registry,
            exec::CacheKeyType::Global => ALL_IMAGES,
        };
        let lifetime = response.cache_duration.unwrap_or(self.config.default_cache_duration);
        if !lifetime.is_zero() {
            let until = clock.now().checked_add(lifetime).unwrap_or(jiff::Timestamp::MAX);
            self.cache().insert(key, &owner, response.auth.clone(), (clock.now(), until));
        }
        Ok((response.auth, source))
    }

    /// Runs the plug-in, or waits for the run that has begun already.
    async fn run(&self, image: &str, account: Option<&ServiceAccount>) -> Result<Response, String> {
        let asked = match account {
            None => image.to_owned(),
            Some(account) => format!("{image}\0{}\0{}", account.cache_key(), account.token_hash()),
        };
        let lock = || self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let shared: Shared = {
            let mut runs = lock();
            // Those that nothing waits for any more.
            runs.retain(|_, run| Arc::strong_count(run) > 1);
            runs.entry(asked.clone()).or_default().clone()
        };
        let answer = shared.get_or_init(|| self.plugin.run(image, account)).await.clone();
        let mut runs = lock();
        if runs.get(&asked).is_some_and(|run| Arc::ptr_eq(run, &shared)) {
            runs.remove(&asked);
        }
        answer
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
