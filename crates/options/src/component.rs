//! Flags that the components of the control plane share when they run alone: how they reach the API server, which of several
//! processes is the leader, and how they are observed. Upstream's names and defaults.
//!
//! Invariant: durations of an election that contradict each other are refused, by upstream's rules.

mod controller_manager;
mod scheduler;
mod signing;

pub use controller_manager::{ControllerManagerFlags, ControllerManagerOptions};
pub use scheduler::{SchedulerFlags, SchedulerOptions};
pub use signing::{SignerFiles, SigningFiles};

use clap::{ArgAction, Args};
use kaji_runtime::LeaseTiming;
use kaji_scheduler::ProcessConfiguration;
use kaji_server::{FlagValues, TlsOptions, TlsSuite, TlsVersion};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// The connection to the API server.
#[derive(Args, Clone, Debug)]
struct ConnectionFlags {
    /// The kubeconfig file of the API server and this component's credentials. Default: $KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The API server's URL, in place of the kubeconfig's.
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Requests per second of each client to the API server; negative for no limit.
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    kube_api_qps: Option<f64>,
    /// Requests that each client may send at once after a pause.
    #[arg(long, value_name = "N")]
    kube_api_burst: Option<u32>,
}

/// The election of a leader.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Leader election")]
struct ElectionFlags {
    /// Whether this process takes a lease before its loops run, so that one of several processes runs them (default true).
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    leader_elect: Option<bool>,
    /// How long the lease lasts after its last renewal (default 15s).
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    leader_elect_lease_duration: Option<Duration>,
    /// For how long the leader tries to renew the lease before it stops leading (default 10s).
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    leader_elect_renew_deadline: Option<Duration>,
    /// The time between two attempts to take or renew the lease (default 2s).
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    leader_elect_retry_period: Option<Duration>,
    /// The resource that is the lock: leases.
    #[arg(long, value_name = "RESOURCE", default_value = "leases")]
    leader_elect_resource_lock: String,
    /// The lease's name. Default: the component's.
    #[arg(long, value_name = "NAME")]
    leader_elect_resource_name: Option<String>,
    /// The lease's namespace (default kube-system).
    #[arg(long, value_name = "NAMESPACE")]
    leader_elect_resource_namespace: Option<String>,
}

/// The server of health and metrics.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Health and metrics")]
struct ServingFlags {
    /// The address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    bind_address: IpAddr,
    /// The port of HTTPS; 0 for none.
    #[arg(long, value_name = "PORT")]
    secure_port: Option<u16>,
    /// The serving certificate, PEM, followed by intermediate certificates; reloaded when it changes. Default: one that this process
    /// signs itself.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// The minimum version of TLS (default VersionTLS12): VersionTLS12, VersionTLS13.
    #[arg(long, value_name = "VERSION")]
    tls_min_version: Option<TlsVersion>,
    /// The cipher suites of TLS 1.2, by Go's names.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tls_cipher_suites: Vec<TlsSuite>,
    /// The authorities of client certificates, PEM, beside those that the cluster publishes.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Whether the cluster's ConfigMap extension-apiserver-authentication is not read for the authorities of client certificates.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    authentication_skip_lookup: bool,
    /// The kubeconfig file of the API server that reviews tokens. Default: --kubeconfig.
    #[arg(long, value_name = "FILE")]
    authentication_kubeconfig: Option<PathBuf>,
    /// The kubeconfig file of the API server that reviews access. Default: --kubeconfig.
    #[arg(long, value_name = "FILE")]
    authorization_kubeconfig: Option<PathBuf>,
    /// Paths that need no authorization.
    #[arg(long, value_name = "PATHS", value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    authorization_always_allow_paths: Vec<String>,
}

/// What the components share.
#[derive(Args, Clone, Debug)]
pub(crate) struct ComponentFlags {
    #[command(flatten)]
    connection: ConnectionFlags,
    #[command(flatten)]
    election: ElectionFlags,
    #[command(flatten)]
    serving: ServingFlags,
    /// All flags of the process, for `/flagz`.
    #[arg(skip)]
    flag_values: FlagValues,
}

/// How the API server is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionOptions {
    /// The kubeconfig; the user's without it.
    pub kubeconfig: Option<PathBuf>,
    /// The URL in place of the kubeconfig's.
    pub master: Option<String>,
    /// Requests per second of each client, and how many at once; `None` for no limit.
    pub limit: Option<(f64, u32)>,
}

/// The lease of a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionOptions {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// Its durations.
    pub timing: LeaseTiming,
}

/// The server of health and metrics.
#[derive(Clone, Debug)]
pub struct ObservationOptions {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Files of certificate and key; without them a certificate is made.
    pub files: Option<(PathBuf, PathBuf)>,
    /// Versions and cipher suites.
    pub tls: TlsOptions,
    /// Authorities of clients.
    pub client_ca_file: Option<PathBuf>,
    /// Whether the cluster is asked for authorities of clients.
    pub lookup: bool,
    /// Of the API server that reviews tokens, and of that which reviews access; those of the connection without them.
    pub reviews: (Option<PathBuf>, Option<PathBuf>),
    /// Paths that need no authorization.
    pub always_allowed: Vec<String>,
    /// The flags of the process, as `/flagz` shows them.
    pub flag_values: FlagValues,
}

