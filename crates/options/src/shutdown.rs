//! How a server ends, and how it has clients move to others before: upstream's flags.
//!
//! Source: `pkg/server/options/server_run_options.go` of apiserver.

use clap::{ArgAction, Args};
use kaji_server::{GoawayChance, ShutdownOptions};
use std::time::Duration;

/// See the module.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Shutdown")]
pub struct ShutdownFlags {
    /// How long the server serves on after the signal that ends it, while /readyz fails: load balancers turn away meanwhile (20s, 1m10s).
    /// Its loops end at once, and those of other servers take over.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::duration)]
    shutdown_delay_duration: Duration,
    /// Whether new requests are answered with 429 and Retry-After after that delay, until those in flight have ended; if not, the
    /// port is closed at once.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    shutdown_send_retry_after: bool,
    /// Within which time watches end, one after another, once no new requests are taken, so that their clients do not all come to
    /// another server at the same moment (10s); 0 ends them all at once, after the requests in flight.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::duration)]
    shutdown_watch_termination_grace_period: Duration,
    /// The share of requests, up to 0.02, after which their HTTP/2 connection ends (GOAWAY), so that a load balancer can move its
    /// client; not for a single server.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, allow_negative_numbers = true)]
    goaway_chance: f64,
}

impl ShutdownFlags {
    /// Of the server, and of its connections.
    ///
    /// # Errors
    /// For a share that upstream refuses.
    pub fn into_options(self) -> Result<(ShutdownOptions, GoawayChance), String> {
        let options = ShutdownOptions {
            delay: self.shutdown_delay_duration,
            send_retry_after: self.shutdown_send_retry_after,
            watch_termination: self.shutdown_watch_termination_grace_period,
        };
        Ok((options, GoawayChance::new(self.goaway_chance)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: ShutdownFlags,
    }

    fn parsed(args: &[&str]) -> Result<(ShutdownOptions, GoawayChance), String> {
        let cli = Cli::try_parse_from([&["kaji"], args].concat()).map_err(|e| e.to_string())?;
        cli.flags.into_options()
    }

    #[test]
    fn durations_switches_and_shares() {
        assert_eq!(parsed(&[]), Ok(Default::default()));
        let (options, goaway) = parsed(&[
            "--shutdown-delay-duration=1m10s",
            "--shutdown-send-retry-after",
            "--shutdown-watch-termination-grace-period=10s",
            "--goaway-chance=0.001",
        ])
        .unwrap();
        let (delay, watch_termination) = (Duration::from_secs(70), Duration::from_secs(10));
        assert_eq!(options, ShutdownOptions { delay, send_retry_after: true, watch_termination });
        assert_eq!(goaway, GoawayChance::new(0.001).unwrap());
        assert!(parsed(&["--shutdown-delay-duration=-1s"]).is_err());
        assert!(parsed(&["--shutdown-watch-termination-grace-period=-1s"]).is_err());
        for share in ["0.03", "-0.01", "NaN"] {
            let error = parsed(&["--goaway-chance", share]).unwrap_err();
            assert_eq!(error, "--goaway-chance can not be less than 0 or greater than 0.02");
        }
    }
}
