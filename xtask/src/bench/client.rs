//! One HTTP/1.1 connection over TLS, made to cost little: it shares the machine with the server that it measures.
//!
//! Invariants: a `Client` is one connection, kept alive, with one request under way at a time; the connection's own
//! future is polled by the task that waits for the answer, so there is no second task and no hand-over between threads;
//! bodies are drained, not parsed, unless JSON is asked for; every call ends within the client's time limit.

use super::Error;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1::{self, Connection, SendRequest},
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

/// The longest that a call takes unless the client is configured otherwise.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// The longest that connecting takes.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// How much of a refusal's body is kept for the message.
const MOST_REFUSAL: usize = 16 << 10;

/// A server and how to speak to it.
pub struct Target {
    /// `host:port`.
    pub address: String,
    /// The name in the server's certificate.
    pub name: ServerName<'static>,
    /// Roots and client certificate.
    pub tls: Arc<ClientConfig>,
    /// The `Host` header.
    pub host: HeaderValue,
    /// The `Authorization` header.
    pub authorization: Option<HeaderValue>,
}

/// A request, encoded.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    body: Bytes,
    content_type: Option<&'static str>,
}

impl Call {
    /// `GET path`.
    pub fn get(path: impl Into<String>) -> Call {
        Call { method: Method::GET, path: path.into(), body: Bytes::new(), content_type: None }
    }

    /// `POST path` with JSON.
    pub fn post(path: impl Into<String>, body: impl Into<Bytes>) -> Call {
        Call::with(Method::POST, path, body, "application/json")
    }

    /// `PUT path` with JSON.
    pub fn put(path: impl Into<String>, body: impl Into<Bytes>) -> Call {
        Call::with(Method::PUT, path, body, "application/json")
    }

    /// `DELETE path` with these options.
    pub fn delete_with(path: impl Into<String>, options: impl Into<Bytes>) -> Call {
        Call::with(Method::DELETE, path, options, "application/json")
    }

    /// `PATCH path` with a JSON merge patch (RFC 7396).
    pub fn merge(path: impl Into<String>, patch: &Value) -> Call {
        Call::with(Method::PATCH, path, patch.to_string(), "application/merge-patch+json")
    }

    /// `PATCH path` with an apply configuration, by force.
    pub fn apply(path: &str, manager: &str, object: impl Into<Bytes>) -> Call {
        let path = format!("{path}?fieldManager={manager}&force=true");
        Call::with(Method::PATCH, path, object, "application/apply-patch+yaml")
    }

    /// `DELETE path` with the grace that the object asks for.
    pub fn delete_gracefully(path: impl Into<String>) -> Call {
        Call::with(Method::DELETE, path, r#"{"kind":"DeleteOptions","apiVersion":"v1"}"#, "application/json")
    }

    /// `DELETE path` at once: no grace, dependents in the background.
    pub fn delete(path: impl Into<String>) -> Call {
        const OPTIONS: &str = r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"propagationPolicy":"Background"}"#;
        Call::with(Method::DELETE, path, OPTIONS, "application/json")
    }

    fn with(
        method: Method,
        path: impl Into<String>,
        body: impl Into<Bytes>,
        content_type: &'static str,
    ) -> Call {
        Call { method, path: path.into(), body: body.into(), content_type: Some(content_type) }
    }

    fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    fn request(&self, target: &Target) -> Result<Request<Full<Bytes>>, Error> {
        const JSON: HeaderValue = HeaderValue::from_static("application/json");
        const AGENT: HeaderValue = HeaderValue::from_static("kaji-bench");
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(self.path.as_str())
            .header(HOST, target.host.clone())
            .header(ACCEPT, JSON)
            .header(USER_AGENT, AGENT);
        if let Some(content_type) = self.content_type {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if let Some(authorization) = &target.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        request.body(Full::new(self.body.clone())).map_err(|e| Error::Request(self.name(), e.to_string()))
    }
}

type Sender = SendRequest<Full<Bytes>>;
type Transport = Connection<TokioIo<TlsStream<TcpStream>>, Full<Bytes>>;

/// The connection's future; `None` once it has ended.
struct Wire(Option<Pin<Box<Transport>>>);

impl Wire {
    /// Waits for `future` while moving the connection along.
    async fn drive<T>(&mut self, future: impl Future<Output = Result<T, hyper::Error>>) -> Result<T, Fault> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = future.as_mut().poll(cx) {
                return Poll::Ready(outcome.map_err(Fault::Http));
            }
            let Some(connection) = &mut self.0 else { return Poll::Ready(Err(Fault::Closed)) };
            let ended = connection.as_mut().poll(cx);
            // The connection has just moved: what is awaited may have arrived, and another wake-up would cost a turn.
            if let Poll::Ready(outcome) = future.as_mut().poll(cx) {
                if ended.is_ready() {
                    self.0 = None;
                }
                return Poll::Ready(outcome.map_err(Fault::Http));
            }
            match ended {
                Poll::Pending => Poll::Pending,
                Poll::Ready(outcome) => {
                    self.0 = None;
                    Poll::Ready(Err(outcome.err().map_or(Fault::Closed, Fault::Http)))
                }
            }
        })
        .await
    }
}

