//! Requests over a cluster's own TLS, each on a connection of its own, in HTTP/1.1.

use super::TestCluster;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

/// A connection, with the certificate of the cluster's admin or without any.
pub async fn connect(cluster: &TestCluster, admin: bool) -> TlsStream<TcpStream> {
    connect_for(cluster, admin, &[]).await
}

/// The same, for one of these protocols.
pub async fn connect_for(cluster: &TestCluster, admin: bool, protocols: &[&str]) -> TlsStream<TcpStream> {
    let pki = &cluster.cluster.pki;
    let certificates = |pem: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
    };
    let mut roots = RootCertStore::empty();
    certificates(&pki.ca.certificate).into_iter().for_each(|root| roots.add(root).unwrap());
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut tls = if admin {
        let key = PrivateKeyDer::from_pem_slice(pki.admin.key.as_bytes()).unwrap();
        tls.with_client_auth_cert(certificates(&pki.admin.certificate), key).unwrap()
    } else {
        tls.with_no_client_auth()
    };
    tls.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let tcp = TcpStream::connect(cluster.cluster.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.unwrap()
}

/// A request on such a connection.
pub async fn send_on(stream: TlsStream<TcpStream>, request: Request<Empty<Bytes>>) -> Response<Incoming> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await.unwrap()
}

/// A request as the cluster's admin.
pub async fn send(cluster: &TestCluster, request: Request<Empty<Bytes>>) -> Response<Incoming> {
    send_on(connect(cluster, true).await, request).await
}
