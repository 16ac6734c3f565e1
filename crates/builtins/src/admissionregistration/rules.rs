//! What webhooks and policies share: the rules that select requests, match conditions, client configurations.

use crate::shared::{
    check, rules,
    value::{Fields, list_mut, set_default},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, validation,
};
use serde_json::{Value, json};

/// The API group.
pub const GROUP: &str = "admissionregistration.k8s.io";
/// What may be done about failures, sorted.
pub const FAILURE_POLICIES: &[&str] = &["Fail", "Ignore"];
/// How rules are matched, sorted.
pub const MATCH_POLICIES: &[&str] = &["Equivalent", "Exact"];
/// When a webhook or mutation is called again, sorted.
pub const REINVOCATION_POLICIES: &[&str] = &["IfNeeded", "Never"];

/// The end of names that upstream reserves for configurations in files.
const STATIC: &str = ".static.k8s.io";

fn reserved(object: &Value) -> Option<String> {
    let text = || {
        format!(
            "names ending with {STATIC:?} are reserved for static manifest-based configurations and cannot be managed via the API"
        )
    };
    object::name(object).ends_with(STATIC).then(text)
}

/// A new object has no reserved name.
pub fn unreserved_name(errs: &mut ErrorList, object: &Value) {
    if let Some(text) = reserved(object) {
        let path = Path::new("metadata").child("name");
        errs.push(Error::invalid(&path, object::name(object), text));
    }
}

/// What an update is warned of: an object from before the name was reserved keeps it.
pub fn name_warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let text = old.and_then(|_| reserved(object));
    text.into_iter().map(|text| format!("metadata.name: {text}")).collect()
}

/// Resources that admission webhooks are never about, as the admission plugins have them. Source: `exclusion.Excluded`.
const EXCLUDED: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Warnings of a webhook's rules that name a resource that no webhook is about. A rule with `*` may mean others.
pub fn rule_warnings(path: &Path, rules: &[Value]) -> Vec<String> {
    let mut warnings = vec![];
    for (i, rule) in rules.iter().enumerate() {
        if rule.strings("apiGroups").chain(rule.strings("resources")).any(|name| name == "*") {
            continue;
        }
        let mut named: Vec<(&str, &str)> = vec![];
        for group in rule.strings("apiGroups") {
            for resource in rule.strings("resources") {
                let pair = (group, resource);
                if EXCLUDED.contains(&pair) && !named.contains(&pair) {
                    named.push(pair);
                }
            }
        }
        warnings.extend(named.into_iter().map(|(group, resource)| {
            let at = path.index(i);
            format!(
                "{at}: {resource}.{group} is excluded from admission webhooks; this rule will have no effect"
            )
        }));
    }
    warnings
}

fn wildcard_alone(errs: &mut ErrorList, path: &Path, rule: &Value, field: &str, what: &str) {
    let list = rule.list(field);
    if list.is_empty() {
        errs.push(Error::required(&path.child(field), ""));
    }
    if list.len() > 1 && rule.strings(field).any(|v| v == "*") {
        let text = format!("if '*' is present, must not specify other {what}");
        errs.push(Error::invalid(&path.child(field), list.to_vec(), text));
    }
}

