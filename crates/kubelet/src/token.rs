//! `kaji token`: bootstrap tokens, created, listed and deleted as kubeadm does it.
//!
//! Invariant: a token's secret is shown by `create` and `list` only, and is in no error.

use crate::{cluster_info::NODE_TOKENS, public_key_pins};
use base64::{Engine, engine::general_purpose::STANDARD};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kaji_meta::{Time, random::Random};
use kaji_runtime::{Client, Error, Target, client::escape};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

const TYPE: &str = "bootstrap.kubernetes.io/token";
const NAMESPACE: &str = "kube-system";
const USAGE: &str = "usage-bootstrap-";
pub(crate) const TOKEN_PATTERN: &str = r"\A([a-z0-9]{6})\.([a-z0-9]{16})\z";
const ID_PATTERN: &str = r"\A([a-z0-9]{6})\z";
const GROUP_PATTERN: &str = r"\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The command line.
    #[error("{0}")]
    Usage(String),
    /// The server.
    #[error("{what}: {error}")]
    Api {
        /// What was tried.
        what: String,
        /// Why it did not work.
        error: Error,
    },
}

/// What to do with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Creates a token and prints it.
    Create(Create),
    /// Lists the tokens.
    List,
    /// Deletes tokens, named by their ids or in full.
    Delete {
        /// `abcdef` or `abcdef.0123456789abcdef`
        #[arg(required = true)]
        tokens: Vec<String>,
    },
}

/// What a new token is to be.
#[derive(Clone, Debug, Args)]
pub struct Create {
    /// The token, of the form [a-z0-9]{6}.[a-z0-9]{16}; a random one if it is left out.
    pub token: Option<String>,
    /// How long it is good (1s, 2m, 3h); 0 means that it never expires.
    #[arg(long, default_value = "24h")]
    pub ttl: String,
    /// What it may be used for: signing, authentication.
    #[arg(long, value_delimiter = ',', default_value = "signing,authentication")]
    pub usages: Vec<String>,
    /// Groups that it authenticates as, besides system:bootstrappers.
    #[arg(long, value_delimiter = ',', default_value = NODE_TOKENS)]
    pub groups: Vec<String>,
    /// A text for people.
    #[arg(long, default_value = "")]
    pub description: String,
    /// Prints the command with which a node joins, instead of the token alone.
    #[arg(long)]
    pub print_join_command: bool,
}

/// The server and the certificate authorities of the cluster, for the join command.
#[derive(Clone, Debug)]
pub struct ClusterAt {
    /// `https://host:port`
    pub server: http::Uri,
    /// DER.
    pub authorities: Vec<Vec<u8>>,
}

impl ClusterAt {
    /// What a client's configuration says of it.
    pub fn of(config: &kube::Config) -> ClusterAt {
        let authorities = config.root_cert.clone().unwrap_or_default();
        ClusterAt { server: config.cluster_url.clone(), authorities }
    }

    fn join_command(&self, token: &str) -> Result<String, String> {
        let host = self.server.host().ok_or_else(|| format!("{}: no host", self.server))?;
        let port = self.server.port_u16().unwrap_or(443);
        if self.authorities.is_empty() {
            return Err(
                "the kubeconfig names no certificate authority that nodes could recognize the cluster by"
                    .into(),
            );
        }
        let hashes =
            self.authorities.iter().map(|der| public_key_pins::hash(der)).collect::<Result<Vec<_>, _>>()?;
        let hashes: String = hashes.iter().map(|h| format!(" --discovery-token-ca-cert-hash {h}")).collect();
        Ok(format!("kaji agent --join {host}:{port} --token {token}{hashes}\n"))
    }
}

