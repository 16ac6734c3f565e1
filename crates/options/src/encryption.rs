//! Flags of encryption at rest.

use clap::Args;
use std::path::PathBuf;

/// Upstream's two flags.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Storage")]
pub struct EncryptionFlags {
    /// An EncryptionConfiguration file (apiserver.config.k8s.io/v1): which resources are encrypted at rest, and how.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Whether that file is reloaded when it changes.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    encryption_provider_config_automatic_reload: bool,
}

impl EncryptionFlags {
    /// The file that they name.
    ///
    /// # Errors
    /// When there is no file to reload.
    pub fn file(self) -> Result<Option<EncryptionFile>, String> {
        EncryptionFile::from_flags(
            self.encryption_provider_config,
            self.encryption_provider_config_automatic_reload,
        )
    }
}

/// The file that says which values are encrypted, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionFile {
    /// An `EncryptionConfiguration` (`--encryption-provider-config`).
    pub path: PathBuf,
    /// Whether it is followed (`--encryption-provider-config-automatic-reload`).
    pub follow: bool,
}

impl EncryptionFile {
    /// As upstream's two flags have it.
    ///
    /// # Errors
    /// When there is no file to follow.
    pub fn from_flags(path: Option<PathBuf>, follow: bool) -> Result<Option<EncryptionFile>, String> {
        match path {
            None if follow => Err(
                "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
                    .into(),
            ),
            path => Ok(path.map(|path| EncryptionFile { path, follow })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_flags() {
        let file = |follow| Some(EncryptionFile { path: "f".into(), follow });
        assert_eq!(EncryptionFile::from_flags(None, false), Ok(None));
        assert_eq!(EncryptionFile::from_flags(Some("f".into()), false), Ok(file(false)));
        assert_eq!(EncryptionFile::from_flags(Some("f".into()), true), Ok(file(true)));
        assert_eq!(
            EncryptionFile::from_flags(None, true).unwrap_err(),
            "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"
        );
    }
}
