//! Projected volumes: Secrets, ConfigMaps, the downward API, tokens, trust bundles and pod certificates as files of
//! one directory.

use super::{paths, volumes};
use crate::shared::{Fields, check, rules};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;
use std::collections::HashSet;

/// The longest life of a pod certificate, in seconds: 91 days.
const MAX_CERTIFICATE_SECONDS: i64 = 91 * 24 * 60 * 60;
/// The longest life of a pod certificate from a signer of Kubernetes itself: one day.
const MAX_KUBERNETES_CERTIFICATE_SECONDS: i64 = 24 * 60 * 60;
const KEY_TYPES: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

/// Files already taken by a source.
struct Taken<'a> {
    path: &'a Path,
    seen: HashSet<String>,
}

impl Taken<'_> {
    /// Takes a file; a second taking is an error that shows `value`.
    fn take(&mut self, errs: &mut ErrorList, file: &str, value: &str) {
        if !self.seen.insert(file.to_owned()) {
            errs.push(Error::invalid(self.path, value, "conflicting duplicate paths"));
        }
    }
}

pub(super) fn projected(errs: &mut ErrorList, path: &Path, s: &Value) {
    paths::file_mode(errs, &path.child("defaultMode"), s.opt_int("defaultMode"));
    let mut taken = Taken { path, seen: HashSet::new() };
    for (i, source) in s.list("sources").iter().enumerate() {
        let own = path.child("sources").index(i);
        let mut found = 0;
        for kind in [
            "secret",
            "configMap",
            "downwardAPI",
            "serviceAccountToken",
            "clusterTrustBundle",
            "podCertificate",
        ] {
            let Some(s) = source.get_field(kind) else { continue };
            found += 1;
            let at = own.child(kind);
            match kind {
                "secret" | "configMap" => keys(errs, &at, s, &mut taken),
                "downwardAPI" => {
                    for file in s.list("items") {
                        volumes::downward_file(errs, &at, file);
                        if !file.text("path").is_empty() {
                            taken.take(errs, file.text("path"), file.text("path"));
                        }
                    }
                }
                "serviceAccountToken" => token(errs, path, &at, s),
                "clusterTrustBundle" => trust_bundle(errs, &at, s, &mut taken),
                _ => certificate(errs, &at, s, &mut taken),
            }
        }
        if found > 1 {
            errs.push(Error::forbidden(&own, "may not specify more than 1 volume type per source"));
        }
    }
}

fn keys(errs: &mut ErrorList, path: &Path, s: &Value, taken: &mut Taken<'_>) {
    check::required(errs, &path.child("name"), s.text("name"));
    for (i, item) in s.list("items").iter().enumerate() {
        volumes::key_to_path(errs, &path.child("items").index(i), item);
        if !item.text("path").is_empty() {
            taken.take(errs, item.text("path"), s.text("name"));
        }
    }
}

