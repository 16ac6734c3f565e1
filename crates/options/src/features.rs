//! Feature gates, and API versions that are off by default.

use clap::Args;
use kaji_meta::{Features, ServedVersions};

/// What is on that is off by default.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Features")]
pub struct FeatureFlags {
    /// Feature gates, NAME=BOOL. GenericWorkload can be switched (off by default); Kubernetes' others may be set to what they are
    /// anyway.
    #[arg(long, value_delimiter = ',', value_name = "GATES")]
    feature_gates: Vec<String>,
}

impl FeatureFlags {
    /// The gates.
    ///
    /// # Errors
    /// For unknown gates, and values that they cannot have.
    pub fn features(&self) -> Result<Features, String> {
        Features::parse(&self.feature_gates).map_err(|error| format!("--feature-gates: {error}"))
    }
}

/// What an API server serves that is off by default.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Features")]
pub struct RuntimeFlags {
    /// API versions to serve that are off by default, GROUP/VERSION=BOOL or api/STAGE=BOOL: resource.k8s.io/v1beta1 and
    /// resource.k8s.io/v1beta2; scheduling.k8s.io/v1beta1 and scheduling.k8s.io/v1alpha3 while the feature gate GenericWorkload is on.
    #[arg(long, value_delimiter = ',', value_name = "VERSIONS")]
    runtime_config: Vec<String>,
}

impl RuntimeFlags {
    /// The versions.
    ///
    /// # Errors
    /// For versions that this server has not, or has always.
    pub fn served(&self) -> Result<ServedVersions, String> {
        ServedVersions::parse(&self.runtime_config).map_err(|error| format!("--runtime-config: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Flags {
        #[command(flatten)]
        features: FeatureFlags,
        #[command(flatten)]
        runtime: RuntimeFlags,
    }

    #[test]
    fn gates_and_versions_are_lists() {
        let flags = Flags::parse_from([
            "kaji",
            "--feature-gates=GenericWorkload=true,AllAlpha=false",
            "--runtime-config=scheduling.k8s.io/v1beta1=true,apps/v1=true",
        ]);
        assert!(flags.features.features().unwrap().generic_workload);
        assert!(flags.runtime.served().unwrap().includes("scheduling.k8s.io", "v1beta1"));
        let bad = Flags::parse_from(["kaji", "--feature-gates=X=true", "--runtime-config=apps/v1=false"]);
        assert!(bad.features.features().is_err() && bad.runtime.served().is_err());
    }
}
