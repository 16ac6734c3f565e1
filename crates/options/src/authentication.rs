//! Upstream's flags about authentication, and what they add up to.
//!
//! Invariant: flags that contradict each other, or themselves, are refused in upstream's words.

use clap::Args;
use kaji_auth::authn::{AuthenticationConfiguration, KeyError, OidcFlags, RequestHeader, TokenFileError};
use kaji_server::pki::{Pki, certificates};
use std::path::{Path, PathBuf};

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

/// Upstream's flags about authentication. What is not given is upstream's or kubeadm's default.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Authentication")]
pub struct AuthnOptions {
    /// Certificate authorities of clients, in addition to the cluster's own.
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// A file of tokens: lines of token, user, uid and groups.
    #[arg(long)]
    pub token_auth_file: Option<PathBuf>,
    /// A file of keys that verify service accounts' tokens; may be repeated. The signing key always does.
    #[arg(long = "service-account-key-file")]
    pub service_account_key_files: Vec<PathBuf>,
    /// The key that signs service accounts' tokens, instead of pki/sa.key in the data directory.
    #[arg(long)]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Whether a secret's token ends with its secret and its account (default true).
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub service_account_lookup: Option<bool>,
    /// The issuer of service accounts' tokens; may be repeated: the first signs, all are accepted.
    #[arg(long = "service-account-issuer")]
    pub service_account_issuers: Vec<String>,
    /// The audiences that tokens must have; the issuers without it.
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// The URL of the public keys of tokens, instead of this server's /openid/v1/jwks.
    #[arg(long)]
    pub service_account_jwks_uri: Option<String>,
    /// The maximum lifetime of a token, such as 24h.
    #[arg(long, value_parser = lifetime)]
    pub service_account_max_token_expiration: Option<i64>,
    /// Whether tokens that kubelets request are valid for a year, for clients that do not reload them (default true).
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub service_account_extend_token_expiration: Option<bool>,
    /// Whether bootstrap tokens are accepted (default true, as kubeadm has it).
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: Option<bool>,
    /// Whether requests without credentials are authenticated as system:anonymous (default true).
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// Whether anonymous requests are rejected, unless a configuration file allows them.
    #[arg(skip)]
    pub deny_anonymous: bool,
    /// Certificate authorities of front proxies, in addition to the cluster's own.
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
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
    /// An AuthenticationConfiguration file: issuers of JWTs, and anonymous requests. Reloaded when it changes.
    #[arg(long)]
    pub authentication_config: Option<PathBuf>,
    /// A kubeconfig file of a service that reviews tokens.
    #[arg(long)]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// The version of the reviews it is sent (default v1beta1).
    #[arg(long, value_parser = ["v1", "v1beta1"])]
    pub authentication_token_webhook_version: Option<String>,
    /// How long its responses are cached (default 2m).
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
    #[arg(long, value_delimiter = ',', value_parser = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"])]
    pub oidc_signing_algs: Vec<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (claim, value) = text.split_once('=').ok_or("expected claim=value")?;
    Ok((claim.to_owned(), value.to_owned()))
}

/// Seconds of a duration.
fn lifetime(text: &str) -> Result<i64, String> {
    let seconds = kaji_meta::duration::parse(text)? / 1_000_000_000;
    // Source: upstream's `ServiceAccountAuthenticationOptions.Validate`.
    match seconds {
        3600..=4_294_967_296 => Ok(seconds),
        _ => Err("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds".into()),
    }
}

