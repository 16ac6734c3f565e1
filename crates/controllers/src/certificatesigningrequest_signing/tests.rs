//! Fixtures: requests in, certificates (read back by an independent parser) or conditions out.

use super::{Authorities, Authority, Signer, controllers, lifetime};
use crate::shared::certificates::{request::Request, signers};
use crate::testing::{now, reconcile, snapshot, text};
use base64::{Engine, engine::general_purpose::STANDARD};
use expect_test::expect;
use jiff::SignedDuration;
use kaji_meta::random::SeededRandom;
use kaji_runtime::{View, Write, objects::CertificateSigningRequest};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use std::{fmt::Write as _, sync::Arc};
use x509_parser::pem::Pem;

fn authority(algorithm: &'static rcgen::SignatureAlgorithm) -> (Arc<Authority>, String) {
    authority_until(2035, algorithm)
}

/// An authority until a year's beginning or, for the last one, end.
fn authority_until(year: i32, algorithm: &'static rcgen::SignatureAlgorithm) -> (Arc<Authority>, String) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "kubernetes");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = match year {
        9999 => rcgen::date_time_ymd(9999, 12, 31),
        year => rcgen::date_time_ymd(year, 1, 1),
    };
    let key = KeyPair::generate_for(algorithm).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    (Arc::new(Authority::new(&certificate, &key.serialize_pem()).unwrap()), certificate)
}

