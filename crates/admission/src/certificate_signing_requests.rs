//! What the plugins about certificates share: the resource, signers, requested subjects.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_meta::object;
use serde_json::Value;
use x509_parser::{certification_request::X509CertificationRequest, pem::Pem, prelude::FromDer};

pub(crate) const GROUP: &str = "certificates.k8s.io";
pub(crate) const REQUESTS: &str = "certificatesigningrequests";

pub(crate) fn signer(object: &Value) -> &str {
    object::str_at(object, &["spec", "signerName"])
}

/// The subject that a certificate signing request contains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) common_name: String,
    pub(crate) organizations: Vec<String>,
}

/// The subject of a CertificateSigningRequest.
pub(crate) fn subject(request: &Value) -> Result<Subject, String> {
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
    use kaji_auth::names::MASTERS;
    use serde_json::json;

    /// `CN=system:node:n, O=a, O=system:masters`
    fn request() -> Value {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, MASTERS);
        let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({"spec": {"request": STANDARD.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client"}})
    }

    #[test]
    fn reads_subject_of_request() {
        let read = subject(&request()).unwrap();
        assert_eq!(
            (read.common_name.as_str(), read.organizations.as_slice()),
            ("system:node:n", &[MASTERS.to_owned()][..])
        );
        let nothing = json!({"spec": {"request": ""}});
        assert_eq!(subject(&nothing).unwrap_err(), "PEM block type must be CERTIFICATE REQUEST");
    }
}
