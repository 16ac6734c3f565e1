//! HTTP requests of probes and hooks. Upstream's `probe/http`: TLS certificates are not verified, redirects to another host
//! count as a success, bodies are cut off.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

/// Bytes of a body that are read.
const MOST_BODY: usize = 10 << 10;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpTarget {
    /// With TLS.
    pub https: bool,
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// With its query.
    pub path: String,
    /// In order; `Host` is among them if it is not the target's.
    pub headers: Vec<(String, String)>,
}

/// Sends a GET. Answers the status code and the start of the body.
///
/// # Errors
/// A text, for a status of 400 and more as well.
pub async fn get(target: &HttpTarget, limit: Duration, agent: &str) -> Result<(u16, String), String> {
    match tokio::time::timeout(limit, send(target, agent)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!(
            "Get \"{}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
            url(target)
        )),
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() }
}

fn url(target: &HttpTarget) -> String {
    let scheme = if target.https { "https" } else { "http" };
    let slash = if target.path.starts_with('/') { "" } else { "/" };
    format!("{scheme}://{}:{}{slash}{}", bracketed(&target.host), target.port, target.path)
}

async fn send(target: &HttpTarget, agent: &str) -> Result<(u16, String), String> {
    let wrong = |e: &dyn std::fmt::Display| format!("Get \"{}\": {e}", url(target));
    let stream = TcpStream::connect((target.host.trim_matches(['[', ']']), target.port))
        .await
        .map_err(|e| wrong(&format!("dial tcp {}:{}: {}", bracketed(&target.host), target.port, dial(&e))))?;
    if target.https {
        let name = ServerName::try_from(target.host.clone()).map_err(|e| wrong(&e))?;
        let stream = connector().connect(name, stream).await.map_err(|e| wrong(&e))?;
        exchange(target, agent, stream).await
    } else {
        exchange(target, agent, stream).await
    }
}

/// The error of a connection as Go prints it.
pub(super) fn dial(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        std::io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => error.to_string(),
    }
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    target: &HttpTarget,
    agent: &str,
    stream: S,
) -> Result<(u16, String), String> {
    let wrong = |e: &dyn std::fmt::Display| format!("Get \"{}\": {e}", url(target));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| wrong(&e))?;
    let request = async {
        let slash = if target.path.starts_with('/') { "" } else { "/" };
        let mut request = http::Request::get(format!("{slash}{}", target.path));
        let has = |name: &str| target.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        if !has("host") {
            request = request.header("Host", format!("{}:{}", bracketed(&target.host), target.port));
        }
        if !has("user-agent") {
            request = request.header("User-Agent", format!("{agent}/1.37"));
        }
        if !has("accept") {
            request = request.header("Accept", "*/*");
        }
        request = request.header("Connection", "close");
        for (name, value) in &target.headers {
            request = request.header(name, value);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|e| wrong(&e))?;
        let response = sender.send_request(request).await.map_err(|e| wrong(&e))?;
        let code = response.status().as_u16();
        // A body that is too long is cut off, which is no failure.
        let body = Limited::new(response.into_body(), MOST_BODY).collect().await;
        let text = body.map(|b| String::from_utf8_lossy(&b.to_bytes()).into_owned()).unwrap_or_default();
        if code >= 400 {
            return Err(format!("HTTP probe failed with statuscode: {code}"));
        }
        Ok((code, text))
    };
    tokio::pin!(connection);
    tokio::pin!(request);
    let mut open = true;
    loop {
        tokio::select! {
            answer = &mut request => return answer,
            // The response may be complete when the connection ends.
            _ = &mut connection, if open => open = false,
        }
    }
}

fn connector() -> TlsConnector {
    static CONFIG: std::sync::LazyLock<Arc<ClientConfig>> = std::sync::LazyLock::new(|| {
        let verifier = Arc::new(AnyCertificate(Arc::new(ring::default_provider())));
        let config = ClientConfig::builder_with_provider(verifier.0.clone())
            .with_safe_default_protocol_versions()
            .map(|builder| {
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            });
        // The provider's own versions are always consistent.
        #[allow(clippy::expect_used)]
        Arc::new(config.expect("the provider supports its own protocol versions"))
    });
    TlsConnector::from(CONFIG.clone())
}

/// Probes ask whether a server answers, not which one it is; upstream skips verification as well.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
