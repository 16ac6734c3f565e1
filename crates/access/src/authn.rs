//! Authentication of a cluster: keys, and the chain of authenticators.
//!
//! Invariant: a configuration that cannot be used keeps the cluster from starting.

mod reload;

use crate::fetch::Reviewer;
use kaji_auth::authn::{
    Agnostic, Anonymous, AuthenticationError, BootstrapTokens, Chain, Identity, IssuedToken, Issuer,
    IssuerDocuments, KeyError, KeySet, LegacyTokens, PublicKey, ServiceAccountTokens, SigningKey, Swappable,
    TokenChain, TokenFile, TokenOrder, Webhook,
};
use kaji_builtins::Tokens;
use kaji_meta::{Clock, random::SystemRandom};
use kaji_options::{
    Options,
    authentication::{AuthnError, AuthnOptions, Authorities, read},
};
use kaji_resource::{Api, BoxFuture};
use kaji_server::{ReloadMetrics, pki::Pki};
use reload::{Issuers, Reload};
use std::{
    path::Path,
    sync::{Arc, Weak},
};
use tokio::sync::watch;

/// The issuer of tokens, and with it their audience, unless flags name others.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The authentication of a cluster.
pub struct Authn {
    /// The authenticators in their order.
    pub chain: Chain,
    /// Issues and reviews tokens.
    pub tokens: Arc<TokenService>,
    /// Certificate authorities of clients and of front proxies.
    pub authorities: Authorities,
    /// Metrics of reloads of the configuration file.
    pub reloads: Arc<ReloadMetrics>,
    reload: Option<Reload>,
    keys: KeySet,
    keys_at: Option<String>,
}

impl Authn {
    /// `api` has the accounts and secrets of tokens; `server` is the label of this server in metrics.
    pub async fn new(
        options: &AuthnOptions,
        pki: &Pki,
        api: &Weak<dyn Api>,
        clock: &Arc<dyn Clock>,
        server: &str,
    ) -> Result<Authn, AuthnError> {
        options.validate()?;
        let (key, keys) = keys(options, pki)?;
        let own = || vec![ISSUER.to_owned()];
        let issuers =
            Some(options.service_account_issuers.clone()).filter(|i| !i.is_empty()).unwrap_or_else(own);
        let audiences = Some(options.api_audiences.clone()).filter(|a| !a.is_empty());
        let issuer = Issuer {
            name: issuers.first().cloned().unwrap_or_default(),
            key: Arc::new(key),
            audiences: audiences.unwrap_or_else(|| issuers.clone()),
            extend: options.service_account_extend_token_expiration.unwrap_or(true),
            longest: options.service_account_max_token_expiration,
            random: Arc::new(SystemRandom),
        };
        let (configuration, file) = options.configuration()?;
        configuration
            .validate(&issuers)
            .map_err(|e| AuthnError::Flag(format!("invalid authentication configuration: {e}")))?;
        let anonymous = match &configuration.anonymous {
            Some(rule) => rule.rule(),
            None if options.anonymous_auth.unwrap_or(true) && !options.deny_anonymous => {
                Anonymous::Everywhere
            }
            None => Anonymous::Nowhere,
        };
        let mut chain = TokenChain::new(issuer.audiences.clone());
        own_tokens(&mut chain, options, &issuers, &keys, &issuer.audiences, api, clock)?;
        // After the server's own tokens: remote calls take time.
        let foreign = Issuers {
            algorithms: options.algorithms(),
            audiences: issuer.audiences.clone(),
            own: issuers.clone(),
            clock: clock.clone(),
            current: Arc::new(Swappable::default()),
        };
        foreign.set(foreign.build(configuration.jwt.clone())?);
        chain.push(foreign.current.clone());
        let reloads = Arc::new(ReloadMetrics::new("authentication", server));
        let reload = file.map(|file| Reload::new(file, &configuration, foreign, reloads.clone()));
        if let Some(path) = &options.authentication_token_webhook_config_file {
            let service = Arc::new(Reviewer::new(path).await.map_err(AuthnError::Flag)?);
            let version = match options.authentication_token_webhook_version.as_deref() {
                Some("v1") => "v1",
                _ => "v1beta1",
            };
            // Source: upstream's `WithWebHook`.
            let kept = options.authentication_token_webhook_cache_ttl.map_or(120, |t| t.as_secs());
            let webhook = Webhook::new(service, version, issuer.audiences.clone(), kept, clock.clone());
            chain.push(Arc::new(webhook));
        }
        let authorities = options.authorities(pki)?;
        let chain = Arc::new(chain);
        Ok(Authn {
            chain: Chain { proxy: Some(options.proxy()), tokens: chain.clone(), anonymous },
            tokens: Arc::new(TokenService { issuer, chain }),
            authorities,
            reloads,
            reload,
            keys,
            keys_at: options.service_account_jwks_uri.clone(),
        })
    }

