//! Validation of the configuration. Texts are upstream's (`apiserver/pkg/apis/apiserver/validation`).
//!
//! Invariant: no secret, and no whole provider, is shown in an error.

use crate::config::{Config, Key, Kms, Provider};
use base64::{Engine, engine::general_purpose::STANDARD};
use kaji_meta::{
    GroupResource,
    field::{Error, ErrorList, Path},
};
use std::collections::HashSet;

const REDACTED: &str = "REDACTED";
const AES: &[usize] = &[16, 24, 32];
const SECRETBOX: &[usize] = &[32];
/// Ranges and allocations that upstream keeps in the store but does not serve.
const NOT_SERVED: &[&str] = &["apiserveripinfo", "serviceipallocations", "servicenodeportallocations"];

/// All that is wrong with a configuration.
pub fn validate(config: &Config) -> ErrorList {
    let root = Path::new("resources");
    let mut errs = vec![];
    let at_least_one = |path: &Path, what: &dyn std::fmt::Display| {
        Error::required(path, format!("at least one {what} is required"))
    };
    if config.resources.is_empty() {
        errs.push(at_least_one(&root, &root));
    }
    let mut plugins = HashSet::new();
    for (i, entry) in config.resources.iter().enumerate() {
        let (names, providers) = (root.index(i).child("resources"), root.index(i).child("providers"));
        if entry.resources.is_empty() {
            errs.push(at_least_one(&names, &names));
        }
        overlaps(&mut errs, &names, &entry.resources);
        for (j, name) in entry.resources.iter().enumerate() {
            errs.extend(bad_name(name).map(|text| Error::invalid(&names.index(j), name.as_str(), text)));
        }
        if entry.providers.is_empty() {
            errs.push(at_least_one(&providers, &providers));
        }
        for (j, provider) in entry.providers.iter().enumerate() {
            validate_provider(&mut errs, &providers.index(j), provider, &mut plugins);
        }
    }
    errs
}

fn overlaps(errs: &mut ErrorList, path: &Path, names: &[String]) {
    let parsed: Vec<GroupResource> = names.iter().map(|n| GroupResource::parse(n)).collect();
    let pairs = || {
        parsed.iter().enumerate().flat_map(|(i, a)| {
            parsed.iter().enumerate().filter(move |(j, _)| *j != i).map(move |(_, b)| (a, b))
        })
    };
    let all = |gr: &GroupResource| gr.group == "*" && gr.resource == "*";
    let covers = |a: &GroupResource, b: &GroupResource| {
        all(a) || a.group == b.group && (a.resource == "*" || b.resource == "*")
    };
    if pairs().any(|(a, b)| a == b) {
        let text = "the same resource cannot be specified multiple times";
        errs.push(Error::invalid(path, names.to_vec(), text));
    }
    if pairs().any(|(a, b)| a != b && covers(a, b)) {
        let text = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed \
                    as they will be masked";
        errs.push(Error::invalid(path, names.to_vec(), text));
    }
}

fn bad_name(name: &str) -> Option<&'static str> {
    let gr = GroupResource::parse(name);
    if name.to_lowercase() != name {
        Some("resource name should not contain capital letters")
    } else if name == "*" {
        Some("use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources")
    } else if NOT_SERVED.contains(&name) {
        Some("resources which do not have REST API/s cannot be encrypted")
    } else if gr.group == "events.k8s.io" {
        Some(
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the \
             config file",
        )
    } else if gr.group == "extensions" {
        Some("'extensions' group has been removed and cannot be used for encryption")
    } else if gr.group == "*" && gr.resource != "*" {
        Some("encrypting the same resource across groups is not supported")
    } else {
        None
    }
}

fn validate_provider(errs: &mut ErrorList, path: &Path, provider: &Provider, plugins: &mut HashSet<String>) {
    let ciphers = [
        ("aesgcm", &provider.aesgcm, AES),
        ("aescbc", &provider.aescbc, AES),
        ("secretbox", &provider.secretbox, SECRETBOX),
    ];
    let given = ciphers.iter().filter(|(_, keys, _)| keys.is_some()).count()
        + usize::from(provider.identity)
        + usize::from(provider.kms.is_some());
    let text = match given {
        0 => {
            "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity"
        }
        1 => "",
        _ => {
            "more than one provider specified in a single element, should split into different list elements"
        }
    };
    if !text.is_empty() {
        errs.push(Error::invalid(path, REDACTED, text));
    }
    if let Some(kms) = &provider.kms {
        validate_kms(errs, &path.child("kms"), kms, plugins);
        plugins.insert(kms.name.clone());
    } else if let Some((name, Some(keys), sizes)) = ciphers.into_iter().find(|(_, keys, _)| keys.is_some()) {
        let path = path.child(name).child("keys");
        if keys.is_empty() {
            errs.push(Error::required(&path, "at least one keys is required"));
        }
        keys.iter().enumerate().for_each(|(i, key)| validate_key(errs, &path.index(i), key, sizes));
    }
}

