//! The client configuration of commands: a kubeconfig's context, changed by kubectl's flags.
//!
//! Invariant: an identity that flags give replaces the kubeconfig's; the two are not mixed.

use crate::kubeconfig_file;
use http::{HeaderName, HeaderValue, Uri};
use kaji_options::ClientConnectionFlags;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};

/// The configuration.
///
/// # Errors
/// When the kubeconfig cannot be read or lacks what flags name, or a flag is malformed.
pub async fn config_of_flags(flags: &ClientConnectionFlags) -> Result<kube::Config, String> {
    let mut config = of_kubeconfig(flags).await?;
    if let Some(server) = &flags.server {
        config.cluster_url = server.parse::<Uri>().map_err(|error| format!("--server {server}: {error}"))?;
    }
    if let Some(namespace) = &flags.namespace {
        config.default_namespace.clone_from(namespace);
    }
    if let Some(path) = &flags.certificate_authority {
        let wrong =
            |error: &dyn std::fmt::Display| format!("--certificate-authority {}: {error}", path.display());
        let pem = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
        config.root_cert = Some(kaji_server::pki::certificates(&pem).map_err(|error| wrong(&error))?);
        config.accept_invalid_certs = false;
    }
    if flags.insecure_skip_tls_verify {
        config.root_cert = None;
        config.accept_invalid_certs = true;
    }
    if let Some(name) = &flags.tls_server_name {
        config.tls_server_name = Some(name.clone());
    }
    if let Some(token) = &flags.token {
        config.auth_info = AuthInfo { token: Some(token.clone().into()), ..AuthInfo::default() };
    }
    if let (Some(certificate), Some(key)) = (&flags.client_certificate, &flags.client_key) {
        config.auth_info = AuthInfo {
            client_certificate: Some(certificate.display().to_string()),
            client_key: Some(key.display().to_string()),
            ..AuthInfo::default()
        };
    }
    config.headers.extend(impersonation(flags)?);
    config.connect_timeout = Some(flags.request_timeout);
    config.read_timeout = Some(flags.request_timeout);
    config.default_retry = false;
    Ok(config)
}

async fn of_kubeconfig(flags: &ClientConnectionFlags) -> Result<kube::Config, String> {
    let read = match &flags.kubeconfig {
        Some(path) => kubeconfig_file::read(path),
        None => Kubeconfig::read().map_err(|error| error.to_string()),
    };
    let named = flags.context.is_some() || flags.cluster.is_some() || flags.user.is_some();
    let kubeconfig = match (read, &flags.server) {
        (Ok(kubeconfig), _) => kubeconfig,
        // A server and its credentials may be given by flags alone.
        (Err(_), Some(server)) if flags.kubeconfig.is_none() && !named => {
            let url = server.parse::<Uri>().map_err(|error| format!("--server {server}: {error}"))?;
            return Ok(kube::Config::new(url));
        }
        (Err(error), _) => return Err(error),
    };
    let options = KubeConfigOptions {
        context: flags.context.clone(),
        cluster: flags.cluster.clone(),
        user: flags.user.clone(),
    };
    kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| error.to_string())
}

fn impersonation(flags: &ClientConnectionFlags) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let mut headers = vec![];
    let users = flags.impersonate_user.iter().map(|user| ("impersonate-user", user));
    let groups = flags.impersonate_groups.iter().map(|group| ("impersonate-group", group));
    let uids = flags.impersonate_uid.iter().map(|uid| ("impersonate-uid", uid));
    for (name, value) in users.chain(groups).chain(uids) {
        let value = value.parse::<HeaderValue>().map_err(|error| format!("--as {value:?}: {error}"))?;
        headers.push((HeaderName::from_static(name), value));
    }
    Ok(headers)
}
