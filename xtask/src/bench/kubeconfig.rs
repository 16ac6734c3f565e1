//! Kubeconfig files as a load generator needs them: the server, its authority, the credentials.
//!
//! Invariants: only the current context is looked at; what cannot be honoured (exec plug-ins, skipped verification, no
//! TLS) is an error, never ignored. Field names follow the kubeconfig reference (`v1` of `client.authentication`).

use super::{Error, client::Target};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use hyper::{Uri, header::HeaderValue};
use serde::Deserialize;
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::rustls::{
    CipherSuite, ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    current_context: Option<String>,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

/// What the current context says; certificates are still PEM text.
pub struct Kubeconfig {
    /// `https://host:port`.
    pub server: String,
    /// The name to expect in the server's certificate, when it is not the host.
    pub tls_server_name: Option<String>,
    /// The certificate authority.
    pub authority: Vec<u8>,
    /// Client certificate and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Bearer token.
    pub token: Option<String>,
}

impl fmt::Debug for Kubeconfig {
    /// Shows what is there, not the secrets themselves.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubeconfig")
            .field("server", &self.server)
            .field("tls_server_name", &self.tls_server_name)
            .field("authority", &String::from_utf8_lossy(&self.authority))
            .field(
                "identity",
                &self.identity.as_ref().map(|(certificate, _)| String::from_utf8_lossy(certificate)),
            )
            .field("token", &self.token.is_some())
            .finish()
    }
}

/// Reads the file and makes a target of it.
pub fn load(path: &Path) -> Result<Target, Error> {
    let text = fs::read_to_string(path).map_err(|e| Error::file(path, e))?;
    target(parse(&text, path.parent().unwrap_or(Path::new(".")))?)
}

/// Reads the file and makes a target of it, as another user: the token's.
pub fn load_as(path: &Path, token: &str) -> Result<Target, Error> {
    let text = fs::read_to_string(path).map_err(|e| Error::file(path, e))?;
    let config = parse(&text, path.parent().unwrap_or(Path::new(".")))?;
    target(Kubeconfig { identity: None, token: Some(token.to_owned()), ..config })
}

/// Reads a kubeconfig's text; relative file names are relative to `dir`.
pub fn parse(text: &str, dir: &Path) -> Result<Kubeconfig, Error> {
    let bad = |reason: String| Error::Kubeconfig(reason);
    let file: File = serde_saphyr::from_str(text)
        .map_err(|e| bad(e.to_string().lines().next().unwrap_or("malformed").to_owned()))?;
    let current = file.current_context.ok_or_else(|| bad("no current-context".into()))?;
    let context = file
        .contexts
        .into_iter()
        .find(|c| c.name == current)
        .ok_or_else(|| bad(format!("no context {current:?}")))?
        .context;
    let cluster = file
        .clusters
        .into_iter()
        .find(|c| c.name == context.cluster)
        .ok_or_else(|| bad(format!("no cluster {:?}", context.cluster)))?
        .cluster;
    let user = file
        .users
        .into_iter()
        .find(|u| u.name == context.user)
        .ok_or_else(|| bad(format!("no user {:?}", context.user)))?
        .user;
    if cluster.insecure_skip_tls_verify {
        return Err(bad("insecure-skip-tls-verify is not supported: give the certificate authority".into()));
    }
    let authority =
        pem(dir, "certificate-authority", cluster.certificate_authority_data, cluster.certificate_authority)?
            .ok_or_else(|| bad("no certificate-authority-data".into()))?;
    let certificate = pem(dir, "client-certificate", user.client_certificate_data, user.client_certificate)?;
    let key = pem(dir, "client-key", user.client_key_data, user.client_key)?;
    let token = match (user.token, user.token_file) {
        (Some(token), _) => Some(token),
        (None, Some(path)) => {
            let path = dir.join(path);
            Some(fs::read_to_string(&path).map_err(|e| Error::file(&path, e))?.trim().to_owned())
        }
        (None, None) => None,
    };
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(bad("a client certificate needs its key, and a key its certificate".into())),
    };
    if identity.is_none() && token.is_none() {
        return Err(bad("the user has neither a client certificate nor a token".into()));
    }
    Ok(Kubeconfig {
        server: cluster.server,
        tls_server_name: cluster.tls_server_name,
        authority,
        identity,
        token,
    })
}

/// Inline data wins over a file, as in client-go.
fn pem(
    dir: &Path,
    field: &str,
    data: Option<String>,
    file: Option<PathBuf>,
) -> Result<Option<Vec<u8>>, Error> {
    match (data, file) {
        (Some(data), _) => match BASE64.decode(data.trim()) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) => Err(Error::Kubeconfig(format!("{field}-data: {e}"))),
        },
        (None, Some(path)) => {
            let path = dir.join(path);
            fs::read(&path).map(Some).map_err(|e| Error::file(&path, e))
        }
        (None, None) => Ok(None),
    }
}

