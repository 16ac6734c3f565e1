//! Flags of a scheduler that runs alone, by the names of kube-scheduler.
//!
//! Invariant: a configuration file that is not understood as a whole keeps the scheduler from starting.

use super::{ComponentFlags, ComponentOptions, Defaults};
use crate::FeatureFlags;
use clap::Args;
use kaji_meta::Features;
use kaji_server::FlagValues;
use std::path::PathBuf;

/// Upstream's component.
const DEFAULTS: Defaults = Defaults { name: "kube-scheduler", port: 10259, limit: (50.0, 100) };

/// What `kaji scheduler` takes.
#[derive(Args, Clone, Debug)]
pub struct SchedulerFlags {
    /// A KubeSchedulerConfiguration file (kubescheduler.config.k8s.io/v1): profiles, their plugins and arguments, extenders, backoffs,
    /// election of the leader (flags count more) and the connection to the API server (the file counts more).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    component: ComponentFlags,
    #[command(flatten)]
    features: FeatureFlags,
}

/// What a scheduler is started with.
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// What components share.
    pub component: ComponentOptions,
    /// A `KubeSchedulerConfiguration`, as text; upstream's default without one.
    pub configuration: Option<String>,
    /// The feature gates.
    pub features: Features,
    /// Flags and fields of the configuration that have no effect.
    pub warnings: Vec<String>,
}

impl SchedulerFlags {
    /// Sets the flags of the process, for `/flagz`.
    pub fn set_flag_values(&mut self, values: FlagValues) {
        self.component.flag_values = values;
    }

    /// The options.
    ///
    /// # Errors
    /// For flags that contradict each other, and a configuration file that is not understood.
    pub fn into_options(self) -> Result<SchedulerOptions, String> {
        let features = self.features.features()?;
        let read = |file| crate::server_flags::scheduler_configuration("--config", file, features);
        let Some((text, mut process)) = self.config.as_deref().map(read).transpose()? else {
            let component = self.component.options(&DEFAULTS)?;
            return Ok(SchedulerOptions { component, configuration: None, features, warnings: vec![] });
        };
        let mut warnings = std::mem::take(&mut process.warnings);
        for flag in self.component.overruled(&process) {
            warnings.push(format!("{flag} has no effect: the configuration file's clientConnection counts"));
        }
        let component = self.component.with_file(&process).options(&DEFAULTS)?;
        Ok(SchedulerOptions { component, configuration: Some(text), features, warnings })
    }
}
