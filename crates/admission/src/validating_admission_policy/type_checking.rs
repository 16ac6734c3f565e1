//! Type checking of the expressions of a ValidatingAdmissionPolicy against the types that it matches. Warnings go to the
//! policy's status and have no effect on its evaluation.
//!
//! Invariant: a generation is checked once; `observedGeneration` says which one was.
//!
//! Sources: apiserver `policy/validating/typechecking.go`, `pkg/controller/validatingadmissionpolicystatus`.

use bytes::Bytes;
use futures_util::StreamExt;
use kaji_cel::{
    CompileError, Decl, DeclKind, Env, Field, ListKind,
    admission::{self, Setting},
};
use kaji_engine::{ApiRequest, Body, Engine};
use kaji_meta::{GroupResource, GroupVersionKind, object};
use kaji_resource::{ObjectReader, UserInfo, Verb};
use kaji_schema::{Format, ListKind as SchemaList, Props, Schema, SchemaRef, Type};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
};
use tokio::sync::watch;

/// How many kinds a policy is checked against.
const MAX_KINDS: usize = 10;
const POLICIES: &str = "validatingadmissionpolicies";
/// The user that writes the status, and the name of the field manager.
const USER: &str = "system:serviceaccount:kube-system:validatingadmissionpolicy-status-controller";
const MANAGER: &str = "validatingadmissionpolicy-status";

/// A kind of objects with what is known of them.
type Known = (GroupVersionKind, Decl);

/// What a schema says of values, as expressions know them. `above` are the schemas around it: what contains itself may be
/// anything from there on.
fn decl(schema: &SchemaRef, above: &mut Vec<*const Schema>) -> Decl {
    let s = schema.get();
    if above.contains(&std::ptr::from_ref(s)) {
        return Decl::any();
    }
    above.push(s);
    let decl = match s.ty {
        Type::Any | Type::SchemaOr => Decl::any(),
        Type::IntOrString | Type::Quantity => Decl::int_or_string(None),
        Type::String | Type::Duration => Decl::string(format(s.format), None, None),
        Type::Time | Type::MicroTime => Decl::string("date-time", None, None),
        Type::Bytes => Decl::string("byte", None, None),
        Type::Integer => Decl::int(),
        Type::Number => Decl::double(),
        Type::Boolean => Decl::bool(),
        Type::Array => {
            let elem = s.items.as_ref().map_or_else(Decl::any, |items| decl(items, above));
            let kind = match &s.list {
                SchemaList::Atomic => ListKind::Atomic,
                SchemaList::Set => ListKind::Set,
                SchemaList::Map { keys } => ListKind::Map(keys.iter().map(ToString::to_string).collect()),
            };
            Decl::list(elem, kind, None)
        }
        Type::Object => match (&s.additional, &s.properties) {
            (Some(values), _) => Decl::map(decl(values, above), None),
            (None, properties) => {
                let list = properties.iter().flat_map(Props::iter);
                Decl::object(list.map(|p| (p.name.to_string(), decl(&p.schema, above), false)))
            }
        },
    };
    above.pop();
    decl.nullable(s.nullable)
}

fn format(format: Format) -> &'static str {
    match format {
        Format::Byte => "byte",
        Format::Date => "date",
        Format::DateTime => "date-time",
        Format::Duration => "duration",
        _ => "",
    }
}

/// A whole object of a kind. Custom resources need not describe what every object has.
fn whole(schema: &SchemaRef, kind: &str) -> Decl {
    let mut out = decl(schema, &mut vec![]);
    if let DeclKind::Object { fields, .. } = &mut out.kind {
        let text = || Decl::string("", None, None);
        let names = ["name", "generateName"].map(|name| (name.to_owned(), text(), false));
        let always = [("apiVersion", text()), ("kind", text()), ("metadata", Decl::object(names))];
        for (name, decl) in always {
            let field = || Field { name: name.into(), decl: decl.into() };
            let empty =
                |f: &Field| matches!(&f.decl.kind, DeclKind::Object { fields, .. } if fields.is_empty());
            if fields.get(name).is_none_or(empty) {
                fields.insert(name.into(), field());
            }
        }
    }
    out.named(kind)
}

fn strings<'a>(rule: &'a Value, key: &str) -> Vec<&'a str> {
    let mut list: Vec<&str> = rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    list.sort_unstable();
    list
}

/// The kinds that a policy is about, as far as it names them; `kind` gives that of a resource.
fn kinds(
    spec: &Value,
    kind: &dyn Fn(&str, &str, &str) -> Option<GroupVersionKind>,
) -> BTreeSet<GroupVersionKind> {
    let mut found = BTreeSet::new();
    for rule in spec["matchConstraints"]["resourceRules"].as_array().into_iter().flatten() {
        let (groups, versions) = (strings(rule, "apiGroups"), strings(rule, "apiVersions"));
        if groups.iter().chain(&versions).any(|name| name.contains('*')) {
            continue;
        }
        let resources = strings(rule, "resources").into_iter().filter(|r| !r.contains(['*', '/']));
        let resources: Vec<&str> = resources.collect();
        let all = groups.iter().flat_map(|g| versions.iter().map(move |v| (*g, *v)));
        let all = all.flat_map(|(g, v)| resources.iter().filter_map(move |r| kind(g, v, r)));
        for (count, kind) in all.enumerate() {
            found.insert(kind);
            if count + 1 == MAX_KINDS {
                return found;
            }
        }
    }
    found
}

