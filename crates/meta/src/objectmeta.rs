//! Validation of `metadata`, on create and on update.

use crate::field::{Error, ErrorList, Path};
use crate::gvk::GroupVersionKind;
use crate::object::{arr_at, bool_at, i64_at, str_at, strs_at};
use crate::options::validate_field_manager;
use crate::semantic_equal;
use crate::text::string_slice;
use crate::validation::{is_qualified_name, name_is_dns_label, validate_annotations, validate_labels};
use serde_json::Value;
use std::collections::BTreeSet;

/// A rule for names; with `true`, the name will have more appended to it.
pub type NameFn = fn(&str, bool) -> Vec<String>;

/// Finalizer that keeps dependents.
pub const FINALIZER_ORPHAN_DEPENDENTS: &str = "orphan";
/// Finalizer that waits for dependents.
pub const FINALIZER_DELETE_DEPENDENTS: &str = "foregroundDeletion";
/// Message of a changed immutable field.
pub const FIELD_IMMUTABLE: &str = "field is immutable";

const MAX_SUBRESOURCE_NAME_LENGTH: usize = 256;

fn invalid_each(path: &Path, value: &str, messages: Vec<String>) -> impl Iterator<Item = Error> {
    messages.into_iter().map(move |m| Error::invalid(path, value, m))
}

/// `metadata` of a new object, after name generation.
pub fn validate_object_meta(meta: &Value, namespaced: bool, name_fn: NameFn, path: &Path) -> ErrorList {
    let mut errs = ErrorList::new();
    let generate_name = str_at(meta, &["generateName"]);
    if !generate_name.is_empty() {
        errs.extend(invalid_each(&path.child("generateName"), generate_name, name_fn(generate_name, true)));
    }
    let name = str_at(meta, &["name"]);
    if name.is_empty() {
        errs.push(Error::required(&path.child("name"), "name or generateName is required"));
    } else {
        errs.extend(invalid_each(&path.child("name"), name, name_fn(name, false)));
    }
    let namespace = str_at(meta, &["namespace"]);
    let namespace_path = path.child("namespace");
    if !namespaced && !namespace.is_empty() {
        errs.push(Error::forbidden(&namespace_path, "not allowed on this type"));
    } else if namespaced && namespace.is_empty() {
        errs.push(Error::required(&namespace_path, ""));
    } else if namespaced {
        errs.extend(invalid_each(&namespace_path, namespace, name_is_dns_label(namespace, false)));
    }
    errs.extend(validate_nonnegative(i64_at(meta, &["generation"]).unwrap_or(0), &path.child("generation")));
    errs.extend(validate_labels_and_annotations(meta, path));
    errs.extend(validate_owner_references(meta.get("ownerReferences"), &path.child("ownerReferences")));
    errs.extend(validate_finalizers(meta.get("finalizers"), &path.child("finalizers")));
    errs.extend(validate_managed_fields(meta.get("managedFields"), &path.child("managedFields")));
    errs
}

/// `metadata` of an updated object against the stored one.
pub fn validate_object_meta_update(new: &Value, old: &Value, path: &Path) -> ErrorList {
    let mut errs = ErrorList::new();
    if old.get("deletionTimestamp").is_some_and(|v| !v.is_null()) {
        errs.extend(validate_no_new_finalizers(new, old, &path.child("finalizers")));
    }
    let resource_version = str_at(new, &["resourceVersion"]);
    if resource_version.is_empty() {
        let path = path.child("resourceVersion");
        errs.push(Error::invalid(&path, resource_version, "must be specified for an update"));
    }
    let generation = i64_at(new, &["generation"]).unwrap_or(0);
    if generation < i64_at(old, &["generation"]).unwrap_or(0) {
        errs.push(Error::invalid(&path.child("generation"), generation, "must not be decremented"));
    }
    for key in ["name", "namespace", "uid"] {
        let (new, old) = (str_at(new, &[key]), str_at(old, &[key]));
        if new != old {
            errs.push(Error::invalid(&path.child(key), new, FIELD_IMMUTABLE));
        }
    }
    for key in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let value = |v: &Value| v.get(key).cloned().unwrap_or_default();
        errs.extend(validate_immutable_field(&value(new), &value(old), &path.child(key)));
    }
    errs.extend(validate_labels_and_annotations(new, path));
    errs.extend(validate_owner_references(new.get("ownerReferences"), &path.child("ownerReferences")));
    errs.extend(validate_managed_fields(new.get("managedFields"), &path.child("managedFields")));
    errs
}

fn validate_labels_and_annotations(meta: &Value, path: &Path) -> ErrorList {
    let mut errs = ErrorList::new();
    if let Some(labels) = meta.get("labels") {
        errs.extend(validate_labels(labels, &path.child("labels")));
    }
    if let Some(annotations) = meta.get("annotations") {
        errs.extend(validate_annotations(annotations, &path.child("annotations")));
    }
    errs
}

/// A number that must not be negative.
pub fn validate_nonnegative(value: i64, path: &Path) -> Option<Error> {
    (value < 0).then(|| Error::invalid(path, value, "must be greater than or equal to 0"))
}

