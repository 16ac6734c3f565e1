//! Servers of the tests' own, on the loopback.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
    server::TlsStream,
};

/// A connection to it.
pub type Stream = TlsStream<tokio::net::TcpStream>;

/// A running one.
pub struct Server {
    /// Without a path.
    pub url: String,
    /// PEM.
    pub ca: String,
    /// Connections so far.
    pub connections: Arc<AtomicUsize>,
}

/// A server with a self-signed certificate for these names, which answers on each connection with `talk`.
pub async fn server<F>(names: &[&str], talk: impl Fn(Stream) -> F + Send + 'static) -> Server
where
    F: Future<Output = ()> + Send + 'static,
{
    offering(&[], names, talk).await
}

/// The same, which offers these protocols.
pub async fn offering<F>(
    protocols: &[&str],
    names: &[&str],
    talk: impl Fn(Stream) -> F + Send + 'static,
) -> Server
where
    F: Future<Output = ()> + Send + 'static,
{
    let names: Vec<String> = names.iter().map(|n| (*n).into()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
    let tls = TlsAcceptor::from(Arc::new(tls));
    let tcp = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("https://{}", tcp.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = tcp.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            if let Ok(stream) = tls.accept(stream).await {
                tokio::spawn(talk(stream));
            }
        }
    });
    Server { url, ca: made.cert.pem(), connections }
}

/// Reads one request; its head and body.
pub async fn request(stream: &mut Stream) -> Option<String> {
    let mut all = vec![];
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(n) if n > 0 => all.extend_from_slice(&piece[..n]),
            _ => return None,
        }
    }
}

/// Sends this.
pub async fn say(stream: &mut Stream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
}

/// Answers every request with the same.
pub fn answers(text: &'static str) -> impl Fn(Stream) -> Talk + Send + 'static {
    move |mut stream| {
        Box::pin(async move {
            while request(&mut stream).await.is_some() {
                say(&mut stream, text).await;
            }
        })
    }
}

/// What a server does on a connection.
pub type Talk = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server that offers both protocols and speaks HTTP/1.1 alone: it answers one request of a connection, and waits for its
/// end.
pub async fn only_http1(text: &'static str) -> Server {
    offering(&["h2", "http/1.1"], &["127.0.0.1"], move |mut stream: Stream| async move {
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        request(&mut stream).await;
        say(&mut stream, text).await;
        let _ = stream.read(&mut [0]).await;
    })
    .await
}
