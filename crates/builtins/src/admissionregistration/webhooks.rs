//! What validating and mutating webhook configurations share.

use super::{
    expressions::match_conditions,
    rules::{
        FAILURE_POLICIES, GROUP, MATCH_POLICIES, REINVOCATION_POLICIES, client, default_rules, name_warnings,
        rule, rule_warnings, unreserved_name,
    },
};
use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::{Fields, list_mut, set_default},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::{Value, json};

/// The columns of both kinds.
const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Webhooks",
        "integer",
        0,
        "Webhooks indicates the number of webhooks registered in this configuration",
    ),
    age_column(),
];

const REVIEW_VERSIONS: &[&str] = &["v1", "v1beta1"];

/// The hooks of both kinds.
struct Webhooks {
    /// Mutating ones can be called again.
    mutating: bool,
}

fn review_versions(errs: &mut ErrorList, path: &Path, hook: &Value, strict: bool) {
    let all: Vec<&str> = hook.strings("admissionReviewVersions").collect();
    let known = REVIEW_VERSIONS.join(", ");
    if all.is_empty() {
        errs.push(Error::required(path, format!("must specify one of {known}")));
        return;
    }
    for (i, v) in all.iter().enumerate() {
        if all[..i].contains(v) {
            errs.push(Error::invalid(&path.index(i), *v, "duplicate version"));
        } else {
            check::each(errs, &path.index(i), *v, validation::is_dns1035_label(v));
        }
    }
    if strict && !all.iter().any(|v| REVIEW_VERSIONS.contains(v)) {
        let shown = hook.at("admissionReviewVersions").clone();
        errs.push(Error::invalid(path, shown, format!("must include at least one of {known}")));
    }
}

fn webhook(errs: &mut ErrorList, path: &Path, hook: &Value, mutating: bool) {
    errs.extend(validation::validate_fully_qualified_name(&path.child("name"), hook.text("name")));
    let list = hook.list("rules");
    list.iter().enumerate().for_each(|(i, r)| rule(errs, &path.child("rules").index(i), r));
    let mut one_of = |field: &str, valid: &[&str]| {
        if let Some(v) = hook.opt_text(field) {
            check::one_of(errs, &path.child(field), v, valid);
        }
    };
    one_of("failurePolicy", FAILURE_POLICIES);
    one_of("matchPolicy", MATCH_POLICIES);
    let (at, none) = (path.child("sideEffects"), ["None", "NoneOnDryRun"]);
    match hook.opt_text("sideEffects") {
        None => errs.push(Error::required(&at, "must specify one of None, NoneOnDryRun")),
        Some(s) => check::one_of(errs, &at, s, &none),
    }
    if let Some(t) = hook.opt_int("timeoutSeconds").filter(|t| !(1..=30).contains(t)) {
        let text = "the timeout value must be between 1 and 30 seconds";
        errs.push(Error::invalid(&path.child("timeoutSeconds"), t, text));
    }
    for f in ["namespaceSelector", "objectSelector"].into_iter().filter(|f| hook.has(f)) {
        errs.extend(validation::validate_label_selector(hook.at(f), &path.child(f)));
    }
    if mutating && let Some(p) = hook.opt_text("reinvocationPolicy") {
        check::one_of(errs, &path.child("reinvocationPolicy"), p, REINVOCATION_POLICIES);
    }
    client(errs, &path.child("clientConfig"), hook.at("clientConfig"));
    match_conditions(errs, &path.child("matchConditions"), hook.list("matchConditions"), false);
}

fn has_known_versions(object: &Value) -> bool {
    let known = |h: &Value| h.strings("admissionReviewVersions").any(|v| REVIEW_VERSIONS.contains(&v));
    object.list("webhooks").iter().all(|h| h.list("admissionReviewVersions").is_empty() || known(h))
}

fn has_unique_names(object: &Value) -> bool {
    let list = object.list("webhooks");
    !list.iter().enumerate().any(|(i, h)| list[..i].iter().any(|o| o.text("name") == h.text("name")))
}

impl Webhooks {
    /// What an old object got away with, a new one may keep.
    fn validate(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        let mut errs = vec![];
        let (strict, unique) = (old.is_none_or(has_known_versions), old.is_none_or(has_unique_names));
        let list = object.list("webhooks");
        for (i, hook) in list.iter().enumerate() {
            let (at, name) = (Path::new("webhooks").index(i), hook.text("name"));
            webhook(&mut errs, &at, hook, self.mutating);
            review_versions(&mut errs, &at.child("admissionReviewVersions"), hook, strict);
            if unique && !name.is_empty() && list[..i].iter().any(|o| o.text("name") == name) {
                errs.push(Error::duplicate(&at.child("name"), name));
            }
        }
        errs
    }
}

