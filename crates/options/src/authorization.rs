//! Upstream's flags about authorization, and what they add up to.
//!
//! Invariant: flags that contradict each other are refused in upstream's words; what this server lacks is refused, never
//! left out.

use clap::Args;
use kaji_auth::authz::{
    abac::Policies,
    config::{self, Mode, OnFailure, TYPES, WebhookConfig},
    webhook::Conditions,
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Why authorization cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthzError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// A flag, or what a file says.
    #[error("{0}")]
    Config(String),
}

/// Upstream's flags about authorization. What is not given is upstream's or kubeadm's default.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Authorization")]
pub struct AuthzOptions {
    /// A file with an AuthorizationConfiguration, reloaded when it changes; excludes the flags below.
    #[arg(long)]
    pub authorization_config: Option<PathBuf>,
    /// The authorizers in their order (default Node,RBAC, as kubeadm has it): ABAC, AlwaysAllow, AlwaysDeny, Node, RBAC, Webhook.
    #[arg(long, value_delimiter = ',')]
    pub authorization_mode: Vec<String>,
    /// A file of policies, one JSON object a line, for the mode ABAC.
    #[arg(long)]
    pub authorization_policy_file: Option<PathBuf>,
    /// A kubeconfig file of the authorization webhook, for the mode Webhook.
    #[arg(long)]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// The version of the reviews it is sent (default v1beta1).
    #[arg(long)]
    pub authorization_webhook_version: Option<String>,
    /// How long it is cached that a request is allowed (default 5m).
    #[arg(long, value_parser = ttl, allow_hyphen_values = true)]
    pub authorization_webhook_cache_authorized_ttl: Option<Duration>,
    /// How long it is cached that a request is denied (default 30s).
    #[arg(long, value_parser = ttl, allow_hyphen_values = true)]
    pub authorization_webhook_cache_unauthorized_ttl: Option<Duration>,
}

/// A negative duration is none.
fn ttl(text: &str) -> Result<Duration, String> {
    let nanoseconds = kaji_meta::duration::parse(text)?;
    Ok(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or_default()))
}

/// The timeout of the webhook that flags name. Source: upstream's `buildAuthorizationConfiguration`.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The authorizers, and the file that names them.
pub struct Configured {
    /// In their order.
    pub modes: Vec<Mode>,
    /// The file and what it holds.
    pub file: Option<(PathBuf, Vec<u8>)>,
}

/// What a file says.
///
/// # Errors
/// What is wrong with it.
pub fn parse(data: &[u8], required: &[&str]) -> Result<Vec<Mode>, String> {
    let value = std::str::from_utf8(data)
        .map_err(|e| e.to_string())
        .and_then(|text| serde_saphyr::from_str(text).map_err(|e| e.to_string()));
    let value = value.map_err(|e| format!("failed to load AuthorizationConfiguration from file: {e}"))?;
    config::parse(&value, required)
}

impl AuthzOptions {
    /// With this file.
    pub fn file(path: &Path) -> Self {
        AuthzOptions { authorization_config: Some(path.to_owned()), ..AuthzOptions::default() }
    }

    fn legacy(&self) -> bool {
        !self.authorization_mode.is_empty()
            || self.authorization_webhook_config_file.is_some()
            || self.authorization_webhook_version.is_some()
            || self.authorization_webhook_cache_authorized_ttl.is_some()
            || self.authorization_webhook_cache_unauthorized_ttl.is_some()
    }

    /// What they add up to.
    ///
    /// # Errors
    /// Flags that contradict each other, a file that cannot be used.
    pub fn read(&self) -> Result<Configured, AuthzError> {
        let Some(path) = &self.authorization_config else {
            return Ok(Configured { modes: self.modes()?, file: None });
        };
        if self.legacy() {
            let text = "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined";
            return Err(AuthzError::Config(text.into()));
        }
        let data = std::fs::read(path).map_err(|source| AuthzError::Read { path: path.clone(), source })?;
        let modes = parse(&data, &[]).map_err(AuthzError::Config)?;
        Ok(Configured { modes, file: Some((path.clone(), data)) })
    }

    fn modes(&self) -> Result<Vec<Mode>, AuthzError> {
        let given: Vec<&str> =
            self.authorization_mode.iter().map(String::as_str).filter(|m| !m.is_empty()).collect();
        let mut errors = vec![];
        for mode in &given {
            if !TYPES.contains(mode) {
                errors.push(format!("authorization-mode {mode:?} is not a valid mode"));
            }
            match *mode {
                "ABAC" if self.authorization_policy_file.is_none() => {
                    errors.push("authorization-mode ABAC's authorization policy file not passed".into());
                }
                "Webhook" if self.authorization_webhook_config_file.is_none() => {
                    errors.push("authorization-mode Webhook's authorization config file not passed".into());
                }
                _ => {}
            }
        }
        if self.authorization_policy_file.is_some() && !given.contains(&"ABAC") {
            errors.push("cannot specify --authorization-policy-file without mode ABAC".into());
        }
        if self.authorization_webhook_config_file.is_some() && !given.contains(&"Webhook") {
            errors.push("cannot specify --authorization-webhook-config-file without mode Webhook".into());
        }
        if given.iter().enumerate().any(|(i, mode)| given[..i].contains(mode)) {
            errors.push(format!("authorization-mode {given:?} has mode specified more than once"));
        }
        let webhook = self.webhook().map_err(|error| errors.push(error)).ok();
        if !errors.is_empty() {
            return Err(AuthzError::Config(errors.join("\n")));
        }
        if given.is_empty() {
            return Ok(Mode::default_order());
        }
        let mode =
            |kind: &&str| Mode::plain(kind).or_else(|| webhook.clone().map(|w| Mode::Webhook(Box::new(w))));
        Ok(given.iter().filter_map(mode).collect())
    }

