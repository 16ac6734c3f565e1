//! The flag of tracing, with upstream's name and errors.

use clap::Args;
use std::{io::ErrorKind, path::PathBuf};

/// Upstream's flag about tracing.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Tracing")]
pub struct TraceFlags {
    /// A TracingConfiguration file (apiserver.config.k8s.io/v1): the OpenTelemetry collector that traces of requests are
    /// exported to, and how many of a million requests are traced. None are without it.
    #[arg(long, value_name = "FILE")]
    tracing_config_file: Option<PathBuf>,
}

impl TraceFlags {
    /// The configuration in the file.
    ///
    /// # Errors
    /// When there is no such file, or it is not a configuration.
    pub fn config(&self) -> Result<Option<kaji_traces::Config>, String> {
        let Some(file) = &self.tracing_config_file else { return Ok(None) };
        let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("tracing-config-file {} does not exist", file.display()),
            _ => format!(
                "failed to read tracing config: unable to read tracing configuration from {:?}: {error}",
                file.display().to_string()
            ),
        })?;
        kaji_traces::Config::parse(&text).map(Some).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_traces::{Config, Endpoint};

    #[test]
    fn the_file_says_where_traces_go() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("traces.yaml");
        let flags = TraceFlags { tracing_config_file: Some(file.clone()) };
        let shown = |error: String| error.replace(dir.path().to_str().unwrap(), "DIR");
        assert_eq!(TraceFlags::default().config(), Ok(None));
        assert_eq!(shown(flags.config().unwrap_err()), "tracing-config-file DIR/traces.yaml does not exist");
        let directory = TraceFlags { tracing_config_file: Some(dir.path().to_owned()) };
        let unreadable = "failed to read tracing config: unable to read tracing configuration from \"DIR\": Is a directory (os error 21)";
        assert_eq!(shown(directory.config().unwrap_err()), unreadable);
        std::fs::write(&file, "endpoint: otel:4317\nsamplingRatePerMillion: 100").unwrap();
        let endpoint = Endpoint::Tcp { host: "otel".into(), port: 4317 };
        assert_eq!(flags.config(), Ok(Some(Config { endpoint, per_million: 100 })));
        std::fs::write(&file, [0xff, 0xfe]).unwrap();
        assert!(flags.config().unwrap_err().contains("UTF-8"));
        std::fs::write(&file, "samplingRatePerMillion: -1").unwrap();
        assert_eq!(
            flags.config().unwrap_err(),
            "failed to validate tracing configuration: samplingRatePerMillion: Invalid value: -1: sampling rate must be positive"
        );
    }
}