fn resources(errs: &mut ErrorList, path: &Path, rule: &Value) {
    let all: Vec<&str> = rule.strings("resources").collect();
    if all.is_empty() {
        errs.push(Error::required(path, ""));
    }
    let (mut any_sub, mut any_resource): (Vec<&str>, Vec<&str>) = (vec![], vec![]);
    let mut plain = false;
    for (i, r) in all.iter().enumerate() {
        if r.is_empty() {
            errs.push(Error::required(&path.index(i), ""));
            continue;
        }
        let Some((resource, sub)) = r.split_once('/') else {
            plain = *r != "*";
            continue;
        };
        if any_sub.contains(&resource) {
            let text = format!("if '{resource}/*' is present, must not specify {r}");
            errs.push(Error::invalid(&path.index(i), *r, text));
        }
        if any_resource.contains(&sub) {
            let text = format!("if '*/{sub}' is present, must not specify {r}");
            errs.push(Error::invalid(&path.index(i), *r, text));
        }
        if sub == "*" {
            any_sub.push(resource);
        }
        if resource == "*" {
            any_resource.push(sub);
        }
    }
    let shown = || all.iter().map(|s| Value::from(*s)).collect::<Vec<_>>();
    if all.len() > 1 && all.contains(&"*/*") {
        errs.push(Error::invalid(path, shown(), "if '*/*' is present, must not specify other resources"));
    }
    if all.contains(&"*") && plain {
        let text = "if '*' is present, must not specify other resources without subresources";
        errs.push(Error::invalid(path, shown(), text));
    }
}

/// Operations, groups, versions and resources of a rule.
pub fn rule(errs: &mut ErrorList, path: &Path, rule: &Value) {
    wildcard_alone(errs, path, rule, "operations", "operations");
    for (i, o) in rule.strings("operations").enumerate() {
        let valid = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
        check::one_of(errs, &path.child("operations").index(i), o, &valid);
    }
    wildcard_alone(errs, path, rule, "apiGroups", "API groups");
    wildcard_alone(errs, path, rule, "apiVersions", "API versions");
    for (i, v) in rule.strings("apiVersions").enumerate() {
        check::required(errs, &path.child("apiVersions").index(i), v);
    }
    resources(errs, &path.child("resources"), rule);
    if let Some(scope) = rule.opt_text("scope") {
        check::one_of(errs, &path.child("scope"), scope, &["*", "Cluster", "Namespaced"]);
    }
}

/// Where a webhook is: a URL or a service.
pub fn client(errs: &mut ErrorList, path: &Path, config: &Value) {
    match (config.opt_text("url"), config.has("service")) {
        (Some(u), false) => errs.extend(url(&path.child("url"), u)),
        (None, true) => service(errs, &path.child("service"), config.at("service")),
        _ => errs.push(Error::required(path, "exactly one of url or service is required")),
    }
}

/// An absolute https URL without user, query or fragment.
pub fn url(path: &Path, text: &str) -> ErrorList {
    const FORM: &str = "; desired format: https://host[/path]";
    let mut errs = vec![];
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or("") };
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
    let mut bad = |value: &str, detail: String| errs.push(Error::invalid(path, value, detail));
    if scheme != "https" {
        bad(scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        bad(host, format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        bad(user, "user information is not permitted in the URL".into());
    }
    if !fragment.is_empty() {
        bad(fragment, "fragments are not permitted in the URL".into());
    }
    if !query.is_empty() {
        bad(query, "query parameters are not permitted in the URL".into());
    }
    errs
}

/// A reference to a service that is a webhook.
pub fn service(errs: &mut ErrorList, at: &Path, service: &Value) {
    // Upstream mixes the two up.
    check::required(errs, &at.child("name"), service.text("namespace"));
    check::required(errs, &at.child("namespace"), service.text("name"));
    let port = service.opt_int("port").unwrap_or(443);
    let bad = validation::is_valid_port_num(port);
    if !bad.is_empty() {
        errs.push(Error::invalid(&at.child("port"), port, format!("port is not valid: {}", bad.join(", "))));
    }
    let (path, text) = (at.child("path"), service.text("path"));
    if text.is_empty() || text == "/" {
        return;
    }
    if text == "//" {
        errs.push(Error::invalid(&path, text, "segment[0] may not be empty"));
        return;
    }
    if !text.starts_with('/') {
        errs.push(Error::invalid(&path, text, "must start with a '/'"));
    }
    let mut rest = text.chars();
    rest.next();
    let rest = rest.as_str();
    for (i, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errs.push(Error::invalid(&path, text, format!("segment[{i}] may not be empty")));
            continue;
        }
        for m in validation::is_dns1123_subdomain(step) {
            errs.push(Error::invalid(&path, text, format!("segment[{i}]: {m}")));
        }
    }
}

