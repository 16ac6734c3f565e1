//! Options of the listener: certificates, TLS, and limits of connections.
//!
//! Invariant: a certificate or key file that cannot be used keeps the server from starting.

use crate::{KubeletClient, ProxyClient};
use clap::Args;
use kaji_server::{
    Certificates, GoawayChance, TlsCurve, TlsOptions, TlsSuite, TlsVersion,
    pki::{self, Identity, PkiError},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The file names in `--cert-dir`. Source: kube-apiserver's `SecureServingOptions`.
const CERTIFICATE: &str = "apiserver.crt";
const KEY: &str = "apiserver.key";

/// How a server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// There is no listener: only clients in the process reach the server.
    pub local: bool,
    /// The cluster's certificates are written nowhere and end with it.
    pub ephemeral: bool,
    /// Files with the serving certificate.
    pub files: Files,
    /// Files with the aggregator's client certificate.
    pub proxy: ProxyClient,
    /// How kubelets are reached.
    pub kubelets: KubeletClient,
    /// Versions, cipher suites and curves.
    pub tls: TlsOptions,
    /// Streams that an HTTP/2 connection may have open; the server's default without it.
    pub streams: Option<u32>,
    /// Connections at once; the server's default without it.
    pub connections: Option<usize>,
    /// After which share of requests their h2 connection ends.
    pub goaway: GoawayChance,
    /// Bytes of memory for the bodies of requests; a quarter of the process's without it.
    pub request_memory: Option<usize>,
}

/// Upstream's flags about connections.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Serving")]
pub struct ConnectionFlags {
    /// The minimum version of TLS (default VersionTLS12): VersionTLS12, VersionTLS13.
    #[arg(long, value_name = "VERSION")]
    pub tls_min_version: Option<TlsVersion>,
    /// The cipher suites of TLS 1.2, by Go's names (default: all that this server has); those of TLS 1.3 are always there.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<TlsSuite>,
    /// The curves of key exchanges, by their numbers: 23, 24 and 29 (default: all of them).
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    pub tls_curve_preferences: Vec<TlsCurve>,
    /// The maximum number of concurrent streams of an HTTP/2 connection; 0 for the default, 1000.
    #[arg(long, value_name = "COUNT")]
    pub http2_max_streams_per_connection: Option<u32>,
    /// The memory limit of the bodies of requests in flight, in MiB (default: a quarter of the process's memory limit).
    #[arg(long, value_name = "MIB")]
    pub max_request_memory: Option<usize>,
}

/// Files with the serving certificate.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Serving")]
pub struct Files {
    /// The serving certificate, PEM, followed by intermediate certificates; reloaded when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// The directory of apiserver.crt and apiserver.key, unless --tls-cert-file is set. They are created if they are
    /// missing.
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
}

impl Serving {
    /// Reads and makes certificates; the cluster's own belong into `dir`.
    ///
    /// # Errors
    /// When a file cannot be read, or holds no certificate or key.
    pub fn load(
        &self,
        dir: &Path,
        names: Vec<String>,
        now: jiff::Timestamp,
    ) -> Result<Certificates, PkiError> {
        let own = match self.ephemeral {
            true => Certificates::in_memory(names, now)?,
            false => Certificates::open(dir, names, now)?,
        };
        match self.files.given()? {
            Some(given) => own.present(given).map(|()| own),
            None => {
                self.files.write(&own.current().serving)?;
                Ok(own)
            }
        }
    }
}

impl Files {
    /// Where the certificate to serve with and its key are; `None` when the server is to make them.
    fn paths(&self) -> Option<(PathBuf, PathBuf)> {
        let (certificate, key) = match (&self.tls_cert_file, &self.tls_private_key_file, &self.cert_dir) {
            (Some(certificate), Some(key), _) => (certificate.clone(), key.clone()),
            (_, _, Some(dir)) => (dir.join(CERTIFICATE), dir.join(KEY)),
            _ => return None,
        };
        let there = self.tls_cert_file.is_some() || certificate.exists() || key.exists();
        there.then_some((certificate, key))
    }

    /// The certificate to serve with; `None` when the server is to make one.
    fn given(&self) -> Result<Option<Identity>, PkiError> {
        let Some((certificate, key)) = self.paths() else { return Ok(None) };
        Ok(Some(Identity { certificate: read(&certificate)?, key: read(&key)? }))
    }

    /// The files to watch, with the serving certificate and key; none if the server issues and renews it.
    pub fn held(&self, served: &Identity) -> Vec<(PathBuf, Vec<u8>)> {
        let own = self.tls_cert_file.is_none() && self.given().ok().flatten().is_none_or(|g| g != *served);
        let paths = self.paths().filter(|_| !own);
        paths
            .into_iter()
            .flat_map(|(certificate, key)| {
                [
                    (certificate, served.certificate.clone().into_bytes()),
                    (key, served.key.clone().into_bytes()),
                ]
            })
            .collect()
    }

    /// Writes the server's own certificate to `--cert-dir`.
    fn write(&self, own: &Identity) -> Result<(), PkiError> {
        let Some(dir) = &self.cert_dir else { return Ok(()) };
        let io = |path: &Path| {
            let path = path.to_owned();
            |source| PkiError::Io { path, source }
        };
        kaji_files::make_dirs(dir, 0o755).map_err(io(dir))?;
        pki::write_private(&dir.join(KEY), &own.key)?;
        pki::write_public(&dir.join(CERTIFICATE), &own.certificate)
    }
}

/// What a certificate's file and its key's hold.
pub fn identity(mut files: Vec<Vec<u8>>) -> Result<Identity, String> {
    let mut next = || String::from_utf8(files.pop().unwrap_or_default()).map_err(|e| e.to_string());
    let key = next()?;
    Ok(Identity { certificate: next()?, key })
}

fn read(path: &Path) -> Result<String, PkiError> {
    fs::read_to_string(path).map_err(|source| PkiError::Io { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(files: Files) -> Result<Certificates, PkiError> {
        let serving = Serving { ephemeral: true, files, ..Serving::default() };
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        serving.load(Path::new("/nowhere"), vec!["localhost".into()], now)
    }

    #[test]
    fn writes_a_certificate_once_and_reads_it_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = || Files { cert_dir: Some(dir.path().into()), ..Files::default() };
        let first = load(files()).unwrap().current().serving.certificate.clone();
        let second = load(files()).unwrap();
        assert_eq!(second.current().serving.certificate, first);
        assert_eq!(second.trust(), first);
        // A certificate without its key is an error, not a reason to make another.
        fs::remove_file(dir.path().join(KEY)).unwrap();
        assert!(load(files()).is_err());
    }
}
