//! Flags of admission plugins.

use clap::Args;
use kaji_admission::DefaultTolerations;
use std::path::PathBuf;

/// Which admission plugins run.
#[derive(Args, Clone, Debug)]
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
    /// The tolerationSeconds of the toleration for not-ready:NoExecute that pods without one get.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, allow_negative_numbers = true)]
    default_not_ready_toleration_seconds: i64,
    /// The tolerationSeconds of the toleration for unreachable:NoExecute that pods without one get.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, allow_negative_numbers = true)]
    default_unreachable_toleration_seconds: i64,
}

impl From<AdmissionFlags> for kaji_admission::Flags {
    fn from(flags: AdmissionFlags) -> Self {
        kaji_admission::Flags {
            enable: flags.enable_admission_plugins,
            disable: flags.disable_admission_plugins,
            config_file: flags.admission_control_config_file,
            tolerations: DefaultTolerations {
                not_ready: flags.default_not_ready_toleration_seconds,
                unreachable: flags.default_unreachable_toleration_seconds,
            },
        }
    }
}