fn validate_key(errs: &mut ErrorList, path: &Path, key: &Key, sizes: &[usize]) {
    let mandatory =
        |field: &str| Error::required(&path.child(field), format!("{field} is a mandatory field for a key"));
    if key.name.is_empty() {
        errs.push(mandatory("name"));
    }
    let path_of_secret = path.child("secret");
    if key.secret.is_empty() {
        errs.push(mandatory("secret"));
        return;
    }
    match STANDARD.decode(&key.secret) {
        Err(_) => errs.push(Error::invalid(&path_of_secret, REDACTED, "secrets must be base64 encoded")),
        Ok(secret) if !sizes.contains(&secret.len()) => {
            let expected: Vec<String> = sizes.iter().map(usize::to_string).collect();
            let text = format!(
                "secret is not of the expected length, got {}, expected one of [{}]",
                secret.len(),
                expected.join(" ")
            );
            errs.push(Error::invalid(&path_of_secret, REDACTED, text));
        }
        Ok(_) => {}
    }
}

fn validate_kms(errs: &mut ErrorList, path: &Path, kms: &Kms, plugins: &HashSet<String>) {
    let first = kms.api_version == "v1";
    let name = path.child("name");
    if kms.name.is_empty() {
        errs.push(Error::required(&name, "name is a mandatory field for a provider"));
    }
    if !first && kms.name.contains(':') {
        let text = format!("invalid KMS provider name {}, must not contain ':'", kms.name);
        errs.push(Error::invalid(&name, kms.name.as_str(), text));
    }
    if !first && plugins.contains(&kms.name) {
        let text = format!("duplicate KMS provider name {}, names must be unique", kms.name);
        errs.push(Error::invalid(&name, kms.name.as_str(), text));
    }
    if kms.timeout().is_none() {
        let text = "timeout should be a positive value";
        errs.push(Error::invalid(&path.child("timeout"), kms.timeout.as_str(), text));
    }
    let endpoint = path.child("endpoint");
    if kms.endpoint.is_empty() {
        errs.push(Error::invalid(&endpoint, "", "endpoint is a mandatory field for a kms"));
    } else if let scheme = kms.endpoint.split_once(':').map_or("", |(scheme, _)| scheme)
        && scheme != "unix"
    {
        let text = format!("unsupported scheme {scheme:?} for KMS provider, only unix is supported");
        errs.push(Error::invalid(&endpoint, kms.endpoint.as_str(), text));
    }
    if let Some(size) = kms.cache_size {
        let text = match (first, size) {
            (false, _) => "cachesize is not supported in v2",
            (true, 0) => "cachesize should be a positive value, or negative to disable",
            (true, _) => "",
        };
        if !text.is_empty() {
            errs.push(Error::invalid(&path.child("cachesize"), size, text));
        }
    }
    if !first && kms.api_version != "v2" {
        let text = "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported";
        errs.push(Error::invalid(&path.child("apiVersion"), kms.api_version.as_str(), text));
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use expect_test::expect;

    fn errors(resources: &str) -> String {
        let text =
            format!("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n{resources}");
        match Config::parse(&text) {
            Ok(config) => format!("{config:?}"),
            Err(error) => error.to_string().replace(", resources", ",\nresources"),
        }
    }

    #[test]
    fn good() {
        let key = "c2VjcmV0IGlzIHNlY3VyZQ==";
        expect![[r#"Config { resources: [Resources { resources: ["secrets", "*.apps"], providers: [Provider { aesgcm: Some([Key { name: "k", secret: "REDACTED" }]), aescbc: None, secretbox: None, identity: false, kms: None }, Provider { aesgcm: None, aescbc: None, secretbox: None, identity: true, kms: None }] }] }"#]].assert_eq(&errors(&format!(
            "resources: [{{resources: [secrets, '*.apps'], providers: [{{aesgcm: {{keys: [{{name: k, secret: {key}}}]}}}}, {{identity: {{}}}}]}}]"
        )));
    }

    #[test]
    fn names() {
        let of = |names: &str| {
            errors(&format!("resources: [{{resources: [{names}], providers: [{{identity: {{}}}}]}}]"))
        };
        expect![[r#"
            [resources[0].resources[0]: Invalid value: "Secrets": resource name should not contain capital letters,
            resources[0].resources[1]: Invalid value: "*": use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources,
            resources[0].resources[2]: Invalid value: "apiserveripinfo": resources which do not have REST API/s cannot be encrypted,
            resources[0].resources[3]: Invalid value: "x.events.k8s.io": '*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file,
            resources[0].resources[4]: Invalid value: "ingresses.extensions": 'extensions' group has been removed and cannot be used for encryption,
            resources[0].resources[5]: Invalid value: "secrets.*": encrypting the same resource across groups is not supported]"#]]
        .assert_eq(
            &of("Secrets, '*', apiserveripinfo, x.events.k8s.io, ingresses.extensions, 'secrets.*'")
                .replacen("resources[0].resources: Invalid value: [\"Secrets\",\"*\",\"apiserveripinfo\",\"x.events.k8s.io\",\"ingresses.extensions\",\"secrets.*\"]: using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked,\n", "", 1),
        );
        expect![[r#"
            [resources[0].resources: Invalid value: ["secrets","secrets","*."]: the same resource cannot be specified multiple times,
            resources[0].resources: Invalid value: ["secrets","secrets","*."]: using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked]"#]]
        .assert_eq(&of("secrets, secrets, '*.'"));
    }

    #[test]
    fn providers() {
        expect![[r#"
            [resources[0].providers[0]: Invalid value: "REDACTED": provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity,
            resources[0].providers[1]: Invalid value: "REDACTED": more than one provider specified in a single element, should split into different list elements,
            resources[0].providers[1].secretbox.keys: Required value: at least one keys is required,
            resources[0].providers[2].aescbc.keys[0].secret: Invalid value: "REDACTED": secrets must be base64 encoded,
            resources[0].providers[2].aescbc.keys[1].name: Required value: name is a mandatory field for a key,
            resources[0].providers[2].aescbc.keys[1].secret: Required value: secret is a mandatory field for a key,
            resources[0].providers[3].secretbox.keys[0].secret: Invalid value: "REDACTED": secret is not of the expected length, got 2, expected one of [32]]"#]]
        .assert_eq(&errors(
            "resources: [{resources: [secrets], providers: [{}, {identity: {}, secretbox: {keys: []}}, \
             {aescbc: {keys: [{name: a, secret: '%'}, {}]}}, {secretbox: {keys: [{name: a, secret: eHg=}]}}]}]",
        ));
        expect!["resources: Required value: at least one resources is required"]
            .assert_eq(&errors("resources: []"));
        expect![[r#"
            [resources[0].resources: Required value: at least one resources[0].resources is required,
            resources[0].providers: Required value: at least one resources[0].providers is required]"#]]
        .assert_eq(&errors("resources: [{}]"));
    }

    #[test]
    fn plugins() {
        expect![[r#"
            [resources[0].providers[0].kms.name: Invalid value: "a:b": invalid KMS provider name a:b, must not contain ':',
            resources[0].providers[0].kms.timeout: Invalid value: "0s": timeout should be a positive value,
            resources[0].providers[0].kms.endpoint: Invalid value: "tcp://x": unsupported scheme "tcp" for KMS provider, only unix is supported,
            resources[0].providers[0].kms.cachesize: Invalid value: 5: cachesize is not supported in v2]"#]]
        .assert_eq(&errors(
            "resources: [{resources: [secrets], providers: [{kms: {apiVersion: v2, name: 'a:b', endpoint: 'tcp://x', \
             timeout: 0s, cachesize: 5}}]}]",
        ));
    }

    #[test]
    fn strictness() {
        expect![[r#"error decoding encryption provider configuration: strict decoding error: unknown field "x", unknown field "resources[0].providers[0].aes""#]]
            .assert_eq(&errors("x: 1\nresources: [{resources: [secrets], providers: [{aes: {}}]}]"));
        expect!["error decoding encryption provider configuration: resources[0].providers[0].aesgcm.keys[0].secret is not a string"]
            .assert_eq(&errors(
                "resources: [{resources: [secrets], providers: [{aesgcm: {keys: [{name: a, secret: 1234}]}}]}]",
            ));
        let of = |text: &str| Config::parse(text).unwrap_err().to_string();
        expect![[r#"error decoding encryption provider configuration: no kind "EncryptionConfig" is registered for version "v1""#]]
            .assert_eq(&of("apiVersion: v1\nkind: EncryptionConfig\n"));
        assert!(!of("secret: [topsecret").contains("topsecret"));
    }
}