/// Runs a command; gives back what it prints.
///
/// # Errors
/// A command line that means nothing, and the server's.
pub async fn run(
    command: &TokenCommand,
    client: &Client,
    at: &ClusterAt,
    now: Timestamp,
    random: &dyn Random,
) -> Result<String, TokenError> {
    match command {
        TokenCommand::Create(create) => {
            let token = create.token.clone().unwrap_or_else(|| generate(random));
            let secret = secret(create, &token, now).map_err(TokenError::Usage)?;
            // What cannot be printed is to be known before there is a token.
            let text = match create.print_join_command {
                true => at.join_command(&token).map_err(TokenError::Usage)?,
                false => format!("{token}\n"),
            };
            match client.create(&target(""), &secret).await {
                Ok(_) => Ok(text),
                Err(error) if error.conflict() => {
                    Err(TokenError::Usage(format!("a token with id {:?} already exists", &token[..6])))
                }
                Err(error) => {
                    Err(TokenError::Api { what: "failed to create the bootstrap token".into(), error })
                }
            }
        }
        TokenCommand::List => {
            let uri = format!("{}?fieldSelector={}", target("").path(), escape(&format!("type={TYPE}")));
            let list: Value = client
                .get(&uri)
                .await
                .map_err(|error| TokenError::Api { what: "failed to list bootstrap tokens".into(), error })?;
            let rows = list["items"].as_array().into_iter().flatten().filter_map(|s| row(s, now)).collect();
            Ok(table(rows))
        }
        TokenCommand::Delete { tokens } => {
            let mut out = String::new();
            for token in tokens {
                let id = id_of(token).map_err(TokenError::Usage)?;
                let name = format!("bootstrap-token-{id}");
                client.delete(&target(&name), &Value::Null).await.map_err(|error| TokenError::Api {
                    what: format!("failed to delete bootstrap token {id:?}"),
                    error,
                })?;
                let _ = writeln!(out, "bootstrap token {id:?} deleted");
            }
            Ok(out)
        }
    }
}

fn target(name: &str) -> Target {
    Target {
        version: "v1".into(),
        resource: "secrets".into(),
        namespace: NAMESPACE.into(),
        name: name.into(),
        ..Target::default()
    }
}

fn plain(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// A token's two parts.
pub(crate) fn parts(token: &str) -> Option<(&str, &str)> {
    token.split_once('.').filter(|(id, secret)| plain(id, 6) && plain(secret, 16))
}

fn id_of(token: &str) -> Result<&str, String> {
    if plain(token, 6) {
        return Ok(token);
    }
    parts(token)
        .map(|(id, _)| id)
        .ok_or_else(|| format!("given token didn't match pattern {TOKEN_PATTERN:?} or {ID_PATTERN:?}"))
}

fn generate(random: &dyn Random) -> String {
    let mut letters = std::iter::from_fn(|| Some(random.u64().to_le_bytes()))
        .flatten()
        // 252 is the largest multiple of 36 in a byte; beyond it some letters would be likelier.
        .filter(|b| *b < 252)
        .map(|b| char::from(b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::from(b % 36)]));
    let mut take = |n: usize| letters.by_ref().take(n).collect::<String>();
    let id = take(6);
    format!("{id}.{}", take(16))
}

