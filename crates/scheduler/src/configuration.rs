//! What the scheduler is started with: profiles, backoffs, and how many nodes are enough.
//!
//! Source: Kubernetes, "Scheduler Configuration" (`kubescheduler.config.k8s.io/v1`).

use crate::{
    framework::{Profile, ProfileConfig, profile::Weighted},
    plugins::PLUGINS,
    scheduling_queue::Backoffs,
};
use serde_json::Value;

/// A configuration.
pub struct Configuration {
    /// One for each scheduler name.
    pub profiles: Vec<Profile>,
    /// Of pods after failed attempts.
    pub backoffs: Backoffs,
}

impl Configuration {
    /// Upstream's default: one profile with all plugins.
    ///
    /// # Errors
    /// None that a test would not have found: a plugin that refuses to have no arguments.
    pub fn new() -> Result<Self, String> {
        let config = ProfileConfig {
            scheduler_name: "default-scheduler".to_owned(),
            percentage_of_nodes_to_score: None,
        };
        let plugins = PLUGINS
            .iter()
            .map(|entry| (entry.build)(&Value::Null).map(|points| Weighted { points, weight: entry.weight }));
        let profile = Profile::new(config, plugins.collect::<Result<_, _>>()?);
        Ok(Configuration { profiles: vec![profile], backoffs: Backoffs::default() })
    }
}
