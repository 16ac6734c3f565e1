//! The service account of a pod, as a plug-in gets it with its request.
//!
//! Invariant: a plug-in gets of an account only what its configuration names: a token for its audience, and annotations.

use super::ProvideError;
use super::config::TokenAttributes;
use crate::keyring::ObjectName;
use crate::pods::core::Pod;
use crate::pods::model;
use crate::pods::sources::{Sources, TokenRequest};
use kaji_meta::text::hex;
use kaji_runtime::Target;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Upstream's default life of a token, in seconds.
const LIFE: i64 = 3600;

/// An account with its token.
pub(super) struct ServiceAccount {
    namespace: String,
    name: String,
    uid: String,
    /// Those that the configuration names.
    pub annotations: BTreeMap<String, String>,
    /// For the plug-in's audience.
    pub token: String,
    /// What is answered is kept for this token alone.
    pub token_is_key: bool,
}

/// What a plug-in may be asked with.
pub(super) enum Identity {
    /// The pod has no account, or one without what the plug-in requires.
    NotForThisPod,
    /// No account, which the plug-in allows.
    None,
    /// An account.
    Account(ServiceAccount),
}

impl ServiceAccount {
    /// The account of a pod, with a token that is bound to the pod.
    pub(super) async fn of(
        sources: &dyn Sources,
        attributes: &TokenAttributes,
        pod: &Pod,
    ) -> Result<Identity, ProvideError> {
        let name = model::spec(pod).service_account_name.clone().unwrap_or_default();
        if name.is_empty() {
            let required = attributes.require_service_account;
            return Ok(if required { Identity::NotForThisPod } else { Identity::None });
        }
        let namespace = model::namespace(pod).to_owned();
        let target = Target {
            version: "v1".into(),
            resource: "serviceaccounts".into(),
            namespace: namespace.clone(),
            name: name.clone(),
            ..Target::default()
        };
        let found = sources.object(&target).await.map_err(ProvideError::ServiceAccount)?;
        let found = found.ok_or_else(|| {
            ProvideError::ServiceAccount(format!("serviceaccount \"{namespace}/{name}\" not found"))
        })?;
        let value = |key: &String| found["metadata"]["annotations"][key.as_str()].as_str().map(str::to_owned);
        let mut annotations = BTreeMap::new();
        for key in &attributes.required_annotations {
            let Some(value) = value(key) else { return Ok(Identity::NotForThisPod) };
            annotations.insert(key.clone(), value);
        }
        let optional = attributes.optional_annotations.iter();
        annotations.extend(optional.filter_map(|key| Some((key.clone(), value(key)?))));
        let request = TokenRequest {
            namespace: namespace.clone(),
            service_account: name.clone(),
            audience: attributes.audience.clone(),
            expiration: LIFE,
            pod: pod.metadata.name.clone().unwrap_or_default(),
            pod_uid: model::uid(pod).to_owned(),
        };
        let token = sources.token(&request).await.map_err(ProvideError::Token)?.token;
        let uid = found["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let token_is_key = attributes.token_is_key;
        Ok(Identity::Account(ServiceAccount { namespace, name, uid, annotations, token, token_is_key }))
    }

    /// Its name.
    pub(super) fn object_name(&self) -> ObjectName {
        ObjectName { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.uid.clone() }
    }

    /// What answers for this account are kept by. Lengths keep the parts apart.
    pub(super) fn cache_key(&self) -> String {
        let mut key = String::new();
        let mut add = |text: &str| {
            // Writing to a String cannot fail.
            let _ = write!(key, "{}:{text}", text.len());
        };
        add(&self.namespace);
        add(&self.name);
        add(&self.uid);
        for (name, value) in &self.annotations {
            add(name);
            add(value);
        }
        if self.token_is_key {
            add(&self.token_hash());
        }
        key
    }

    /// `sha256:...`, in place of the token.
    pub(super) fn token_hash(&self) -> String {
        format!("sha256:{}", hex(&Sha256::digest(self.token.as_bytes())))
    }
}
