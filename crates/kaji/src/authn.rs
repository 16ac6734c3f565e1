//! How a cluster finds out who somebody is: flags, keys, and the chain of authenticators.
//!
//! Invariant: whatever is configured and cannot be used keeps the cluster from starting.

use crate::fetch::{Https, Reviewer};
use clap::Args;
use kaji_auth::authn::{
    Agnostic, Anonymous, AuthenticationConfiguration, BootstrapTokens, Chain, Identity, IssuedToken, Issuer,
    IssuerDocuments, KeyError, KeySet, LegacyTokens, Oidc, OidcFlags, PublicKey, Refusal, RequestHeader,
    ServiceAccountTokens, SigningKey, TokenChain, TokenFile, TokenFileError, TokenOrder, Webhook,
};
use kaji_builtins::Tokens;
use kaji_meta::{Clock, random::SystemRandom};
use kaji_resource::{Api, BoxFuture};
use kaji_server::pki::Pki;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, Weak},
};

/// The issuer of tokens, and with it their audience, unless flags name others.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Upstream's flags about authentication. What is not given is upstream's or kubeadm's default.
#[derive(Args, Clone, Debug, Default)]
pub struct AuthnOptions {
    /// A file of tokens: lines of token, user, uid and groups.
    #[arg(long)]
    pub token_auth_file: Option<PathBuf>,
    /// A file of keys that verify service accounts' tokens; may be repeated. The signing key always does.
    #[arg(long = "service-account-key-file")]
    pub service_account_key_files: Vec<PathBuf>,
    /// The key that signs service accounts' tokens, instead of pki/sa.key in the data directory.
    #[arg(long)]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// The issuer of service accounts' tokens; may be repeated: the first signs, all are accepted.
    #[arg(long = "service-account-issuer")]
    pub service_account_issuers: Vec<String>,
    /// The audiences that the server takes tokens for; the issuers without it.
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Where others find the keys of tokens, instead of this server's /openid/v1/jwks.
    #[arg(long)]
    pub service_account_jwks_uri: Option<String>,
    /// The longest lifetime of a token, such as 24h.
    #[arg(long, value_parser = lifetime)]
    pub service_account_max_token_expiration: Option<i64>,
    /// Whether kubelets' tokens are good for a year, for clients that do not reload theirs (default true).
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub service_account_extend_token_expiration: Option<bool>,
    /// Whether bootstrap tokens are taken (default true, as kubeadm has it).
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: Option<bool>,
    /// Whether requests without credentials are let in as system:anonymous (default true).
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// Names that a front proxy's certificate may have (default front-proxy-client).
    #[arg(long, value_delimiter = ',')]
    pub requestheader_allowed_names: Option<Vec<String>>,
    /// Headers in which a front proxy names the user (default X-Remote-User).
    #[arg(long, value_delimiter = ',')]
    pub requestheader_username_headers: Option<Vec<String>>,
    /// Headers in which a front proxy names the uid (default X-Remote-Uid).
    #[arg(long, value_delimiter = ',')]
    pub requestheader_uid_headers: Option<Vec<String>>,
    /// Headers in which a front proxy names groups (default X-Remote-Group).
    #[arg(long, value_delimiter = ',')]
    pub requestheader_group_headers: Option<Vec<String>>,
    /// Prefixes of headers in which a front proxy names further attributes (default X-Remote-Extra-).
    #[arg(long, value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Option<Vec<String>>,
    /// An AuthenticationConfiguration file: issuers of JWTs, and who may be anonymous.
    #[arg(long)]
    pub authentication_config: Option<PathBuf>,
    /// A kubeconfig file of a service that reviews tokens.
    #[arg(long)]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// The version of the reviews it is sent (default v1beta1).
    #[arg(long, value_parser = ["v1", "v1beta1"])]
    pub authentication_token_webhook_version: Option<String>,
    /// How long its answers are kept (default 2m).
    #[arg(long)]
    pub authentication_token_webhook_cache_ttl: Option<jiff::SignedDuration>,
    /// The URL of an OpenID issuer.
    #[arg(long)]
    pub oidc_issuer_url: Option<String>,
    /// The audience that its tokens must be for.
    #[arg(long)]
    pub oidc_client_id: Option<String>,
    /// Certificates that the issuer's is verified with, instead of the machine's.
    #[arg(long)]
    pub oidc_ca_file: Option<PathBuf>,
    /// The claim that is the user's name (default sub).
    #[arg(long)]
    pub oidc_username_claim: Option<String>,
    /// What is put before it (default the issuer and #, nothing for email; - for nothing).
    #[arg(long)]
    pub oidc_username_prefix: Option<String>,
    /// The claim that holds groups.
    #[arg(long)]
    pub oidc_groups_claim: Option<String>,
    /// What is put before them.
    #[arg(long)]
    pub oidc_groups_prefix: Option<String>,
    /// A claim and the value it must have, as claim=value; may be repeated.
    #[arg(long = "oidc-required-claim", value_parser = pair)]
    pub oidc_required_claims: Vec<(String, String)>,
    /// The algorithms that the issuer may sign with (default RS256).
    #[arg(long, value_delimiter = ',', value_parser = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"])]
    pub oidc_signing_algs: Vec<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (claim, value) = text.split_once('=').ok_or("expected claim=value")?;
    Ok((claim.to_owned(), value.to_owned()))
}

