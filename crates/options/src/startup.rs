//! The start of a server: upstream's flags about how long it may take, and what is said of its health meanwhile.
//!
//! Source: `pkg/server/options/server_run_options.go` of apiserver.

use clap::Args;
use std::time::Duration;

/// See the module.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Start")]
pub struct StartupFlags {
    /// For how long after the start /livez passes the checks of the start itself, so that a slow start is not ended by a liveness
    /// probe (20s, 1m10s). The port is open from the moment that all objects are read.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::duration)]
    livez_grace_period: Duration,
    /// How long the objects may take to be read before the server is ready; then the start fails, for this server answers from complete
    /// caches only (upstream answers 429 for what is not read yet). Default: as long as it takes.
    #[arg(long, value_name = "DURATION", value_parser = crate::duration)]
    storage_initialization_timeout: Option<Duration>,
}

/// How a server starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartupOptions {
    /// For how long `/livez` passes the checks of the start.
    pub livez_grace: Duration,
    /// How long the caches may take.
    pub storage_initialization: Option<Duration>,
}

impl From<StartupFlags> for StartupOptions {
    fn from(flags: StartupFlags) -> Self {
        StartupOptions {
            livez_grace: flags.livez_grace_period,
            storage_initialization: flags.storage_initialization_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: StartupFlags,
    }

    fn parsed(args: &[&str]) -> Result<StartupOptions, String> {
        let cli = Cli::try_parse_from([&["kaji"], args].concat()).map_err(|e| e.to_string())?;
        Ok(cli.flags.into())
    }

    #[test]
    fn reads_durations() {
        assert_eq!(parsed(&[]), Ok(StartupOptions::default()));
        let options =
            parsed(&["--livez-grace-period=1m10s", "--storage-initialization-timeout=30s"]).unwrap();
        assert_eq!(options.livez_grace, Duration::from_secs(70));
        assert_eq!(options.storage_initialization, Some(Duration::from_secs(30)));
        for flag in ["--livez-grace-period=-1s", "--storage-initialization-timeout=-1s"] {
            assert!(parsed(&[flag]).unwrap_err().contains("must not be negative"), "{flag}");
        }
    }
}
