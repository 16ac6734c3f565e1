//! Authentication of HTTP requests, by the connection's certificate and by headers.
//!
//! Invariants:
//! - The handshake proves that a client owns its certificate; the authority that signed it decides what it may be used for.
//! - A refused client receives no reason.
//! - A [`Caller`] is made here alone, of credentials that were checked.

use crate::{
    authentication_metrics::{Attempt, AuthenticationMetrics},
    stack::StackError,
};
use kaji_auth::authn::{
    AuthenticationError, Certificates, Chain, Identity,
    subject::{self, Subject},
};
use kaji_meta::{Clock, Status, text::hex};
use kaji_resource::UserInfo;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, sync::Arc, time::Instant};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::ring,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

/// The peer of a connection, which the transport puts into each request's extensions.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    certificates: Arc<Certificates>,
    /// When the certificate ends.
    until: Option<jiff::Timestamp>,
}

impl Peer {
    /// A part of this process.
    pub fn trusted(user: Arc<UserInfo>) -> Self {
        let certificates = Certificates { client: Some(Ok(user)), proxy: None };
        Peer { certificates: Arc::new(certificates), until: None }
    }
}

/// A user with credentials that this server has checked. In the extensions of a request that the server makes on behalf of another one, it
/// stands for the credentials of that one: the user is the same, in the same groups.
#[derive(Clone, Debug)]
pub(crate) struct Caller(UserInfo);

impl Caller {
    /// The user, before any impersonation.
    pub fn user(&self) -> &UserInfo {
        &self.0
    }

    /// The same.
    pub fn into_user(self) -> UserInfo {
        self.0
    }
}

/// The outcome of authentication.
pub(crate) struct Authenticated {
    pub caller: Caller,
    /// Texts for the `Warning` header.
    pub warnings: Vec<String>,
}

/// The authentication of a server.
pub struct Authentication {
    /// The authenticators, in order.
    pub chain: Chain,
    /// Tells which certificates have ended.
    pub clock: Arc<dyn Clock>,
}

impl Authentication {
    /// Authenticates a request without metrics, for other servers of the process.
    ///
    /// # Errors
    /// 401, without a reason: that is logged.
    pub async fn authenticate(&self, parts: &http::request::Parts) -> Result<Identity, Status> {
        self.identify(parts).await.map_err(|refusal| unauthorized(&refusal))
    }

    /// Authenticates a request, with metrics. One on behalf of another was authenticated, and counted, with that one.
    pub(crate) async fn attempt(
        &self,
        parts: &http::request::Parts,
        attempts: &AuthenticationMetrics,
    ) -> Result<Authenticated, Status> {
        if let Some(caller) = parts.extensions.get::<Caller>() {
            return Ok(Authenticated { caller: caller.clone(), warnings: vec![] });
        }
        let started = Instant::now();
        let found = self.identify(parts).await;
        let attempt = match &found {
            Ok(identity) => Attempt::Success(&identity.user.name),
            Err(refusal) if refusal.is_for_no_credentials() => Attempt::Failure,
            Err(_) => Attempt::Error,
        };
        attempts.count(attempt, started.elapsed());
        if let Some(until) = parts.extensions.get::<Peer>().and_then(|peer| peer.until) {
            attempts.certificate(until.duration_since(self.clock.now()).as_secs_f64());
        }
        let Identity { user, warnings, audiences: _ } = found.map_err(|refusal| unauthorized(&refusal))?;
        Ok(Authenticated { caller: Caller(user), warnings })
    }

    async fn identify(&self, parts: &http::request::Parts) -> Result<Identity, AuthenticationError> {
        let anonymous = Peer::default();
        let peer = parts.extensions.get::<Peer>().unwrap_or(&anonymous);
        let ended = peer.until.is_some_and(|t| t < self.clock.now()).then(|| {
            let why = || "x509: certificate has expired or is not yet valid".to_owned();
            Certificates {
                client: peer.certificates.client.as_ref().map(|_| Err(why())),
                proxy: peer.certificates.proxy.as_ref().map(|_| Err(why())),
            }
        });
        let certificates = ended.as_ref().unwrap_or(&peer.certificates);
        self.chain.authenticate(certificates, &parts.headers, parts.uri.path()).await
    }
}