/// Seconds of a duration; Go's and the ISO's forms are taken.
fn lifetime(text: &str) -> Result<i64, String> {
    let duration: jiff::SignedDuration = text.parse().map_err(|e| format!("{e}"))?;
    // Source: upstream's `ServiceAccountAuthenticationOptions.Validate`.
    match duration.as_secs() {
        3600..=4_294_967_296 => Ok(duration.as_secs()),
        _ => Err("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds".into()),
    }
}

/// Why authentication cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthnError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// A file without usable keys.
    #[error("{path}: {source}")]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: KeyError,
    },
    /// The file of tokens.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// A flag.
    #[error("{0}")]
    Flag(String),
}

/// The authentication of a cluster.
pub struct Authn {
    /// Who is asked, in which order.
    pub chain: Chain,
    /// Issues and reviews tokens.
    pub tokens: Arc<Service>,
    keys: KeySet,
    keys_at: Option<String>,
}

impl Authn {
    /// Sets it up. `api` is where accounts and secrets are looked up.
    pub async fn new(
        options: &AuthnOptions,
        pki: &Pki,
        api: &Weak<dyn Api>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Authn, AuthnError> {
        let (key, keys) = keys(options, pki)?;
        let own = || vec![ISSUER.to_owned()];
        let issuers =
            Some(options.service_account_issuers.clone()).filter(|i| !i.is_empty()).unwrap_or_else(own);
        let audiences = Some(options.api_audiences.clone()).filter(|a| !a.is_empty());
        let audiences = audiences.unwrap_or_else(|| issuers.clone());
        let name = issuers.first().cloned().unwrap_or_default();
        let mut chain = TokenChain::new(audiences.clone());
        if let Some(path) = &options.token_auth_file {
            chain.push(Arc::new(Agnostic::new(TokenFile::read(path)?, audiences.clone())));
        }
        let legacy = LegacyTokens::new(keys.clone(), audiences.clone(), api.clone(), clock.clone());
        chain.push(Arc::new(legacy));
        let bound = ServiceAccountTokens::new(
            issuers.clone(),
            keys.clone(),
            audiences.clone(),
            api.clone(),
            clock.clone(),
        );
        chain.push(Arc::new(bound));
        if options.enable_bootstrap_token_auth.unwrap_or(true) {
            let bootstrap = BootstrapTokens::new(api.clone(), clock.clone());
            chain.push(Arc::new(Agnostic::new(bootstrap, audiences.clone())));
        }
        let issuer = Issuer {
            name,
            key: Arc::new(key),
            audiences,
            extend: options.service_account_extend_token_expiration.unwrap_or(true),
            longest: options.service_account_max_token_expiration,
            random: Arc::new(SystemRandom),
        };
        // After the server's own tokens: asking an issuer takes time.
        let configuration = configuration(options)?;
        configuration.validate(&issuers).map_err(|e| AuthnError::Flag(e.to_string()))?;
        let algorithms = if options.authentication_config.is_some() { vec![] } else { algorithms(options) };
        for jwt in configuration.jwt {
            let fetch = Https::new(&jwt.issuer.certificate_authority)
                .map_err(|e| AuthnError::Flag(format!("certificate authority of {}: {e}", jwt.issuer.url)))?;
            let oidc = Oidc::new(jwt, algorithms.clone(), Arc::new(fetch), clock.clone());
            chain.push(Arc::new(Agnostic::new(oidc, issuer.audiences.clone())));
        }
        if let Some(path) = &options.authentication_token_webhook_config_file {
            let service = Arc::new(Reviewer::new(path).await.map_err(AuthnError::Flag)?);
            let version = match options.authentication_token_webhook_version.as_deref() {
                Some("v1") => "v1",
                _ => "v1beta1",
            };
            let kept = options.authentication_token_webhook_cache_ttl.map_or(120, |t| t.as_secs());
            let webhook = Webhook::new(service, version, issuer.audiences.clone(), kept, clock.clone());
            chain.push(Arc::new(webhook));
        }
        let chain = Arc::new(chain);
        let anonymous = match (&configuration.anonymous, options.anonymous_auth.unwrap_or(true)) {
            (Some(_), _) if options.anonymous_auth.is_some() => {
                let text = "cannot set --anonymous-auth flag when anonymous field is configured in authentication configuration file";
                return Err(AuthnError::Flag(text.into()));
            }
            (Some(rule), _) => rule.rule(),
            (None, true) => Anonymous::Everywhere,
            (None, false) => Anonymous::Nowhere,
        };
        Ok(Authn {
            chain: Chain { proxy: Some(proxy(options)), tokens: chain.clone(), anonymous },
            tokens: Arc::new(Service { issuer, chain }),
            keys,
            keys_at: options.service_account_jwks_uri.clone(),
        })
    }

    /// What others need to verify tokens; `None` for an issuer that cannot be discovered. `url` is the server's.
    pub fn documents(&self, url: &str) -> Option<IssuerDocuments> {
        let keys_at = self.keys_at.clone().unwrap_or_else(|| format!("{url}/openid/v1/jwks"));
        IssuerDocuments::new(&self.tokens.issuer.name, &keys_at, &self.keys)
            .inspect_err(|why| tracing::warn!(%why, "the issuer of tokens will not be discoverable"))
            .ok()
    }

    /// The key that signs tokens.
    pub fn signing_key(&self) -> Arc<SigningKey> {
        self.tokens.issuer.key.clone()
    }
}

/// The key that signs, and all that verify.
fn keys(options: &AuthnOptions, pki: &Pki) -> Result<(SigningKey, KeySet), AuthnError> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|source| AuthnError::Read { path: path.into(), source })
    };
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

