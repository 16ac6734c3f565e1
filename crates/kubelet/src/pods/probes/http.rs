//! HTTP requests of probes and hooks. Upstream's `probe/http`: TLS certificates are not verified, redirects to another host
//! are not followed, bodies are cut off.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
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
/// Requests of one probe: the first, and those that follow redirects.
const MOST_REQUESTS: usize = 10;
/// The end of the error when TLS is answered with HTTP.
pub const NO_TLS: &str = "http: server gave HTTP response to HTTPS client";
/// What such an answer begins with.
const HTTP: &[u8] = b"HTTP/";

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

impl HttpTarget {
    /// Host and port, as URLs have them.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", bracketed(&self.host), self.port)
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Its status code.
    pub code: u16,
    /// The start of its body.
    pub text: String,
    /// Where it redirects to.
    location: Option<String>,
}

/// Sends a GET, and follows redirects to the same host. One to another host is the answer.
///
/// # Errors
/// A text, for a status of 400 and more as well.
pub async fn get(target: &HttpTarget, limit: Duration, agent: &str) -> Result<HttpAnswer, String> {
    match tokio::time::timeout(limit, follow(target, agent)).await {
        Ok(Ok(answer)) if answer.code >= 400 => {
            Err(format!("HTTP probe failed with statuscode: {}", answer.code))
        }
        Ok(answer) => answer,
        Err(_) => Err(format!(
            "Get \"{}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
            url(target)
        )),
    }
}

/// The same without a limit of time, and whatever the answer's status is.
///
/// # Errors
/// A text when there is no answer.
pub async fn follow(target: &HttpTarget, agent: &str) -> Result<HttpAnswer, String> {
    let mut target = target.clone();
    for _ in 0..MOST_REQUESTS {
        let answer = send(&target, agent).await?;
        let redirects = matches!(answer.code, 301 | 302 | 303 | 307 | 308);
        let next =
            answer.location.as_deref().filter(|_| redirects).map(|location| redirected(&target, location));
        match next.transpose()? {
            Some(next) if next.host == target.host => target = next,
            _ => return Ok(answer),
        }
    }
    Err(format!("Get \"{}\": stopped after {MOST_REQUESTS} redirects", url(&target)))
}

/// Where a `Location` leads from a target.
fn redirected(from: &HttpTarget, location: &str) -> Result<HttpTarget, String> {
    let wrong = |e: &dyn std::fmt::Display| {
        format!("Get \"{}\": failed to parse Location header {location:?}: {e}", url(from))
    };
    let mut target = from.clone();
    target.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("host"));
    let location = if location.starts_with("//") {
        format!("{}:{location}", if from.https { "https" } else { "http" })
    } else {
        location.to_owned()
    };
    if !location.contains("://") {
        let (directory, _) =
            from.path.split('?').next().unwrap_or_default().rsplit_once('/').unwrap_or_default();
        target.path = if location.starts_with('/') { location } else { format!("{directory}/{location}") };
        return Ok(target);
    }
    let uri: http::Uri = location.parse().map_err(|e| wrong(&e))?;
    target.https = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        other => return Err(wrong(&format!("unsupported protocol scheme {:?}", other.unwrap_or_default()))),
    };
    target.host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    target.port = uri.port_u16().unwrap_or(if target.https { 443 } else { 80 });
    target.path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    Ok(target)
}

fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() }
}

fn url(target: &HttpTarget) -> String {
    let scheme = if target.https { "https" } else { "http" };
    let slash = if target.path.starts_with('/') { "" } else { "/" };
    format!("{scheme}://{}{slash}{}", target.authority(), target.path)
}

async fn send(target: &HttpTarget, agent: &str) -> Result<HttpAnswer, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("Get \"{}\": {e}", url(target));
    let stream = TcpStream::connect((target.host.trim_matches(['[', ']']), target.port))
        .await
        .map_err(|e| wrong(&format!("dial tcp {}: {}", target.authority(), dial(&e))))?;
    if target.https {
        let name = ServerName::try_from(target.host.clone()).map_err(|e| wrong(&e))?;
        let stream = Opening { stream, first: vec![] };
        let connected = connector().connect(name, stream).into_fallible().await;
        match connected {
            Ok(stream) => exchange(target, agent, stream).await,
            Err((_, stream)) if stream.first == HTTP => Err(wrong(&NO_TLS)),
            Err((error, _)) => Err(wrong(&error)),
        }
    } else {
        exchange(target, agent, stream).await
    }
}

