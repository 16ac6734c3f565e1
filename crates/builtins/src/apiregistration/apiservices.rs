//! APIServices.

use crate::shared::{
    check, conditions, metadata, rules,
    rules::base64_len,
    table::{age, name},
    value::{Fields, put, set_default},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("Service", "string", 0, "The reference to the service that hosts this API endpoint."),
    Column::new("Available", "string", 0, "Whether this service is available."),
    age_column(),
];

struct ApiServices;

fn validate(object: &Value) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    let (group, version) = (spec.text("group"), spec.text("version"));
    let wanted = format!("{version}.{group}");
    // Without a name nothing else is checked.
    if !object::name(object).is_empty() && object::name(object) != wanted {
        let text = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
        errs.push(Error::invalid(&Path::new("metadata").child("name"), object::name(object), text));
    }
    if group.is_empty() && version != "v1" {
        let text = "only v1 may have an empty group and it better be legacy kube";
        errs.push(Error::required(&path.child("group"), text));
    }
    if !group.is_empty() {
        check::dns_subdomain(&mut errs, &path.child("group"), group);
    }
    check::each(&mut errs, &path.child("version"), version, validation::is_dns1035_label(version));
    for (f, max) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
        let n = spec.int(f);
        if n <= 0 || n > max {
            errs.push(Error::invalid(&path.child(f), n, format!("must be positive and less than {max}")));
        }
    }
    let (bundle, insecure) = (base64_len(spec.text("caBundle")), spec.flag("insecureSkipTLSVerify"));
    let skip = path.child("insecureSkipTLSVerify");
    if !spec.has("service") {
        if bundle != 0 {
            let text = "local APIServices may not have a caBundle";
            errs.push(Error::invalid(&path.child("caBundle"), format!("{bundle} bytes"), text));
        }
        if insecure {
            errs.push(Error::invalid(&skip, true, "local APIServices may not have insecureSkipTLSVerify"));
        }
        return errs;
    }
    let (service, at) = (spec.at("service"), path.child("service"));
    check::required(&mut errs, &at.child("namespace"), service.text("namespace"));
    check::required(&mut errs, &at.child("name"), service.text("name"));
    let port = service.int("port");
    let bad = validation::is_valid_port_num(port);
    if !bad.is_empty() {
        errs.push(Error::invalid(&at.child("port"), port, format!("port is not valid: {}", bad.join(", "))));
    }
    if insecure && bundle != 0 {
        errs.push(Error::invalid(&skip, true, "may not be true if caBundle is present"));
    }
    errs
}

fn validate_status(object: &Value) -> ErrorList {
    let mut errs = vec![];
    for (i, c) in object.at("status").list("conditions").iter().enumerate() {
        let at = Path::new("status").child("conditions").index(i).child("status");
        check::one_of(&mut errs, &at, c.text("status"), &["False", "True", "Unknown"]);
    }
    errs
}

impl Hooks for ApiServices {
    fn default(&self, _version: &str, object: &mut Value) {
        if let Some(service) = object.pointer_mut("/spec/service").filter(|s| s.is_object()) {
            set_default(service, "port", || 443.into());
        }
    }

    fn prepare_create(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let mut status = json!({});
        if !object.at("spec").has("service") {
            let local = json!({
                "type": "Available",
                "status": "True",
                "lastTransitionTime": kaji_meta::Time::new(ctx.now).to_string(),
                "reason": "Local",
                "message": "Local APIServices are always available",
            });
            put(&mut status, "conditions", vec![local]);
        }
        put(object, "status", status);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource == "status" {
            rules::keep_meta_on_status(new, old);
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        if ctx.subresource == "status" { validate_status(new) } else { validate(new) }
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let service = object.at("spec").at("service");
        let host = match service.is_null() {
            true => "Local".to_owned(),
            false => format!("{}/{}", service.text("namespace"), service.text("name")),
        };
        let available = match conditions::find(object.at("status"), "Available") {
            None => "Unknown".to_owned(),
            Some(c) if c.text("status") != "True" && !c.text("reason").is_empty() => {
                format!("{} ({})", c.text("status"), c.text("reason"))
            }
            Some(c) => c.text("status").to_owned(),
        };
        vec![name(object), host.into(), available.into(), age(object, now)]
    }
}

/// The definition of APIServices.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "apiregistration.k8s.io",
        "v1",
        "APIService",
        "apiservices",
        Scope::Cluster,
        COLUMNS,
        ApiServices,
    )
    .storage_prefix("apiregistration.k8s.io/apiservices")
    .metadata_checks(&[metadata::GENERAL_UPDATE, metadata::GENERAL_WHOLE], &[])
    .category(&["api-extensions"])
    .named(validation::path_segment_name)
    .conditional_update_only()
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row};
    use expect_test::expect;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad = json!({"metadata": {"name": "x"}, "spec": {"version": "v1", "group": "a.io", "service": {}, "insecureSkipTLSVerify": true, "caBundle": "eA=="}});
        expect![[r#"
            metadata.name: Invalid value: "x": must be `spec.version+"."+spec.group`: "v1.a.io"
            spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000
            spec.versionPriority: Invalid value: 0: must be positive and less than 1000
            spec.service.namespace: Required value
            spec.service.name: Required value
            spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present"#]]
        .assert_eq(&create_errors(&def(), bad));
        let local = created(&def(), json!({"metadata": {"name": "v1."}, "spec": {"version": "v1"}}));
        assert_eq!(row(&def(), &serde_json::from_str(&local).unwrap()), "v1. | Local | True | <unknown>");
    }
}