/// A rule's scope is `*` by default.
pub fn default_rules(owner: &mut Value, field: &str) {
    list_mut(owner, field).iter_mut().for_each(|r| rules::default_opt_text(r, "scope", "*"));
}

/// Defaults of what a policy or binding matches.
pub fn default_match(owner: &mut Value, field: &str) {
    let Some(m) = owner.get_mut(field).filter(|m| m.is_object()) else { return };
    rules::default_opt_text(m, "matchPolicy", "Equivalent");
    set_default(m, "namespaceSelector", || json!({}));
    set_default(m, "objectSelector", || json!({}));
    default_rules(m, "resourceRules");
    default_rules(m, "excludeResourceRules");
}

/// What a policy or binding matches.
pub fn match_resources(errs: &mut ErrorList, path: &Path, m: &Value) {
    if m.is_null() {
        return;
    }
    match m.opt_text("matchPolicy") {
        None => errs.push(Error::required(&path.child("matchPolicy"), "")),
        Some(p) => check::one_of(errs, &path.child("matchPolicy"), p, MATCH_POLICIES),
    }
    for f in ["namespaceSelector", "objectSelector"] {
        if m.has(f) {
            errs.extend(validation::validate_label_selector(m.at(f), &path.child(f)));
        } else {
            errs.push(Error::required(&path.child(f), ""));
        }
    }
    for f in ["resourceRules", "excludeResourceRules"] {
        for (i, r) in m.list(f).iter().enumerate() {
            let at = path.child(f).index(i);
            let names: Vec<&str> = r.strings("resourceNames").collect();
            for (j, n) in names.iter().enumerate() {
                let at = at.child("resourceNames").index(j);
                check::each(errs, &at, *n, validation::path_segment_name(n, false));
                if names[..j].contains(n) {
                    errs.push(Error::duplicate(&at, *n));
                }
            }
            rule(errs, &at, r);
        }
    }
}

/// The kind of parameters.
pub fn param_kind(errs: &mut ErrorList, path: &Path, kind: &Value) {
    let (version, at) = (kind.text("apiVersion"), path.child("apiVersion"));
    if version.is_empty() {
        errs.push(Error::required(&at, ""));
    } else {
        match version.split('/').collect::<Vec<_>>()[..] {
            [v] => api_version(errs, &at, version, "", v),
            [g, v] => api_version(errs, &at, version, g, v),
            _ => {
                errs.push(Error::invalid(&at, version, format!("unexpected GroupVersion string: {version}")))
            }
        }
    }
    let (name, at) = (kind.text("kind"), path.child("kind"));
    if name.is_empty() {
        errs.push(Error::required(&at, ""));
        return;
    }
    let bad = validation::is_dns1035_label(&name.to_lowercase());
    if !bad.is_empty() {
        let text = format!("may have mixed case, but should otherwise match: {}", bad.join(","));
        errs.push(Error::invalid(&at, name, text));
    }
}

fn api_version(errs: &mut ErrorList, at: &Path, whole: &str, group: &str, version: &str) {
    if !group.is_empty() {
        let bad = validation::is_dns1123_subdomain(group);
        if !bad.is_empty() {
            errs.push(Error::invalid(at, group, bad.join(",")));
        }
    }
    if version.is_empty() {
        errs.push(Error::invalid(at, whole, "version must be specified"));
        return;
    }
    let bad = validation::is_dns1035_label(version);
    if !bad.is_empty() {
        errs.push(Error::invalid(at, version, bad.join(",")));
    }
}

