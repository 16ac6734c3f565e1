//! Verification of server certificates, for the requested name, against the configured authorities.
//!
//! In addition to the library's verification, a certificate that is itself among the authorities is accepted, as Go does:
//! webhooks often have one self-signed certificate that is both. Errors have Go's texts.

use crate::{CallError, ClientConfig, config::TargetParts, error::cause};
use std::{
    fmt,
    sync::{Arc, LazyLock},
};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig as Tls, DigitallySignedStruct, Error, OtherError, RootCertStore,
    SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
    sign::CertifiedKey,
};
use x509_parser::{extensions::GeneralName, prelude::X509Certificate};

/// As ALPN calls it.
pub(crate) const HTTP2: &[u8] = b"h2";

/// A certificate that is rejected, with Go's reason.
#[derive(Debug)]
struct Untrusted(String);

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Untrusted {}

fn untrusted(why: impl Into<String>) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(Untrusted(why.into())))))
}

/// The machine's own authorities, read once.
static MACHINE: LazyLock<Vec<CertificateDer<'static>>> =
    LazyLock::new(|| rustls_native_certs::load_native_certs().certs);

#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// `None` when there are no authorities at all.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    roots: Vec<CertificateDer<'static>>,
    insecure: bool,
}

impl Verifier {
    fn new(provider: Arc<CryptoProvider>, roots: Vec<CertificateDer<'static>>, insecure: bool) -> Verifier {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.iter().cloned());
        let webpki = match store.is_empty() {
            true => None,
            false => {
                WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone()).build().ok()
            }
        };
        Verifier { provider, webpki, roots, insecure }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.insecure {
            return Ok(ServerCertVerified::assertion());
        }
        let result = if self.roots.iter().any(|root| root == leaf) {
            in_time(leaf, now)
                .and_then(|()| verify_server_name(&ParsedCertificate::try_from(leaf)?, name))
                .map(|()| ServerCertVerified::assertion())
        } else {
            match &self.webpki {
                Some(webpki) => webpki.verify_server_cert(leaf, chain, name, ocsp, now),
                None => Err(untrusted("certificate signed by unknown authority")),
            }
        };
        result.map_err(|error| in_words(error, leaf, name, now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn parsed<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    x509_parser::parse_x509_certificate(der).ok().map(|(_, certificate)| certificate)
}

fn in_time(leaf: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let certificate = parsed(leaf).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = certificate.validity();
    if now > validity.not_after.timestamp() {
        return Err(Error::InvalidCertificate(CertificateError::Expired));
    }
    if now < validity.not_before.timestamp() {
        return Err(Error::InvalidCertificate(CertificateError::NotValidYet));
    }
    Ok(())
}

/// A refusal as Go's x509 words it.
fn in_words(error: Error, leaf: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Error {
    use CertificateError as E;
    let Error::InvalidCertificate(kind) = &error else { return error };
    let time = |at: i64| jiff::Timestamp::from_second(at).map(|t| t.to_string()).unwrap_or_default();
    let now = || time(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let late = "certificate has expired or is not yet valid: current time";
    let certificate = parsed(leaf);
    let why = match kind {
        // The library refuses an authority's own certificate as such, before it looks for an issuer.
        E::Other(_) if certificate.as_ref().is_some_and(|c| c.is_ca() && c.issuer() == c.subject()) => {
            "certificate signed by unknown authority".to_owned()
        }
        E::Other(_) => return error,
        E::UnknownIssuer | E::BadSignature => "certificate signed by unknown authority".to_owned(),
        E::Expired | E::ExpiredContext { .. } => {
            let end = certificate.map(|c| c.validity().not_after.timestamp()).unwrap_or_default();
            format!("{late} {} is after {}", now(), time(end))
        }
        E::NotValidYet | E::NotValidYetContext { .. } => {
            let begin = certificate.map(|c| c.validity().not_before.timestamp()).unwrap_or_default();
            format!("{late} {} is before {}", now(), time(begin))
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => names(certificate.as_ref(), name),
        other => other.to_string(),
    };
    untrusted(why)
}

/// What Go says of a certificate for other names.
fn names(certificate: Option<&X509Certificate<'_>>, wanted: &ServerName<'_>) -> String {
    let (mut hosts, mut addresses) = (vec![], vec![]);
    let san = certificate.and_then(|c| c.subject_alternative_name().ok().flatten());
    for name in san.iter().flat_map(|s| &s.value.general_names) {
        match name {
            GeneralName::DNSName(host) => hosts.push((*host).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let v4 = <[u8; 4]>::try_from(*bytes).map(|b| std::net::IpAddr::from(b).to_string());
                let v6 = <[u8; 16]>::try_from(*bytes).map(|b| std::net::IpAddr::from(b).to_string());
                addresses.extend(v4.or(v6).ok());
            }
            _ => {}
        }
    }
    let (valid, wanted) = match wanted {
        ServerName::IpAddress(ip) => {
            let ip = std::net::IpAddr::from(*ip).to_string();
            if addresses.is_empty() {
                return format!(
                    "cannot validate certificate for {ip} because it doesn't contain any IP SANs"
                );
            }
            (addresses, ip)
        }
        name => (hosts, name.to_str().into_owned()),
    };
    if valid.is_empty() {
        return format!("certificate is not valid for any names, but wanted to match {wanted}");
    }
    format!("certificate is valid for {}, not {wanted}", valid.join(", "))
}

/// Whether there is anything in a bundle of authorities, PEM, that servers can be verified by.
///
/// # Errors
/// What is wrong with it, as clients of Go programs know it.
pub fn check_bundle(pem: &[u8]) -> Result<(), String> {
    let mut store = RootCertStore::empty();
    let mut problem = "unable to parse bytes as PEM block".to_owned();
    for certificate in CertificateDer::pem_slice_iter(pem).flatten() {
        match store.add(certificate) {
            Ok(()) => return Ok(()),
            Err(error) => problem = format!("failed to parse certificate: {error}"),
        }
    }
    Err(format!("unable to load root certificates: {problem}"))
}

/// A certificate chain and its key, PEM.
type Pair<'a> = (&'a [u8], &'a [u8]);

fn parse((chain, key): Pair<'_>) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    Ok((chain.map_err(|e| e.to_string())?, PrivateKeyDer::from_pem_slice(key).map_err(|e| e.to_string())?))
}

/// Whether a certificate chain and a key, PEM, belong together.
///
/// # Errors
/// What is wrong with them.
pub fn check_identity(chain: &[u8], key: &[u8]) -> Result<(), String> {
    let (chain, key) = parse((chain, key))?;
    if chain.is_empty() {
        return Err("failed to find any PEM data in certificate input".into());
    }
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
    certified.map(drop).map_err(|e| match e {
        Error::InconsistentKeys(_) => "private key does not match public key".into(),
        other => other.to_string(),
    })
}

/// The TLS side of a configuration.
pub(crate) fn config(config: &ClientConfig) -> Result<Tls, CallError> {
    let provider = Arc::new(ring::default_provider());
    let roots: Vec<CertificateDer<'static>> = if config.insecure {
        vec![]
    } else if config.ca_bundle.is_empty() {
        MACHINE.clone()
    } else {
        // As Go does, what cannot be read is left out.
        let found: Vec<_> = CertificateDer::pem_slice_iter(&config.ca_bundle).flatten().collect();
        if found.is_empty() {
            let text = "unable to load root certificates: unable to parse bytes as PEM block";
            return Err(CallError::Config(text.into()));
        }
        found
    };
    let verifier = Verifier::new(provider.clone(), roots, config.insecure);
    let wrong = |e: &dyn fmt::Display| CallError::Config(format!("tls: {e}"));
    let builder = Tls::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut tls = match &config.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let (chain, key) = parse((chain, key)).map_err(|e| wrong(&e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| wrong(&e))?
        }
    };
    tls.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

/// The name that a certificate must be for.
pub(crate) fn name(config: &ClientConfig, place: &TargetParts) -> Result<ServerName<'static>, CallError> {
    let name = config.server_name.as_deref().unwrap_or(&place.host);
    ServerName::try_from(name.to_owned())
        .map_err(|_| CallError::Config(format!("tls: {name:?} is not a name that a certificate can be for")))
}

/// A handshake that failed.
pub(crate) fn failed(error: &std::io::Error) -> CallError {
    if let Some(Error::InvalidCertificate(kind)) = cause::<Error>(error) {
        let why = match kind {
            CertificateError::Other(OtherError(other)) => other.to_string(),
            other => other.to_string(),
        };
        return CallError::Transport(format!("tls: failed to verify certificate: x509: {why}"));
    }
    match cause::<Error>(error) {
        Some(Error::InvalidMessage(_)) => {
            CallError::Transport("tls: first record does not look like a TLS handshake".into())
        }
        Some(Error::AlertReceived(alert)) => {
            CallError::Transport(format!("remote error: tls: {}", spaced(&format!("{alert:?}"))))
        }
        Some(other) => CallError::Transport(format!("tls: {other}")),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => CallError::Transport("EOF".into()),
        None => CallError::Transport(format!("read tcp: read: {}", crate::error::words(error))),
    }
}

/// `BadCertificate` as `bad certificate`.
fn spaced(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push(' ');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `openssl req -x509` makes it.
    fn authority() -> CertificateDer<'static> {
        let mut params = rcgen::CertificateParams::new(vec!["webhook.test".to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let made = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        made.der().clone()
    }

    #[test]
    fn an_authority_of_its_own_is_unknown_unless_it_is_named() {
        let (one, other) = (authority(), authority());
        let verdict = |roots: &[&CertificateDer<'static>]| {
            let roots = roots.iter().map(|root| (*root).clone()).collect();
            let verifier = Verifier::new(Arc::new(ring::default_provider()), roots, false);
            let name = ServerName::try_from("webhook.test").unwrap();
            match verifier.verify_server_cert(&one, &[], &name, &[], UnixTime::now()) {
                Ok(_) => "trusted".to_owned(),
                Err(Error::InvalidCertificate(CertificateError::Other(OtherError(why)))) => why.to_string(),
                Err(error) => format!("{error:?}"),
            }
        };
        let unknown = "certificate signed by unknown authority";
        assert_eq!((&*verdict(&[&one]), &*verdict(&[&other]), &*verdict(&[])), ("trusted", unknown, unknown));
    }
}
