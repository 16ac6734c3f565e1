//! Mirrors, plain HTTP and certificates of registries, in the shape of the `registries.yaml` that k3s has:
//! `mirrors.<registry>.endpoint`, `configs.<host>.auth` and `configs.<host>.tls`.

use super::transport::Url;
use crate::error::ImageError;
use crate::reference::Reference;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use kaji_containers::RegistryAuth;
use serde::Deserialize;
use std::collections::BTreeMap;

/// How registries are reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistryConfig {
    /// By registry as references name it; `*` for all others.
    pub mirrors: BTreeMap<String, Mirror>,
    /// By host and port.
    pub configs: BTreeMap<String, HostConfig>,
    /// Hosts (with port) without TLS, besides those of this machine.
    #[serde(rename = "plainHTTP")]
    pub plain_http: Vec<String>,
}

/// Other places of a registry's content.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mirror {
    /// URLs; they are asked in this order, before the registry itself.
    pub endpoint: Vec<String>,
}

/// One host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Credentials for pulls that have none.
    pub auth: Option<HostAuth>,
    /// How its certificate is verified.
    pub tls: HostTls,
}

/// Credentials.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostAuth {
    /// With a password.
    pub username: String,
    /// Of the user.
    pub password: String,
    /// Both, in base64.
    pub auth: String,
    /// A refresh token.
    pub identity_token: String,
}

impl std::fmt::Debug for HostAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostAuth(secret)")
    }
}

/// Verification of a certificate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostTls {
    /// A file with authorities, PEM; the machine's if there is none.
    pub ca_file: String,
    /// The certificate is not verified.
    pub insecure_skip_verify: bool,
}

/// Where a registry's content is.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Scheme, host, and a path without a slash at its end.
    pub url: String,
    /// It is not the registry itself.
    pub mirror: bool,
    /// Configured credentials.
    pub auth: Option<RegistryAuth>,
    /// Authorities, PEM.
    pub ca_bundle: Vec<u8>,
    /// The certificate is not verified.
    pub insecure: bool,
}

impl RegistryConfig {
    /// Parses a configuration in YAML or JSON.
    ///
    /// # Errors
    /// [`ImageError::Invalid`], also for unknown fields.
    pub fn parse(text: &str) -> Result<RegistryConfig, ImageError> {
        if text.trim().is_empty() {
            return Ok(RegistryConfig::default());
        }
        kaji_files::yaml::decode(text).map_err(|error| ImageError::Invalid(error.to_string()))
    }

    /// Whether all mirrors are URLs, before a pull meets one that is not.
    pub(super) fn check_mirrors(&self) -> Result<(), ImageError> {
        for (registry, mirror) in &self.mirrors {
            for url in &mirror.endpoint {
                Url::parse(&self.mirror_url(url))
                    .map_err(|error| error.within(&format!("mirrors.{registry}")))?;
            }
        }
        Ok(())
    }

    fn mirror_url(&self, text: &str) -> String {
        let url = if text.contains("://") { text.to_owned() } else { self.origin(text) };
        url.trim_end_matches('/').to_owned()
    }

    /// Where a reference may be pulled from, the registry itself last.
    pub(super) fn endpoints(&self, reference: &Reference) -> Result<Vec<Endpoint>, ImageError> {
        let mirror = self.mirrors.get(reference.registry()).or_else(|| self.mirrors.get("*"));
        let mut endpoints = vec![];
        for url in mirror.iter().flat_map(|mirror| &mirror.endpoint) {
            endpoints.push(self.endpoint(self.mirror_url(url), true)?);
        }
        endpoints.push(self.endpoint(self.origin(reference.host()), false)?);
        Ok(endpoints)
    }

    fn origin(&self, host: &str) -> String {
        let scheme =
            if is_local(host) || self.plain_http.iter().any(|h| h == host) { "http" } else { "https" };
        format!("{scheme}://{host}")
    }

    fn endpoint(&self, url: String, mirror: bool) -> Result<Endpoint, ImageError> {
        let host = url.split("://").nth(1).unwrap_or_default().split('/').next().unwrap_or_default();
        let config = self.configs.get(host);
        let tls = config.map(|config| config.tls.clone()).unwrap_or_default();
        let ca_bundle = if tls.ca_file.is_empty() {
            vec![]
        } else {
            std::fs::read(&tls.ca_file)
                .map_err(|error| ImageError::Invalid(format!("registries: {}: {error}", tls.ca_file)))?
        };
        let auth = config.and_then(|config| config.auth.clone()).map(|auth| RegistryAuth {
            username: auth.username,
            password: auth.password,
            auth: auth.auth,
            identity_token: auth.identity_token,
            registry_token: String::new(),
        });
        Ok(Endpoint { url, mirror, auth, ca_bundle, insecure: tls.insecure_skip_verify })
    }
}

/// Registries on this machine have no TLS by default, as with Docker.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The value of the header for Basic authentication, if there are a user and a password.
pub(super) fn basic(auth: &RegistryAuth) -> Option<String> {
    if !auth.username.is_empty() || !auth.password.is_empty() {
        let pair = format!("{}:{}", auth.username, auth.password);
        return Some(format!("Basic {}", BASE64_STANDARD.encode(pair)));
    }
    (!auth.auth.is_empty()).then(|| format!("Basic {}", auth.auth.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_come_before_the_registry() {
        let config = RegistryConfig::parse(
            "mirrors: {docker.io: {endpoint: ['http://mirror:5000/']}}\nconfigs: {'mirror:5000': {auth: {username: u, \
             password: p}}}\nplainHTTP: ['r.example:80']",
        )
        .unwrap();
        let urls = |text: &str| -> Vec<String> {
            let endpoints = config.endpoints(&Reference::parse(text).unwrap()).unwrap();
            endpoints.into_iter().map(|endpoint| endpoint.url).collect()
        };
        assert_eq!(urls("nginx"), ["http://mirror:5000", "https://registry-1.docker.io"]);
        assert_eq!(urls("r.example:80/x"), ["http://r.example:80"]);
        assert_eq!(urls("localhost:5000/x"), ["http://localhost:5000"]);
        assert_eq!(urls("[::1]:5000/x"), ["http://[::1]:5000"]);
        assert_eq!(urls("registry.k8s.io/x"), ["https://registry.k8s.io"]);
        assert!(RegistryConfig::parse("mirors: {}").is_err());
    }
}