/// Builds the TLS configuration and the constant headers.
fn target(config: Kubeconfig) -> Result<Target, Error> {
    let bad = |what: &str, e: &dyn fmt::Display| Error::Kubeconfig(format!("{what}: {e}"));
    let uri: Uri = config.server.parse().map_err(|e| bad("server", &e))?;
    if uri.scheme_str() != Some("https") || !matches!(uri.path(), "" | "/") {
        return Err(Error::Kubeconfig(format!(
            "server {:?} is not of the form https://host:port",
            config.server
        )));
    }
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().unwrap_or(443);
    let name = config.tls_server_name.as_deref().unwrap_or(host).trim_matches(['[', ']']).to_owned();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&config.authority) {
        let certificate = certificate.map_err(|e| bad("certificate-authority-data", &e))?;
        roots.add(certificate).map_err(|e| bad("certificate-authority-data", &e))?;
    }
    // The order of Go's clients: what most of a server's clients negotiate, and the cheaper one.
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|s| s.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(Error::Tls)?
        .with_root_certificates(roots);
    let mut tls = match &config.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| bad("client-certificate-data", &e))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| bad("client-key-data", &e))?;
            builder.with_client_auth_cert(chain, key).map_err(Error::Tls)?
        }
    };
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let authorization = match &config.token {
        None => None,
        Some(token) => Some(HeaderValue::from_str(&format!("Bearer {token}")).map_err(|e| bad("token", &e))?),
    };
    Ok(Target {
        address: format!("{host}:{port}"),
        name: ServerName::try_from(name).map_err(|e| bad("server", &e))?,
        tls: Arc::new(tls),
        host: HeaderValue::from_str(&format!("{host}:{port}")).map_err(|e| bad("server", &e))?,
        authorization,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    const CONFIG: &str = "
apiVersion: v1
kind: Config
current-context: b
clusters:
- name: one
  cluster: {server: 'https://10.0.0.1:6443', certificate-authority-data: Q0E=}
- name: two
  cluster:
    server: https://[::1]:6444
    certificate-authority-data: Q0Ey
    tls-server-name: kubernetes
users:
- name: admin
  user: {client-certificate-data: Q0VSVA==, client-key-data: S0VZ}
- name: robot
  user: {token: t0}
- name: nobody
  user: {}
contexts:
- name: a
  context: {cluster: one, user: robot}
- name: b
  context: {cluster: two, user: admin, namespace: x}
- name: c
  context: {cluster: one, user: nobody}
- name: d
  context: {cluster: three, user: nobody}
";

    #[test]
    fn the_current_context_counts() {
        let shown = |context: &str| {
            let text = CONFIG.replace("current-context: b", &format!("current-context: {context}"));
            match parse(&text, Path::new("/")) {
                Ok(config) => format!("{config:?}"),
                Err(error) => error.to_string(),
            }
        };
        let all = ["a", "b", "c", "d", "e"].map(shown).join("\n");
        expect![[r#"
            Kubeconfig { server: "https://10.0.0.1:6443", tls_server_name: None, authority: "CA", identity: None, token: true }
            Kubeconfig { server: "https://[::1]:6444", tls_server_name: Some("kubernetes"), authority: "CA2", identity: Some("CERT"), token: false }
            kubeconfig: the user has neither a client certificate nor a token
            kubeconfig: no cluster "three"
            kubeconfig: no context "e""#]].assert_eq(&all);
    }

    #[test]
    fn what_cannot_be_honoured_is_an_error() {
        let shown = |text: &str| match parse(text, Path::new("/nowhere")) {
            Ok(config) => format!("{config:?}"),
            Err(error) => error.to_string(),
        };
        let all = [
            shown("a: ["),
            shown("clusters: []"),
            shown(&CONFIG.replace("certificate-authority-data: Q0Ey", "insecure-skip-tls-verify: true")),
            shown(&CONFIG.replace("certificate-authority-data: Q0Ey", "certificate-authority: ca.crt")),
            shown(&CONFIG.replace("client-key-data: S0VZ", "client-key-data: '***'")),
            shown(&CONFIG.replace(", client-key-data: S0VZ", "")),
        ]
        .join("\n");
        expect![[r#"
            kubeconfig: error: line 1 column 4: unclosed bracket '['
            kubeconfig: no current-context
            kubeconfig: insecure-skip-tls-verify is not supported: give the certificate authority
            /nowhere/ca.crt: No such file or directory (os error 2)
            kubeconfig: client-key-data: Invalid symbol 42, offset 0.
            kubeconfig: a client certificate needs its key, and a key its certificate"#]]
        .assert_eq(&all);
    }

    #[test]
    fn targets_are_https() {
        let config = |server: &str| Kubeconfig {
            server: server.into(),
            tls_server_name: None,
            authority: vec![],
            identity: None,
            token: Some("t".into()),
        };
        let address = |server: &str| match target(config(server)) {
            Ok(target) => format!("{} {:?}", target.address, target.name),
            Err(error) => error.to_string(),
        };
        let all = [
            "https://127.0.0.1:6443",
            "https://[::1]:1/",
            "https://k8s.example",
            "http://a:1",
            "https://a:1/p",
        ]
        .map(address)
        .join("\n");
        expect![[r#"
            127.0.0.1:6443 IpAddress(V4(Ipv4Addr([127, 0, 0, 1])))
            [::1]:1 IpAddress(V6(Ipv6Addr([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])))
            k8s.example:443 DnsName("k8s.example")
            kubeconfig: server "http://a:1" is not of the form https://host:port
            kubeconfig: server "https://a:1/p" is not of the form https://host:port"#]]
        .assert_eq(&all);
    }
}