/// A request by an independent encoder.
fn request(common_name: &str, organization: &str, names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

fn csr(pem: &str, signer: &str, usages: &[&str], conditions: Value) -> Value {
    json!({
        "metadata": {"name": "c", "uid": "u", "resourceVersion": "5"},
        "spec": {"request": STANDARD.encode(pem), "signerName": signer, "usages": usages},
        "status": {"conditions": conditions},
    })
}

fn approved() -> Value {
    json!([{"type": "Approved", "status": "True"}])
}

fn plan(signer_name: &'static str, csr: Value) -> kaji_runtime::Plan {
    let (authority, _) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
    let view = View::default().with(snapshot::<CertificateSigningRequest>([csr]));
    reconcile(
        &Signer {
            name: "csrsigning-test",
            signer: signer_name,
            authority,
            longest: SignedDuration::from_hours(365 * 24),
        },
        &view,
        "",
        "c",
        &[],
    )
}

/// What a certificate says, and whether the issuer's key made it.
fn shown(pem: &str, issuer: &str) -> String {
    let (pem, issuer) = (parse(pem), parse(issuer));
    let (certificate, issuer) = (pem.parse_x509().unwrap(), issuer.parse_x509().unwrap());
    certificate.verify_signature(Some(issuer.public_key())).unwrap();
    let mut out = format!(
        "{}\nby {}\nfrom {} to {}\n",
        certificate.subject(),
        certificate.issuer(),
        certificate.validity().not_before,
        certificate.validity().not_after
    );
    for extension in certificate.extensions() {
        let _ =
            writeln!(out, "{}{:?}", if extension.critical { "! " } else { "" }, extension.parsed_extension());
    }
    out
}

fn parse(pem: &str) -> Pem {
    Pem::iter_from_buffer(pem.as_bytes()).next().unwrap().unwrap()
}

#[test]
fn issues_the_requested_subject_and_extensions() {
    let (authority, issuer) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
    let mut requested = Request::parse(
        request("system:node:a", "system:nodes", &["a.example.com", "10.0.0.1", "::1"]).as_bytes(),
    )
    .unwrap();
    assert_eq!(requested.forged, None);
    requested.subject[1].push("another".into());
    requested.uris.push("spiffe://x".into());
    let usages: Vec<String> =
        ["digital signature", "key encipherment", "server auth"].map(String::from).into();
    let pem = authority
        .sign(&requested, &usages, SignedDuration::from_hours(24), now(), &SeededRandom::new(1))
        .unwrap();
    let text = shown(&pem, &issuer);
    // The authority's key is another one each time.
    let text: String =
        text.lines().filter(|l| !l.starts_with("AuthorityKeyIdentifier")).map(|l| format!("{l}\n")).collect();
    expect![[r#"
        O=another + O=system:nodes, CN=system:node:a
        by CN=kubernetes
        from Jan  1 11:55:00 2025 +00:00 to Jan  2 11:55:00 2025 +00:00
        ! KeyUsage(KeyUsage { flags: 5 })
        ExtendedKeyUsage(ExtendedKeyUsage { any: false, server_auth: true, client_auth: false, code_signing: false, email_protection: false, time_stamping: false, ocsp_signing: false, other: [] })
        ! BasicConstraints(BasicConstraints { ca: false, path_len_constraint: None })
        SubjectAlternativeName(SubjectAlternativeName { general_names: [DNSName("a.example.com"), IPAddress([10, 0, 0, 1]), IPAddress([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), URI("spiffe://x")] })
    "#]].assert_eq(&text);
}

#[test]
fn signs_with_each_kind_of_key() {
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        let (authority, issuer) = authority(algorithm);
        let requested = Request::parse(request("a", "b", &[]).as_bytes()).unwrap();
        let usages = ["client auth".to_owned()];
        let pem = authority
            .sign(&requested, &usages, SignedDuration::from_hours(1), now(), &SeededRandom::new(1))
            .unwrap();
        assert!(shown(&pem, &issuer).starts_with("O=b, CN=a\nby CN=kubernetes\n"));
    }
}

#[test]
fn bounds_lifetimes() {
    let longest = SignedDuration::from_hours(100);
    assert_eq!(lifetime(None, longest), longest);
    assert_eq!(lifetime(Some(600), longest), SignedDuration::from_mins(10));
    assert_eq!(lifetime(Some(1), longest), SignedDuration::from_mins(10));
    assert_eq!(lifetime(Some(1_000_000_000), longest), longest);
    let (authority, issuer) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
    let requested = Request::parse(request("a", "b", &[]).as_bytes()).unwrap();
    let signed = |lifetime, now: &str| {
        let made = authority.sign(&requested, &[], lifetime, now.parse().unwrap(), &SeededRandom::new(1));
        made.map(|pem| shown(&pem, &issuer).lines().nth(2).unwrap().to_owned()).unwrap_or_else(|e| e)
    };
    // Short ones are not shortened by the backdating; none outlives its issuer.
    expect!["from Jan  1 11:55:00 2025 +00:00 to Jan  1 13:00:00 2025 +00:00"]
        .assert_eq(&signed(SignedDuration::from_hours(1), "2025-01-01T12:00:00Z"));
    expect!["from Jan  1 11:55:00 2025 +00:00 to Jan  1 19:55:00 2025 +00:00"]
        .assert_eq(&signed(SignedDuration::from_hours(8), "2025-01-01T12:00:00Z"));
    expect!["from Dec 31 22:55:00 2034 +00:00 to Jan  1 00:00:00 2035 +00:00"]
        .assert_eq(&signed(SignedDuration::from_hours(8), "2034-12-31T23:00:00Z"));
    expect!["refusing to sign a certificate that expired in the past: NotAfter=2035-01-01T00:00:00Z"]
        .assert_eq(&signed(SignedDuration::from_hours(8), "2035-01-01T00:00:00Z"));
    expect![[r#"unrecognized usage values: ["x"]"#]].assert_eq(
        &authority.sign(&requested, &["x".into()], longest, now(), &SeededRandom::new(1)).unwrap_err(),
    );
}

#[test]
fn signs_only_approved_requests() {
    let pem = request("alice", "devs", &[]);
    let usages = &["client auth"];
    for (signer, conditions) in [
        (signers::CLIENT, json!([])),
        (
            signers::CLIENT,
            json!([{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}]),
        ),
        (
            signers::CLIENT,
            json!([{"type": "Approved", "status": "True"}, {"type": "Failed", "status": "True"}]),
        ),
        ("example.com/x", approved()),
    ] {
        assert!(plan(signers::CLIENT, csr(&pem, signer, usages, conditions)).is_empty());
    }
    let mut issued = csr(&pem, signers::CLIENT, usages, approved());
    issued["status"]["certificate"] = "eA==".into();
    assert!(plan(signers::CLIENT, issued).is_empty());

    let plan = plan(signers::CLIENT, csr(&pem, signers::CLIENT, usages, approved()));
    let Some(Write::Patch { target, body, .. }) = plan.writes().next() else { panic!("{plan:?}") };
    assert_eq!(target.path(), "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/status");
    assert_eq!(body["metadata"], json!({"uid": "u", "resourceVersion": "5"}));
    let certificate = STANDARD.decode(body["status"]["certificate"].as_str().unwrap()).unwrap();
    assert!(certificate.starts_with(b"-----BEGIN CERTIFICATE-----\n"));
}

#[test]
fn fails_requests_that_violate_the_signers_rules() {
    let pem = request("alice", "system:masters", &[]);
    let usages = &["client auth", "digital signature"];
    expect![[r#"
        merge /apis/certificates.k8s.io/v1/certificatesigningrequests/c/status {"metadata":{"resourceVersion":"5","uid":"u"},"status":{"conditions":[{"status":"True","type":"Approved"},{"lastUpdateTime":"2025-01-01T12:00:00Z","message":"subject organization is not system:nodes","reason":"SignerValidationFailure","status":"True","type":"Failed"}]}}
    "#]].assert_eq(&text(&plan(
        signers::KUBELET_CLIENT,
        csr(&pem, signers::KUBELET_CLIENT, usages, approved()),
    )));
}

#[test]
fn rejects_a_request_with_a_forged_signature() {
    let mut der = parse(&request("alice", "devs", &[])).contents;
    let at = der.windows(5).position(|w| w == b"alice").unwrap();
    der[at] = b'b';
    let pem = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        STANDARD.encode(der)
    );
    expect!["again after 300s\n"]
        .assert_eq(&text(&plan(signers::CLIENT, csr(&pem, signers::CLIENT, &["client auth"], approved()))));
}

/// Made with OpenSSL: the encoder of the other tests has no such keys.
const P521: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIIBYjCBxAIBADAfMQ0wCwYDVQQKDARkZXZzMQ4wDAYDVQQDDAVhbGljZTCBmzAQ
BgcqhkjOPQIBBgUrgQQAIwOBhgAEAOBGoQTvgF3kt6WD/isGUHHIDKoA8QIRSGNk
uXGCvA9enunZH6sJGahRHmaqnbG8mUmfOFVUDZyoveXWmdPOwAojAIzPE+nZjGDl
fRq1bFL7u4IRPi3PZd1/ojEzZUcOnKzZ/QzKOmDkWKoEJRr053Zeibr2Q7JVjp9y
cRciEe4YJEReoAAwCgYIKoZIzj0EAwQDgYwAMIGIAkIBlCCbPhADwCXLmcXD/741
udlpSNDIYxn93x8ocaRo3GuUEEBYWkvhmPX6LQMdUwEiwGOCi/i9euMWZSjnCIeI
pykCQgCvCQEvALgmxHr6ZRca98zHsUNifF/SQPk7zs6QT+jl9sgjipLRYHv1nuM+
xAMNcj20qyR8RcyNnsC4AWlOXPKIyg==
-----END CERTIFICATE REQUEST-----
";

/// What the API server takes is signed: its signatures are checked alike.
#[test]
fn signs_for_keys_of_every_curve_that_requests_may_have() {
    let requested = Request::parse(P521.as_bytes()).unwrap();
    assert_eq!(requested.forged, None);
    let written = text(&plan(signers::CLIENT, csr(P521, signers::CLIENT, &["client auth"], approved())));
    assert!(written.contains(r#""status":{"certificate":"#), "{written}");
}

/// Its end is after the last instant of the time library.
#[test]
fn an_authority_may_never_expire() {
    let (authority, _) = authority_until(9999, &rcgen::PKCS_ECDSA_P256_SHA256);
    expect!["Authority { not_after: 9999-12-30T22:00:00.999999999Z, .. }"]
        .assert_eq(&format!("{authority:?}"));
}

#[test]
fn debug_output_hides_keys() {
    let (authority, _) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
    expect!["Authority { not_after: 2035-01-01T00:00:00Z, .. }"].assert_eq(&format!("{authority:?}"));
}

#[tokio::test]
async fn signers_without_an_authority_do_not_run() {
    let (authority, _) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
    let informers = kaji_runtime::Informers::new(crate::testing::silent_client());
    let names = |authorities: &Authorities| {
        let all = controllers(&informers, authorities, SignedDuration::from_hours(1));
        all.iter().map(kaji_runtime::Controller::name).collect::<Vec<_>>().join(" ")
    };
    let some = Authorities { kubelet_client: Some(authority.clone()), ..Authorities::default() };
    assert_eq!(names(&some), "csrsigning-kubelet-client");
    assert_eq!(names(&Authorities::one(authority)).split(' ').count(), 4);
    assert_eq!(names(&Authorities::default()), "");
}
