//! Reloads the authorization configuration file while the cluster runs.
//!
//! Invariants: a file that cannot be used changes nothing; kinds of authorizers other than webhooks are neither added nor
//! removed by a reload. Source: KEP-3221; upstream's `reloadableAuthorizerResolver`.

use super::{Current, Parts};
use kaji_auth::authz::config::Mode;
use kaji_meta::Clock;
use kaji_options::{WatchedFiles, authorization};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// Watches the file.
pub struct Reload {
    file: WatchedFiles,
    modes: Vec<Mode>,
    /// The kinds of authorizers at the start.
    kinds: Vec<&'static str>,
    parts: Parts,
    current: Arc<Current>,
    clock: Arc<dyn Clock>,
}

impl Reload {
    /// For a file; its content `data` is in use.
    pub(super) fn new(
        (path, data): (PathBuf, Vec<u8>),
        modes: Vec<Mode>,
        parts: Parts,
        current: Arc<Current>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        parts.decisions.reloads.configured(&data);
        let kinds = modes.iter().map(Mode::kind).filter(|kind| *kind != "Webhook").collect();
        Reload { file: WatchedFiles::new([(path, data)]), modes, kinds, parts, current, clock }
    }

    /// Runs until `stop` turns true.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        while let Some(found) = self.file.changed(&mut stop).await {
            let outcome = match found.map(|mut files| files.pop().unwrap_or_default()) {
                Ok(data) => self.apply(&data).await.map(|changed| changed.then_some(data)),
                Err(error) => Err(error.to_string()),
            };
            let (path, reloads) = (self.file.names(), &self.parts.decisions.reloads);
            match outcome {
                Ok(None) => {}
                Ok(Some(data)) => {
                    tracing::info!(path, "the authorization configuration is reloaded");
                    reloads.reloaded(true, self.clock.now());
                    reloads.configured(&data);
                }
                Err(error) => {
                    tracing::error!(path, error, "the authorization configuration is not reloaded");
                    reloads.reloaded(false, self.clock.now());
                }
            }
        }
    }

    /// Whether the configuration has changed.
    async fn apply(&mut self, data: &[u8]) -> Result<bool, String> {
        let modes = authorization::parse(data, &self.kinds)?;
        if modes == self.modes {
            return Ok(false);
        }
        self.modes.clone_from(&modes);
        for kind in ["Node", "RBAC", "ABAC"] {
            if !self.kinds.contains(&kind) && modes.iter().any(|m| m.kind() == kind) {
                return Err(format!(
                    "authorizer type {kind} is not allowed if it was not enabled at initial server startup"
                ));
            }
        }
        let authorizers = self.parts.build(&modes, &self.clock).await?;
        self.current.set(authorizers);
        Ok(true)
    }
}
