//! Where etcd is: URLs as upstream's `--etcd-servers` takes them, and TLS with client certificates.
//!
//! Invariants: with a scheme of `https`, or certificates for an endpoint without a scheme, nothing is sent before the server's
//! certificate is verified for the endpoint's host name; files are read when a connection is made, so that renewed
//! certificates are used.

use http::Uri;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

/// The port of an endpoint that names none.
const PORT: u16 = 2379;
/// More endpoints than an etcd cluster has members are a mistake.
const MOST: usize = 64;

/// Endpoints, or their certificates, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The list has no endpoint.
    #[error("--etcd-servers must be specified")]
    None,
    /// The list is too long.
    #[error("--etcd-servers: more than {MOST} endpoints")]
    TooMany,
    /// An endpoint that is none.
    #[error("--etcd-servers {endpoint:?}: {reason}")]
    Malformed {
        /// As given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate without its key, or the reverse.
    #[error("--etcd-certfile and --etcd-keyfile must be specified together")]
    HalfAPair,
    /// A file that cannot be read or holds something else.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The certificate and its key do not go together, or the like.
    #[error("etcd's TLS configuration: {0}")]
    Tls(String),
}

/// Files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities of etcd's certificates; the machine's without it.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    fn any(&self) -> bool {
        self.ca.is_some() || self.certificate.is_some()
    }

    /// A connector with what the files hold now.
    ///
    /// # Errors
    /// For files that cannot be used.
    pub fn connector(&self) -> Result<TlsConnector, EndpointError> {
        let mut roots = RootCertStore::empty();
        let authorities = match &self.ca {
            Some(path) => certificates(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        roots.add_parsable_certificates(authorities);
        let tls = |e: tokio_rustls::rustls::Error| EndpointError::Tls(e.to_string());
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(tls)?
            .with_root_certificates(roots);
        let mut config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|e| EndpointError::File { path: key.clone(), reason: e.to_string() })?;
                builder.with_client_auth_cert(certificates(certificate)?, key).map_err(tls)?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => return Err(EndpointError::HalfAPair),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EndpointError> {
    let wrong = |reason: String| EndpointError::File { path: path.to_owned(), reason };
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|e| wrong(e.to_string()))?.collect();
    let found = found.map_err(|e| wrong(e.to_string()))?;
    if found.is_empty() {
        return Err(wrong("holds no certificate".into()));
    }
    Ok(found)
}

/// One etcd server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// With TLS, the name that the certificate is verified for.
    pub tls: Option<ServerName<'static>>,
}

impl Endpoint {
    /// Scheme and authority, as requests name them.
    #[must_use]
    pub fn origin(&self) -> Uri {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{scheme}://{host}:{}", self.port).parse().unwrap_or_default()
    }
}

/// The servers of one etcd cluster, and the files for them. Not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    list: Vec<Endpoint>,
    files: TlsFiles,
}

impl Endpoints {
    /// Endpoints of URLs, `https://10.0.0.1:2379`; the port may be left out, and so may the scheme: it is `https` if there
    /// are files for it.
    ///
    /// # Errors
    /// For a list or an endpoint that cannot be used, and for files that do not exist.
    pub fn new<S: AsRef<str>>(
        urls: impl IntoIterator<Item = S>,
        files: TlsFiles,
    ) -> Result<Endpoints, EndpointError> {
        let parsed = urls.into_iter().map(|url| parse(url.as_ref().trim(), files.any()));
        let list = parsed.take(MOST + 1).collect::<Result<Vec<_>, _>>()?;
        if list.is_empty() {
            return Err(EndpointError::None);
        }
        if list.len() > MOST {
            return Err(EndpointError::TooMany);
        }
        if files.certificate.is_some() != files.key.is_some() {
            return Err(EndpointError::HalfAPair);
        }
        if list.iter().any(|endpoint| endpoint.tls.is_some()) {
            files.connector()?;
        }
        Ok(Endpoints { list, files })
    }

    /// In the order in which they were given.
    #[must_use]
    pub fn list(&self) -> &[Endpoint] {
        &self.list
    }

    /// The files for TLS.
    #[must_use]
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }
}

fn parse(url: &str, files: bool) -> Result<Endpoint, EndpointError> {
    let malformed = |reason: &str| EndpointError::Malformed { endpoint: url.into(), reason: reason.into() };
    let (scheme, rest) = url.split_once("://").unwrap_or((if files { "https" } else { "http" }, url));
    let tls = match scheme {
        "http" => false,
        "https" => true,
        "unix" | "unixs" => return Err(malformed("unix sockets are not supported")),
        _ => return Err(malformed("the scheme must be http or https")),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let authority: http::uri::Authority =
        authority.parse().map_err(|_| malformed("must be of the form host:port"))?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() || authority.as_str().contains('@') {
        return Err(malformed("must be of the form host:port"));
    }
    let port = match authority.as_str().rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        Some((_, port)) => port.parse().map_err(|_| malformed("the port is not one"))?,
        None => PORT,
    };
    let tls = match tls {
        true => Some(ServerName::try_from(host.clone()).map_err(|_| malformed("the host is not a name"))?),
        false => None,
    };
    Ok(Endpoint { host, port, tls })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn shown(urls: &[&str]) -> String {
        match Endpoints::new(urls, TlsFiles::default()) {
            Ok(all) => all.list.iter().map(|e| e.origin().to_string()).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn urls_of_endpoints() {
        expect!["http://127.0.0.1:2379/ http://h1:2379/ http://[::1]:99/ http://h2:2380/"]
            .assert_eq(&shown(&["http://127.0.0.1:2379", "h1", "http://[::1]:99/", " h2:2380"]));
        expect![["--etcd-servers must be specified"]].assert_eq(&shown(&[]));
        expect![[r#"--etcd-servers "ftp://h": the scheme must be http or https"#]]
            .assert_eq(&shown(&["ftp://h"]));
        expect![[r#"--etcd-servers "unix:///run/etcd": unix sockets are not supported"#]]
            .assert_eq(&shown(&["unix:///run/etcd"]));
        expect![[r#"--etcd-servers "http://a:b@h:1": must be of the form host:port"#]]
            .assert_eq(&shown(&["http://a:b@h:1"]));
        expect![[r#"--etcd-servers "http://h:99999": the port is not one"#]]
            .assert_eq(&shown(&["http://h:99999"]));
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let files = TlsFiles { certificate: Some("/c.pem".into()), ..TlsFiles::default() };
        assert_eq!(Endpoints::new(["https://h"], files), Err(EndpointError::HalfAPair));
        let files = TlsFiles { ca: Some("/nowhere/ca.pem".into()), ..TlsFiles::default() };
        assert!(matches!(Endpoints::new(["h"], files), Err(EndpointError::File { .. })));
    }
}
