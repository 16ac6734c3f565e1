//! Clients with credentials of their own.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// A kubeconfig for a server with this certificate authority, in PEM, with a user's credentials.
pub fn kubeconfig(server: &str, authority: &str, user: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": [{"name": "u", "user": user}],
    })
}

/// A certificate and its key, both in PEM, as a user's credentials.
pub fn certificate(certificate: &str, key: &str) -> Value {
    json!({
        "client-certificate-data": STANDARD.encode(certificate),
        "client-key-data": STANDARD.encode(key),
    })
}

/// A kube-rs client made of such a kubeconfig.
pub async fn client(server: &str, authority: &str, user: Value) -> kube::Client {
    let text = kubeconfig(server, authority, user).to_string();
    let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}
