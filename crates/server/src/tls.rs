//! The TLS options of the server: versions, cipher suites and curves, by Go's names and numbers.
//! Source: upstream's `SecureServingOptions` and `component-base/cli/flag`.
//!
//! Invariant: an option that is not supported is refused, and nothing else is offered in its place.

use crate::{identity::Authorities, stack::StackError};
use std::sync::Arc;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        CipherSuite, NamedGroup, ServerConfig,
        crypto::{CryptoProvider, ring},
        server::{ResolvesServerCert, ServerSessionMemoryCache},
        version::{TLS12, TLS13},
    },
};

/// Names of suites before TLS 1.3: Go's, and two that upstream keeps from older times.
const SUITES: [(&str, CipherSuite); 8] = {
    use CipherSuite as C;
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", C::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", C::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", C::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", C::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", C::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", C::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", C::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", C::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ]
};
/// Those of TLS 1.3, which no server of Go's can choose among.
const ALWAYS: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// The oldest version of TLS that is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// 1.2
    #[default]
    Tls12,
    /// 1.3
    Tls13,
}

/// A cipher suite that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsSuite(Option<CipherSuite>);

/// A curve that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsCurve(NamedGroup);

/// The TLS options of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// `--tls-min-version`
    pub oldest: TlsVersion,
    /// `--tls-cipher-suites`: before TLS 1.3; all of them if none is named.
    pub suites: Vec<TlsSuite>,
    /// `--tls-curve-preferences`; all of them if none is named.
    pub curves: Vec<TlsCurve>,
}

impl std::str::FromStr for TlsVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "VersionTLS12" => Ok(TlsVersion::Tls12),
            "VersionTLS13" => Ok(TlsVersion::Tls13),
            "VersionTLS10" | "VersionTLS11" => {
                Err(format!("{text} is not safe any more and not supported; the oldest is VersionTLS12"))
            }
            _ => Err(format!("unknown tls version {text:?}")),
        }
    }
}

impl std::str::FromStr for TlsSuite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = SUITES.iter().find(|(name, _)| *name == text).map(|(_, suite)| TlsSuite(Some(*suite)));
        found
            .or_else(|| ALWAYS.contains(&text).then_some(TlsSuite(None)))
            .ok_or_else(|| format!("Cipher suite {text} not supported or doesn't exist"))
    }
}

impl std::str::FromStr for TlsCurve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: i32 = text.parse().map_err(|e| format!("{e}"))?;
        let id = u16::try_from(number)
            .ok()
            .filter(|id| *id > 0)
            .ok_or_else(|| format!("curve preference {number} is out of range (must be 1-{})", u16::MAX))?;
        let known = ring::default_provider().kx_groups.iter().map(|g| g.name()).find(|n| u16::from(*n) == id);
        known.map(TlsCurve).ok_or_else(|| format!("curve preference {id} is not supported by this server"))
    }
}

impl TlsOptions {
    /// Upstream's validation of the options.
    ///
    /// # Errors
    /// Options that contradict each other.
    pub fn validate(&self) -> Result<(), String> {
        for (i, TlsCurve(curve)) in self.curves.iter().enumerate() {
            if self.curves[..i].contains(&TlsCurve(*curve)) {
                return Err(format!("duplicate curve preference {}", u16::from(*curve)));
            }
        }
        // RFC 9113, 9.2.2: HTTP/2 over TLS 1.2 needs one of them.
        let http2 = [
            CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ];
        let any = self.suites.iter().any(|s| s.0.is_some_and(|s| http2.contains(&s)));
        if self.oldest == TlsVersion::Tls12 && !self.suites.is_empty() && !any {
            return Err("http2: TLSConfig.CipherSuites is missing an HTTP/2-required AES_128_GCM_SHA256 cipher (need at least one of TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)".into());
        }
        Ok(())
    }

    fn provider(&self) -> CryptoProvider {
        let mut provider = ring::default_provider();
        if !self.suites.is_empty() {
            provider.cipher_suites.retain(|suite| {
                suite.tls13().is_some() || self.suites.contains(&TlsSuite(Some(suite.suite())))
            });
        }
        if !self.curves.is_empty() {
            provider.kx_groups.retain(|group| self.curves.contains(&TlsCurve(group.name())));
        }
        provider
    }
}