fn algorithms(options: &AuthnOptions) -> Vec<String> {
    let default = || vec!["RS256".to_owned()];
    Some(options.oidc_signing_algs.clone()).filter(|a| !a.is_empty()).unwrap_or_else(default)
}

/// The configuration that file or flags give; an empty one without either.
fn configuration(options: &AuthnOptions) -> Result<AuthenticationConfiguration, AuthnError> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|source| AuthnError::Read { path: path.into(), source })
    };
    let flags = [
        &options.oidc_client_id,
        &options.oidc_username_claim,
        &options.oidc_username_prefix,
        &options.oidc_groups_claim,
        &options.oidc_groups_prefix,
    ];
    let any = options.oidc_issuer_url.is_some()
        || options.oidc_ca_file.is_some()
        || !options.oidc_required_claims.is_empty()
        || !options.oidc_signing_algs.is_empty()
        || flags.iter().any(|f| f.is_some());
    if let Some(path) = &options.authentication_config {
        let file: AuthenticationConfiguration = serde_saphyr::from_str(&read(path)?)
            .map_err(|e| AuthnError::Flag(format!("{}: {e}", path.display())))?;
        if any && !file.jwt.is_empty() {
            let text = "authentication-config file and oidc-* flags are mutually exclusive";
            return Err(AuthnError::Flag(text.into()));
        }
        return Ok(file);
    }
    let empty = AuthenticationConfiguration {
        api_version: "apiserver.config.k8s.io/v1".into(),
        kind: "AuthenticationConfiguration".into(),
        ..AuthenticationConfiguration::default()
    };
    match (&options.oidc_issuer_url, &options.oidc_client_id) {
        (Some(issuer), Some(client)) => {
            let text = |flag: &Option<String>| flag.clone().unwrap_or_default();
            let flags = OidcFlags {
                issuer_url: issuer.clone(),
                client_id: client.clone(),
                authority: options.oidc_ca_file.as_deref().map(read).transpose()?.unwrap_or_default(),
                username_claim: options.oidc_username_claim.clone(),
                username_prefix: text(&options.oidc_username_prefix),
                groups_claim: text(&options.oidc_groups_claim),
                groups_prefix: text(&options.oidc_groups_prefix),
                required: options.oidc_required_claims.clone(),
            };
            Ok(flags.configuration())
        }
        _ if any => Err(AuthnError::Flag(
            "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"
                .into(),
        )),
        _ => Ok(empty),
    }
}