/// The secret that holds a token.
fn secret(create: &Create, token: &str, now: Timestamp) -> Result<Value, String> {
    let (id, key) =
        parts(token).ok_or_else(|| format!("the bootstrap token was not of the form {TOKEN_PATTERN:?}"))?;
    let mut data = Map::new();
    let mut put = |key: String, value: &str| drop(data.insert(key, STANDARD.encode(value).into()));
    put("token-id".into(), id);
    put("token-secret".into(), key);
    if !create.description.is_empty() {
        put("description".into(), &create.description);
    }
    let ttl = kaji_meta::duration::parse_non_negative(&create.ttl)?;
    if !ttl.is_zero() {
        let end = now.checked_add(ttl).map_err(|e| e.to_string())?;
        put("expiration".into(), &kaji_meta::Time::from(end).to_string());
    }
    let usages: Vec<&str> = create.usages.iter().map(String::as_str).filter(|u| !u.is_empty()).collect();
    for usage in &usages {
        if !["signing", "authentication"].contains(usage) {
            return Err(format!(
                "invalid bootstrap token usage string: {usage}, valid usage options: signing, authentication"
            ));
        }
        put(format!("{USAGE}{usage}"), "true");
    }
    // The default group is for tokens that authenticate; others simply have none.
    let authenticates = usages.contains(&"authentication");
    let groups: Vec<&str> = create
        .groups
        .iter()
        .map(String::as_str)
        .filter(|g| !g.is_empty() && (authenticates || *g != NODE_TOKENS))
        .collect();
    if !groups.is_empty() && !authenticates {
        return Err("token groups cannot be specified unless --usages includes \"authentication\"".into());
    }
    for group in &groups {
        let rest = group.strip_prefix("system:bootstrappers:").unwrap_or_default();
        let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b':' | b'-');
        let ends = rest.bytes().last().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if !ends || rest.len() > 256 || !rest.bytes().all(fine) {
            return Err(format!("bootstrap group {group:?} is invalid (must match {GROUP_PATTERN})"));
        }
    }
    if !groups.is_empty() {
        put("auth-extra-groups".into(), &groups.join(","));
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": NAMESPACE},
        "type": TYPE,
        "data": data,
    }))
}

