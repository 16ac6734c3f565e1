//! Puts the file that says who decides in force anew, while the cluster runs.
//!
//! Invariants: a file that cannot be used changes nothing; a kind of authorizer that was there at the start stays, and
//! one that was not does not come. Source: KEP-3221; upstream's `reloadableAuthorizerResolver`.

use super::{Current, Parts, flags};
use crate::follow::Followed;
use kaji_auth::authz::config::Mode;
use kaji_meta::Clock;
use std::{path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// Follows the file.
pub struct Reload {
    file: Followed,
    modes: Vec<Mode>,
    /// Kinds that were there at the start.
    kinds: Vec<&'static str>,
    parts: Parts,
    current: Arc<Current>,
    clock: Arc<dyn Clock>,
}

impl Reload {
    /// Of a file whose content is in force.
    pub(super) fn new(
        (path, data): (PathBuf, Vec<u8>),
        modes: Vec<Mode>,
        parts: Parts,
        current: Arc<Current>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        parts.decisions.reloads.configured(&data);
        let kinds = modes.iter().map(Mode::kind).filter(|kind| *kind != "Webhook").collect();
        Reload { file: Followed::new([(path, data)]), modes, kinds, parts, current, clock }
    }

    /// Until told to stop.
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

    /// Whether there was anything to change.
    async fn apply(&mut self, data: &[u8]) -> Result<bool, String> {
        let modes = flags::parse(data, &self.kinds)?;
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