/// Errors about the file name the volume, not the source: upstream's slip, kept.
fn token(errs: &mut ErrorList, volume: &Path, path: &Path, s: &Value) {
    let seconds = s.int("expirationSeconds");
    let at = path.child("expirationSeconds");
    if seconds < 600 {
        errs.push(Error::invalid(&at, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > 1 << 32 {
        errs.push(Error::invalid(&at, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    match s.text("path") {
        "" => errs.push(Error::required(&volume.child("path"), "")),
        file => paths::local_non_reserved(errs, &volume.child("path"), file),
    }
}

fn trust_bundle(errs: &mut ErrorList, path: &Path, s: &Value, taken: &mut Taken<'_>) {
    match (s.opt_text("name"), s.opt_text("signerName")) {
        (Some(_), Some(_)) => {
            let text = "only one of name and signerName may be used";
            errs.push(check::invalid_struct(
                path,
                "io.k8s.api.core.v1.ClusterTrustBundleProjection",
                s,
                text,
            ));
        }
        (Some(name), None) => {
            let at = path.child("name");
            if name.is_empty() {
                errs.push(Error::required(&at, "must be a valid object name"));
            }
            for m in trust_bundle_name(name) {
                errs.push(Error::invalid(&at, name, format!("not a valid clustertrustbundlename: {m}")));
            }
            if s.has("labelSelector") {
                let text = "labelSelector must be unset if name is specified";
                errs.push(Error::invalid(&path.child("labelSelector"), s.at("labelSelector").clone(), text));
            }
        }
        (None, Some(signer)) => {
            let at = path.child("signerName");
            if signer.is_empty() {
                errs.push(Error::required(&at, "must be a valid signer name"));
            }
            signer_name(errs, &at, signer);
            let at = path.child("labelSelector");
            errs.extend(validation::validate_label_selector(s.at("labelSelector"), &at));
        }
        (None, None) => errs.push(Error::required(path, "either name or signerName must be specified")),
    }
    let file = s.text("path");
    check::required(errs, &path.child("path"), file);
    paths::local_non_reserved(errs, &path.child("path"), file);
    taken.take(errs, file, file);
}

/// A bundle's name: `signer:domain:name` with the signer's slash as a colon, or a name without a signer.
fn trust_bundle_name(name: &str) -> Vec<String> {
    match name.rsplit_once(':') {
        Some((_, own)) => validation::name_is_dns_subdomain(own, false),
        None => validation::name_is_dns_subdomain(name, false),
    }
}

fn certificate(errs: &mut ErrorList, path: &Path, s: &Value, taken: &mut Taken<'_>) {
    let signer = s.text("signerName");
    signer_name(errs, &path.child("signerName"), signer);
    rules::user_annotations(errs, path, s, "userAnnotations");
    check::one_of(errs, &path.child("keyType"), s.text("keyType"), &KEY_TYPES);
    if let Some(n) = s.opt_int("maxExpirationSeconds") {
        let at = path.child("maxExpirationSeconds");
        if n < 3600 {
            errs.push(Error::invalid(&at, n, "if provided, maxExpirationSeconds must be >= 3600"));
        }
        let most = if is_kubernetes_signer(signer) {
            MAX_KUBERNETES_CERTIFICATE_SECONDS
        } else {
            MAX_CERTIFICATE_SECONDS
        };
        if n > most {
            errs.push(Error::invalid(&at, n, format!("if provided, maxExpirationSeconds must be <= {most}")));
        }
    }
    let mut files = 0;
    for field in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let file = s.text(field);
        if !file.is_empty() {
            files += 1;
            paths::local_non_reserved(errs, &path.child(field), file);
            taken.take(errs, file, file);
        }
    }
    if files == 0 {
        let text = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errs.push(Error::required(path, text));
    }
}

/// Whether a signer belongs to Kubernetes itself (its domain is `kubernetes.io` or under it).
pub fn is_kubernetes_signer(signer: &str) -> bool {
    let host = signer.split_once('/').map_or(signer, |(h, _)| h);
    host == "kubernetes.io" || host.ends_with(".kubernetes.io")
}

/// The name of a certificate signer: `domain/path`.
pub fn signer_name(errs: &mut ErrorList, path: &Path, signer: &str) {
    if signer.is_empty() {
        errs.push(Error::required(path, ""));
        return;
    }
    let Some((domain, name)) = signer.split_once('/').filter(|(_, n)| !n.contains('/')) else {
        let text = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errs.push(Error::invalid(path, signer, text));
        return;
    };
    let first_bad = |errs: &mut ErrorList, whole: &str, check: fn(&str) -> Vec<String>| {
        for label in whole.split('.') {
            let messages = check(label);
            if !messages.is_empty() {
                let quoted = kaji_meta::text::quote(label);
                let text = |m| format!("validating label {quoted}: {m}");
                errs.extend(messages.into_iter().map(|m| Error::invalid(path, whole, text(m))));
                break;
            }
        }
    };
    if domain.len() > 253 {
        errs.push(Error::too_long(path, "", 253));
    }
    first_bad(errs, domain, validation::is_dns1123_label);
    if !domain.contains('.') {
        let text = "should be a domain with at least two segments separated by dots";
        errs.push(Error::invalid(path, domain, text));
    }
    first_bad(errs, name, validation::is_dns1123_subdomain);
    const MAX: usize = 253 + 1 + 253 + 63 + 1;
    if signer.len() > MAX {
        errs.push(Error::too_long(path, "", MAX));
    }
}
