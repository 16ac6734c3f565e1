//! ClusterTrustBundles.

use super::pem::blocks;
use crate::shared::{check, rules, table::name, value::Fields};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SelectableField, name_column};
use serde_json::Value;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("SignerName", "string", 0, "signerName indicates the associated signer, if any."),
];

const MAX_BYTES: usize = 1024 * 1024;

struct Bundles;

fn bundle_name(errs: &mut ErrorList, object: &Value) {
    let (name, signer, path) =
        (object::name(object), object.at("spec").text("signerName"), Path::new("metadata").child("name"));
    let rest = if signer.is_empty() {
        if name.contains(':') {
            let text = "ClusterTrustBundle without signer name must not have \":\" in its name";
            errs.push(Error::invalid(&path, name, text));
            return;
        }
        name
    } else {
        let prefix = format!("{}:", signer.replace('/', ":"));
        let Some(rest) = name.strip_prefix(&prefix) else {
            let text =
                format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}");
            errs.push(Error::invalid(&path, name, text));
            return;
        };
        rest
    };
    check::each(errs, &path, name, validation::is_dns1123_subdomain(rest));
}

fn trust_bundle(errs: &mut ErrorList, text: &str) {
    let path = Path::new("spec").child("trustBundle");
    if text.len() > MAX_BYTES {
        errs.push(Error::too_long(&path, "", MAX_BYTES));
        return;
    }
    let before = errs.len();
    let mut anchors: Vec<(Vec<u8>, Vec<usize>)> = vec![];
    for (i, block) in blocks(text.as_bytes()).into_iter().enumerate() {
        let problem = if block.label != "CERTIFICATE" {
            Some(format!("entry {i} has bad block type: {}", block.label))
        } else {
            match X509Certificate::from_der(&block.contents) {
                Err(_) => Some(format!("entry {i} does not parse as X.509")),
                Ok((_, c)) if !c.is_ca() => Some(format!("entry {i} does not have the CA bit set")),
                Ok(_) => None,
            }
        };
        match problem {
            Some(p) => errs.push(Error::invalid(&path, "<value omitted>", p)),
            None => match anchors.iter_mut().find(|(bytes, _)| *bytes == block.contents) {
                Some((_, at)) => at.push(i),
                None => anchors.push((block.contents, vec![i])),
            },
        }
    }
    if errs.len() > before {
        return;
    }
    if anchors.is_empty() {
        errs.push(Error::invalid(&path, "<value omitted>", "at least one trust anchor must be provided"));
    }
    for (_, at) in anchors.iter().filter(|(_, at)| at.len() > 1) {
        let shown: Vec<String> = at.iter().map(usize::to_string).collect();
        let text = format!("duplicate trust anchor (indices [{}])", shown.join(" "));
        errs.push(Error::invalid(&path, "<value omitted>", text));
    }
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let (mut errs, spec) = (vec![], object.at("spec"));
    bundle_name(&mut errs, object);
    let signer = spec.text("signerName");
    if !signer.is_empty() {
        rules::signer_name(&mut errs, &Path::new("spec").child("signerName"), signer);
    }
    let text = spec.text("trustBundle");
    if old.is_none_or(|o| o.at("spec").text("trustBundle") != text) {
        trust_bundle(&mut errs, text);
    }
    errs
}

impl Hooks for Bundles {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object, None)
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = validate(new, Some(old));
        let path = Path::new("spec").child("signerName");
        check::immutable(&mut errs, &path, new.at("spec").at("signerName"), old.at("spec").at("signerName"));
        errs
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        let signer = object.at("spec").text("signerName");
        vec![name(object), (if signer.is_empty() { "<none>" } else { signer }).into()]
    }
}

/// Names depend on the signer and are checked with it.
fn any_name(_name: &str, _prefix: bool) -> Vec<String> {
    vec![]
}

/// The definition of ClusterTrustBundles.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "certificates.k8s.io",
        "v1",
        "ClusterTrustBundle",
        "clustertrustbundles",
        Scope::Cluster,
        COLUMNS,
        Bundles,
    )
    .named(any_name)
    .conditional_update_only()
    .select(&[SelectableField::new("spec.signerName")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let b = json!({"metadata": {"name": "a:b"}, "spec": {"signerName": "x.io/y", "trustBundle": "zzz"}});
        expect![[r#"
            metadata.name: Invalid value: "a:b": ClusterTrustBundle for signerName x.io/y must be named with prefix x.io:y:
            spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided"#]]
        .assert_eq(&create_errors(&def(), b.clone()));
        assert_eq!(row(&def(), &b), "a:b | x.io/y");
    }
}
