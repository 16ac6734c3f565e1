//! The credentials of this server towards webhooks: `kubeConfigFile` of a `WebhookAdmissionConfiguration`.
//!
//! The file's users are named after the servers that are called: `host:port`, `*.domain:port`, the same without a port for 443,
//! and `*` for all others. Source: upstream's `util/webhook/authentication.go`.
//!
//! Invariants: a way to authenticate that is not supported is refused when the file is read. The files of credentials that
//! it names are followed: a call uses what they held within the second, and what they held last while they cannot be read.
//! A certificate and a key are used only together with each other: while one of them is new and the other is not, both stay
//! as they were.

use crate::config::Read;
use base64::{Engine, prelude::BASE64_STANDARD};
use kaji_outbound::{ClientConfig, Target};
use serde::Deserialize;
use serde_json::Value;
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// How often a file is looked at.
const GLANCE: Duration = Duration::from_secs(1);

/// Group, versions and kind of the plugins' configuration.
pub(crate) const KIND: (&str, &[&str], &str) =
    ("apiserver.config.k8s.io", &["v1"], "WebhookAdmissionConfiguration");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    kube_config_file: String,
    #[serde(default)]
    static_manifests_dir: String,
}

#[derive(Deserialize)]
pub(super) struct Kubeconfig {
    #[serde(default)]
    users: Vec<Named>,
    #[serde(default)]
    contexts: Vec<Context>,
    #[serde(default)]
    pub clusters: Vec<NamedCluster>,
    #[serde(default, rename = "current-context")]
    current_context: String,
}

impl Kubeconfig {
    /// The current context.
    pub fn context(&self) -> Option<&ContextUser> {
        let current = self.contexts.iter().find(|context| context.name == self.current_context);
        current.map(|context| &context.context)
    }

    /// Whether a user is there.
    pub fn has_user(&self, name: &str) -> bool {
        self.users.iter().any(|user| user.name == name)
    }
}

#[derive(Deserialize)]
pub(super) struct NamedCluster {
    pub name: String,
    #[serde(default)]
    pub cluster: Cluster,
}

/// A server, and how it is verified.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct Cluster {
    pub server: String,
    pub certificate_authority: String,
    pub certificate_authority_data: String,
    pub insecure_skip_tls_verify: bool,
    pub tls_server_name: String,
    pub proxy_url: String,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Deserialize)]
struct Context {
    name: String,
    context: ContextUser,
}

#[derive(Deserialize)]
pub(super) struct ContextUser {
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub cluster: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    username: String,
    password: String,
    exec: Value,
    auth_provider: Value,
    r#as: String,
    #[serde(skip)]
    pair: Arc<Pair>,
}

/// Certificate chain and key, PEM.
type Identity = (Vec<u8>, Vec<u8>);

/// The last certificate and key that belonged together.
#[derive(Default)]
struct Pair(Mutex<Paired>);

#[derive(Default)]
struct Paired {
    good: Option<Identity>,
    /// Those that do not belong together, which was said.
    torn: bool,
}

impl Pair {
    /// The pair to be used, given what there is now; and whether that is it.
    fn settle(&self, now: Identity) -> (Identity, bool) {
        let mut paired = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if paired.good.as_ref() == Some(&now) {
            paired.torn = false;
            return (now, true);
        }
        match (kaji_outbound::check_identity(&now.0, &now.1), &paired.good) {
            (Ok(()), _) => {
                *paired = Paired { good: Some(now.clone()), torn: false };
                (now, true)
            }
            (Err(error), Some(good)) => {
                let good = good.clone();
                if !std::mem::replace(&mut paired.torn, true) {
                    tracing::warn!(error, "the certificate and key for webhooks are not reloaded");
                }
                (good, false)
            }
            // There is nothing better; the call fails and says why.
            (Err(_), None) => (now, false),
        }
    }
}

/// What a file held when it was looked at.
struct Held {
    looked: Instant,
    looks: Option<(SystemTime, u64)>,
    content: Vec<u8>,
    /// It cannot be read now, which was said.
    lost: bool,
}

/// The files of credentials, as few as the kubeconfig names.
#[derive(Default)]
struct Files(Mutex<HashMap<PathBuf, Held>>);