/// A connection that keeps the first bytes that it has read.
struct Opening {
    stream: TcpStream,
    first: Vec<u8>,
}

impl AsyncRead for Opening {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let missing = HTTP.len() - self.first.len();
        self.first.extend(buffer.filled()[before..].iter().take(missing));
        read
    }
}

impl AsyncWrite for Opening {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
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
) -> Result<HttpAnswer, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("Get \"{}\": {e}", url(target));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| wrong(&e))?;
    let request = async {
        let slash = if target.path.starts_with('/') { "" } else { "/" };
        let mut request = http::Request::get(format!("{slash}{}", target.path));
        let has = |name: &str| target.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        if !has("host") {
            request = request.header("Host", target.authority());
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
        let location = response.headers().get("location").and_then(|value| value.to_str().ok());
        let location = location.map(str::to_owned);
        // A body that is too long is cut off, which is no failure.
        let body = Limited::new(response.into_body(), MOST_BODY).collect().await;
        let text = body.map(|b| String::from_utf8_lossy(&b.to_bytes()).into_owned()).unwrap_or_default();
        Ok(HttpAnswer { code, text, location })
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn redirects_are_followed_on_the_same_host() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 512];
                let length = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let head = match request.split(' ').nth(1).unwrap() {
                    "/a/fine" => "302 Found\r\nLocation: ok?x=1".to_owned(),
                    "/a/ok?x=1" => "200 OK".to_owned(),
                    "/failing" => format!("302 Found\r\nLocation: http://127.0.0.1:{port}/broken"),
                    "/other" => "302 Found\r\nLocation: http://0.0.0.0/".to_owned(),
                    "/again" => "307 Temporary Redirect\r\nLocation: /again".to_owned(),
                    _ => "500 Internal Server Error".to_owned(),
                };
                let answer = format!("HTTP/1.1 {head}\r\nContent-Length: 4\r\n\r\nbody");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let mut shown = vec![];
        for path in ["/a/fine", "/failing", "/other", "/again"] {
            let (host, path) = ("127.0.0.1".to_owned(), path.to_owned());
            let target = HttpTarget { https: false, host, port, path, headers: vec![] };
            let answer = get(&target, Duration::from_secs(10), "test").await;
            let answer = answer.map(|answer| format!("{} {}", answer.code, answer.text));
            shown.push(format!("{answer:?}").replace(&port.to_string(), "PORT"));
        }
        expect_test::expect![[r#"
            Ok("200 body")
            Err("HTTP probe failed with statuscode: 500")
            Ok("302 body")
            Err("Get \"http://127.0.0.1:PORT/again\": stopped after 10 redirects")"#]]
        .assert_eq(&shown.join("\n"));
    }

    /// What becomes of a request over TLS to a server that answers anything with this.
    async fn of_plain_server(answer: &'static str) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 4096];
            assert!(stream.read(&mut hello).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let (host, path) = ("127.0.0.1".to_owned(), "/".to_owned());
        let target = HttpTarget { https: true, host, port, path, headers: vec![] };
        let error = follow(&target, "test").await.unwrap_err();
        server.await.unwrap();
        error.replace(&port.to_string(), "PORT")
    }

    #[tokio::test]
    async fn http_in_answer_to_tls_has_an_error_of_its_own() {
        expect_test::expect![[
            r#"Get "https://127.0.0.1:PORT/": http: server gave HTTP response to HTTPS client"#
        ]]
        .assert_eq(&of_plain_server("HTTP/1.1 400 Bad Request\r\n\r\n").await);
        let error = of_plain_server("220 mail ESMTP\r\n").await;
        assert!(!error.ends_with(NO_TLS), "{error}");
    }
}
