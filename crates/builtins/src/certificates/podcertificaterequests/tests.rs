//! Requests with keys, proofs and certificate requests that OpenSSL made (`proofs.txt`: what it is, its name, base64), and
//! certificates for them.

use super::*;
use crate::shared::{
    rules::base64_bytes,
    testing::{TestContext, create_errors, deps, row, update_errors},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use expect_test::{Expect, expect};
use futures_util::FutureExt;
use kaji_auth::{Attributes, Outcome, Rules};
use kaji_resource::UserInfo;
use rcgen::{CertificateParams, Issuer, KeyPair, SanType, SubjectPublicKeyInfo};
use std::time::{Duration, UNIX_EPOCH};

/// The signed uid is `pod-uid-1`.
fn fixture(what: &str, name: &str) -> String {
    let (start, mut lines) = (format!("{what} {name} "), include_str!("../proofs.txt").lines());
    lines.find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("no {start}")).to_owned()
}

fn def() -> ResourceDef {
    super::def(&deps())
}

fn request(proof: Value) -> Value {
    let mut spec = json!({"signerName": "x.io/y", "podName": "p", "podUID": "pod-uid-1", "serviceAccountName": "s",
        "serviceAccountUID": "2", "nodeName": "n", "nodeUID": "3"});
    for (field, value) in proof.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"metadata": {"name": "r"}, "spec": spec})
}

fn proved(key: &str, proof: &str) -> Value {
    request(json!({"pkixPublicKey": fixture("key", key), "proofOfPossession": fixture("proof", proof)}))
}

fn stub(name: &str) -> Value {
    request(json!({"stubPKCS10Request": fixture("csr", name)}))
}

/// The errors of creating objects, each after its name. Keys are not repeated.
fn created(cases: impl IntoIterator<Item = (String, Value)>, expected: &Expect) {
    let mut out = String::new();
    for (name, object) in cases {
        let mut errors = create_errors(&def(), object.clone());
        let key = object["spec"]["pkixPublicKey"].as_str().unwrap_or_default();
        if !key.is_empty() {
            errors = errors.replace(key, "…");
        }
        out += &format!("{name}: {errors}\n");
    }
    expected.assert_eq(&out);
}

/// A text with another byte near the end.
fn damaged(base64: &str) -> String {
    let mut bytes = base64_bytes(base64);
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    STANDARD.encode(bytes)
}

