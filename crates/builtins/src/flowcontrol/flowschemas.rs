//! FlowSchemas.

use super::fixed;
use crate::shared::{
    check, metadata,
    table::{age, name},
    value::{Fields, default_int, ensure_object, put},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, semantic_equal,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "PriorityLevel",
        "string",
        0,
        "`name` is the name of the priority level configuration being referenced Required.",
    ),
    Column::new(
        "MatchingPrecedence",
        "string",
        0,
        "`matchingPrecedence` is used to choose among the FlowSchemas that match a given request. The chosen FlowSchema is among those with the numerically lowest (which we take to be logically highest) MatchingPrecedence.  Each MatchingPrecedence value must be ranged in [1,10000]. Note that if the precedence is not specified, it will be set to 1000 as default.",
    ),
    Column::new(
        "DistinguisherMethod",
        "string",
        0,
        "`distinguisherMethod` defines how to compute the flow distinguisher for requests that match this schema. `nil` specifies that the distinguisher is disabled and thus will always be the empty string.",
    ),
    age_column(),
    Column::new("MissingPL", "string", 0, "references a broken or non-existent PriorityLevelConfiguration"),
];

const VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
const MAX_PRECEDENCE: i64 = 10_000;

struct FlowSchemas;

fn wild(rule: &Value, field: &str) -> bool {
    rule.strings(field).any(|v| v == "*")
}

fn verbs(errs: &mut ErrorList, path: &Path, rule: &Value) {
    let (at, list) = (path.child("verbs"), rule.list("verbs"));
    if list.is_empty() {
        errs.push(Error::required(&at, "verbs must contain at least one value"));
    } else if wild(rule, "verbs") {
        alone(errs, path, rule, "verbs", "verbs");
    } else if rule.strings("verbs").any(|v| !VERBS.contains(&v)) {
        errs.push(Error::not_supported(&at, list.to_vec(), VERBS));
    }
}

/// `*` excludes other entries.
fn alone(errs: &mut ErrorList, path: &Path, rule: &Value, field: &str, what: &str) {
    if rule.list(field).len() > 1 && wild(rule, field) {
        let text = format!("if '*' is present, must not specify other {what}");
        errs.push(Error::invalid(&path.child(field), rule.at(field).clone(), text));
    }
}