impl AuthnOptions {
    /// Upstream's checks. Source: `BuiltInAuthenticationOptions.Validate`.
    pub fn validate(&self) -> Result<(), AuthnError> {
        let refuse = |text: String| Err(AuthnError::Flag(text));
        for (i, issuer) in self.service_account_issuers.iter().enumerate() {
            if issuer.is_empty() {
                return refuse("service-account-issuer should not be an empty string".into());
            }
            if let Err(error) = issuer.parse::<http::Uri>()
                && issuer.contains(':')
            {
                return refuse(format!(
                    "service-account-issuer {issuer:?} contained a ':' but was not a valid URL: {error}"
                ));
            }
            if self.service_account_issuers[..i].contains(issuer) {
                return refuse(format!("service-account-issuer {issuer:?} is already specified"));
            }
        }
        if let Some(uri) = &self.service_account_jwks_uri
            && !uri.starts_with("https://")
        {
            return refuse(format!("service-account-jwks-uri requires https scheme, parsed as: {uri}"));
        }
        for (flag, values) in [
            ("requestheader-username-headers", &self.requestheader_username_headers),
            ("requestheader-uid-headers", &self.requestheader_uid_headers),
            ("requestheader-group-headers", &self.requestheader_group_headers),
            ("requestheader-extra-headers-prefix", &self.requestheader_extra_headers_prefix),
            ("requestheader-allowed-names", &self.requestheader_allowed_names),
        ] {
            if given(values).iter().any(|v| v.trim().is_empty()) {
                return refuse(format!("empty value in {flag:?}"));
            }
        }
        let uids = given(&self.requestheader_uid_headers);
        if !uids.is_empty() && !uids.iter().any(|h| h.eq_ignore_ascii_case("X-Remote-Uid")) {
            return refuse("--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API aggregation will not work".into());
        }
        self.validate_oidc()
    }

    fn validate_oidc(&self) -> Result<(), AuthnError> {
        let flags = [
            &self.oidc_issuer_url,
            &self.oidc_client_id,
            &self.oidc_username_claim,
            &self.oidc_username_prefix,
            &self.oidc_groups_claim,
            &self.oidc_groups_prefix,
        ];
        let any = self.oidc_ca_file.is_some()
            || !self.oidc_required_claims.is_empty()
            || !self.oidc_signing_algs.is_empty()
            || flags.iter().any(|f| f.is_some());
        let given = |flag: &Option<String>| flag.as_ref().is_some_and(|f| !f.is_empty());
        let text = match &self.authentication_config {
            Some(_) if any => "authentication-config file and oidc-* flags are mutually exclusive",
            None if any && !(given(&self.oidc_issuer_url) && given(&self.oidc_client_id)) => {
                "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"
            }
            _ => return Ok(()),
        };
        Err(AuthnError::Flag(text.into()))
    }

    /// The signature algorithms of external issuers; empty for all asymmetric ones, as with a configuration file.
    pub fn algorithms(&self) -> Vec<String> {
        match (&self.authentication_config, self.oidc_signing_algs.as_slice()) {
            (Some(_), _) => vec![],
            (None, []) => vec!["RS256".to_owned()],
            (None, some) => some.to_vec(),
        }
    }

    /// The configuration that file or flags give, an empty one without either; and the file with what it holds.
    pub fn configuration(&self) -> Result<(AuthenticationConfiguration, Option<File>), AuthnError> {
        if let Some(path) = &self.authentication_config {
            let refuse = |why: String| {
                let path = path.display();
                let text = format!("failed to load authentication configuration from file \"{path}\": {why}");
                AuthnError::Flag(text)
            };
            let text = read(path)?;
            let file = parse(&text).map_err(refuse)?;
            if file.anonymous.is_some() && self.anonymous_auth.is_some() {
                let text = "anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file";
                return Err(AuthnError::Flag(text.into()));
            }
            return Ok((file, Some((path.clone(), text.into_bytes()))));
        }
        let (Some(issuer), Some(client)) = (&self.oidc_issuer_url, &self.oidc_client_id) else {
            return Ok((AuthenticationConfiguration::empty(), None));
        };
        let text = |flag: &Option<String>| flag.clone().unwrap_or_default();
        let flags = OidcFlags {
            issuer_url: issuer.clone(),
            client_id: client.clone(),
            authority: self.oidc_ca_file.as_deref().map(read).transpose()?.unwrap_or_default(),
            username_claim: self.oidc_username_claim.clone(),
            username_prefix: text(&self.oidc_username_prefix),
            groups_claim: text(&self.oidc_groups_claim),
            groups_prefix: text(&self.oidc_groups_prefix),
            required: self.oidc_required_claims.clone(),
        };
        Ok((flags.configuration(), None))
    }