impl Files {
    fn read(&self, path: PathBuf, glance: Duration) -> Result<Vec<u8>, String> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = files.get_mut(&path);
        if let Some(held) = held.as_ref().filter(|held| held.looked.elapsed() < glance) {
            return Ok(held.content.clone());
        }
        let looks = fs::metadata(&path).ok().and_then(|m| Some((m.modified().ok()?, m.len())));
        let looked = Instant::now();
        let content = || match fs::read(&path) {
            // As it is for a moment while it is written anew.
            Ok(content) if content.trim_ascii().is_empty() => Err(format!("{}: it is empty", path.display())),
            read => read.map_err(|e| format!("{}: {e}", path.display())),
        };
        match held {
            Some(held) if looks.is_some() && held.looks == looks => {
                (held.looked, held.lost) = (looked, false)
            }
            Some(held) => match content() {
                Ok(content) => *held = Held { looked, looks, content, lost: false },
                Err(error) => {
                    held.looked = looked;
                    if !std::mem::replace(&mut held.lost, true) {
                        tracing::warn!(error, "the credentials for webhooks are not reloaded");
                    }
                }
            },
            None => {
                let content = content()?;
                files.insert(path.clone(), Held { looked, looks, content, lost: false });
            }
        }
        Ok(files.get(&path).map(|held| held.content.clone()).unwrap_or_default())
    }

    /// Reads a file the next time, whatever it looks like.
    fn distrust(&self, path: &Path) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.get_mut(path).into_iter().for_each(|held| held.looks = None);
    }
}

/// This server's credentials by server. Without a file it has none.
#[derive(Clone, Default)]
pub(crate) struct Auth {
    users: Arc<BTreeMap<String, User>>,
    files: Arc<Files>,
    /// The user of the current context.
    current: Option<String>,
    /// Paths in the file are relative to it.
    dir: PathBuf,
}

/// Tokens and keys stay out of logs.
impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").field("users", &self.users.keys()).finish_non_exhaustive()
    }
}

impl Auth {
    /// From a `WebhookAdmissionConfiguration`.
    ///
    /// # Errors
    /// What cannot be read or is not supported, in words.
    pub(crate) fn parse(value: Value, read: Read<'_>) -> Result<Auth, String> {
        let file: File = serde_json::from_value(value).map_err(|e| e.to_string())?;
        if !file.static_manifests_dir.is_empty() {
            return Err("staticManifestsDir is not supported by this server".into());
        }
        if file.kube_config_file.is_empty() {
            return Ok(Auth::default());
        }
        let path = Path::new(&file.kube_config_file);
        if !path.is_absolute() {
            return Err(format!(
                "kubeConfigFile: Invalid value: {:?}: must be an absolute file path",
                file.kube_config_file
            ));
        }
        let text = read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Auth::kubeconfig(&text, path.parent().unwrap_or(Path::new("")))
            .map_err(|e| format!("{}: {e}", path.display()))
    }

    fn kubeconfig(text: &str, dir: &Path) -> Result<Auth, String> {
        Auth::of(kaji_files::yaml::decode(text).map_err(|e| e.to_string())?, dir)
    }

