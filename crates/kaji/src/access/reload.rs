//! Follows the file that says who decides, while the cluster runs.
//!
//! Invariants: a file that cannot be used changes nothing; a kind of authorizer that was there at the start stays, and
//! one that was not does not come. Source: KEP-3221; upstream's `reloadableAuthorizerResolver`.

use super::{Current, Parts, flags};
use kaji_auth::authz::config::Mode;
use kaji_meta::Clock;
use std::{
    fs::Metadata,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::sync::watch;

/// How often somebody asks whether the file is another than before.
const GLANCE: Duration = Duration::from_secs(1);
/// Glances after which it is read even if it seems to be the same. Together: upstream's minute.
const READ: u32 = 60;

/// What tells files apart without reading them.
#[derive(PartialEq, Eq)]
struct Looks(u64, Option<SystemTime>, u64);

fn looks(metadata: &Metadata) -> Looks {
    use std::os::unix::fs::MetadataExt;
    Looks(metadata.ino(), metadata.modified().ok(), metadata.len())
}

/// Follows the file.
pub struct Reload {
    path: PathBuf,
    data: Vec<u8>,
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
        parts.decisions.configured(&data);
        let kinds = modes.iter().map(Mode::kind).filter(|kind| *kind != "Webhook").collect();
        Reload { path, data, modes, kinds, parts, current, clock }
    }

    /// Until told to stop.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(GLANCE);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut seen, mut glances) = (None, 0);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            let path = self.path.clone();
            // On a thread that may wait for the file system.
            let now =
                tokio::task::spawn_blocking(move || std::fs::metadata(path).ok().as_ref().map(looks)).await;
            let now = now.ok().flatten();
            glances = (glances + 1) % READ;
            if now != seen || glances == 0 {
                seen = now;
                self.check().await;
            }
        }
    }

    /// Looks at the file, and puts what it says in force if that is new.
    pub async fn check(&mut self) {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
        let outcome = match read.map_err(std::io::Error::other).flatten() {
            Ok(data) if data == self.data => return,
            Ok(data) => {
                self.data = data;
                self.apply().await
            }
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(path = %self.path.display(), "the authorization configuration is reloaded");
                self.parts.decisions.reloaded(true, self.clock.now());
                self.parts.decisions.configured(&self.data);
            }
            Err(error) => {
                tracing::error!(path = %self.path.display(), error, "the authorization configuration is not reloaded");
                self.parts.decisions.reloaded(false, self.clock.now());
            }
        }
    }

    /// Whether there was anything to change.
    async fn apply(&mut self) -> Result<bool, String> {
        let modes = flags::parse(&self.data, &self.kinds)?;
        if modes == self.modes {
            return Ok(false);
        }
        self.modes.clone_from(&modes);
        for kind in ["Node", "RBAC"] {
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