    /// The rule for front proxies.
    pub fn proxy(&self) -> RequestHeader {
        let default = RequestHeader::default();
        let or = |flag: &Option<Vec<String>>, default: Vec<String>| {
            let names: Vec<_> = given(flag).iter().map(|n| n.trim().to_owned()).collect();
            if names.is_empty() { default } else { names }
        };
        RequestHeader {
            // An empty list is meant: every certificate of the authority.
            allowed: match self.requestheader_allowed_names {
                Some(_) => given(&self.requestheader_allowed_names).to_vec(),
                None => default.allowed,
            },
            user: or(&self.requestheader_username_headers, default.user),
            uid: or(&self.requestheader_uid_headers, default.uid),
            groups: or(&self.requestheader_group_headers, default.groups),
            extra: or(&self.requestheader_extra_headers_prefix, default.extra),
        }
    }

    /// The certificate authorities of clients and of front proxies.
    pub fn authorities(&self, pki: &Pki) -> Result<Authorities, AuthnError> {
        let texts: Result<Vec<_>, _> =
            self.authority_files().map(|path| read(path).map(String::into_bytes)).collect();
        self.with_authorities(pki, texts?)
    }

    fn authority_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.client_ca_file.iter().chain(&self.requestheader_client_ca_file)
    }

    /// The same, once the files hold this.
    pub fn with_authorities(&self, pki: &Pki, texts: Vec<Vec<u8>>) -> Result<Authorities, AuthnError> {
        let files: Vec<File> = self.authority_files().cloned().zip(texts).collect();
        let with = |own: &str, file: &Option<PathBuf>| -> Result<String, AuthnError> {
            let Some((path, text)) = files.iter().find(|(path, _)| Some(path) == file.as_ref()) else {
                return Ok(own.to_owned());
            };
            let refuse = |why: String| AuthnError::Flag(format!("unable to load client CA file: {why}"));
            let text = std::str::from_utf8(text).map_err(|e| refuse(e.to_string()))?;
            match certificates(text) {
                Ok(found) if !found.is_empty() => Ok(format!("{own}\n{text}")),
                Ok(_) => Err(refuse(format!("{}: no certificates", path.display()))),
                Err(error) => Err(refuse(error.to_string())),
            }
        };
        let clients = with(&pki.ca.certificate, &self.client_ca_file)?;
        let proxies = with(&pki.front_proxy_ca.certificate, &self.requestheader_client_ca_file)?;
        let (one, other) = (certificates(&clients), certificates(&proxies));
        let overlap = one.is_ok_and(|one| other.is_ok_and(|other| one.iter().any(|c| other.contains(c))));
        if overlap && self.proxy().allowed.is_empty() {
            return Err(AuthnError::Flag("--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; --requestheader-allowed-names must be specified to ensure regular client certificates cannot set authenticating proxy headers for arbitrary users".into()));
        }
        Ok(Authorities { clients, proxies, files })
    }
}

/// A file and what it holds.
pub type File = (PathBuf, Vec<u8>);

/// Certificate authorities.
#[derive(Clone, Debug)]
pub struct Authorities {
    /// Clients', PEM.
    pub clients: String,
    /// Front proxies', PEM.
    pub proxies: String,
    /// The files among them.
    pub files: Vec<File>,
}

/// Parses an AuthenticationConfiguration, without validation.
///
/// # Errors
/// When it is not one.
pub fn parse(text: &str) -> Result<AuthenticationConfiguration, String> {
    if text.is_empty() {
        return Err("empty config data".into());
    }
    kaji_files::yaml::decode(text).map_err(|e| e.to_string())
}