#[test]
fn rejects_invalid_fields_and_prints_a_row() {
    let bare = || request(json!({}));
    expect!["spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"]
        .assert_eq(&create_errors(&def(), bare()));
    let mut new = bare();
    new["status"] = json!({"conditions": [{"type": "x", "status": "True"}]});
    assert!(
        update_errors(&def(), "status", new, bare())
            .starts_with("status.conditions.[0].type: Unsupported value: \"x\"")
    );
    let mut annotated = stub("p256");
    annotated["spec"]["unverifiedUserAnnotations"] =
        json!({"foo": "", "Example.com/Foo": "", "test/domain/foo": ""});
    expect![[r#"
        spec.unverifiedUserAnnotations: Invalid value: "foo": must be a domain-prefixed key (such as "acme.io/foo")
        spec.unverifiedUserAnnotations: Invalid value: "test/domain/foo": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"#]].assert_eq(&create_errors(&def(), annotated));
    assert_eq!(row(&def(), &bare()), "r | p | s | n | x.io/y | Pending | <none>");
}

#[test]
fn takes_proofs_of_each_type_of_key() {
    let proofs = [
        "rsa3072",
        "rsa3072-salt-20",
        "rsa3072-no-salt",
        "rsa3072-salt-max",
        "rsa4096",
        "p256",
        "p384",
        "p521",
        "ed25519",
    ];
    for proof in proofs {
        let key = proof.split('-').next().unwrap();
        assert_eq!(create_errors(&def(), proved(key, proof)), "", "{proof}");
        let mut other_pod = proved(key, proof);
        other_pod["spec"]["podUID"] = "pod-uid-2".into();
        let refused = "spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature";
        assert_eq!(create_errors(&def(), other_pod), refused, "{proof}");
        let mut broken = proved(key, proof);
        broken["spec"]["proofOfPossession"] = damaged(&fixture("proof", proof)).into();
        assert_eq!(create_errors(&def(), broken), refused, "{proof}");
    }
}

#[test]
fn refuses_other_keys_and_proofs() {
    let pairs = [
        ("rsa3072", "rsa3072-other-uid"),
        ("rsa3072", "rsa3072-pkcs1"),
        ("rsa3072", "rsa4096"),
        ("rsa3072", "p256"),
        ("p256", "p256-other-uid"),
        ("p256", "p384"),
        ("p384", "p384-sha384"),
        ("p521", "p521-other-uid"),
        ("ed25519", "ed25519-other-uid"),
        ("ed25519", "rsa3072"),
        ("rsa2048", "rsa2048"),
        ("p224", "p224"),
        ("k256", "p256"),
        ("x25519", "ed25519"),
        ("dsa", "ed25519"),
    ];
    let cases = pairs.map(|(key, proof)| (format!("{key}, {proof}"), proved(key, proof)));
    created(
        cases,
        &expect![[r#"
        rsa3072, rsa3072-other-uid: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        rsa3072, rsa3072-pkcs1: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        rsa3072, rsa4096: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        rsa3072, p256: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        p256, p256-other-uid: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        p256, p384: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        p384, p384-sha384: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        p521, p521-other-uid: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        ed25519, ed25519-other-uid: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        ed25519, rsa3072: spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature
        rsa2048, rsa2048: spec.pkixPublicKey: Invalid value: "2048-bit modulus": RSA keys must have modulus size 3072 or 4096
        p224, p224: spec.pkixPublicKey: Invalid value: "curve P-224": elliptic public keys must use curve P256 or P384
        k256, p256: spec.pkixPublicKey: Invalid value: "…": must be a valid PKIX-serialized public key
        x25519, ed25519: spec.pkixPublicKey: Invalid value: "…": unknown public key type; supported types are Ed25519, ECDSA, and RSA
        dsa, ed25519: spec.pkixPublicKey: Invalid value: "…": unknown public key type; supported types are Ed25519, ECDSA, and RSA
    "#]],
    );

    let with =
        |key: Vec<u8>| request(json!({"pkixPublicKey": STANDARD.encode(key), "proofOfPossession": "AA=="}));
    let p256 = base64_bytes(&fixture("key", "p256"));
    let ed25519 = base64_bytes(&fixture("key", "ed25519"));
    let mut compressed = p256.clone();
    compressed[26] = 2;
    let long = STANDARD.encode([0; 10 * 1024 + 1]);
    let long_proof = json!({"pkixPublicKey": fixture("key", "p256"), "proofOfPossession": long});
    let cases = [
        ("no DER", with(vec![1, 2, 3])),
        ("no point of the curve", with(base64_bytes(&damaged(&fixture("key", "p256"))))),
        ("a compressed point", with(compressed)),
        ("something behind", with([ed25519.as_slice(), &[0]].concat())),
        ("a long key", with(vec![0; 10 * 1024 + 1])),
        ("a long proof", request(long_proof)),
        ("no proof", request(json!({"pkixPublicKey": fixture("key", "p256")}))),
    ];
    created(
        cases.map(|(name, case)| (name.to_owned(), case)),
        &expect![[r#"
        no DER: spec.pkixPublicKey: Invalid value: "…": must be a valid PKIX-serialized public key
        no point of the curve: spec.pkixPublicKey: Invalid value: "…": must be a valid PKIX-serialized public key
        a compressed point: spec.pkixPublicKey: Invalid value: "…": must be a valid PKIX-serialized public key
        something behind: spec.pkixPublicKey: Invalid value: "…": must be a valid PKIX-serialized public key
        a long key: spec.pkixPublicKey: Too long: may not be more than 10240 bytes
        a long proof: spec.proofOfPossession: Too long: may not be more than 10240 bytes
        no proof: spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set
    "#]],
    );
}

#[test]
fn verifies_certificate_requests() {
    let names = [
        "rsa3072",
        "rsa4096",
        "rsa3072-sha1",
        "rsa3072-pss",
        "p256",
        "p256-sha1",
        "p256-sha512",
        "p384",
        "p521",
        "ed25519",
    ];
    for name in names {
        assert_eq!(create_errors(&def(), stub(name)), "", "{name}");
        let broken = request(json!({"stubPKCS10Request": damaged(&fixture("csr", name))}));
        let refused = create_errors(&def(), broken);
        assert_eq!(refused, "spec.stubPKCS10Request: Invalid value: invalid signature", "{name}");
    }
    let cases = ["rsa2048", "rsa3072-pss-salt-20", "p224", "k256", "dsa"].map(|n| (n.to_owned(), stub(n)));
    created(
        cases,
        &expect![[r#"
        rsa2048: spec.stubPKCS10Request: Invalid value: "2048-bit modulus": RSA keys must have modulus size 3072 or 4096
        rsa3072-pss-salt-20: spec.stubPKCS10Request: Invalid value: invalid signature
        p224: spec.stubPKCS10Request: Invalid value: "curve P-224": elliptic public keys must use curve P256, P384, or P521
        k256: spec.stubPKCS10Request: Invalid value: must be a valid PKCS#10 CSR
        dsa: spec.stubPKCS10Request: Invalid value: unknown public key type; supported types are Ed25519, ECDSA, and RSA
    "#]],
    );

    let mut both = proved("p256", "p256");
    both["spec"]["stubPKCS10Request"] = fixture("csr", "p256").into();
    let with = |der: &[u8]| request(json!({"stubPKCS10Request": STANDARD.encode(der)}));
    let p256 = base64_bytes(&fixture("csr", "p256"));
    let cases = [
        ("both", both),
        ("no DER", with(b"hello")),
        ("something behind", with(&[p256.as_slice(), &[0]].concat())),
        ("too long", with(&[0; 10 * 1024 + 1])),
    ];
    created(
        cases.map(|(name, case)| (name.to_owned(), case)),
        &expect![[r#"
        both: spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set
        no DER: spec.stubPKCS10Request: Invalid value: must be a valid PKCS#10 CSR
        something behind: spec.stubPKCS10Request: Invalid value: must be a valid PKCS#10 CSR
        too long: spec.stubPKCS10Request: Too long: may not be more than 10240 bytes
    "#]],
    );
}

/// The present of the tests, in seconds.
const NOW: i64 = 1_767_323_045;
const HOUR: i64 = 3600;

fn at(seconds: i64) -> String {
    jiff::Timestamp::from_second(NOW + seconds).unwrap().to_string()
}

/// A certificate for a key of the fixtures, PEM. Times are seconds after the present.
fn certificate(key: &str, (from, to): (i64, i64), names: &[SanType]) -> String {
    let time =
        |seconds: i64| (UNIX_EPOCH + Duration::from_secs(u64::try_from(NOW + seconds).unwrap())).into();
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (time(from), time(to));
    params.subject_alt_names = names.to_vec();
    let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
    let key = SubjectPublicKeyInfo::from_der(&base64_bytes(&fixture("key", key))).unwrap();
    params.signed_by(&key, &issuer).unwrap().pem()
}

/// A stored request that was issued this chain. Times are seconds after the present.
fn issued(mut request: Value, chain: &str, [from, to, refresh]: [i64; 3]) -> Value {
    request["status"] = json!({
        "conditions": [{"type": "Issued", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": at(0)}],
        "certificateChain": chain, "notBefore": at(from), "notAfter": at(to), "beginRefreshAt": at(refresh),
    });
    request
}

fn status_errors(new: Value, old: Value) -> String {
    update_errors(&def(), "status", new, old)
}

const DAY: (i64, i64) = (0, 24 * HOUR);
const TIMES: [i64; 3] = [0, 24 * HOUR, 12 * HOUR];

#[test]
fn certificates_are_for_the_requested_key() {
    let pairs = [
        ("p256", stub("p256")),
        ("rsa3072", stub("rsa3072")),
        ("ed25519", stub("ed25519")),
        ("p384", proved("p384", "p384")),
        ("rsa4096", proved("rsa4096", "rsa4096")),
    ];
    for (key, request) in pairs {
        let chain = certificate(key, DAY, &[]) + &certificate("p256", (0, 1), &[]);
        assert_eq!(status_errors(issued(request.clone(), &chain, TIMES), request.clone()), "", "{key}");
        let other = if key == "rsa3072" { "rsa4096" } else { "rsa3072" };
        let errors = status_errors(issued(request.clone(), &certificate(other, DAY, &[]), TIMES), request);
        assert!(errors.ends_with("leaf certificate was not issued to the requested public key"), "{errors}");
    }
}

#[test]
fn chains_are_certificates() {
    let leaf = certificate("p256", DAY, &[]);
    let block = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
    let chains = [
        String::new(),
        "text".to_owned(),
        block("PUBLIC KEY"),
        block("CERTIFICATE"),
        leaf.clone() + &block("PUBLIC KEY"),
        leaf.clone() + &block("CERTIFICATE"),
        format!("text\n{leaf}text\n{leaf}text"),
        " ".repeat(100 * 1024 + 1),
    ];
    let mut out = String::new();
    for chain in chains {
        let errors = status_errors(issued(stub("p256"), &chain, TIMES), stub("p256"));
        let (_, text) = errors.rsplit_once(": ").unwrap_or(("", "fine"));
        out += &format!("{text}\n");
    }
    expect![[r#"
        issued certificate chain must contain at least one certificate
        issued certificate chain must contain at least one certificate
        issued certificate chain must consist entirely of CERTIFICATE PEM blocks
        leaf certificate does not parse as valid X.509
        issued certificate chain must consist entirely of CERTFICATE PEM blocks
        intermediate certificate does not parse as valid X.509
        fine
        may not be more than 102400 bytes
    "#]]
    .assert_eq(&out);
}

#[test]
fn times_are_those_of_the_certificate() {
    let with = |validity: (i64, i64), times: [i64; 3]| {
        status_errors(issued(stub("p256"), &certificate("p256", validity, &[]), times), stub("p256"))
    };
    let mut none = issued(stub("p256"), &certificate("p256", DAY, &[]), TIMES);
    for field in ["notBefore", "notAfter", "beginRefreshAt"] {
        none["status"].as_object_mut().unwrap().remove(field);
    }
    let mut fraction = issued(stub("p256"), &certificate("p256", DAY, &[]), TIMES);
    fraction["status"]["notBefore"] = "2026-01-02T03:04:05.5Z".into();
    let all = [
        status_errors(none, stub("p256")),
        status_errors(fraction, stub("p256")),
        with(DAY, [1, 24 * HOUR, 12 * HOUR]),
        with((300, 2 * HOUR), [300, 2 * HOUR, HOUR]),
        with((-299, 2 * HOUR), [-299, 2 * HOUR, HOUR]),
        with(DAY, [0, HOUR, 12 * HOUR]),
        with((0, HOUR - 1), [0, HOUR - 1, 1000]),
        with((0, HOUR), [0, HOUR, 599]),
        with((0, HOUR), [0, HOUR, 600]),
        with((0, HOUR), [0, HOUR, HOUR - 599]),
        with((0, 24 * HOUR + 1), [0, 24 * HOUR + 1, HOUR]),
    ];
    expect![[r#"
        status.notBefore: Required value: must be present and consistent with the issued certificate
        status.notAfter: Required value: must be present and consistent with the issued certificate
        status.beginRefreshAt: Required value: must be present and in the range [notbefore+10min, notafter-10min]
        status.notBefore: Invalid value: "2026-01-02T03:04:05.5Z": must be set to the NotBefore time encoded in the leaf certificate
        status.notBefore: Invalid value: "2026-01-02T03:04:06Z": must be set to the NotBefore time encoded in the leaf certificate
        status.notBefore: Invalid value: "2026-01-02T03:09:05Z": must be set to within 5 minutes of kube-apiserver's current time

        status.notAfter: Invalid value: "2026-01-02T04:04:05Z": must be set to the NotAfter time encoded in the leaf certificate
        status.certificateChain: Invalid value: 3599000000000: leaf certificate lifetime must be >= 1 hour
        status.beginRefreshAt: Invalid value: "2026-01-02T03:14:04Z": must be at least 10 minutes after status.notBefore

        status.beginRefreshAt: Invalid value: "2026-01-02T03:54:06Z": must be at least 10 minutes before status.notAfter
        status.certificateChain: Invalid value: 86401000000000: leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)"#]].assert_eq(&all.join("\n"));
}

#[test]
fn names_of_certificates_are_well_formed() {
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let mail = |name: &str| SanType::Rfc822Name(name.try_into().unwrap());
    let names = ["", "a..b", ".a", "a.", "*.example.com", "under_score"].map(dns);
    let mails = ["email@@address", "a@b.example", ""].map(mail);
    let chain = certificate("p256", DAY, &[&mails[..], &names[..]].concat());
    let errors = status_errors(issued(stub("p256"), &chain, TIMES), stub("p256"));
    expect![[r#"
        status.certificateChain: Invalid value: "": leaf certificate should not contain empty DNSName
        status.certificateChain: Invalid value: "a..b": leaf certificate's DNSName should not contain '..'
        status.certificateChain: Invalid value: ".a": leaf certificate's DNSName should not start or end with '.'
        status.certificateChain: Invalid value: "a.": leaf certificate's DNSName should not start or end with '.'
        status.certificateChain: Invalid value: "email@@address": leaf certificate should not contain invalid EmailAddress
        status.certificateChain: Invalid value: "": leaf certificate should not contain invalid EmailAddress"#]].assert_eq(&errors);
}

#[test]
fn a_status_changes_once() {
    let done = |ty: &str| {
        let mut request = stub("p256");
        request["status"] = json!({"conditions": [
            {"type": ty, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": at(0)}]});
        request
    };
    let mut denied = done("Denied");
    denied["status"]["certificateChain"] = "x".into();
    let mut silent = stub("p256");
    silent["status"] = json!({"certificateChain": "x"});
    let all = [
        status_errors(done("Denied"), stub("p256")),
        status_errors(denied, stub("p256")),
        status_errors(done("Failed"), done("Denied")),
        status_errors(silent, stub("p256")),
    ];
    expect![[r#"

        status: Invalid value: non-condition status fields must be empty when denying or failing the PodCertificateRequest
        status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed
        status: Invalid value: status is immutable unless transitioning to "Issued", "Denied", or "Failed""#]].assert_eq(&all.join("\n"));
}

/// May do what is listed.
struct Only(&'static [&'static str]);

impl Authorizer for Only {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let allowed = self.0.contains(&format!("{} {} {} {}", a.verb, a.group, a.resource, a.name).as_str());
        Box::pin(std::future::ready(if allowed { Outcome::allow("") } else { Outcome::default() }))
    }

    fn rules<'a>(&'a self, _: &'a UserInfo, _: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(std::future::ready(Rules::default()))
    }
}

#[test]
fn signers_change_the_status() {
    let test = TestContext::default();
    let write = |may: &'static [&'static str], subresource: &str, new: Value| {
        let def = super::def(&Deps { authorizer: Arc::new(Only(may)), ..deps() });
        let old = stub("p256");
        let ctx = test.ctx(&new, subresource, "v1");
        let permitted = def.hooks.permit(&ctx, &new, Some(&old)).now_or_never().unwrap();
        permitted.map_or_else(|status| status.message, |()| "fine".into())
    };
    let new = || issued(stub("p256"), "", TIMES);
    let all = [
        write(&["sign certificates.k8s.io signers x.io/y"], "status", new()),
        write(&["sign certificates.k8s.io signers x.io/*"], "status", new()),
        write(&["sign certificates.k8s.io signers x.io/z"], "status", new()),
        write(&[], "status", stub("p256")),
        write(&[], "", new()),
    ];
    expect![[r#"
        fine
        fine
        PodCertificateRequest.certificates.k8s.io "r" is invalid: spec.signerName: Forbidden: User "alice" is not permitted to "sign" for signer "x.io/y"
        fine
        fine"#]].assert_eq(&all.join("\n"));
}
