//! The configuration of a client: the target, and how both sides are authenticated.

use crate::CallError;
use kaji_meta::text::clean_path;
use std::fmt;

/// The server that is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// `https://host[:port]/path`
    Url(String),
    /// `http://host:port`, without TLS: nothing of the configuration but this is used.
    Plain {
        /// A name or an address.
        host: String,
        /// The port there.
        port: u16,
    },
    /// A service of this cluster.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Where on it; `""` for `/`.
        path: String,
        /// Of the service, not of what is behind it; 443 mostly.
        port: u16,
    },
}

impl Target {
    /// `host:port` as URLs of the server show it; empty for a URL that is none.
    pub fn authority(&self) -> String {
        TargetParts::of(self).map(|place| place.authority).unwrap_or_default()
    }
}

/// The configuration of a client. Equal ones share their connections.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClientConfig {
    /// The server.
    pub target: Target,
    /// Authorities of the server's certificate, PEM; empty for the machine's.
    pub ca_bundle: Vec<u8>,
    /// The server's certificate is not verified.
    pub insecure: bool,
    /// The name that the certificate must be for, if it is not that of the target.
    pub server_name: Option<String>,
    /// Certificate chain and key of this side, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The value of the `Authorization` header.
    pub authorization: Option<String>,
}

/// Keys and tokens stay out of logs.
impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig").field("target", &self.target).finish_non_exhaustive()
    }
}

impl ClientConfig {
    /// Calls to a target with a certificate that one of these authorities must have issued.
    pub fn new(target: Target, ca_bundle: impl Into<Vec<u8>>) -> ClientConfig {
        ClientConfig {
            target,
            ca_bundle: ca_bundle.into(),
            insecure: false,
            server_name: None,
            identity: None,
            authorization: None,
        }
    }
}

/// A target taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetParts {
    /// `host:port` as URLs show it; a port that a URL leaves out stays out.
    pub authority: String,
    /// Without brackets.
    pub host: String,
    pub port: u16,
    /// Begins with a slash.
    pub path: String,
}

impl TargetParts {
    pub fn of(target: &Target) -> Result<TargetParts, CallError> {
        match target {
            Target::Service { namespace, name, path, port } => {
                let host = format!("{name}.{namespace}.svc");
                Ok(TargetParts {
                    authority: format!("{host}:{port}"),
                    host,
                    port: *port,
                    path: clean_path(path.trim_end_matches('/')),
                })
            }
            Target::Plain { host, port } => {
                let authority = authority(host, *port);
                Ok(TargetParts { authority, host: host.clone(), port: *port, path: "/".into() })
            }
            Target::Url(url) => {
                let wrong = |why: String| CallError::Config(format!("Unparsable URL: parse {url:?}: {why}"));
                let uri: http::Uri = url.parse().map_err(|e: http::uri::InvalidUri| wrong(e.to_string()))?;
                let authority = uri.authority().ok_or_else(|| wrong("no host in URL".into()))?;
                if uri.scheme_str() != Some("https") {
                    return Err(wrong("the scheme must be https".into()));
                }
                let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
                let port = authority.port_u16().unwrap_or(443);
                Ok(TargetParts {
                    authority: authority.to_string(),
                    host,
                    port,
                    path: clean_path(uri.path().trim_end_matches('/')),
                })
            }
        }
    }
}

/// A host and its port as URLs show them.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn splits_targets_into_authority_and_path() {
        let url = |url: &str| match TargetParts::of(&Target::Url(url.into())) {
            Ok(p) => format!("{} {} {} {}\n", p.authority, p.host, p.port, p.path),
            Err(e) => format!("{e}\n"),
        };
        let mut seen = String::new();
        for text in [
            "https://a.b",
            "https://a.b:8443/x/",
            "https://[::1]:1/x//y/../z",
            "http://a.b",
            "https://",
            "/x",
            "https://a.b/\n",
        ] {
            seen += &url(text);
        }
        let service =
            Target::Service { namespace: "n".into(), name: "s".into(), path: String::new(), port: 443 };
        seen += &format!("{:?}", TargetParts::of(&service).unwrap());
        expect![[r#"
            a.b a.b 443 /
            a.b:8443 a.b 8443 /x
            [::1]:1 ::1 1 /x/z
            Unparsable URL: parse "http://a.b": the scheme must be https
            Unparsable URL: parse "https://": empty string
            Unparsable URL: parse "/x": no host in URL
            Unparsable URL: parse "https://a.b/\n": invalid uri character
            TargetParts { authority: "s.n.svc:443", host: "s.n.svc", port: 443, path: "/" }"#]]
        .assert_eq(&seen);
    }
}
