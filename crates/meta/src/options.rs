//! Validation of the options that requests carry: dry run, field manager, field validation, deletion.

use crate::field::{Error, ErrorList, Path};
use crate::object::{bool_at, strs_at};
use crate::text::is_printable;
use serde_json::Value;

/// Longest field manager name, in bytes.
pub const FIELD_MANAGER_MAX_LENGTH: usize = 128;

/// A field manager: short and printable. The empty string means "not given".
pub fn validate_field_manager(manager: &str, path: &Path) -> ErrorList {
    let mut errs = ErrorList::new();
    if manager.len() > FIELD_MANAGER_MAX_LENGTH {
        errs.push(Error::too_long(path, "", FIELD_MANAGER_MAX_LENGTH));
    }
    for (i, c) in manager.char_indices().filter(|(_, c)| !is_printable(*c)) {
        let msg = format!("invalid character U+{:04X} (at position {i})", c as u32);
        errs.push(Error::invalid(path, manager, msg));
    }
    errs
}

/// `dryRun` values: only `All`.
pub fn validate_dry_run<'a>(values: impl IntoIterator<Item = &'a str>, path: &Path) -> ErrorList {
    let values: Vec<&str> = values.into_iter().collect();
    if values.iter().all(|v| *v == "All") {
        return Vec::new();
    }
    vec![Error::not_supported(path, values, &["All"])]
}

/// `fieldValidation`: empty, `Ignore`, `Warn` or `Strict`.
pub fn validate_field_validation(value: &str, path: &Path) -> ErrorList {
    let valid = ["", "Ignore", "Strict", "Warn"];
    if valid.contains(&value) {
        return Vec::new();
    }
    vec![Error::not_supported(path, value, &valid)]
}

/// The query options of a patch, besides those of an update.
pub fn validate_patch_options(apply: bool, field_manager: &str, force_given: bool) -> ErrorList {
    let mut errs = ErrorList::new();
    if apply && field_manager.is_empty() {
        errs.push(Error::required(&Path::new("fieldManager"), "is required for apply patch"));
    }
    if !apply && force_given {
        errs.push(Error::forbidden(&Path::new("force"), "may not be specified for non-apply patch"));
    }
    errs
}

/// A `DeleteOptions` object.
pub fn validate_delete_options(options: &Value) -> ErrorList {
    let given = |key: &str| options.get(key).is_some_and(|v| !v.is_null());
    let mut errs = ErrorList::new();
    let path = Path::new("propagationPolicy");
    let policy = options.get("propagationPolicy").and_then(Value::as_str);
    if let Some(policy) = policy {
        if given("orphanDependents") {
            errs.push(Error::invalid(
                &path,
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        if !matches!(policy, "Foreground" | "Background" | "Orphan") {
            let valid = ["Foreground", "Background", "Orphan", "nil"];
            errs.push(Error::not_supported(&path, policy, &valid));
        }
    }
    errs.extend(validate_dry_run(strs_at(options, &["dryRun"]), &Path::new("dryRun")));
    let unsafe_key = "ignoreStoreReadErrorWithClusterBreakingPotential";
    if bool_at(options, &[unsafe_key]) == Some(true) {
        let path = Path::new(unsafe_key);
        let others = ["propagationPolicy", "orphanDependents", "gracePeriodSeconds", "preconditions"];
        let clashes = others.into_iter().filter(|k| given(k));
        errs.extend(
            clashes.map(|k| Error::invalid(&path, true, format!("cannot be set together with .{k}"))),
        );
    }
    errs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::aggregate;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_options_with_upstreams_texts() {
        let p = Path::new("fieldManager");
        let errs = [
            validate_field_manager("ok manager", &p),
            validate_field_manager(&"x".repeat(129), &p),
            validate_field_manager("a\nb", &p),
            validate_dry_run(["All"], &Path::new("dryRun")),
            validate_dry_run(["All", "x"], &Path::new("dryRun")),
            validate_field_validation("Strict", &Path::new("fieldValidation")),
            validate_field_validation("strict", &Path::new("fieldValidation")),
            validate_patch_options(true, "", false),
            validate_patch_options(false, "", true),
            validate_delete_options(&json!({"propagationPolicy": "x", "orphanDependents": true})),
            validate_delete_options(&json!({
                "ignoreStoreReadErrorWithClusterBreakingPotential": true, "dryRun": ["All"], "preconditions": {}
            })),
        ];
        let text: Vec<String> = errs.iter().map(|e| aggregate(e)).collect();
        expect![[r#"

            fieldManager: Too long: may not be more than 128 bytes
            fieldManager: Invalid value: "a\nb": invalid character U+000A (at position 1)

            dryRun: Unsupported value: ["All","x"]: supported values: "All"

            fieldValidation: Unsupported value: "strict": supported values: "", "Ignore", "Strict", "Warn"
            fieldManager: Required value: is required for apply patch
            force: Forbidden: may not be specified for non-apply patch
            [propagationPolicy: Invalid value: "x": orphanDependents and deletionPropagation cannot be both set, propagationPolicy: Unsupported value: "x": supported values: "Foreground", "Background", "Orphan", "nil"]
            ignoreStoreReadErrorWithClusterBreakingPotential: Invalid value: true: cannot be set together with .preconditions"#]].assert_eq(&text.join("\n"));
    }
}