/// What the components share.
#[derive(Clone, Debug)]
pub struct ComponentOptions {
    /// How the API server is reached.
    pub connection: ConnectionOptions,
    /// The lease, unless the process leads without one.
    pub election: Option<ElectionOptions>,
    /// Health and metrics, unless they are served nowhere.
    pub observation: Option<ObservationOptions>,
}

/// What differs between components.
pub(crate) struct Defaults {
    /// The lease.
    pub name: &'static str,
    /// Of HTTPS.
    pub port: u16,
    /// Requests per second, and at once.
    pub limit: (f64, u32),
}

impl ElectionFlags {
    /// Source: `LeaderElectionConfiguration`'s validation in `k8s.io/component-base`.
    fn options(self, name: &str) -> Result<Option<ElectionOptions>, String> {
        if self.leader_elect == Some(false) {
            return Ok(None);
        }
        let usual = LeaseTiming::default();
        let timing = LeaseTiming {
            duration: self.leader_elect_lease_duration.unwrap_or(usual.duration),
            renew_deadline: self.leader_elect_renew_deadline.unwrap_or(usual.renew_deadline),
            retry_period: self.leader_elect_retry_period.unwrap_or(usual.retry_period),
        };
        let (duration, deadline, retry) = (timing.duration, timing.renew_deadline, timing.retry_period);
        let positive = [("lease-duration", duration), ("renew-deadline", deadline), ("retry-period", retry)];
        if let Some((flag, _)) = positive.iter().find(|(_, value)| value.is_zero()) {
            return Err(format!("--leader-elect-{flag} must be greater than zero"));
        }
        if duration.subsec_nanos() != 0 {
            return Err("--leader-elect-lease-duration must be whole seconds: a Lease has no others".into());
        }
        if duration <= deadline {
            return Err(
                "--leader-elect-lease-duration must be greater than --leader-elect-renew-deadline".into()
            );
        }
        // client-go's jitter of the retry period.
        if deadline <= retry.mul_f64(1.2) {
            return Err(
                "--leader-elect-renew-deadline must be greater than --leader-elect-retry-period times 1.2"
                    .into(),
            );
        }
        if self.leader_elect_resource_lock != "leases" {
            return Err(format!(
                "--leader-elect-resource-lock must be leases, not {:?}",
                self.leader_elect_resource_lock
            ));
        }
        let name = self.leader_elect_resource_name.unwrap_or_else(|| name.to_owned());
        let namespace = self.leader_elect_resource_namespace.unwrap_or_else(|| "kube-system".to_owned());
        Ok(Some(ElectionOptions { namespace, name, timing }))
    }
}

impl ServingFlags {
    fn options(self, port: u16, flag_values: FlagValues) -> Result<Option<ObservationOptions>, String> {
        let port = self.secure_port.unwrap_or(port);
        if port == 0 {
            return Ok(None);
        }
        let tls = TlsOptions {
            oldest: self.tls_min_version.unwrap_or_default(),
            suites: self.tls_cipher_suites,
            curves: vec![],
        };
        tls.validate()?;
        Ok(Some(ObservationOptions {
            listen: SocketAddr::new(self.bind_address, port),
            files: self.tls_cert_file.zip(self.tls_private_key_file),
            tls,
            client_ca_file: self.client_ca_file,
            lookup: !self.authentication_skip_lookup,
            reviews: (self.authentication_kubeconfig, self.authorization_kubeconfig),
            always_allowed: self.authorization_always_allow_paths,
            flag_values,
        }))
    }
}

impl ComponentFlags {
    /// With what a scheduler configuration says of the process: of the election, flags count more, of the connection, the file.
    fn with_file(mut self, file: &ProcessConfiguration) -> ComponentFlags {
        let (flags, election) = (&mut self.election, file.leader_election.clone());
        flags.leader_elect = flags.leader_elect.or(election.leader_elect);
        flags.leader_elect_lease_duration = flags.leader_elect_lease_duration.or(election.lease_duration);
        flags.leader_elect_renew_deadline = flags.leader_elect_renew_deadline.or(election.renew_deadline);
        flags.leader_elect_retry_period = flags.leader_elect_retry_period.or(election.retry_period);
        let name = flags.leader_elect_resource_name.take();
        flags.leader_elect_resource_name = name.or(election.resource_name);
        let namespace = flags.leader_elect_resource_namespace.take();
        flags.leader_elect_resource_namespace = namespace.or(election.resource_namespace);
        let (flags, connection) = (&mut self.connection, file.client_connection.clone());
        let kubeconfig = flags.kubeconfig.take();
        flags.kubeconfig = connection.kubeconfig.or(kubeconfig);
        flags.kube_api_qps = connection.qps.or(flags.kube_api_qps);
        flags.kube_api_burst = connection.burst.or(flags.kube_api_burst);
        self
    }

