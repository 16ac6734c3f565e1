//! Requests for certificates, their public keys and signatures.

#![no_main]

use kaji_auth::public_keys::PublicKey;
use libfuzzer_sys::fuzz_target;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

fuzz_target!(|data: &[u8]| {
    if let Some(key) = PublicKey::from_der(data) {
        let (message, signature) = data.split_at(data.len() / 2);
        assert!(!key.proves(message, signature));
    }
    if let Ok((_, request)) = X509CertificationRequest::from_der(data)
        && let Some(key) = PublicKey::parse(&request.certification_request_info.subject_pki)
    {
        let _ = key.check_signature(&request);
    }
});