fn unauthorized(refusal: &AuthenticationError) -> Status {
    tracing::info!(reason = %refusal, "unable to authenticate a request");
    Status::unauthorized("Unauthorized")
}

/// Accepts any certificate that the client proves to have the key of. Requests decide what it is worth.
#[derive(Debug)]
pub struct Authorities {
    client: Arc<dyn ClientCertVerifier>,
    proxy: Arc<dyn ClientCertVerifier>,
    hints: Vec<DistinguishedName>,
}

impl Authorities {
    /// The authorities for clients and those for front proxies, PEM.
    pub fn new(client: &str, proxy: &str) -> Result<Self, StackError> {
        let (client, proxy) = (verifier(client)?, verifier(proxy)?);
        let hints = [client.root_hint_subjects(), proxy.root_hint_subjects()].concat();
        Ok(Authorities { client, proxy, hints })
    }

    /// What a certificate chain says.
    pub fn peer(&self, chain: Option<&[CertificateDer<'_>]>) -> Peer {
        let Some((leaf, others)) = chain.and_then(<[_]>::split_first) else { return Peer::default() };
        let signed = |by: &Arc<dyn ClientCertVerifier>| {
            let checked = by.verify_client_cert(leaf, others, UnixTime::now());
            checked.map(drop).map_err(|e| format!("x509: {e}"))
        };
        let name = || common_name(leaf).map_err(|e| e.to_string());
        let user = || from_certificate(leaf).map(Arc::new).map_err(|e| e.to_string());
        let certificates = Certificates {
            client: Some(signed(&self.client).and_then(|()| user())),
            proxy: Some(signed(&self.proxy).and_then(|()| name())),
        };
        let until = x509_parser::parse_x509_certificate(leaf)
            .ok()
            .and_then(|(_, c)| jiff::Timestamp::from_second(c.validity().not_after.timestamp()).ok());
        Peer { certificates: Arc::new(certificates), until }
    }
}

fn verifier(authority: &str) -> Result<Arc<dyn ClientCertVerifier>, StackError> {
    let error = |e: &dyn std::fmt::Display| StackError::Tls(e.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate.map_err(|e| error(&e))?).map_err(|e| error(&e))?;
    }
    let provider = Arc::new(ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(|e| error(&e))
}

impl ClientCertVerifier for Authorities {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.client.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.client.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.client.supported_verify_schemes()
    }
}

fn malformed(e: impl std::fmt::Display) -> StackError {
    StackError::Certificate(format!("client certificate: {e}"))
}

fn common_name(der: &[u8]) -> Result<String, StackError> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(malformed)?;
    Ok(subject::read(certificate.subject()).map_err(malformed)?.common_name)
}

/// The user of a client certificate: CN is the name, every O is a group.
/// Source: Kubernetes, "Authenticating", X509 client certificates.
pub fn from_certificate(der: &[u8]) -> Result<UserInfo, StackError> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(malformed)?;
    let Subject { common_name: name, organizations: groups, uids } =
        subject::read(certificate.subject()).map_err(malformed)?;
    if name.is_empty() {
        return Err(StackError::Certificate("client certificate has no common name".into()));
    }
    if uids.len() > 1 || uids.iter().any(String::is_empty) {
        return Err(StackError::Certificate("client certificate has no single uid".into()));
    }
    // KEP-740: which credential it was, for audit and for what is made on its behalf.
    let id = format!("X509SHA256={}", hex(&Sha256::digest(der)));
    let extra = BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), vec![id])]);
    Ok(UserInfo { name, uid: uids.into_iter().next().unwrap_or_default(), groups, extra })
}