/// A field that must not change. Null, absent and empty are the same.
pub fn validate_immutable_field(new: &Value, old: &Value, path: &Path) -> Option<Error> {
    (!semantic_equal(new, old)).then(|| Error::invalid(path, new.clone(), FIELD_IMMUTABLE))
}

fn validate_no_new_finalizers(new: &Value, old: &Value, path: &Path) -> Option<Error> {
    let old: BTreeSet<&str> = strs_at(old, &["finalizers"]).collect();
    let extra: BTreeSet<&str> = strs_at(new, &["finalizers"]).filter(|f| !old.contains(f)).collect();
    (!extra.is_empty()).then(|| {
        let list = string_slice(extra);
        let msg = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers {list}"
        );
        Error::forbidden(path, msg)
    })
}

/// Finalizers: label keys, and not both of the two that garbage collection uses.
pub fn validate_finalizers(finalizers: Option<&Value>, path: &Path) -> ErrorList {
    let Some(list) = finalizers else { return Vec::new() };
    let mut errs = ErrorList::new();
    for finalizer in strs_at(list, &[]) {
        errs.extend(invalid_each(path, finalizer, is_qualified_name(finalizer)));
    }
    let has = |name: &str| strs_at(list, &[]).any(|f| f == name);
    if has(FINALIZER_ORPHAN_DEPENDENTS) && has(FINALIZER_DELETE_DEPENDENTS) {
        let msg = format!(
            "finalizer {FINALIZER_ORPHAN_DEPENDENTS} and {FINALIZER_DELETE_DEPENDENTS} cannot be both set"
        );
        errs.push(Error::invalid(path, list.clone(), msg));
    }
    errs
}

/// Finalizers of most built-in kinds: qualified by a domain, or one of those that Kubernetes itself uses.
pub fn validate_qualified_finalizers(finalizers: Option<&Value>, path: &Path) -> ErrorList {
    let known = ["kubernetes", FINALIZER_ORPHAN_DEPENDENTS, FINALIZER_DELETE_DEPENDENTS];
    let list = finalizers.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let text = "name is neither a standard finalizer name nor is it fully qualified";
    list.enumerate()
        .filter(|(_, name)| !name.contains('/') && !known.contains(name))
        .map(|(i, name)| Error::invalid(&path.index(i), name, text))
        .collect()
}

fn validate_owner_reference(reference: &Value, path: &Path) -> ErrorList {
    let mut errs = ErrorList::new();
    let api_version = str_at(reference, &["apiVersion"]);
    let gvk = GroupVersionKind::from_api_version(api_version, str_at(reference, &["kind"]));
    if gvk.version.is_empty() {
        errs.push(Error::invalid(&path.child("apiVersion"), api_version, "version must not be empty"));
    }
    for key in ["kind", "name", "uid"] {
        if str_at(reference, &[key]).is_empty() {
            errs.push(Error::invalid(&path.child(key), "", "must not be empty"));
        }
    }
    if (gvk.group.as_str(), gvk.version.as_str(), gvk.kind.as_str()) == ("", "v1", "Event") {
        errs.push(Error::invalid(
            path,
            reference.clone(),
            format!("{gvk} is disallowed from being an owner"),
        ));
    }
    errs
}

/// Owner references: complete, and at most one controller.
pub fn validate_owner_references(references: Option<&Value>, path: &Path) -> ErrorList {
    let Some(list) = references else { return Vec::new() };
    let mut errs = ErrorList::new();
    let mut controller: Option<String> = None;
    for reference in arr_at(list, &[]) {
        errs.extend(validate_owner_reference(reference, path));
        if bool_at(reference, &["controller"]) != Some(true) {
            continue;
        }
        let name = format!("{}/{}", str_at(reference, &["kind"]), str_at(reference, &["name"]));
        match &controller {
            None => controller = Some(name),
            Some(first) => {
                let msg = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                );
                errs.push(Error::invalid(path, list.clone(), msg));
            }
        }
    }
    errs
}