/// The values of a list flag; a flag without any value is an empty list.
fn given(flag: &Option<Vec<String>>) -> &[String] {
    match flag.as_deref() {
        None => &[],
        Some([one]) if one.is_empty() => &[],
        Some(values) => values,
    }
}

/// Reads a file that a flag names.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &Path) -> Result<String, AuthnError> {
    std::fs::read_to_string(path).map_err(|source| AuthnError::Read { path: path.into(), source })
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
    fn reads_the_flags() {
        let options = parse(&[
            "--service-account-issuer=https://a",
            "--service-account-issuer=https://b",
            "--api-audiences=x,y",
            "--anonymous-auth=false",
            "--enable-bootstrap-token-auth",
            "--service-account-lookup=false",
            "--service-account-max-token-expiration=24h",
            "--requestheader-allowed-names=",
            "--requestheader-username-headers=X-User,X-Other",
            "--authentication-token-webhook-cache-ttl=1m30s",
        ])
        .unwrap();
        assert_eq!(options.service_account_issuers, ["https://a", "https://b"]);
        assert_eq!(options.api_audiences, ["x", "y"]);
        assert_eq!((options.anonymous_auth, options.enable_bootstrap_token_auth), (Some(false), Some(true)));
        assert_eq!(options.service_account_lookup, Some(false));
        assert_eq!(options.service_account_max_token_expiration, Some(86_400));
        assert_eq!(options.authentication_token_webhook_cache_ttl.unwrap().as_secs(), 90);
        let proxy = options.proxy();
        assert_eq!((proxy.allowed.len(), proxy.user.len(), proxy.uid.len()), (0, 2, 1));
        options.validate().unwrap();
        assert!(
            parse(&["--service-account-max-token-expiration=10m"]).unwrap_err().contains("between 1 hour")
        );
    }

    #[test]
    fn rejects_contradictions() {
        let check =
            |args: &[&str]| parse(args).unwrap().validate().err().map(|e| e.to_string()).unwrap_or_default();
        let texts = [
            check(&["--service-account-issuer=a", "--service-account-issuer=a"]),
            check(&["--service-account-issuer="]),
            check(&["--service-account-issuer=https://[", "--service-account-issuer=a b"]),
            check(&["--service-account-jwks-uri=http://a"]),
            check(&["--requestheader-group-headers=a, "]),
            check(&["--requestheader-uid-headers=X-Uid"]),
            check(&["--oidc-issuer-url=https://i"]),
            check(&["--oidc-required-claim=a=b"]),
            check(&["--authentication-config=x", "--oidc-issuer-url=https://i", "--oidc-client-id=c"]),
            check(&["--oidc-issuer-url=https://i", "--oidc-client-id=c"]),
        ];
        expect_test::expect![[r#"
            service-account-issuer "a" is already specified
            service-account-issuer should not be an empty string
            service-account-issuer "https://[" contained a ':' but was not a valid URL: invalid authority
            service-account-jwks-uri requires https scheme, parsed as: http://a
            empty value in "requestheader-group-headers"
            --requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API aggregation will not work
            oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set
            oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set
            authentication-config file and oidc-* flags are mutually exclusive
        "#]].assert_eq(&texts.join("\n"));
        assert!(parse(&["--oidc-signing-algs=HS256"]).is_err());
        assert!(parse(&["--oidc-required-claim=a"]).is_err());
        assert!(parse(&["--authentication-token-webhook-version=v2"]).is_err());
    }

    #[test]
    fn algorithms_are_upstreams() {
        assert_eq!(parse(&[]).unwrap().algorithms(), ["RS256"]);
        assert_eq!(parse(&["--oidc-signing-algs=ES256,PS256"]).unwrap().algorithms(), ["ES256", "PS256"]);
        assert!(parse(&["--authentication-config=x"]).unwrap().algorithms().is_empty());
    }
}
