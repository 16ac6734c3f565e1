//! Where the configuration of registries comes from: fixed, or a file that every pull reads anew.
//!
//! Invariant: a file that cannot be used fails the pull with an error that names it; no pull goes to a registry past its mirrors
//! because the file is wrong.

use super::config::RegistryConfig;
use crate::error::ImageError;
use crate::pull::blocking;
use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a configuration: thousands of registries.
const MAX_FILE: u64 = 1 << 20;

/// Where the configuration of registries comes from.
#[derive(Clone, Debug)]
pub enum RegistrySource {
    /// It does not change.
    Fixed(RegistryConfig),
    /// A file, which each pull reads.
    File(PathBuf),
}

impl Default for RegistrySource {
    fn default() -> RegistrySource {
        RegistrySource::Fixed(RegistryConfig::default())
    }
}

impl RegistrySource {
    /// A file, if one is named; it is read once to see whether it can be used.
    ///
    /// # Errors
    /// Those of [`RegistryConfig::read`].
    pub fn of(file: Option<&Path>) -> Result<RegistrySource, ImageError> {
        let Some(path) = file else { return Ok(RegistrySource::default()) };
        RegistryConfig::read(path)?;
        Ok(RegistrySource::File(path.to_owned()))
    }

    /// The configuration at present.
    pub(super) async fn present(&self) -> Result<Cow<'_, RegistryConfig>, ImageError> {
        match self {
            RegistrySource::Fixed(config) => Ok(Cow::Borrowed(config)),
            RegistrySource::File(path) => {
                let path = path.clone();
                Ok(Cow::Owned(blocking(move || RegistryConfig::read(&path)).await?))
            }
        }
    }
}

impl RegistryConfig {
    /// Reads a file in the shape of k3s' `registries.yaml`.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] with the file's name: it cannot be read, has other fields, or a mirror that is no URL.
    pub fn read(path: &Path) -> Result<RegistryConfig, ImageError> {
        let wrong = |error: &dyn std::fmt::Display| {
            ImageError::Invalid(format!("registries: {}: {error}", path.display()))
        };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(|error| wrong(&error))?;
        file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| wrong(&error))?;
        if text.len() as u64 > MAX_FILE {
            return Err(wrong(&format_args!("it has more than {MAX_FILE} bytes")));
        }
        let config = RegistryConfig::parse(&text).map_err(|error| wrong(&error))?;
        config.check_mirrors().map_err(|error| wrong(&error))?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &[u8]) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registries.yaml");
        std::fs::write(&path, text).unwrap();
        match RegistrySource::of(Some(&path)) {
            Ok(_) => "ok".into(),
            Err(error) => error.to_string().replace(&directory.path().display().to_string(), "DIR"),
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        assert_eq!(outcome(b"mirrors: {docker.io: {endpoint: ['http://mirror:5000']}}"), "ok");
        assert_eq!(outcome(b""), "ok");
        for garbage in [&b"\xff\xfe"[..], b"mirrors: [", b"mirors: {}", b"- 1", &[b'#'; (1 << 20) + 1]] {
            let text = outcome(garbage);
            assert!(text.starts_with("registries: DIR/registries.yaml: "), "{text}");
        }
        let text = outcome(b"mirrors: {docker.io: {endpoint: ['ftp://mirror']}}");
        assert_eq!(text, "registries: DIR/registries.yaml: mirrors.docker.io: invalid URL \"ftp://mirror\"");
        let absent = RegistrySource::of(Some(Path::new("/none/registries.yaml"))).unwrap_err().to_string();
        assert!(absent.starts_with("registries: /none/registries.yaml: "), "{absent}");
    }
}