    /// Reloads the configuration file when it changes, until `stop` turns true.
    pub async fn follow(self, stop: watch::Receiver<bool>) {
        if let Some(reload) = self.reload {
            reload.run(stop).await;
        }
    }

    /// The OpenID discovery documents; `None` for an issuer with a URL that allows none. `url` is the server's.
    pub fn documents(&self, url: &str) -> Option<IssuerDocuments> {
        let keys_at = self.keys_at.clone().unwrap_or_else(|| format!("{url}/openid/v1/jwks"));
        IssuerDocuments::new(&self.tokens.issuer.name, &keys_at, &self.keys)
            .inspect_err(
                |why| tracing::warn!(%why, "OpenID discovery of the service account issuer is disabled"),
            )
            .ok()
    }

    /// The key that signs tokens.
    pub fn signing_key(&self) -> Arc<SigningKey> {
        self.tokens.issuer.key.clone()
    }
}

/// The authenticators of tokens that this cluster issues, in upstream's order.
fn own_tokens(
    chain: &mut TokenChain,
    options: &AuthnOptions,
    issuers: &[String],
    keys: &KeySet,
    audiences: &[String],
    api: &Weak<dyn Api>,
    clock: &Arc<dyn Clock>,
) -> Result<(), AuthnError> {
    let audiences = || audiences.to_vec();
    if let Some(path) = &options.token_auth_file {
        chain.push(Arc::new(Agnostic::new(TokenFile::read(path)?, audiences())));
    }
    let legacy = LegacyTokens::new(keys.clone(), audiences(), api.clone(), clock.clone());
    chain.push(match options.service_account_lookup.unwrap_or(true) {
        true => Arc::new(legacy),
        false => Arc::new(legacy.without_lookup()),
    });
    let (issuers, keys) = (issuers.to_vec(), keys.clone());
    chain.push(Arc::new(ServiceAccountTokens::new(issuers, keys, audiences(), api.clone(), clock.clone())));
    if options.enable_bootstrap_token_auth.unwrap_or(true) {
        let bootstrap = BootstrapTokens::new(api.clone(), clock.clone());
        chain.push(Arc::new(Agnostic::new(bootstrap, audiences())));
    }
    Ok(())
}

/// The key that signs, and all that verify.
fn keys(options: &AuthnOptions, pki: &Pki) -> Result<(SigningKey, KeySet), AuthnError> {
    let bad = |path: &Path| {
        let path = path.to_owned();
        move |source| AuthnError::Key { path, source }
    };
    let key = match &options.service_account_signing_key_file {
        Some(path) => SigningKey::from_pem(&read(path)?).map_err(bad(path))?,
        None => SigningKey::from_pem(&pki.service_account.private).map_err(bad(Path::new("pki/sa.key")))?,
    };
    let mut all = vec![key.public.clone()];
    for path in &options.service_account_key_files {
        all.extend(PublicKey::all_from_pem(&read(path)?).map_err(bad(path))?);
    }
    Ok((key, KeySet::new(all)))
}

/// Issues and authenticates tokens for TokenRequest and TokenReview.
pub struct TokenService {
    issuer: Issuer,
    chain: Arc<TokenChain>,
}

impl Tokens for TokenService {
    fn audiences(&self) -> &[String] {
        &self.issuer.audiences
    }

    fn issue(&self, order: &TokenOrder, now: jiff::Timestamp) -> Result<IssuedToken, KeyError> {
        self.issuer.issue(order, now)
    }

    fn identify<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Identity, AuthenticationError>> {
        Box::pin(self.chain.identify(token, audiences))
    }
}

/// With the authorizer AlwaysAllow, anonymous requests are rejected. Source: upstream's `ApplyAuthorization`.
pub fn without_anonymous_administrators(options: &Options) -> AuthnOptions {
    let mut authn = options.authn.clone();
    if options.authz.authorization_mode.iter().any(|mode| mode == "AlwaysAllow") {
        tracing::warn!(
            "anonymous requests are rejected with the authorizer AlwaysAllow; use a different authorizer"
        );
        authn.deny_anonymous = true;
    }
    authn
}
