//! Who may approve, sign and attest: `CertificateApproval`, `CertificateSigning`, `CertificateSubjectRestriction` and
//! `ClusterTrustBundleAttest`.
//!
//! Invariant: permissions are asked about the signer of the stored request, which a write cannot change.

use crate::is;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_auth::{Attributes as Question, Authorizer, names::MASTERS};
use kaji_engine::{Admission, Attributes, Operation};
use kaji_meta::{Status, object, semantic_equal, text::quote};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::sync::Arc;
use x509_parser::{certification_request::X509CertificationRequest, pem::Pem, prelude::FromDer};

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";

fn about_requests(a: &Attributes<'_>, subresource: &str) -> bool {
    a.resource.group == GROUP && a.resource.resource == REQUESTS && a.subresource == subresource
}

fn signer(object: &Value) -> &str {
    object::str_at(object, &["spec", "signerName"])
}

/// Whether the user may act for a signer: for it by name, or for all of its domain.
async fn may(authorizer: &dyn Authorizer, a: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
    for name in [signer, &domain] {
        let question = Question { name, ..Question::resource(a.user, verb, GROUP, "signers") };
        if authorizer.authorize(&question).await.allowed() {
            return true;
        }
    }
    false
}

/// The plugin.
pub(super) struct CertificateApproval(pub(super) Arc<dyn Authorizer>);

impl Admission for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.operation == Operation::Update && about_requests(a, "approval")
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let signer = signer(a.old.unwrap_or(&Value::Null));
            if may(&*self.0, a, "approve", signer).await {
                return Ok(());
            }
            Err(a.forbidden(format!(
                "user not permitted to approve requests with signerName {}",
                quote(signer)
            )))
        })
    }
}

/// The plugin.
pub(super) struct CertificateSigning(pub(super) Arc<dyn Authorizer>);

impl Admission for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.operation == Operation::Update && about_requests(a, "status")
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let (old, new) = (a.old.unwrap_or(&Value::Null), a.new_object().unwrap_or(&Value::Null));
            let field = |request: &Value, name| request["status"][name].clone();
            let same = |name| semantic_equal(&field(old, name), &field(new, name));
            let signer = signer(old);
            if same("certificate") && same("conditions") || may(&*self.0, a, "sign", signer).await {
                return Ok(());
            }
            Err(a.forbidden(format!("user not permitted to sign requests with signerName {}", quote(signer))))
        })
    }
}

/// The plugin: nobody becomes an administrator by certificate.
pub(super) struct CertificateSubjectRestriction;

const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

impl Admission for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.operation == Operation::Create && about_requests(a, "")
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let result = match a.new_object().filter(|request| signer(request) == CLIENT).map(subject) {
            Some(Err(error)) => Err(a.forbidden(format!("failed to parse CSR: {error}"))),
            Some(Ok(subject)) if subject.organizations.iter().any(|group| group == MASTERS) => {
                Err(a.forbidden(format!("use of {CLIENT} signer with {MASTERS} group is not allowed")))
            }
            _ => Ok(()),
        };
        Box::pin(std::future::ready(result))
    }
}

/// The plugin.
pub(super) struct ClusterTrustBundleAttest(pub(super) Arc<dyn Authorizer>);

impl Admission for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        matches!(a.operation, Operation::Create | Operation::Update) && is(a, GROUP, "clustertrustbundles")
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let new = a.new_object().unwrap_or(&Value::Null);
            let signer = signer(new);
            let untouched = a.old.is_some_and(|old| only_collected(old, new));
            if signer.is_empty() || untouched || may(&*self.0, a, "attest", signer).await {
                return Ok(());
            }
            Err(a.forbidden(format!("user not permitted to attest for signerName {}", quote(signer))))
        })
    }
}

/// Whether a write changes nothing but what garbage collection does.
fn only_collected(old: &Value, new: &Value) -> bool {
    let bare = |object: &Value| {
        let mut bare = object.clone();
        for field in ["ownerReferences", "finalizers", "managedFields"] {
            object::remove_at(&mut bare, &["metadata", field]);
        }
        bare
    };
    semantic_equal(&bare(old), &bare(new))
}

/// What a certificate signing request asks to be called.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) common_name: String,
    pub(super) organizations: Vec<String>,
}

/// The subject of a CertificateSigningRequest.
pub(super) fn subject(request: &Value) -> Result<Subject, String> {
    let pem = STANDARD.decode(object::str_at(request, &["spec", "request"])).unwrap_or_default();
    let block = Pem::iter_from_buffer(&pem).find_map(Result::ok);
    let Some(block) = block.filter(|b| b.label == "CERTIFICATE REQUEST") else {
        return Err("PEM block type must be CERTIFICATE REQUEST".into());
    };
    let (_, parsed) =
        X509CertificationRequest::from_der(&block.contents).map_err(|error| error.to_string())?;
    let name = &parsed.certification_request_info.subject;
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        kaji_auth::authn::subject::text(attribute).unwrap_or_default()
    };
    Ok(Subject {
        // As Go does, the last one counts.
        common_name: name.iter_common_name().last().map(text).unwrap_or_default(),
        organizations: name.iter_organization().map(text).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `CN=system:node:n, O=a, O=system:masters`
    fn request() -> Value {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, MASTERS);
        let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({"spec": {"request": STANDARD.encode(pem), "signerName": CLIENT}})
    }

    #[test]
    fn subjects_are_read() {
        let read = subject(&request()).unwrap();
        assert_eq!(
            (read.common_name.as_str(), read.organizations.as_slice()),
            ("system:node:n", &[MASTERS.to_owned()][..])
        );
        let nothing = json!({"spec": {"request": ""}});
        assert_eq!(subject(&nothing).unwrap_err(), "PEM block type must be CERTIFICATE REQUEST");
    }

    #[test]
    fn garbage_collection_attests_nothing() {
        let old = json!({"metadata": {"name": "b", "finalizers": ["x"]}, "spec": {"trustBundle": "a"}});
        let mut new = json!({"metadata": {"name": "b", "ownerReferences": [{"uid": "1"}]}, "spec": {"trustBundle": "a"}});
        assert!(only_collected(&old, &new));
        new["spec"]["trustBundle"] = json!("b");
        assert!(!only_collected(&old, &new));
    }
}