fn resource_rule(errs: &mut ErrorList, path: &Path, rule: &Value) {
    verbs(errs, path, rule);
    for (field, one, many) in
        [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")]
    {
        if rule.list(field).is_empty() {
            errs.push(Error::required(
                &path.child(field),
                format!("resource rules must supply at least one {one}"),
            ));
        }
        alone(errs, path, rule, field, many);
    }
    let at = path.child("namespaces");
    if rule.list("namespaces").is_empty() && !rule.flag("clusterScope") {
        let text = "resource rules that are not cluster scoped must supply at least one namespace";
        errs.push(Error::required(&at, text));
    } else if wild(rule, "namespaces") {
        alone(errs, path, rule, "namespaces", "namespaces");
    } else {
        for (i, ns) in rule.strings("namespaces").enumerate() {
            for m in kaji_meta::validation::is_dns1123_label(ns) {
                let text = format!("each member of this list must be '*' or a DNS-1123 label; {m}");
                errs.push(Error::invalid(&at.index(i), ns, text));
            }
        }
    }
}

fn url_problem(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    if url.is_empty() {
        Some("must not be empty")
    } else if url == "/" {
        None
    } else if !url.starts_with('/') {
        Some("must start with slash")
    } else if url.contains(' ') {
        Some("must not contain white-space")
    } else if url.contains("//") {
        Some("must not contain double slash")
    } else if stars > 1 || (stars == 1 && !url.ends_with("/*")) {
        Some("wildcard can only do suffix matching")
    } else {
        None
    }
}

fn url_rule(errs: &mut ErrorList, path: &Path, rule: &Value) {
    verbs(errs, path, rule);
    let at = path.child("nonResourceURLs");
    if rule.list("nonResourceURLs").is_empty() {
        errs.push(Error::required(&at, "nonResourceURLs must contain at least one value"));
    } else if wild(rule, "nonResourceURLs") {
        alone(errs, path, rule, "nonResourceURLs", "non-resource URLs");
    } else {
        for (i, url) in rule.strings("nonResourceURLs").enumerate() {
            if let Some(problem) = url_problem(url) {
                errs.push(Error::invalid(&at.index(i), url, problem));
            }
        }
    }
}

fn subject(errs: &mut ErrorList, path: &Path, subject: &Value) {
    let kinds = [("serviceAccount", "ServiceAccount"), ("user", "User"), ("group", "Group")];
    let kind = subject.text("kind");
    let Some((own, _)) = kinds.iter().find(|(_, k)| *k == kind) else {
        errs.push(Error::not_supported(&path.child("kind"), kind, &["Group", "ServiceAccount", "User"]));
        return;
    };
    let (at, details) = (path.child(own), subject.at(own));
    if details.is_null() {
        errs.push(Error::required(&at, format!("{own} is required when subject kind is '{kind}'")));
    } else {
        let name = details.text("name");
        check::required(errs, &at.child("name"), name);
        if kind == "ServiceAccount" {
            if !name.is_empty() && name != "*" {
                check::dns_subdomain(errs, &at.child("name"), name);
            }
            match details.text("namespace") {
                "" => {
                    let text = "must specify namespace for service account";
                    errs.push(Error::required(&at.child("namespace"), text));
                }
                ns => check::dns_label(errs, &at.child("namespace"), ns),
            }
        }
    }
    for (field, k) in kinds.iter().filter(|(f, _)| f != own && subject.has(f)) {
        let text = format!("{field} is forbidden when subject kind is not '{k}'");
        errs.push(Error::forbidden(&path.child(field), text));
    }
}

fn rule(errs: &mut ErrorList, path: &Path, rule: &Value) {
    if rule.list("subjects").is_empty() {
        errs.push(Error::required(&path.child("subjects"), "subjects must contain at least one value"));
    }
    rule.list("subjects")
        .iter()
        .enumerate()
        .for_each(|(i, s)| subject(errs, &path.child("subjects").index(i), s));
    let (resources, urls) = (rule.list("resourceRules"), rule.list("nonResourceRules"));
    if resources.is_empty() && urls.is_empty() {
        let text = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errs.push(Error::required(path, text));
    }
    for (i, r) in resources.iter().enumerate() {
        resource_rule(errs, &path.child("resourceRules").index(i), r);
    }
    for (i, r) in urls.iter().enumerate() {
        url_rule(errs, &path.child("nonResourceRules").index(i), r);
    }
}

/// Conditions: typed, and no type twice.
pub(super) fn condition_types(errs: &mut ErrorList, object: &Value) {
    let list = object.at("status").list("conditions");
    for (i, c) in list.iter().enumerate() {
        let (at, ty) = (Path::new("status").child("conditions").index(i).child("type"), c.text("type"));
        if list[..i].iter().any(|o| o.text("type") == ty) {
            errs.push(Error::duplicate(&at, ty));
        }
        check::required(errs, &at, ty);
    }
}

fn validate(object: &Value) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    let (precedence, at) = (spec.int("matchingPrecedence"), path.child("matchingPrecedence"));
    let mut bad = |text: &str| errs.push(Error::invalid(&at, precedence, text));
    if precedence <= 0 {
        bad("must be a positive value");
    }
    if precedence > MAX_PRECEDENCE {
        bad("must not be greater than 10000");
    }
    if precedence == 1 && object::name(object) != "exempt" {
        bad("only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = spec.at("distinguisherMethod");
    if !method.is_null() && !["ByNamespace", "ByUser"].contains(&method.text("type")) {
        let at = path.child("distinguisherMethod").child("type");
        let shown = json!({"Type": method.text("type")});
        errs.push(Error::not_supported(&at, shown, &["ByNamespace", "ByUser"]));
    }
    let (level, at) = (
        spec.at("priorityLevelConfiguration").text("name"),
        path.child("priorityLevelConfiguration").child("name"),
    );
    if level.is_empty() {
        errs.push(Error::required(&at, "must reference a priority level"));
    } else {
        check::dns_subdomain(&mut errs, &at, level);
    }
    let rules = spec.list("rules");
    rules.iter().enumerate().for_each(|(i, r)| rule(&mut errs, &path.child("rules").index(i), r));
    if let Some(fixed) = fixed::flow_schema(object::name(object))
        && !semantic_equal(spec, &fixed)
    {
        let text = format!("spec of '{}' must equal the fixed value", object::name(object));
        errs.push(check::invalid_struct(&path, "io.k8s.api.flowcontrol.v1.FlowSchemaSpec", spec, text));
    }
    errs
}

impl Hooks for FlowSchemas {
    fn default(&self, _version: &str, object: &mut Value) {
        default_int(ensure_object(object, "spec"), "matchingPrecedence", 1000);
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        fixed::keep_meta(ctx, new, old);
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            condition_types(&mut errs, new);
            return errs;
        }
        validate(new)
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        crate::shared::rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let spec = object.at("spec");
        let dangling = crate::shared::conditions::find(object.at("status"), "Dangling");
        vec![
            name(object),
            spec.at("priorityLevelConfiguration").text("name").into(),
            spec.int("matchingPrecedence").into(),
            spec.at("distinguisherMethod").opt_text("type").unwrap_or("<none>").into(),
            age(object, now),
            dangling.map_or("?", |c| c.text("status")).into(),
        ]
    }
}

/// The definition of FlowSchemas.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        fixed::GROUP,
        "v1",
        "FlowSchema",
        "flowschemas",
        Scope::Cluster,
        COLUMNS,
        FlowSchemas,
    )
    .metadata_checks(&[metadata::WHOLE], &[])
    .with_generation()
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row};
    use expect_test::expect;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let bad = json!({"metadata": {"name": "f"}, "spec": {"matchingPrecedence": 1, "rules": [{}, {"subjects": [{"kind": "User", "group": {"name": "g"}}],
            "nonResourceRules": [{"verbs": ["*", "get"], "nonResourceURLs": ["x"]}], "resourceRules": [{"verbs": ["x"], "apiGroups": [""], "resources": ["*", "a"]}]}]}});
        expect![[r#"
            spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1
            spec.priorityLevelConfiguration.name: Required value: must reference a priority level
            spec.rules[0].subjects: Required value: subjects must contain at least one value
            spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty
            spec.rules[1].subjects[0].user: Required value: user is required when subject kind is 'User'
            spec.rules[1].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'
            spec.rules[1].resourceRules[0].verbs: Unsupported value: ["x"]: supported values: "create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"
            spec.rules[1].resourceRules[0].resources: Invalid value: ["*","a"]: if '*' is present, must not specify other resources
            spec.rules[1].resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace
            spec.rules[1].nonResourceRules[0].verbs: Invalid value: ["*","get"]: if '*' is present, must not specify other verbs
            spec.rules[1].nonResourceRules[0].nonResourceURLs[0]: Invalid value: "x": must start with slash"#]]
        .assert_eq(&create_errors(&def(), bad));
        let exempt = json!({"metadata": {"name": "exempt"}, "spec": fixed::flow_schema("exempt")});
        assert_eq!(create_errors(&def(), exempt.clone()), "");
        assert_eq!(row(&def(), &exempt), "exempt | exempt | 1 | <none> | <unknown> | ?");
    }
}
