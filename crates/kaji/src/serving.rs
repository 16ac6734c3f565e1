//! Where a server keeps what it has, with which certificates a server serves, whom it trusts, and whether anybody outside the process can reach it.
//!
//! Invariant: a certificate, key or authority that is named and cannot be used keeps the server from starting.

use crate::{Options, ProxyClient, Selection, StoreKind};
use clap::Args;
use kaji_server::{
    Certificates, TlsCurve, TlsOptions, TlsSuite, TlsVersion,
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
    /// Nobody outside the process can: nothing listens.
    pub local: bool,
    /// The cluster's certificates are written nowhere and end with it.
    pub ephemeral: bool,
    /// Certificates that were made elsewhere.
    pub files: Files,
    /// The certificate that extension servers are shown, if it was made elsewhere.
    pub proxy: ProxyClient,
    /// Versions, cipher suites and curves.
    pub tls: TlsOptions,
    /// Streams that an HTTP/2 connection may have open; the server's default without it.
    pub streams: Option<u32>,
    /// Connections at once; the server's default without it.
    pub connections: Option<usize>,
    /// Bytes of memory for the bodies of requests; a quarter of the process's without it.
    pub request_memory: Option<usize>,
}

/// Upstream's flags about connections.
#[derive(Args, Clone, Debug, Default)]
struct Wire {
    /// The oldest version of TLS that is spoken (default VersionTLS12): VersionTLS12, VersionTLS13.
    #[arg(long, value_name = "VERSION")]
    tls_min_version: Option<TlsVersion>,
    /// The cipher suites of TLS 1.2, by Go's names (default: all that this server has); those of TLS 1.3 are always there.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tls_cipher_suites: Vec<TlsSuite>,
    /// The curves of key exchanges, by their numbers: 23, 24 and 29 (default: all of them).
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    tls_curve_preferences: Vec<TlsCurve>,
    /// How many streams an HTTP/2 connection may have open; 0 for the default, 1000.
    #[arg(long, value_name = "COUNT")]
    http2_max_streams_per_connection: Option<u32>,
    /// How much memory the bodies of requests under way may take, in MiB (default: a quarter of what the process may use).
    #[arg(long, value_name = "MIB")]
    max_request_memory: Option<usize>,
}

/// Certificates that were made elsewhere.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The certificate to serve with, PEM, with those it needs after it; looked at anew when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Where apiserver.crt and apiserver.key are to serve with, unless --tls-cert-file says otherwise. Written there when
    /// there are none.
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
}

/// What `kaji up` and `kaji apiserver` take besides.
#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// Where objects are kept. In memory, objects and certificates end with the process.
    #[arg(long, value_enum, default_value_t = StoreKind::Disk)]
    store: StoreKind,
    /// Writes no kubeconfig.
    #[arg(long, conflicts_with = "kubeconfig")]
    no_kubeconfig: bool,
    /// Which control loops run: names, * for all others, -name for all but one, -* or nothing for none (the scheduler
    /// counts as one). Those of `kaji up` unless said otherwise: all; those of `kaji apiserver`: none. Nodes are no control
    /// loops: see --nodes.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    controllers: Option<Vec<String>>,
    /// How long a token in a secret that was made for a service account stays without being used; twice that until it is
    /// deleted (default 8760h).
    #[arg(long, value_name = "DURATION", value_parser = kaji_server::parse_timeout)]
    legacy_service_account_token_clean_up_period: Option<std::time::Duration>,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    proxy: ProxyClient,
    #[command(flatten)]
    wire: Wire,
}

impl Flags {
    /// Whether a kubeconfig is to be written.
    pub fn kubeconfig(&self) -> bool {
        !self.no_kubeconfig
    }

    /// Whether objects stay when the process ends.
    pub fn lasting(&self) -> bool {
        self.store == StoreKind::Disk
    }

    /// Options as these flags have them.
    ///
    /// # Errors
    /// For a control loop that there is not, and for TLS that nobody could speak.
    pub fn apply(self, mut options: Options) -> Result<Options, String> {
        if let Some(names) = self.controllers {
            options.selection = Selection::new(names)?;
            options.controllers = true;
        }
        options.unused_token_period = self.legacy_service_account_token_clean_up_period;
        options.store = self.store;
        let wire = self.wire;
        let tls = TlsOptions {
            oldest: wire.tls_min_version.unwrap_or_default(),
            suites: wire.tls_cipher_suites,
            curves: wire.tls_curve_preferences,
        };
        tls.validate()?;
        options.serving = Serving {
            local: false,
            ephemeral: self.store == StoreKind::Memory,
            files: self.files,
            proxy: self.proxy,
            tls,
            streams: wire.http2_max_streams_per_connection.filter(|n| *n > 0),
            connections: None,
            request_memory: wire.max_request_memory.map(|mib| mib.saturating_mul(1 << 20)),
        };
        Ok(options)
    }
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

    /// The files to follow, which hold what is served with; none if the server made it itself, and renews it.
    pub(crate) fn held(&self, served: &Identity) -> Vec<(PathBuf, Vec<u8>)> {
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

    /// Writes the server's own certificate where it was looked for.
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
pub(crate) fn identity(mut files: Vec<Vec<u8>>) -> Result<Identity, String> {
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
    fn a_certificate_is_written_once_and_found_again() {
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