/// TLS as the server presents it. `authorities` take any client certificate; requests decide what it is worth. What
/// `serving` answers may change from handshake to handshake. So many `sessions` are kept for clients that connect again; room
/// for all of them (120 bytes each) is taken at once.
pub fn tls(
    options: &TlsOptions,
    serving: Arc<dyn ResolvesServerCert>,
    authorities: Arc<Authorities>,
    sessions: usize,
) -> Result<TlsAcceptor, StackError> {
    options.validate().map_err(StackError::Tls)?;
    let versions = match options.oldest {
        TlsVersion::Tls12 => &[&TLS13, &TLS12][..],
        TlsVersion::Tls13 => &[&TLS13][..],
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(options.provider()))
        .with_protocol_versions(versions)
        .map_err(|e| StackError::Tls(e.to_string()))?
        .with_client_cert_verifier(authorities)
        .with_cert_resolver(serving);
    config.session_storage = ServerSessionMemoryCache::new(sessions);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(version: &str, suites: &[&str], curves: &[&str]) -> Result<String, String> {
        let options = TlsOptions {
            oldest: version.parse()?,
            suites: suites.iter().map(|s| s.parse()).collect::<Result<_, _>>()?,
            curves: curves.iter().map(|c| c.parse()).collect::<Result<_, _>>()?,
        };
        options.validate()?;
        let provider = options.provider();
        let suites: Vec<_> = provider.cipher_suites.iter().map(|s| format!("{:?}", s.suite())).collect();
        let curves: Vec<_> = provider.kx_groups.iter().map(|g| format!("{:?}", g.name())).collect();
        Ok(format!("{} {}", suites.join(" "), curves.join(" ")))
    }

    #[test]
    fn accepts_and_rejects_names_of_ciphers_and_curves() {
        let gcm = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        let all = [
            options("VersionTLS12", &[], &[]),
            options(
                "VersionTLS12",
                &[gcm, "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_AES_128_GCM_SHA256"],
                &["29", "24"],
            ),
            options("VersionTLS13", &["TLS_AES_128_GCM_SHA256"], &[]),
            options("VersionTLS12", &["TLS_AES_128_GCM_SHA256"], &[]),
            options("VersionTLS11", &[], &[]),
            options("VersionTLS14", &[], &[]),
            options("VersionTLS12", &["TLS_RSA_WITH_RC4_128_SHA"], &[]),
            options("VersionTLS12", &["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"], &[]),
            options("VersionTLS12", &[], &["0"]),
            options("VersionTLS12", &[], &["25"]),
            options("VersionTLS12", &[], &["29", "29"]),
            options("VersionTLS12", &[], &["x"]),
        ];
        let shown: Vec<String> =
            all.into_iter().map(|o| o.unwrap_or_else(|why| format!("refused: {why}"))).collect();
        expect_test::expect![[r#"
            TLS13_AES_256_GCM_SHA384 TLS13_AES_128_GCM_SHA256 TLS13_CHACHA20_POLY1305_SHA256 TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 X25519 secp256r1 secp384r1
            TLS13_AES_256_GCM_SHA384 TLS13_AES_128_GCM_SHA256 TLS13_CHACHA20_POLY1305_SHA256 TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 X25519 secp384r1
            TLS13_AES_256_GCM_SHA384 TLS13_AES_128_GCM_SHA256 TLS13_CHACHA20_POLY1305_SHA256 X25519 secp256r1 secp384r1
            refused: http2: TLSConfig.CipherSuites is missing an HTTP/2-required AES_128_GCM_SHA256 cipher (need at least one of TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)
            refused: VersionTLS11 is not safe any more and not supported; the oldest is VersionTLS12
            refused: unknown tls version "VersionTLS14"
            refused: Cipher suite TLS_RSA_WITH_RC4_128_SHA not supported or doesn't exist
            refused: Cipher suite TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA not supported or doesn't exist
            refused: curve preference 0 is out of range (must be 1-65535)
            refused: curve preference 25 is not supported by this server
            refused: duplicate curve preference 29
            refused: invalid digit found in string"#]].assert_eq(&shown.join("\n"));
    }
}
