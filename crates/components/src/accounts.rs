//! Service accounts of controllers: each controller acts as its own account of `kube-system`, by a token that the manager requests
//! (`--use-service-account-credentials`). So the default roles hold for it, as in upstream's controller manager.
//!
//! Invariants: a token is renewed well before it ends; an account that does not exist is created; a token that the server does not
//! accept is used no more.
//!
//! Source: `DynamicControllerClientBuilder` of `k8s.io/controller-manager`.

use http::HeaderValue;
use kaji_auth::authz::policy;
use kaji_runtime::{Client, Error, Target};
use serde_json::{Value, json};
use std::{collections::HashMap, time::Duration};
use tokio::{sync::Mutex, time::Instant};

/// For how long tokens are requested.
const LIFETIME: Duration = Duration::from_secs(3600);
const NAMESPACE: &str = "kube-system";

struct Token {
    authorization: HeaderValue,
    renew_at: Instant,
}

/// The accounts of all controllers.
pub(crate) struct Accounts {
    /// Acts as the manager.
    manager: Client,
    /// By the name of the client: the account and its token.
    known: HashMap<&'static str, (&'static str, Mutex<Option<Token>>)>,
}

impl Accounts {
    /// Those of upstream's controllers and of this program's.
    pub fn new(manager: Client) -> Accounts {
        let upstream = policy::controller_accounts().map(|name| (name, name));
        let all = upstream.chain(kaji_controllers::service_accounts());
        let known = all.map(|(client, account)| (client, (account, Mutex::default()))).collect();
        Accounts { manager, known }
    }

    /// The credentials of a client; `None` for one that acts as the manager.
    pub async fn authorization(&self, client: &str) -> Result<Option<HeaderValue>, Error> {
        let Some((account, token)) = self.known.get(client) else { return Ok(None) };
        let mut held = token.lock().await;
        if let Some(token) = &*held
            && Instant::now() < token.renew_at
        {
            return Ok(Some(token.authorization.clone()));
        }
        let token = self.request(account).await?;
        let authorization = token.authorization.clone();
        *held = Some(token);
        Ok(Some(authorization))
    }

    /// The server did not accept what the client sent.
    pub async fn refused(&self, client: &str, sent: &HeaderValue) {
        if let Some((_, token)) = self.known.get(client) {
            let mut held = token.lock().await;
            // Another request may have replaced it meanwhile.
            held.take_if(|token| token.authorization == *sent);
        }
    }

    async fn request(&self, account: &str) -> Result<Token, Error> {
        let asked = Instant::now();
        let answer = match self.token_request(account).await {
            Err(error) if error.not_found() => {
                self.create(account).await?;
                self.token_request(account).await?
            }
            other => other?,
        };
        let token = answer["status"]["token"].as_str().unwrap_or_default();
        let mut authorization = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| Error::Decode("a token that no header can have".into()))?;
        authorization.set_sensitive(true);
        Ok(Token { authorization, renew_at: asked + LIFETIME.mul_f64(0.8) })
    }

    async fn token_request(&self, account: &str) -> Result<Value, Error> {
        let target = accounts(account).subresource("token");
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME.as_secs()},
        });
        self.manager.create(&target, &body).await
    }

    async fn create(&self, account: &str) -> Result<(), Error> {
        let body = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": NAMESPACE}});
        match self.manager.create(&accounts(""), &body).await {
            // Another process, or another controller of this one, was faster.
            Err(error) if error.reason() == "AlreadyExists" => Ok(()),
            other => other.map(drop),
        }
    }
}

fn accounts(name: &str) -> Target {
    Target {
        group: String::new(),
        version: "v1".into(),
        resource: "serviceaccounts".into(),
        namespace: NAMESPACE.into(),
        name: name.into(),
        subresource: String::new(),
    }
}