/// Managed fields entries as clients may send them back.
pub fn validate_managed_fields(entries: Option<&Value>, path: &Path) -> ErrorList {
    let Some(list) = entries else { return Vec::new() };
    let mut errs = ErrorList::new();
    for (i, entry) in arr_at(list, &[]).iter().enumerate() {
        let operation = str_at(entry, &["operation"]);
        if !matches!(operation, "Apply" | "Update") {
            let path = path.index(i).child("operation");
            errs.push(Error::invalid(&path, operation, "must be `Apply` or `Update`"));
        }
        let fields_type = str_at(entry, &["fieldsType"]);
        if !matches!(fields_type, "" | "FieldsV1") {
            errs.push(Error::invalid(&path.index(i).child("fieldsType"), fields_type, "must be `FieldsV1`"));
        }
        errs.extend(validate_field_manager(str_at(entry, &["manager"]), &path.index(i).child("manager")));
        if str_at(entry, &["subresource"]).len() > MAX_SUBRESOURCE_NAME_LENGTH {
            errs.push(Error::too_long(&path.index(i).child("subresource"), "", MAX_SUBRESOURCE_NAME_LENGTH));
        }
    }
    errs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::name_is_dns_subdomain;
    use expect_test::expect;
    use serde_json::json;

    fn text(errors: &[Error]) -> String {
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    fn create(meta: Value, namespaced: bool) -> String {
        text(&validate_object_meta(&meta, namespaced, name_is_dns_subdomain, &Path::new("metadata")))
    }

    #[test]
    fn rejects_finalizers_without_a_domain() {
        let list = json!(["foo", "a.b/c", "kubernetes", "orphan", "foregroundDeletion", ""]);
        let errs = validate_qualified_finalizers(Some(&list), &Path::new("metadata").child("finalizers"));
        let shown: Vec<String> = errs.iter().map(ToString::to_string).collect();
        expect![[r#"
            metadata.finalizers[0]: Invalid value: "foo": name is neither a standard finalizer name nor is it fully qualified
            metadata.finalizers[5]: Invalid value: "": name is neither a standard finalizer name nor is it fully qualified"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn validates_metadata_on_create() {
        assert_eq!(create(json!({"name": "a", "namespace": "b", "generateName": "a-"}), true), "");
        let all = [
            create(json!({}), true),
            create(json!({"name": "A", "generateName": "B-", "namespace": "x"}), false),
            create(json!({"name": "a", "namespace": "a.b", "generation": -1}), true),
            create(json!({"name": "a", "finalizers": ["x y", "orphan", "foregroundDeletion"]}), false),
            create(
                json!({"name": "a", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1", "controller": true},
                    {"apiVersion": "", "controller": true}
                ]}),
                false,
            ),
            create(
                json!({"name": "a", "managedFields": [
                    {"operation": "Apply", "manager": "m", "fieldsType": "FieldsV1"},
                    {"operation": "Merge", "manager": "\u{1}", "fieldsType": "V2", "subresource": "x".repeat(257)}
                ]}),
                false,
            ),
        ];
        expect![[r#"
            metadata.name: Required value: name or generateName is required
            metadata.namespace: Required value

            metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            metadata.namespace: Forbidden: not allowed on this type

            metadata.namespace: Invalid value: "a.b": must not contain dots
            metadata.generation: Invalid value: -1: must be greater than or equal to 0

            metadata.finalizers: Invalid value: "x y": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
            metadata.finalizers: Invalid value: ["x y","orphan","foregroundDeletion"]: finalizer orphan and foregroundDeletion cannot be both set

            metadata.ownerReferences: Invalid value: {"apiVersion":"v1","controller":true,"kind":"Event","name":"e","uid":"1"}: /v1, Kind=Event is disallowed from being an owner
            metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty
            metadata.ownerReferences.kind: Invalid value: "": must not be empty
            metadata.ownerReferences.name: Invalid value: "": must not be empty
            metadata.ownerReferences.uid: Invalid value: "": must not be empty
            metadata.ownerReferences: Invalid value: [{"apiVersion":"v1","controller":true,"kind":"Event","name":"e","uid":"1"},{"apiVersion":"","controller":true}]: Only one reference can have Controller set to true. Found "true" in references for Event/e and /

            metadata.managedFields[1].operation: Invalid value: "Merge": must be `Apply` or `Update`
            metadata.managedFields[1].fieldsType: Invalid value: "V2": must be `FieldsV1`
            metadata.managedFields[1].manager: Invalid value: "\x01": invalid character U+0001 (at position 0)
            metadata.managedFields[1].subresource: Too long: may not be more than 256 bytes"#]].assert_eq(&all.join("\n\n"));
    }

    #[test]
    fn validates_metadata_on_update() {
        let old = json!({
            "name": "a", "namespace": "n", "uid": "1", "creationTimestamp": "2024-01-01T00:00:00Z", "generation": 2,
            "resourceVersion": "5", "finalizers": ["a/b"], "deletionTimestamp": "2024-01-02T00:00:00Z",
            "deletionGracePeriodSeconds": 30
        });
        let path = Path::new("metadata");
        assert_eq!(text(&validate_object_meta_update(&old, &old, &path)), "");
        let new = json!({
            "name": "b", "namespace": "m", "uid": "2", "generation": 1, "finalizers": ["c/d", "a/b", "b/c"],
            "creationTimestamp": "2024-01-01T00:00:01Z", "labels": {"": "x"}
        });
        expect![[r#"
            metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"b/c", "c/d"}
            metadata.resourceVersion: Invalid value: "": must be specified for an update
            metadata.generation: Invalid value: 1: must not be decremented
            metadata.name: Invalid value: "b": field is immutable
            metadata.namespace: Invalid value: "m": field is immutable
            metadata.uid: Invalid value: "2": field is immutable
            metadata.creationTimestamp: Invalid value: "2024-01-01T00:00:01Z": field is immutable
            metadata.deletionTimestamp: Invalid value: null: field is immutable
            metadata.deletionGracePeriodSeconds: Invalid value: null: field is immutable
            metadata.labels: Invalid value: "": name part must be non-empty
            metadata.labels: Invalid value: "": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"#]].assert_eq(&text(&validate_object_meta_update(&new, &old, &path)));
    }
}