    /// Of a kubeconfig in a directory.
    ///
    /// # Errors
    /// A user authenticates in a way that is not supported.
    pub(super) fn of(file: Kubeconfig, dir: &Path) -> Result<Auth, String> {
        for Named { name, user } in &file.users {
            let missing = [
                ("exec", !user.exec.is_null()),
                ("auth-provider", !user.auth_provider.is_null()),
                ("as", !user.r#as.is_empty()),
            ];
            if let Some((what, _)) = missing.iter().find(|(_, used)| *used) {
                return Err(format!("users[{name}].user.{what} is not supported by this server"));
            }
        }
        Ok(Auth {
            current: file.context().map(|context| context.user.clone()).filter(|user| !user.is_empty()),
            users: Arc::new(file.users.into_iter().map(|named| (named.name, named.user)).collect()),
            files: Arc::default(),
            dir: dir.to_owned(),
        })
    }

    /// The user for a server that is called.
    fn user(&self, host: &str, port: u16) -> Option<&User> {
        let starred = |target: &str| {
            let exact = self.users.get(target);
            exact.or_else(|| {
                target.match_indices('.').find_map(|(at, _)| self.users.get(&format!("*{}", &target[at..])))
            })
        };
        starred(&format!("{host}:{port}"))
            .or_else(|| (port == 443).then(|| starred(host)).flatten())
            .or_else(|| self.users.get("*"))
            .or_else(|| self.users.get(self.current.as_deref()?))
    }

    /// Adds what this server proves itself with.
    ///
    /// # Errors
    /// A file or data that cannot be read.
    pub(super) fn apply<'c>(&self, config: &'c ClientConfig) -> Result<Cow<'c, ClientConfig>, String> {
        if self.users.is_empty() {
            return Ok(Cow::Borrowed(config));
        }
        let user = match &config.target {
            Target::Service { namespace, name, port, .. } => {
                self.user(&format!("{name}.{namespace}.svc"), *port)
            }
            Target::Plain { host, port } => self.user(host, *port),
            Target::Url(url) => {
                let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
                let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
                match authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?))) {
                    Some((host, port)) => self.user(host, port),
                    None => self.user(authority, 443),
                }
            }
        };
        let Some(user) = user else { return Ok(Cow::Borrowed(config)) };
        let identity = self.identity(user, GLANCE)?;
        let authorization = self.authorization(user)?;
        Ok(Cow::Owned(ClientConfig { identity, authorization, ..config.clone() }))
    }

    /// Adds what this server proves itself with as the user of the current context, and the authorities of a server.
    ///
    /// # Errors
    /// A file or data that cannot be read.
    pub(super) fn apply_current(
        &self,
        cluster: &Cluster,
        config: ClientConfig,
    ) -> Result<ClientConfig, String> {
        let authorities = (&cluster.certificate_authority, &cluster.certificate_authority_data);
        let ca_bundle = self.pem(authorities.0, authorities.1, GLANCE)?.unwrap_or_default();
        let (identity, authorization) =
            match self.current.as_deref().and_then(|current| self.users.get(current)) {
                Some(user) => (self.identity(user, GLANCE)?, self.authorization(user)?),
                None => (None, None),
            };
        Ok(ClientConfig { ca_bundle, identity, authorization, ..config })
    }

    fn authorization(&self, user: &User) -> Result<Option<String>, String> {
        if !user.token.is_empty() {
            return Ok(Some(format!("Bearer {}", user.token)));
        }
        if !user.token_file.is_empty() {
            return Ok(Some(format!(
                "Bearer {}",
                String::from_utf8_lossy(&self.file(&user.token_file, GLANCE)?).trim()
            )));
        }
        if user.username.is_empty() && user.password.is_empty() {
            return Ok(None);
        }
        let pair = format!("{}:{}", user.username, user.password);
        Ok(Some(format!("Basic {}", BASE64_STANDARD.encode(pair))))
    }

    fn file(&self, path: &str, glance: Duration) -> Result<Vec<u8>, String> {
        self.files.read(self.dir.join(path), glance)
    }

    fn identity(&self, user: &User, glance: Duration) -> Result<Option<Identity>, String> {
        let (Some(certificate), Some(key)) = (
            self.pem(&user.client_certificate, &user.client_certificate_data, glance)?,
            self.pem(&user.client_key, &user.client_key_data, glance)?,
        ) else {
            return Ok(None);
        };
        let (identity, fits) = user.pair.settle((certificate, key));
        if !fits {
            for path in [&user.client_certificate, &user.client_key] {
                self.files.distrust(&self.dir.join(path));
            }
        }
        Ok(Some(identity))
    }

    /// Data counts before a file.
    fn pem(&self, path: &str, data: &str, glance: Duration) -> Result<Option<Vec<u8>>, String> {
        match (data, path) {
            ("", "") => Ok(None),
            ("", path) => self.file(path, glance).map(Some),
            (data, _) => BASE64_STANDARD.decode(data).map(Some).map_err(|e| e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    const FILE: &str = "
users:
- {name: 'a.b:8443', user: {token: exact}}
- {name: '*.b:8443', user: {token: star}}
- {name: hooks.n.svc, user: {username: u, password: p}}
- {name: '*.svc', user: {token: services}}
- {name: '*', user: {token: rest}}
";

    #[test]
    fn selects_user_by_server_name() {
        let auth = Auth::kubeconfig(FILE, Path::new("")).unwrap();
        let to = |target| {
            let config = ClientConfig::new(target, "");
            auth.apply(&config).unwrap().authorization.clone().unwrap_or_default()
        };
        let url = |url: &str| to(Target::Url(url.into()));
        let service = |name: &str, port| {
            to(Target::Service { namespace: "n".into(), name: name.into(), path: String::new(), port })
        };
        let seen = [
            url("https://a.b:8443/x"),
            url("https://c.b:8443/x"),
            url("https://a.b/x"),
            service("hooks", 443),
            service("hooks", 8443),
            service("other", 443),
        ];
        expect![[r#"
            Bearer exact
            Bearer star
            Bearer rest
            Basic dTpw
            Bearer rest
            Bearer services"#]]
        .assert_eq(&seen.join("\n"));
        let config = ClientConfig::new(Target::Url("https://a.b".into()), "");
        assert_eq!(Auth::default().apply(&config).unwrap().authorization, None);
    }

    #[test]
    fn rereads_changed_credential_files() {
        let dir = tempfile::tempdir().unwrap();
        let (files, path) = (Files::default(), dir.path().join("token"));
        let read = || files.read(path.clone(), Duration::ZERO).map(|held| String::from_utf8(held).unwrap());
        assert!(read().unwrap_err().ends_with("token: No such file or directory (os error 2)"));
        fs::write(&path, "one").unwrap();
        assert_eq!(read().unwrap(), "one");
        fs::write(&path, "second").unwrap();
        assert_eq!(read().unwrap(), "second");
        fs::remove_file(&path).unwrap();
        assert_eq!(read().unwrap(), "second");
        fs::write(&path, "3").unwrap();
        // Not looked at so soon.
        assert_eq!(files.read(path.clone(), Duration::from_secs(3600)).unwrap(), b"second");
        assert_eq!(read().unwrap(), "3");
    }

    /// Files are replaced one after the other, and one in pieces; what is used always fits.
    #[test]
    fn certificates_and_keys_change_together() {
        let dir = tempfile::tempdir().unwrap();
        let text = "users: [{name: '*', user: {client-certificate: c, client-key: k}}]";
        let auth = Auth::kubeconfig(text, dir.path()).unwrap();
        let made = || rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let [one, two] = [made(), made()].map(|m| (m.cert.pem(), m.signing_key.serialize_pem()));
        // Both look the same from outside.
        let path = |name: &str| dir.path().join(name);
        let write = |name: &str, text: &str| {
            fs::write(path(name), text).unwrap();
            fs::File::options()
                .write(true)
                .open(path(name))
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH)
                .unwrap();
        };
        let used = || {
            let identity = auth.identity(&auth.users["*"], Duration::ZERO).unwrap().unwrap();
            let texts = (String::from_utf8(identity.0).unwrap(), String::from_utf8(identity.1).unwrap());
            [&one, &two].iter().position(|pair| **pair == texts)
        };
        write("c", &one.0);
        write("k", &two.1);
        // Nothing fits, and nothing else is known.
        assert_eq!(used(), None);
        write("k", &one.1);
        assert_eq!(used(), Some(0));
        write("c", &two.0[..two.0.len() / 2]);
        assert_eq!(used(), Some(0));
        write("c", &two.0);
        assert_eq!(used(), Some(0));
        write("k", "");
        assert_eq!(used(), Some(0));
        write("k", &two.1);
        assert_eq!(used(), Some(1));
        let torn = || auth.users["*"].pair.0.lock().unwrap().torn;
        assert!(!torn());
        fs::write(path("k"), format!("{}\n", one.1)).unwrap();
        assert_eq!(used(), Some(1));
        assert!(torn());
    }

    /// What could not be read is not remembered.
    #[test]
    fn accepts_credential_file_that_appears_later() {
        let dir = tempfile::tempdir().unwrap();
        let auth = Auth::kubeconfig("users: [{name: '*', user: {tokenFile: token}}]", dir.path()).unwrap();
        let config = ClientConfig::new(Target::Url("https://a.b".into()), "");
        assert!(auth.apply(&config).is_err());
        fs::write(dir.path().join("token"), "late\n").unwrap();
        assert_eq!(auth.apply(&config).unwrap().authorization.as_deref(), Some("Bearer late"));
    }

    #[test]
    fn the_current_context_is_the_last_resort() {
        let text = "{users: [{name: me, user: {token: t}}], current-context: c, contexts: [{name: c, context: {user: me}}]}";
        let auth = Auth::kubeconfig(text, Path::new("")).unwrap();
        let config = ClientConfig::new(Target::Url("https://a.b".into()), "");
        assert_eq!(auth.apply(&config).unwrap().authorization.as_deref(), Some("Bearer t"));
    }

    #[test]
    fn rejects_unsupported_kubeconfig_fields() {
        let config = |kubeconfig: &'static str, extra: (&str, &str)| {
            let mut value = json!({"kubeConfigFile": "/k"});
            value[extra.0] = json!(extra.1);
            Auth::parse(value, &|_| Ok(kubeconfig.to_owned()))
                .map(|_| "fine".to_owned())
                .unwrap_or_else(|e| e)
        };
        let seen = [
            config("users: []", ("kubeConfigFile", "/k")),
            config("users: [{name: a, user: {exec: {command: x}}}]", ("kubeConfigFile", "/k")),
            config("users: [{name: a, user: {as: x}}]", ("kubeConfigFile", "/k")),
            config("", ("kubeConfigFile", "k")),
            config("", ("staticManifestsDir", "/m")),
            config("", ("other", "/m")),
        ];
        expect![[r#"
            fine
            /k: users[a].user.exec is not supported by this server
            /k: users[a].user.as is not supported by this server
            kubeConfigFile: Invalid value: "k": must be an absolute file path
            staticManifestsDir is not supported by this server
            unknown field `other`, expected `kubeConfigFile` or `staticManifestsDir`"#]]
        .assert_eq(&seen.join("\n"));
    }
}
