//! Where a server keeps what it has, with which certificates a server serves, whom it trusts, and whether anybody outside the process can reach it.
//!
//! Invariant: a certificate, key or authority that is named and cannot be used keeps the server from starting.

use crate::{Options, Selection, StoreKind};
use clap::Args;
use kaji_server::{
    Certificates,
    pki::{Identity, PkiError},
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
}

/// Certificates that were made elsewhere.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The certificate to serve with, PEM, with those it needs after it; read at the start only.
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
    /// Which control loops run: names, * for all, -name for all others (the scheduler counts as one). Those of
    /// `kaji up` unless said otherwise: all; those of `kaji apiserver`: none.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true)]
    controllers: Option<Vec<String>>,
    #[command(flatten)]
    files: Files,
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
    /// For a control loop that there is not.
    pub fn apply(self, mut options: Options) -> Result<Options, String> {
        if let Some(names) = self.controllers {
            options.selection = Selection::new(names)?;
            options.controllers = true;
        }
        options.store = self.store;
        options.serving =
            Serving { local: false, ephemeral: self.store == StoreKind::Memory, files: self.files };
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
            Some(given) => own.presenting(given),
            None => {
                self.files.write(&own.current().serving)?;
                Ok(own)
            }
        }
    }
}

impl Files {
    /// The certificate to serve with; `None` when the server is to make one.
    fn given(&self) -> Result<Option<Identity>, PkiError> {
        let (certificate, key) = match (&self.tls_cert_file, &self.tls_private_key_file, &self.cert_dir) {
            (Some(certificate), Some(key), _) => (certificate.clone(), key.clone()),
            (_, _, Some(dir)) => (dir.join(CERTIFICATE), dir.join(KEY)),
            _ => return Ok(None),
        };
        if self.tls_cert_file.is_none() && !certificate.exists() && !key.exists() {
            return Ok(None);
        }
        Ok(Some(Identity { certificate: read(&certificate)?, key: read(&key)? }))
    }

    /// Writes the server's own certificate where it was looked for.
    fn write(&self, own: &Identity) -> Result<(), PkiError> {
        let Some(dir) = &self.cert_dir else { return Ok(()) };
        let io = |path: &Path| {
            let path = path.to_owned();
            |source| PkiError::Io { path, source }
        };
        fs::create_dir_all(dir).map_err(io(dir))?;
        kaji_server::pki::write_private(&dir.join(KEY), &own.key)?;
        let path = dir.join(CERTIFICATE);
        fs::write(&path, &own.certificate).map_err(io(&path))
    }
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
