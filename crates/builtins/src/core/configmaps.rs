//! ConfigMaps.

use crate::shared::{
    check, metadata,
    rules::base64_len,
    table::{age, name},
    value::Fields,
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Data",
        "string",
        0,
        "Data contains the configuration data. Each key must consist of alphanumeric characters, '-', '_' or '.'. Values with non-UTF-8 byte sequences must use the BinaryData field. The keys stored in Data must not overlap with the keys in the BinaryData field, this is enforced during validation process.",
    ),
    age_column(),
];

/// How many bytes of data a ConfigMap or Secret may hold.
pub const MAX_DATA: usize = 1024 * 1024;
/// Upstream's text for a change to an immutable ConfigMap or Secret.
pub const FROZEN: &str = "field is immutable when `immutable` is set";

struct ConfigMaps;

/// What a change to an immutable ConfigMap or Secret breaks.
pub fn frozen_data(errs: &mut ErrorList, new: &Value, old: &Value, fields: &[&str]) {
    if !old.flag("immutable") {
        return;
    }
    if !new.flag("immutable") {
        errs.push(Error::forbidden(&Path::new("immutable"), FROZEN));
    }
    for f in fields {
        if !kaji_meta::semantic_equal(new.at(f), old.at(f)) {
            errs.push(Error::forbidden(&Path::new(f), FROZEN));
        }
    }
}

impl Hooks for ConfigMaps {
    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        let mut size = 0;
        let (data, binary) = (Path::new("data"), Path::new("binaryData"));
        for (k, v) in object.string_map("data") {
            check::each(&mut errs, &data.key(k), k, validation::is_config_map_key(k));
            if object.at("binaryData").get(k).is_some() {
                errs.push(Error::invalid(&data.key(k), k, "duplicate of key present in binaryData"));
            }
            size += v.len();
        }
        for (k, v) in object.string_map("binaryData") {
            check::each(&mut errs, &binary.key(k), k, validation::is_config_map_key(k));
            size += base64_len(v);
        }
        if size > MAX_DATA {
            errs.push(Error::too_long(&Path::root().key(""), "", MAX_DATA));
        }
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        frozen_data(&mut errs, new, old, &["data", "binaryData"]);
        errs.extend(self.validate_create(ctx, new));
        errs
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let count = |f| object.map(f).map_or(0, |m| m.len());
        vec![name(object), (count("data") + count("binaryData")).into(), age(object, now)]
    }
}

/// The definition of ConfigMaps.
pub fn def() -> ResourceDef {
    ResourceDef::builtin("", "v1", "ConfigMap", "configmaps", Scope::Namespaced, COLUMNS, ConfigMaps)
        .optional_to_start()
        .metadata_checks(&[metadata::UPDATE, metadata::WHOLE], &[metadata::UPDATE])
        .acknowledge_when_stored()
        .short(&["cm"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_keys_and_too_much_data() {
        let cm = json!({"data": {"a b": "x", "k": "v"}, "binaryData": {"k": "AAAA", "ok": "AAAA"}});
        expect![[r#"
            data[a b]: Invalid value: "a b": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')
            data[k]: Invalid value: "k": duplicate of key present in binaryData"#]]
        .assert_eq(&create_errors(&def(), cm));
        let big = json!({"data": {"k": "x".repeat(MAX_DATA + 1)}});
        expect!["[]: Too long: may not be more than 1048576 bytes"].assert_eq(&create_errors(&def(), big));
    }

    #[test]
    fn rejects_changes_of_immutable_data() {
        let old = json!({"immutable": true, "data": {"a": "1"}});
        assert_eq!(update_errors(&def(), "", old.clone(), old.clone()), "");
        expect![[r#"
            immutable: Forbidden: field is immutable when `immutable` is set
            data: Forbidden: field is immutable when `immutable` is set
            binaryData: Forbidden: field is immutable when `immutable` is set"#]]
        .assert_eq(&update_errors(&def(), "", json!({"data": {"a": "2"}, "binaryData": {"b": "AA=="}}), old));
    }

    #[test]
    fn prints_a_row() {
        let cm = json!({"metadata": {"name": "c"}, "data": {"a": "1"}, "binaryData": {"b": "AA=="}});
        assert_eq!(row(&def(), &cm), "c | 2 | <unknown>");
    }
}
