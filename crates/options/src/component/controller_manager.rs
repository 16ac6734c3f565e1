//! Flags of a controller manager that runs alone, by the names of kube-controller-manager.

use super::{
    ComponentFlags, ComponentOptions, Defaults,
    signing::{SignerFiles, SigningFlags},
};
use crate::{FeatureFlags, RangeFlags, autoscaler::AutoscalerFlags, control_loops::ControlLoopFlags};
use clap::{ArgAction, Args};
use kaji_controllers::{AutoscalerConfig, LoopConfig, NodeRanges, Selection};
use kaji_server::FlagValues;
use std::{path::PathBuf, time::Duration};

/// Upstream's component.
const DEFAULTS: Defaults = Defaults { name: "kube-controller-manager", port: 10257, limit: (20.0, 30) };

/// What `kaji controller-manager` takes.
#[derive(Args, Clone, Debug)]
pub struct ControllerManagerFlags {
    #[command(flatten)]
    component: ComponentFlags,
    #[command(flatten)]
    controllers: ControllerFlags,
    #[command(flatten)]
    signing: SigningFlags,
    #[command(flatten)]
    ranges: RangeFlags,
    #[command(flatten)]
    loops: ControlLoopFlags,
    #[command(flatten)]
    autoscaler: AutoscalerFlags,
    #[command(flatten)]
    features: FeatureFlags,
}

/// Which controllers run, as which accounts, and what they publish and sign tokens with.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Controllers")]
struct ControllerFlags {
    /// Which controllers run: names, * for all others, -name for all but one.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, default_value = "*")]
    controllers: Vec<String>,
    /// Whether each controller has its own service account of kube-system, and so the rights of the default roles; without it all have
    /// those of the kubeconfig.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    use_service_account_credentials: bool,
    /// The certificates that clients in pods trust, PEM. Default: the authority of the kubeconfig.
    #[arg(long, value_name = "FILE")]
    root_ca_file: Option<PathBuf>,
    /// The private key that signs the tokens in secrets of service accounts, PEM; without it they get none.
    #[arg(long, value_name = "FILE")]
    service_account_private_key_file: Option<PathBuf>,
    /// How long an auto-generated token secret of a service account may be unused before it is marked invalid, and again
    /// until it is deleted (default 8760h).
    #[arg(long, value_name = "DURATION", value_parser = kaji_server::parse_timeout)]
    legacy_service_account_token_clean_up_period: Option<Duration>,
    /// The ranges of service addresses, which nodes get none of.
    #[arg(long, value_delimiter = ',', value_name = "CIDRS")]
    service_cluster_ip_range: Vec<String>,
}

/// What a controller manager is started with.
#[derive(Clone, Debug)]
pub struct ControllerManagerOptions {
    /// What components share.
    pub component: ComponentOptions,
    /// Which controllers run.
    pub selection: Selection,
    /// Whether each has its own service account.
    pub service_accounts: bool,
    /// What clients in pods trust; the kubeconfig's authority without it.
    pub root_ca: Option<PathBuf>,
    /// What signs certificates.
    pub signing: SignerFiles,
    /// Signs tokens.
    pub token_key: Option<PathBuf>,
    /// How long unused tokens in secrets stay; a year without it.
    pub unused_token_period: Option<Duration>,
    /// What nodes get ranges of.
    pub node_ranges: Option<NodeRanges>,
    /// How replicas are scaled.
    pub autoscaler: AutoscalerConfig,
    /// Numbers and periods of the loops.
    pub loops: LoopConfig,
    /// The feature gates.
    pub features: kaji_meta::Features,
}

impl ControllerManagerFlags {
    /// Sets the flags of the process, for `/flagz`.
    pub fn set_flag_values(&mut self, values: FlagValues) {
        self.component.flag_values = values;
    }

    /// The options.
    ///
    /// # Errors
    /// For unknown controllers, and flags that contradict each other.
    pub fn into_options(self) -> Result<ControllerManagerOptions, String> {
        let controllers = self.controllers;
        Ok(ControllerManagerOptions {
            component: self.component.options(&DEFAULTS)?,
            selection: Selection::new(controllers.controllers)?,
            service_accounts: controllers.use_service_account_credentials,
            root_ca: controllers.root_ca_file,
            signing: self.signing.files()?,
            token_key: controllers.service_account_private_key_file,
            unused_token_period: controllers.legacy_service_account_token_clean_up_period,
            node_ranges: self.ranges.ranges(&controllers.service_cluster_ip_range)?,
            autoscaler: self.autoscaler.into_config()?,
            loops: self.loops.into_config()?,
            features: self.features.features()?,
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
        flags: ControllerManagerFlags,
    }

    fn parse(flags: &[&str]) -> Result<ControllerManagerOptions, String> {
        let flags = ["kaji"].into_iter().chain(flags.iter().copied());
        Flags::try_parse_from(flags).map_err(|e| e.to_string())?.flags.into_options()
    }

    /// The command line that kubeadm writes into the static pod.
    #[test]
    fn kubeadms_flags_are_understood() {
        let options = parse(&[
            "--allocate-node-cidrs=true",
            "--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--bind-address=127.0.0.1",
            "--client-ca-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-cidr=10.244.0.0/16",
            "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
            "--controllers=*,bootstrapsigner,tokencleaner",
            "--kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--leader-elect=true",
            "--root-ca-file=/etc/kubernetes/pki/ca.crt",
            "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
            "--service-cluster-ip-range=10.96.0.0/12",
            "--use-service-account-credentials=true",
        ])
        .unwrap();
        assert!(
            options.service_accounts && options.node_ranges.is_some() && options.signing.client.is_some()
        );
        assert_eq!(options.component.observation.unwrap().listen.to_string(), "127.0.0.1:10257");
        assert!(options.selection.includes("bootstrap-signer-controller"));
    }

    #[test]
    fn unknown_controllers_and_half_an_authority_are_refused() {
        for bad in ["--controllers=nobody", "--cluster-signing-cert-file=a", "--concurrent-job-syncs=0"] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }
}
