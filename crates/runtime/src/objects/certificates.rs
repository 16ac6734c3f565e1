//! The kinds of certificates.k8s.io, projected.

use crate::{Meta, Projection};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A certificate signing request's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSigningRequestSpec {
    /// PEM in base64.
    pub request: String,
    /// `kubernetes.io/kube-apiserver-client`
    pub signer_name: String,
    /// `client auth`
    pub usages: Vec<String>,
    /// The requested lifetime.
    pub expiration_seconds: Option<i64>,
    /// The user that created the request.
    pub username: String,
    /// The user's uid.
    pub uid: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// Further attributes of the user.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A certificate signing request's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSigningRequestStatus {
    /// Raw: controllers append conditions and change none.
    pub conditions: Vec<Value>,
    /// PEM in base64.
    pub certificate: String,
}

/// A certificate signing request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CertificateSigningRequest {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: CertificateSigningRequestSpec,
    /// Status.
    pub status: CertificateSigningRequestStatus,
}

impl Projection for CertificateSigningRequest {
    const GROUP: &'static str = "certificates.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "certificatesigningrequests";
    const KIND: &'static str = "CertificateSigningRequest";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl CertificateSigningRequest {
    /// The conditions of a type.
    pub fn conditions<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.status.conditions.iter().filter(move |c| c["type"] == kind)
    }

    /// Whether it has a condition of a type, whatever its status.
    pub fn has(&self, kind: &str) -> bool {
        self.conditions(kind).next().is_some()
    }
}

/// A trust bundle's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterTrustBundleSpec {
    /// The signer that the bundle belongs to.
    pub signer_name: String,
    /// PEM.
    pub trust_bundle: String,
}

/// Trust anchors of a signer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClusterTrustBundle {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: ClusterTrustBundleSpec,
}

impl Projection for ClusterTrustBundle {
    const GROUP: &'static str = "certificates.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "clustertrustbundles";
    const KIND: &'static str = "ClusterTrustBundle";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// A pod's certificate request: only that it is there.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodCertificateRequest {
    /// ObjectMeta.
    pub metadata: Meta,
}

impl Projection for PodCertificateRequest {
    const GROUP: &'static str = "certificates.k8s.io";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "podcertificaterequests";
    const KIND: &'static str = "PodCertificateRequest";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
