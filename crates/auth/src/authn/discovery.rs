//! The discovery documents by which relying parties verify service accounts' tokens. Source: OpenID Connect Discovery 1.0 and upstream's
//! `pkg/serviceaccount/openidmetadata.go`.

use super::KeySet;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// JSON texts, made once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerDocuments {
    /// `/.well-known/openid-configuration`
    pub configuration: String,
    /// `/openid/v1/jwks`
    pub keys: String,
}

impl IssuerDocuments {
    /// The documents of an issuer, or why it can have none. `keys_at` is the URL of the second document.
    pub fn new(issuer: &str, keys_at: &str, keys: &KeySet) -> Result<Self, String> {
        if !issuer.starts_with("https://") {
            return Err(format!("issuer URL must use https scheme, got: {issuer}"));
        }
        if issuer.contains('?') {
            return Err(format!("issuer URL may not include a query, got: {issuer}"));
        }
        if issuer.contains('#') {
            return Err(format!("issuer URL may not include a fragment, got: {issuer}"));
        }
        if !keys_at.starts_with("https://") {
            return Err(format!("jwksURI requires https scheme, parsed as: {keys_at}"));
        }
        let algorithms: BTreeSet<&str> = keys.all().map(|k| k.algorithm()).collect();
        let configuration = json!({
            "issuer": issuer,
            "jwks_uri": keys_at,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        });
        let keys: Vec<Value> = keys.all().map(|k| k.jwk()).collect();
        Ok(IssuerDocuments {
            configuration: configuration.to_string(),
            keys: json!({"keys": keys}).to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::testing::ec_key;

    #[test]
    fn publishes_each_key_once() {
        let key = ec_key().public;
        let set = KeySet::new([key.clone(), key.clone()]);
        let documents = IssuerDocuments::new("https://i", "https://a/openid/v1/jwks", &set).unwrap();
        expect_test::expect![[r#"{"id_token_signing_alg_values_supported":["ES256"],"issuer":"https://i","jwks_uri":"https://a/openid/v1/jwks","response_types_supported":["id_token"],"subject_types_supported":["public"]}"#]]
            .assert_eq(&documents.configuration);
        let read: Value = serde_json::from_str(&documents.keys).unwrap();
        assert_eq!(read["keys"].as_array().unwrap().len(), 1);
        assert_eq!(KeySet::from_jwks(&read).candidates(&key.id()).next(), Some(&key));
        for bad in ["http://i", "https://i?x", "https://i#x", "i"] {
            assert!(IssuerDocuments::new(bad, "https://a", &set).is_err(), "{bad}");
        }
    }
}
