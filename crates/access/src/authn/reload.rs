//! JWT authenticators, and reloads of the authentication configuration file while the cluster runs.
//!
//! Invariants: a file that cannot be used changes nothing, nor does one with an issuer that does not serve its keys, which
//! is retried; the configuration of anonymous requests never changes. Source: KEP-3331; upstream's `authenticationConfigUpdater`.

use crate::fetch::Https;
use kaji_auth::authn::{
    Agnostic, AnonymousConfig, AuthenticationConfiguration, JwtAuthenticator, Oidc, Swappable,
};
use kaji_meta::Clock;
use kaji_options::{
    WatchedFiles,
    authentication::{AuthnError, parse},
};
use kaji_server::ReloadMetrics;
use std::{path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// What JWT authenticators are built with.
pub(super) struct Issuers {
    /// Accepted signature algorithms.
    pub algorithms: Vec<String>,
    /// The server's audiences.
    pub audiences: Vec<String>,
    /// The server's own issuers, which the file must not name.
    pub own: Vec<String>,
    pub clock: Arc<dyn Clock>,
    /// The authenticators in use.
    pub current: Arc<Swappable>,
}

impl Issuers {
    /// Authenticators of these issuers.
    pub fn build(&self, jwt: Vec<JwtAuthenticator>) -> Result<Vec<Arc<Oidc>>, AuthnError> {
        let one = |jwt: JwtAuthenticator| {
            let url = jwt.issuer.url.clone();
            let fetch = Https::new(&jwt.issuer.certificate_authority)
                .map_err(|e| AuthnError::Flag(format!("certificate authority of {url}: {e}")))?;
            let oidc = Oidc::new(jwt, self.algorithms.clone(), Arc::new(fetch), self.clock.clone());
            oidc.map(Arc::new).map_err(|e| AuthnError::Flag(format!("issuer {url}: {e}")))
        };
        jwt.into_iter().map(one).collect()
    }

    /// Replaces the authenticators in use.
    pub fn set(&self, all: Vec<Arc<Oidc>>) {
        let agnostic = |oidc| Arc::new(Agnostic::new(oidc, self.audiences.clone())) as _;
        self.current.set(all.into_iter().map(agnostic).collect());
    }
}

/// Watches the file.
pub(super) struct Reload {
    file: WatchedFiles,
    issuers: Issuers,
    /// The configuration of anonymous requests at the start.
    anonymous: Option<AnonymousConfig>,
    reloads: Arc<ReloadMetrics>,
}

/// Why a file is not used, and whether to retry.
struct Unused(String, bool);

impl Reload {
    /// For a file; its content `data` is in use.
    pub fn new(
        (path, data): (PathBuf, Vec<u8>),
        configuration: &AuthenticationConfiguration,
        issuers: Issuers,
        reloads: Arc<ReloadMetrics>,
    ) -> Reload {
        reloads.configured(&data);
        let anonymous = configuration.anonymous.clone();
        Reload { file: WatchedFiles::new([(path, data)]), issuers, anonymous, reloads }
    }

    /// Runs until `stop` turns true.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        while let Some(found) = self.file.changed(&mut stop).await {
            let outcome = match found.map(|mut files| files.pop().unwrap_or_default()) {
                Ok(data) => self.apply(&data).await.map(|()| data),
                Err(error) => Err(Unused(error.to_string(), false)),
            };
            let (path, now) = (self.file.names(), self.issuers.clock.now());
            match outcome {
                Ok(data) => {
                    tracing::info!(path, "the authentication configuration is reloaded");
                    self.reloads.reloaded(true, now);
                    self.reloads.configured(&data);
                }
                Err(Unused(error, passes)) => {
                    tracing::error!(path, error, "the authentication configuration is not reloaded");
                    self.reloads.reloaded(false, now);
                    if passes {
                        self.file.retry();
                    }
                }
            }
        }
    }

    async fn apply(&self, data: &[u8]) -> Result<(), Unused> {
        let never = |why: String| Unused(why, false);
        let text = std::str::from_utf8(data).map_err(|e| never(e.to_string()))?;
        let configuration = parse(text).map_err(never)?;
        configuration.validate(&self.issuers.own).map_err(|e| never(e.0))?;
        if configuration.anonymous != self.anonymous {
            return Err(never("anonymous: Forbidden: changed from initial configuration file".into()));
        }
        let all = self.issuers.build(configuration.jwt).map_err(|e| never(e.to_string()))?;
        for oidc in &all {
            oidc.prepare().await.map_err(|why| Unused(why, true))?;
        }
        self.issuers.set(all);
        Ok(())
    }
}
