//! IPAddresses: each represents a cluster IP in use, and is named after it.

use crate::shared::{
    check, metadata,
    net::check_ip,
    table::{age, name},
    value::Fields,
};
use kaji_meta::{
    GroupResource,
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "ParentRef",
        "string",
        0,
        "ParentRef references the resource that an IPAddress is attached to. An IPAddress must reference a parent object.",
    ),
    age_column(),
];

struct IpAddresses;

fn valid_name(name: &str, _prefix: bool) -> Vec<String> {
    check_ip(&Path::root(), name).into_iter().map(|e| e.detail).collect()
}

impl Hooks for IpAddresses {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let (mut errs, parent) = (vec![], object.at("spec").at("parentRef"));
        let path = Path::new("spec").child("parentRef");
        if parent.is_null() {
            return vec![Error::required(&path, "")];
        }
        let group = parent.text("group");
        if !group.is_empty() {
            check::dns_subdomain(&mut errs, &path.child("group"), group);
        }
        for (field, needed) in [("resource", true), ("name", true), ("namespace", false)] {
            let (at, text) = (path.child(field), parent.text(field));
            if !text.is_empty() {
                check::each(&mut errs, &at, text, validation::path_segment_name(text, false));
            } else if needed {
                errs.push(Error::required(&at, ""));
            }
        }
        errs
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        let path = Path::new("spec").child("parentRef");
        let ty = "io.k8s.api.networking.v1.ParentReference";
        let (new, old) = (new.at("spec").at("parentRef"), old.at("spec").at("parentRef"));
        check::immutable_struct(&mut errs, &path, ty, new, old);
        errs
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let p = object.at("spec").at("parentRef");
        let mut text = "<none>".to_owned();
        if !p.is_null() {
            text = GroupResource::new(p.text("group"), p.text("resource")).to_string().to_lowercase();
            for part in [p.text("namespace"), p.text("name")].into_iter().filter(|t| !t.is_empty()) {
                text.push('/');
                text.push_str(part);
            }
        }
        vec![name(object), text.into(), age(object, now)]
    }
}

/// The definition of IPAddresses.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "networking.k8s.io",
        "v1",
        "IPAddress",
        "ipaddresses",
        Scope::Cluster,
        COLUMNS,
        IpAddresses,
    )
    .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
    .short(&["ip"])
    .named(valid_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        assert_eq!(valid_name("FD00::1", false), [r#"must be in canonical form ("fd00::1")"#]);
        expect!["spec.parentRef: Required value"].assert_eq(&create_errors(&def(), json!({"spec": {}})));
        let a = json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {"resource": "services", "namespace": "n", "name": "s"}}});
        assert_eq!(row(&def(), &a), "10.0.0.1 | services/n/s | <unknown>");
    }
}