/// Checks the expressions of a policy against the kinds that it is about; `params` are those of its parameters.
fn check(spec: &Value, kinds: &[Known], params: Option<&Decl>) -> Vec<Value> {
    let envs: Vec<(&GroupVersionKind, Env)> =
        kinds.iter().map(|(kind, object)| (kind, env(spec, object, params))).collect();
    let mut warnings = vec![];
    for (i, validation) in spec["validations"].as_array().into_iter().flatten().enumerate() {
        for field in ["expression", "messageExpression"] {
            let Some(text) = validation[field].as_str().filter(|text| !text.is_empty()) else { continue };
            let found = envs.iter().filter_map(|(kind, env)| match env.compile(text) {
                Err(CompileError::Issues(issues)) => Some(format!("{kind}: {issues}\n")),
                _ => None,
            });
            let found: Vec<String> = found.collect();
            if !found.is_empty() {
                let field = format!("spec.validations[{i}].{field}");
                warnings.push(json!({"fieldRef": field, "warning": found.join("\n")}));
            }
        }
    }
    warnings
}

fn env(spec: &Value, object: &Decl, params: Option<&Decl>) -> Env {
    let setting = Setting {
        params: spec["paramKind"].is_object(),
        authorizer: true,
        variables: true,
        making_objects: false,
    };
    let params = params.cloned().unwrap_or_else(Decl::any);
    // Upstream checks types without this variable.
    let mut env = admission::env_of(setting, object.clone(), params).without("authorizer.requestResource");
    for variable in spec["variables"].as_array().into_iter().flatten() {
        let text = |key: &str| variable[key].as_str().unwrap_or("");
        // Its error was reported when it was written; here it may be anything.
        let _ = admission::name(&mut env, text("name"), text("expression"));
    }
    env
}

/// The status of a policy that was checked.
fn status(policy: &Value, engine: &Engine) -> Value {
    let (spec, registry) = (&policy["spec"], engine.registry());
    let served = |group: &str, version: &str, resource: &str| {
        let resource = registry.lookup(group, version, resource)?;
        Some(resource.def.gvk(version))
    };
    let of_kind = |kind: &GroupVersionKind| {
        let resource = registry.by_kind(&kind.group, &kind.version, &kind.kind)?;
        Some(whole(&resource.def.version(&kind.version)?.schema, &kind.kind))
    };
    let kinds = kinds(spec, &served).into_iter().filter_map(|kind| of_kind(&kind).map(|decl| (kind, decl)));
    let kinds: Vec<Known> = kinds.collect();
    let params = crate::policies::params::kind(&spec["paramKind"]).and_then(|kind| of_kind(&kind));
    let warnings = check(spec, &kinds, params.as_ref());
    let checking = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
    json!({"observedGeneration": object::generation(policy), "typeChecking": checking})
}

fn request(verb: Verb, name: &str, query: &[(&str, &str)], body: &Value) -> ApiRequest {
    let apply = verb == Verb::Patch;
    let policies = GroupResource::new(crate::policies::GROUP, POLICIES);
    ApiRequest {
        name: name.into(),
        subresource: if apply { "status".into() } else { String::new() },
        query: query.iter().copied().collect(),
        content_type: if apply { "application/apply-patch+yaml".into() } else { String::new() },
        body: if apply { body.to_string().into() } else { Bytes::new() },
        user: UserInfo {
            name: USER.into(),
            groups: ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]
                .map(str::to_owned)
                .into(),
            ..UserInfo::default()
        },
        ..ApiRequest::own(verb, policies, "v1", MANAGER)
    }
}

/// Checks a policy, unless its generation was.
async fn level(engine: &Arc<Engine>, policy: &Value) {
    if object::generation(policy) <= policy["status"]["observedGeneration"].as_i64().unwrap_or_default() {
        return;
    }
    let name = object::name(policy);
    let body = json!({"apiVersion": format!("{}/v1", crate::policies::GROUP), "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "status": status(policy, engine)});
    let query = [("fieldManager", MANAGER), ("force", "true")];
    let answer = engine.handle(request(Verb::Patch, name, &query, &body)).await;
    if answer.code >= 300 && answer.code != 404 {
        tracing::warn!(
            policy = name,
            code = answer.code,
            "failed to write the type checking status of a policy"
        );
    }
}

/// Checks policies as they come and change, until `stop` turns true or the engine is gone.
pub async fn follow(engine: Weak<Engine>, mut stop: watch::Receiver<bool>) {
    let stopped = async {
        // A sender that is gone stops as well.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    tokio::select! { biased; () = stopped => {}, () = check_all(engine) => {} }
}

async fn check_all(engine: Weak<Engine>) {
    let policies = GroupResource::new(crate::policies::GROUP, POLICIES);
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let watch = strong.handle(request(Verb::Watch, "", &[("watch", "true")], &Value::Null)).await;
        let Body::Watch(mut events) = watch.body else { return };
        drop(strong);
        // A watch begins with what there is.
        while events.next().await.is_some() {
            let Some(strong) = engine.upgrade() else { return };
            for policy in strong.list(&policies, None) {
                level(&strong, &policy).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
