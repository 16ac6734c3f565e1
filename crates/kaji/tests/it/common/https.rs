//! A server that is none of the cluster's, over TLS on a port of its own: issuers, reviewers, authorizers.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper_util::rt::TokioIo;
use kaji_server::pki::Pki;
use std::{convert::Infallible, io, path::Path, sync::Arc};
use tokio::net::TcpListener;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// The body of an answer, which may break off.
pub type Answer = UnsyncBoxBody<Bytes, io::Error>;

/// A server that has its port and does not answer yet.
pub struct Https {
    tcp: TcpListener,
    /// Its certificates.
    pub pki: Pki,
    /// Where it is, without a path.
    pub url: String,
}

impl Https {
    /// Takes a free port of the loopback; certificates are made in `dir`.
    pub async fn bind(dir: &Path) -> Https {
        Https::bind_as(dir, &["127.0.0.1"]).await
    }

    /// The same, with a certificate for these names.
    pub async fn bind_as(dir: &Path, names: &[&str]) -> Https {
        let names: Vec<String> = names.iter().map(|n| (*n).into()).collect();
        let pki = Pki::ensure(dir, &names, jiff::Timestamp::now()).unwrap();
        let tcp = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("https://{}", tcp.local_addr().unwrap());
        Https { tcp, pki, url }
    }

    /// Answers from now on, by path and body, with a code and a body.
    pub fn serve(self, answer: impl Fn(&str, &[u8]) -> (u16, String) + Clone + Send + 'static) -> Pki {
        self.serve_late(move |path, sent| {
            let (path, _) = path.split_once('?').unwrap_or((&path, ""));
            std::future::ready(answer(path, &sent))
        })
    }

    /// The same, in its own time and by path with query.
    pub fn serve_late<F>(self, answer: impl Fn(String, Bytes) -> F + Clone + Send + 'static) -> Pki
    where
        F: Future<Output = (u16, String)> + Send + 'static,
    {
        self.serve_with(move |path, sent| {
            let answer = answer(path, sent);
            async move {
                let (code, body) = answer.await;
                let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
                Response::builder().status(code).body(body).unwrap()
            }
        })
    }

    /// Answers from now on, by path with query and body, in whatever way.
    pub fn serve_with<T>(self, answer: impl Fn(String, Bytes) -> T + Clone + Send + 'static) -> Pki
    where
        T: Future<Output = Response<Answer>> + Send + 'static,
    {
        self.serve_requests(move |path, _, sent| answer(path, sent))
    }

    /// The same, by headers, too.
    pub fn serve_requests<T>(
        self,
        answer: impl Fn(String, HeaderMap, Bytes) -> T + Clone + Send + 'static,
    ) -> Pki
    where
        T: Future<Output = Response<Answer>> + Send + 'static,
    {
        let Https { tcp, pki, .. } = self;
        let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                CertificateDer::pem_slice_iter(pki.serving.certificate.as_bytes())
                    .map(Result::unwrap)
                    .collect(),
                PrivateKeyDer::from_pem_slice(pki.serving.key.as_bytes()).unwrap(),
            )
            .unwrap();
        let tls = TlsAcceptor::from(Arc::new(tls));
        tokio::spawn(async move {
            while let Ok((stream, _)) = tcp.accept().await {
                let Ok(stream) = tls.accept(stream).await else { continue };
                let answer = answer.clone();
                let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                    let answer = answer.clone();
                    async move {
                        let path = request.uri().path_and_query().unwrap().as_str().to_owned();
                        let headers = request.headers().clone();
                        let sent = request.into_body().collect().await.unwrap().to_bytes();
                        Ok::<_, Infallible>(answer(path, headers, sent).await)
                    }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        pki
    }
}
