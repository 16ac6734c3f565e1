//! Issuers of tokens, and the file that names them, put in force anew while the cluster runs.
//!
//! Invariants: a file that cannot be used changes nothing, nor does one whose issuers give no keys (it is tried again);
//! who may be anonymous never changes. Source: KEP-3331; upstream's `authenticationConfigUpdater`.

use super::{AuthnError, flags::parse};
use crate::{fetch::Https, follow::Followed};
use kaji_auth::authn::{
    Agnostic, AnonymousConfig, AuthenticationConfiguration, JwtAuthenticator, Oidc, Swappable,
};
use kaji_meta::Clock;
use kaji_server::ReloadMetrics;
use std::{path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// What authenticators of issuers are made with.
pub(super) struct Issuers {
    /// What they may sign with.
    pub algorithms: Vec<String>,
    /// The server's audiences.
    pub audiences: Vec<String>,
    /// The server's own issuers, which nobody else may be.
    pub own: Vec<String>,
    pub clock: Arc<dyn Clock>,
    /// Those in force.
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

    /// Puts authenticators in force.
    pub fn set(&self, all: Vec<Arc<Oidc>>) {
        let agnostic = |oidc| Arc::new(Agnostic::new(oidc, self.audiences.clone())) as _;
        self.current.set(all.into_iter().map(agnostic).collect());
    }
}

/// Follows the file.
pub(super) struct Reload {
    file: Followed,
    issuers: Issuers,
    /// Who may be anonymous since the start.
    anonymous: Option<AnonymousConfig>,
    reloads: Arc<ReloadMetrics>,
}

/// Why a file changes nothing, and whether that may pass.
struct Unused(String, bool);

impl Reload {
    /// Of a file whose content is in force.
    pub fn new(
        (path, data): (PathBuf, Vec<u8>),
        configuration: &AuthenticationConfiguration,
        issuers: Issuers,
        reloads: Arc<ReloadMetrics>,
    ) -> Reload {
        reloads.configured(&data);
        let anonymous = configuration.anonymous.clone();
        Reload { file: Followed::new([(path, data)]), issuers, anonymous, reloads }
    }

    /// Until told to stop.
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
                        self.file.again();
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