    /// The flags of the connection that a configuration file overrules.
    fn overruled(&self, file: &ProcessConfiguration) -> Vec<&'static str> {
        let (flags, file) = (&self.connection, &file.client_connection);
        let both = [
            ("--kubeconfig", flags.kubeconfig.is_some() && file.kubeconfig.is_some()),
            ("--kube-api-qps", flags.kube_api_qps.is_some() && file.qps.is_some()),
            ("--kube-api-burst", flags.kube_api_burst.is_some() && file.burst.is_some()),
        ];
        both.into_iter().filter(|(_, both)| *both).map(|(flag, _)| flag).collect()
    }

    /// # Errors
    /// For flags that contradict each other.
    fn options(self, defaults: &Defaults) -> Result<ComponentOptions, String> {
        let ConnectionFlags { kubeconfig, master, kube_api_qps, kube_api_burst } = self.connection;
        let (qps, burst) =
            (kube_api_qps.unwrap_or(defaults.limit.0), kube_api_burst.unwrap_or(defaults.limit.1));
        if !qps.is_finite() {
            return Err(format!("--kube-api-qps must be a number, but got {qps}"));
        }
        // client-go's: 0 stands for its defaults.
        let limit = match qps {
            qps if qps < 0.0 => None,
            qps if qps > 0.0 => Some((qps, burst.max(1))),
            _ => Some((5.0, burst.max(1))),
        };
        Ok(ComponentOptions {
            connection: ConnectionOptions { kubeconfig, master, limit },
            election: self.election.options(defaults.name)?,
            observation: self.serving.options(defaults.port, self.flag_values)?,
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
        flags: ComponentFlags,
    }

    fn parse(flags: &[&str]) -> Result<ComponentOptions, String> {
        let flags = ["kaji"].into_iter().chain(flags.iter().copied());
        let flags = Flags::try_parse_from(flags).map_err(|e| e.to_string())?.flags;
        flags.options(&Defaults { name: "kube-component", port: 10257, limit: (20.0, 30) })
    }

    #[test]
    fn defaults_are_upstreams() {
        let options = parse(&[]).unwrap();
        let election = options.election.unwrap();
        assert_eq!((&*election.namespace, &*election.name), ("kube-system", "kube-component"));
        assert_eq!(election.timing, LeaseTiming::default());
        let observation = options.observation.unwrap();
        assert_eq!(observation.listen.to_string(), "0.0.0.0:10257");
        assert_eq!(observation.always_allowed, ["/healthz", "/readyz", "/livez"]);
        assert!(observation.lookup);
        assert_eq!(options.connection.limit, Some((20.0, 30)));
    }

    #[test]
    fn limits_and_elections_can_be_left_out() {
        let options = parse(&["--leader-elect=false", "--secure-port=0", "--kube-api-qps=-1"]).unwrap();
        assert!(options.election.is_none() && options.observation.is_none());
        assert_eq!(options.connection.limit, None);
        assert_eq!(
            parse(&["--kube-api-qps=0", "--kube-api-burst=9"]).unwrap().connection.limit,
            Some((5.0, 9))
        );
    }

    #[test]
    fn elections_that_cannot_work_are_refused() {
        for bad in [
            &["--leader-elect-lease-duration=10s"][..],
            &["--leader-elect-renew-deadline=2s"],
            &["--leader-elect-retry-period=0"],
            &["--leader-elect-lease-duration=15500ms"],
            &["--leader-elect-resource-lock=endpoints"],
            &["--tls-cert-file=a"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn of_the_election_flags_count_more_than_a_file_and_of_the_connection_the_file() {
        let flags = ["kaji", "--leader-elect-lease-duration=15s", "--kubeconfig=/flag", "--kube-api-burst=7"];
        let flags = Flags::try_parse_from(flags).unwrap().flags;
        let mut file = ProcessConfiguration::default();
        file.leader_election.lease_duration = Some(Duration::from_secs(60));
        file.leader_election.renew_deadline = Some(Duration::from_secs(12));
        file.leader_election.resource_namespace = Some("n".into());
        file.client_connection.kubeconfig = Some("/file".into());
        file.client_connection.qps = Some(-1.0);
        assert_eq!(flags.overruled(&file), ["--kubeconfig"]);
        let defaults = Defaults { name: "kube-component", port: 10257, limit: (20.0, 30) };
        let options = flags.clone().with_file(&file).options(&defaults).unwrap();
        let election = options.election.unwrap();
        let timing = election.timing;
        assert_eq!((timing.duration.as_secs(), timing.renew_deadline.as_secs()), (15, 12));
        assert_eq!((&*election.namespace, &*election.name), ("n", "kube-component"));
        assert_eq!(options.connection.kubeconfig.unwrap(), PathBuf::from("/file"));
        assert_eq!(options.connection.limit, None);
        file.client_connection.qps = Some(20.0);
        let options = flags.with_file(&file).options(&defaults).unwrap();
        assert_eq!(options.connection.limit, Some((20.0, 7)));
    }
}
