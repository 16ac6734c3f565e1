//! Clients of a node: of a server that is not verified yet, with a token, with a certificate, and with the current
//! certificate.

use super::{AgentError, identity::Credential};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::StreamExt;
use http::{Request, uri::Authority};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(Authority);

impl Endpoint {
    /// Reads `host:port`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn parse(text: &str) -> Result<Endpoint, AgentError> {
        let bad =
            || AgentError::Usage(format!("{text:?} is no address of an API server: expected host:port"));
        let authority: Authority = text.parse().map_err(|_| bad())?;
        if authority.port_u16().is_none() || authority.host().is_empty() || text.contains('@') {
            return Err(bad());
        }
        Ok(Endpoint(authority))
    }

    fn config(&self) -> Result<kube::Config, AgentError> {
        let url = format!("https://{}", self.0).parse();
        let url = url.map_err(|e| AgentError::Usage(format!("{}: {e}", self.0)))?;
        let mut config = kube::Config::new(url);
        // Callers decide which requests are retried.
        config.default_retry = false;
        Ok(config)
    }

    /// A client that does not verify the server: only public data may be sent.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn unverified(&self) -> Result<kube::Client, AgentError> {
        let mut config = self.config()?;
        config.root_cert = Some(vec![]);
        config.accept_invalid_certs = true;
        client(config)
    }

    /// A client without credentials of a server that one of the authorities (DER) has signed.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn verified(&self, authorities: &[Vec<u8>]) -> Result<kube::Client, AgentError> {
        self.with(authorities, Value::Null)
    }

    /// The same, with a token.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn with_token(&self, authorities: &[Vec<u8>], token: &str) -> Result<kube::Client, AgentError> {
        self.with(authorities, json!({"token": token}))
    }

    /// The same, with a certificate.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn with_certificate(
        &self,
        authorities: &[Vec<u8>],
        credential: &Credential,
    ) -> Result<kube::Client, AgentError> {
        let user = json!({
            "client-certificate-data": STANDARD.encode(&credential.certificate),
            "client-key-data": STANDARD.encode(&credential.key),
        });
        self.with(authorities, user)
    }

    fn with(&self, authorities: &[Vec<u8>], user: Value) -> Result<kube::Client, AgentError> {
        let mut config = self.config()?;
        config.root_cert = Some(authorities.to_vec());
        if !user.is_null() {
            config.auth_info = serde_json::from_value(user).map_err(|e| AgentError::Usage(e.to_string()))?;
        }
        client(config)
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

fn client(config: kube::Config) -> Result<kube::Client, AgentError> {
    kube::Client::try_from(config).map_err(|e| AgentError::Usage(format!("cannot set up TLS: {e}")))
}

/// A client that sends each request with the current client. Watches of a former one end, so that no connection outlives its
/// certificate for long.
pub fn newest(current: &watch::Receiver<kube::Client>) -> kube::Client {
    let current = current.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let mut current = current.clone();
        async move {
            let client = current.borrow_and_update().clone();
            let watches = request.uri().query().is_some_and(|q| q.split('&').any(|p| p == "watch=true"));
            let response = client.send(request).await?;
            Ok::<_, kube::Error>(response.map(|body| {
                if !watches {
                    return body.boxed_unsync();
                }
                let renewed = async move {
                    // A dropped sender ends watches as well: the agent is stopping.
                    let _ = current.changed().await;
                };
                StreamBody::new(BodyStream::new(body).take_until(Box::pin(renewed))).boxed_unsync()
            }))
        }
    });
    kube::Client::new(service, "default")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_endpoints() {
        for good in ["127.0.0.1:6443", "[::1]:6443", "kaji.example.com:443"] {
            assert_eq!(Endpoint::parse(good).unwrap().to_string(), good);
        }
        for bad in ["", "host", "https://host:1", "host:x", "host:1/path", "user@host:1", ":1", "a b:1"] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }
}