/// The reference of a binding to its policy's parameters.
pub fn param_ref(errs: &mut ErrorList, path: &Path, r: &Value) {
    if r.is_null() {
        return;
    }
    const BOTH: &str = "name and selector are mutually exclusive";
    let (name, selected) = (r.text("name"), r.has("selector"));
    if !name.is_empty() {
        check::each(errs, &path.child("name"), name, validation::path_segment_name(name, false));
        rules::frozen(errs, &path.child("name"), !selected, BOTH);
    }
    if selected {
        errs.extend(validation::validate_label_selector(r.at("selector"), &path.child("selector")));
        rules::frozen(errs, &path.child("selector"), name.is_empty(), BOTH);
    } else if name.is_empty() {
        errs.push(Error::required(path, "one of name or selector must be specified"));
    }
    let (at, action) = (path.child("parameterNotFoundAction"), r.text("parameterNotFoundAction"));
    check::required_one_of(errs, &at, action, &["Deny", "Allow"]);
}

/// `group/version/Kind` of a policy's parameters.
pub fn param_kind_cell(object: &Value) -> String {
    let kind = object.at("spec").at("paramKind");
    if kind.is_null() {
        return "<unset>".into();
    }
    format!("{}/{}", kind.text("apiVersion"), kind.text("kind"))
}

/// The parameters a binding refers to.
pub fn param_ref_cell(object: &Value) -> String {
    let r = object.at("spec").at("paramRef");
    match (r.text("name"), r.text("namespace")) {
        ("", _) if r.has("selector") => r.at("selector").to_string(),
        ("", _) => "<unset>".into(),
        (name, "") => format!("*/{name}"),
        (name, namespace) => format!("{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        admissionregistration::{defs, validatingwebhookconfigurations},
        shared::testing::{create_errors, deps, update_errors, update_warnings, warnings},
    };
    use expect_test::expect;
    use serde_json::json;

    const RESERVED: &str = r#"names ending with ".static.k8s.io" are reserved for static manifest-based configurations and cannot be managed via the API"#;

    #[test]
    fn refuses_new_objects_of_reserved_names_and_warns_of_old_ones() {
        let defs = defs(&deps());
        assert_eq!(defs.len(), 6);
        for def in &defs {
            let named = |name: &str| json!({"metadata": {"name": name, "resourceVersion": "1"}});
            let (reserved, free) = (named("a.static.k8s.io"), named("static.k8s.io"));
            let error = format!(r#"metadata.name: Invalid value: "a.static.k8s.io": {RESERVED}"#);
            assert!(create_errors(def, reserved.clone()).ends_with(&error), "{def:?}");
            assert!(!create_errors(def, free.clone()).contains("static.k8s.io"));
            assert!(!update_errors(def, "", reserved.clone(), reserved.clone()).contains(RESERVED));
            assert_eq!(warnings(def, &reserved), "");
            assert_eq!(update_warnings(def, &reserved, &reserved), format!("metadata.name: {RESERVED}"));
            assert_eq!(update_warnings(def, &free, &free), "");
        }
    }

    #[test]
    fn warns_of_rules_that_never_match() {
        let rule = |groups: &[&str], resources: &[&str]| json!({"apiGroups": groups, "resources": resources});
        let object = json!({"webhooks": [
            {"rules": [rule(&["*"], &["tokenreviews"]), rule(&["authentication.k8s.io"], &["*"])]},
            {"rules": [
                rule(&["apps"], &["tokenreviews"]),
                rule(
                    &["authorization.k8s.io", "authentication.k8s.io"],
                    &["tokenreviews", "pods", "subjectaccessreviews", "tokenreviews"],
                ),
            ]},
        ]});
        let def = validatingwebhookconfigurations::def();
        expect![[r"
            webhooks[1].rules[1]: subjectaccessreviews.authorization.k8s.io is excluded from admission webhooks; this rule will have no effect
            webhooks[1].rules[1]: tokenreviews.authentication.k8s.io is excluded from admission webhooks; this rule will have no effect"]]
        .assert_eq(&warnings(&def, &object));
        assert_eq!(warnings(&def, &object), update_warnings(&def, &object, &object));
    }
}
