//! An issuer of tokens that is none of the cluster's.

use super::https::Https;
use kaji_auth::authn::{Issuer, IssuerDocuments, KeySet, SigningKey, TokenOrder};
use kaji_meta::SystemRandom;
use std::{path::Path, sync::Arc};

/// One on a port of its own, and its certificates. Its other paths are answered by `more`.
pub async fn provider(
    dir: &Path,
    more: impl Fn(&str, &[u8]) -> String + Clone + Send + 'static,
) -> (Issuer, String) {
    let https = Https::bind(dir).await;
    let url = https.url.clone();
    let key = SigningKey::from_pem(&https.pki.service_account.private).unwrap();
    let keys = KeySet::new([key.public.clone()]);
    let documents = IssuerDocuments::new(&url, &format!("{url}/keys"), &keys).unwrap();
    let pki = https.serve(move |path, sent| {
        let body = match path {
            "/.well-known/openid-configuration" => documents.configuration.clone(),
            "/keys" => documents.keys.clone(),
            other => more(other, sent),
        };
        (200, body)
    });
    let audiences = vec!["kaji".to_owned()];
    let random = Arc::new(SystemRandom);
    let issuer = Issuer { name: url, key: Arc::new(key), audiences, extend: false, longest: None, random };
    (issuer, pki.ca.certificate)
}

/// A token for an account, for an audience. Its subject is `system:serviceaccount:ns:<name>`.
pub fn token(issuer: &Issuer, name: &str, audience: &str) -> String {
    let order = TokenOrder {
        namespace: "ns".into(),
        name: name.into(),
        audiences: vec![audience.into()],
        expiration_seconds: 3600,
        ..TokenOrder::default()
    };
    issuer.issue(&order, jiff::Timestamp::now()).unwrap().token
}