/// The definition of one of the two kinds.
pub fn def(kind: &'static str, plural: &'static str, mutating: bool) -> ResourceDef {
    ResourceDef::builtin(GROUP, "v1", kind, plural, Scope::Cluster, COLUMNS, Webhooks { mutating })
        .metadata_checks(&[metadata::GENERAL_WHOLE], &[])
        .with_generation()
        .wait_for_caches()
        .conditional_update_only()
        .category(&["api-extensions"])
}

impl Hooks for Webhooks {
    fn default(&self, _version: &str, object: &mut Value) {
        for hook in list_mut(object, "webhooks") {
            rules::default_opt_text(hook, "failurePolicy", "Fail");
            rules::default_opt_text(hook, "matchPolicy", "Equivalent");
            set_default(hook, "namespaceSelector", || json!({}));
            set_default(hook, "objectSelector", || json!({}));
            set_default(hook, "timeoutSeconds", || 10.into());
            if self.mutating {
                rules::default_opt_text(hook, "reinvocationPolicy", "Never");
            }
            default_rules(hook, "rules");
            if let Some(service) = hook.pointer_mut("/clientConfig/service").filter(|s| s.is_object()) {
                set_default(service, "port", || 443.into());
            }
        }
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = self.validate(object, None);
        unreserved_name(&mut errs, object);
        errs
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        self.validate(new, Some(old))
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings = name_warnings(new, old);
        for (i, hook) in new.list("webhooks").iter().enumerate() {
            let path = Path::new("webhooks").index(i).child("rules");
            warnings.extend(rule_warnings(&path, hook.list("rules")));
        }
        warnings
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), object.list("webhooks").len().into(), age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        admissionregistration::mutatingwebhookconfigurations::def,
        shared::testing::{create_errors, created, row},
    };
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn fills_in_defaults_and_prints_a_row() {
        let w = json!({"webhooks": [{"name": "a.b.c", "rules": [{}], "clientConfig": {"service": {}}}]});
        expect![[r#"
            {
              "webhooks": [
                {
                  "clientConfig": {
                    "service": {
                      "port": 443
                    }
                  },
                  "failurePolicy": "Fail",
                  "matchPolicy": "Equivalent",
                  "name": "a.b.c",
                  "namespaceSelector": {},
                  "objectSelector": {},
                  "reinvocationPolicy": "Never",
                  "rules": [
                    {
                      "scope": "*"
                    }
                  ],
                  "timeoutSeconds": 10
                }
              ]
            }"#]]
        .assert_eq(&created(&def(), w.clone()));
        assert_eq!(row(&def(), &w), " | 1 | <unknown>");
    }

    #[test]
    fn rejects_invalid_fields() {
        let w = json!({"webhooks": [{"name": "a", "sideEffects": "Some", "timeoutSeconds": 31, "admissionReviewVersions": ["v2"],
            "rules": [{"operations": ["*", "X"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["*", "pods"]}],
            "clientConfig": {"url": "http://u@h/?q#f"}}]});
        expect![[r#"
            webhooks[0].name: Invalid value: "a": should be a domain with at least three segments separated by dots
            webhooks[0].rules[0].operations: Invalid value: ["*","X"]: if '*' is present, must not specify other operations
            webhooks[0].rules[0].operations[1]: Unsupported value: "X": supported values: "*", "CONNECT", "CREATE", "DELETE", "UPDATE"
            webhooks[0].rules[0].resources: Invalid value: ["*","pods"]: if '*' is present, must not specify other resources without subresources
            webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"
            webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds
            webhooks[0].clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]
            webhooks[0].clientConfig.url: Invalid value: "u": user information is not permitted in the URL
            webhooks[0].clientConfig.url: Invalid value: "f": fragments are not permitted in the URL
            webhooks[0].clientConfig.url: Invalid value: "q": query parameters are not permitted in the URL
            webhooks[0].admissionReviewVersions: Invalid value: ["v2"]: must include at least one of v1, v1beta1"#]]
        .assert_eq(&create_errors(&def(), w));
    }
}
