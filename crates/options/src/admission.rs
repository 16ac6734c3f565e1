//! Flags of admission plugins.

use clap::Args;
use std::path::PathBuf;

/// Which admission plugins run.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Admission")]
pub struct AdmissionFlags {
    /// Admission plugins to enable in addition to those that are enabled by default.
    #[arg(long, value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins to disable although they are enabled by default.
    #[arg(long, value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// A file with an AdmissionConfiguration.
    #[arg(long)]
    admission_control_config_file: Option<PathBuf>,
}

impl From<AdmissionFlags> for kaji_admission::Flags {
    fn from(flags: AdmissionFlags) -> Self {
        kaji_admission::Flags {
            enable: flags.enable_admission_plugins,
            disable: flags.disable_admission_plugins,
            config_file: flags.admission_control_config_file,
        }
    }
}