enum Fault {
    Http(hyper::Error),
    Closed,
}

impl Fault {
    /// Whether the request certainly never left.
    fn unsent(&self) -> bool {
        matches!(self, Fault::Http(e) if e.is_canceled() || e.is_closed())
    }

    fn of(self, call: &str) -> Error {
        match self {
            Fault::Http(e) => Error::Http(call.to_owned(), e),
            Fault::Closed => Error::Closed(call.to_owned()),
        }
    }
}

/// One connection.
pub struct Client {
    target: Arc<Target>,
    limit: Duration,
    live: Option<(Sender, Wire)>,
}

impl Client {
    /// A client that connects at its first call.
    pub fn new(target: &Arc<Target>) -> Client {
        Client { target: target.clone(), limit: CALL_LIMIT, live: None }
    }

    /// Changes how long a call may take.
    pub fn limited(mut self, limit: Duration) -> Client {
        self.limit = limit;
        self
    }

    /// The server.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Connects now, so that no call pays for it.
    pub async fn connect(&mut self) -> Result<(), Error> {
        if self.live.is_some() {
            return Ok(());
        }
        let address = self.target.address.clone();
        match timeout(CONNECT_LIMIT, self.dial()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::Timeout(format!("connecting to {address}"), CONNECT_LIMIT)),
        }
    }

    async fn dial(&mut self) -> Result<(), Error> {
        let refused = |e| Error::Connect(self.target.address.clone(), e);
        let stream = TcpStream::connect(&self.target.address).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let connector = TlsConnector::from(self.target.tls.clone());
        let stream = connector.connect(self.target.name.clone(), stream).await.map_err(refused)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| Error::Http(format!("connecting to {}", self.target.address), e))?;
        self.live = Some((sender, Wire(Some(Box::pin(connection)))));
        Ok(())
    }

    /// Sends a request and waits for the head of the answer. The body must be read to its end with `next`, or the
    /// client dropped. No time limit of its own.
    pub async fn open(&mut self, call: &Call) -> Result<Response<Incoming>, Error> {
        for last in [false, true] {
            self.connect().await?;
            let request = call.request(&self.target)?;
            let Some((sender, wire)) = &mut self.live else { continue };
            let sent = wire.drive(async {
                sender.ready().await?;
                sender.send_request(request).await
            });
            match sent.await {
                Ok(response) => return Ok(response),
                Err(fault) => {
                    self.live = None;
                    // The server may have closed a connection that was idle.
                    if last || !fault.unsent() {
                        return Err(fault.of(&call.name()));
                    }
                }
            }
        }
        Err(Error::Closed(call.name()))
    }

    /// The next piece of a body; `None` at its end.
    pub async fn next(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, Error> {
        const WHAT: &str = "reading a response";
        let Some((_, wire)) = &mut self.live else { return Err(Error::Closed(WHAT.into())) };
        loop {
            let frame = wire.drive(async { body.frame().await.transpose() }).await;
            match frame {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Err(fault) => {
                    self.live = None;
                    return Err(fault.of(WHAT));
                }
            }
        }
    }

    /// Sends a request, drains the answer, and gives its length in bytes. Anything but 2xx is an error.
    pub async fn call(&mut self, call: &Call) -> Result<u64, Error> {
        let mut bytes = 0;
        self.bounded(call, &mut |piece| bytes += piece.len() as u64).await?;
        Ok(bytes)
    }

    /// Sends a request and parses the answer.
    pub async fn json(&mut self, call: &Call) -> Result<Value, Error> {
        let mut text = Vec::new();
        self.bounded(call, &mut |piece| text.extend_from_slice(piece)).await?;
        serde_json::from_slice(&text).map_err(|e| Error::Json(call.name(), e))
    }

    /// Like `json`, with `None` where the server says 404.
    pub async fn find(&mut self, call: &Call) -> Result<Option<Value>, Error> {
        match self.json(call).await {
            Ok(value) => Ok(Some(value)),
            Err(Error::Status { code: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn bounded(&mut self, call: &Call, each: &mut (impl FnMut(&[u8]) + Send)) -> Result<(), Error> {
        match timeout(self.limit, self.exchange(call, each)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                self.live = None;
                Err(Error::Timeout(call.name(), self.limit))
            }
        }
    }

    async fn exchange(&mut self, call: &Call, each: &mut (impl FnMut(&[u8]) + Send)) -> Result<(), Error> {
        let response = self.open(call).await?;
        let status = response.status();
        let mut body = response.into_body();
        if status.is_success() {
            while let Some(piece) = self.next(&mut body).await? {
                each(&piece);
            }
            return Ok(());
        }
        let mut text = Vec::new();
        while let Some(piece) = self.next(&mut body).await? {
            let room = MOST_REFUSAL.saturating_sub(text.len()).min(piece.len());
            text.extend_from_slice(&piece[..room]);
        }
        Err(Error::Status { call: call.name(), code: status.as_u16(), message: refusal(&text) })
    }
}

/// The message of a `Status`, or the text itself.
pub fn refusal(text: &[u8]) -> String {
    let message =
        serde_json::from_slice::<Value>(text).ok().and_then(|v| v["message"].as_str().map(str::to_owned));
    message.unwrap_or_else(|| String::from_utf8_lossy(text).trim().chars().take(400).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use std::{io::Write, path::Path};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tokio_rustls::{
        TlsAcceptor,
        rustls::{
            RootCertStore, ServerConfig,
            crypto::ring,
            pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
            server::WebPkiClientVerifier,
        },
    };

    fn leaf(issuer: &CertifiedIssuer<'_, KeyPair>) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        (params.signed_by(&key, issuer).unwrap(), key)
    }

    /// A server that asks for client certificates and answers the requests of each connection in turn from a script,
    /// then closes it.
    async fn server(scripts: Vec<Vec<&'static str>>) -> (Arc<Target>, tokio::task::JoinHandle<Vec<String>>) {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let (certificate, key) = leaf(&ca);
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, client_key) = leaf(&ca);
        let encode = |text: String| {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD.encode(text)
        };
        let text = format!(
            "current-context: a\nclusters: [{{name: a, cluster: {{server: 'https://{}', certificate-authority-data: {}}}}}]\n\
             users: [{{name: a, user: {{client-certificate-data: {}, client-key-data: {}}}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n",
            listener.local_addr().unwrap(),
            encode(ca.pem()),
            encode(client.pem()),
            encode(client_key.serialize_pem()),
        );
        let path =
            std::env::temp_dir().join(format!("kaji-bench-test-{}", listener.local_addr().unwrap().port()));
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        let target = super::super::kubeconfig::load(Path::new(&path)).unwrap();
        std::fs::remove_file(&path).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let serving = tokio::spawn(async move {
            let mut seen = vec![];
            for script in scripts {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = acceptor.accept(stream).await.unwrap();
                for answer in script {
                    seen.push(request(&mut stream).await);
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    stream.flush().await.unwrap();
                }
                stream.shutdown().await.unwrap();
            }
            seen
        });
        (Arc::new(target), serving)
    }

    /// Reads one request: its first line and its body.
    async fn request(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
        let mut text = String::new();
        while !text.ends_with("\r\n\r\n") {
            text.push(char::from(stream.read_u8().await.unwrap()));
        }
        let length = text.lines().find_map(|l| {
            l.to_ascii_lowercase().strip_prefix("content-length: ").map(|n| n.parse::<usize>().unwrap())
        });
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).await.unwrap();
        format!("{} {}", text.lines().next().unwrap(), String::from_utf8(body).unwrap())
    }

    const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n6\r\n{}\n{}\n\r\n0\r\n\r\n";
    const REFUSED: &str = "HTTP/1.1 409 Conflict\r\ncontent-length: 17\r\n\r\n{\"message\":\"no\"}\n";

    #[tokio::test]
    async fn calls_share_a_connection_and_survive_its_end() {
        let (target, serving) = server(vec![vec![OK, CHUNKED, REFUSED], vec![OK]]).await;
        let mut client = Client::new(&target);
        let mut shown = vec![];
        shown.push(format!("{}", client.json(&Call::get("/a")).await.unwrap()));
        shown.push(format!("{} bytes", client.call(&Call::post("/b", "{}")).await.unwrap()));
        shown.push(client.call(&Call::delete("/c")).await.unwrap_err().to_string());
        shown.push(match client.call(&Call::merge("/d", &serde_json::json!({"x": null}))).await {
            Ok(bytes) => format!("{bytes} bytes"),
            Err(error) => error.to_string(),
        });
        shown.extend(serving.await.unwrap());
        expect![[r#"
            {"a":1}
            9 bytes
            DELETE /c: 409: no
            7 bytes
            GET /a HTTP/1.1 
            POST /b HTTP/1.1 {}
            DELETE /c HTTP/1.1 {"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"propagationPolicy":"Background"}
            PATCH /d HTTP/1.1 {"x":null}"#]].assert_eq(&shown.join("\n"));
    }

    #[tokio::test]
    async fn a_stream_that_breaks_off_is_an_error() {
        let half = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n6\r\n{}";
        let (target, serving) = server(vec![vec![half]]).await;
        let mut client = Client::new(&target);
        let response = client.open(&Call::get("/watch")).await.unwrap();
        let mut body = response.into_body();
        let mut read = 0;
        let error = loop {
            match client.next(&mut body).await {
                Ok(piece) => read += piece.expect("the end was not announced").len(),
                Err(error) => break error,
            }
        };
        assert!(read >= 3, "{read}");
        assert!(matches!(error, Error::Http(..) | Error::Closed(_)), "{error}");
        assert_eq!(serving.await.unwrap().len(), 1);
    }
}
