//! The cloud that nodes are of: flags of the loops that ask its provider, with the names and defaults of kube-controller-manager and
//! cloud-controller-manager, and the kubelet's.

use clap::{ArgAction, Args};
use kaji_controllers::CloudLoops;
use std::{str::FromStr, time::Duration};

/// `--cloud-provider`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CloudProviderName {
    /// Empty: machines without a cloud, which this program knows itself.
    #[default]
    None,
    /// `external`: a cloud-controller-manager initializes nodes, and gives services load balancers.
    External,
}

impl FromStr for CloudProviderName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(CloudProviderName::None),
            "external" => Ok(CloudProviderName::External),
            // Upstream's text.
            name => Err(format!(
                "cloud provider {name:?} was specified, but built-in cloud providers are disabled. Please set \
                 --cloud-provider=external and migrate to an external cloud provider"
            )),
        }
    }
}

/// Flags of the loops that ask a cloud provider.
#[derive(Args, Clone, Debug)]
pub(crate) struct CloudFlags {
    /// The provider of the cloud that machines are of: empty for machines without one; external leaves nodes and load balancers of
    /// services to a cloud-controller-manager: nodes of this process register as uninitialized, and take no pods before it has seen them.
    #[arg(long, value_name = "PROVIDER", default_value = "", hide_default_value = true)]
    cloud_provider: CloudProviderName,
    /// What a cloud provider tells clusters apart by.
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    cluster_name: String,
    /// Whether a cloud provider that has routes makes some to the pod CIDRs of nodes.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    configure_cloud_routes: bool,
    /// The time between two looks at the cloud's routes.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = super::duration)]
    route_reconciliation_period: Duration,
    /// The time between two questions about a node's addresses in the cloud.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = super::duration)]
    node_status_update_frequency: Duration,
}

impl CloudFlags {
    /// The configuration.
    ///
    /// # Errors
    /// For periods of no length.
    pub fn config(self) -> Result<CloudLoops, String> {
        let periods = [
            ("route-reconciliation-period", self.route_reconciliation_period),
            ("node-status-update-frequency", self.node_status_update_frequency),
        ];
        if let Some((flag, _)) = periods.iter().find(|(_, period)| period.is_zero()) {
            return Err(format!("{flag} must be greater than 0"));
        }
        Ok(CloudLoops {
            external: self.cloud_provider == CloudProviderName::External,
            cluster_name: self.cluster_name,
            configure_routes: self.configure_cloud_routes,
            route_period: self.route_reconciliation_period,
            node_status_period: self.node_status_update_frequency,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Flags {
        #[command(flatten)]
        cloud: CloudFlags,
    }

    fn parse(flags: &[&str]) -> Result<CloudLoops, String> {
        let flags = ["kaji"].into_iter().chain(flags.iter().copied());
        Flags::try_parse_from(flags).map_err(|e| e.to_string())?.cloud.config()
    }

    #[test]
    fn defaults_are_those_of_the_loops() {
        assert_eq!(parse(&[]).unwrap(), CloudLoops::default());
        assert_eq!(parse(&["--cloud-provider="]).unwrap(), CloudLoops::default());
    }

    #[test]
    fn only_external_providers_are_known() {
        assert!(parse(&["--cloud-provider=external"]).unwrap().external);
        let error = parse(&["--cloud-provider=aws"]).unwrap_err();
        assert!(error.contains(r#"cloud provider "aws" was specified, but built-in"#), "{error}");
        assert!(parse(&["--route-reconciliation-period=0s"]).is_err());
        let parsed = parse(&["--configure-cloud-routes=false", "--cluster-name=x"]).unwrap();
        assert!(!parsed.configure_routes && parsed.cluster_name == "x");
    }
}