fn proxy(options: &AuthnOptions) -> RequestHeader {
    let default = RequestHeader::default();
    let or = |given: &Option<Vec<String>>, default: Vec<String>| {
        let given = given.iter().flatten().map(|n| n.trim().to_owned()).filter(|n| !n.is_empty());
        Some(given.collect::<Vec<_>>()).filter(|g| !g.is_empty()).unwrap_or(default)
    };
    RequestHeader {
        // An empty list is meant: every certificate of the authority.
        allowed: options
            .requestheader_allowed_names
            .as_ref()
            .map_or(default.allowed, |names| names.iter().filter(|n| !n.is_empty()).cloned().collect()),
        user: or(&options.requestheader_username_headers, default.user),
        uid: or(&options.requestheader_uid_headers, default.uid),
        groups: or(&options.requestheader_group_headers, default.groups),
        extra: or(&options.requestheader_extra_headers_prefix, default.extra),
    }
}

/// The service for kinds that are registered before the keys are read. Until then there is nobody to ask it.
#[derive(Default)]
pub struct LateTokens(OnceLock<Arc<Service>>);

impl LateTokens {
    /// Gives it what it stands for.
    pub fn set(&self, service: Arc<Service>) {
        // A second time changes nothing.
        let _ = self.0.set(service);
    }
}

impl Tokens for LateTokens {
    fn issue(&self, order: &TokenOrder, now: jiff::Timestamp) -> Result<IssuedToken, KeyError> {
        self.0.get().ok_or(KeyError::Sign)?.issue(order, now)
    }

    fn identify<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Identity, Refusal>> {
        match self.0.get() {
            Some(service) => service.identify(token, audiences),
            None => Box::pin(std::future::ready(Err(Refusal("authentication is not ready".into())))),
        }
    }
}

/// Issues tokens and says whose they are, for the kinds that do.
pub struct Service {
    issuer: Issuer,
    chain: Arc<TokenChain>,
}

impl Tokens for Service {
    fn issue(&self, order: &TokenOrder, now: jiff::Timestamp) -> Result<IssuedToken, KeyError> {
        self.issuer.issue(order, now)
    }

    fn identify<'a>(
        &'a self,
        token: &'a str,
        audiences: &'a [String],
    ) -> BoxFuture<'a, Result<Identity, Refusal>> {
        Box::pin(self.chain.identify(token, audiences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        authn: AuthnOptions,
    }

    fn parse(args: &[&str]) -> Result<AuthnOptions, String> {
        let args = [&["kaji"], args].concat();
        Cli::try_parse_from(args).map(|cli| cli.authn).map_err(|e| e.to_string())
    }

    #[test]
    fn flags() {
        let options = parse(&[
            "--service-account-issuer=https://a",
            "--service-account-issuer=https://b",
            "--api-audiences=x,y",
            "--anonymous-auth=false",
            "--enable-bootstrap-token-auth",
            "--service-account-max-token-expiration=24h",
            "--requestheader-allowed-names=",
            "--requestheader-username-headers=X-User,X-Other",
        ])
        .unwrap();
        assert_eq!(options.service_account_issuers, ["https://a", "https://b"]);
        assert_eq!(options.api_audiences, ["x", "y"]);
        assert_eq!((options.anonymous_auth, options.enable_bootstrap_token_auth), (Some(false), Some(true)));
        assert_eq!(options.service_account_max_token_expiration, Some(86_400));
        let proxy = proxy(&options);
        assert_eq!((proxy.allowed.len(), proxy.user.len(), proxy.uid.len()), (0, 2, 1));
        assert!(
            parse(&["--service-account-max-token-expiration=10m"]).unwrap_err().contains("between 1 hour")
        );
    }
}
