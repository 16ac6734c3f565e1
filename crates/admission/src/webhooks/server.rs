//! The server that the current context of a kubeconfig names, for plugins with one webhook for the whole cluster.
//!
//! Invariant: what cannot be used is refused when the file is read; the files of credentials and authorities that it names
//! are followed.

use super::auth::{Auth, Cluster, Kubeconfig};
use crate::config::Read;
use kaji_outbound::{ClientConfig, Target};
use std::path::Path;

/// A server, and what this one proves itself with towards it.
pub(crate) struct Server {
    auth: Auth,
    cluster: Cluster,
}

impl Server {
    /// Reads a kubeconfig.
    ///
    /// # Errors
    /// It cannot be read, names no server, or asks for what is not supported.
    pub(crate) fn read(path: &str, read: Read<'_>) -> Result<Server, String> {
        if path.is_empty() {
            return Err("invalid configuration: no configuration has been provided".to_owned());
        }
        let file = Path::new(path);
        let text = read(file).map_err(|error| format!("{path}: {error}"))?;
        let directory = file.parent().unwrap_or(Path::new(""));
        Server::of(&text, directory).map_err(|error| format!("{path}: {error}"))
    }

    fn of(text: &str, directory: &Path) -> Result<Server, String> {
        let file: Kubeconfig = kaji_files::yaml::decode(text).map_err(|e| e.to_string())?;
        let Some(context) = file.context() else {
            return Err("invalid configuration: the current context does not exist".to_owned());
        };
        if !context.user.is_empty() && !file.has_user(&context.user) {
            return Err(format!("invalid configuration: user {:?} was not found", context.user));
        }
        let named = file.clusters.iter().find(|named| named.name == context.cluster);
        let Some(cluster) = named.map(|named| named.cluster.clone()) else {
            return Err(format!("invalid configuration: cluster {:?} was not found", context.cluster));
        };
        if !cluster.server.starts_with("https://") {
            return Err(format!("clusters[{}].cluster.server: the scheme must be https", context.cluster));
        }
        if !cluster.proxy_url.is_empty() {
            return Err(format!(
                "clusters[{}].cluster.proxy-url is not supported by this server",
                context.cluster
            ));
        }
        let authorities = [&cluster.certificate_authority, &cluster.certificate_authority_data];
        if cluster.insecure_skip_tls_verify && authorities.iter().any(|text| !text.is_empty()) {
            return Err(
                "specifying a root certificates file with the insecure flag is not allowed".to_owned()
            );
        }
        Ok(Server { auth: Auth::of(file, directory)?, cluster })
    }

    /// How it is called now.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn config(&self) -> Result<ClientConfig, String> {
        let config = ClientConfig {
            insecure: self.cluster.insecure_skip_tls_verify,
            server_name: Some(self.cluster.tls_server_name.clone()).filter(|name| !name.is_empty()),
            ..ClientConfig::new(Target::Url(self.cluster.server.clone()), "")
        };
        self.auth.apply_current(&self.cluster, config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    const FILE: &str = "
current-context: c
contexts: [{name: c, context: {cluster: backend, user: me}}]
clusters: [{name: backend, cluster: {server: 'https://images.example.com/review', tls-server-name: other,
    certificate-authority-data: Y2E=}}]
users: [{name: me, user: {token: t}}, {name: '*', user: {token: others}}]
";

    #[test]
    fn the_current_context_says_how_to_call() {
        let server = Server::of(FILE, Path::new("/dir")).unwrap();
        let config = server.config().unwrap();
        assert_eq!(config.target, Target::Url("https://images.example.com/review".into()));
        assert_eq!((config.ca_bundle.as_slice(), config.insecure), (&b"ca"[..], false));
        assert_eq!(config.server_name.as_deref(), Some("other"));
        assert_eq!(config.authorization.as_deref(), Some("Bearer t"));
        assert_eq!(config.identity, None);
    }

    #[test]
    fn files_that_name_no_usable_server_are_refused() {
        let read = |text: String| Server::read("/k", &move |_| Ok(text.clone())).map(|_| ()).unwrap_err();
        let with = |from: &str, to: &str| {
            assert!(FILE.contains(from));
            read(FILE.replace(from, to))
        };
        let seen = [
            read(String::new()),
            with("name: c,", "name: d,"),
            with("user: me", "user: you"),
            with("cluster: backend", "cluster: other"),
            with("https:", "http:"),
            with("tls-server-name: other", "proxy-url: 'http://p'"),
            with("tls-server-name: other", "insecure-skip-tls-verify: true"),
            with("token: t}", "exec: {command: x}}"),
            Server::read("", &|_| Ok(String::new())).map(|_| ()).unwrap_err(),
        ];
        expect![[r#"
            /k: invalid configuration: the current context does not exist
            /k: invalid configuration: the current context does not exist
            /k: invalid configuration: user "you" was not found
            /k: invalid configuration: cluster "other" was not found
            /k: clusters[backend].cluster.server: the scheme must be https
            /k: clusters[backend].cluster.proxy-url is not supported by this server
            /k: specifying a root certificates file with the insecure flag is not allowed
            /k: users[me].user.exec is not supported by this server
            invalid configuration: no configuration has been provided"#]]
        .assert_eq(&seen.join("\n"));
    }
}