    /// The policies of the mode ABAC, if it is among the modes.
    ///
    /// # Errors
    /// Without a file, or with one that cannot be used.
    pub fn policies(&self, modes: &[Mode]) -> Result<Option<Policies>, AuthzError> {
        if !modes.contains(&Mode::Abac) {
            return Ok(None);
        }
        let Some(path) = &self.authorization_policy_file else {
            let text = "authorization-mode ABAC's authorization policy file not passed";
            return Err(AuthzError::Config(text.into()));
        };
        let text = std::fs::read_to_string(path)
            .map_err(|source| AuthzError::Read { path: path.clone(), source })?;
        Policies::parse(&path.display().to_string(), &text).map(Some).map_err(AuthzError::Config)
    }

    /// The service that the flags name, if they name one.
    fn webhook(&self) -> Result<WebhookConfig, String> {
        let version = match self.authorization_webhook_version.as_deref() {
            Some("v1") => "v1",
            None | Some("v1beta1") => "v1beta1",
            Some(other) => {
                return Err(format!(
                    r#"unsupported webhook authorizer version {other:?}, supported versions are "v1", "v1beta1""#
                ));
            }
        };
        Ok(WebhookConfig {
            name: "default".into(),
            timeout: TIMEOUT,
            authorized_ttl: self
                .authorization_webhook_cache_authorized_ttl
                .unwrap_or(Duration::from_secs(300)),
            unauthorized_ttl: self
                .authorization_webhook_cache_unauthorized_ttl
                .unwrap_or(Duration::from_secs(30)),
            version,
            on_failure: OnFailure::NoOpinion,
            kubeconfig: self.authorization_webhook_config_file.clone().unwrap_or_default(),
            conditions: Conditions::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        authz: AuthzOptions,
    }

    fn read(args: &[&str]) -> String {
        let args = [&["kaji"], args].concat();
        let options = match Cli::try_parse_from(args) {
            Ok(cli) => cli.authz,
            Err(error) => return error.to_string().lines().next().unwrap_or_default().to_owned(),
        };
        match options.read() {
            Ok(configured) => format!("{:?}", configured.modes),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn reads_the_flags() {
        let webhook = "--authorization-webhook-config-file=/w";
        let all = [
            read(&[]),
            read(&["--authorization-mode="]),
            read(&["--authorization-mode=RBAC,Node", "--authorization-mode=AlwaysDeny"]),
            read(&["--authorization-mode=Webhook,RBAC", webhook]),
            read(&[
                "--authorization-mode=Webhook",
                webhook,
                "--authorization-webhook-version=v1",
                "--authorization-webhook-cache-authorized-ttl=1m30s",
                "--authorization-webhook-cache-unauthorized-ttl=-1s",
            ]),
            read(&["--authorization-mode=rbac,RBAC,RBAC,ABAC,Webhook"]),
            read(&["--authorization-mode=ABAC", "--authorization-policy-file=/p"]),
            read(&["--authorization-policy-file=/p", webhook, "--authorization-webhook-version=v2"]),
            read(&["--authorization-webhook-cache-authorized-ttl=soon"]),
            read(&["--authorization-config=/nowhere/at/all"]),
            read(&["--authorization-config=/nowhere/at/all", "--authorization-webhook-version=v1"]),
        ];
        expect_test::expect![[r#"
            [Node, Rbac]
            [Node, Rbac]
            [Rbac, Node, AlwaysDeny]
            [Webhook(WebhookConfig { name: "default", timeout: 30s, authorized_ttl: 300s, unauthorized_ttl: 30s, version: "v1beta1", on_failure: NoOpinion, kubeconfig: "/w", conditions: [] }), Rbac]
            [Webhook(WebhookConfig { name: "default", timeout: 30s, authorized_ttl: 90s, unauthorized_ttl: 0ns, version: "v1", on_failure: NoOpinion, kubeconfig: "/w", conditions: [] })]
            authorization-mode "rbac" is not a valid mode
            authorization-mode ABAC's authorization policy file not passed
            authorization-mode Webhook's authorization config file not passed
            authorization-mode ["rbac", "RBAC", "RBAC", "ABAC", "Webhook"] has mode specified more than once
            [Abac]
            cannot specify --authorization-policy-file without mode ABAC
            cannot specify --authorization-webhook-config-file without mode Webhook
            unsupported webhook authorizer version "v2", supported versions are "v1", "v1beta1"
            error: invalid value 'soon' for '--authorization-webhook-cache-authorized-ttl <AUTHORIZATION_WEBHOOK_CACHE_AUTHORIZED_TTL>': time: invalid duration "soon"
            /nowhere/at/all: No such file or directory (os error 2)
            --authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined"#]].assert_eq(&all.join("\n"));
    }
}