/// A line of the list; `None` for a secret that is no token.
fn row(secret: &Value, now: Timestamp) -> Option<[String; 6]> {
    let data = secret["data"].as_object()?;
    let text = |key: &str| {
        let bytes = STANDARD.decode(data.get(key)?.as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    let or =
        |text: Option<String>, none: &str| text.filter(|t| !t.is_empty()).unwrap_or_else(|| none.to_owned());
    let token = format!("{}.{}", text("token-id")?, text("token-secret")?);
    parts(&token)?;
    let expires = text("expiration").filter(|t| !t.is_empty());
    let ttl = expires
        .as_deref()
        .map(|e| Time::parse(e).map_or_else(|_| "<invalid>".into(), |e| short(e.timestamp(), now)));
    let used = data
        .keys()
        .filter_map(|k| k.strip_prefix(USAGE))
        .filter(|u| text(&format!("{USAGE}{u}")).as_deref() == Some("true"));
    let usages = used.collect::<Vec<_>>().join(",");
    Some([
        token,
        or(ttl, "<forever>"),
        or(expires, "<never>"),
        or(Some(usages), "<none>"),
        or(text("description"), "<none>"),
        or(text("auth-extra-groups"), "<none>"),
    ])
}

/// How long it is until then, in the largest unit.
fn short(then: Timestamp, now: Timestamp) -> String {
    match then.as_second() - now.as_second() {
        s if s < -1 => "<invalid>".into(),
        s if s < 0 => "0s".into(),
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m", s / 60),
        s if s < 86_400 => format!("{}h", s / 3600),
        s if s < 86_400 * 365 => format!("{}d", s / 86_400),
        s => format!("{}y", s / (86_400 * 365)),
    }
}

fn table(rows: Vec<[String; 6]>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let head = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"].map(String::from);
    let all: Vec<[String; 6]> = std::iter::once(head).chain(rows).collect();
    let widths: [usize; 6] =
        std::array::from_fn(|i| all.iter().map(|r| r[i].chars().count()).max().unwrap_or(0).max(7) + 3);
    let mut out = String::new();
    for row in &all {
        let line: String = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use kaji_meta::random::SeededRandom;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn create() -> Create {
        Create {
            token: None,
            ttl: "24h".into(),
            usages: vec!["signing".into(), "authentication".into()],
            groups: vec![NODE_TOKENS.into()],
            description: String::new(),
            print_join_command: false,
        }
    }

    const TOKEN: &str = "abcdef.0123456789abcdef";

    #[test]
    fn lists_what_it_creates() {
        let first = secret(&create(), TOKEN, now()).unwrap();
        assert_eq!(first["metadata"]["name"], "bootstrap-token-abcdef");
        assert_eq!(first["type"], TYPE);
        let forever = Create {
            ttl: "0".into(),
            usages: vec!["signing".into()],
            description: "of CI".into(),
            ..create()
        };
        let second = secret(&forever, "ghijkl.0123456789abcdef", now()).unwrap();
        let rows = [&first, &second].into_iter().filter_map(|s| row(s, now())).collect();
        expect![[r#"
            TOKEN                     TTL         EXPIRES                USAGES                   DESCRIPTION   EXTRA GROUPS
            abcdef.0123456789abcdef   1d          2026-01-02T00:00:00Z   authentication,signing   <none>        system:bootstrappers:kubeadm:default-node-token
            ghijkl.0123456789abcdef   <forever>   <never>                signing                  of CI         <none>
        "#]].assert_eq(&table(rows));
        assert_eq!(row(&json!({"data": {"token-id": "eA=="}}), now()), None);
        assert_eq!(table(vec![]), "");
    }

    #[test]
    fn rejects_invalid_tokens_and_options() {
        let error = |change: fn(&mut Create), token: &str| {
            let mut create = create();
            change(&mut create);
            secret(&create, token, now()).unwrap_err()
        };
        expect![[r#"the bootstrap token was not of the form "\\A([a-z0-9]{6})\\.([a-z0-9]{16})\\z""#]]
            .assert_eq(&error(|_| {}, "abcdef.0123"));
        expect![[r#"time: unknown unit "d" in duration "1d""#]]
            .assert_eq(&error(|c| c.ttl = "1d".into(), TOKEN));
        expect!["invalid bootstrap token usage string: x, valid usage options: signing, authentication"]
            .assert_eq(&error(|c| c.usages = vec!["x".into()], TOKEN));
        expect![[r#"bootstrap group "system:masters" is invalid (must match \Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z)"#]].assert_eq(&error(|c| c.groups = vec!["system:masters".into()], TOKEN));
        expect![[r#"token groups cannot be specified unless --usages includes "authentication""#]].assert_eq(
            &error(
                |c| {
                    c.usages = vec!["signing".into()];
                    c.groups = vec!["system:bootstrappers:x".into()];
                },
                TOKEN,
            ),
        );
        expect![[r#"given token didn't match pattern "\\A([a-z0-9]{6})\\.([a-z0-9]{16})\\z" or "\\A([a-z0-9]{6})\\z""#]].assert_eq(&id_of("x").unwrap_err());
        assert_eq!(id_of("abcdef"), Ok("abcdef"));
        assert_eq!(id_of(TOKEN), Ok("abcdef"));
    }

    #[test]
    fn prints_join_commands() {
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap();
        let at = |server: &str, authorities: Vec<Vec<u8>>| ClusterAt {
            server: server.parse().unwrap(),
            authorities,
        };
        let hash = public_key_pins::hash(ca.der()).unwrap();
        assert_eq!(
            at("https://[::1]:6443/", vec![ca.der().to_vec()]).join_command(TOKEN).unwrap(),
            format!("kaji agent --join [::1]:6443 --token {TOKEN} --discovery-token-ca-cert-hash {hash}\n")
        );
        assert!(at("https://a", vec![ca.der().to_vec()]).join_command(TOKEN).unwrap().contains(" a:443 "));
        assert!(
            at("https://a", vec![]).join_command(TOKEN).unwrap_err().contains("no certificate authority")
        );
    }

    #[test]
    fn random_tokens_are_tokens() {
        let random = SeededRandom::new(7);
        let (a, b) = (generate(&random), generate(&random));
        assert!(parts(&a).is_some() && parts(&b).is_some() && a != b, "{a} {b}");
    }
}
